"""The examples of docs/own-models.md, run as they are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.cli import main

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "own-models.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
MOST_LINES = 25
AROUND = 20  # lines of a length study beside the model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_are_short() -> None:
    assert len(BLOCKS) == 6
    assert all(len(block.splitlines()) <= MOST_LINES for block in BLOCKS[:3])
    for block in BLOCKS[3:]:  # a model, and what a length study needs beside it
        outside = [line for line in without_classes(block).splitlines() if line.strip()]
        assert len(outside) <= AROUND


def without_classes(code: str) -> str:
    return re.sub(r"^class .*?(?=^\w)", "", code, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("block", "reach", "said"),
    [
        (3, {"default": 256, "once": 32}, ["trained up to 16, reach 32 (all 2 probes); length 64 fails (probe once"]),
        (4, {"default": 16}, ["16 of 32 rows of places.weight", "From length 128 on it cannot run (IndexError"]),
        (
            5,
            {"default": 256, "one-inversion": 0},
            ["in range it fails one-inversion", "with that restriction, reach 256"],
        ),
    ],
)
def test_how_far_a_model_works(
    block: int, reach: dict[str, int], said: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = re.findall(r"# (\w+\.py):", BLOCKS[block])[0]
    (here / name).write_text(BLOCKS[block])
    assert main(["lengths", f"{name}:build", "--out", "study", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["probe"]: row["reach"] for row in found["reach"]}.items() >= reach.items()
    for words in said:
        assert words in " ".join(found["findings"])
        assert words in " ".join(DOCUMENT.split())
    assert main(["report", "study", "--json"]) == 0


def test_a_hugging_face_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[0], {})
    said = capsys.readouterr().out
    assert "L0H2 critical 0.04 right without it" in said
    assert "L1H3 critical 0.01 right without it" in said
    assert said.count("redundant 1.00 right without it") == 6
    assert "decoder.1.self.3 puts 0.97 of its weight on induction because of decoder.0.self.2 (0.06 without it)" in said
    assert "2 heads left" in said
    from transformers import GPT2LMHeadModel

    assert GPT2LMHeadModel.from_pretrained(here / "pruned").num_parameters() > 0


def test_hand_written_attention(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[1], {})
    assert "of 4 heads" in capsys.readouterr().out


def test_pytorchs_layers_by_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "subject.py").write_text(BLOCKS[2])
    assert main(["heads", "subject.py:build", "--max-drop", "0.05", "--out", "study", "--quiet"]) == 0
    assert "of 4 heads" in capsys.readouterr().out
    assert main(["prune", "subject.py:build", "--max-drop", "0.05", "--out", "pruned", "--quiet", "--json"]) == 0
    assert (here / "pruned" / "model.safetensors").exists()
    assert main(["report", "study", "--json"]) == 0

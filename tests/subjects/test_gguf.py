"""GGUF files: what is loaded is what was written, heads are proved on it, and what was pruned can be saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from gguf import GGMLQuantizationType
from gguf_files import LETTERS, tiny_llama, write_gguf

from headway.attach.from_transformers import load, subject_from_transformers
from headway.cli import main
from headway.errors import HeadwayError

TOKENS = torch.tensor([[4, 9, 17, 4, 9], [20, 3, 3, 28, 5]])


@pytest.fixture(scope="module")
def original() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def file(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf"
    write_gguf(original, path)
    return path


@torch.no_grad()
def test_full_precision_gives_the_logits_of_the_model_that_was_written(original: Any, tmp_path: Path) -> None:
    write_gguf(original, tmp_path / "tiny.gguf", GGMLQuantizationType.F32)
    model, tokenizer = load(tmp_path / "tiny.gguf")
    assert model.dtype == torch.float32
    torch.testing.assert_close(model(TOKENS).logits, original(TOKENS).logits, atol=1e-4, rtol=1e-4)
    assert tokenizer("dog").input_ids[-3:] == [3 + LETTERS.index(letter) for letter in "dog"]


@torch.no_grad()
def test_quantised_numbers_are_those_of_transformers(original: Any, file: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32).eval()
    model, _ = load(file)
    assert torch.equal(model(TOKENS).logits, theirs(TOKENS).logits)
    difference = (model(TOKENS).logits - original(TOKENS).logits).abs().max()
    assert 1e-4 < difference < 1  # eight bits lose something


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, 29, (520, 6), generator=generator).tolist()
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows))
    return path


def test_a_file_is_studied_pruned_and_reloaded_as_plain_transformers(
    file: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(file), "--examples", str(prompts), "--max-loss-increase", "1", "--quiet"]
    assert main(["heads", *given, "--brief", "--json", "--out", str(tmp_path / "study")]) == 0
    study = json.loads(capsys.readouterr().out)
    assert len(study["heads"]) == 12
    out = tmp_path / "pruned"
    assert main(["prune", *given, "--heads", "L0H1", "L2H3", "--json", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["largest_logit_difference"] < 1e-4
    _check_zeroed(out, file)


@torch.no_grad()
def _check_zeroed(out: Path, file: Path) -> None:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(out).eval()
    assert not hasattr(loaded.config, "quantization_config")
    model, _ = load(file)
    model.model.layers[0].self_attn.o_proj.weight[:, 16:32] = 0
    model.model.layers[2].self_attn.o_proj.weight[:, 48:] = 0
    torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, atol=1e-5, rtol=1e-5)


def test_without_the_package_one_sentence_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.attach.gguf.find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(HeadwayError, match=r"which needs gguf: pip install 'headway\[gguf\]'"):
        load(file)


@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_a_missing_or_damaged_file_is_one_sentence(kept: int, file: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="there is no file"):
        subject_from_transformers(tmp_path / "none.gguf", prompts)
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:kept])
    with pytest.raises(HeadwayError, match=r"cut\.gguf cannot be loaded") as raised:
        subject_from_transformers(tmp_path / "cut.gguf", prompts)
    assert "\n" not in str(raised.value)

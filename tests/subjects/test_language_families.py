"""`headway lengths` on causal language models of many families: it runs, or says in one sentence why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from language import OPTIONS, make

from headway.cli import main
from headway.errors import HeadwayError
from headway.lengths.language.study import study_language
from headway.lengths.question import LengthsQuestion

LONG = {"GPT-2": {"n_positions": 48}, "OPT": {"max_position_embeddings": 48}}
ASKED: dict[str, Any] = {"train_lengths": "32", "lengths": "32,64", "depths": 1, "probes": "key-value", "examples": 16}


@pytest.mark.parametrize("family", OPTIONS)
def test_every_family_is_studied_under_every_cure(family: str) -> None:
    model = make(family, **LONG.get(family, {}))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    config = model.config.to_json_string()
    tokens = torch.arange(3, 35)[None]
    logits = model(tokens).logits
    cures = "interpolation,log-length"  # named, so that they are measured although nothing was learned
    found = study_language(model, None, LengthsQuestion(**ASKED, cures=cures), family)
    cells = {(cell.length, cell.cure): cell for cell in found.cells.values()}
    assert {key for key, cell in cells.items() if cell.cannot_run is None} >= {(32, "none"), (64, "log-length")} - (
        {(64, "log-length")} if family in LONG else set()
    )
    if family in LONG:
        assert "48" in (cells[64, "none"].cannot_run or "")
        assert cells[64, "interpolation"].cannot_run is None  # its table reaches, once it is interpolated
    assert [each.cause for each in found.causes] == ["not learned"]
    assert model.config.to_json_string() == config
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(model(tokens).logits, logits)


def t5() -> Any:
    size: dict[str, Any] = {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1, "vocab_size": 40}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**size))


def test_what_is_no_causal_language_model_is_refused_in_one_sentence() -> None:
    with pytest.raises(HeadwayError, match="two stacks; a length study of language models is for causal models"):
        study_language(t5(), None, LengthsQuestion(**ASKED), "t5")
    size: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    bert = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=40, **size))
    with pytest.raises(HeadwayError, match="not a causal language model"):
        study_language(bert, None, LengthsQuestion(**ASKED), "bert")


def command(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    asked = [f"--{key.replace('_', '-')}={value}" for key, value in ASKED.items()]
    assert main(["lengths", str(folder), *asked, "--json", "--quiet", "--device", "cpu", *more]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    make("Llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_the_command_writes_what_it_prints(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    printed = command(llama, capsys, "--cures", "yarn", "--out", str(out))
    assert printed == json.loads((out / "lengths.json").read_text())
    assert {"effective", "cures", "causes", "table", "rows", "findings", "choices"} <= printed.keys()
    assert {row["cure"] for row in printed["cures"]} == {"none", "yarn"}
    assert (out / "lengths.csv").read_text().startswith("task,cure,length,depth,n,")
    assert not (out / "lengths.partial.json").exists()
    assert "rope_parameters={'rope_type': 'yarn'" in next(r["config"] for r in printed["cures"] if r["cure"] == "yarn")


def test_a_study_that_was_stopped_measures_only_what_is_missing(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.lengths.language import reading

    passes, real = list[str](), reading.LanguageReader._written

    def written(self: Any, prompts: Any, cure: str, setting: Any) -> Any:
        if len(passes) == stop:
            raise KeyboardInterrupt
        passes.append(cure)
        return real(self, prompts, cure, setting)

    monkeypatch.setattr(reading.LanguageReader, "_written", written)
    stop, out = -1, tmp_path / "whole"
    whole = command(llama, capsys, "--cures", "yarn", "--out", str(out))
    count = len(passes)
    passes.clear()
    stop, out = 2, tmp_path / "stopped"
    with pytest.raises(SystemExit):
        raise SystemExit(main(["lengths", str(llama), *[f"--{k.replace('_', '-')}={v}" for k, v in ASKED.items()],
                               "--quiet", "--device", "cpu", "--cures", "yarn", "--out", str(out)]))  # fmt: skip
    assert (out / "lengths.partial.json").exists()
    passes.clear()
    stop = -1
    again = command(llama, capsys, "--cures", "yarn", "--out", str(out))
    assert len(passes) == count - 2
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


WRONG = {
    ("--cures", "yarns"): "did you mean 'yarn'",
    ("--lengths", "8,64"): "at least 32 tokens",
    ("--depths", "40"): "test 1 to 20 depths",
    ("--examples", "3"): "at least 16",
    ("--positions", "rope"): "is for training",
    ("--probes", "passkey"): "needs --text",
    ("--text", "no.txt"): "there is no file",
    ("--train-lengths", "8"): "at least 32",
}


@pytest.mark.parametrize("flags", WRONG)
def test_wrong_requests_get_a_sentence(flags: tuple[str, str], llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {f"--{key.replace('_', '-')}": str(value) for key, value in ASKED.items()} | dict([flags])
    assert main(["lengths", str(llama), *[word for pair in asked.items() for word in pair], "--quiet"]) == 2
    said = capsys.readouterr().err
    assert WRONG[flags] in said
    assert said.count("\n") == 1


def test_flags_for_language_models_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, value in (("--cures", "yarn"), ("--to", "64"), ("--text", "a.txt"), ("--depths", "3")):
        assert main(["lengths", "sortedness", flag, value]) == 2
        assert "is for a language model from a folder" in capsys.readouterr().err

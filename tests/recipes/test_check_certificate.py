"""The checker agrees with the shipped certificates and refuses every attack that lies in weights or files."""

from __future__ import annotations

import ast
import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.models import build_model
from headway.runs import disk
from headway.runs.config import ModelConfig
from headway.runs.seal import seal, strip_seal
from headway.subjects.naming import pretrained_folder

RECIPES = Path(__file__).parents[2] / "recipes"
FEED = "blocks.0.feed."
Weights = dict[str, Tensor]


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module("check_certificate")


@pytest.fixture
def sorter(tmp_path: Path) -> Path:
    return copy_of("certified-sorter", tmp_path)


@pytest.fixture
def adder(tmp_path: Path) -> Path:
    return copy_of("certified-adder", tmp_path)


def copy_of(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(pretrained_folder(name).path, folder / name))


def reseal(folder: Path, **changed: Any) -> None:
    """Changes the certificate, and seals it again for the weights that are there."""
    path = folder / "certificate.json"
    weights = disk.sha256(folder / "model.safetensors")
    path.write_text(
        json.dumps(seal({**strip_seal(json.loads(path.read_text())), "weights_sha256": weights, **changed}))
    )


def reconfigure(folder: Path, **changed: Any) -> None:
    """Changes the model in the config and in the certificate."""
    config = json.loads((folder / "config.json").read_text())
    config["model"] |= changed
    (folder / "config.json").write_text(json.dumps(config))
    reseal(folder, model=config["model"])


def reweigh(folder: Path, change: Callable[[Weights], Weights | None]) -> None:
    """Changes the weights, and the certificate with them."""
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights) or weights, folder / "model.safetensors")
    reseal(folder)


def cache_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with the result of its first call for all calls."""
    results: list[Any] = []

    def call(*given: Any) -> Any:
        if not results:
            results.append(function(*given))
        return results[0]

    return call


def test_it_is_short_and_imports_numpy_alone() -> None:
    text = (RECIPES / "check_certificate.py").read_text()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name
        for node in found
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert names == {"hashlib", "json", "math", "sys", "pathlib", "typing", "numpy"}
    assert len(text.splitlines()) < 300


def test_the_shipped_sorter_is_confirmed(checker: ModuleType, sorter: Path, capsys) -> None:
    assert checker.main(sorter) == 0
    assert capsys.readouterr().out.startswith("yes: 15,150 contexts, 0 wrong, smallest margin 16.01")


@pytest.mark.slow
def test_the_shipped_adder_is_confirmed(checker: ModuleType, adder: Path, capsys) -> None:
    assert checker.main(adder) == 0
    assert capsys.readouterr().out.startswith("yes: 212,200 contexts, 0 wrong, smallest margin 14.62")


def test_it_tells_an_old_certificate_from_a_new_one(
    checker: ModuleType, sorter: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(checker, "walk", cache_first(checker.walk))  # once is enough
    stored = strip_seal(json.loads((sorter / "certificate.json").read_text()))
    old = {key: value for key, value in stored.items() if key not in ("rounding_bound", "assumes")}
    (sorter / "certificate.json").write_text(json.dumps(seal(old)))
    assert checker.main(sorter) == 0
    assert "of the old kind and claims exact arithmetic only" in capsys.readouterr().out
    reseal(sorter, rounding_bound=4.0, assumes={"dtype": "float32"})
    assert checker.main(sorter) == 0
    assert "the certificate bounds it by 4" in capsys.readouterr().out
    for said, claims in {
        "it is about bfloat16, not float32": {"rounding_bound": 4.0, "assumes": {"dtype": "bfloat16"}},
        "which cannot be right": {"rounding_bound": 1e-9, "assumes": {"dtype": "float32"}},
        "not the files of a certified run": {"rounding_bound": None, "assumes": {"dtype": "float32"}},
    }.items():
        reseal(sorter, **claims)
        assert checker.main(sorter) == 1
        assert said in capsys.readouterr().out


def test_the_contexts_are_those_of_real_sums(checker: ModuleType) -> None:
    """Every sum of numbers of one to four digits shows only listed contexts, and together they show all kinds."""
    listed = {kind: set() for kind, *_ in checker.adder_contexts()}
    for kind, tokens, _, right in checker.adder_contexts():
        listed[kind] = set(zip(*(column.tolist() for column in tokens), right.tolist(), strict=True))
        assert len(listed[kind]) == len(right)
    drawn, seen = np.random.default_rng(0), set()
    for _ in range(3_000):
        digits = int(drawn.integers(1, 5))
        a, b = (drawn.integers(0, 10, digits).tolist() for _ in range(2))
        answer = [
            int(digit)
            for digit in reversed(
                str(sum(10**k * (x + y) for k, (x, y) in enumerate(zip(a, b, strict=True)))).zfill(digits + 1)
            )
        ]
        written = [26, *(14 + digit for digit in answer)]  # the start token, then the answer
        for k in range(digits + 1):
            own = [a[k], b[k]] if k < digits else []
            before = [a[k - 1], b[k - 1]] if k else [10]  # in column 0 the plus sign
            context = (*own, *before, *written[max(0, k - 1) : k + 1], answer[k])
            (kind,) = [kind for kind, every in listed.items() if context in every]
            seen.add(kind)
    assert seen == listed.keys()


TAMPERED: dict[str, dict[str, Any]] = {
    "(certified, contexts, wrong) = [True, 15149, 0]": {"contexts": 15_149},
    "(certified, contexts, wrong) = [True, 15150, 1]": {"wrong": 1},
    "the smallest margin is 16.0135, not 17.5": {"smallest_margin": 17.5},
    "the certificate lists the contexts [['sorted, first', 100]": {
        "patterns": [{"pattern": "sorted, first", "contexts": 100}]
    },
    "are about different models or tasks": {"task": "addition"},
    "not the files of a certified run": {"patterns": 7},
}


@pytest.mark.parametrize("reason", TAMPERED)
def test_a_tampered_certificate_is_refused_though_sealed_again(
    checker: ModuleType, sorter: Path, reason: str, capsys
) -> None:
    reseal(sorter, **TAMPERED[reason])
    assert checker.main(sorter) == 1
    assert reason in capsys.readouterr().out


def test_broken_seals_other_weights_and_broken_files_are_refused(checker: ModuleType, sorter: Path, capsys) -> None:
    def refused(reason: str) -> None:
        assert checker.main(sorter) == 1
        assert reason in capsys.readouterr().out

    path, weights = sorter / "certificate.json", sorter / "model.safetensors"
    kept, data = path.read_text(), weights.read_bytes()
    path.write_text(kept.replace('"wrong": 0', '"wrong": 0, "also": 1'))
    refused("altered after it was granted")
    path.write_text(kept)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused("belongs to other weights")
    for broken in (data[:-4], data + b"1234", data[:3], b"\xff" * 8 + data[8:], data.replace(b'"F32"', b'"F16"', 1)):
        weights.write_bytes(broken)
        reseal(sorter)
        refused("no: ")
    weights.unlink()
    refused("not the files of a certified run")
    weights.write_bytes(data)
    path.write_text("[" * 100_000)
    refused("not the files of a certified run")


def cancelling(weights: Weights) -> Weights:
    """Adds two units that fire on almost no input and cancel exactly, but not in every order of summation."""
    into, out = weights[f"{FEED}into.weight"], weights[f"{FEED}out.weight"]
    huge = 1e6 * torch.ones(len(out), 1)
    weights[f"{FEED}into.weight"] = torch.cat((into, into[:1], into[:1]))
    weights[f"{FEED}into.bias"] = torch.cat((weights[f"{FEED}into.bias"], torch.full((2,), 1.0)))
    weights[f"{FEED}out.weight"] = torch.cat((out, huge, -huge), dim=1)
    return weights


def test_units_that_cancel_only_in_exact_arithmetic_are_refused(checker: ModuleType, sorter: Path, capsys) -> None:
    reweigh(sorter, cancelling)
    reconfigure(sorter, d_ff=258)
    assert checker.main(sorter) == 1
    assert "rounding" in capsys.readouterr().out


def near_tie(weights: Weights) -> None:
    weights["head.bias"] += 16.01346843 - 1e-3  # the sorted pair closest to an alarm


def wrong_pair(weights: Weights) -> None:
    weights["tokens.weight"][57] = weights["tokens.weight"][63]  # 57 passes for 63


def one(name: str, value: float) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name].view(-1)[-1] = value

    return change


def subnormal(weights: Weights) -> None:
    weights[f"{FEED}out.weight"].view(torch.int32)[0, 0] = 7  # about 1e-44; an assignment might flush it to 0


def widened(weights: Weights) -> Weights:
    return {name: weight.double() if name == "norm.bias" else weight for name, weight in weights.items()}


def with_another(weights: Weights) -> Weights:
    return {**weights, "positions.offset": torch.zeros(3)}


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (near_tie, "rounding may change the answer at sorted, "),
        (wrong_pair, "wrong at "),
        (one("norm.weight", float("nan")), "norm.weight contains NaN"),
        (one("tokens.weight", float("inf")), "tokens.weight contains NaN, infinity"),
        (one("positions.table", float("-inf")), "positions.table contains NaN, infinity"),
        (subnormal, "so small that it may become 0"),
        (one("tokens.weight", 1e30), "a number above 2^30"),
        (one("tokens.weight", 1e8), "no: "),
        (widened, "norm.bias is F64, not float32"),
        (with_another, "unexpected or missing weights: ['positions.offset']"),
    ],
)
def test_attacks_in_the_weights_are_refused(
    checker: ModuleType, sorter: Path, attack: Callable[[Weights], Weights | None], reason: str, capsys
) -> None:
    reweigh(sorter, attack)
    assert checker.main(sorter) == 1
    assert reason in capsys.readouterr().out


def test_an_untrained_model_is_refused(checker: ModuleType, adder: Path, capsys) -> None:
    config = ModelConfig(**json.loads((adder / "config.json").read_text())["model"])
    save_file(build_model(config, 0).state_dict(), adder / "model.safetensors")
    reseal(adder)
    assert checker.main(adder) == 1
    assert "wrong at a+0 b+0 operator start" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changed",
    [
        {"positions": "window+behind=2+ahead=0"},
        {"positions": "window+behind=1+ahead=0+share=0.5"},
        {"segments": False},
        {"pruned": "decoder.0.self.1"},
        {"layers": 2},
        {"index": "coupled+range=30"},
        {"least_first": False},
        {"start": 11},
        {"also": 1},
        {"heads": 7},
        {"d_ff": 2.5},
    ],
)
def test_a_changed_config_is_refused(checker: ModuleType, adder: Path, changed: dict[str, Any], capsys) -> None:
    reconfigure(adder, **changed)
    assert checker.main(adder) == 1
    assert "no: " in (said := capsys.readouterr().out)
    assert "the model differs from the known one" in said or "sizes" in said


def test_other_keys_beside_the_model_are_refused(checker: ModuleType, adder: Path, capsys) -> None:
    config = json.loads((adder / "config.json").read_text())
    (adder / "config.json").write_text(json.dumps({**config, "patch": "module.py"}))
    assert checker.main(adder) == 1
    assert "unexpected or missing keys: ['patch']" in capsys.readouterr().out
    config["options"]["natural"] = True
    (adder / "config.json").write_text(json.dumps(config))
    reseal(adder, options=config["options"])
    assert checker.main(adder) == 1
    assert "the options of the task are not the known ones" in capsys.readouterr().out


def rare_context(checker: ModuleType, weights: Weights) -> Weights:
    """Adds a unit that fires in one context of the last 200,000, and writes another digit there."""
    model = checker.Model({name: weight.numpy().astype(np.float64) for name, weight in weights.items()})
    normed, tokens = [], []
    for _, columns, before, _ in checker.adder_contexts():
        for start in range(0, len(columns[0]), 4_000):
            some = np.stack(columns, 1)[start : start + 4_000]
            last = some[:, -1]
            stream, r = checker.add(model.x[last], model.r[last], *model.out(*model.attend(some, np.array(before))))
            normed.append(checker.normalise(stream, r, *model.feed_norm)[0])
            tokens += some.tolist()
    normed, target = np.concatenate(normed), tokens.index([7, 2, 9, 5, 18, 19])
    along = normed @ normed[target]
    others = np.delete(along, [row for row, each in enumerate(tokens) if sorted(each) == sorted(tokens[target])]).max()
    gain = 100 / (along[target] - others)
    bias = torch.tensor([-gain * others])
    weights[f"{FEED}into.weight"] = torch.cat(
        (weights[f"{FEED}into.weight"], torch.tensor(gain * normed[target])[None].float())
    )
    weights[f"{FEED}into.bias"] = torch.cat((weights[f"{FEED}into.bias"], bias.float()))
    rival = (weights["unembed.weight"][3] - weights["unembed.weight"][0])[:, None]
    weights[f"{FEED}out.weight"] = torch.cat((weights[f"{FEED}out.weight"], rival), dim=1)
    return weights


@pytest.mark.slow
def test_a_wrong_context_among_the_rarest_is_found(checker: ModuleType, adder: Path, capsys) -> None:
    reweigh(adder, lambda weights: rare_context(checker, weights))
    reconfigure(adder, d_ff=257)
    assert checker.main(adder) == 1
    assert "no: " in capsys.readouterr().out

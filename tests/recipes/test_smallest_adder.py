"""The search for small adders, the checker of their certificates, and what they show."""

from __future__ import annotations

import ast
import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.models import build_model
from headway.runs import disk
from headway.runs.seal import seal, strip_seal
from headway.subjects.naming import pretrained_folder
from headway.subjects.own import open_one
from headway.tasks import Addition

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = {"smallest-adder": "6 numbers", "smallest-adder-table": "15 numbers"}


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module("smallest_adder")


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module("check_smallest_adder")


@pytest.fixture(params=SHIPPED)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pretrained_folder(request.param).path, tmp_path / request.param))


def reseal(folder: Path, **changed: Any) -> None:
    """Changes the certificate, and seals it again for the weights that are there."""
    path = folder / "certificate.json"
    stored = strip_seal(json.loads(path.read_text())) | {"weights_sha256": disk.sha256(folder / "model.safetensors")}
    path.write_text(json.dumps(seal({**stored, **changed})))


def test_the_checker_imports_numpy_alone() -> None:
    text = (RECIPES / "check_smallest_adder.py").read_text()
    names = {
        name
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names == {"hashlib", "json", "math", "sys", "pathlib", "typing", "numpy"}


def test_the_shipped_adders_are_confirmed(checker: ModuleType, folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert checker.main(folder) == 0
    assert capsys.readouterr().out.startswith(f"yes: {SHIPPED[folder.name]}, 20,000 contexts, 0 wrong")


def test_a_changed_weight_is_refused(checker: ModuleType, folder: Path, capsys: pytest.CaptureFixture) -> None:
    """Each tensor in turn is changed so that some context is wrong, and the certificate is sealed again for it."""
    kept = load_file(folder / "model.safetensors")
    for name, weight in kept.items():
        save_file({**kept, name: weight * 0.1}, folder / "model.safetensors")
        assert checker.main(folder) == 1
        assert "not the files" not in capsys.readouterr().out
        reseal(folder)
        assert checker.main(folder) == 1
        assert "contexts are wrong, such as digits" in capsys.readouterr().out
    save_file({**kept, "nearest.scale": kept["nearest.scale"] * torch.nan}, folder / "model.safetensors")
    reseal(folder)
    assert checker.main(folder) == 1
    assert "contains NaN" in capsys.readouterr().out


CLAIMS: dict[str, dict[str, Any]] = {
    "it claims (certified, contexts, wrong, undecided, parameters) = [True, 19999": {"contexts": 19_999},
    "it claims (certified, contexts, wrong, undecided, parameters) = [True, 20000, 0, 0, 5]": {"parameters": 5},
    "the certificate lists the contexts": {"patterns": [{"pattern": "a+0 b+0", "contexts": 20_000}]},
    "the smallest margin is": {"smallest_margin": 3.0},
    "which cannot be right": {"rounding_bound": 2.0},
    "it is about bfloat16": {"assumes": {"dtype": "bfloat16"}},
    "different models or tasks": {"task": "sortedness"},
    "not the files of a certified run": {"assumes": 7},
}


@pytest.mark.parametrize("reason", CLAIMS)
def test_a_false_certificate_is_refused_though_sealed_again(
    reason: str, checker: ModuleType, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    reseal(folder, **CLAIMS[reason])
    assert checker.main(folder) == 1
    assert reason in capsys.readouterr().out


def test_another_model_and_a_broken_seal_are_refused(
    checker: ModuleType, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    path = folder / "certificate.json"
    kept = path.read_text()
    path.write_text(kept.replace('"wrong": 0', '"wrong": 0, "also": 1'))
    assert checker.main(folder) == 1
    assert "altered after it was granted" in capsys.readouterr().out
    path.write_text(kept)
    config = json.loads((folder / "config.json").read_text())
    for name, value in {"heads": 3, "positions": "none", "index": "sequential", "start": 0}.items():
        model = {**config["model"], name: value}
        (folder / "config.json").write_text(json.dumps({**config, "model": model}))
        reseal(folder, model=model)
        assert checker.main(folder) == 1
        assert f"the model differs from the known one in ['{name}']" in capsys.readouterr().out


def test_the_checker_lists_every_context_once(checker: ModuleType) -> None:
    """Compared with all sums of three digits, read column by column."""
    listed = set(zip(*(column.tolist() for column in checker.every_context()), strict=True))
    assert len(listed) == 20_000
    drawn = np.random.default_rng(0).integers(0, 1000, (20_000, 2))
    seen = set()
    for a, b in [*drawn.tolist(), (999, 1), (0, 0), (999, 999)]:
        one, two, total = (f"0{number:0{width}}"[::-1] for number, width in ((a, 4), (b, 4), (a + b, 4)))
        one, two, total = (f"0{digits[:-1]}" for digits in (one, two, total))  # a column of zeros at either end
        for at in range(1, 5):
            column = (one[at], two[at], one[at - 1], two[at - 1], total[at - 1], total[at])
            seen.add(tuple(map(int, column)))
    assert seen <= listed
    assert len(seen) > 10_000


def test_intervals_hold_what_float32_gives(checker: ModuleType) -> None:
    dice = np.random.default_rng(1)
    x, y = (dice.normal(0, 50, 20_000).astype("f4") for _ in range(2))
    a, b = (checker.Interval.exact(each.astype(float)) for each in (x, y))
    pairs: list[tuple[Any, Any]] = [(a + b, x + y), (a - b, x - y), (a * b, x * y), (a.square(), x * x)]
    pairs += [((a * checker.Interval.exact(0.01)).tanh(), np.tanh(np.float32(0.01) * x))]
    pairs += [(checker.mean([a, b, a]), (x + y + x) / np.float32(3)), (checker.mean([a, b]), (y + x) / np.float32(2))]
    for interval, value in pairs:
        assert value.dtype == np.float32
        assert (interval.low <= value).all()
        assert (value <= interval.high).all()
        assert (interval.high - interval.low <= 1e-4 * (1 + np.abs(value))).all()


# The search


def small(tmp_path: Path, **changed: Any) -> list[str]:
    flags = {"sizes": "line-tanh1-6", "starts": 8, "steps": 3, "batch": 8, "out": tmp_path, **changed}
    return [str(part) for name, value in flags.items() for part in (f"--{name}", value)]


def run(recipe: ModuleType, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["smallest_adder.py", *flags])
    recipe.main()


def test_every_size_trains_and_is_as_large_as_its_name_says(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(recipe, monkeypatch, small(tmp_path, sizes="all", starts=2, steps=1))
    found = recipe.finished(tmp_path)
    assert len(found) == len(recipe.SIZES)
    for each in found:
        trained = sum(np.size(weight) for weight in each["weights"].values())
        assert each["size"]["name"].endswith(f"-{trained}")
        assert each["size"]["numbers"] == trained
    assert f"| 6 | `line-tanh1-6` | 0 | 2 | 1 | {found[0]['perfect']} |" in capsys.readouterr().out


def test_a_finished_population_is_not_trained_again(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(recipe, monkeypatch, small(tmp_path))
    (path,) = tmp_path.glob("*.json")
    before = path.read_bytes()
    monkeypatch.setattr(recipe, "train", None)
    run(recipe, monkeypatch, small(tmp_path))
    assert path.read_bytes() == before
    assert "finished before" in capsys.readouterr().out


def test_contexts_with_their_counts_are_all_20_000(recipe: ModuleType) -> None:
    rows, counts = recipe.every_context()
    assert (len(rows), int(counts.sum())) == (6_050, 20_000)
    swapped = {(*sorted(row[:2]), *sorted(row[2:4]), *row[4:]) for row in rows.tolist()}
    assert len(swapped) == 6_050


@pytest.mark.parametrize("name", SHIPPED)
def test_the_recipe_and_the_model_compute_the_same(recipe: ModuleType, name: str) -> None:
    """The shipped weights in the recipe's formula give the model's answers, and its logits up to a shift."""
    shipped = open_one(f"pretrained:{name}")
    state = {key: weight[None] for key, weight in shipped.model.state_dict().items()}
    out = state["blocks.0.attentions.self.out.weight"][0]
    weights = {"digits": state.get("tokens.shift", state.get("tokens.table")), "own": out[:, 0], "right": out[:, 1]}
    weights |= {"into": state["blocks.0.feed.into.weight"], "out": state["blocks.0.feed.out.weight"]}
    weights["scale"] = state["nearest.scale"][:, 0]
    size = recipe.Size("line" if name == "smallest-adder" else "table")
    rows, counts = recipe.every_context()
    wrong, _ = recipe.count_wrong(size, weights, (rows, counts))
    assert int(wrong[0]) == 0
    problems = shipped.task.testing(0, 200, length=3)
    assert isinstance(shipped.task, Addition)
    a, _, b = shipped.task.operands(problems)
    columns = [a[:, -2], b[:, -2], a[:, -1], b[:, -1], problems.answer[:, 0], problems.answer[:, 1]]
    with torch.no_grad():
        ours = shipped.model(problems.source, problems.answer)[:, 1].log_softmax(-1)
        theirs = recipe.logits(size, weights, torch.stack(columns, 1))[0].log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-4)


def test_an_export_is_a_run_folder(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(recipe, monkeypatch, small(tmp_path, sizes="table-tanh1-15"))
    run(recipe, monkeypatch, ["--out", str(tmp_path), "--export", "table-tanh1-15", "--to", str(tmp_path / "run")])
    opened = open_one(tmp_path / "run")
    (found,) = recipe.finished(tmp_path)
    assert sum(weight.numel() for weight in opened.model.parameters()) == 15
    assert opened.model.state_dict()["tokens.table"].tolist() == pytest.approx(found["weights"]["digits"])
    assert f"start {found['best']['start']}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no finished population of table-tanh1-15 with seed 7"):
        recipe.export("table-tanh1-15", 7, tmp_path, tmp_path / "other")


def test_the_shown_decoding_knows_nothing_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)
    shown = importlib.import_module("show_smallest_adder")
    run = open_one("pretrained:smallest-adder")
    problems = shown.join(run.task, shown.EDGES)
    assert shown.count_right(run.model, problems) == len(shown.EDGES) == 10
    assert shown.count_right(build_model(run.config.model, 3).eval(), problems) < 10
    said = shown.show_long(run.model, run.task, "carry-chain", 300)
    assert said.startswith("carry-chain, 300 digits: decoded 301 of 301 digits right")

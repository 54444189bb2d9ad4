"""Training learns, is byte-reproducible, resumes, and refuses invalid requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.api import train, train_seeds
from headway.errors import BrokenRun, HeadwayError, TrainingFailed
from headway.models import build_model
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.tasks import Addition, Problems
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner, Step, hidden_matrices, schedule_factor
from headway.training.loop import train_run
from small import small_model

CPU = torch.device("cpu")
SMALL = small_model(batch=8)


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def small(task: str = "addition", seed: int = 0, **asked):
    return plan(task, Overrides(**{**SMALL, "steps": 30, **asked}), seed)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("task", ["addition", "sortedness"])
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(task: str, optimizer: str, tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        train_run(small(task, seed, optimizer=optimizer), tmp_path / name, device=CPU)
    assert weights(tmp_path / "one") == weights(tmp_path / "again")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_run_stopped_at_any_step_ends_with_the_same_bytes(optimizer: str, tmp_path: Path) -> None:
    config = small(optimizer=optimizer)
    train_run(config, tmp_path / "whole", device=CPU)
    for stop in (1, 7, 29):
        out = tmp_path / f"stopped-{stop}"

        def interrupt(done: int, total: int, words: str, out: Path = out) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_run(config, out, device=CPU, checkpoint_every=stop, watch=interrupt)
        train_run(config, out, device=CPU, resume=True)
        assert weights(out) == weights(tmp_path / "whole")
        lines = [{**line, "seconds": 0, "examples_per_second": 0} for line in RunFolder(out).log_lines()]
        expected = RunFolder(tmp_path / "whole").log_lines()
        assert lines == [{**line, "seconds": 0, "examples_per_second": 0} for line in expected]


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = train_run(small(), tmp_path / "run", device=CPU)
    assert train_run(small(), tmp_path / "run", device=CPU) == first


def test_a_few_steps_of_the_real_recipe_learn_something() -> None:
    config = plan("addition", Overrides(batch=64), seed=0)
    learner = Learner(build_model(config.model, 0), config.training)
    batches = draw_batches(Addition(), config.training, [config.seed], None, 0, CPU)
    losses = [float(learner.step(next(batches)).loss) for _ in range(40)]
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]


def test_batches_do_not_depend_on_the_first_step() -> None:
    config = small()
    task = Addition()
    whole = draw_batches(task, config.training, [config.seed], None, 0, CPU)
    expected = [next(whole) for _ in range(40)][37]
    assert torch.equal(next(draw_batches(task, config.training, [config.seed], None, 37, CPU)).source, expected.source)


def test_half_of_every_batch_is_carry_heavy() -> None:
    config = plan("addition", Overrides(hard=0.5, batch=400), seed=0)
    batch = next(draw_batches(Addition(), config.training, [config.seed], None, 0, CPU))
    nines = (batch.source[:, :3] + batch.source[:, 4:] == 9).double()
    assert abs(float(nines[:200].mean()) - 0.55) < 0.08
    assert abs(float(nines[200:].mean()) - 0.1) < 0.06


def test_the_rate_rises_then_falls_to_nothing() -> None:
    config = plan("addition", Overrides(steps=1000, warmup=100), seed=0).training
    assert schedule_factor(0, config) == 0.01
    assert schedule_factor(99, config) == schedule_factor(100, config) == 1.0
    assert abs(schedule_factor(550, config) - 0.5) < 1e-9
    assert schedule_factor(999, config) < 1e-4


def test_muon_takes_the_hidden_matrices_and_nothing_else() -> None:
    names = hidden_matrices(build_model(plan("addition", Overrides(), seed=0).model))
    assert len(names) == 6 * 3 + 4 * 2  # a query, a key-value stack and an output a site; two a feed-forward
    assert not [name for name in names if "tokens" in name or "unembed" in name or "table" in name or "bias" in name]


def test_until_perfect_stops_when_every_trainable_problem_is_right(tmp_path: Path) -> None:
    overrides: dict[str, Any] = {
        "until": "perfect",
        "steps": 2000,
        "batch": 64,
        "d_model": 64,
        "d_ff": 128,
        "warmup": 20,
    }
    run = train("addition", seed=0, out=tmp_path / "run", options={"digits": 1}, device="cpu", **overrides)
    ended = run.folder.training()
    assert ended.perfect
    assert ended.steps < 2000
    problems = run.task.listing(0, 100)
    wrong = (run.model(problems.source, problems.answer).argmax(-1) != problems.answer).any(1)
    assert not (wrong & ~run.task.held_out(problems)).any()


def test_until_perfect_reports_when_it_was_not_reached(tmp_path: Path) -> None:
    report = train_run(small(until="perfect"), tmp_path / "run", device=CPU)
    assert report.perfect is False
    assert train_run(small(), tmp_path / "other", device=CPU).perfect is None


def test_until_perfect_is_refused_where_nothing_can_be_listed(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="more than `until=perfect` can enumerate"):
        train_run(small("sortedness", until="perfect"), tmp_path / "run", device=CPU)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("every", "said"), [(5, "a weight is not finite after step 15"), (50, "the loss is nan at step 20")]
)
def test_nan_stops_training_and_keeps_the_last_good_checkpoint(
    every: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Learner.step

    def poisoned(learner: Learner, problems: Problems) -> Step:
        if learner.steps == 12:
            with torch.no_grad():
                next(learner.model.parameters()).fill_(float("nan"))
        return honest(learner, problems)

    monkeypatch.setattr(Learner, "step", poisoned)
    kept = "the checkpoint of step 10 is kept" if every == 5 else "there was no checkpoint yet"
    with pytest.raises(TrainingFailed, match=f"{said}; {kept}"):
        train_run(small(), tmp_path / "run", device=CPU, checkpoint_every=every)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    monkeypatch.undo()
    train_run(small(), tmp_path / "run", device=CPU, resume=True)
    train_run(small(), tmp_path / "whole", device=CPU)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_another_config_in_the_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    train_run(small(), tmp_path / "run", device=CPU)
    before = weights(tmp_path / "run")
    with pytest.raises(HeadwayError, match=r"holds another run, addition-.*training.steps 30, asked for 31"):
        train_run(small(steps=31), tmp_path / "run", device=CPU)
    assert weights(tmp_path / "run") == before


def test_an_unfinished_run_needs_resume(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, words: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(small(), tmp_path / "run", device=CPU, watch=interrupt)
    with pytest.raises(HeadwayError, match="use `resume`"):
        train_run(small(), tmp_path / "run", device=CPU)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(HeadwayError, match="holds other files"):
        train_run(small(), tmp_path, device=CPU)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_altered_pointer_is_not_followed(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, words: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(small(), tmp_path / "run", device=CPU, checkpoint_every=5, watch=interrupt)
    pointer = tmp_path / "run" / "checkpoint" / "latest.json"
    pointer.write_text(pointer.read_text().replace('"steps": 20', '"steps": 10').replace('"steps": 15', '"steps": 10'))
    with pytest.raises(BrokenRun, match=r"latest\.json was altered"):
        train_run(small(), tmp_path / "run", device=CPU, resume=True)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_not_used(damage: str, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, words: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(small(), tmp_path / "run", device=CPU, checkpoint_every=5, watch=interrupt)
    file = next((tmp_path / "run" / "checkpoint").glob("step-*"))
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-20] ^= 1
    file.write_bytes({"truncate": content[:-9], "flip": content, "empty": b""}[damage])
    with pytest.raises(BrokenRun, match=file.name):
        train_run(small(), tmp_path / "run", device=CPU, resume=True)


def test_every_folder_is_checked_before_training(tmp_path: Path) -> None:
    train_run(small(seed=2, steps=5), tmp_path / "out" / "seed-2", device=CPU)
    with pytest.raises(HeadwayError, match="seed-2 holds another run"):
        train_seeds("addition", seeds=[0, 1, 2], **SMALL, steps=3, out=tmp_path / "out", quiet=True)
    assert [folder.name for folder in (tmp_path / "out").iterdir()] == ["seed-2"]


def test_seeds_go_to_folders_of_their_own(tmp_path: Path) -> None:
    reports = train_seeds("addition", seeds=[0, 3], **SMALL, steps=3, out=tmp_path / "out", quiet=True)
    assert [Path(report.run).name for report in reports] == ["seed-0", "seed-3"]
    assert [json.loads((tmp_path / "out" / n / "config.json").read_text())["seed"] for n in ("seed-0", "seed-3")] == [
        0,
        3,
    ]

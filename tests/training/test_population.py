"""Each member of a population equals the same run trained alone; none is lost or left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headway.api import train_seeds
from headway.errors import HeadwayError
from headway.models import build_model
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.tasks import create_task
from headway.training import population
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner
from headway.training.loop import RunReport, train_run
from headway.training.population import Member, train_population
from headway.training.stack import Stack
from headway.trials.drive import train_trials
from headway.trials.local import LocalEngine
from headway.trials.plan import pieces_of
from headway.trials.trial import Terms, Trial
from small import small_model

CPU = torch.device("cpu")
SMALL = small_model(batch=8)
STEPS = 6


def small(seed: int = 0, task: str = "addition", options: dict[str, Any] | None = None, **asked: Any) -> RunConfig:
    return plan(task, Overrides(**{**SMALL, "steps": 30, **asked}), seed, options)


def members(home: Path, configs: list[RunConfig]) -> list[Member]:
    return [Member(config, RunFolder(home / f"seed-{config.seed}")) for config in configs]


def together(home: Path, configs: list[RunConfig], **settings: Any) -> list[RunReport]:
    return train_population(members(home, configs), home, device=CPU, **settings)


def apart(home: Path, configs: list[RunConfig]) -> list[RunReport]:
    trials = [Trial(config, {"seed": config.seed}, f"seed-{config.seed}") for config in configs]
    return train_trials(pieces_of(trials, ()), LocalEngine(Terms(str(home)), 1), "", quiet=True)


def weights(home: Path, seed: int) -> bytes:
    return (home / f"seed-{seed}" / "model.safetensors").read_bytes()


def stacked(configs: list[RunConfig]) -> dict[str, torch.Tensor]:
    """Returns the weights after a few steps of a stack in float64."""
    models = [build_model(config.model, config.seed).double() for config in configs]
    stack = Stack(models, [config.training for config in configs], CPU)
    task = create_task(configs[0].task, configs[0].options)
    batches = draw_batches(task, configs[0].training, [config.seed for config in configs], None, 0, CPU)
    for _ in range(STEPS):
        stack.step(next(batches))
    return stack.weights


def alone(config: RunConfig) -> dict[str, torch.Tensor]:
    """Returns the same from the ordinary learner, the slow, obvious way."""
    learner = Learner(build_model(config.model, config.seed).double(), config.training)
    batches = draw_batches(create_task(config.task, config.options), config.training, [config.seed], None, 0, CPU)
    for _ in range(STEPS):
        learner.step(next(batches))
    return dict(learner.model.state_dict())


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"optimizer": "adamw"},
        {"task": "sortedness"},
        {"model": "decoder", "positions": "sinusoidal"},
        {"options": {"natural": True, "operators": "+-"}},
    ],
    ids=["muon", "adamw", "sortedness", "decoder", "natural"],
)
def test_a_member_has_the_numbers_of_the_same_seed_trained_alone(asked: dict[str, Any]) -> None:
    configs = [small(seed, **asked) for seed in (3, 4, 9)]
    together = stacked(configs)
    for row, config in enumerate(configs):
        for name, expected in alone(config).items():
            torch.testing.assert_close(together[name][row], expected, rtol=1e-10, atol=1e-12)


def test_members_may_differ_in_rates_momentum_decay_and_warm_up() -> None:
    own = [
        {"learning_rate": 3e-3, "muon_rate": 0.01, "momentum": 0.95, "weight_decay": 0.1, "warmup": 2},
        {"learning_rate": 1e-4, "muon_rate": 0.05, "momentum": 0.5, "weight_decay": 0.0, "warmup": 9},
    ]
    configs = [small(0, **settings) for settings in own]
    together = stacked(configs)
    for row, config in enumerate(configs):
        for name, expected in alone(config).items():
            torch.testing.assert_close(together[name][row], expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(together["unembed.weight"][0], together["unembed.weight"][1])


def test_a_member_does_not_depend_on_its_neighbours_or_their_number() -> None:
    few, many = stacked([small(5), small(6)]), stacked([small(seed) for seed in (1, 2, 5, 7)])
    for name, weight in few.items():
        torch.testing.assert_close(weight[0], many[name][2], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "other",
    [{"batch": 9}, {"d_ff": 64}, {"steps": 31}, {"optimizer": "adamw"}, {"hard": 0.25}, {"positions": "none"}],
    ids=lambda other: next(iter(other)),
)
def test_members_of_two_shapes_are_refused_by_name(other: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=f"one shape: .*{next(iter(other))}"):
        together(tmp_path, [small(0), small(1, **other)])
    assert not list(tmp_path.iterdir())


def test_members_end_as_ordinary_runs_of_their_own_config(tmp_path: Path) -> None:
    configs = [small(seed) for seed in (0, 1, 2)]
    reports = together(tmp_path, configs)
    assert [report.seed for report in reports] == [0, 1, 2]
    for report, config in zip(reports, configs, strict=True):
        folder = RunFolder(Path(report.run))
        assert folder.verify() == config
        assert [line["step"] for line in folder.log_lines()] == [20, 30]
        assert json.loads((folder.path / "environment.json").read_text())["population"] == 3
        by_itself = train_run(config, tmp_path / f"alone-{config.seed}", device=CPU)
        assert report.steps == by_itself.steps
        assert report.parameters == by_itself.parameters
        assert report.final_loss == pytest.approx(by_itself.final_loss, rel=1e-3)
        ours, theirs = (load_file(Path(each.run) / "model.safetensors") for each in (report, by_itself))
        assert ours.keys() == theirs.keys()
    assert not (tmp_path / "checkpoint").exists()


class Stopped(Exception):
    pass


def stop_at(step: int) -> Callable[[int, int, str], None]:
    def watch(done: int, total: int, words: str) -> None:
        if done >= step:
            raise Stopped

    return watch


def wild(seed: int, **asked: Any) -> RunConfig:
    """Returns a config that diverges for seed 1."""
    config = small(seed, optimizer="adamw", **asked)
    return replace(config, training=replace(config.training, learning_rate=1e30)) if seed == 1 else config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains a population without interruption."""
    home = tmp_path_factory.mktemp("whole")
    together(home, [wild(seed, steps=60) for seed in range(3)])
    return home


@pytest.mark.parametrize("every", [7, 20, 39])
def test_a_population_stopped_and_resumed_ends_with_the_same_bytes(every: int, whole: Path, tmp_path: Path) -> None:
    """Seed 1 diverges and has ended before the stop."""
    configs = [wild(seed, steps=60) for seed in range(3)]
    with pytest.raises(Stopped):
        together(tmp_path / "cut", configs, checkpoint_every=every, watch=stop_at(40))
    assert RunFolder(tmp_path / "cut" / "seed-1").complete
    with pytest.raises(HeadwayError, match="set `resume` to continue"):
        together(tmp_path / "cut", configs)
    with pytest.raises(HeadwayError, match="other members"):
        together(tmp_path / "cut", [wild(seed, steps=61) for seed in range(3, 5)], resume=True)
    with pytest.raises(HeadwayError, match="started with `precision=float32`"):
        together(tmp_path / "cut", configs, resume=True, precision=torch.bfloat16)
    together(tmp_path / "cut", configs, resume=True)
    for seed in range(3):
        if seed != 1:  # whose weights are no numbers
            assert weights(tmp_path / "cut", seed) == weights(whole, seed)
        ours, theirs = (RunFolder(home / f"seed-{seed}").log_lines() for home in (tmp_path / "cut", whole))
        assert [(line["step"], line["loss"]) for line in ours] == [(line["step"], line["loss"]) for line in theirs]
    assert not (tmp_path / "cut" / "checkpoint").exists()


def test_members_begun_alone_are_finished_alone(tmp_path: Path) -> None:
    configs = [small(seed) for seed in range(2)]
    with pytest.raises(Stopped):
        train_run(configs[1], tmp_path / "seed-1", device=CPU, checkpoint_every=5, watch=stop_at(20))
    with pytest.raises(HeadwayError, match="seed-1 was started as a single run; finish it with `seed=1` and `resume`"):
        together(tmp_path, configs, resume=True)


def test_a_broken_member_is_not_taken_for_a_complete_one(tmp_path: Path) -> None:
    configs = [small(seed) for seed in range(2)]
    together(tmp_path, configs)
    path = tmp_path / "seed-1" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HeadwayError, match="truncated or altered"):
        together(tmp_path, configs)


def test_a_complete_population_is_not_trained_again_and_may_grow(tmp_path: Path) -> None:
    first = together(tmp_path, [small(seed) for seed in range(2)])
    kept = weights(tmp_path, 1)
    again = together(tmp_path, [small(seed) for seed in range(4)])
    assert again[:2] == first
    assert len(again) == 4
    assert weights(tmp_path, 1) == kept


def test_a_member_that_diverges_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    for home, train in {"stack": together, "apart": apart}.items():
        reports = train(tmp_path / home, [wild(seed) for seed in range(3)])
        assert [report.final_loss is None for report in reports] == [False, True, False]
        assert reports[1].steps < 30
        assert reports[2].steps == 30
        assert [RunFolder(Path(report.run)).complete for report in reports] == [True] * 3
        quiet = together(tmp_path / f"{home}-others", [wild(0), wild(2)])
        assert reports[2].final_loss == pytest.approx(quiet[1].final_loss, rel=1e-3)


def test_until_perfect_removes_each_member_once_it_is_perfect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test scripts when members become perfect, so that none has to be trained."""
    sizes, perfect_at = [], {50: 2, 100: 0}

    def scripted(models: Any, task: Any) -> torch.Tensor:
        left = [seed for seed in range(4) if seed not in (2, 0)[: len(sizes)]]
        sizes.append(models.members)
        return torch.tensor([seed == perfect_at.get(50 * len(sizes)) for seed in left])

    monkeypatch.setattr(population, "trainable_right", scripted)
    reports = together(tmp_path, [small(seed, until="perfect", steps=160) for seed in range(4)])
    assert [(report.steps, report.perfect) for report in reports] == [
        (100, True), (160, False), (50, True), (160, False)
    ]  # fmt: skip
    assert sizes == [4, 3, 2, 2]
    whole = together(tmp_path / "other", [small(seed, steps=160) for seed in (1, 3)])
    assert reports[3].final_loss == pytest.approx(whole[1].final_loss, rel=1e-3)


def test_out_of_memory_splits_the_stack_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulates a GPU with room for two members."""
    plain = Stack.step

    def step(self: Stack, problems: Any) -> Any:
        if len(self) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, problems)

    configs = [small(seed) for seed in range(5)]
    together(tmp_path / "whole", configs)
    monkeypatch.setattr(Stack, "step", step)
    reports = together(tmp_path / "split", configs)
    assert [report.seed for report in reports] == list(range(5))
    assert "5 members do not fit in memory; continuing with 3 at a time" in capsys.readouterr().err
    for seed in range(5):
        for name, weight in load_file(tmp_path / "split" / f"seed-{seed}" / "model.safetensors").items():
            expected = load_file(tmp_path / "whole" / f"seed-{seed}" / "model.safetensors")[name]
            torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-4)


def test_late_out_of_memory_resumes_from_the_checkpoint_and_keeps_ended_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out at step 45, after seed 1 has ended and a checkpoint was taken."""
    configs, plain, steps = [wild(seed, steps=60) for seed in range(4)], Stack.step, []

    def step(self: Stack, problems: Any) -> Any:
        steps.append((len(self), self.steps))
        if len(self) > 2 and self.steps == 45:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, problems)

    together(tmp_path / "whole", configs)
    monkeypatch.setattr(Stack, "step", step)
    together(tmp_path / "split", configs, checkpoint_every=10)
    after = steps[steps.index((3, 45)) + 1 :]
    assert after[0] == (1, 40)  # of the first half, the one that had not ended, from the checkpoint
    for seed in (0, 2, 3):
        ours, theirs = (
            load_file(tmp_path / home / f"seed-{seed}" / "model.safetensors") for home in ("split", "whole")
        )
        for name, weight in ours.items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-4)


def test_a_model_that_keeps_more_than_weights_is_refused() -> None:
    model = build_model(small().model, 0)
    model.register_buffer("seen", torch.zeros(1))
    with pytest.raises(HeadwayError, match="also has the buffers seen; use `seeds` instead"):
        Stack([model, model], [small().training] * 2, CPU)


def test_on_a_cpu_members_train_in_processes_and_equal_runs_alone(tmp_path: Path) -> None:
    reports = train_seeds("addition", **SMALL, steps=25, out=tmp_path / "many", device="cpu", quiet=True, population=3)
    assert [Path(report.run).name for report in reports] == ["seed-0", "seed-1", "seed-2"]
    by_itself = train_run(plan("addition", Overrides(**SMALL, steps=25), 1), tmp_path / "one", device=CPU)
    assert reports[1].final_loss == pytest.approx(by_itself.final_loss, rel=1e-3)


def test_an_invalid_member_stops_a_population_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-1" / "notes.txt").write_text("mine")
    with pytest.raises(HeadwayError, match="seed-1 holds other files and no run"):
        train_seeds("addition", **SMALL, steps=5, out=tmp_path, device="cpu", population=2)
    assert not (tmp_path / "seed-0").exists()

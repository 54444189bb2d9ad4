"""The recipe of the published reports, as flags: post-norm, Adam at a constant rate, dropout, stored sums in epochs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.api import train
from headway.errors import HeadwayError
from headway.models import build_model
from headway.models.dropout import Dropout, keys_of
from headway.runs.config import Overrides, RunConfig
from headway.runs.folder import RunFolder
from headway.tasks import Addition
from headway.tasks.random import REPEATED, Dice
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner, schedule_factor
from headway.training.loop import train_run
from headway.training.population import Member, train_population
from headway.training.stack import Stack
from small import small_model

CPU = torch.device("cpu")
STEPS = 6
SMALL = small_model(decoder_layers=1, batch=8, stored=20)


def reports(seed: int = 0, **asked: Any) -> RunConfig:
    return plan("addition", Overrides(recipe="reports", **{**SMALL, **asked}), seed)


def test_the_recipe_is_what_the_reports_say() -> None:
    config = plan("addition", Overrides(recipe="reports"), 0)
    training = config.training
    assert (config.model.norm, config.model.positions) == ("post", "sinusoidal")
    assert (training.optimizer, training.learning_rate, training.weight_decay) == ("adam", 1e-3, 0.0)
    assert (training.stored, training.batch, training.dropout, training.hard) == (10_000, 64, 0.1, 0.0)
    assert training.steps * training.batch >= 50 * 10_000 > (training.steps - 1) * training.batch
    assert {schedule_factor(step, training) for step in (0, 1, 4000, training.steps - 1)} == {1.0}


def test_single_settings_override_the_recipe() -> None:
    config = plan("addition", Overrides(recipe="reports", norm="pre", steps=70, dropout=0.2), 0)
    assert (config.model.norm, config.training.steps, config.training.dropout) == ("pre", 70, 0.2)


def test_a_default_run_keeps_its_hash() -> None:
    """Runs trained before these settings existed are still the same runs."""
    assert plan("addition", Overrides(), 0).digest.startswith("7bdf541ce78b54ea")
    assert plan("sortedness", Overrides(positions="rope"), 3).digest.startswith("7c1fc7af0418546a")


def test_configs_with_new_settings_differ_and_read_back() -> None:
    configs = [plan("addition", Overrides(**one), 0) for one in ({}, {"norm": "post"}, {"stored": 5}, {"dropout": 0.5})]  # pyright: ignore[reportArgumentType]
    assert len({config.digest for config in configs}) == 4
    assert [RunConfig.from_json(config.to_json()) for config in configs] == configs


def sums(batch: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for row in batch.source.tolist()]


@pytest.mark.parametrize("batch", [8, 20, 50])
def test_every_epoch_shows_each_stored_problem_once_in_another_order(batch: int) -> None:
    training, task, wanted = reports(batch=batch).training, Addition(), 200
    batches = draw_batches(task, training, [5], None, 0, CPU)
    seen = [row for _ in range(-(-wanted // batch)) for row in sums(next(batches))]
    epochs = [seen[start : start + 20] for start in range(0, wanted, 20)]
    assert all(Counter(epoch) == Counter(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_stored_problems_are_the_seeds_own_none_held_out_and_the_same_from_any_step_on() -> None:
    training, task = reports(stored=3000).training, Addition()
    first = draw_batches(task, training, [1, 2], None, 0, CPU)
    expected = [next(first) for _ in range(30)][-1]
    found = next(draw_batches(task, training, [1, 2], None, 29, CPU))
    assert torch.equal(found.source, expected.source)
    alone = next(draw_batches(task, training, [2], None, 29, CPU))
    assert torch.equal(alone.source, expected.source[8:])
    stored = task.training(Dice.of(REPEATED, 1, 0, 3000, CPU), 0, 3)
    assert not task.held_out(stored).any()
    assert set(sums(expected[:8])) <= set(sums(stored))
    assert not set(sums(expected[8:])) <= set(sums(stored))


def test_a_run_stopped_at_any_step_ends_with_the_same_bytes(tmp_path: Path) -> None:
    config = reports(steps=30)
    train_run(config, tmp_path / "whole", device=CPU)
    for stop in (1, 7, 29):

        def interrupt(done: int, total: int, words: str) -> None:
            raise KeyboardInterrupt

        out = tmp_path / f"stopped-{stop}"
        with pytest.raises(KeyboardInterrupt):
            train_run(config, out, device=CPU, checkpoint_every=stop, watch=interrupt)
        train_run(config, out, device=CPU, resume=True)
        assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_member_has_the_numbers_of_the_same_seed_trained_alone() -> None:
    configs, task = [reports(seed) for seed in (3, 4, 9)], Addition()
    models = [build_model(config.model, config.seed).double() for config in configs]
    seeds, trainings = [config.seed for config in configs], [config.training for config in configs]
    stack = Stack(models, trainings, CPU, seeds=seeds)
    batches = draw_batches(task, trainings[0], seeds, None, 0, CPU)
    for _ in range(STEPS):
        stack.step(next(batches))
    for row, config in enumerate(configs):
        learner = Learner(build_model(config.model, config.seed).double(), config.training, config.seed)
        own = draw_batches(task, config.training, [config.seed], None, 0, CPU)
        for _ in range(STEPS):
            learner.step(next(own))
        for name, expected in learner.model.state_dict().items():
            torch.testing.assert_close(stack.weights[name][row], expected, rtol=1e-9, atol=1e-11)


def test_a_killed_population_ends_with_the_same_bytes(tmp_path: Path) -> None:
    configs = [reports(seed, steps=40) for seed in (0, 1)]

    def members(home: Path) -> list[Member]:
        return [Member(config, RunFolder(home / f"seed-{config.seed}")) for config in configs]

    def interrupt(done: int, total: int, words: str) -> None:
        raise KeyboardInterrupt

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_population(members(whole), whole, device=CPU)
    with pytest.raises(KeyboardInterrupt):
        train_population(members(killed), killed, device=CPU, checkpoint_every=7, watch=interrupt)
    train_population(members(killed), killed, device=CPU, resume=True)
    for one, other in zip(members(whole), members(killed), strict=True):
        assert one.folder.weights.read_bytes() == other.folder.weights.read_bytes()


def test_the_learner_is_torchs_adam() -> None:
    """The same gradients, given to `torch.optim.Adam` with its defaults, end in the same weights."""
    config, task = reports(dropout=0.0), Addition()
    learner = Learner(build_model(config.model, 0).double(), config.training)
    theirs = build_model(config.model, 0).double()
    optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    batches = draw_batches(task, config.training, [0], None, 0, CPU)
    for _ in range(STEPS):
        batch = next(batches)
        learner.step(batch)
        optimizer.zero_grad()
        logits = theirs(batch.source, batch.answer)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.answer.flatten()).backward()
        optimizer.step()
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(learner.model.state_dict()[name], expected, rtol=1e-9, atol=1e-12)


def test_dropout_drops_the_asked_share_anew_at_every_place_step_and_seed() -> None:
    ones, keys = torch.ones(1000, 100), keys_of(torch.tensor([0, 1]), 0)
    later = keys_of(torch.tensor([0, 1]), 1)
    masks = [Dropout(keys[0], 0.1)(ones, 4), Dropout(keys[0], 0.1)(ones, 5), Dropout(keys[1], 0.1)(ones, 4)]
    masks.append(Dropout(later[0], 0.1)(ones, 4))
    for number, mask in enumerate(masks):
        dropped = mask == 0
        assert abs(float(dropped.double().mean()) - 0.1) < 0.005  # five standard deviations
        assert torch.allclose(mask[~dropped], torch.tensor(1 / 0.9))
        for other in masks[:number]:  # independent masks share a hundredth
            assert abs(float((dropped & (other == 0)).double().mean()) - 0.01) < 0.002
        neighbours = float((dropped[:, 1:] & dropped[:, :-1]).double().mean())
        assert abs(neighbours - 0.01) < 0.002


def test_dropout_acts_in_training_alone(tmp_path: Path) -> None:
    config = reports(steps=20)
    learner = Learner(build_model(config.model, 0), config.training, 0)
    batch = next(draw_batches(Addition(), config.training, [0], None, 0, CPU))
    learner.model.train()
    plain = learner.model(batch.source, batch.answer)
    assert torch.equal(plain, learner.model(batch.source, batch.answer))  # even in training mode
    dropped = learner.model(batch.source, batch.answer, dropout=Dropout(keys_of(torch.tensor([0]), 0)[0], 0.1))
    assert (plain - dropped).abs().max() > 1e-3
    without = replace(config.training, dropout=0.0)
    one, other = learner.step(batch), Learner(build_model(config.model, 0), without, 0).step(batch)
    assert float(one.loss) != float(other.loss)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"steps": 5, "epochs": 5, "stored": 10}, "both given"),
        ({"epochs": 5}, "set `stored`"),
        ({"epochs": 0, "stored": 10}, "epochs is 0"),
        ({"stored": 0}, "stored is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "Adam has none"),
        ({"optimizer": "adam", "momentum": 0.5}, "only Muon uses it"),
        ({"warmup": -1}, "warmup is -1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadwayError, match=said) as caught:
        plan("addition", Overrides(**asked), 0)
    assert "\n" not in str(caught.value)


def test_stored_problems_have_one_length_and_the_recipe_is_for_sums() -> None:
    with pytest.raises(HeadwayError, match="one length"):
        plan("sortedness", Overrides(stored=100), 0)
    with pytest.raises(HeadwayError, match="is for sums"):
        plan("sortedness", Overrides(recipe="reports"), 0)
    plan("sortedness", Overrides(norm="post", optimizer="adam", dropout=0.1, warmup=0, schedule="constant"), 0)


@pytest.mark.parametrize(
    "asked", [{"recipe": "report"}, {"norm": "pots"}, {"schedule": "linear"}, {"optimizer": "sgd"}], ids=str
)
def test_an_unknown_choice_is_refused_in_python_too(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=f"unknown {next(iter(asked))}"):
        train("addition", steps=1, out=tmp_path / "run", **asked)

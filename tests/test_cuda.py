"""On a GPU: the same problems as on a CPU, the same bytes twice, the same answers to rounding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.api import evaluate, evaluate_runs, train, train_seeds
from headway.heads.ablation import measure
from headway.heads.members import StackedVariants, measure_members
from headway.heads.variants import Variants
from headway.kernels.few_keys import few_keys, few_keys_backward
from headway.machine import full_precision_matmul
from headway.models.branches import Branches
from headway.runs.config import Overrides
from headway.runs.folder import RunFolder
from headway.subjects.own import open_run, open_stack, subject_of
from headway.tasks import TASKS, create_task
from headway.tasks.random import TRAINING, Dice
from headway.training import population
from headway.training.defaults import plan
from headway.training.population import Member, train_population

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("default"),  # the compiler warns of itself
]
SMALL = {"steps": 40, "batch": 32, "quiet": True, "device": "cuda"}


@pytest.mark.parametrize("name", TASKS)
def test_problems_are_the_same_on_both_devices(name: str) -> None:
    task = create_task(name)
    for step in range(5):
        length = task.training_length(step)
        here, there = (
            task.training(Dice.of(TRAINING, 7, step, 512, device), hard=256, length=length)
            for device in ("cpu", "cuda")
        )
        assert torch.equal(here.source, there.source.cpu())
        assert torch.equal(here.answer, there.answer.cpu())


@pytest.mark.parametrize("name", TASKS)
def test_training_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    one, two = (train(name, seed=3, out=tmp_path / which, **SMALL) for which in ("one", "two"))
    assert one.folder.weights.read_bytes() == two.folder.weights.read_bytes()


def test_the_adder_answers_alike_on_both_devices(adder) -> None:
    problems = adder.task.testing(0, 2000)
    here = adder.model(problems.source, problems.answer).argmax(-1)
    there = adder.model.to("cuda")(problems.source.cuda(), problems.answer.cuda()).argmax(-1).cpu()
    adder.model.to("cpu")
    assert torch.equal(here, there)


@pytest.mark.parametrize(("queries", "keys", "causal"), [(7, 7, False), (4, 4, True), (4, 7, False), (16, 16, False)])
def test_the_kernel_for_a_few_keys_is_the_plain_formula(queries: int, keys: int, causal: bool) -> None:
    torch.manual_seed(0)
    query, slope = torch.randn(2, 33, queries, 4, 32).unbind(0)
    both = torch.randn(33, keys, 2, 4, 32)
    here = few_keys(query, both, causal, 0.2)
    slopes = few_keys_backward(slope, query, both, *here, causal, 0.2)
    for kind, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
        q, b, s = (tensor.to("cuda", kind) for tensor in (query, both, slope))
        there = few_keys(q, b, causal, 0.2)
        found = (*there, *few_keys_backward(s, q, b, *there, causal, 0.2))
        for expected, tensor in zip((*here, *slopes), found, strict=True):
            torch.testing.assert_close(tensor.float().cpu(), expected, rtol=tolerance, atol=tolerance)


def test_a_population_repeats_itself_to_the_byte_and_learns_as_one_alone_does(tmp_path: Path) -> None:
    small: Any = {"steps": 40, "batch": 32, "layers": 1, "decoder_layers": 1, "d_model": 64, "d_ff": 64}
    for name in ("one", "two"):
        train_seeds("addition", **small, out=tmp_path / name, device="cuda", population=3, precision="float32")
    for seed in range(3):
        one, two = (tmp_path / name / f"seed-{seed}" / "model.safetensors" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    losses = [RunFolder(tmp_path / "one" / f"seed-{seed}").training().final_loss for seed in range(3)]
    alone = [train_seeds("addition", seed=s, **small, out=tmp_path / f"{s}", device="cpu")[0] for s in range(3)]
    assert losses == pytest.approx([report.final_loss for report in alone], rel=0.05)
    stacked = evaluate_runs(tmp_path / "one", all=True)
    for seed, found in enumerate(stacked):
        expected = evaluate(tmp_path / "one" / f"seed-{seed}", all=True, device="cpu")
        assert found.errors == expected.errors
        assert found.strata == expected.strata


def of_seeds(home: Path, seeds: int, **asked: Any) -> list[Member]:
    overrides = Overrides(
        **{"steps": 60, "batch": 32, "layers": 1, "decoder_layers": 1, "d_model": 64, "d_ff": 64, **asked}
    )
    return [Member(plan("addition", overrides, seed), RunFolder(home / f"seed-{seed}")) for seed in range(seeds)]


def test_a_population_stopped_and_resumed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def stop(done: int, total: int, words: str) -> None:
        if done >= 40:
            raise KeyboardInterrupt

    asked: dict[str, Any] = {"device": torch.device("cuda"), "precision": torch.bfloat16, "checkpoint_every": 15}
    train_population(of_seeds(tmp_path / "whole", 3), tmp_path / "whole", **asked)
    with pytest.raises(KeyboardInterrupt):
        train_population(of_seeds(tmp_path / "cut", 3), tmp_path / "cut", watch=stop, **asked)
    assert (tmp_path / "cut" / "checkpoint").exists()
    train_population(of_seeds(tmp_path / "cut", 3), tmp_path / "cut", resume=True, **asked)
    for seed in range(3):
        ours, theirs = (tmp_path / home / f"seed-{seed}" / "model.safetensors" for home in ("cut", "whole"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_members_that_are_perfect_leave_the_stack_once_they_are_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test scripts when members become perfect: seed 2 at step 50, seed 0 at step 100."""
    asked, perfect = [], {1: 2, 2: 0}

    def scripted(models: Any, task: Any) -> torch.Tensor:
        left = [seed for seed in range(4) if seed not in (2, 0)[: len(asked)]]
        asked.append((models.members, len(stacks[-1])))
        return torch.tensor([seed == perfect.get(len(asked)) for seed in left], device="cuda")

    class CountedStack(population.Stack):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            stacks.append(self)

    stacks: list[CountedStack] = []
    monkeypatch.setattr(population, "trainable_right", scripted)
    monkeypatch.setattr(population, "Stack", CountedStack)
    reports = train_population(
        of_seeds(tmp_path, 4, until="perfect", steps=160),
        tmp_path,
        device=torch.device("cuda"),
        precision=torch.bfloat16,
    )
    assert [(report.steps, report.perfect) for report in reports] == [
        (100, True), (160, False), (50, True), (160, False)
    ]  # fmt: skip
    assert asked == [(4, 4), (3, 4), (2, 2), (2, 2)]


def test_a_stack_in_bfloat16_makes_the_errors_it_makes_in_float32(tmp_path: Path) -> None:
    train_population(
        of_seeds(tmp_path, 3, steps=300, batch=128), tmp_path, device=torch.device("cuda"), precision=torch.bfloat16
    )
    coarse, fine = (evaluate_runs(tmp_path, all=True, device="cuda", precision=p) for p in ("bfloat16", "float32"))
    assert [found.errors for found in coarse] == [found.errors for found in fine]
    assert [found.strata for found in coarse] == [found.strata for found in fine]


@pytest.mark.slow
def test_a_population_of_classifiers_meets_sequences_of_several_lengths(tmp_path: Path) -> None:
    small: Any = {"steps": 20, "batch": 32, "layers": 1, "d_model": 64, "d_ff": 64}
    lengths = {"shortest": 8, "longest": 10}
    reports = train_seeds("sortedness", **small, out=tmp_path, device="cuda", population=2, options=lengths)
    alone = train("sortedness", seed=1, out=tmp_path / "alone", **{**SMALL, "steps": 20}, layers=1, d_model=64, d_ff=64,
                  options=lengths).folder.training()  # fmt: skip
    assert reports[1].final_loss == pytest.approx(alone.final_loss, rel=0.1)


def test_sets_of_heads_have_the_logits_they_have_on_a_cpu(adder) -> None:
    """They agree in both precisions, within what the search allows for."""
    sets = torch.arange(5, 2**24, 2**24 // 300)
    problems = adder.task.testing(3, 20)
    expected = Branches(adder.model).logits(problems.source, problems.answer, sets)
    model = copy.deepcopy(adder.model).cuda()
    for kind, allowed in ((torch.bfloat16, 2.0), (torch.float32, 0.1)):
        with full_precision_matmul():
            found = Branches(model, kind).logits(problems.source.cuda(), problems.answer.cuda(), sets.cuda())
        spread = (found.float().cpu() - expected).abs().amax()
        print(kind, "moves a logit by at most", float(spread))
        assert spread < allowed / 2  # a lead is a difference of two


@pytest.mark.slow
def test_many_members_are_found_to_be_what_each_is_alone(tmp_path: Path) -> None:
    train_population(
        of_seeds(tmp_path, 3, steps=300, batch=128), tmp_path, device=torch.device("cuda"), precision=torch.bfloat16
    )
    folders = [RunFolder(tmp_path / f"seed-{seed}") for seed in range(3)]
    runs, weights = open_stack(folders, "cuda")
    many = StackedVariants(subject_of(runs[0]), weights)
    closed = torch.rand(3, 4, len(many.heads), generator=torch.Generator().manual_seed(0)) < 0.4
    problems = runs[0].task.testing(1, 2000, device="cuda")
    found = measure_members(many, problems, closed.cuda())
    for member, folder in enumerate(folders):
        sets = [many.heads_of_mask(row) for row in closed[member].tolist()]
        alone = measure(Variants(subject_of(open_run(folder))), [problems.to(torch.device("cpu"))], sets)
        for ours, theirs in zip(found[member], alone, strict=True):
            assert abs(ours.right - theirs.right) <= 4  # of 2,000: rounded factors may turn a near tie


@pytest.mark.slow
def test_members_become_as_good_as_runs_alone(tmp_path: Path) -> None:
    """The losses of members, trained in bfloat16, and of separate runs have the same distribution."""
    from scipy.stats import mannwhitneyu

    small: Any = {"steps": 150, "batch": 64, "layers": 1, "decoder_layers": 1, "d_model": 64, "d_ff": 128}
    members = train_seeds("addition", **small, device="cuda", out=tmp_path / "many", population=24)
    alone = train_seeds("addition", **small, device="cuda", out=tmp_path / "few", seeds=list(range(100, 112)))
    stacked, single = ([report.final_loss for report in reports] for reports in (members, alone))
    print("members", stacked, "alone", single)
    assert mannwhitneyu(stacked, single).pvalue > 0.01

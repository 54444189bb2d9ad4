"""Attention that masks no key: certified where its bias falls fast enough, and then right; refused everywhere else."""

from __future__ import annotations

import copy
import importlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.certify.certificate import certify
from headway.certify.fading import Nearby
from headway.certify.leads import Leads
from headway.certify.neighbours import collect_reports
from headway.certify.outside import Fading, read_fading
from headway.certify.verdict import Verdict
from headway.models import Classifier, build_model
from headway.positions import Relative, Shape, find_positions
from headway.positions.alibi_learned import AlibiLearned
from headway.runs.config import Overrides
from headway.subjects.own import open_one
from headway.tasks import Sortedness
from headway.training.batches import draw_batches
from headway.training.defaults import plan
from headway.training.learner import Learner
from small import small_model

VALUES, SHAPE = 5, Shape(d_model=16, heads=4, trained=10)
OPTIONS = {"values": VALUES, "shortest": 3, "longest": 8, "pools": 0.3}
TASK = Sortedness(**OPTIONS)  # pyright: ignore[reportArgumentType]
STEEP = "alibi-learned+slope=16.0"


def build(positions: str = STEEP, **asked: object) -> Classifier:
    settings = {**small_model(32), "pooling": "violation", "hard": 0.5, **asked}
    config = plan("sortedness", Overrides(positions=positions, **settings), 0, OPTIONS)  # pyright: ignore
    model = build_model(config.model, 0)
    assert isinstance(model, Classifier)
    return model.eval()


@pytest.fixture(scope="module")
def trained() -> Classifier:
    """Trains a small sorter of five values, with attention to everything, until it is right."""
    settings = {**small_model(32), "pooling": "violation", "hard": 0.5}
    config = plan("sortedness", Overrides(positions=STEEP, **settings), 0, OPTIONS)  # pyright: ignore
    learner = Learner(build_model(config.model, 0), config.training)
    batches = draw_batches(TASK, config.training, [0], None, 0, torch.device("cpu"))
    for _ in range(250):
        learner.step(next(batches))
    model = learner.model.eval()
    assert isinstance(model, Classifier)
    return model


@pytest.fixture(scope="module")
def verdict(trained: Classifier) -> Verdict:
    return certify(trained, TASK)


@pytest.fixture
def model(trained: Classifier) -> Classifier:
    return copy.deepcopy(trained)


def encoding(model: Classifier) -> AlibiLearned:
    assert isinstance(model.positions, AlibiLearned)
    return model.positions


def refusal(model: Classifier) -> str:
    found = certify(model, TASK)
    assert not found.certified
    json.dumps(found.to_json(), allow_nan=False)
    return str(found.reason)


def proved(model: Classifier) -> dict[str, Leads]:
    """Returns what is proved of every context of each kind of place."""
    positions = model.positions
    assert isinstance(positions, Relative)
    nearby = Nearby(model, read_fading(positions), 1, 0)
    return collect_reports(Verdict(), model, VALUES, 1, 0, nearby, None)[1]


def outside_interval(model: Classifier, leads: dict[str, Leads], tokens: Tensor) -> int:
    """Counts places of sequences, row × token, whose report in float32 lies outside what is proved of it."""
    with torch.no_grad():
        found = model.violations(tokens).double()
    first, pair = (tokens[:, 0],), (tokens[:, :-1], tokens[:, 1:])
    beyond = (found[:, 0] - leads["first"].value[first]).abs() > leads["first"].bound[first]
    inner = (found[:, 1:] - leads["inside"].value[pair]).abs() > leads["inside"].bound[pair]
    return int(beyond.sum() + inner.sum())


# What is certified


def test_a_sorter_that_sees_everything_is_certified_and_right_on_every_sequence(
    trained: Classifier, verdict: Verdict
) -> None:
    assert verdict.certified, verdict.reason
    assert verdict.contexts == 5 + 2 * 15 + 10
    leads = proved(trained)
    for length in range(2, 7):
        every = torch.cartesian_prod(*[torch.arange(VALUES)] * length)
        with torch.no_grad():
            assert torch.equal(trained(every).argmax(-1), TASK.solve(every).answer)
        assert outside_interval(trained, leads, every) == 0


def test_what_the_certificate_says_of_the_outside(trained: Classifier, verdict: Verdict) -> None:
    said = verdict.to_json()
    json.dumps(said, allow_nan=False)
    outside = said["outside"]
    assert outside["window"] == [-1, 0]
    assert 0 < outside["mass"] < 0.1
    assert said["rounding"] < said["rounding_bound"] < outside["bound"] < said["smallest_margin"]
    assert outside["fall"] == pytest.approx(float(encoding(trained).log_slope.detach().exp().min()))
    assert any("exp of less than −110 is 0" in each for each in said["assumes"]["algorithms"])


@pytest.mark.slow
def test_random_sequences_stay_inside_what_is_proved(trained: Classifier) -> None:
    """100,000 sequences of up to 200 elements: random, sorted, and with one violation."""
    leads, dice = proved(trained), torch.Generator().manual_seed(1)
    for length in (3, 8, 20, 50, 200):
        for _ in range(20):
            tokens = torch.randint(VALUES, (334, length), generator=dice)
            ordered = tokens.sort(1).values
            broken = ordered.scatter(1, torch.randint(length, (334, 1), generator=dice), tokens[:, :1])
            every = torch.cat((tokens, ordered, broken))
            assert outside_interval(trained, leads, every) == 0
            with torch.no_grad():
                assert torch.equal(trained(every).argmax(-1), TASK.solve(every).answer)


@pytest.mark.slow
def test_the_shipped_sorter_is_certified_and_right_on_long_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_one("pretrained:certified-global-sorter")
    found = certify(run.model, run.task)
    assert found.certified, found.reason
    assert (found.contexts, found.wrong) == (15_150, 0)
    assert found.outside is not None
    assert 0 < found.outside.mass < 1e-4
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "recipes")
    recipe, dice = importlib.import_module("sort_a_million"), torch.Generator().manual_seed(2)
    for name, tokens in recipe.draw_long(100, 30_000, dice):
        said = bool((recipe.report_in_parts(run.model, tokens, found.outside.distance) > 0).any())
        assert said == bool((tokens[1:] < tokens[:-1]).any()), name


# The bounds, against slow references


@torch.no_grad()
@pytest.mark.parametrize("positions", [STEEP, "alibi-learned+slope=0.7+centre=0.4", "alibi", "alibi-signed"])
def test_the_series_bounds_the_sum_over_all_distances_and_not_by_much(positions: str) -> None:
    made = find_positions(positions)(SHAPE)
    assert isinstance(made, Relative)
    fading = read_fading(made)
    far = torch.arange(-20_000, 20_001)
    weight = made.of_distance(far).double().exp()
    for behind, ahead, before, after in (
        (1, 0, True, True),
        (1, 1, True, True),
        (0, 1, False, True),
        (1, 0, True, False),
    ):
        hidden = (far >= -behind) & (far <= ahead) | (far < 0) & (not before) | (far > 0) & (not after)
        total = weight.masked_fill(hidden, 0).sum(1)
        bound = fading.outside(behind, ahead, before, after, 1).log_mass.exp()
        assert bool((total <= bound).all())
        assert bool((bound <= 1.3 * total + 1e-12).all())


def test_the_share_outside_is_never_larger_than_its_bound(trained: Classifier) -> None:
    """The attention that the model really gives to the outside, in float64, in sequences of the worst tokens."""
    exact, spent, dice = copy.deepcopy(trained).double(), 0.0, torch.Generator().manual_seed(0)
    fading = read_fading(encoding(trained))
    nearby = Nearby(trained, fading, 1, 0)
    x, y = torch.cartesian_prod(torch.arange(VALUES), torch.arange(VALUES)).T
    nearby("inside", torch.stack((x, y), 1), 1)
    block = exact.blocks[0]
    with torch.no_grad():
        for _ in range(40):
            tokens = torch.randint(VALUES, (50, 30), generator=dice)
            read = block.norms["self"](exact.tokens(tokens))  # pyright: ignore
            order = exact.stack("encoder", tokens).order
            maps = block.attentions["self"].head_outputs(read, read, order, wants_map=True)[1]  # pyright: ignore
            place = torch.arange(1, 30)
            seen = maps[:, :, place, place] + maps[:, :, place, place - 1]
            spent = max(spent, float((1 - seen).max()))
    assert 0 < spent <= nearby.mass < 1e4 * spent


@torch.no_grad()
@pytest.mark.parametrize("slope", [9.0, 11.0, 14.0])
def test_no_choice_of_tokens_outside_exceeds_what_is_proved(slope: float, model: Classifier) -> None:
    """With flatter slopes, so that the outside counts: each pair between 12 tokens of one value and 12 of another, in
    float64. Some choice comes within a factor of 500 of what the bound adds for the outside; none exceeds it."""
    encoding(model).log_slope.fill_(math.log(slope))
    nearby = Nearby(model, read_fading(encoding(model)), 1, 0)
    assert (nearby.behind, nearby.ahead) == read_fading(encoding(model)).neighbours
    a, x, y, b = torch.cartesian_prod(*[torch.arange(VALUES)] * 4).T
    alone, anywhere = nearby("inside", torch.stack((x, y), 1), 1)
    tokens = torch.cat((a[:, None].expand(-1, 12), torch.stack((x, y), 1), b[:, None].expand(-1, 12)), 1)
    moved = (copy.deepcopy(model).double().violations(tokens)[:, 13] - alone.value[:, 0]).abs()
    assert bool((moved <= anywhere.bound[:, 0]).all())
    added = (anywhere.bound - alone.bound)[:, 0]
    reached = float((moved / added)[added.isfinite() & (moved > 1e-9)].max())
    assert 0.002 < reached <= 1


def test_the_power_of_kerple_falls_with_every_step_by_what_it_says() -> None:
    made = find_positions("kerple-power")(SHAPE)
    with torch.no_grad():
        made.p.copy_(torch.tensor([[0.1, 2.0, 9.0, 0.0], [1.0, 0.0, 3.0, 5.0]]))  # pyright: ignore
        bias = made.double().of_distance(torch.arange(-1_000, 1_001))  # pyright: ignore
        fall = made.fall()
    assert isinstance(fall, Tensor)
    ahead, behind = bias[:, 1001:], bias[:, :1000].flip(1)
    for side, each in enumerate((behind, ahead)):
        steps = (each[:, :-1] - each[:, 1:]).amin(1)
        assert bool((steps >= fall[side] * (1 - 1e-9)).all())
        assert bool((steps <= fall[side] * (1 + 1e-9) + 1e-9).all())


def test_keys_beyond_the_distance_weigh_exactly_nothing_and_few_count(trained: Classifier, verdict: Verdict) -> None:
    assert verdict.outside is not None
    tokens = torch.randint(VALUES, (8, 400), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        block = trained.blocks[0]
        read = block.norms["self"](trained.tokens(tokens))  # pyright: ignore
        order = trained.stack("encoder", tokens).order
        maps = block.attentions["self"].head_outputs(read, read, order, wants_map=True)[1]  # pyright: ignore
    place = torch.arange(400)
    far = (place[:, None] - place).abs() >= verdict.outside.distance
    assert bool((maps[:, :, far] == 0).all())
    assert int((maps > 0).sum(-1).max()) <= 2 * verdict.outside.distance + 1


def test_parts_of_a_long_sequence_give_what_the_whole_gives(
    trained: Classifier, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "recipes")
    recipe, dice = importlib.import_module("sort_a_million"), torch.Generator().manual_seed(0)
    assert verdict.outside is not None
    assert recipe.compare_whole(trained, VALUES, verdict.outside.distance, dice) < 1e-4
    for name, tokens in recipe.draw_long(VALUES, 2_000, dice):
        said = bool((recipe.report_in_parts(trained, tokens, verdict.outside.distance) > 0).any())
        assert said == bool((tokens[1:] < tokens[:-1]).any()), name


@torch.no_grad()
def test_a_pruned_head_counts_for_nothing(model: Classifier) -> None:
    """The slopes of a head that is not there do not change what the other one has outside."""
    pruned = build_model(replace(model.config, pruned="encoder.0.self.0"))
    assert isinstance(pruned, Classifier)
    assert pruned.blocks[0].attentions["self"].heads == 1  # pyright: ignore
    masses = []
    for slope in (12.0, 14.0):
        encoding(pruned).log_slope[:, 0] = math.log(slope)
        found = certify(pruned, TASK).outside
        assert found is not None
        masses.append(found.mass)
    assert masses[0] == pytest.approx(masses[1], rel=1e-3)


# What is refused


def test_an_untrained_model_is_not_certified() -> None:
    assert "contexts are wrong" in refusal(build())


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"positions": "fire"}, "divides distances by the longest one"),
        ({"positions": "t5"}, "T5 masks no key, and the bias of T5 does not fall with every step"),
        ({"positions": "clipped"}, "does not fall with every step"),
        ({"positions": "kerple"}, "falls with the logarithm of the distance, in one head at a rate of"),
        ({"positions": "alibi"}, "too many keys count in a sum"),
        ({"positions": "alibi-learned+slope=16.0+centre=3.0"}, "does not fall by a least amount with every step"),
        ({"positions": "alibi-learned+slope=0.01"}, "too many keys count in a sum"),
        ({"layers": 2}, "2 layers; with more than one nothing is bounded"),
        ({"pooling": "max"}, "with max pooling"),
        ({"index": "randomized"}, "with the index randomized"),
        ({"positions": f"{STEEP}+log-length"}, "log-length"),
    ],
)
def test_models_that_cannot_be_bounded_are_refused_by_name(asked: dict[str, object], reason: str) -> None:
    assert reason in refusal(build(**asked))  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def test_a_logarithm_is_refused_with_its_rate() -> None:
    model = build("kerple")
    model.positions.p.fill_(3.0)  # pyright: ignore
    assert "finite sum in exact arithmetic, but in float32 too many of them count" in refusal(model)
    model.positions.p[1, 0] = -1.0  # pyright: ignore
    assert "at most 1, so the weights of all keys far away have no finite sum" in refusal(model)


@torch.no_grad()
def test_a_power_below_one_is_refused() -> None:
    model = build("kerple-power")
    model.positions.p[1, 0] = -0.1  # pyright: ignore
    assert "does not fall by a least amount with every step ahead in head 0" in refusal(model)


@torch.no_grad()
def test_fire_forgets_the_distance_as_a_sequence_grows() -> None:
    """Why it is refused: the bias at any distance tends to that at 0, and the share of a neighbourhood to nothing."""
    torch.manual_seed(0)
    made = find_positions("fire")(SHAPE)
    apart = []
    for longest in (10**2, 10**4, 10**8, 10**16):
        bias = made.bias(torch.tensor([[longest]]), torch.tensor([[longest - 50, longest]]))
        assert bias is not None
        apart.append(float((bias[0, :, 0, 0] - bias[0, :, 0, 1]).abs().max()))
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] < apart[0] / 3
    index = torch.arange(3_000)[None]
    bias = made.bias(index[:, 1_500:1_501], index)
    assert bias is not None
    assert float(bias[0, :, 0].softmax(-1)[:, 1_499:1_502].sum(-1).max()) < 0.01


# Attacks


@torch.no_grad()
def flat_slopes(model: Classifier) -> None:
    encoding(model).log_slope.fill_(math.log(1.5))


@torch.no_grad()
def one_flat_slope(model: Classifier) -> None:
    encoding(model).log_slope[1, 1] = math.log(0.5)


@torch.no_grad()
def huge_value(model: Classifier) -> None:
    """The value of one token is enormous: from far away it still counts."""
    part = model.blocks[0].attentions["self"].key_value  # pyright: ignore
    read = model.blocks[0].norms["self"](model.tokens.weight)  # pyright: ignore
    part[1] += 1e7 * torch.ones(len(part[1]), 1) * (torch.linalg.pinv(read)[:, 4])  # pyright: ignore


@torch.no_grad()
def never_vanishes(model: Classifier) -> None:
    encoding(model).log_slope[0, 0] = -60.0


@torch.no_grad()
def infinite_slope(model: Classifier) -> None:
    encoding(model).log_slope[0, 0] = 80.0


@torch.no_grad()
def nan_slope(model: Classifier) -> None:
    encoding(model).log_slope[0, 0] = torch.nan


def hook(model: Classifier) -> None:
    model.blocks[0].register_forward_hook(lambda module, given, found: found + (found.shape[1] > 1_000))


def hook_of_the_encoding(model: Classifier) -> None:
    model.positions.register_forward_hook(lambda module, given, found: found)


def buffer(model: Classifier) -> None:
    model.positions.register_buffer("far", torch.zeros(1))


def own_fall(model: Classifier) -> None:
    model.positions.fall = lambda: torch.full((2, 2), 50.0)  # pyright: ignore


def own_distance(model: Classifier) -> None:
    plain = encoding(model).of_distance
    model.positions.of_distance = lambda distance: plain(distance.clamp(-40, 40))  # pyright: ignore


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (flat_slopes, "contexts"),
        (one_flat_slope, "contexts"),
        (huge_value, "contexts"),
        (never_vanishes, "too many keys count in a sum"),
        (infinite_slope, "the bias at the distance"),
        (nan_slope, "log_slope contains NaN"),
        (hook, "blocks.0 has a hook"),
        (hook_of_the_encoding, "positions has a hook"),
        (buffer, "positions has the buffer far"),
        (own_fall, "positions has its own fall in place of that of AlibiLearned"),
        (own_distance, "positions has its own of_distance in place of that of AlibiLearned"),
    ],
)
def test_attacks(attack: Callable[[Classifier], None], reason: str, model: Classifier) -> None:
    attack(model)
    assert reason in refusal(model)


class Clamped(AlibiLearned):
    """Stops falling at a distance of 1,000."""

    def of_distance(self, distance: Tensor) -> Tensor:
        return super().of_distance(distance.clamp(-1_000, 1_000))


def test_a_bias_that_stops_falling_is_refused(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    clamped = Clamped(model.positions.shape, slope=16.0)
    clamped.load_state_dict(model.positions.state_dict())
    plain, model.positions = model.positions, clamped
    assert "known only of Headway's own" in refusal(model)
    model.positions = plain
    known = AlibiLearned.of_distance
    monkeypatch.setattr(AlibiLearned, "of_distance", lambda self, distance: known(self, distance.clamp(-1_000, 1_000)))
    assert "the bias at the distance -1,024 overflows or is larger than its slope allows" in refusal(model)


@torch.no_grad()
def test_many_equal_tokens_far_away_that_gather_mass_are_found(model: Classifier) -> None:
    """One head falls slowly from a step on that short sequences do not have: every context is right, alone."""
    encoding(model).log_slope[1, 0] = math.log(0.2)
    encoding(model).centre[0] = -0.99  # so that the neighbourhood itself keeps its weights
    long = torch.tensor([[2, 2, *[4] * 60]])
    alone, beside = model.violations(long[:, :2])[0, 1], model.violations(long)[0, 1]
    assert float((alone - beside).abs()) > 0.5  # what a certificate of windows would have missed
    assert "contexts" in refusal(model)


def test_a_class_that_looks_at_the_length_is_found(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.LayerNorm.forward

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return plain(self, x) * (1.01 if x.shape[1] > 100 else 1.0)

    monkeypatch.setattr(nn.LayerNorm, "forward", forward)
    assert "computes something else than its weights and config say" in refusal(model)


def test_a_fading_bias_knows_its_neighbourhood() -> None:
    bias = torch.tensor([[-8.0, -8.0, -24.0], [-0.0, -1.0, -40.0]], dtype=torch.float64)
    fall = torch.full((2, 2), 16.0, dtype=torch.float64)
    assert Fading(bias, fall).neighbours == (1, 0)
    assert Fading(bias.flip(1), fall).neighbours == (0, 1)
    assert Fading(torch.zeros_like(bias), fall).neighbours == (1, 1)

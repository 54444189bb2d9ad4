"""What each encoding can and cannot distinguish, as facts about whole models and about its signals."""

from __future__ import annotations

import math

import pytest
import torch

from headway.errors import HeadwayError
from headway.models import Classifier, build_model
from headway.positions import POSITIONS, Relative, Shape, find_positions
from headway.positions.sinusoidal import sinusoids
from headway.runs.config import Overrides
from headway.tasks import Sortedness
from headway.training.defaults import plan
from small import small_model

SHAPE = Shape(d_model=16, heads=4, trained=10)
TASK = Sortedness()
SMALL = small_model(32, heads=4, layers=2)
BIASED = ["alibi", "alibi-signed", "alibi-learned", "t5", "clipped", "kerple", "kerple-power", "fire", "sandwich"]
BIASED += ["window"]


def classifier(positions: str, pooling: str = "mean", index: str = "sequential") -> Classifier:
    overrides = Overrides(positions=positions, pooling=pooling, index=index, **SMALL)  # pyright: ignore[reportArgumentType]
    model = build_model(plan("sortedness", overrides, 0).model, seed=1).double()
    assert isinstance(model, Classifier)
    return model


def changed(model: Classifier, order: torch.Tensor) -> float:
    """Returns the largest change of a logit when the tokens are reordered."""
    source = TASK.testing(0, 20, length=12).source
    with torch.no_grad():
        return float((model(source[:, order]) - model(source)).abs().max())


@pytest.mark.parametrize("pooling", ["mean", "max", "violation"])
def test_without_positions_a_permutation_changes_nothing(pooling: str) -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert changed(classifier("none", pooling), order) < 1e-12
    assert find_positions("none").kind.blind


@pytest.mark.parametrize("positions", [name for name in POSITIONS if name not in ("none", "window")])
def test_every_other_encoding_sees_a_permutation(positions: str) -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert changed(classifier(positions), order) > 1e-6


@pytest.mark.parametrize("positions", list(POSITIONS))
def test_reversal_is_invisible_exactly_to_symmetric_encodings(positions: str) -> None:
    blind = POSITIONS[positions].reversible
    assert blind == (positions in ("none", "alibi", "sandwich"))
    assert (changed(classifier(positions), torch.arange(11, -1, -1)) < 1e-12) == blind


@pytest.mark.parametrize("positions", [*BIASED, "rope", "transformer-xl"])
def test_relative_encodings_depend_on_differences_alone(positions: str) -> None:
    """Shifting all indices by 1,000 keeps the scores. (FIRE's scale follows the largest index, so it is not among the
    shift-invariant ones.)"""
    encoding = find_positions(positions)(SHAPE).double()
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 4, 9, 4, dtype=torch.float64).unbind(0)
    index = torch.arange(9)[None]

    def scores(index: torch.Tensor) -> torch.Tensor:
        turned, other = encoding.rotate(query, key, index, index)
        bias = encoding.bias(index, index)
        return turned @ other.transpose(-1, -2) + (0 if bias is None else bias.double())

    near, far = scores(index), scores(index + 1000)
    finite = near.isfinite()
    assert torch.equal(finite, far.isfinite())
    moved = (near - far)[finite].abs().max()
    assert moved > 1e-3 if positions == "fire" else moved < 1e-9


@pytest.mark.parametrize("positions", [name for name in BIASED if name != "fire"])
def test_looked_up_distances_equal_computed_ones(positions: str) -> None:
    """Long sequences look each distance up in a table; short ones compute it in place."""
    encoding = find_positions(positions)(SHAPE)
    assert isinstance(encoding, Relative)
    index = torch.stack([torch.arange(200), torch.arange(0, 1000, 5)])
    with torch.no_grad():
        looked_up = encoding.bias(index, index)
        computed = encoding.of_distance(index[:, None, :] - index[:, :, None]).movedim(0, 1)
    assert torch.equal(looked_up, computed)


def test_a_window_hides_all_but_its_neighbours() -> None:
    bias = find_positions("window+behind=1+ahead=1")(SHAPE).bias(torch.arange(6)[None], torch.arange(6)[None])
    assert bias is not None
    near = (torch.arange(6)[:, None] - torch.arange(6)).abs() <= 1
    assert torch.equal(bias[0].isfinite(), near.expand(4, 6, 6))


def test_signed_alibi_has_heads_for_either_direction() -> None:
    bias = find_positions("alibi-signed")(SHAPE).bias(torch.arange(5)[None], torch.arange(5)[None])
    assert bias is not None
    assert torch.equal(bias[0, :2].isfinite(), torch.ones(5, 5).tril().bool().expand(2, 5, 5))
    assert torch.equal(bias[0, 2:].isfinite(), torch.ones(5, 5).triu().bool().expand(2, 5, 5))


@torch.no_grad()
def test_learned_alibi_falls_at_its_own_slope_on_either_side_of_its_own_centre() -> None:
    made = find_positions("alibi-learned+slope=3.0")(SHAPE)
    made.centre[1], made.log_slope[0, 1] = -2.25, math.log(0.5)  # pyright: ignore
    bias = made.bias(torch.tensor([[6]]), torch.arange(9)[None])
    assert bias is not None
    assert bias[0, 0, 0].tolist() == pytest.approx([-3 * abs(at - 5.5) for at in range(9)], rel=1e-6)
    expected = [-(0.5 if at < 3.75 else 3) * abs(at - 3.75) for at in range(9)]
    assert bias[0, 1, 0].tolist() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_kerple_and_fire_are_the_published_formulas() -> None:
    index = torch.arange(9)[None]
    kerple = find_positions("kerple")(SHAPE)
    bias = kerple.bias(index, index)
    assert bias is not None
    p, a = (torch.nn.functional.softplus(table.detach()) for table in (kerple.p, kerple.a))  # pyright: ignore
    for head, query, key in ((0, 7, 2), (3, 1, 6)):
        side = int(key > query)
        expected = -float(p[side, head]) * math.log(1 + float(a[side, head]) * abs(key - query))
        assert float(bias[0, head, query, key]) == pytest.approx(expected, abs=1e-5)
    power = find_positions("kerple-power")(SHAPE)
    bias = power.bias(index, index)
    assert bias is not None
    p, a = 2 * torch.sigmoid(power.p.detach()), torch.nn.functional.softplus(power.a.detach())  # pyright: ignore
    assert float(bias[0, 1, 8, 3]) == pytest.approx(-float(a[0, 1]) * 5 ** float(p[0, 1]), abs=1e-4)
    assert bool((bias[0].diagonal(dim1=1, dim2=2) == 0).all())
    fire = find_positions("fire")(SHAPE)
    bias = fire.bias(index, index)
    assert bias is not None
    share = -math.log(4 + 1) / math.log(10 + 1)  # distance −4 of at most L = 10, c = 1
    with torch.no_grad():
        expected = fire.out(fire.into(torch.tensor([[share]])).relu())  # pyright: ignore[reportCallIssue]
    assert (bias[0, :, 6, 2] - expected[0]).abs().max() < 1e-5


def test_sandwich_falls_with_distance_from_zero() -> None:
    bias = find_positions("sandwich")(SHAPE).bias(torch.arange(30)[None], torch.arange(30)[None])
    assert bias is not None
    waves = [10_000 ** (-2 * i / 128) for i in range(1, 65)]
    for head in range(4):
        expected = (sum(math.cos(7 * wave) for wave in waves) - 64) / (8 * (head + 1) / 4)
        assert float(bias[0, head, 20, 13]) == pytest.approx(expected, rel=1e-5)
    assert bool((bias[0].diagonal(dim1=1, dim2=2) == 0).all())


def test_log_length_works_with_any_encoding_and_keeps_the_scores_at_the_training_length() -> None:
    for name in ("kerple", "sinusoidal", "rope", "none-causal"):
        tempered = find_positions(f"{name}+log-length")(SHAPE)
        assert not tempered.only_embeds
        factor = tempered.temper(torch.tensor([2, 10, 100]))
        assert factor is not None
        assert factor.tolist() == pytest.approx([math.log(2) / math.log(10), 1.0, 2.0])
        assert [name for name, _ in tempered.named_parameters() if "log" in name] == ["log_length"]


def test_attention_to_one_key_disperses_as_the_theory_says() -> None:
    """A score Δ above n − 1 others has weight 1 / (1 + (n − 1) e^−Δ); scores times ln n preserve it."""
    for keys in (16, 256, 4096):
        scores = torch.zeros(keys)
        scores[3] = 4.0
        assert float(scores.softmax(0)[3]) == pytest.approx(1 / (1 + (keys - 1) * math.exp(-4.0)), rel=1e-5)
    sharp = [float((scores * math.log(n)).softmax(0)[0]) for n in (16, 4096) for scores in [torch.eye(n)[0] * 2]]
    assert sharp[1] > sharp[0] > 0.9


def test_shifting_sinusoids_is_one_fixed_rotation() -> None:
    """PE(p + k) = M_k PE(p) for every p, with M_k made of 2 × 2 rotations."""
    d_model, shift = 32, 7
    known = sinusoids(torch.arange(100), d_model)
    turn = torch.zeros(d_model, d_model, dtype=torch.float64)
    for pair in range(d_model // 2):
        angle = shift * 10_000 ** (-2 * pair / d_model)
        block = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        turn[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor(block, dtype=torch.float64)
    assert (known @ turn.T - sinusoids(torch.arange(100) + shift, d_model)).abs().max() < 1e-12


def test_dot_products_of_sinusoids_depend_on_the_difference_only_without_projections() -> None:
    known = sinusoids(torch.arange(60), 32)
    products = known @ known.T
    for gap in (0, 1, 9):
        assert float(products.diagonal(gap).max() - products.diagonal(gap).min()) < 1e-12
    torch.manual_seed(0)
    query, key = torch.randn(2, 32, 32, dtype=torch.float64).unbind(0)
    turned = (known @ query) @ (known @ key).T
    assert float(turned.diagonal(1).max() - turned.diagonal(1).min()) > 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("rope+ntk", "rope has interpolation=1.0, ntk=1.0"),
        ("rope+interpolation=0", "must be above 0"),
        ("t5+distance=4", "must be larger than"),
        ("t5+distance=far", "distance must be int"),
        ("kerple+slope=2", "kerple has no settings; +log-length fits any"),
        ("window+behind=0+ahead=0", "at least one neighbour"),
        ("learned+rows=3", r"3 rows, too few to train on 10"),
    ],
)
def test_impossible_settings_are_refused_by_name(asked: str, message: str) -> None:
    with pytest.raises(HeadwayError) as refused:
        find_positions(asked)(SHAPE)
    assert message in str(refused.value)


def test_fire_looks_up_what_it_would_compute() -> None:
    fire = find_positions("fire")(SHAPE)
    index = torch.stack([torch.arange(100), torch.arange(0, 700, 7)])
    computed = fire.bias(index, index)  # with slopes asked for, each pair is computed
    with torch.no_grad():
        looked_up = fire.bias(index, index)
    assert computed is not None
    assert looked_up is not None
    assert (computed - looked_up).abs().max() < 1e-6

"""No problem in a box leaves the bounds of the box, in float64 or in float32, for models with random weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.certify.digits.boxes import first_scenes, split
from headway.certify.digits.description import FeedWeights, NormWeights, OneLayer, add_digits, check_description
from headway.certify.digits.hunt import draw_from
from headway.certify.digits.scene import Scene
from headway.certify.digits.search import Prover, pairs_of

BASE, DIGITS, D, HEADS, DIM, UNITS = 3, 4, 8, 2, 4, 10
SLOW = (
    "halves",
    "places",
    "bias",
    "gelu",
    "silu gate",
    "relu gate",
    "rms",
    "post",
    "bare",
    "no norms",
    "no norms gelu",
)
KINDS = ["rotary", "no norms silu gate", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]


def random_model(kind: str, seed: int = 0, sharp: float = 4.0, heads: int = HEADS) -> OneLayer:
    """Returns a model with random weights; `sharp` scales its queries."""
    dice = torch.Generator().manual_seed(seed)

    def random(*shape: int, size: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=dice) * size

    def norm() -> NormWeights:
        if kind == "rms":
            return NormWeights("rms", 1 + random(D, size=0.1), None, 1e-6)
        return NormWeights("layer", 1 + random(D, size=0.1), random(D, size=0.1))

    gated, normless = "gate" in kind, kind == "bare" or kind.startswith("no norms")
    feed = FeedWeights(
        "gelu" if "gelu" in kind else "silu" if "silu" in kind else "relu",
        random(UNITS, D, size=D**-0.5),
        random(D, UNITS, size=UNITS**-0.5),
        random(UNITS, size=0.3),
        random(D, size=0.1),
        random(UNITS, D, size=D**-0.5) if gated else None,
        random(UNITS, size=0.3) if gated else None,
    )
    source = tuple(f"{letter}{at}" if letter in "ab" else BASE for letter in "a+b" for at in range(DIGITS)[: 1 if letter == "+" else None])  # fmt: skip  # noqa: E501
    places = len(source) + 1 + DIGITS
    angle = torch.arange(places)[:, None] * torch.tensor([1.0, 0.3])
    turned = kind not in ("places", "bias")
    return OneLayer(
        source=(*source, BASE + 1),
        digit_tokens=tuple(range(BASE)),
        tokens=random(BASE + 2, D),
        query=random(heads, DIM, D, size=sharp * D**-0.5),
        key=random(heads, DIM, D, size=D**-0.5),
        value=random(heads, DIM, D, size=D**-0.5),
        out=random(D, heads * DIM, size=(heads * DIM) ** -0.5),
        feed=None if kind == "bare" else feed,
        readout=random(BASE + 2, D, size=2.0),
        out_bias=random(D, size=0.1),
        query_bias=random(heads, DIM, size=0.3),
        key_bias=random(heads, DIM, size=0.3),
        value_bias=random(heads, DIM, size=0.3),
        readout_bias=random(BASE + 2),
        places=random(places, D, size=0.5) if kind == "places" else None,
        cosine=angle.cos() if turned else None,
        sine=angle.sin() if turned else None,
        pairs="halves" if kind == "halves" else "adjacent",
        bias=random(heads, places, places, size=2.0) if kind == "bias" else None,
        attention_norm=None if normless else norm(),
        feed_norm=None if normless else norm(),
        last_norm=None if normless or kind == "post" else norm(),
        norm="post" if kind == "post" else "pre",
    )


def leads(model: OneLayer, scene: Scene, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns the leads of the scene's answer digit, row × id, infinite for the right one."""
    logits = model.logits(model.sequences(a, b))[:, scene.number]
    right = add_digits(a, b, BASE)[:, scene.number, None]
    return (logits.gather(1, right) - logits).scatter(1, right, torch.inf)


def scenes(prover: Prover, number: int, seed: int) -> list[Scene]:
    """Returns a first scene and what it is split into, down to single problems, with a few rows each."""
    dice, found = torch.Generator().manual_seed(seed), list(first_scenes(prover.views, number))
    chain = [found[int(torch.randint(len(found), (), generator=dice))]]
    chain[0] = replace(chain[0], rows=chain[0].rows[torch.randperm(len(chain[0].rows), generator=dice)[:6]])
    while chain[-1].free:
        parts = split(chain[-1])
        chain.append(parts[int(torch.randint(len(parts), (), generator=dice))])
    return [chain[0], chain[len(chain) // 3], chain[-1]]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_no_problem_of_a_box_leaves_its_bounds(kind: str) -> None:
    for sharp in (0.3, 4.0):
        single = random_model(kind, sharp=sharp)
        check_description(single)
        model = single.double()
        prover = Prover(model)
        for number in (0, 1, 3, 4):
            for at, scene in enumerate(scenes(prover, number, seed=number)):
                a, b = draw_from(scene, 100, seed=at)
                bounds = prover.finish.bound(scene.stream(), scene.rows.right)
                closer = bounds.at + bounds.rest + scene.exact(bounds.c)
                exact, rounded = leads(model, scene, a, b), leads(single, scene, a, b)
                for low in (bounds.low, closer.nan_to_num(nan=-torch.inf)):
                    assert (exact >= low.repeat_interleave(100, 0) - 1e-9).all()
                off = (rounded.double() - exact).where(exact.isfinite(), 0).abs()
                assert (off <= bounds.rounded.repeat_interleave(100, 0)).all()


@pytest.mark.parametrize("sharp", [pytest.param(0.5, marks=pytest.mark.slow), 3.0])
@torch.no_grad()
def test_what_one_head_can_do_in_a_box_equals_brute_force(sharp: float) -> None:
    """Without norms and units a lead is a functional of one head: its exact bound is its least value in the box."""
    model = random_model("bare", seed=2, sharp=sharp, heads=1).double()
    prover = Prover(model)
    for number in (2, 3, 4):
        for scene in scenes(prover, number, seed=number)[:2]:
            bounds = prover.finish.bound(scene.stream(), scene.rows.right)
            c = bounds.c
            a, b = draw_from(scene, 2000)
            least = leads(model, scene, a, b).view(len(scene.rows), 2000, -1).amin(1)
            exact = bounds.at + bounds.rest + scene.exact(c)
            inside = least.isfinite()
            assert (bounds.low <= least + 1e-9).all()
            assert (scene.rough(c).low <= scene.exact(c) + 1e-9).all()
            torch.testing.assert_close(exact[inside], least[inside], atol=0.02, rtol=0)


@pytest.mark.parametrize(
    "sign", ["random", *(pytest.param(each, marks=pytest.mark.slow) for each in ("up", "by value"))]
)
@torch.no_grad()
def test_scores_and_values_that_are_off_as_far_as_they_may_be_stay_within_the_bound(sign: str) -> None:
    """Rounding is replaced by errors as large as its bound allows, far larger than those of float32 itself."""
    model, dice = random_model("bare", seed=3).double(), torch.Generator().manual_seed(0)
    prover = Prover(model)
    largest = 0.0
    for number in (1, 3, 4):
        for scene in scenes(prover, number, seed=number):
            bounds = prover.finish.bound(scene.stream(), scene.rows.right)
            shape = (HEADS, model.length, model.length)
            signs = torch.randint(0, 2, shape, generator=dice, dtype=torch.float64) * 2 - 1
            if sign == "up":
                signs = torch.ones(shape, dtype=torch.float64)
                signs[:, :, ::2] = -1
            elif sign == "by value":
                signs = signs[:, :, :1] * (torch.arange(model.length) < model.length // 2).double().mul(2).sub(1)
            off = replace(model, bias=signs * scene.view.wobble[:, None, None])
            a, b = draw_from(scene, 20)
            exact, moved = leads(model, scene, a, b), leads(off, scene, a, b)
            apart = (moved - exact).where(exact.isfinite(), 0).abs()
            bound = bounds.rounded.repeat_interleave(20, 0)
            assert (apart <= bound).all()
            largest = max(largest, float((apart / bound.clamp(min=1e-30)).max()))
    assert largest > 0.1  # the bound is no more than that far from what can happen


@pytest.mark.parametrize(
    "kind", ["rotary", pytest.param("gelu", marks=pytest.mark.slow), pytest.param("places", marks=pytest.mark.slow)]
)
@torch.no_grad()
def test_the_bound_of_a_single_problem_is_its_lead(kind: str) -> None:
    model = random_model(kind).double()
    prover = Prover(model)
    scene = scenes(prover, 3, seed=1)[-1]
    bounds = prover.finish.bound(scene.stream(), scene.rows.right)
    a, b = draw_from(scene, 1)
    exact = leads(model, scene, a, b)
    torch.testing.assert_close(bounds.at, exact)
    assert (bounds.rounded < 0.1).all()
    # what is left is the rounding of float32, squared
    assert (exact - bounds.low).where(exact.isfinite(), 0).max() < 1e-3


@pytest.mark.parametrize("number", [0, 1, 3, DIGITS])
def test_boxes_cover_all_pairs_once(number: int) -> None:
    prover = Prover(random_model("rotary").double())
    first = list(first_scenes(prover.views, number))
    assert sum(map(pairs_of, first)) == BASE ** (2 * DIGITS)
    for scene in first[:3]:
        while scene.free:
            parts = split(scene)
            assert sum(map(pairs_of, parts)) == pairs_of(scene)
            scene = parts[-1]


@torch.no_grad()
def test_a_looser_box_has_looser_bounds() -> None:
    """The bound of a single problem is no lower than that of the box it was split from."""
    model = random_model("rotary", sharp=8.0).double()
    prover = Prover(model)
    scene = next(iter(first_scenes(prover.views, 3)))
    whole = (lambda bounds: bounds.low + 0)(prover.finish.bound(scene.stream(), scene.rows.right))
    single = scene
    while single.free:
        single = split(single)[0]
    tight = prover.finish.bound(single.stream(), single.rows.right)
    assert (tight.low >= whole).all()


def test_a_description_in_other_precision_is_refused() -> None:
    from headway.certify.digits import Adder
    from headway.certify.digits.prove import prove_digits

    model = random_model("rotary")
    verdict = prove_digits(Adder(replace(model, out=model.out.double()), lambda tokens: tokens))
    assert not verdict.certified
    assert "float32" in (verdict.reason or "")

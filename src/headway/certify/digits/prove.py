"""A proof that an adder is right on all pairs of numbers of its length, or what stands in the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from headway.certify.digits.adder import Adder, check_adder, hash_description
from headway.certify.digits.hunt import (
    Counterexample,
    descend,
    draw_from,
    draw_pairs,
    show_wrong,
    smallest_leads,
)
from headway.certify.digits.search import Progressed, Prover, Watch
from headway.certify.locality import NotLocal
from headway.machine import full_precision_matmul

TRIED = 4096  # pairs that are decoded before the proof
HOPELESS = 0.01  # a share of wrong pairs with which no proof is tried
STARTS = 20  # of the descent
MEASURED = 512  # pairs whose leads in float32 are compared with the bound


@dataclass(frozen=True)
class DigitsVerdict:
    """What was proved about all pairs of numbers of one length."""

    digits: int
    pairs: int
    proved_pairs: int
    """at least so many pairs are right"""
    boxes: int
    """boxes bounded"""
    open: int
    """boxes neither proved nor split"""
    wrong: int
    """confirmed counterexamples: 0 or 1"""
    counterexample: Counterexample | None
    smallest_margin: float | None
    """of the boxes that are proved, the smallest lead in exact arithmetic"""
    rounding_bound: float | None
    """of the boxes that are proved, the largest bound on the rounding of a lead"""
    rounding: float | None
    """the largest rounding that was measured"""
    seconds: float
    reason: str | None
    open_shares: tuple[float, ...] = ()
    """for each answer digit, from the ones: the share of all pairs that lie in its open boxes"""
    name: str = ""
    parameters: int | None = None
    weights_sha256: str | None = None
    description_sha256: str | None = None

    @property
    def certified(self) -> bool:
        return self.reason is None


def refuse(reason: str, digits: int = 0) -> DigitsVerdict:
    """Returns the verdict on a model that nothing can be proved about."""
    return DigitsVerdict(digits, 0, 0, 0, 0, 0, None, None, None, None, 0.0, reason)


def prove_digits(adder: Adder, budget: float = 1800, watch: Watch | None = None) -> DigitsVerdict:
    """Proves an adder right on all pairs, finds a pair that it gets wrong, or counts what is proved within `budget`
    seconds."""
    with full_precision_matmul(), torch.no_grad():
        try:
            check_adder(adder)
        except NotLocal as reason:
            return refuse(str(reason))
        model = adder.description.double()
        a, b = draw_pairs(model, TRIED)
        found, share = show_wrong(adder, a, b), float(adder.find_wrong(a, b).float().mean())
        if share > HOPELESS:
            return _conclude(adder, Progressed(), found, None, f"{share:.1%} of {TRIED:,} random pairs are wrong")
        proof = Prover(model).run(budget, watch)
        if found is None and proof.open:
            found = _hunt(adder, proof)
        return _conclude(adder, proof, found, _measure(adder))


def _hunt(adder: Adder, proof: Progressed) -> Counterexample | None:
    """Looks for a wrong pair in the open boxes."""
    model = adder.description.double()
    drawn = [draw_from(scene, 1) for scene in proof.open[:STARTS]] + [draw_from(box, 8) for _, box in proof.worst]
    a, b = (torch.cat(part)[:50_000] for part in zip(*drawn, strict=True))
    leads = torch.cat([smallest_leads(model, *part) for part in zip(a.split(1000), b.split(1000), strict=True)])
    lowest = leads.argsort()[:STARTS]
    return show_wrong(adder, *descend(model, a[lowest], b[lowest]))


def _measure(adder: Adder) -> float:
    """Returns how far the leads of random pairs in float32 are from those of the description, at most."""
    model = adder.description
    a, b = draw_pairs(model, MEASURED, seed=1)
    tokens = model.sequences(a, b)
    exact, given = model.double().logits(tokens), adder.forward(tokens)[:, len(model.source) - 1 :].double()
    off = (exact - given).sort(-1).values
    return float((off[..., -1] - off[..., 0]).max())


def _conclude(
    adder: Adder, proof: Progressed, found: Counterexample | None, measured: float | None, hopeless: str | None = None
) -> DigitsVerdict:
    """Puts the verdict together, with the reason if there is no proof."""
    model = adder.description
    pairs = model.base ** (2 * model.digits)
    proved = 0 if hopeless else max(0, pairs - proof.open_pairs)
    count = sum(len(scene.rows) for scene in proof.open)
    reason = hopeless
    if found is not None:
        wrong = f"{found.a} + {found.b} is {found.right}, and it writes {found.written}"
        reason = wrong if hopeless is None else f"{wrong}; {hopeless}"
    elif measured is not None and proof.rounding and measured > proof.rounding and not proof.open:
        reason = (
            f"the model computes something else than its description: float32 is up to {measured:.2g} away from "
            f"float64, and rounding can be {proof.rounding:.2g}"
        )
    elif proof.open:
        numbers = sorted({scene.number for scene in proof.open})
        reason = f"{count:,} of {proof.boxes:,} boxes are open, of the answer digits {', '.join(map(str, numbers))}"
        reason += f"; {proved / pairs:.4%} of all pairs are proved"
    margin = proof.margin if math.isfinite(proof.margin) else None
    return DigitsVerdict(
        model.digits, pairs, min(proved, pairs - (found is not None)), proof.boxes, count, int(found is not None),
        found, margin, proof.rounding if margin is not None else None, measured, round(proof.seconds, 1), reason,
        tuple(proof.open_of(number) / pairs for number in range(model.digits + 1)),
        description_sha256=hash_description(model),
    )  # fmt: skip

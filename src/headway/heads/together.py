"""Finds which heads can go together. Their costs one at a time do not say, because heads back each other up.

Orders of removal give curves of accuracy against heads removed: by the cost of each alone, by the gradient of the
loss at its gate (Michel et al., 2019), at random, and greedily with every head scored anew after each removal, keeping
the best few sets in a beam. Sets are selected on one split of the problems and reported on another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from headway.evaluation.verdicts import loss
from headway.heads.ablation import Margin, measure
from headway.heads.screening import sum_gate_gradients
from headway.heads.units import Unit, heads_in
from headway.heads.variants import Outcome, Variants
from headway.models.sites import Closed, Part
from headway.progress import SILENT, Watch
from headway.tasks import Problems

FIRST = 125  # problems, after which greedy removal begins to leave out heads that cannot be the cheapest
ROUNDING = 1e-9  # by which sums of the same losses in another order may differ


@dataclass(frozen=True)
class Curve:
    """Accuracy as heads are removed: point k has k heads fewer."""

    order: str
    sets: tuple[Closed, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    searched: int
    """the number of sets that were tried for it"""
    examples: int
    """the number of problems that it was measured on"""

    def sets_within(self, margin: Margin) -> list[Closed]:
        """Returns the sets that are within the margin on the problems of the curve, the largest first."""
        points = zip(self.sets, self.accuracy, self.loss, strict=True)
        whole, least = self.accuracy[0], self.loss[0]
        allowed = ((closed, margin.allows(whole - right, loss - least, least)) for closed, right, loss in points)
        found = [closed for closed, fits in allowed if closed and fits]
        return sorted(found, key=len, reverse=True)

    def sets_to_confirm(self, margin: Margin) -> list[Closed]:
        """Returns the sets to confirm on other problems, in this order: of those within the margin the largest comes
        last, before it those with 1, 2, 4, 8, … heads fewer."""
        within = self.sets_within(margin)
        places = [0, *(2**step for step in range(len(within)))]
        return [within[place] for place in reversed(places) if place < len(within)]

    def to_json(self) -> dict[str, Any]:
        heads = [sorted(map(str, closed)) for closed in self.sets]
        numbers = {"accuracy": list(self.accuracy), "loss": list(self.loss), "searched": self.searched}
        return {"order": self.order, "examples": self.examples, **numbers, "heads": heads}


def _score(variants: Variants, point: tuple[float, float]) -> tuple[float, float]:
    """Scores a point, larger is better: by accuracy, then by loss; the other way round where there is a metric."""
    right, loss = point
    return (right, -loss) if variants.subject.measured_by is None else (-loss, right)


def _curve(
    order: str, problems: Problems, sets: Sequence[Closed], points: Sequence[tuple[float, float]], searched: int
) -> Curve:
    accuracy, losses = zip(*points, strict=True)
    return Curve(order, tuple(sets), accuracy, losses, searched, len(problems))


def remove_greedily(variants: Variants, problems: Problems, width: int = 1, watch: Watch = SILENT) -> Curve:
    """Removes head after head, always the one that costs least given those already gone; `width` is the beam's."""
    units = variants.units
    beam: list[Closed] = [frozenset()]
    sets, points, searched = beam, variants(problems, beam).points, 1
    for removed in range(1, len(units) + 1):
        found: dict[Closed, tuple[float, float]] = {}
        tried = set[Closed]()
        for base in beam:
            larger = [base | heads_in(unit) for unit in units if not heads_in(unit) <= base]
            new = [closed for closed in larger if closed not in tried]
            found |= _measure_best(variants, problems, new, base, width)
            tried |= {*new}
        searched += len(tried)
        beam = sorted(found, key=lambda closed: _score(variants, found[closed]), reverse=True)[:width]
        sets, points = [*sets, beam[0]], [*points, found[beam[0]]]
        watch(removed, len(units))
    return _curve("greedy" if width == 1 else f"beam of {width}", problems, sets, points, searched)


def _measure_best(
    variants: Variants, problems: Problems, sets: Sequence[Closed], base: Closed, width: int
) -> dict[Closed, tuple[float, float]]:
    """Measures the sets that may be among the `width` best. A set is left out as soon as it cannot be one of them: on
    the problems seen so far it has more errors than `width` others have on all of them, or as many and a larger loss.
    The hardest problems come first, so that this shows early."""
    few = len(sets) <= width or len(problems) <= FIRST
    if few or variants.subject.measured_by is not None or variants.ablation.varies:
        return dict(zip(sets, variants(problems, sets, base).points, strict=True))
    seen = variants(problems[:FIRST], sets, base)
    ranked = sorted(range(len(sets)), key=lambda place: (-seen.accuracy[place], seen.losses[place]))
    best, rest = ranked[:width], ranked[width:]
    leaders = _join(seen, best, variants(problems[FIRST:], [sets[n] for n in best], base))
    found = {sets[place]: point for place, point in zip(best, leaders.points, strict=True)}
    errors = (~leaders.right).sum(-1)
    most = int(errors.max())
    largest = float(leaders.loss.double().sum(-1)[errors == most].max()) * (1 + ROUNDING)
    hardness = leaders.loss.amax(0) + 1e6 * (~leaders.right).any(0)
    hardness[:FIRST] = torch.inf  # these are already seen
    problems = problems[hardness.argsort(descending=True, stable=True)]
    outcome, left = Outcome(seen.right[rest], seen.loss[rest]), [sets[place] for place in rest]
    while left:
        errors, at = (~outcome.right).sum(-1), outcome.right.shape[1]
        tied = (errors == most) & (outcome.loss.double().sum(-1) <= largest)
        kept = ((errors < most) | tied).nonzero()[:, 0].tolist()
        left = [left[place] for place in kept]
        if at == len(problems) or not left:
            found |= zip(left, Outcome(outcome.right[kept], outcome.loss[kept]).points, strict=True)
            break
        enough = max(FIRST, at // 2, most + 1 - int(errors[kept].min()))  # so many errors may leave out every set
        outcome = _join(outcome, kept, variants(problems[at : at + enough], left, base))
    return found


def _join(outcome: Outcome, kept: Sequence[int], more: Outcome) -> Outcome:
    """Returns the outcome of some variants on the problems seen so far and on more of them."""
    pairs = (outcome.right[kept], more.right), (outcome.loss[kept], more.loss)
    return Outcome(*(torch.cat(pair, dim=1) for pair in pairs))


def remove_in_rounds(variants: Variants, problems: Problems, rounds: int, watch: Watch) -> Curve:
    """Removes a share of the heads at a time, the cheapest given those already gone; for models with many heads."""
    left, sets = list(variants.units), [frozenset[Part]()]
    points, searched = variants(problems, sets).points, 1
    while left:
        gone = sets[-1]
        costs = dict(zip(left, variants(problems, [gone | heads_in(unit) for unit in left], gone).points, strict=True))
        ranked = sorted(left, key=lambda unit: _score(variants, costs[unit]), reverse=True)
        cheapest = ranked[: max(1, len(left) // rounds)]
        steps = [gone | heads_in(*cheapest[:count]) for count in range(1, len(cheapest) + 1)]
        sets, points = sets + steps, points + variants(problems, steps, gone).points
        searched += len(left) + len(steps)
        left = [unit for unit in left if unit not in cheapest]
        watch(len(variants.units) - len(left), len(variants.units))
    return _curve(f"rounds, a {rounds}th of the rest each", problems, sets, points, searched)


def remove_in_order(variants: Variants, problems: Problems, name: str, units: Sequence[Unit]) -> Curve:
    """Removes heads, or groups of them, in a given order."""
    sets: list[Closed] = [heads_in(*units[:count]) for count in range(len(units) + 1)]
    return _curve(name, problems, sets, variants(problems, sets).points, len(sets))


def rank_by_gradient(variants: Variants, problems: Problems) -> list[Unit]:
    """Ranks heads, or groups, by the mean absolute gradient of the loss at their gates, the smallest first."""

    def cost(logits: Tensor, batch: Problems) -> Tensor:
        if logits.shape[:2] == batch.answer.shape and int(batch.answer.max()) < logits.shape[-1]:
            return loss(logits, batch) * len(batch)
        return logits.square()  # answers are not tokens: a user's metric may be about anything

    window = variants.ablation.window
    totals = sum_gate_gradients(variants.subject, problems, cost, lambda gradient: float(gradient.abs().sum()), window)
    return sorted(variants.units, key=lambda unit: sum(totals[head] for head in heads_in(unit)))


@dataclass(frozen=True)
class Pair:
    """The cost of removing two heads together, and the sum of their costs one by one."""

    heads: tuple[Unit, Unit]
    drop: float
    sum_of_drops: float

    @property
    def backup(self) -> float:
        """How much more the two cost together: each is a backup of the other."""
        return self.drop - self.sum_of_drops

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "heads": [str(head) for head in self.heads], "backup": self.backup}


def measure_pairs(variants: Variants, problems: Problems, watch: Watch = SILENT) -> list[Pair]:
    """Measures every pair, and returns the strongest backup first."""
    units, both = variants.units, list(combinations(variants.units, 2))
    sets: list[Closed] = [heads_in(*some) for some in [*combinations(units, 1), *both]]
    effects = measure(variants, [problems], sets, watch, len(problems))[1:]
    by_loss = variants.subject.measured_by is not None
    costs = [effect.loss_increase if by_loss else effect.drop for effect in effects]
    alone = dict(zip(units, costs, strict=False))
    joint = zip(both, costs[len(units) :], strict=True)
    return sorted((Pair((a, b), cost, alone[a] + alone[b]) for (a, b), cost in joint), key=lambda pair: -pair.backup)

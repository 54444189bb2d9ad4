"""Which heads can go together. What heads cost one at a time does not say: they back each other up.

Orders of removal, as curves of accuracy against heads removed: by what each costs alone, by the gradient of the
loss at its gate (Michel et al., 2019), at random, and greedily with every head scored anew after each removal, keeping
the best few sets where a beam is asked for. Sets are selected on problems of their own and reported on others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from headway.evaluation.exact import Watch
from headway.evaluation.verdicts import loss
from headway.heads.ablation import Effect, Margin, measure
from headway.heads.gradients import gradients_at_gates
from headway.heads.variants import Outcome, Variants
from headway.models import Head
from headway.models.sites import Closed
from headway.tasks import Problems


@dataclass(frozen=True)
class Curve:
    """Accuracy as heads are removed: point k has k heads fewer."""

    order: str
    sets: tuple[Closed, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    searched: int
    """how many sets were tried for it"""

    def fitting(self, margin: Margin) -> list[Closed]:
        """The sets that are within the margin on the problems of the curve, the largest first."""
        points = zip(self.sets, self.accuracy, self.loss, strict=True)
        found = [
            closed
            for closed, right, loss in points
            if closed and margin.allows(self.accuracy[0] - right, loss - self.loss[0])
        ]
        return sorted(found, key=len, reverse=True)


def _scores(outcome: Outcome, by_loss: bool) -> list[tuple[float, float]]:
    """The better the larger: by what is right, then by the loss; or the other way round where that is the question."""
    pairs = zip(outcome.accuracy, (-loss for loss in outcome.losses), strict=True)
    return [(loss, right) if by_loss else (right, loss) for right, loss in pairs]


def greedy(variants: Variants, problems: Problems, width: int = 1, watch: Watch | None = None) -> Curve:
    """Removes head after head, always the one that costs least given those already gone; `width` sets are kept."""
    heads = variants.subject.heads
    beam: list[Closed] = [frozenset()]
    whole = variants(problems, beam)
    by_loss = variants.subject.measured_by is not None
    sets, scores, searched = [frozenset()], _scores(whole, by_loss), 1
    for removed in range(1, len(heads) + 1):
        found: dict[Closed, tuple[float, float]] = {}
        for base in beam:
            tried = [base | {head} for head in heads if head not in base]
            new = [closed for closed in tried if closed not in found]
            outcome = variants(problems, new, base)
            found |= dict(zip(new, _scores(outcome, by_loss), strict=True))
        searched += len(found)
        beam = sorted(found, key=found.__getitem__, reverse=True)[:width]
        sets.append(beam[0])
        scores.append(found[beam[0]])
        if watch is not None:
            watch(removed, len(heads))
    rights, losses = zip(*((right, loss) if not by_loss else (loss, right) for right, loss in scores), strict=True)
    accuracy, loss = tuple(rights), tuple(-better for better in losses)
    return Curve("greedy" if width == 1 else f"beam of {width}", tuple(sets), accuracy, loss, searched)


def in_rounds(variants: Variants, problems: Problems, rounds: int, watch: Watch | None = None) -> Curve:
    """Removes heads a share at a time, the cheapest of those left given those already gone; for models with many."""
    left, gone = list(variants.subject.heads), frozenset()
    whole = variants(problems, [gone])
    sets, scores, searched = [gone], [(whole.accuracy[0], whole.losses[0])], 1
    while left:
        outcome = variants(problems, [gone | {head} for head in left], gone)
        searched += len(left)
        gains = dict(zip(left, _scores(outcome, variants.subject.measured_by is not None), strict=True))
        cheapest = sorted(left, key=gains.__getitem__, reverse=True)[: max(1, len(left) // rounds)]
        left = [head for head in left if head not in cheapest]
        steps = [gone | set(cheapest[:count]) for count in range(1, len(cheapest) + 1)]
        gone = frozenset(steps[-1])
        found = variants(problems, steps, sets[-1])
        sets += [frozenset(each) for each in steps]
        scores += zip(found.accuracy, found.losses, strict=True)
        searched += len(steps)
        if watch is not None:
            watch(len(gone), len(variants.subject.heads))
    accuracy, losses = zip(*scores, strict=True)
    return Curve(f"rounds, a {rounds}th of the rest each", tuple(sets), tuple(accuracy), tuple(losses), searched)


def in_order(variants: Variants, problems: Problems, name: str, heads: Sequence[Head]) -> Curve:
    """The heads removed in a given order."""
    sets = [frozenset(heads[:count]) for count in range(len(heads) + 1)]
    outcome = variants(problems, sets)
    return Curve(name, tuple(sets), tuple(outcome.accuracy), tuple(outcome.losses), len(sets))


def by_cost(effects: Sequence[Effect], cost: Callable[[Effect], float]) -> list[Head]:
    """Heads by what each costs alone, the cheapest first; `effects` close one head each."""
    ordered = sorted(effects, key=lambda effect: (cost(effect), effect.loss_increase))
    return [head for effect in ordered for head in effect.closed if isinstance(head, Head)]


def at_random(variants: Variants, problems: Problems, seed: int, orders: int) -> list[Curve]:
    chance = random.Random(seed)
    heads = list(variants.subject.heads)
    return [
        in_order(variants, problems, f"random {number}", chance.sample(heads, len(heads))) for number in range(orders)
    ]


def by_gradient(variants: Variants, problems: Problems) -> list[Head]:
    """Heads by the mean size of the loss's gradient at their gate, the smallest first."""

    def cost(logits: Tensor, batch: Problems) -> Tensor:
        return loss(logits, batch) * len(batch) if _has_tokens(logits, batch) else logits.square()

    totals: dict[Head, float] = dict.fromkeys(variants.subject.heads, 0.0)
    for gradients in gradients_at_gates(variants.subject, problems, cost):
        for head, gradient in gradients.items():
            totals[head] += float(gradient.abs().sum())
    return sorted(totals, key=totals.__getitem__)


def _has_tokens(logits: Tensor, batch: Problems) -> bool:
    """Whether answers are tokens among the logits; a metric of a user's own may be about anything."""
    return logits.shape[:2] == batch.answer.shape and int(batch.answer.max()) < logits.shape[-1]


@dataclass(frozen=True)
class Pair:
    """Two heads: what they cost together beside what they cost one by one."""

    heads: tuple[Head, Head]
    drop: float
    sum_of_drops: float

    @property
    def backup(self) -> float:
        """How much more the two cost together: each stands in for the other."""
        return self.drop - self.sum_of_drops


def pairs(variants: Variants, problems: Problems, watch: Watch | None = None) -> list[Pair]:
    """Every pair, the strongest backup first."""
    heads = variants.subject.heads
    both = list(combinations(heads, 2))
    singles = [frozenset({head}) for head in heads]
    effects = measure(variants, [problems], singles + [frozenset(pair) for pair in both])[1:]
    by_loss = variants.subject.measured_by is not None
    costs = [effect.loss_increase if by_loss else effect.drop for effect in effects]
    alone = dict(zip(heads, costs, strict=False))
    if watch is not None:
        watch(len(both), len(both))
    joint = costs[len(heads) :]
    found = [Pair((a, b), cost, alone[a] + alone[b]) for (a, b), cost in zip(both, joint, strict=True)]
    return sorted(found, key=lambda pair: -pair.backup)

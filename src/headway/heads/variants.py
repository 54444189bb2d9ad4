"""A model with parts of it taken out: many such variants, on the same problems.

A variant is a set of closed parts: heads, or sites as a whole (a feed-forward block is one). What a closed head
says is replaced by nothing (zero), by its mean at that position, or by what it says about another problem. Each
problem is gone through once; a variant then costs only what lies behind the first part it closes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.evaluation.verdicts import losses_of, right, right_or_tied
from headway.models import Gate, Gates, Head, Site
from headway.models.rerun import Recording
from headway.models.sites import Closed, site_of
from headway.subjects.ragged import lengths_of
from headway.subjects.splits import Split, drawn
from headway.subjects.subject import Subject
from headway.tasks import Problems

Ablation = Literal["zero", "mean", "resample"]
ABLATIONS: tuple[Ablation, ...] = ("zero", "mean", "resample")
MEAN_OVER = 2_000  # held-out problems


@dataclass(frozen=True)
class Outcome:
    """What became of each problem under each variant; of many models, each with variants of its own."""

    right: Bool[Tensor, "*model variant row"]
    loss: Float[Tensor, "*model variant row"]

    @property
    def accuracy(self) -> list[float]:
        return self.right.double().mean(-1).tolist()

    @property
    def losses(self) -> list[float]:
        return self.loss.double().mean(-1).tolist()


class Variants:
    """Runs variants of a subject under one kind of ablation."""

    def __init__(self, subject: Subject, ablation: str = "zero", seed: int = 0) -> None:
        if ablation not in ABLATIONS:
            raise unknown("ablation", ablation, ABLATIONS)
        self.subject, self.ablation, self.seed = subject, cast(Ablation, ablation), seed
        self.runner = subject.runner
        self.order = {site: place for place, site in enumerate(self.runner.sites)}
        self.width = self.runner.width
        for head in subject.heads:
            if head.number >= self.width.get(head.site, 0):
                raise HeadwayError(f"{subject.name} names {head}, which its model does not have; see its sites")
        self.means = self._mean_outputs() if ablation == "mean" else {}

    def __call__(self, problems: Problems, variants: Sequence[Closed], base: Closed = frozenset()) -> Outcome:
        """Every variant closes its own parts and those of `base`."""
        donors = self.donors(problems) if self.ablation == "resample" else None

        def piece(rows: slice) -> Outcome:
            with torch.inference_mode():
                others = None if donors is None else self.runner.trim(donors[rows])
                return self._of_batch(self.runner.trim(problems[rows]), others, variants, base)

        outcomes = self.runner.each(piece, problems)
        return Outcome(torch.cat([o.right for o in outcomes], dim=1), torch.cat([o.loss for o in outcomes], dim=1))

    def donors(self, problems: Problems) -> Problems:
        """For each problem another, whose outputs take the place of its own; in an order that knows no labels."""
        if self.runner.varied_lengths:
            return problems[neighbours(problems, Split.DONORS.seed(self.seed))]
        others = self.subject.draw(len(problems), Split.DONORS.seed(self.seed), False)
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(Split.DONORS.seed(self.seed)))
        others = others[order.to(others.source.device)]
        same = (others.source == problems.source).all(1).nonzero()[:, 0]
        return others.replaced(same, others[(same + 1) % len(others)]) if len(same) else others

    def _of_batch(self, batch: Problems, donors: Problems | None, variants: Sequence[Closed], base: Closed) -> Outcome:
        outputs = self.means if donors is None else self.runner.record(donors).trace.outputs
        recording = self.runner.record(batch, self._gates([base], outputs, len(batch)))
        right = torch.empty(len(variants), len(batch), dtype=torch.bool, device=batch.source.device)
        losses = torch.empty(len(variants), len(batch), device=batch.source.device)
        groups: dict[Site | None, list[int]] = defaultdict(list)
        for number, closed in enumerate(variants):
            groups[self._first(closed - base)].append(number)
        whole = self._whole(batch, recording, base)
        for first, numbers in groups.items():
            waiting = list(numbers)
            while waiting:
                at_once = len(waiting) if first is None else self.runner.variants_at_once(recording, len(waiting))
                some, waiting = waiting[:at_once], waiting[at_once:]
                logits = recording.logits
                if first is not None:
                    gates = self._gates([variants[number] | base for number in some], outputs, len(batch))
                    logits = self.runner.replay(recording, gates, first, len(some))
                for place, number in enumerate(some):
                    own = logits if first is None else logits[place * len(batch) : (place + 1) * len(batch)]
                    right[number] = self._right(own, batch)
                    losses[number] = self.costs(own, batch, whole)
        return Outcome(right, losses)

    def _whole(self, batch: Problems, recording: Recording, base: Closed) -> Tensor | None:
        """The logits with all heads open, where the metric holds others against them."""
        metric = self.subject.measured_by
        if metric is None or not metric.beside_whole:
            return None
        return recording.logits if not base else self.runner.record(batch).logits

    def _right(self, logits: Tensor, batch: Problems) -> Tensor:
        """Which problems are right. Where a metric is the question, a token that is as likely as the likeliest will do:
        over a large vocabulary that is several times faster to see."""
        if self.subject.measured_by is None or self.subject.correct is not right:
            return self.subject.correct(logits, batch)
        return right_or_tied(logits, batch)

    def costs(self, logits: Tensor, batch: Problems, whole: Tensor | None) -> Tensor:
        """What counts as the loss of each problem: cross-entropy, or the subject's own metric."""
        metric = self.subject.measured_by
        return losses_of(logits, batch) if metric is None else metric.cost(logits, batch, whole)

    def _first(self, closed: Closed) -> Site | None:
        """The earliest site that is changed."""
        return min((site_of(part) for part in closed), key=self.order.__getitem__, default=None)

    def _gates(self, variants: Sequence[Closed], outputs: dict[Site, Tensor], rows: int) -> Gates:
        """The gates of every problem under every variant, for the sites where any is closed."""
        device, gates = self.subject.device, {}
        for site in {site_of(part) for closed in variants for part in closed}:
            heads = self.width.get(site, 1)  # a feed-forward block is one
            passed = torch.tensor(
                [
                    [float(site not in closed and Head(site, head) not in closed) for head in range(heads)]
                    for closed in variants
                ],
                device=device,
            )
            fill = outputs.get(site)
            if fill is not None and len(fill) > 1:
                fill = fill.repeat(len(variants), 1, 1, 1)
            gates[site] = Gate(passed if len(variants) == 1 else passed.repeat_interleave(rows, dim=0), fill)
        return gates

    @torch.inference_mode()
    def _mean_outputs(self) -> dict[Site, Tensor]:
        """What each head says on average over held-out problems: at each position, or, where problems are of different
        lengths, over all positions."""
        problems = drawn(self.subject, Split.MEANS, MEAN_OVER, self.seed, True)
        pooled = self.runner.varied_lengths

        def sums(rows: slice) -> dict[Site, tuple[Tensor, int]]:
            with torch.inference_mode():
                outputs = self.runner.record(self.runner.trim(problems[rows])).trace.outputs
                return {site: _sum_of(output, pooled) for site, output in outputs.items()}

        totals: dict[Site, Tensor] = {}
        counts: dict[Site, int] = {}
        for piece in self.runner.each(sums, problems):
            for site, (total, count) in piece.items():
                totals[site] = totals[site] + total if site in totals else total
                counts[site] = counts.get(site, 0) + count
        return {site: (total / counts[site]).float() for site, total in totals.items()}


def _sum_of(output: Float[Tensor, "row query head dim"], pooled: bool) -> tuple[Tensor, int]:
    """The sum over the problems, or over all their positions where these are pooled, and of how many it is."""
    total = output.double().sum((0, 1) if pooled else 0, keepdim=True)
    return total, len(output) * (output.shape[1] if pooled else 1)


def with_neighbours(problems: Problems) -> Problems:
    """Those problems that are not the only ones of their length."""
    lengths = lengths_of(problems)
    return problems[(lengths[:, None] == lengths).sum(1).gt(1).nonzero()[:, 0]]


def neighbours(problems: Problems, seed: int) -> Int[Tensor, " row"]:
    """For each problem another one of its length, in an order drawn by the seed."""
    lengths, order = lengths_of(problems), torch.randperm(len(problems), generator=torch.Generator().manual_seed(seed))
    order = order.to(lengths.device)
    found = torch.empty_like(order)
    for length in lengths.unique():
        own = order[lengths[order] == length]
        if len(own) < 2:
            raise HeadwayError(
                "a problem is the only one of its length; to resample, a head's output is taken from one as long; "
                "give two of each length, or take `ablation=zero`"
            )
        found[own] = own.roll(1)
    return found

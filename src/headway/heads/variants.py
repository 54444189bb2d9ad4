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
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from headway.errors import HeadwayError, unknown
from headway.evaluation.examples import batches, even_pieces
from headway.heads.lots import Lot
from headway.machine import side_by_side
from headway.models import Attention, Gate, Gates, Head, Model, Site
from headway.models.rerun import Kept, again, keep, sites_of
from headway.subjects.subject import Subject
from headway.tasks import Problems

Part = Head | Site
Closed = frozenset[Part]
Ablation = Literal["zero", "mean", "resample"]
ABLATIONS: tuple[Ablation, ...] = ("zero", "mean", "resample")
MEAN_OVER = 2_000  # held-out problems
GPU_ROWS = 60_000  # of problems under variants, in one pass


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
        if not isinstance(subject.model, Model):
            raise HeadwayError(
                f"{subject.name} has a {type(subject.model).__name__}; only models of Headway's own can be studied yet"
            )
        self.model = subject.model
        self.order = {site: place for place, site in enumerate(sites_of(self.model))}
        self.width = {m.site: m.heads for m in self.model.modules() if isinstance(m, Attention)}
        for head in subject.heads:
            if head.number >= self.width.get(head.site, 0):
                raise HeadwayError(
                    f"{subject.name} names {head}, which its model does not have; only models of Headway's own blocks "
                    "can be studied yet"
                )
        self.means = self._mean_outputs() if ablation == "mean" else {}

    def __call__(self, problems: Problems, variants: Sequence[Closed], base: Closed = frozenset()) -> Outcome:
        """Every variant closes its own parts and those of `base`."""
        donors = self.donors(problems) if self.ablation == "resample" else None

        def piece(rows: slice) -> Outcome:
            with torch.inference_mode():
                others = None if donors is None else donors[rows]
                return self._of_batch(problems[rows], others, variants, base)

        outcomes = side_by_side(piece, even_pieces(problems), self.subject.device)
        return Outcome(torch.cat([o.right for o in outcomes], dim=1), torch.cat([o.loss for o in outcomes], dim=1))

    def donors(self, problems: Problems) -> Problems:
        """For each problem another, whose outputs take the place of its own; in an order that knows no labels."""
        others = self.subject.draw(len(problems), Lot.DONORS.seed(self.seed), False)
        order = torch.randperm(len(others), generator=torch.Generator().manual_seed(Lot.DONORS.seed(self.seed)))
        others = others[order.to(others.source.device)]
        same = (others.source == problems.source).all(1).nonzero()[:, 0]
        return others.replaced(same, others[(same + 1) % len(others)]) if len(same) else others

    def _of_batch(self, batch: Problems, donors: Problems | None, variants: Sequence[Closed], base: Closed) -> Outcome:
        outputs = self.means if donors is None else self._kept(donors, {}).trace.outputs
        kept = self._kept(batch, self._gates([base], outputs, len(batch)))
        right = torch.empty(len(variants), len(batch), dtype=torch.bool, device=batch.source.device)
        losses = torch.empty(len(variants), len(batch), device=batch.source.device)
        groups: dict[Site | None, list[int]] = defaultdict(list)
        for number, closed in enumerate(variants):
            groups[self._first(closed - base)].append(number)
        at_once = 1 if batch.source.device.type == "cpu" else max(1, GPU_ROWS // len(batch))
        for first, numbers in groups.items():
            for start in range(0, len(numbers), at_once):
                some = numbers[start : start + at_once]
                logits = kept.logits
                if first is not None:
                    gates = self._gates([variants[number] | base for number in some], outputs, len(batch))
                    logits = again(self.model, kept, gates, first, len(some))
                for place, number in enumerate(some):
                    own = logits if first is None else logits[place * len(batch) : (place + 1) * len(batch)]
                    right[number] = self.subject.correct(own, batch)
                    losses[number] = losses_of(own, batch)
        return Outcome(right, losses)

    def _kept(self, problems: Problems, gates: Gates) -> Kept:
        return keep(self.model, problems.source, problems.answer, gates or None)

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
            gates[site] = Gate(passed.repeat_interleave(rows, dim=0), fill)
        return gates

    @torch.inference_mode()
    def _mean_outputs(self) -> dict[Site, Tensor]:
        """What each head says at each position, on average over held-out problems."""
        problems = self.subject.draw(MEAN_OVER, Lot.MEANS.seed(self.seed), True)
        totals: dict[Site, Tensor] = {}
        for batch in batches(problems):
            for site, output in self._kept(batch, {}).trace.outputs.items():
                total = output.double().sum(0, keepdim=True)
                totals[site] = totals[site] + total if site in totals else total
        return {site: (total / len(problems)).float() for site, total in totals.items()}


def site_of(part: Part) -> Site:
    return part.site if isinstance(part, Head) else part


def losses_of(logits: Float[Tensor, "row answer token"], problems: Problems) -> Float[Tensor, " row"]:
    """Cross-entropy of each problem, the mean over its scored answer tokens."""
    each = F.cross_entropy(logits.transpose(1, 2), problems.answer, reduction="none")  # row answer
    if problems.scored is None:
        return each.mean(1)
    return (each * problems.scored).sum(1) / problems.scored.sum(1)

"""Runs many variants of a model, each with some parts closed, on the same problems.

A variant is a set of closed parts: heads, or whole sites (a feed-forward block is one). The kind of ablation decides
what replaces the output of a closed head (ablations.py). Each problem passes through the whole model once; a variant
then costs only the layers behind the first part it closes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.verdicts import losses_of, right, right_or_tied
from headway.heads.ablations import Kind, Replacements, create_ablation
from headway.heads.units import units_of
from headway.models import Gate, Gates, Head
from headway.models.sites import Closed, NarrowedHead, Narrowing, site_of
from headway.runs.seal import read_sealed, write_sealed
from headway.subjects.sharing import Changes
from headway.subjects.subject import Subject
from headway.tasks import Problems


@dataclass(frozen=True)
class Outcome:
    """The verdict and the loss of each problem under each variant; many models each have their own variants."""

    right: Bool[Tensor, "*model variant row"]
    loss: Float[Tensor, "*model variant row"]

    @property
    def accuracy(self) -> list[float]:
        # divided on the CPU: a GPU multiplies by the inverse, and the last bit differs
        return (self.right.sum(-1).cpu().double() / self.right.shape[-1]).tolist()

    @property
    def losses(self) -> list[float]:
        return self.loss.double().mean(-1).tolist()

    @property
    def points(self) -> list[tuple[float, float]]:
        """The accuracy and the loss of each variant."""
        return list(zip(self.accuracy, self.losses, strict=True))


class Variants:
    """Runs variants of a subject under one kind of ablation. Under a window, a variant may also narrow heads to other
    numbers of recent tokens (`NarrowedHead`)."""

    def __init__(self, subject: Subject, ablation: Kind = "zero", seed: int = 0, units: str = "heads") -> None:
        self.subject, self.runner, self.kind, self.seed = subject, subject.runner, str(ablation), seed
        _ = self.runner.sites  # raises for a model whose sites are unknown
        for head in subject.heads:
            if head.number >= self.runner.width.get(head.site, 0):
                raise HeadwayError(f"{subject.name} names {head}, which its model does not have; see its sites")
        self.units = units_of(subject, units)
        """what is kept or closed as a whole"""
        self.ablation = create_ablation(ablation, subject, seed)

    def __call__(self, problems: Problems, variants: Sequence[Closed], base: Closed = frozenset()) -> Outcome:
        """Runs every variant with its own parts and those of `base` closed."""
        donors = self.ablation.donors(problems)

        def piece(rows: slice) -> Outcome:
            others = None if donors is None else self.runner.trim(donors[rows])
            return self._run_batch(self.runner.trim(problems[rows]), others, variants, base)

        outcomes = self.runner.map_pieces(piece, problems)
        return Outcome(torch.cat([o.right for o in outcomes], dim=1), torch.cat([o.loss for o in outcomes], dim=1))

    @torch.inference_mode()
    def _run_batch(self, batch: Problems, donors: Problems | None, variants: Sequence[Closed], base: Closed) -> Outcome:
        outputs = self.ablation.replacements(donors)
        metric = self.subject.measured_by
        needs_whole = metric is not None and metric.needs_whole
        if len(variants) == 1 and base and not needs_whole:  # what is closed from the start needs no pass of its own
            base, variants = base | variants[0], [base | variants[0]]
        recording = self.runner.record(batch, self._gates([base], outputs, len(batch)))
        right = torch.empty(len(variants), len(batch), dtype=torch.bool, device=batch.source.device)
        losses = torch.empty(len(variants), len(batch), device=batch.source.device)
        whole = (self.runner.record(batch) if base else recording).logits if needs_whole else None
        changed = [_changes(closed, base) for closed in variants]
        replayed = self.runner.replay_each(
            recording, changed, lambda some: self._gates([variants[n] | base for n in some], outputs, len(batch))
        )
        for number, logits in replayed:
            right[number] = self._is_right(logits, batch)
            losses[number] = self.costs(logits, batch, whole)
        return Outcome(right, losses)

    def _is_right(self, logits: Tensor, batch: Problems) -> Tensor:
        """Says which problems are right; under a metric also those tied with the likeliest token, as that is faster."""
        if self.subject.measured_by is None or self.subject.correct is not right:
            return self.subject.correct(logits, batch)
        return right_or_tied(logits, batch)

    def costs(self, logits: Tensor, batch: Problems, whole: Tensor | None) -> Tensor:
        """Returns the loss of each problem: cross-entropy, or the metric of the subject."""
        metric = self.subject.measured_by
        return losses_of(logits, batch) if metric is None else metric.cost(logits, batch, whole)

    def _gates(self, variants: Sequence[Closed], outputs: Replacements, rows: int) -> Gates:
        """Builds the gates of every problem under every variant, for the sites where any is closed."""
        gates = {}
        for site in {site_of(part) for closed in variants for part in closed}:
            heads = self.runner.width.get(site, 1)  # a feed-forward block is one
            own = [{part for part in closed if site_of(part) == site} for closed in variants]
            narrowed = [_narrowest(part for part in some if isinstance(part, NarrowedHead)) for some in own]
            passed = [
                [float(not {site, Head(site, head)} & some and head not in less) for head in range(heads)]
                for some, less in zip(own, narrowed, strict=True)
            ]
            fill = outputs.get(site)
            if fill is not None and len(fill) > 1:
                fill = fill.repeat(len(variants), 1, 1, 1)
            gates[site] = Gate(self._spread(passed, rows), fill, self._narrowing(narrowed, heads, rows))
        return gates

    def _narrowing(self, narrowed: Sequence[Mapping[int, int]], heads: int, rows: int) -> Narrowing | None:
        """Returns what the heads of a site see where they are closed; None where their output is replaced."""
        window = self.ablation.window
        if window is None:
            return None
        recent = [[less.get(head, window.recent) for head in range(heads)] for less in narrowed]
        return Narrowing(window.sink, self._spread(recent, rows))

    def _spread(self, table: Sequence[Sequence[float | int]], rows: int) -> Tensor:
        """Returns a row for each problem under each variant; one row where there is one variant."""
        values = torch.tensor(table, device=self.subject.device)
        return values if len(table) == 1 else values.repeat_interleave(rows, dim=0)


def _narrowest(parts: Iterable[NarrowedHead]) -> dict[int, int]:
    """Returns how many recent tokens each narrowed head of a site sees: the fewest that were named."""
    ordered = sorted(parts, key=lambda part: part.recent, reverse=True)
    return {part.head.number: part.recent for part in ordered}


def _changes(closed: Closed, base: Closed) -> Changes:
    """Returns the sites where a variant closes more than `base`, with all that is closed there."""
    sites = {site_of(part) for part in closed - base}
    return {site: frozenset(part for part in closed | base if site_of(part) == site) for site in sites}


class Ledger:
    """Saves the outcomes of a long sweep to disk, so that it resumes after the last piece of problems if killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = ""
        """the hash of the weights, once it is computed"""

    def measure(self, variants: Variants, problems: Problems, closed: Sequence[Closed]) -> Outcome:
        """Reads the outcome of a piece of the problems where it is on disk; otherwise measures and saves it."""
        key, known = self._key(variants, problems, closed), read_sealed(self.path)
        if key in known:
            return Outcome(*(torch.tensor(each, device=problems.source.device) for each in known[key]))
        found = variants(problems, closed)
        write_sealed(self.path, {**known, key: [found.right.tolist(), found.loss.tolist()]})
        return found

    def _key(self, variants: Variants, problems: Problems, closed: Sequence[Closed]) -> str:
        """Hashes everything that the numbers depend on, including the weights."""
        digest = hashlib.sha256(json.dumps([variants.kind, variants.seed, variants.subject.name]).encode())
        metric = variants.subject.measured_by
        digest.update(("exact" if metric is None else metric.name).encode())
        digest.update("|".join(",".join(sorted(map(str, parts))) for parts in closed).encode())
        self.weights = self.weights or _hash(variants.subject.model.state_dict().values())
        scored = [] if problems.scored is None else [problems.scored]
        digest.update((self.weights + _hash([problems.source, problems.answer, *scored])).encode())
        return digest.hexdigest()


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

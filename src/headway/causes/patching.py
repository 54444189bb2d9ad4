"""Activation patching tests what a part carries to the output: its output on one problem is put into another.

The two problems of a pair differ in one thing only (tasks/contrasts.py). When patching a part flips the digit in
question to that of the other problem, the part carries the difference. Each pair is patched in both directions;
placebo pairs show what a patch does by itself. Parts are heads, whole sites and feed-forward blocks; patches are made
at all positions, or only at the position where the digit is written.

A contrast may swap only the source or only the written digits: then a part's output is that on the mixed input, and
the digit asked about is still that of the other problem. Patching a part that sees no difference cannot flip anything,
in any model: that is derived (models/influence.py), not measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Gate, Gates, Head, Site
from headway.models.rerun import Recording
from headway.models.sites import Closed, Part, site_of
from headway.subjects.sharing import Changes
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.tasks.problems import Contrast

KEPT = 500  # rows, up to which the recorded passes of pairs are kept for further patches


@dataclass(frozen=True)
class Patch:
    """Parts that get their output from another problem, at every position or only where the answer is written."""

    parts: Closed
    at_answer: bool = False
    held: Closed = frozenset()
    """parts that keep their output on this problem, whatever changes before them"""


@dataclass(frozen=True)
class PatchEffects:
    """The effects of patches, row by row; the rows of a contrast come one after another, in both directions."""

    flipped: Bool[Tensor, "patch row"]
    """whether the digit became that of the other problem; for a placebo, whether it became any other"""
    moved: Float[Tensor, "patch row"]
    """how far the logits moved: 0 as in this problem, 1 as in the other"""


class Pairs:
    """All pairs of all contrasts as one batch, to which each patch is applied as a whole."""

    def __init__(self, subject: Subject, contrasts: Sequence[Contrast]) -> None:
        self.runner, self.contrasts = subject.runner, contrasts
        self.problems = Problems.join([side for c in contrasts for side in (c.clean, c.other)])
        self.donors = Problems.join(
            [c.donors(*both) for c in contrasts for both in ((c.clean, c.other), (c.other, c.clean))]
        )
        counts = [2 * len(c.clean) for c in contrasts]
        device = self.problems.source.device
        self.contrast = torch.tensor([n for n, count in enumerate(counts) for _ in range(count)], device=device)
        self.forward = torch.cat([torch.arange(count, device=device) < count // 2 for count in counts])
        """whether a row goes from the first problem of a pair to the second"""
        self.place = torch.tensor([c.place for c in contrasts], device=device)[self.contrast][:, None]
        self.placebo = torch.tensor([c.placebo for c in contrasts], device=device)[self.contrast]
        rows = [torch.arange(count, device=device).roll(count // 2) for count in counts]
        partner = torch.cat(rows) + torch.tensor([0, *counts], device=device).cumsum(0)[self.contrast]
        """the row of the other problem of a pair"""
        self.own = self.problems.answer.gather(1, self.place)[:, 0]
        self.other = self.own[partner]
        self.base = self._digit_logits(self.problems)
        self.full = self.base[partner]
        self.carrying = self.runner.carrying_queries(self.problems, self.donors, self.place)
        self.recorded: dict[int, tuple[Recording, Recording]] = {}
        """the passes of few pairs, by their first row"""
        self.known = (self.base.argmax(-1) == self.own) & (self.full.argmax(-1) == self.other)
        """whether the model has the digit of a row right in both problems: only those rows count"""

    def _digit_logits(self, problems: Problems) -> Float[Tensor, "row token"]:
        run = torch.inference_mode()(self.runner.run)
        pieces = self.runner.map_pieces(lambda rows: _logits_at(run(problems[rows]), self.place[rows]), problems)
        return torch.cat(pieces)

    def swapped(self) -> Bool[Tensor, " row"]:
        """Returns whether the model writes the other problem's digit on the swapped input itself, without a patch."""
        return (self._digit_logits(self.donors).argmax(-1) == self.other) & self.known

    def can(self, patch: Patch) -> list[bool]:
        """Returns, for each contrast, whether the patch can change the logits of any pair."""
        if self.carrying is None:
            return [True] * len(self.contrasts)
        able = [self._able(site_of(part), patch.at_answer)[0] for part in patch.parts]
        return [any(each) for each in zip(*able, strict=True)] or [False] * len(self.contrasts)

    @cache  # noqa: B019  (lives as long as the pairs)
    def _able(self, site: Site, at_answer: bool) -> tuple[list[bool], bool]:
        """Returns in which contrasts a site can carry anything, and whether it can only at the answer's position."""
        assert self.carrying is not None
        queries, asked = self.carrying[site], self.place + self.runner.tokens_before_answer(self.problems.source)
        here = torch.arange(queries.shape[1], device=queries.device) == asked
        rows = (queries & here if at_answer else queries).any(1)
        able = [bool(rows[self.contrast == number].any()) for number in range(len(self.contrasts))]
        return able, not bool((queries & ~here).any())

    def _simplify(self, patch: Patch) -> Patch:
        """Returns a patch with the same effect: without parts that can carry nothing, and at all positions where others
        than the answer's make no difference."""
        if self.carrying is None or patch.held:
            return patch
        parts = frozenset(part for part in patch.parts if any(self._able(site_of(part), patch.at_answer)[0]))
        only_there = all(self._able(site_of(part), patch.at_answer)[1] for part in parts)
        return Patch(parts, patch.at_answer and not only_there)

    def __call__(self, patches: Sequence[Patch]) -> PatchEffects:
        for patch in patches:
            if patch.at_answer and any(site_of(part).stack == "encoder" for part in patch.parts):
                raise HeadwayError("an encoder does not write the answer; patch it at all positions")

        simple = [self._simplify(patch) for patch in patches]
        distinct = list(dict.fromkeys(simple))
        places = {patch: place for place, patch in enumerate(distinct)}
        logits = self._patched_logits(distinct)[[places[patch] for patch in simple]]  # patch row token
        written = logits.argmax(-1)  # patch row
        flipped = torch.where(self.placebo, written != self.own, written == self.other) & self.known
        whole = self._gap(self.base) - self._gap(self.full)
        moved = (self._gap(self.base) - self._gap(logits)) / whole.where(whole.abs() > 1e-6, 1.0)
        return PatchEffects(flipped, torch.where(self.placebo, 0.0, moved))

    @torch.inference_mode()
    def _patched_logits(self, patches: Sequence[Patch]) -> Float[Tensor, "patch row token"]:
        """Runs each patch on the rows of the contrasts that it can change; other rows keep their logits. Contrasts that
        the same patches can change go together, so that no row is recorded twice."""
        able = [self.can(patch) for patch in patches]
        groups: dict[tuple[int, ...], list[int]] = {}
        for contrast in range(len(self.contrasts)):
            some = tuple(place for place, each in enumerate(able) if each[contrast])
            groups.setdefault(some, []).append(contrast)
        logits = self.base.repeat(len(patches), 1, 1)
        for some, contrasts in groups.items():
            if some:
                wanted = torch.tensor(contrasts, device=self.contrast.device)
                rows = torch.isin(self.contrast, wanted).nonzero()[:, 0]
                own, donors, place = self.problems[rows], self.donors[rows], self.place[rows]
                work = partial(self._patch_rows, own, donors, place, [patches[number] for number in some])
                found = torch.cat(self.runner.map_pieces(work, own), dim=1)
                logits[torch.tensor(some, device=rows.device)[:, None], rows] = found
        return logits

    def _gap(self, logits: Float[Tensor, "*patch row token"]) -> Float[Tensor, "*patch row"]:
        """Returns the logit of each row's own digit minus that of the other problem's digit."""
        digits = (digit.expand(logits.shape[:-1])[..., None] for digit in (self.own, self.other))
        own, other = (logits.gather(-1, digit)[..., 0] for digit in digits)
        return own - other

    @torch.inference_mode()
    def _patch_rows(
        self,
        problems: Problems,
        others: Problems,
        places: Int[Tensor, "every 1"],
        patches: Sequence[Patch],
        rows: slice,
    ) -> Float[Tensor, "patch row token"]:
        place, found = places[rows], [torch.empty(0)] * len(patches)
        own, donors = self._record(problems, others, rows)
        changed = [_changes(patch) for patch in patches]
        replayed = self.runner.replay_each(
            own, changed, lambda some: self._gates([patches[number] for number in some], own, donors, place)
        )
        for number, logits in replayed:
            found[number] = _logits_at(logits, place)
        return torch.stack(found)

    def _record(self, problems: Problems, others: Problems, rows: slice) -> tuple[Recording, Recording]:
        """Records rows of problems and of their donors; where there are few pairs in all, only once."""
        few = len(problems) == len(self.problems) <= KEPT
        if few and rows.start in self.recorded:
            return self.recorded[rows.start]
        found = self.runner.record(problems[rows]), self.runner.record(others[rows])
        if few:
            self.recorded[rows.start] = found
        return found

    def _gates(self, patches: Sequence[Patch], own: Recording, donors: Recording, place: Int[Tensor, "row 1"]) -> Gates:
        """Builds the gates of every row under every patch."""
        gates = {}
        for site in {site_of(part) for patch in patches for part in patch.parts | patch.held}:
            outputs, heads = donors.trace.outputs[site], self.runner.width.get(site, 1)
            passed, replaced = [], []
            for patch in patches:
                closed = _mark_heads(site, heads, patch.parts | patch.held, outputs.device)
                closed = closed.float().expand(*outputs.shape[:2], heads)  # row query head
                if patch.at_answer:
                    queries = torch.arange(outputs.shape[1], device=outputs.device)
                    here = queries == place + self.runner.tokens_before_answer(donors.source)  # row query
                    closed = closed * here[..., None]
                passed.append(1 - closed)
                held = _mark_heads(site, heads, patch.held, outputs.device)[:, None]  # head 1
                replaced.append(torch.where(held, own.trace.outputs[site], outputs) if patch.held else outputs)
            gates[site] = Gate(torch.cat(passed), torch.cat(replaced))
        return gates


def _changes(patch: Patch) -> Changes:
    """Returns the sites that a patch changes, with what it changes there."""
    found: dict[Site, set[tuple[Part, bool, bool]]] = {}
    for part in patch.parts | patch.held:
        found.setdefault(site_of(part), set()).add((part, patch.at_answer, part in patch.held))
    return {site: frozenset(each) for site, each in found.items()}


def _mark_heads(site: Site, heads: int, parts: Closed, device: torch.device) -> Bool[Tensor, " head"]:
    """Returns which heads of a site are among the parts."""
    return torch.tensor([site in parts or Head(site, head) in parts for head in range(heads)], device=device)


def _logits_at(logits: Float[Tensor, "row answer token"], place: Int[Tensor, "row 1"]) -> Float[Tensor, "row token"]:
    """Selects the logits at the answer place of each row."""
    return logits.gather(1, place[..., None].expand(-1, 1, logits.shape[-1]))[:, 0]

"""Activation patching tests what a part carries to the output: its output on one problem is put into another.

The two problems of a pair differ in one thing only (tasks/contrasts.py). When patching a part flips the digit in
question to that of the other problem, the part carries the difference. Each pair is patched in both directions;
placebo pairs show what a patch does by itself. Parts are heads, whole sites and feed-forward blocks; patches are made
at all positions, or only at the position where the digit is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.models import Gate, Gates, Head
from headway.models.rerun import Recording
from headway.models.sites import Closed, site_of
from headway.subjects.subject import Subject
from headway.tasks import Problems
from headway.tasks.problems import Contrast


@dataclass(frozen=True)
class Patch:
    """Parts that get their output from another problem, at every position or only where the answer is written."""

    parts: Closed
    at_answer: bool = False


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
        self.donors = Problems.join([side for c in contrasts for side in (c.other, c.clean)])
        counts = [2 * len(c.clean) for c in contrasts]
        device = self.problems.source.device
        self.contrast = torch.tensor([n for n, count in enumerate(counts) for _ in range(count)], device=device)
        self.forward = torch.cat([torch.arange(count, device=device) < count // 2 for count in counts])
        """whether a row goes from the first problem of a pair to the second"""
        self.place = torch.tensor([c.place for c in contrasts], device=device)[self.contrast][:, None]
        self.placebo = torch.tensor([c.placebo for c in contrasts], device=device)[self.contrast]
        self.own = self.problems.answer.gather(1, self.place)[:, 0]
        self.other = self.donors.answer.gather(1, self.place)[:, 0]
        self.base, self.full = (self._digit_logits(side) for side in (self.problems, self.donors))
        self.known = (self.base.argmax(-1) == self.own) & (self.full.argmax(-1) == self.other)
        """whether the model has the digit of a row right in both problems: only those rows count"""

    def _digit_logits(self, problems: Problems) -> Float[Tensor, "row token"]:
        run = torch.inference_mode()(self.runner.run)
        pieces = self.runner.map_pieces(lambda rows: _logits_at(run(problems[rows]), self.place[rows]), problems)
        return torch.cat(pieces)

    def __call__(self, patches: Sequence[Patch]) -> PatchEffects:
        for patch in patches:
            if patch.at_answer and any(site_of(part).stack == "encoder" for part in patch.parts):
                raise HeadwayError("an encoder does not write the answer; patch it at all positions")

        logits = torch.cat(self.runner.map_pieces(lambda rows: self._patch_rows(rows, patches), self.problems), dim=1)
        written = logits.argmax(-1)  # patch row
        flipped = torch.where(self.placebo, written != self.own, written == self.other) & self.known
        whole = self._gap(self.base) - self._gap(self.full)
        moved = (self._gap(self.base) - self._gap(logits)) / whole.where(whole.abs() > 1e-6, 1.0)
        return PatchEffects(flipped, torch.where(self.placebo, 0.0, moved))

    def _gap(self, logits: Float[Tensor, "*patch row token"]) -> Float[Tensor, "*patch row"]:
        """Returns the logit of each row's own digit minus that of the other problem's digit."""
        digits = (digit.expand(logits.shape[:-1])[..., None] for digit in (self.own, self.other))
        own, other = (logits.gather(-1, digit)[..., 0] for digit in digits)
        return own - other

    @torch.inference_mode()
    def _patch_rows(self, rows: slice, patches: Sequence[Patch]) -> Float[Tensor, "patch row token"]:
        own, donors = (self.runner.record(side[rows]) for side in (self.problems, self.donors))
        place, found = self.place[rows], [torch.empty(0)] * len(patches)
        changed = [{site_of(part) for part in patch.parts} for patch in patches]
        replayed = self.runner.replay_each(
            own, changed, lambda some: self._gates([patches[number] for number in some], donors, place)
        )
        for number, logits in replayed:
            found[number] = _logits_at(logits, place)
        return torch.stack(found)

    def _gates(self, patches: Sequence[Patch], donors: Recording, place: Int[Tensor, "row 1"]) -> Gates:
        """Builds the gates of every row under every patch."""
        gates = {}
        for site in {site_of(part) for patch in patches for part in patch.parts}:
            outputs, heads = donors.trace.outputs[site], self.runner.width.get(site, 1)
            passed = []
            for patch in patches:
                shut = [float(site in patch.parts or Head(site, head) in patch.parts) for head in range(heads)]
                closed = torch.tensor(shut, device=outputs.device).expand(*outputs.shape[:2], heads)  # row query head
                if patch.at_answer:
                    queries = torch.arange(outputs.shape[1], device=outputs.device)
                    here = queries == place + self.runner.tokens_before_answer(donors.source)  # row query
                    closed = closed * here[..., None]
                passed.append(1 - closed)
            gates[site] = Gate(torch.cat(passed), outputs.repeat(len(patches), 1, 1, 1))
        return gates


def _logits_at(logits: Float[Tensor, "row answer token"], place: Int[Tensor, "row 1"]) -> Float[Tensor, "row token"]:
    """Selects the logits at the answer place of each row."""
    return logits.gather(1, place[..., None].expand(-1, 1, logits.shape[-1]))[:, 0]

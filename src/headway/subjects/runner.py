"""How a subject is run under gates: models of Headway's own, and models of users.

A pass is kept with all that a later one can use; `again` goes through it from the first changed site on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from headway.attach.foreign import Foreign
from headway.errors import HeadwayError
from headway.evaluation.examples import even_pieces
from headway.machine import side_by_side
from headway.models import Attention, Gates, Model, Site, Trace
from headway.models.rerun import again, keep, sites_of
from headway.subjects.subject import Subject
from headway.tasks import Problems

Result = TypeVar("Result")
GPU_ROWS = 60_000  # of problems under variants, in one pass


@runtime_checkable
class Kept(Protocol):
    @property
    def logits(self) -> Tensor: ...

    @property
    def trace(self) -> Trace: ...

    def __len__(self) -> int: ...


@runtime_checkable
class Passes(Protocol):
    @property
    def sites(self) -> Sequence[Site]:
        """All that can be closed, in the order of the forward pass."""
        ...

    @property
    def width(self) -> dict[Site, int]: ...

    def keep(self, problems: Problems, gates: Gates | None) -> Kept: ...

    def again(self, kept: Any, gates: Gates, first: Site, variants: int) -> Tensor: ...

    def at_once(self, kept: Any, left: int) -> int:
        """How many of the variants that are left go into the next pass."""
        ...

    def each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        """The results of `work` for problems in pieces that fit."""
        ...


def passes_of(subject: Subject) -> Passes:
    if isinstance(subject.model, Foreign):
        return ForeignPasses(subject.model)
    if isinstance(subject.model, Model):
        return OwnPasses(subject.model)
    raise HeadwayError(
        f"{subject.name} has a {type(subject.model).__name__}, and says nothing of its sites; give Subject(sites=…), "
        "such as sites='auto' or sites=['*.linear_out']"
    )


class OwnPasses:
    def __init__(self, model: Model) -> None:
        self.model, self.sites = model, sites_of(model)
        self.width = {m.site: m.heads for m in model.modules() if isinstance(m, Attention)}

    def keep(self, problems: Problems, gates: Gates | None) -> Kept:
        return keep(self.model, problems.source, problems.answer, gates or None)

    def again(self, kept: Any, gates: Gates, first: Site, variants: int) -> Tensor:
        return again(self.model, kept, gates, first, variants)

    def at_once(self, kept: Kept, left: int) -> int:
        return 1 if kept.logits.device.type == "cpu" else max(1, GPU_ROWS // len(kept))

    def each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        return side_by_side(work, even_pieces(problems), problems.source.device)


class ForeignPasses:
    """One piece after the other: while it runs, a user's model is in no state to run twice."""

    def __init__(self, model: Foreign) -> None:
        self.model, self.sites, self.width = model, model.attached.sites, model.attached.width
        self.most: int | None = None
        """problems in one pass, once memory has run out"""

    def keep(self, problems: Problems, gates: Gates | None) -> Kept:
        return self.model.keep(problems.source, problems.answer, gates or None)

    def again(self, kept: Any, gates: Gates, first: Site, variants: int) -> Tensor:
        stacking = self.model.stacking
        if not stacking.trying:
            return self.model.again(kept, gates, first, variants)
        began = time.perf_counter()
        logits = self.model.again(kept, gates, first, variants)
        if logits.is_cuda:
            torch.cuda.synchronize()
        stacking.took(variants, time.perf_counter() - began)
        return logits

    def at_once(self, kept: Any, left: int) -> int:
        fitting = self.model.rows(kept.source, kept.answer) // len(kept)
        return self.model.stacking.size(max(1, min(left, fitting)))

    def each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        with self.model.many_passes():
            if not self.model.checked:
                self.model.check_again(problems[self.model.slices(problems)[0]])
            return self._each(work, problems)

    def _each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        done, waiting = [], self.model.slices(problems, self.most)
        while waiting:
            piece = waiting.pop(0)
            try:
                done.append(work(piece))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                rows = piece.stop - piece.start
                if not _is_memory(error) or rows == 1:
                    raise
                self.most = rows // 2
                self.model.stacking.stay_small()
                print(f"out of memory: going on with {self.most} problems at a time", file=sys.stderr)
                rest = problems[piece.start :]
                moved = [slice(s.start + piece.start, s.stop + piece.start) for s in self.model.slices(rest, self.most)]
                waiting = moved
        return done


def _is_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)

"""Users' models as studies run them: with gates, and again from a changed layer on.

What lies before the first changed layer is the same for every variant: it is computed once and recorded, and the layers
before it are not run. Neither is the attention of the changed site itself: of it only the gates and the projection are
computed again. Where a model has no list of layers, or goes through one twice, everything is run again.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headway.attach.intervention import Attached, Intervention, fitting
from headway.attach.projections import child
from headway.attach.recording import first_tensor, map_tensors, recorded_calls, repeat, returning
from headway.errors import HeadwayError
from headway.evaluation.verdicts import Logits
from headway.models import Gate, Gates, Site, Trace
from headway.models.attention import gated
from headway.models.rerun import Recording
from headway.subjects.ragged import lengths_of, most_common_length, trim
from headway.subjects.runner import MEMORY, Result, Runner
from headway.subjects.subject import Reader
from headway.tasks import Problems

KEYS_VALUES = ("k_proj", "v_proj", "k", "v", "key", "value", "k_lin", "v_lin")
"""what the layers for keys and values are called"""


class Stacking:
    """How many variants go best in one pass: tried, not guessed. The first passes are made in several sizes and timed;
    what they compute is used."""

    def __init__(self) -> None:
        self.ahead = [1, 1, 2, 4]  # the first pass is slow for other reasons
        self.spent: dict[int, float] = {}
        """seconds a variant, by size"""

    def size(self, most: int) -> int:
        """Of the next pass, which may hold no more than `most`."""
        if self.ahead and self.ahead[0] <= most:
            return self.ahead[0]
        return max((size for size in self.spent if size <= most), key=lambda size: -self.spent[size], default=1)

    def took(self, size: int, seconds: float) -> None:
        if self.ahead and self.ahead[0] == size:
            self.ahead.pop(0)
            self.spent[size] = min(self.spent.get(size, math.inf), seconds / size)

    def stay_small(self) -> None:
        """One at a time from now on: memory has run out."""
        self.ahead, self.spent = [], {1: 0.0}


class UserRunner(Runner):
    """Runs a user's model, one piece after the other: while it runs, it is in no state to run twice. Nothing in it is
    ever changed."""

    varied_lengths = True
    is_attached = True

    def __init__(self, attached: Attached, reader: Reader, memory: int = MEMORY, name: str = "") -> None:
        super().__init__(attached.model, name or type(attached.model).__name__)
        self.attached, self.reader, self.memory = attached, reader, memory
        self.width = attached.width
        self.layers = list(dict.fromkeys(attached.blocks[site] for site in attached.sites if site in attached.blocks))
        """in the order of the forward pass"""
        crossing = [attached.owners[site] for site in attached.sites if site.kind == "cross" and site.layer is not None]
        named = [f"{owner}.{name}" for owner in crossing for name in KEYS_VALUES]
        self.across = [path for path in named if child(attached.model, path) is not None]
        """what makes keys and values of the source for the decoder"""
        self.reusable: dict[Site, str] = {}
        """of each site whose attention need not be computed again: what its module returns, 'output' or 'heads'"""
        self.stacking = Stacking()
        self.intervention: Intervention | None = None
        """in force while many passes are made one after the other"""
        self.most: int | None = None
        """problems in one pass, once memory has run out"""
        self.checked = False
        """whether replays were compared with whole passes"""
        self.skips = True
        """whether anything may be left out of a replay"""

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.attached.sites

    def run(self, problems: Problems, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        read = partial(self.reader, self.model, problems.source, problems.answer)
        if self.intervention is None:
            return self.attached.run(read, gates, trace)
        self.attached.check(gates or {})
        self.intervention.gates, self.intervention.trace = gates or {}, trace
        self.intervention.fired.clear()
        return read()

    def record(self, problems: Problems, gates: Gates | None = None) -> Recording:
        trace, owners = Trace(), [self.attached.owners[site] for site in self.attached.sites]
        with recorded_calls(self.model, [*self.layers, *owners, *self.across]) as (returned, twice):
            logits = self.run(problems, gates, trace)
        if self.intervention is not None:  # what follows is no part of the pass
            self.intervention.gates, self.intervention.trace = {}, None
        if twice & set(self.layers):
            self.layers = []
        if not self.skips:
            return Recording(problems.source, problems.answer, logits, trace)
        for site in self.attached.sites:
            if self.attached.owners[site] not in twice:
                self._look(site, trace, returned)
        trace.maps.clear()
        return Recording(problems.source, problems.answer, logits, trace, returned=returned)

    def _look(self, site: Site, trace: Trace, returned: Mapping[str, Any]) -> None:
        """Whether what an attention module returns is its heads side by side, or their projection and nothing more."""
        z, output = trace.outputs[site], first_tensor(returned.get(self.attached.owners[site]))
        projection = self.attached.projections[site]
        if site in self.reusable or output is None or projection.layout == "head dim out" or len(z) != len(output):
            return
        map_in_threads = z.flatten(2)
        if output.shape == map_in_threads.shape and torch.equal(output, map_in_threads):
            self.reusable[site] = "heads"
        elif self.attached.owners[site] != projection.path:
            projected = projection.module(map_in_threads)
            if isinstance(projected, Tensor) and projected.shape == output.shape and torch.equal(projected, output):
                self.reusable[site] = "output"

    def replay(self, recording: Recording, gates: Gates, first: Site, variants: int = 1) -> Logits:
        began = time.perf_counter()
        logits = self._replay(recording, gates, first, variants)
        if self.checked and self.stacking.ahead:
            if logits.is_cuda:
                torch.cuda.synchronize()
            self.stacking.took(variants, time.perf_counter() - began)
        return logits

    def _replay(self, recording: Recording, gates: Gates, first: Site, variants: int) -> Tensor:
        returned, layer = recording.returned, self.attached.blocks.get(first)
        before = self.layers[: self.layers.index(layer)] if layer in self.layers else []
        repeated = partial(repeat, rows=len(recording), variants=variants)

        def changed() -> Any:
            """What the attention module of the changed site returns: the same but for its heads."""
            z, gate = repeated(recording.trace.outputs[first]), gates.get(first)
            z = (z if gate is None else gated(z, fitting(gate, first, z))).flatten(2)
            output = z if self.reusable[first] == "heads" else self.attached.projections[first].module(z)
            whole = returned[self.attached.owners[first]]
            own = first_tensor(whole)
            return map_tensors(whole, lambda each: output if each is own else repeated(each))

        left_out = before if first.stack == "encoder" else [*before, *self.across]  # the source is read as before
        given = {path: partial(map_tensors, returned[path], repeated) for path in left_out if path in returned}
        if first in self.reusable:
            given = {**given, self.attached.owners[first]: changed}
        with ExitStack() as stack:
            for path, output in given.items():
                stack.enter_context(returning(self.model, path, output))
            return self.run(Problems(repeated(recording.source), repeated(recording.answer)), gates)

    @torch.no_grad()
    def check_replay(self, problems: Problems) -> None:
        """Compares replays with whole passes, for a head in the middle and one at the end. A model whose layers change
        what they are given, or return what cannot be repeated, is run as a whole, one variant at a time."""
        few, sites = trim(problems[:2]), self.attached.sites
        try:
            recording = self.record(few)
            right = all(self._agrees(recording, site) for site in {sites[len(sites) // 2], sites[-1]})
        except HeadwayError:
            raise
        except Exception:  # whatever a model may raise at what it did not return itself
            right = False
        if not right:
            self.layers, self.across, self.reusable = [], [], {}
            self.skips = False
            self.stacking.stay_small()
        self.checked = True

    def _agrees(self, recording: Recording, site: Site) -> bool:
        passed = torch.ones(1, self.width[site], device=recording.source.device)
        passed[0, -1] = 0
        whole = self.run(Problems(recording.source, recording.answer), {site: Gate(passed)})
        near = 1e-4 if whole.dtype in (torch.float32, torch.float64) else 0.1

        def same(logits: Tensor, wanted: Tensor) -> bool:
            size = max(1.0, float(wanted.abs().max()))
            return logits.shape == wanted.shape and float((logits - wanted).abs().max()) <= near * size

        if not same(self.replay(recording, {site: Gate(passed)}, site), whole):
            return False
        try:
            stacked = {site: Gate(passed.expand(2 * len(recording), -1))}
            alike = same(self.replay(recording, stacked, site, 2), torch.cat((whole, whole)))
        except Exception:  # as above
            alike = False
        if not alike:
            self.stacking.stay_small()
        return True

    def variants_at_once(self, recording: Recording, left: int) -> int:
        fitting = self.rows(Problems(recording.source, recording.answer)) // len(recording)
        return self.stacking.size(max(1, min(left, fitting)))

    def each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        self.intervention = Intervention({}, None)  # hooks are set once for all passes; maps are not seen
        try:
            with self.attached.opened(self.intervention):
                return self._each(work, problems)
        finally:
            self.intervention = None

    def _each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        done, waiting = [], self.pieces(problems)
        if not self.checked:
            self.check_replay(problems[waiting[0]])
        while waiting:
            piece = waiting.pop(0)
            try:
                done.append(work(piece))
            except RuntimeError as error:
                rows, full = piece.stop - piece.start, isinstance(error, torch.OutOfMemoryError)
                if rows == 1 or not (full or "allocate memory" in str(error)):
                    raise
                self.most = rows // 2
                self.stacking.stay_small()
                print(f"out of memory: going on with {self.most} problems at a time", file=sys.stderr)
                rest = self.pieces(problems[piece.start :])
                waiting = [slice(own.start + piece.start, own.stop + piece.start) for own in rest]
        return done

    def pieces(self, problems: Problems) -> list[slice]:
        lengths = lengths_of(problems)
        changes = [0, *(lengths[1:] != lengths[:-1]).nonzero()[:, 0].add(1).tolist(), len(problems)]
        found = []
        for first, last in pairwise(changes):
            rows = min(self.rows(trim(problems[first:last])), self.most or len(problems))
            found += [slice(start, min(start + rows, last)) for start in range(first, last, rows)]
        return found

    def trim(self, problems: Problems) -> Problems:
        return trim(problems)

    def rows(self, problems: Problems) -> int:
        return max(1, self.memory // self.bytes_of(problems.source, problems.answer))

    def one_length(self, problems: Problems, with_maps: bool = False) -> Problems:
        found = most_common_length(problems, len(problems))
        tokens = found.source.shape[1] + found.answer.shape[1]
        most = self.memory // (4 * sum(self.width.values()) * tokens**2)
        return found[: max(1, most)] if with_maps else found

    def bytes_of(self, source: Tensor, answer: Tensor) -> int:
        """What one problem under one variant takes, on the safe side."""
        config, size = getattr(self.model, "config", None), next(self.model.parameters()).element_size()
        width = max((p.heads * p.dim for p in self.attached.projections.values()), default=1)
        tokens = source.shape[1] + answer.shape[1]
        words = getattr(config, "vocab_size", 0) or answer.max().item() + 1
        logits = 4 * answer.shape[1] * words  # themselves, their softmax, and what lies between
        recorded = 3 * len(self.attached.sites) * tokens * width
        inside = tokens * (16 * width + 2 * tokens * max(self.width.values(), default=1))
        return int(size * (logits + recorded + inside))

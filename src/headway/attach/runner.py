"""UserRunner: runs a user's model with gates, and replays a recorded pass from the first changed layer on.

What precedes the first changed layer is the same for every variant: it is computed once and recorded, and these layers
do not run in a replay. Neither does the attention of the changed site: only its gates and its output projection are
recomputed. A model without a list of layers, or one that runs a layer twice, is run as a whole.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from headway.attach.intervention import Attached, Intervention, fit_gate
from headway.attach.narrowing import prove_narrowing
from headway.attach.projections import child
from headway.attach.recording import first_tensor, map_tensors, override_output, record_calls, repeat
from headway.attach.whole import ReaderRunner
from headway.errors import HeadwayError
from headway.evaluation.verdicts import Logits
from headway.models import Gate, Gates, Site, Trace
from headway.models.attention import apply_gate
from headway.models.rerun import Recording
from headway.subjects.ragged import lengths_of, most_common_length, trim
from headway.subjects.runner import MEMORY, Result
from headway.subjects.subject import Reader
from headway.tasks import Problems

PROVED_ON = 4  # problems that narrowing is proved on
KEYS_VALUES = ("k_proj", "v_proj", "k", "v", "key", "value", "k_lin", "v_lin")
"""common names of the layers for keys and values"""


class Stacking:
    """Chooses how many variants to stack in one pass by timing: the first passes have several sizes, and their results
    are used."""

    def __init__(self) -> None:
        self.sizes_to_try = [1, 1, 2, 4]  # the first pass is a warm-up
        self.seconds: dict[int, float] = {}
        """seconds for each variant, by size"""

    def size(self, most: int) -> int:
        """Returns the size of the next pass, at most `most`."""
        if self.sizes_to_try and self.sizes_to_try[0] <= most:
            return self.sizes_to_try[0]
        return max((size for size in self.seconds if size <= most), key=lambda size: -self.seconds[size], default=1)

    def add_timing(self, size: int, seconds: float) -> None:
        if self.sizes_to_try and self.sizes_to_try[0] == size:
            self.sizes_to_try.pop(0)
            self.seconds[size] = min(self.seconds.get(size, math.inf), seconds / size)

    def stop_stacking(self) -> None:
        """Runs one variant at a time from now on."""
        self.sizes_to_try, self.seconds = [], {1: 0.0}


class UserRunner(ReaderRunner):
    """Runs a user's model, one piece after the other, as hooks allow no concurrent runs. The model itself is never
    changed."""

    varied_lengths = True
    is_attached = True

    def __init__(self, attached: Attached, reader: Reader, memory: int = MEMORY, name: str = "") -> None:
        super().__init__(attached.model, reader, name)
        self.attached, self.memory = attached, memory
        self.width, self.groups = attached.width, attached.groups
        self.layers = list(dict.fromkeys(attached.blocks[site] for site in attached.sites if site in attached.blocks))
        """in the order of the forward pass"""
        crossing = [attached.owners[site] for site in attached.sites if site.kind == "cross" and site.layer is not None]
        named = [f"{owner}.{name}" for owner in crossing for name in KEYS_VALUES]
        self.cross_projections = [path for path in named if child(attached.model, path) is not None]
        """the layers that compute the cross-attentions' keys and values from the source"""
        self.reusable: dict[Site, str] = {}
        """the sites whose attention need not be recomputed, with what the module returns: 'output' or 'heads'"""
        self.stacking = Stacking()
        self.intervention: Intervention | None = None
        """installed for a series of passes"""
        self.checked = False
        """whether replays have been compared with whole passes"""
        self.scores_held = 2
        """numbers that are in memory for each query and key of a head; more where masks are narrowed"""
        self.skips = True
        """whether a replay may skip layers"""

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
        with record_calls(self.model, [*self.layers, *owners, *self.cross_projections]) as (returned, twice):
            logits = self.run(problems, gates, trace)
        if self.intervention is not None:  # what follows is not part of the pass
            self.intervention.gates, self.intervention.trace = {}, None
        if twice & set(self.layers):
            self.layers = []
        if not self.skips:
            return Recording(problems.source, problems.answer, logits, trace)
        for site in self.attached.sites:
            if self.attached.owners[site] not in twice:
                self._find_reusable_output(site, trace, returned)
        trace.maps.clear()
        return Recording(problems.source, problems.answer, logits, trace, returned=returned)

    def _find_reusable_output(self, site: Site, trace: Trace, returned: Mapping[str, Any]) -> None:
        """Finds out whether an attention module returns exactly its concatenated heads, or exactly their projection."""
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
        if self.checked and self.stacking.sizes_to_try:
            if logits.is_cuda:
                torch.cuda.synchronize()
            self.stacking.add_timing(variants, time.perf_counter() - began)
        return logits

    def _replay(self, recording: Recording, gates: Gates, first: Site, variants: int) -> Tensor:
        returned, layer = recording.returned, self.attached.blocks.get(first)
        before = self.layers[: self.layers.index(layer)] if layer in self.layers else []
        repeated = partial(repeat, rows=len(recording), variants=variants)

        def changed_output() -> Any:
            """Returns the recorded output of the changed site's attention module, with its heads gated."""
            z, gate = repeated(recording.trace.outputs[first]), gates.get(first)
            z = (z if gate is None else apply_gate(z, fit_gate(gate, first, z))).flatten(2)
            output = z if self.reusable[first] == "heads" else self.attached.projections[first].module(z)
            whole = returned[self.attached.owners[first]]
            main = first_tensor(whole)
            return map_tensors(whole, lambda each: output if each is main else repeated(each))

        skipped = before if first.stack == "encoder" else [*before, *self.cross_projections]  # the source is the same
        given = {path: partial(map_tensors, returned[path], repeated) for path in skipped if path in returned}
        narrows = first in gates and gates[first].narrowing is not None  # then its attention runs again
        if first in self.reusable and not narrows:
            given = {**given, self.attached.owners[first]: changed_output}
        with ExitStack() as stack:
            for path, output in given.items():
                stack.enter_context(override_output(self.model, path, output))
            return self.run(Problems(repeated(recording.source), repeated(recording.answer)), gates)

    @torch.no_grad()
    def check_replay(self, problems: Problems) -> None:
        """Compares replays with whole passes, for a head in the middle and one at the end. A model whose layers modify
        their inputs, or return what cannot be repeated, is run as a whole, one variant at a time."""
        few, sites = trim(problems[:2]), self.attached.sites
        try:
            recording = self.record(few)
            right = all(self._replay_matches(recording, site) for site in {sites[len(sites) // 2], sites[-1]})
        except HeadwayError:
            raise
        except Exception:  # a model may raise anything on outputs that it did not compute
            right = False
        if not right:
            self.layers, self.cross_projections, self.reusable = [], [], {}
            self.skips = False
            self.stacking.stop_stacking()
        self.checked = True

    def _replay_matches(self, recording: Recording, site: Site) -> bool:
        passed = torch.ones(1, self.width[site], device=recording.source.device)
        passed[0, -1] = 0
        whole = self.run(Problems(recording.source, recording.answer), {site: Gate(passed)})
        tolerance = 1e-4 if whole.dtype in (torch.float32, torch.float64) else 0.1

        def same(logits: Tensor, expected: Tensor) -> bool:
            size = max(1.0, float(expected.abs().max()))
            return logits.shape == expected.shape and float((logits - expected).abs().max()) <= tolerance * size

        if not same(self.replay(recording, {site: Gate(passed)}, site), whole):
            return False
        try:
            stacked = {site: Gate(passed.expand(2 * len(recording), -1))}
            equal = same(self.replay(recording, stacked, site, 2), torch.cat((whole, whole)))
        except Exception:  # as above
            equal = False
        if not equal:
            self.stacking.stop_stacking()
        return True

    def prove_narrowing(self, problems: Problems, sites: Collection[Site]) -> None:
        few, self.scores_held = most_common_length(problems, PROVED_ON), 5
        prove_narrowing(self.attached, self.reader, few, tuple(site for site in self.sites if site in sites))

    def variants_at_once(self, recording: Recording, left: int) -> int:
        fitting = self.rows_per_pass(Problems(recording.source, recording.answer)) // len(recording)
        return self.stacking.size(max(1, min(left, fitting)))

    def map_pieces(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        self.intervention = Intervention({}, None)  # hooks are installed once for all passes; maps are not recorded
        try:
            with self.attached.install(self.intervention):
                return self._map_pieces(work, problems)
        finally:
            self.intervention = None

    def _map_pieces(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        if not self.checked:
            self.check_replay(problems[self.pieces(problems)[0]])
        return super().map_pieces(work, problems)

    def shrink(self, rows: int) -> None:
        super().shrink(rows)
        self.stacking.stop_stacking()

    def pieces(self, problems: Problems) -> list[slice]:
        lengths = lengths_of(problems)
        changes = [0, *(lengths[1:] != lengths[:-1]).nonzero()[:, 0].add(1).tolist(), len(problems)]
        found = []
        for first, last in pairwise(changes):
            rows = min(self.rows_per_pass(trim(problems[first:last])), self.most or len(problems))
            found += [slice(start, min(start + rows, last)) for start in range(first, last, rows)]
        return found

    def trim(self, problems: Problems) -> Problems:
        return trim(problems)

    def rows_per_pass(self, problems: Problems) -> int:
        return max(1, self.memory // self.bytes_of(problems.source, problems.answer))

    def select_one_length(self, problems: Problems, with_maps: bool = False) -> Problems:
        found = most_common_length(problems, len(problems))
        tokens = found.source.shape[1] + found.answer.shape[1]
        most = self.memory // (4 * sum(self.width.values()) * tokens**2)
        return found[: max(1, most)] if with_maps else found

    def bytes_of(self, source: Tensor, answer: Tensor) -> int:
        """Returns an upper estimate of the memory of one problem under one variant."""
        config, size = getattr(self.model, "config", None), next(self.model.parameters()).element_size()
        width = max((p.heads * p.dim for p in self.attached.projections.values()), default=1)
        tokens = source.shape[1] + answer.shape[1]
        words = getattr(config, "vocab_size", 0) or answer.max().item() + 1
        logits = 4 * answer.shape[1] * words  # the logits, their softmax and intermediate results
        recorded = 3 * len(self.attached.sites) * tokens * width
        inside = tokens * (16 * width + self.scores_held * tokens * max(self.width.values(), default=1))
        return int(size * (logits + recorded + inside))

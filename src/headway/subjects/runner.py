"""Runners: run a subject's model with heads closed, and replay a recorded pass from the first changed site on.

There is one runner for Headway's models (here) and one for users' models (attach/runner.py); studies call the runner
and need not know which it is. `record` runs a pass and stores what later passes can reuse; `replay` recomputes only
what follows the first changed site.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.evaluation.exact import device_of
from headway.evaluation.examples import batch_slices, even_pieces
from headway.evaluation.verdicts import Logits
from headway.machine import map_in_threads
from headway.models import Attention, Gate, Gates, Head, Model, Site, Trace
from headway.models.attention import FEW_KEYS
from headway.models.influence import Queries, carrying_queries
from headway.models.rerun import Recording, record, replay, replay_and_record, sites_of
from headway.subjects.sharing import Changes, plan_passes
from headway.tasks import Problems

Result = TypeVar("Result")
MEMORY = 2**30
"""default limit, in bytes, on the memory of one pass of a user's model"""
GPU_ROWS = 60_000  # rows in one pass: problems times variants


class Runner:
    """Runs a model without known sites: always whole, with no head closed."""

    varied_lengths = False
    """whether a table may hold problems of several lengths; each pass then takes problems of one length"""
    is_attached = False
    """whether this is a user's model with known sites"""
    searchable = False
    """whether all subsets of its heads can be searched"""

    def __init__(self, model: nn.Module, name: str = "") -> None:
        self.model, self.name = model, name
        self.width: dict[Site, int] = {}
        """number of heads of each attention site"""
        self.groups: Mapping[Site, int] = {}
        """number of key-value groups of each site whose heads share keys and values"""

    @property
    def sites(self) -> Sequence[Site]:
        """The sites that can be closed, in the order of the forward pass."""
        raise HeadwayError(
            f"{self.name}: the sites of its {type(self.model).__name__} are not known; give Subject(sites=…), "
            "such as sites='auto' or sites=['*.linear_out']"
        )

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(site, number) for site, count in self.width.items() for number in range(count))

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

    def tokens_before_answer(self, source: Tensor) -> int:
        """Returns how many tokens precede the answer in the stack that writes it."""
        return 0

    def carrying_queries(self, problems: Problems, donors: Problems, place: Tensor) -> Mapping[Site, Queries] | None:
        """Returns, for each site, the queries that may carry the difference between a problem and its donor to the
        answer token at `place`; None if that cannot be derived, so that every site may."""
        return None

    def close_heads(self, heads: Collection[Head]) -> Gates:
        """Returns gates that are closed for these heads and open for all others."""
        rows = {
            site: [Head(site, number) not in heads for number in range(count)] for site, count in self.width.items()
        }
        return {site: Gate(torch.tensor([row], dtype=torch.float, device=self.device)) for site, row in rows.items()}

    def prove_narrowing(self, problems: Problems, sites: Collection[Site]) -> None:
        """Raises where heads of these sites cannot be narrowed; a user's model proves it on a few of the problems."""

    def run(self, problems: Problems, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        """Returns the logits of every answer token, in one pass."""
        return self.model(problems.source, problems.answer)

    def logits(self, problems: Problems, gates: Gates | None = None) -> Logits:
        """Returns the logits of any number of problems, in as many passes as they need."""
        return torch.cat([self.run(problems[piece], gates) for piece in self.pieces(problems)])

    def record(self, problems: Problems, gates: Gates | None = None) -> Recording:
        """Runs a pass and stores everything that a replay can reuse."""
        raise NotImplementedError

    def replay(self, recording: Recording, gates: Gates, first: Site, variants: int = 1) -> Logits:
        """Returns the logits under `gates`; before `first` they must equal the gates of the recorded pass.

        Gates have one row for all, or a row for each problem under each variant, the first variant's rows first.
        """
        raise NotImplementedError

    def replay_each(
        self, recording: Recording, changed: Sequence[Changes], gates: Callable[[Sequence[int]], Gates]
    ) -> Iterator[tuple[int, Logits]]:
        """Yields the number and the logits of each variant. `changed` has the sites that each variant changes, each
        with what is changed there; `gates` returns the gates of some variants. Variants with the same first changed
        site share passes."""
        order = {site: place for place, site in enumerate(self.sites)}
        groups: dict[Site | None, list[int]] = {}
        for number, sites in enumerate(changed):
            groups.setdefault(min(sites, key=order.__getitem__, default=None), []).append(number)
        for number in groups.pop(None, []):
            yield number, recording.logits
        for first, waiting in groups.items():
            assert first is not None
            while waiting:
                at_once = self.variants_at_once(recording, len(waiting))
                some, waiting = waiting[:at_once], waiting[at_once:]
                logits = self.replay(recording, gates(some), first, len(some))
                yield from zip(some, logits.split(len(recording)), strict=True)

    def variants_at_once(self, recording: Recording, left: int) -> int:
        """Returns how many of the `left` remaining variants go into the next pass."""
        return 1

    def map_pieces(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        """Calls `work` with each piece of the problems that fits in one pass, and returns the results."""
        return [work(piece) for piece in self.pieces(problems)]

    def pieces(self, problems: Problems) -> list[slice]:
        """Splits the problems into slices of rows, one for each pass, in order."""
        return batch_slices(problems)

    def batches(self, problems: Problems) -> list[Problems]:
        """Returns the problems of each piece, without padding."""
        return [self.trim(problems[piece]) for piece in self.pieces(problems)]

    def trim(self, problems: Problems) -> Problems:
        """Removes the padding from the problems of one piece."""
        return problems

    def rows_per_pass(self, problems: Problems) -> int:
        """Returns how many of these problems fit in one pass."""
        return len(problems)

    def select_one_length(self, problems: Problems, with_maps: bool = False) -> Problems:
        """Selects the problems of the most common length; `with_maps` only as many as have maps that fit in memory."""
        return problems


class HeadwayRunner(Runner):
    """Runs one of Headway's models."""

    searchable = True

    def __init__(self, model: Model, name: str = "") -> None:
        super().__init__(model, name)
        self.model: Model = model
        self._sites = tuple(sites_of(model))
        self.width = {m.site: m.heads for m in model.modules() if isinstance(m, Attention)}

    @property
    def sites(self) -> Sequence[Site]:
        return self._sites

    def tokens_before_answer(self, source: Tensor) -> int:
        return self.model.tokens_before_answer(source)

    def carrying_queries(self, problems: Problems, donors: Problems, place: Tensor) -> Mapping[Site, Queries] | None:
        one, two = ((side.source, side.answer) for side in (problems, donors))
        return carrying_queries(self.model, one, two, place)

    def run(self, problems: Problems, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        return self.model(problems.source, problems.answer, gates, trace)

    def record(self, problems: Problems, gates: Gates | None = None) -> Recording:
        return record(self.model, problems.source, problems.answer, gates or None)

    def replay(self, recording: Recording, gates: Gates, first: Site, variants: int = 1) -> Logits:
        return replay(self.model, recording, gates, first, variants)

    def replay_each(
        self, recording: Recording, changed: Sequence[Changes], gates: Callable[[Sequence[int]], Gates]
    ) -> Iterator[tuple[int, Logits]]:
        """Yields the logits of each variant. On a CPU variants that change the same early sites in the same way share
        the pass up to the first site where they differ."""
        tokens = recording.source.shape[1] + recording.answer.shape[1]
        if recording.logits.device.type != "cpu" or tokens > FEW_KEYS:  # a recorded pass computes the maps
            yield from super().replay_each(recording, changed, gates)
            return
        kept = {0: recording}
        for step in plan_passes(changed, self.sites):
            source = kept[step.source]
            if step.first is None:
                yield step.variant, source.logits
                continue
            own = gates([step.variant])
            if step.keep is None:
                yield step.variant, replay(self.model, source, own, step.first)
            else:
                kept = {depth: each for depth, each in kept.items() if depth < step.keep}
                kept[step.keep] = again = replay_and_record(self.model, source, own, step.first)
                yield step.variant, again.logits

    def variants_at_once(self, recording: Recording, left: int) -> int:
        return 1 if recording.logits.device.type == "cpu" else max(1, GPU_ROWS // len(recording))

    def map_pieces(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        return map_in_threads(work, even_pieces(problems), problems.source.device)

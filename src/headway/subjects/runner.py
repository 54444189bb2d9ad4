"""How a subject's model is run: with heads closed, and again from the first changed site on.

There is one runner for Headway's models (here) and one for users' (attach/runner.py); whoever studies a subject asks
its runner and need not know which it is. A pass is recorded with all that a later one can use; `replay` goes through it
from the first changed site on.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.evaluation.examples import batch_slices, even_pieces
from headway.evaluation.verdicts import Logits
from headway.machine import map_in_threads
from headway.models import Attention, Gate, Gates, Head, Model, Site, Trace
from headway.models.rerun import Recording, record, replay, sites_of
from headway.tasks import Problems

Result = TypeVar("Result")
MEMORY = 2**30
"""bytes that a pass of a user's model may take, where nothing else is said"""
GPU_ROWS = 60_000  # of problems under variants, in one pass


class Runner:
    """Runs a model that says nothing of its sites: as a whole, with nothing closed."""

    varied_lengths = False
    """whether a table may hold problems of several lengths, of which a pass takes those of one"""
    is_attached = False
    """whether it is a user's model whose sites were found"""
    searchable = False
    """whether all sets of its heads can be searched"""

    def __init__(self, model: nn.Module, name: str = "") -> None:
        self.model, self.name = model, name
        self.width: dict[Site, int] = {}
        """how many heads each attention site has"""

    @property
    def sites(self) -> Sequence[Site]:
        """All that can be closed, in the order of the forward pass."""
        raise HeadwayError(
            f"{self.name} has a {type(self.model).__name__}, and says nothing of its sites; give Subject(sites=…), "
            "such as sites='auto' or sites=['*.linear_out']"
        )

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(site, number) for site, count in self.width.items() for number in range(count))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def before_answer(self, source: Tensor) -> int:
        """How many tokens come before the answer in the stack that writes it."""
        return 0

    def close(self, heads: Collection[Head]) -> Gates:
        """Gates that are shut for these heads and open for all others."""
        rows = {
            site: [Head(site, number) not in heads for number in range(count)] for site, count in self.width.items()
        }
        return {site: Gate(torch.tensor([row], dtype=torch.float, device=self.device)) for site, row in rows.items()}

    def run(self, problems: Problems, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        """The logits of every answer token, in one pass."""
        return self.model(problems.source, problems.answer)

    def logits(self, problems: Problems, gates: Gates | None = None) -> Logits:
        """The same for any number of problems, in as many passes as it takes."""
        return torch.cat([self.run(problems[piece], gates) for piece in self.pieces(problems)])

    def record(self, problems: Problems, gates: Gates | None = None) -> Recording:
        """A pass with everything in it that a later one can use."""
        raise NotImplementedError

    def replay(self, recording: Recording, gates: Gates, first: Site, variants: int = 1) -> Logits:
        """The logits under `gates`, of which none before `first` differs from those of the recorded pass.

        Gates have a row for every problem under every variant, those of the first variant first; or one row for all.
        """
        raise NotImplementedError

    def replay_each(
        self, recording: Recording, changed: Sequence[Collection[Site]], gates: Callable[[Sequence[int]], Gates]
    ) -> Iterator[tuple[int, Logits]]:
        """The number and the logits of each variant, which changes those sites; `gates` are those of some variants.
        Variants whose first changed site is the same share passes."""
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
        """How many of the variants that are left go into the next pass."""
        return 1

    def each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        """The results of `work` for the problems in pieces that fit."""
        return [work(piece) for piece in self.pieces(problems)]

    def pieces(self, problems: Problems) -> list[slice]:
        """Rows for one pass each, in order."""
        return batch_slices(problems)

    def batches(self, problems: Problems) -> list[Problems]:
        """The problems of each piece, nothing in them padded."""
        return [self.trim(problems[piece]) for piece in self.pieces(problems)]

    def trim(self, problems: Problems) -> Problems:
        """Problems of one piece without what none of them has."""
        return problems

    def rows(self, problems: Problems) -> int:
        """How many of these problems fit into one pass."""
        return len(problems)

    def one_length(self, problems: Problems, with_maps: bool = False) -> Problems:
        """Problems of the commonest length; with maps no more of them than their maps fit into memory."""
        return problems


class HeadwayRunner(Runner):
    """Runs a model of Headway's own."""

    searchable = True

    def __init__(self, model: Model, name: str = "") -> None:
        super().__init__(model, name)
        self.model: Model = model
        self._sites = tuple(sites_of(model))
        self.width = {m.site: m.heads for m in model.modules() if isinstance(m, Attention)}

    @property
    def sites(self) -> Sequence[Site]:
        return self._sites

    def before_answer(self, source: Tensor) -> int:
        return self.model.before_answer(source)

    def run(self, problems: Problems, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        return self.model(problems.source, problems.answer, gates, trace)

    def record(self, problems: Problems, gates: Gates | None = None) -> Recording:
        return record(self.model, problems.source, problems.answer, gates or None)

    def replay(self, recording: Recording, gates: Gates, first: Site, variants: int = 1) -> Logits:
        return replay(self.model, recording, gates, first, variants)

    def variants_at_once(self, recording: Recording, left: int) -> int:
        return 1 if recording.logits.device.type == "cpu" else max(1, GPU_ROWS // len(recording))

    def each(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        return map_in_threads(work, even_pieces(problems), problems.source.device)

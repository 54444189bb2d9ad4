"""Finds the largest of all sets of heads that can go together, with a stated confidence.

Sets are searched by size, the largest first. Problems are drawn at random, and a set is dropped as soon as it has made
so many errors that a set within the margin would make them with a probability below δ / (sets × stages): so with
confidence 1 − δ no set within the margin is ever dropped. Those that remain at the end are checked on every possible
problem. The first size with a set within the margin is the optimum. Where time runs out before, the search still
gives bounds: a set that was found, and the size above which there is none.

A problem counts against a set only where the right token is behind by more than rounding was measured to move it, also
with heads closed (`NARROW`).
Where problems cannot be listed, or are not drawn evenly from the list, the best remaining set of a size is checked on
many fresh ones, and is within the margin where its whole interval is.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.exact import right
from headway.evaluation.examples import MOST_LISTED
from headway.evaluation.intervals import exact_interval
from headway.evaluation.verdicts import NARROW
from headway.heads.ablation import Effect, Margin, measure
from headway.heads.ablations import ABLATIONS
from headway.heads.variants import Variants
from headway.machine import full_precision_matmul, map_in_threads
from headway.models import Model
from headway.models.branches import Branches
from headway.models.sites import Closed
from headway.progress import SILENT, Watch
from headway.subjects.splits import Split, draw_split
from headway.tasks import Problems

CONFIDENCE = 0.99
STAGES = (8, 32, 128, 512, 4_096, 32_768, 131_072)  # problems seen by the end of each
CHECKED, PIECE = 100_000, 5_000  # fresh problems, where not all can be listed; problems between two time checks
MOST_HEADS = 26
CPU_ROWS, GPU_NUMBERS = 1_024, 1_500_000_000  # problems × sets in a pass; on a GPU elements of the widest tensor


@dataclass(frozen=True)
class Size:
    """The result of searching the sets of one size."""

    heads: int
    sets: int
    left: list[int]
    """the number of sets that remain after each stage"""
    checked: int
    """the number of remaining sets that were checked, until one was within the margin"""


@dataclass(frozen=True)
class Optimum:
    closed: Closed
    """the largest set that is known to be within the margin"""
    checked: Effect | None
    """its effect on every possible problem, or on many where they cannot be listed; None where it was not checked"""
    known: int
    """the number of heads in the largest set known before the search"""
    out_of_time: bool
    most: int
    """with this confidence, no set of more heads is within the margin"""
    confidence: float
    searched: int
    sizes: tuple[Size, ...]
    seconds: float

    @property
    def proved(self) -> bool:
        return len(self.closed) == self.most and self.checked is not None

    def to_json(self) -> dict[str, Any]:
        found = self.checked
        return {
            "count": len(self.closed),
            "known_before": self.known,
            "heads": sorted(map(str, self.closed)),
            "checked_on": None if found is None else found.examples,
            "errors": None if found is None else found.examples - found.right,
            "at_most": self.most,
            "proved": self.proved,
            "out_of_time": self.out_of_time,
            "confidence": self.confidence,
            "searched": self.searched,
            "stages": list(STAGES),
            "sizes": [asdict(size) for size in self.sizes],
            "seconds": self.seconds,
        }


def find_optimum(
    variants: Variants,
    known: Sequence[Closed],
    margin: float,
    *,
    budget: int | float = math.inf,
    seed: int = 0,
    watch: Watch = SILENT,
) -> Optimum:
    """Searches all sets of heads within `budget` seconds. `known` are sets believed to be within the margin, the
    largest first; one that turns out not to be is replaced by the next."""
    return _Search(variants, margin, budget, seed, watch).run(known)


class _OutOfTime(Exception):
    pass


class _Search:
    def __init__(self, variants: Variants, margin: float, budget: int | float, seed: int, watch: Watch) -> None:
        self.variants, self.subject, self.margin, self.watch = variants, variants.subject, margin, watch
        self.began, self.budget, self.seed = time.monotonic(), budget, seed
        model, self.heads, self.device = cast(Model, variants.runner.model), variants.runner.heads, self.subject.device
        plain = self.subject.correct is right
        quick = torch.bfloat16 if self.device.type == "cuda" and plain else torch.float32
        ablation, size = variants.ablation, variants.ablation.window
        window = None if size is None else (size.sink, size.recent)
        kinds = {quick, torch.float32}
        self.passes = {kind: Branches(model, kind, ablation.replacements(), window) for kind in kinds}
        self.slack = {kind: NARROW[kind] if plain else 0.0 for kind in self.passes}
        self.precisions = [quick] + [torch.float32] * (len(STAGES) - 1)
        self.problems = draw_split(self.subject, Split.SCREEN, STAGES[-1], seed)
        self.fresh: list[Problems] = []
        few = self.subject.count is not None and self.subject.count <= MOST_LISTED
        self.listable = self.subject.every is not None and few and self.subject.even
        self.doubt = (1 - CONFIDENCE) / (2 if self.listable else 3)  # for baseline, screening, last check
        base = draw_split(self.subject, Split.BASELINE, STAGES[-2], seed)
        with full_precision_matmul():
            wrong = len(base) - int(variants(base, [frozenset()]).right.sum())
        worst = min(1.0, exact_interval(wrong, len(base), 1 - 2 * self.doubt).high + margin)
        each = self.doubt / (2 ** len(self.heads) * len(STAGES))
        self.limits = [most_errors(total, worst, each) for total in STAGES]
        self.closed = sizes_of_all_sets(len(self.heads), self.device)
        self.sizes: list[Size] = []
        width = model.config.d_ff * max(self.problems.source.shape[1], self.problems.answer.shape[1])
        self.rows = CPU_ROWS if self.device.type == "cpu" else max(1, GPU_NUMBERS // width)

    def run(self, known: Sequence[Closed]) -> Optimum:
        believed = [*known, frozenset[Any]()]
        most, effect, late = len(self.heads), None, False
        try:
            for size in range(len(self.heads), -1, -1):
                while len(believed[0]) == size and (effect := self._check_margin(believed[0])) is None:
                    believed.pop(0)
                if effect is None:
                    effect, sure = self._search_size(size)
                    most = size - 1 if effect is None and sure and most == size else most
                if effect is not None:
                    break
        except _OutOfTime:
            late = True
        best = believed[0] if effect is None else effect.closed
        count, searched = len(known[0]) if known else 0, sum(size.sets for size in self.sizes)
        took = time.monotonic() - self.began
        return Optimum(best, effect, count, late, most, CONFIDENCE, searched, tuple(self.sizes), took)

    def _search_size(self, size: int) -> tuple[Effect | None, bool]:
        """Finds a set of this size within the margin, if there is one, and says whether the answer is certain."""
        sets = (self.closed == size).nonzero()[:, 0]
        wrong, left, seen = torch.zeros(len(sets), dtype=torch.int32, device=self.device), [], 0
        for total, precision, limit in zip(STAGES, self.precisions, self.limits, strict=True):
            wrong = wrong + self._count(sets, self.problems[seen:total], precision)
            sets, wrong, seen = sets[wrong <= limit], wrong[wrong <= limit], total
            left.append(len(sets))
            if not len(sets):
                break
        checked, effect = 0, None
        for number in sets[wrong.argsort()][: None if self.listable else 1].tolist():
            closed = frozenset(head for place, head in enumerate(reversed(self.heads)) if number >> place & 1)
            effect, checked = self._check_margin(closed), checked + 1
            if effect is not None:
                break
        self.sizes.append(Size(size, math.comb(len(self.heads), size), left, checked))
        self.watch(sum(each.sets for each in self.sizes), 2 ** len(self.heads))
        return effect, self.listable or not len(sets)

    def _count(self, sets: Int[Tensor, " set"], problems: Problems, precision: torch.dtype) -> Int[Tensor, " set"]:
        """Counts the problems on which each set is wrong beyond rounding; in smaller pieces if memory runs out."""
        some = max(1, min(len(problems), self.rows // 2))
        total = torch.zeros(len(sets), dtype=torch.int32, device=self.device)
        try:
            with full_precision_matmul():
                for start in range(0, len(problems), some):
                    own = problems[start : start + some]
                    pieces = sets.split(max(1, self.rows // len(own)))
                    total += torch.cat(map_in_threads(partial(self._count_wrong, own, precision), pieces, self.device))
            return total
        except torch.OutOfMemoryError:
            if self.rows < 2:
                raise
        self.rows //= 2
        torch.cuda.empty_cache()
        return self._count(sets, problems, precision)

    def _count_wrong(self, own: Problems, precision: torch.dtype, sets: Int[Tensor, " set"]) -> Int[Tensor, " set"]:
        self._check_time()
        logits = self.passes[precision].logits(own.source, own.answer, sets).float()  # set row answer token
        target = own.answer[None, ..., None].expand(*logits.shape[:-1], 1)
        eased = logits.scatter_add(-1, target, torch.full_like(logits, self.slack[precision]))
        places = torch.arange(len(own), device=self.device).repeat(len(sets))
        correct = self.subject.correct(eased.flatten(0, 1), own[places])
        return (~correct).view(len(sets), len(own)).sum(1, dtype=torch.int32)

    def _check_margin(self, closed: Closed) -> Effect | None:
        """Returns the effect of a set where it is within the margin: on every possible problem, or, where they cannot
        be listed, on many and by the whole interval."""
        with full_precision_matmul():
            if self.listable and self.subject.every is not None:
                effect = measure(self.variants, self._with_time_checks(self.subject.every()), [closed])[1]
                return effect if effect.drop <= self.margin else None
            if not closed:
                return measure(self.variants, [self.problems[:PIECE]], [closed])[1]  # closing nothing costs nothing
            if not self.fresh:
                problems = draw_split(self.subject, Split.CHECK, CHECKED, self.seed)
                self.fresh = [problems[start : start + PIECE] for start in range(0, len(problems), PIECE)]
            effect = measure(self.variants, self._with_time_checks(self.fresh), [closed])[1]
            tests = 2 * len(self.heads) + 2  # at most two of a size
            return effect if effect.interval(1 - 2 * self.doubt / tests).high < self.margin else None

    def _check_time(self) -> None:
        if time.monotonic() - self.began > self.budget:
            raise _OutOfTime

    def _with_time_checks(self, chunks: Iterable[Problems]) -> Iterator[Problems]:
        for chunk in chunks:
            self._check_time()
            yield chunk


def check_searchable(variants: Variants, margin: Margin) -> None:
    """Raises where not all sets of heads can be searched."""
    subject = variants.subject
    if margin.by_loss:
        raise HeadwayError("the search of all sets is by accuracy; with `max_loss_increase` add `budget=0`")
    if len(subject.heads) > MOST_HEADS:
        raise HeadwayError(
            f"{subject.name} has {len(subject.heads)} heads, too many to search all sets of them; at most {MOST_HEADS} "
            "can be searched: add `budget=0`"
        )
    if not variants.runner.searchable:
        raise HeadwayError(
            f"all sets of heads can be searched only in Headway's models, and {subject.name} is not one; add `budget=0`"
        )
    if set(subject.heads) != set(variants.runner.heads):
        raise HeadwayError(f"{subject.name} names only some heads of its model; name all of them to search their sets")
    if variants.ablation.varies:
        fixed = " or ".join(name for name, kind in ABLATIONS.items() if not kind.varies)
        raise HeadwayError(f"all sets are searched with `ablation={fixed}`; with {variants.kind} add `budget=0`")


def sizes_of_all_sets(heads: int, device: torch.device) -> Int[Tensor, " set"]:
    """Returns how many heads each set closes: how many bits of its number are set."""
    sizes = torch.zeros(1, dtype=torch.int8, device=device)
    for _ in range(heads):
        sizes = torch.cat((sizes, sizes + 1))
    return sizes


def most_errors(examples: int, rate: float, doubt: float) -> int:
    """Returns the count that a model with an error rate of at most `rate` exceeds with probability `doubt` or less."""
    from scipy.stats import binom

    chances = binom.sf(range(examples + 1), examples, rate)
    return int((chances <= doubt).argmax())

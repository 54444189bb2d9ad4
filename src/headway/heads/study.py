"""The study of one subject's heads: what each costs alone, which can go together, and what each does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headway.errors import HeadwayError
from headway.evaluation.examples import MOST_LISTED
from headway.heads.ablation import Judge, Margin, Verdict, measure
from headway.heads.lots import Lot
from headway.heads.optimum import check_searchable, find_optimum
from headway.heads.patterns import find_patterns
from headway.heads.result import HeadRow, HeadStudy, Removal, as_list
from headway.heads.roles import find_roles
from headway.heads.together import Curve, at_random, by_cost, by_slope, greedy, in_order, pairs
from headway.heads.variants import ABLATIONS, Closed, Part, Variants
from headway.models import Site
from headway.models.rerun import sites_of
from headway.progress import Progress
from headway.subjects.subject import Subject
from headway.tasks import Problems

EXAMPLES, SELECTED, CONFIRMED, PAIRED, LOOKED_AT, RANDOM_ORDERS = 10_000, 2_000, 10_000, 500, 1_000, 3
BUDGET = 20.0
"""seconds for the search of all sets"""


@dataclass(frozen=True)
class Asked:
    """What a study was asked for."""

    ablation: str = "zero"
    examples: int | None = None
    all: bool = False
    margin: Margin = field(default_factory=Margin)
    seed: int = 0
    beam: int = 1
    budget: int | float | None = None
    """seconds for the search of all sets; 0 for none. Where it is not given, a subject that cannot be searched is
    studied without."""
    causes: bool = True
    """whether to look at patterns and to test what heads bring to the answer"""

    def __post_init__(self) -> None:
        if self.all and self.examples is not None:
            raise HeadwayError("--all takes every problem; leave out --examples")
        if self.examples is not None and self.examples < 1:
            raise HeadwayError(f"examples is {self.examples}; it must be at least 1")
        if not 1 <= self.beam <= 64:
            raise HeadwayError(f"beam is {self.beam}; it must be from 1 to 64")
        if self.budget is not None and not 0 <= self.budget < math.inf:
            raise HeadwayError(f"budget is {self.budget}; it must be a number of seconds, or 0 for no search")


def study_subject(subject: Subject, asked: Asked, quiet: bool = True) -> HeadStudy:
    """Every head alone, then which can go together."""
    if not subject.heads:
        raise HeadwayError(f"{subject.name} has no heads to study; name them as Subject(heads=…)")
    began = time.monotonic()
    if asked.all and (subject.every is None or subject.count is None or subject.count > MOST_LISTED):
        raise HeadwayError(f"{subject.name} has too many problems for --all; leave it out")
    variants = Variants(subject, asked.ablation, asked.seed)
    budget = _budget(variants, asked)
    exact = asked.all and asked.ablation != "resample"  # what is put in a head's place is drawn
    judge = Judge(asked.margin, len(subject.heads), exact)
    total = subject.count if asked.all and subject.count is not None else asked.examples or EXAMPLES
    report = _Report(subject, asked, total)
    first = subject.draw(SELECTED, Lot.BASELINE.seed(asked.seed), False)
    judge.check(total, variants(first, [frozenset()]).accuracy[0], best_constant(first))
    singles: list[Closed] = [frozenset({head}) for head in subject.heads]
    wholes = parts_of(subject)
    with Progress(f"ablating {len(singles)} heads", quiet) as watch:
        whole, *effects = measure(variants, report(), singles + wholes, watch=watch, total=total)
    verdicts: dict[str, list[Verdict]] = {asked.ablation: [judge.verdict(effect) for effect in effects[: len(singles)]]}
    sample = subject.draw(min(total, EXAMPLES), Lot.REPORT.seed(asked.seed), False)
    for kind in ABLATIONS:
        if kind not in verdicts:
            other = measure(Variants(subject, kind, asked.seed), [sample], singles)[1:]
            sampled = Judge(asked.margin, len(subject.heads), exact=False)
            verdicts[kind] = [sampled.verdict(effect) for effect in other]
    rows = []
    for place, (head, effect) in enumerate(zip(subject.heads, effects, strict=False)):
        kinds: dict[str, Verdict] = {kind: verdicts[kind][place] for kind in ABLATIONS}
        rows.append(HeadRow(head, effect, kinds[asked.ablation], as_list(judge.interval(effect)), kinds))
    alone = tuple(row.head for row in rows if judge.cost(row.effect) < judge.limit)
    chosen = subject.draw(SELECTED, Lot.SELECT.seed(asked.seed), False)
    with Progress("removing heads together", quiet) as watch:
        best = greedy(variants, chosen, asked.beam, watch)
    others = [
        in_order(variants, chosen, "by cost alone", by_cost(effects[: len(singles)])),
        in_order(variants, chosen, "by slope", by_slope(variants, chosen)),
        *at_random(variants, chosen, asked.seed, RANDOM_ORDERS),
    ]
    gone, optimum = _confirmed(variants, judge, best, asked.seed), None
    if budget:
        known = believed(gone, best, asked.margin)
        with Progress("searching all sets of heads", quiet) as watch:
            optimum = find_optimum(variants, known, asked.margin.drop, budget=budget, seed=asked.seed, watch=watch)
        gone = optimum.closed
    _, together_effect, alone_effect = measure(variants, report(), [gone, frozenset(alone)])
    with Progress("pairs of heads", quiet) as watch:
        found = pairs(variants, subject.draw(PAIRED, Lot.PAIRS.seed(asked.seed), False), watch)
    patterns, roles = [], None
    if asked.causes:
        patterns = find_patterns(subject, subject.draw(LOOKED_AT, Lot.REPORT.seed(asked.seed), False))
    if asked.causes and subject.contrasts is not None:
        with Progress("testing what heads bring to the answer", quiet) as watch:
            roles = find_roles(subject, asked.seed, watch)
    return HeadStudy(
        subject.name,
        asked.ablation,
        whole,
        judge,
        tuple(rows),
        tuple(effects[len(singles) :]),
        Removal(alone, alone_effect),
        Removal(tuple(head for head in subject.heads if head in gone), together_effect),
        (best, *others),
        tuple(found),
        optimum,
        tuple(patterns),
        roles,
        time.monotonic() - began,
    )


def searched(study: HeadStudy, subject: Subject, asked: Asked, quiet: bool = True) -> HeadStudy:
    """The same study with all sets of heads searched."""
    variants = Variants(subject, asked.ablation, asked.seed)
    budget, greedy_set = _budget(variants, asked), frozenset(study.together.heads)
    known = believed(greedy_set, study.curves[0], asked.margin)
    with Progress(f"searching all sets of heads of {subject.name}", quiet) as watch:
        found = find_optimum(variants, known, asked.margin.drop, budget=budget, seed=asked.seed, watch=watch)
    effect = study.together.effect
    if found.closed != greedy_set:
        report = subject.draw(study.examples, Lot.REPORT.seed(asked.seed), False)
        effect = measure(variants, [report], [found.closed])[1]
    together = Removal(tuple(head for head in subject.heads if head in found.closed), effect)
    return replace(study, together=together, optimum=found)


def believed(confirmed: Closed, curve: Curve, margin: Margin) -> list[Closed]:
    """Sets that are believed to be within the margin, the largest first: one that was confirmed, and smaller ones."""
    return [confirmed, *(closed for closed in curve.fitting(margin) if len(closed) < len(confirmed))]


def _budget(variants: Variants, asked: Asked) -> int | float:
    """The seconds for the search of all sets; 0 where they cannot be searched and it was not asked for."""
    try:
        if asked.budget != 0:
            check_searchable(variants, asked.margin)
    except HeadwayError:
        if asked.budget is not None:
            raise
        return 0.0
    return BUDGET if asked.budget is None else asked.budget


def _confirmed(variants: Variants, judge: Judge, curve: Curve, seed: int) -> Closed:
    """The largest set of the curve that is within the margin also on problems that had no say in it."""
    problems = variants.subject.draw(CONFIRMED, Lot.CONFIRM.seed(seed), False)
    for closed in curve.fitting(judge.margin):
        if judge.confirms(measure(variants, [problems], [closed])[1]):
            return closed
    return frozenset()


class _Report:
    """The problems that results are reported on, as often as they are wanted."""

    def __init__(self, subject: Subject, asked: Asked, total: int) -> None:
        self.subject, self.asked, self.total = subject, asked, total

    def __call__(self) -> Iterable[Problems]:
        if self.asked.all and self.subject.every is not None:
            return self.subject.every()
        return [self.subject.draw(self.total, Lot.REPORT.seed(self.asked.seed), False)]


def best_constant(problems: Problems) -> float:
    """The share of problems that have the most frequent answer."""
    _, counts = problems.answer.unique(dim=0, return_counts=True)
    return int(counts.max()) / len(problems)


def parts_of(subject: Subject) -> list[Closed]:
    """Whole attention sites, layers and feed-forward blocks."""
    sites = sites_of(subject.model)  # pyright: ignore[reportArgumentType]
    layers: dict[tuple[str, int | None], list[Site]] = {}
    for site in sites:
        layers.setdefault((site.stack, site.layer), []).append(site)
    groups = [[site] for site in sites] + list(layers.values())
    return [frozenset[Part](own) for own in groups]

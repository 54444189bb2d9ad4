"""The study of one subject's heads: what each costs alone, which can go together, and what each does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from headway.causes.patterns import find_patterns
from headway.causes.roles import find_roles
from headway.causes.upstream import find_feeds
from headway.errors import HeadwayError
from headway.evaluation.examples import MOST_LISTED
from headway.evaluation.verdicts import best_constant
from headway.heads.ablation import Judge, Margin, Verdict, measure
from headway.heads.ledger import Ledger
from headway.heads.optimum import check_searchable, find_optimum
from headway.heads.result import HeadRow, HeadStudy, Removal, as_list
from headway.heads.together import Curve, at_random, by_cost, by_slope, greedy, in_order, in_rounds, pairs
from headway.heads.variants import ABLATIONS, Variants, with_neighbours
from headway.models import Site
from headway.models.sites import Closed, Part
from headway.progress import Progress
from headway.subjects.splits import Split, drawn
from headway.subjects.subject import Subject
from headway.tasks import Problems

EXAMPLES, SELECTED, CONFIRMED, PAIRED, LOOKED_AT, RANDOM_ORDERS = 10_000, 2_000, 10_000, 500, 1_000, 3
MANY, ROUNDS = 48, 12
"""heads, above which they go in rounds, a twelfth of what is left at a time, and pairs are not tried"""
PIECE = 64
"""problems, after which a long sweep writes down what it has"""
LEAST = 30
"""examples of a user's own that results are reported on, where heads are judged by a metric"""
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
    kinds: bool = True
    """whether to give verdicts under all kinds of ablation"""
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


def study_subject(subject: Subject, asked: Asked, quiet: bool = True, ledger: Ledger | None = None) -> HeadStudy:
    """Every head alone, then which can go together. What a ledger knows of the first is not measured again."""
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
    if isinstance(subject.examples, Problems):
        total = min(total, len(drawn(subject, Split.REPORT, total, asked.seed)))
    first = drawn(subject, Split.BASELINE, SELECTED, asked.seed)
    if subject.measured_by is None:
        judge.check(total, variants(first, [frozenset()]).accuracy[0], best_constant(first))
    else:
        judge.check_count(total, LEAST)
    singles: list[Closed] = [frozenset({head}) for head in subject.heads]
    wholes = parts_of(subject)
    with Progress(f"ablating {len(singles)} heads", quiet) as watch:
        pieces = report() if ledger is None else _in_pieces(report(), PIECE)
        known = None if ledger is None else partial(ledger.outcome, variants)
        whole, *effects = measure(variants, pieces, singles + wholes, watch=watch, total=total, measured=known)
    verdicts: dict[str, list[Verdict]] = {asked.ablation: [judge.verdict(effect) for effect in effects[: len(singles)]]}
    sample = drawn(subject, Split.REPORT, min(total, EXAMPLES), asked.seed)
    for kind in ABLATIONS if asked.kinds else ():
        if kind not in verdicts:
            own = with_neighbours(sample) if kind == "resample" and subject.runner.varied_lengths else sample
            if not len(own):
                continue  # no two problems of one length
            other = measure(Variants(subject, kind, asked.seed), [own], singles)[1:]
            sampled = Judge(asked.margin, len(subject.heads), exact=False)
            verdicts[kind] = [sampled.verdict(effect) for effect in other]
    rows = []
    for place, (head, effect) in enumerate(zip(subject.heads, effects, strict=False)):
        kinds: dict[str, Verdict] = {kind: verdicts[kind][place] for kind in ABLATIONS if kind in verdicts}
        rows.append(HeadRow(head, effect, kinds[asked.ablation], as_list(judge.interval(effect)), kinds))
    alone = tuple(row.head for row in rows if judge.cost(row.effect) < judge.limit)
    chosen = drawn(subject, Split.SELECT, SELECTED, asked.seed)
    many = len(subject.heads) > MANY
    with Progress("removing heads together", quiet) as watch:
        best = in_rounds(variants, chosen, ROUNDS, watch) if many else greedy(variants, chosen, asked.beam, watch)
    others = [
        in_order(variants, chosen, "by cost alone", by_cost(effects[: len(singles)], judge.cost)),
        in_order(variants, chosen, "by slope", by_slope(variants, chosen)),
        *at_random(variants, chosen, asked.seed, 1 if many else RANDOM_ORDERS),
    ]
    gone, optimum = _confirmed(variants, judge, best, asked.seed), None
    if budget:
        known = believed(gone, best, asked.margin)
        with Progress("searching all sets of heads", quiet) as watch:
            optimum = find_optimum(variants, known, asked.margin.drop, budget=budget, seed=asked.seed, watch=watch)
        gone = optimum.closed
    _, together_effect, alone_effect = measure(variants, report(), [gone, frozenset(alone)])
    with Progress("pairs of heads", quiet) as watch:
        found = [] if many else pairs(variants, drawn(subject, Split.PAIRS, PAIRED, asked.seed), watch)
    patterns, roles, feeds = [], None, []
    if asked.causes:
        looked_at = drawn(subject, Split.REPORT, LOOKED_AT, asked.seed)
        patterns = find_patterns(subject, looked_at)
        if subject.runner.is_attached and not many:
            with Progress("testing which heads feed others", quiet) as watch:
                feeds = find_feeds(subject, looked_at, patterns, watch)
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
        metric="exact" if subject.measured_by is None else subject.measured_by.name,
        feeds=tuple(feeds),
    )


def _in_pieces(chunks: Iterable[Problems], rows: int) -> Iterable[Problems]:
    for chunk in chunks:
        for start in range(0, len(chunk), rows):
            yield chunk[start : start + rows]


def searched(study: HeadStudy, subject: Subject, asked: Asked, quiet: bool = True) -> HeadStudy:
    """The same study with all sets of heads searched."""
    variants = Variants(subject, asked.ablation, asked.seed)
    budget, greedy_set = _budget(variants, asked), frozenset(study.together.heads)
    known = believed(greedy_set, study.curves[0], asked.margin)
    with Progress(f"searching all sets of heads of {subject.name}", quiet) as watch:
        found = find_optimum(variants, known, asked.margin.drop, budget=budget, seed=asked.seed, watch=watch)
    effect = study.together.effect
    if found.closed != greedy_set:
        report = drawn(subject, Split.REPORT, study.examples, asked.seed)
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
    problems = drawn(variants.subject, Split.CONFIRM, CONFIRMED, seed)
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
        return [drawn(self.subject, Split.REPORT, self.total, self.asked.seed)]


def parts_of(subject: Subject) -> list[Closed]:
    """Whole attention sites, layers and feed-forward blocks."""
    sites = subject.runner.sites
    layers: dict[tuple[str, int | None], list[Site]] = {}
    for site in sites:
        layers.setdefault((site.stack, site.layer), []).append(site)
    groups = [[site] for site in sites] + list(layers.values())
    return list(dict.fromkeys(frozenset[Part](own) for own in groups))

"""Studies the heads of one subject: what each costs alone, which can go together, and what each does."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from headway.causes.patterns import find_patterns, find_upstream
from headway.causes.roles import find_roles
from headway.errors import HeadwayError
from headway.evaluation.examples import MOST_LISTED
from headway.evaluation.verdicts import best_constant
from headway.heads import together
from headway.heads.ablation import Effect, Judge, Verdict, measure
from headway.heads.ablations import ABLATIONS
from headway.heads.optimum import Optimum, check_searchable, find_optimum
from headway.heads.question import HeadsQuestion, RemovalQuestion
from headway.heads.result import HeadRow, HeadStudy, Removal, Withheld
from headway.heads.together import Curve, Pair
from headway.heads.variants import Ledger, Variants
from headway.models import Head
from headway.models.sites import Closed, Part
from headway.progress import Progress
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems

EXAMPLES, SELECTED, CONFIRMED, PAIRED, LOOKED_AT, RANDOM_ORDERS = 10_000, 2_000, 10_000, 500, 1_000, 3
MANY, ROUNDS = 48, 12
"""above this many heads they are removed in rounds, a twelfth of the rest at a time, and pairs are not tested"""
PIECE = 64  # problems, after which a long sweep saves its results
LEAST = 30  # examples of a user to report results on, where heads are judged by a metric
BUDGET = 20.0  # seconds for the search of all sets

Veto = Callable[[Subject], Withheld]


def study_subject(
    subject: Subject, question: HeadsQuestion, ledger: Ledger | None = None, veto: Veto = lambda subject: ()
) -> HeadStudy:
    """Measures every head alone, then finds which can go together and what they do.

    `veto` is called before anything is measured: where it gives reasons, only the numbers that may still be shown are
    measured. Results that a ledger holds are not measured again.
    """
    began = time.monotonic()
    work = _Work(subject, question)
    withheld = veto(subject)
    whole, singles, parts = work.ablate_each(ledger)
    study = HeadStudy(
        subject=subject.name,
        ablation=question.ablation,
        whole=whole,
        judge=work.judge,
        heads=work.judge_each(singles, () if question.brief or withheld else tuple(ABLATIONS)),
        parts=tuple(parts),
        alone=Removal((), whole),
        together=Removal((), whole),
        curves=work.remove_in_turn(singles),
        pairs=work.test_pairs(),
        metric="exact" if subject.measured_by is None else subject.measured_by.name,
        withheld=withheld,
    )
    if not withheld:
        study = work.find_removable(study)
    if not question.brief:
        study = work.explain(study)
    return replace(study, seconds=time.monotonic() - began)


class _Work:
    """The steps of one study, with the variants, the judge and the problems that they share."""

    def __init__(self, subject: Subject, question: HeadsQuestion) -> None:
        if not subject.heads:
            raise HeadwayError(f"{subject.name} has no heads to study; name them with Subject(heads=…)")
        if question.all and (subject.every is None or subject.count is None or subject.count > MOST_LISTED):
            raise HeadwayError(f"{subject.name} has too many problems for `all`; leave it out")
        self.subject, self.question = subject, question
        self.many = len(subject.heads) > MANY
        self.singles = [frozenset({head}) for head in subject.heads]
        self.variants = Variants(subject, question.ablation, question.seed)
        self.budget = _budget(self.variants, question)
        exact = question.all and not self.variants.ablation.varies  # replacements are drawn at random
        self.judge = Judge(question.margin, len(subject.heads), exact)
        self.total = (question.all and subject.count) or question.count or EXAMPLES
        if isinstance(subject.examples, Problems):
            self.total = min(self.total, len(self._draw(Split.REPORT, self.total)))
        if subject.measured_by is None:
            first = self._draw(Split.BASELINE, SELECTED)
            self.judge.check(self.total, self.variants(first, [frozenset()]).accuracy[0], best_constant(first))
        else:
            self.judge.check_count(self.total, LEAST)

    def ablate_each(self, ledger: Ledger | None) -> tuple[Effect, list[Effect], list[Effect]]:
        """Measures the whole model, then each head closed, then each site, layer and feed-forward block closed."""
        sites, heads = self.subject.runner.sites, len(self.singles)
        layers = [frozenset(s for s in sites if (s.stack, s.layer) == (site.stack, site.layer)) for site in sites]
        parts = dict.fromkeys([frozenset({site}) for site in sites] + layers)
        chunks, run = self._report(), None
        if ledger is not None:
            chunks = (chunk[at : at + PIECE] for chunk in chunks for at in range(0, len(chunk), PIECE))
            run = partial(ledger.measure, self.variants)
        with self._progress(f"ablating {heads} heads") as watch:
            whole, *effects = measure(self.variants, chunks, [*self.singles, *parts], watch, self.total, run)
        return whole, effects[:heads], effects[heads:]

    def judge_each(self, effects: Sequence[Effect], kinds: Sequence[str]) -> tuple[HeadRow, ...]:
        """Judges each head: under the ablation of the study, and on a sample under the other kinds."""
        subject, question = self.subject, self.question
        verdicts: dict[str, list[Verdict]] = {question.ablation: [self.judge.verdict(effect) for effect in effects]}
        sample = self._draw(Split.REPORT, min(self.total, EXAMPLES))
        sampled = replace(self.judge, exact=False)
        for kind in (kind for kind in kinds if kind != question.ablation):
            variants = Variants(subject, kind, question.seed)
            own = variants.ablation.usable(sample)
            if len(own):
                verdicts[kind] = [sampled.verdict(effect) for effect in measure(variants, [own], self.singles)[1:]]
        shown = [kind for kind in (*ABLATIONS, question.ablation) if kind in verdicts]
        rows: list[dict[str, Verdict]] = [{kind: verdicts[kind][n] for kind in shown} for n in range(len(effects))]
        return tuple(
            HeadRow(head, effect, own[question.ablation], self.judge.interval(effect), own)
            for head, effect, own in zip(subject.heads, effects, rows, strict=True)
        )

    def remove_in_turn(self, singles: Sequence[Effect]) -> tuple[Curve, ...]:
        """Measures the accuracy as heads are removed one after the other: in the best order found, then in others."""
        variants, chosen, heads = self.variants, self._draw(Split.SELECT, SELECTED), self.subject.heads
        with self._progress("removing heads together") as watch:
            if self.many:
                best = together.remove_in_rounds(variants, chosen, ROUNDS, watch)
            else:
                best = together.remove_greedily(variants, chosen, self.question.beam, watch)
        costs = {head: (self.judge.cost(e), e.loss_increase) for head, e in zip(heads, singles, strict=True)}
        by_cost, by_gradient = sorted(costs, key=costs.__getitem__), together.rank_by_gradient(variants, chosen)
        orders = {"by cost alone": by_cost, "by slope": by_gradient}
        chance = random.Random(self.question.seed)
        for number in range(1 if self.many else RANDOM_ORDERS):
            orders[f"random {number}"] = chance.sample(heads, len(heads))
        return best, *(together.remove_in_order(variants, chosen, name, order) for name, order in orders.items())

    def find_removable(self, study: HeadStudy) -> HeadStudy:
        """Adds the heads that look removable one at a time, and those that are removable together: the largest set of
        the curve that is within the margin also on problems not used to select it, or a larger one."""
        best, optimum, problems = study.curves[0], None, self._draw(Split.CONFIRM, CONFIRMED)
        offers = (measure(self.variants, [problems], [closed])[1] for closed in best.sets_within(self.judge.margin))
        gone = next((effect.closed for effect in offers if self.judge.confirms(effect)), frozenset[Part]())
        if self.budget:
            optimum = search_all(self.variants, gone, best, self.question, self.budget)
            gone = optimum.closed
        cheap = frozenset(row.head for row in study.heads if self.judge.cost(row.effect) < self.judge.limit)
        _, *effects = measure(self.variants, self._report(), [gone, cheap])
        jointly, alone = (Removal(_in_order(self.subject, effect.closed), effect) for effect in effects)
        return replace(study, alone=alone, together=jointly, optimum=optimum)

    def test_pairs(self) -> tuple[Pair, ...]:
        """Measures what two heads cost together beyond the sum of both; skipped where there are many heads."""
        if self.many:
            return ()
        with self._progress("ablating pairs of heads") as watch:
            return tuple(together.measure_pairs(self.variants, self._draw(Split.PAIRS, PAIRED), watch))

    def explain(self, study: HeadStudy) -> HeadStudy:
        """Adds where each head looks, which upstream heads cause that, and what it carries to the output."""
        subject, looked_at = self.subject, self._draw(Split.REPORT, LOOKED_AT)
        patterns, upstream, roles = find_patterns(subject, looked_at), (), None
        if subject.runner.is_attached and not self.many:
            with self._progress("testing which heads depend on upstream heads") as watch:
                upstream = tuple(find_upstream(subject, looked_at, patterns, watch))
        if subject.contrasts is not None and not study.withheld:
            with self._progress("testing what heads carry to the output") as watch:
                roles = find_roles(subject, self.question.seed, watch)
        return replace(study, patterns=tuple(patterns), upstream=upstream, roles=roles)

    def _report(self) -> Iterable[Problems]:
        """Returns the problems that results are reported on."""
        if self.question.all and self.subject.every is not None:
            return self.subject.every()
        return [self._draw(Split.REPORT, self.total)]

    def _draw(self, split: Split, rows: int) -> Problems:
        return draw_split(self.subject, split, rows, self.question.seed)

    def _progress(self, title: str) -> Progress:
        return Progress(title, self.question.quiet)


def add_search(study: HeadStudy, subject: Subject, question: RemovalQuestion) -> HeadStudy:
    """Adds to the study a search of all sets of heads."""
    variants = Variants(subject, study.ablation, question.seed)
    confirmed, effect = frozenset[Part](study.together.heads), study.together.effect
    found = search_all(variants, confirmed, study.curves[0], question, _budget(variants, question))
    if found.closed != confirmed:
        report = draw_split(subject, Split.REPORT, study.examples, question.seed)
        effect = measure(variants, [report], [found.closed])[1]
    return replace(study, together=Removal(_in_order(subject, found.closed), effect), optimum=found)


def search_all(
    variants: Variants, confirmed: Closed, curve: Curve, question: RemovalQuestion, budget: float | int
) -> Optimum:
    """Searches all sets for the largest, beginning with those believed to fit: the confirmed one, then smaller ones."""
    known = [confirmed, *(closed for closed in curve.sets_within(question.margin) if len(closed) < len(confirmed))]
    with Progress(f"searching all sets of heads of {variants.subject.name}", question.quiet) as watch:
        return find_optimum(variants, known, question.max_drop, budget=budget, seed=question.seed, watch=watch)


def _budget(variants: Variants, question: RemovalQuestion) -> float | int:
    """Returns the seconds for the search of all sets; 0 where it is impossible and was not requested."""
    try:
        if question.budget != 0:
            check_searchable(variants, question.margin)
    except HeadwayError:
        if question.budget is not None:
            raise
        return 0.0
    return BUDGET if question.budget is None else question.budget


def _in_order(subject: Subject, closed: Closed) -> tuple[Head, ...]:
    return tuple(head for head in subject.heads if head in closed)

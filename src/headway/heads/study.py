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
from headway.heads.ablation import DOUBT, Effect, Judge, measure
from headway.heads.ablations import ABLATIONS, Kind
from headway.heads.assignments import PlanProblems, cache_units, plan_windows
from headway.heads.optimum import Optimum, check_searchable, find_optimum
from headway.heads.question import HeadsQuestion, RemovalQuestion
from headway.heads.result import HeadRow, HeadStudy, PartRow, Withheld
from headway.heads.sets import FoundSet, Removal, last_confirmed
from headway.heads.together import Curve, Pair
from headway.heads.units import groups_of_heads, heads_in, leave_out_cross, shares_keys
from headway.heads.variants import Ledger, Variants
from headway.heads.wording import Wording
from headway.models import Head
from headway.models.sites import Closed, Part
from headway.progress import Progress
from headway.subjects.ragged import mean_length, sort_by_length
from headway.subjects.splits import Split, draw_split
from headway.subjects.subject import Subject
from headway.tasks import Problems

EXAMPLES, SELECTED, CONFIRMED, PAIRED, LOOKED_AT, RANDOM_ORDERS = 10_000, 2_000, 10_000, 500, 1_000, 3
DRAWN = 500  # problems of the orders of removal that are only drawn, beside the best one
MANY, ROUNDS = 48, 12
"""above this many heads they are removed in rounds, a twelfth of the rest at a time, and pairs are not tested"""
PARTS = 2_000  # problems that whole sites are measured on under kinds of ablation that were not asked for
PIECE = 64  # problems, after which a long sweep saves its results
LEAST = 30  # examples of a user to report results on, where heads are judged by a metric
PLANNED = 1_000  # problems that windows are assigned on
BUDGET = 20.0  # seconds for the search of all sets, under all kinds of ablation
ASKED_SHARE = 2 / 3  # of these seconds, for the kind of ablation asked for; what it leaves goes to the others
SEARCHED = ("zero", "mean")  # the kinds of ablation that sets are searched under, besides the one asked for

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
    whole, effects = work.ablate_each(ledger)
    brief = question.brief and not question.narrows  # the sizes of windows are part of the question
    heads, parts = work.judge_each(effects, () if brief or withheld else work.compared)
    singles = effects[: len(work.singles)]
    study = HeadStudy(
        subject=subject.name,
        ablation=work.asked,
        units=question.units,
        wording=work.wording,
        left_out=tuple(dict.fromkeys(head.site for head in subject.heads if head not in work.subject.heads)),
        whole=whole,
        judge=work.judge,
        heads=heads,
        parts=parts,
        alone=Removal((), whole),
        together=Removal((), whole),
        curves=work.remove_in_turn(singles),
        pairs=work.test_pairs(),
        metric="exact" if subject.measured_by is None else subject.measured_by.name,
        withheld=withheld,
    )
    if not withheld:
        study = work.find_removable(study)
    if not withheld and question.narrows:
        study = work.plan_windows(study)
    if not withheld and not brief:
        study = work.find_other_sets(study)
    if not question.brief:
        study = work.explain(study)
    return replace(study, seconds=time.monotonic() - began)


class _Work:
    """The steps of one study, with the variants, the judge and the problems that they share."""

    def __init__(self, subject: Subject, question: HeadsQuestion) -> None:
        if not subject.heads:
            raise HeadwayError(f"{subject.name} has no heads to study; name them with Subject(heads=…)")
        if question.all and subject.every is None and isinstance(given := subject.examples, Problems):
            subject = replace(subject, every=lambda: iter([sort_by_length(given)]), count=len(given))  # the whole list
        if question.all and (subject.every is None or subject.count is None or subject.count > MOST_LISTED):
            raise HeadwayError(f"{subject.name} has too many problems for `all`; leave it out")
        subject = leave_out_cross(subject) if question.narrows else subject
        self.subject, self.question = subject, question
        first_kind: Kind = question.sizes[0] if question.narrows else question.ablation
        self.asked = str(first_kind)
        self.variants = Variants(subject, first_kind, question.seed, question.units)
        self.units = self.variants.units
        self.kinds = {self.asked: self.variants}
        self.compared: tuple[Kind, ...] = question.sizes or tuple(ABLATIONS)
        """the kinds of ablation that every unit gets a verdict under"""
        self.many = len(self.units) > MANY
        self.singles: list[Closed] = [heads_in(unit) for unit in self.units]
        self.parts = _whole_parts(subject, attention_only=question.narrows)
        self.wording = Wording(question.sizes, tuple(groups_of_heads(self.units).items()))
        self.budget = _budget(self.variants, question)
        exact = question.all and not self.variants.ablation.varies  # replacements are drawn at random
        brief = question.brief and not question.narrows
        kinds = 1 if brief else len({*map(str, self.compared), self.asked})
        self.judge = Judge(question.margin, kinds * (len(self.singles) + len(self.parts)), exact)
        self.total = (question.all and subject.count) or question.count or EXAMPLES
        if isinstance(subject.examples, Problems) and not question.all:
            self.total = min(self.total, len(self._draw(Split.REPORT, self.total)))
        least = replace(self.judge, comparisons=len(self.singles))  # with fewer examples no head could get a verdict
        first, metric = self._draw(Split.BASELINE, SELECTED), subject.measured_by
        whole = None
        if metric is None or question.margin.share is not None:
            whole = self.variants(first, [frozenset()])
            self.judge.check_share(whole.losses[0], "loss" if metric is None else metric.name)
        if metric is None and whole is not None:
            least.check(self.total, whole.accuracy[0], best_constant(first))
        else:
            least.check_count(self.total, LEAST)

    def ablate_each(self, ledger: Ledger | None) -> tuple[Effect, list[Effect]]:
        """Measures the whole model, then each head closed, then each site, layer and feed-forward block closed."""
        chunks, run = self._report(), None
        if ledger is not None:
            chunks = (chunk[at : at + PIECE] for chunk in chunks for at in range(0, len(chunk), PIECE))
            run = partial(ledger.measure, self.variants)
        with self._progress(f"{self.wording.doing} {len(self.singles)} {self.wording.things}") as watch:
            whole, *effects = measure(self.variants, chunks, [*self.singles, *self.parts], watch, self.total, run)
        return whole, effects

    def judge_each(
        self, effects: Sequence[Effect], kinds: Sequence[Kind]
    ) -> tuple[tuple[HeadRow, ...], tuple[PartRow, ...]]:
        """Judges each head and each whole part: under the ablation of the study, and on a sample under the others."""
        asked = self.asked
        others = {str(kind): self._effects_under(kind) for kind in kinds if str(kind) != asked}
        names = dict.fromkeys((*map(str, self.compared), asked))
        found = {kind: own for kind in names if (own := {asked: effects, **others}.get(kind))}
        sampled = replace(self.judge, exact=False)
        judges = {kind: self.judge if kind == asked else sampled for kind in found}
        rows = [
            PartRow(
                effect,
                self.judge.verdict(effect),
                self.judge.interval(effect),
                {kind: judges[kind].verdict(own[place]) for kind, own in found.items()},
                {kind: own[place].drop for kind, own in found.items()},
                {kind: judges[kind].interval(own[place]) for kind, own in found.items()},
                {kind: own[place].loss_increase for kind, own in found.items()},
            )
            for place, effect in enumerate(effects)
        ]
        groups, count = groups_of_heads(self.units), len(self.units)
        own = {head: row for unit, row in zip(self.units, rows[:count], strict=True) for head in heads_in(unit)}
        heads = [HeadRow(head=head, group=groups.get(head), **vars(own[head])) for head in self.subject.heads]
        return tuple(heads), tuple(rows[count:])

    def _effects_under(self, kind: Kind) -> list[Effect]:
        """Measures each head and each whole part under another kind of ablation; nothing where that is impossible."""
        variants = self._variants(kind)
        sample = self._sample()
        usable, fewer = (variants.ablation.usable(some) for some in (sample, sample[:PARTS]))
        if not len(usable) or not len(fewer):
            return []
        with self._progress(f"{kind} ablation of {len(self.singles)} {self.wording.things}") as watch:
            singles = measure(variants, [usable], self.singles, watch, len(usable))[1:]
        return singles + measure(variants, [fewer], self.parts)[1:]

    def remove_in_turn(self, singles: Sequence[Effect]) -> tuple[Curve, ...]:
        """Measures the accuracy as heads are removed one after the other: in the best order found, then in others."""
        variants, chosen, units = self.variants, self._draw(Split.SELECT, SELECTED), self.units
        best = self._remove_best(variants)
        costs = {unit: (self.judge.cost(e), e.loss_increase) for unit, e in zip(units, singles, strict=True)}
        by_cost, by_gradient = sorted(costs, key=costs.__getitem__), together.rank_by_gradient(variants, chosen)
        orders = {"by cost alone": by_cost, "by slope": by_gradient}
        chance = random.Random(self.question.seed)
        for number in range(1 if self.many else RANDOM_ORDERS):
            orders[f"random {number}"] = chance.sample(units, len(units))
        few = chosen[:DRAWN]
        return best, *(together.remove_in_order(variants, few, name, order) for name, order in orders.items())

    def _remove_best(self, variants: Variants) -> Curve:
        """Removes heads one after the other in the best order found: in rounds where there are many."""
        chosen = self._draw(Split.SELECT, SELECTED)
        words = self.wording
        with self._progress(f"{words.doing} {words.things} together, {words.kind(variants.kind)}") as watch:
            if self.many:
                return together.remove_in_rounds(variants, chosen, ROUNDS, watch)
            return together.remove_greedily(variants, chosen, self.question.beam, watch)

    def find_removable(self, study: HeadStudy) -> HeadStudy:
        """Adds the heads that look removable one at a time, and those that are removable together: the largest set of
        the curve that is within the margin also on problems not used to select it, or a larger one."""
        best, budget = study.curves[0], self.budget
        if budget and not self.question.brief:
            budget *= ASKED_SHARE
        gone, optimum = self._find_set(self.variants, best, DOUBT, budget)
        cheap = self._select_cheap(study)
        _, *effects = measure(self.variants, self._report(), [gone, cheap])
        jointly, alone = (Removal(_in_order(self.subject, effect.closed), effect) for effect in effects)
        return replace(study, alone=alone, together=jointly, optimum=optimum)

    def find_other_sets(self, study: HeadStudy) -> HeadStudy:
        """Adds the set that can go under each kind of ablation, and what these sets cost under resample ablation."""
        asked, spent = self.asked, 0.0 if study.optimum is None else study.optimum.seconds
        searched: tuple[Kind, ...] = self.question.sizes or SEARCHED
        kinds = [kind for kind in searched if str(kind) != asked]
        left = _seconds(self.question) - spent
        found = {asked: FoundSet(asked, study.together, study.curves[0], study.optimum)}
        for place, kind in enumerate(kinds):
            variants = self._variants(kind)
            curve, searchable = self._remove_best(variants), is_searchable(variants, self.question)
            budget = max(left, 0.0) / (len(kinds) - place) if searchable else 0.0
            gone, optimum = self._find_set(variants, curve, DOUBT / len(kinds), budget)
            left -= 0.0 if optimum is None else optimum.seconds
            effect = measure(variants, self._report(), [gone])[1]
            found[str(kind)] = FoundSet(str(kind), Removal(_in_order(self.subject, gone), effect), curve, optimum)
        sets = [found[kind] for kind in dict.fromkeys((*map(str, searched), asked))]
        if self.question.narrows:  # what is narrowed is not removed
            return replace(study, sets=tuple(sets))
        resampling = self._variants("resample")
        usable = resampling.ablation.usable(self._sample())
        if len(usable):
            closed = [frozenset(each.removal.heads) for each in sets]
            effects = measure(resampling, [usable], closed)[1:]
            sets = [replace(each, resampled=effect) for each, effect in zip(sets, effects, strict=True)]
        return replace(study, sets=tuple(sets))

    def _find_set(
        self, variants: Variants, curve: Curve, doubt: float, budget: float | int
    ) -> tuple[Closed, Optimum | None]:
        """Finds the largest set of the curve that other problems confirm, then searches all sets for a larger one."""
        offers, gone = curve.sets_to_confirm(self.judge.margin), frozenset[Part]()
        if offers:
            _, *effects = measure(variants, [self._draw(Split.CONFIRM, CONFIRMED)], offers)
            gone = last_confirmed(effects, self.judge, doubt)
        if not budget:
            return gone, None
        optimum = search_all(variants, gone, curve, self.question, budget)
        return optimum.closed, optimum

    def _select_cheap(self, study: HeadStudy) -> Closed:
        """Selects the heads that look removable one at a time, not on the problems that they are reported on; where
        every possible problem is tested there is nothing to select by chance."""
        if self.judge.exact:
            own = {row.head: row.effect for row in study.heads}
            effects = [own[min(heads_in(unit))] for unit in self.units]
        else:
            effects = measure(self.variants, [self._draw(Split.SELECT, SELECTED)], self.singles)[1:]
        cheap = zip(self.units, effects, strict=True)
        return heads_in(*(unit for unit, effect in cheap if self.judge.is_cheap(effect)))

    def test_pairs(self) -> tuple[Pair, ...]:
        """Measures what two heads cost together beyond the sum of both; skipped where there are many heads."""
        if self.many:
            return ()
        with self._progress(f"{self.wording.doing} pairs of {self.wording.things}") as watch:
            return tuple(together.measure_pairs(self.variants, self._draw(Split.PAIRS, PAIRED), watch))

    def plan_windows(self, study: HeadStudy) -> HeadStudy:
        """Adds the windows that the study ends with, where the model has a cache of such units."""
        select, confirm = self._draw(Split.SELECT, PLANNED), self._draw(Split.CONFIRM, CONFIRMED)
        problems = PlanProblems(select, confirm, self._sample())
        cache = cache_units(self.units, self.question.sizes, mean_length(problems.report))
        shared = self.question.units == "heads" and shares_keys(self.subject)
        if cache is None or shared:
            if self.question.cache is not None:
                raise HeadwayError(
                    f"heads of {self.subject.name} share keys and values, so its cache is kept by group; ask with "
                    "`units=groups`"
                    if shared
                    else f"no window saves any cache of {self.subject.name}; give a smaller `recent`"
                )
            return study
        rows = {row.head: row for row in study.heads}
        least = {unit: rows[min(heads_in(unit))].least_window(self.question.sizes) for unit in self.units}
        with self._progress("assigning windows") as watch:
            share = self.question.share
            plan = plan_windows(self.variants, cache, problems, self.judge, least, share, watch)
        return replace(study, windows=plan)

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

    def _sample(self) -> Problems:
        """Returns the problems to report on that other kinds of ablation are measured on."""
        return self._draw(Split.REPORT, min(self.total, EXAMPLES))

    def _variants(self, kind: Kind) -> Variants:
        """Returns the variants under a kind of ablation, prepared once."""
        if str(kind) not in self.kinds:
            self.kinds[str(kind)] = Variants(self.subject, kind, self.question.seed, self.question.units)
        return self.kinds[str(kind)]

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
        return find_optimum(variants, known, question.margin.drop, budget=budget, seed=question.seed, watch=watch)


def _budget(variants: Variants, question: RemovalQuestion) -> float | int:
    """Returns the seconds for the search of all sets; 0 where it is impossible and was not requested."""
    try:
        if question.budget != 0:
            check_searchable(variants, question.margin)
    except HeadwayError:
        if question.budget is not None:
            raise
        return 0.0
    return _seconds(question)


def _seconds(question: RemovalQuestion) -> float | int:
    return BUDGET if question.budget is None else question.budget


def is_searchable(variants: Variants, question: RemovalQuestion) -> bool:
    """Whether all sets of heads can be searched under this kind of ablation."""
    try:
        check_searchable(variants, question.margin)
    except HeadwayError:
        return False
    return True


def _whole_parts(subject: Subject, attention_only: bool = False) -> list[Closed]:
    """Lists the sites and feed-forward blocks, each as a set, then the layers that have several; or only the sites of
    heads that are studied."""
    sites = subject.runner.sites
    if attention_only:
        studied = {head.site for head in subject.heads}
        sites = [site for site in sites if site in studied]
    layers = [frozenset(s for s in sites if (s.stack, s.layer) == (site.stack, site.layer)) for site in sites]
    return list(dict.fromkeys([*(frozenset[Part]({site}) for site in sites), *layers]))


def _in_order(subject: Subject, closed: Closed) -> tuple[Head, ...]:
    return tuple(head for head in subject.heads if head in closed)

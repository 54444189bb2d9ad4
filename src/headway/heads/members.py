"""Studies the heads of many runs of one shape as one stack: the members of a population side by side on a GPU.

The steps and the answers are those of study.py for one subject: every head alone, then heads together, selected on
some problems, confirmed on others, and reported on yet others. It leaves out what would make a thousand studies slow:
other kinds of ablation, whole sites, pairs, other orders.

Axes: model (a member), variant (a set of closed heads), row (a problem), head.
"""

import math
import time
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import functional_call, vmap

from headway.evaluation.stacked import PASS_TOKENS
from headway.evaluation.verdicts import best_constant, losses_of
from headway.heads.ablation import Effect, EffectSums, Judge, TooWeak, strata_of
from headway.heads.population import Member, RefusedMember
from headway.heads.question import HeadsQuestion
from headway.heads.result import HeadRow, HeadStudy
from headway.heads.sets import Removal, last_confirmed
from headway.heads.study import CONFIRMED, EXAMPLES, SELECTED
from headway.heads.together import Curve
from headway.heads.variants import Outcome
from headway.machine import compile_on_gpu
from headway.models import Gate, Head, Model
from headway.models.sites import Closed
from headway.progress import SILENT, Progress, Watch
from headway.subjects.splits import Split
from headway.subjects.subject import Subject
from headway.tasks import Problems

CHUNK = 2_000  # problems whose outcomes are in memory at a time
NONE: Closed = frozenset()


class StackedVariants:
    """Runs members of one shape, each with its own heads closed. `subject` supplies examples and what is correct."""

    def __init__(self, subject: Subject, weights: dict[str, Tensor]) -> None:
        self.subject, self.model, self.weights = subject, cast(Model, subject.model), weights
        self.heads, self.members = subject.runner.heads, len(next(iter(weights.values())))
        self.device = next(iter(weights.values())).device
        self._pass = compile_on_gpu(self._run_pass, self.device)

    def heads_of_mask(self, closed: Sequence[bool]) -> Closed:
        return frozenset(head for head, gone in zip(self.heads, closed, strict=True) if gone)

    def mask_of_sets(self, sets: Sequence[Sequence[Closed]]) -> Bool[Tensor, "model variant head"]:
        """Returns the sets of each member, equally many for all, as a mask over heads."""
        table = [[[head in closed for head in self.heads] for closed in own] for own in sets]
        return torch.tensor(table, device=self.device)

    @torch.no_grad()
    def __call__(self, problems: Problems, closed: Bool[Tensor, "model variant head"]) -> Outcome:
        """Returns the outcome of each problem under the variants of each member."""
        variants, rows = closed.shape[1], len(problems)
        tokens = problems.source.shape[1] + problems.answer.shape[1]
        at_once = max(1, PASS_TOKENS // (self.members * tokens))  # always as many: a pass is compiled for its shape
        at_once = at_once if self.device.type == "cuda" else min(at_once, variants * rows)
        found: list[tuple[Tensor, Tensor]] = []
        for start in range(0, variants * rows, at_once):
            place = torch.arange(start, start + at_once, device=self.device).clamp(max=variants * rows - 1)
            own, opened = problems[place % rows], ~closed[:, place // rows]  # the last pass is filled up
            found.append(self._pass(self.weights, own.source, own.answer, own.scored, opened))
        both = (torch.cat(each, dim=1)[:, : variants * rows] for each in zip(*found, strict=True))
        return Outcome(*(each.reshape(self.members, variants, rows) for each in both))

    def _run_pass(
        self, weights: dict[str, Tensor], source: Tensor, answer: Tensor, scored: Tensor | None, opened: Tensor
    ) -> tuple[Bool[Tensor, "model row"], Float[Tensor, "model row"]]:
        problems, width = Problems(source, answer, scored), self.subject.runner.width

        def run_member(own: dict[str, Tensor], opened: Tensor) -> tuple[Tensor, Tensor]:
            by_site = zip(width, opened.split(list(width.values()), dim=1), strict=True)
            gates = {site: Gate(each.float()) for site, each in by_site if each.shape[1]}
            logits = functional_call(self.model, own, (source, answer, gates)).float()
            return self.subject.correct(logits, problems), losses_of(logits, problems)

        return vmap(run_member)(weights, opened)


def study_stack(subjects: Sequence[Subject], weights: dict[str, Tensor], question: HeadsQuestion) -> list[Member]:
    """Measures every head of each member alone, then which can go together; the subjects share a task and a model."""
    began, first_subject = time.monotonic(), subjects[0]
    variants = StackedVariants(first_subject, weights)
    heads, total = variants.heads, question.count or EXAMPLES
    judge = Judge(question.margin, len(heads), exact=False)

    def draw(split: Split, rows: int) -> Problems:
        return first_subject.draw(rows, split.seed(question.seed), False)

    first = draw(Split.BASELINE, SELECTED)
    base = variants(first, torch.zeros(len(subjects), 1, len(heads), dtype=torch.bool, device=variants.device))
    refused: dict[int, RefusedMember] = {}
    for member, right in enumerate(base.right[:, 0].double().mean(-1).tolist()):
        try:
            judge.check(total, right, best_constant(first))
        except TooWeak as error:
            refused[member] = RefusedMember(subjects[member].name, str(error))
    singles = torch.eye(len(heads), dtype=torch.bool, device=variants.device).expand(len(subjects), -1, -1)
    with Progress(f"ablating {len(heads)} heads of {len(subjects):,} runs", question.quiet) as watch:
        effects = measure_members(variants, draw(Split.REPORT, total), singles, watch)
    selecting = draw(Split.SELECT, SELECTED)
    alone_costs = measure_members(variants, selecting, singles)
    with Progress("removing heads together", question.quiet) as watch:
        curves = find_greedy_curves(variants, selecting, watch)
    with Progress("confirming the sets of heads", question.quiet) as watch:
        gone = confirm_members(variants, draw(Split.CONFIRM, CONFIRMED), curves, judge, watch)
    cheap = [
        [head for head, effect in zip(heads, own[1:], strict=True) if judge.is_cheap(effect)] for own in alone_costs
    ]
    wanted = [[gone[member], frozenset(cheap[member])] for member in range(len(subjects))]
    with Progress("measuring the sets of heads", question.quiet) as watch:
        last = measure_members(variants, draw(Split.REPORT, total), variants.mask_of_sets(wanted), watch)
    share = (time.monotonic() - began) / len(subjects)
    studies: list[Member] = []
    for member, subject in enumerate(subjects):
        if member in refused:
            studies.append(refused[member])
            continue
        whole, *own = effects[member]
        _, together, alone = last[member]
        study = HeadStudy(
            subject=subject.name,
            ablation=question.ablation,
            whole=whole,
            judge=judge,
            heads=tuple(
                judge_head(head, effect, judge, question.ablation) for head, effect in zip(heads, own, strict=True)
            ),
            alone=Removal(tuple(cheap[member]), alone),
            together=Removal(tuple(head for head in heads if head in gone[member]), together),
            curves=(curves[member],),
            seconds=share,
        )
        studies.append(study)
    return studies


def judge_head(head: Head, effect: Effect, judge: Judge, kind: str) -> HeadRow:
    """Judges a head under the one kind of ablation that it was measured under."""
    verdict = judge.verdict(effect)
    return HeadRow(effect, verdict, judge.interval(effect), {kind: verdict}, {kind: effect.drop}, head=head)


def measure_members(
    variants: StackedVariants, problems: Problems, closed: Bool[Tensor, "model variant head"], watch: Watch = SILENT
) -> list[list[Effect]]:
    """Measures for each member the effect of all heads open, which comes first, and of each of its variants."""
    sums, wanted = EffectSums(), torch.cat((torch.zeros_like(closed[:, :1]), closed), dim=1)
    for start in range(0, len(problems), CHUNK):
        some = problems[start : start + CHUNK]
        sums.add(variants(some, wanted), strata_of(variants.subject, some))
        watch(sums.examples, len(problems))
    sums.to_cpu()
    sets = [[variants.heads_of_mask(row) for row in rows] for rows in closed.tolist()]
    return [sums.effects(own, member) for member, own in enumerate(sets)]


def find_greedy_curves(variants: StackedVariants, problems: Problems, watch: Watch) -> list[Curve]:
    """Removes head after head from each member, always the one that costs least given those already gone."""
    count, members, device = len(variants.heads), variants.members, variants.device
    gone, every = torch.zeros(members, count, dtype=torch.bool, device=device), torch.arange(members, device=device)
    whole = variants(problems, gone[:, None])
    steps = [(gone, whole.right[:, 0].sum(-1), whole.loss[:, 0].double().mean(-1))]
    for removed in range(1, count + 1):
        tried = (~gone).nonzero()[:, 1].view(members, -1)  # model variant: each has as many heads left
        closed = gone[:, None].repeat(1, tried.shape[1], 1).scatter(2, tried[..., None], True)
        outcome = variants(problems, closed)
        right, loss = outcome.right.sum(-1), outcome.loss.double().mean(-1)
        best = loss.where(right == right.amax(1, keepdim=True), math.inf).argmin(1)  # of the most right, the least loss
        gone = closed[every, best]
        steps.append((gone, right[every, best], loss[every, best]))
        watch(removed, count)
    table = zip(*(torch.stack(each, dim=1).tolist() for each in zip(*steps, strict=True)), strict=True)
    curves = []
    for own, rights, losses in table:
        sets, accuracy = tuple(map(variants.heads_of_mask, own)), tuple(right / len(problems) for right in rights)
        searched = 1 + count * (count + 1) // 2
        curves.append(Curve("greedy", sets, accuracy, tuple(losses), searched, len(problems)))
    return curves


def confirm_members(
    variants: StackedVariants, problems: Problems, curves: Sequence[Curve], judge: Judge, watch: Watch
) -> list[Closed]:
    """Finds for each member the largest set on its curve that is within the margin on other problems as well: the sets
    in the order of their size, until one is not (`last_confirmed`)."""
    offers = [curve.sets_to_confirm(judge.margin) for curve in curves]
    found: list[list[Effect]] = [[] for _ in offers]
    waiting = set(range(len(curves)))
    while waiting:
        tried = [
            own[len(effects)] if len(effects) < len(own) else NONE for own, effects in zip(offers, found, strict=True)
        ]
        measured = measure_members(variants, problems, variants.mask_of_sets([[closed] for closed in tried]))
        for member in sorted(waiting):
            if not tried[member] or not judge.confirms(measured[member][1]):
                waiting.remove(member)
            else:
                found[member].append(measured[member][1])
        watch(len(curves) - len(waiting), len(curves))
    return [last_confirmed(effects, judge) for effects in found]

"""A certificate for sortedness: every pair or triple of neighbours, and what their places report."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.certify.locality import SAME, NotLocal, depends_on, reach_of
from headway.certify.verdict import MOST, ROWS, Verdict, Watch, largest
from headway.models import Classifier
from headway.tasks import Sortedness

LONG_SEQUENCE = 80
"""long enough for attention to gather its keys"""


def certify_sortedness(model: Classifier, task: Sortedness, watch: Watch | None) -> Verdict:
    if model.config.pooling != "violation":
        raise NotLocal(f"with {model.config.pooling} pooling an answer depends on all places at once, not on the worst")
    behind, ahead = _neighbourhood(model, task)
    width = behind + 1 + ahead
    if task.values**width > MOST:
        raise NotLocal(
            f"a place depends on {width} tokens: {task.values**width:,} contexts; at most {MOST:,} are tried"
        )
    if max(behind, ahead) > 1:
        raise NotLocal(f"a place depends on {behind} tokens before it and {ahead} behind; only one of each is tried")
    verdict = Verdict()
    verdict.rounding = _sortedness_rounding(model, task)
    _check_outside_places(model, task, behind, ahead)
    fires = _alarms(model, task, behind, ahead, watch)
    _judge_sorted(verdict, fires, task.values)
    _judge_violations(verdict, fires, task.values, behind, ahead)
    return verdict


def _neighbourhood(model: Classifier, task: Sortedness) -> tuple[int, int]:
    """How many tokens before and behind a place have a say there: as the window reaches, and as the masks show."""
    behind, ahead = reach_of(model)
    length = 2 * (behind + ahead) + 20
    source = task.testing(0, 1, length=length, device=next(model.parameters()).device).source
    depends = depends_on(model, model.order(source))
    for place in range(length):
        seen = depends[place].nonzero()[:, 0].tolist()
        if seen != list(range(max(0, place - behind), min(length, place + ahead + 1))):
            raise NotLocal(f"place {place} of {length} depends on {seen}, not on a neighbourhood like the others'")
    return behind, ahead


@dataclass(frozen=True)
class _Alarms:
    """What a place says, by what it sees: above 0 it reports a violation."""

    inner: Tensor  # one axis a token of the neighbourhood, in order
    first: Tensor  # at the left border: without those before
    last: Tensor  # at the right border: without those behind


@torch.no_grad()
def _alarms(model: Classifier, task: Sortedness, behind: int, ahead: int, watch: Watch | None) -> _Alarms:
    """Each neighbourhood put before the model as a whole sequence, and what it says at the place in question."""

    def said(width: int, place: int) -> Tensor:
        total, parts = task.values**width, []
        device = next(model.parameters()).device
        for start in range(0, total, ROWS):
            number = torch.arange(start, min(start + ROWS, total), device=device)
            tokens = [number // task.values ** (width - 1 - at) % task.values for at in range(width)]
            parts.append(model.violations(torch.stack(tokens, dim=1))[:, place].cpu())
            if watch is not None:
                watch(start, total)
        return torch.cat(parts).view(*[task.values] * width)

    return _Alarms(said(behind + 1 + ahead, behind), said(1 + ahead, 0), said(behind + 1, behind))


def _judge_sorted(verdict: Verdict, fires: _Alarms, values: int) -> None:
    """No window of a sorted sequence may report a violation."""
    for name, table in (("sorted, inside", fires.inner), ("sorted, first", fires.first), ("sorted, last", fires.last)):
        axes = torch.meshgrid(*[torch.arange(values)] * table.ndim, indexing="ij")
        ordered = torch.ones_like(table, dtype=torch.bool)
        for left, right in itertools.pairwise(axes):
            ordered &= left <= right
        places = ordered.nonzero()
        verdict.add(name, -table[ordered], lambda row, p=places: " ".join(map(str, p[row].tolist())))


def _judge_violations(verdict: Verdict, fires: _Alarms, values: int, behind: int, ahead: int) -> None:
    """For the first violation x > y, in every context, x's place or y's reports it."""
    number = torch.arange(values)
    x, y = torch.meshgrid(number, number, indexing="ij")
    drop = x > y
    left = _least_before(fires, values, behind, ahead)  # x y: what x's place says, in its worst context
    right = _least_behind(fires, values, behind, ahead)
    best = torch.maximum(left, right)
    places = drop.nonzero()
    verdict.add("violation", best[drop], lambda row: "{} before {}".format(*places[row].tolist()))


def _least_before(fires: _Alarms, values: int, behind: int, ahead: int) -> Tensor:
    """The least that the left end x of a first violation x > y says: over all that may stand before it."""
    if not ahead:  # it does not see y
        return torch.full((values, values), -torch.inf)
    if not behind:
        return fires.inner
    ordered = torch.arange(values)[:, None, None] <= torch.arange(values)[None, :, None]  # what stands before is sorted
    inner = fires.inner.where(ordered, torch.inf).amin(0)
    return torch.minimum(inner, fires.first)


def _least_behind(fires: _Alarms, values: int, behind: int, ahead: int) -> Tensor:
    """The least that the right end y says: over all that may stand behind it."""
    if not behind:
        return torch.full((values, values), -torch.inf)
    if not ahead:
        return fires.inner
    return torch.minimum(fires.inner.amin(2), fires.last)


@torch.no_grad()
def _check_outside_places(model: Classifier, task: Sortedness, behind: int, ahead: int) -> None:
    """Tokens outside the neighbourhood of the first, an inner and the last place are replaced."""
    exact, device = copy.deepcopy(model).double(), next(model.parameters()).device
    for place in (0, LONG_SEQUENCE // 2, LONG_SEQUENCE - 1):
        source, other = (task.testing(seed, 64, length=LONG_SEQUENCE, device=device).source for seed in (1, 2))
        inside = slice(max(0, place - behind), place + ahead + 1)
        other[:, inside] = source[:, inside]
        moved = float((exact.violations(source)[:, place] - exact.violations(other)[:, place]).abs().max())
        if not moved <= SAME:
            raise NotLocal(
                f"what place {place} says moves by {moved:.2g} when tokens outside its window are replaced: something "
                "in the model sees past the masks"
            )


@torch.no_grad()
def _sortedness_rounding(model: Classifier, task: Sortedness) -> float:
    source = task.testing(3, 32, length=task.longest, device=next(model.parameters()).device).source
    many = model.violations(source)
    one = torch.cat([model.violations(row[None]) for row in source])
    long = source.repeat(1, 1 + LONG_SEQUENCE // task.longest)
    longer = model.violations(long)
    logits = model(long)[:, 0]
    if not float((logits[:, 0] - logits[:, 1] - longer.amax(1)).abs().max()) <= 1e-3:
        raise NotLocal("its answer is not the strongest violation that its places report")
    return largest(one - many, longer[:, 1 : task.longest - 1] - many[:, 1:-1])

"""A certificate for a relation between neighbours, such as sortedness: every pair or triple, and what places say."""

import itertools

import torch
from torch import Tensor

from headway.certify.locality import NotLocal, check_outside, depends_on, find_reach, measure_rounding
from headway.certify.verdict import MOST, ROWS, Verdict, Watch
from headway.models import Classifier
from headway.tasks import Problems, Task
from headway.tasks.problems import Neighbours

LONG_SEQUENCE = 80  # long enough for attention to gather its keys

Reports = dict[str, Tensor]
"""What a place says, by what it sees: above 0 it reports a violation. One axis a token of the neighbourhood, in order,
for a place inside; for the first without those before it, for the last without those behind."""


def certify_neighbours(model: Classifier, task: Task, local: Neighbours, watch: Watch | None) -> Verdict:
    """Goes through everything that a place can see, and what it reports then."""
    if model.config.index != "sequential":
        raise NotLocal(f"with the index {model.config.index} neighbours in the sequence are no neighbours to a window")
    if model.config.pooling != "violation":
        raise NotLocal(f"with {model.config.pooling} pooling an answer depends on all places at once, not on the worst")
    behind, ahead = _neighbourhood(model, task)
    width = behind + 1 + ahead
    if local.values**width > MOST:
        total = f"{local.values**width:,} contexts"
        raise NotLocal(f"a place depends on {width} tokens: {total}; at most {MOST:,} are tried")
    if max(behind, ahead) > 1:
        raise NotLocal(f"a place depends on {behind} tokens before it and {ahead} behind; only one of each is tried")
    verdict = Verdict(rounding=_rounding(model, task))
    _check_places(model, task, behind, ahead)
    reports = _collect_reports(model, local.values, behind, ahead, watch)
    _judge_right(verdict, reports, local)
    _judge_violations(verdict, reports, local, behind, ahead)
    return verdict


def _neighbourhood(model: Classifier, task: Task) -> tuple[int, int]:
    """How many tokens before and behind a place have a say there: as the window reaches, and as the masks show."""
    behind, ahead = find_reach(model)
    length = 2 * (behind + ahead) + 20
    source = task.testing(0, 1, length=length, device=next(model.parameters()).device).source
    depends = depends_on(model, model.stack("encoder", source).order)
    for place in range(length):
        seen = depends[place].nonzero()[:, 0].tolist()
        if seen != list(range(max(0, place - behind), min(length, place + ahead + 1))):
            raise NotLocal(f"place {place} of {length} depends on {seen}, not on a neighbourhood like the others'")
    return behind, ahead


@torch.no_grad()
def _collect_reports(model: Classifier, values: int, behind: int, ahead: int, watch: Watch | None) -> Reports:
    """Each neighbourhood put before the model as a whole sequence, and what it says at the place in question."""
    device = next(model.parameters()).device

    def say(width: int, place: int) -> Tensor:
        total, parts = values**width, []
        for start in range(0, total, ROWS):
            number = torch.arange(start, min(start + ROWS, total), device=device)
            tokens = [number // values ** (width - 1 - at) % values for at in range(width)]
            parts.append(model.violations(torch.stack(tokens, dim=1))[:, place].cpu())
            if watch is not None:
                watch(start, total)
        return torch.cat(parts).view(*[values] * width)

    return {"inside": say(behind + 1 + ahead, behind), "first": say(1 + ahead, 0), "last": say(behind + 1, behind)}


def _judge_right(verdict: Verdict, reports: Reports, local: Neighbours) -> None:
    """No window of a sequence without a violation may report one."""
    for name, table in reports.items():
        axes = torch.meshgrid(*[torch.arange(local.values)] * table.ndim, indexing="ij")
        right = torch.ones_like(table, dtype=torch.bool)
        for left_one, right_one in itertools.pairwise(axes):
            right &= local.holds(left_one, right_one)
        places = right.nonzero()
        verdict.add(f"sorted, {name}", -table[right], lambda row, p=places: " ".join(map(str, p[row].tolist())))


def _judge_violations(verdict: Verdict, reports: Reports, local: Neighbours, behind: int, ahead: int) -> None:
    """For the first violation x, y, in every context, x's place or y's reports it."""
    number = torch.arange(local.values)
    holds = local.holds(number[:, None], number[None])  # left right
    least = torch.full((local.values, local.values), -torch.inf)  # of a place that does not see the other
    left = right = least  # x y: what the place of x, and of y, reports in its worst context
    if ahead:
        left = reports["inside"]
        if behind:  # over all that may stand before x
            left = torch.minimum(left.where(holds[:, :, None], torch.inf).amin(0), reports["first"])
    if behind:
        right = reports["inside"]
        if ahead:  # over all that may stand behind y
            right = torch.minimum(right.amin(2), reports["last"])
    reported, places = torch.maximum(left, right)[~holds], (~holds).nonzero()
    verdict.add("violation", reported, lambda row: "{} before {}".format(*places[row].tolist()))


def _read(model: Classifier, problems: Problems) -> Tensor:
    return model.violations(problems.source)


def _check_places(model: Classifier, task: Task, behind: int, ahead: int) -> None:
    """Tokens outside the neighbourhood of the first, an inner and the last place are replaced."""
    device = next(model.parameters()).device
    for place in (0, LONG_SEQUENCE // 2, LONG_SEQUENCE - 1):
        problems, others = (task.testing(seed, 64, length=LONG_SEQUENCE, device=device) for seed in (1, 2))
        inside = slice(max(0, place - behind), place + ahead + 1)
        others.source[:, inside] = problems.source[:, inside]
        check_outside(_read, model, problems, others, place, f"what place {place} says")


@torch.no_grad()
def _rounding(model: Classifier, task: Task) -> float:
    problems, longest = task.testing(3, 32, device=next(model.parameters()).device), task.lengths[1]
    longer = Problems(problems.source.repeat(1, 1 + LONG_SEQUENCE // longest), problems.answer)
    logits = model(longer.source)[:, 0]
    if not float((logits[:, 0] - logits[:, 1] - _read(model, longer).amax(1)).abs().max()) <= 1e-3:
        raise NotLocal("its answer is not the strongest violation that its places report")
    return measure_rounding(_read, model, problems, longer, len(problems), slice(1, longest - 1))

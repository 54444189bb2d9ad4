"""A certificate for a relation between neighbours, such as sortedness: checks every pair or triple of tokens."""

import itertools

import torch
from torch import Tensor

from headway.certify.locality import NotLocal, check_outside, depends_on, find_reach, measure_rounding
from headway.certify.verdict import MOST, ROWS, Verdict, Watch
from headway.models import Classifier
from headway.tasks import Problems, Task
from headway.tasks.problems import Neighbours

LONG_SEQUENCE = 80  # long enough that attention gathers its keys

Reports = dict[str, Tensor]
"""The output at a place for every context: above 0 it reports a violation. There is one axis for each token of the
neighbourhood, in order; the first place has no tokens before it, the last none after it."""


def certify_neighbours(model: Classifier, task: Task, local: Neighbours, watch: Watch | None) -> Verdict:
    """Checks what a place reports in every context that it can have."""
    if model.config.index != "sequential":
        raise NotLocal(f"with the index {model.config.index} a window does not follow the sequence; use sequential")
    if model.config.pooling != "violation":
        raise NotLocal(f"with {model.config.pooling} pooling an answer depends on all places, not on the worst one")
    behind, ahead = _neighbourhood(model, task)
    width = behind + 1 + ahead
    if local.values**width > MOST:
        total = f"{local.values**width:,} contexts"
        raise NotLocal(f"a place depends on {width} tokens: {total}; at most {MOST:,} can be checked")
    if max(behind, ahead) > 1:
        raise NotLocal(f"a place depends on {behind} tokens before it and {ahead} after it; at most one of each fits")
    verdict = Verdict(rounding=_rounding(model, task))
    _check_places(model, task, behind, ahead)
    reports = _collect_reports(model, local.values, behind, ahead, watch)
    _judge_right(verdict, reports, local)
    _judge_violations(verdict, reports, local, behind, ahead)
    return verdict


def _neighbourhood(model: Classifier, task: Task) -> tuple[int, int]:
    """Returns how many tokens before and after a place influence it, by the window; checks it against the masks."""
    behind, ahead = find_reach(model)
    length = 2 * (behind + ahead) + 20
    source = task.testing(0, 1, length=length, device=next(model.parameters()).device).source
    depends = depends_on(model, model.stack("encoder", source).order)
    for place in range(length):
        seen = depends[place].nonzero()[:, 0].tolist()
        if seen != list(range(max(0, place - behind), min(length, place + ahead + 1))):
            raise NotLocal(f"place {place} of {length} depends on {seen}, not on the same neighbourhood as the others")
    return behind, ahead


@torch.no_grad()
def _collect_reports(model: Classifier, values: int, behind: int, ahead: int, watch: Watch | None) -> Reports:
    """Runs the model on each neighbourhood as a whole sequence and collects its output at the place in question."""
    device = next(model.parameters()).device

    def run(width: int, place: int) -> Tensor:
        total, parts = values**width, []
        for start in range(0, total, ROWS):
            number = torch.arange(start, min(start + ROWS, total), device=device)
            tokens = [number // values ** (width - 1 - at) % values for at in range(width)]
            parts.append(model.violations(torch.stack(tokens, dim=1))[:, place].cpu())
            if watch is not None:
                watch(start, total)
        return torch.cat(parts).view(*[values] * width)

    return {"inside": run(behind + 1 + ahead, behind), "first": run(1 + ahead, 0), "last": run(behind + 1, behind)}


def _judge_right(verdict: Verdict, reports: Reports, local: Neighbours) -> None:
    """Checks that no window of a sequence without a violation reports one."""
    for name, table in reports.items():
        axes = torch.meshgrid(*[torch.arange(local.values)] * table.ndim, indexing="ij")
        right = torch.ones_like(table, dtype=torch.bool)
        for left_one, right_one in itertools.pairwise(axes):
            right &= local.holds(left_one, right_one)
        places = right.nonzero()
        verdict.add(f"sorted, {name}", -table[right], lambda row, p=places: " ".join(map(str, p[row].tolist())))


def _judge_violations(verdict: Verdict, reports: Reports, local: Neighbours, behind: int, ahead: int) -> None:
    """Checks that the place of x or of y reports the first violation x, y, in every context."""
    number = torch.arange(local.values)
    holds = local.holds(number[:, None], number[None])  # left right
    least = torch.full((local.values, local.values), -torch.inf)  # for a place that does not see the other token
    left = right = least  # x y: the weakest report of the place of x, and of y
    if ahead:
        left = reports["inside"]
        if behind:  # over all tokens that may precede x
            left = torch.minimum(left.where(holds[:, :, None], torch.inf).amin(0), reports["first"])
    if behind:
        right = reports["inside"]
        if ahead:  # over all tokens that may follow y
            right = torch.minimum(right.amin(2), reports["last"])
    reported, places = torch.maximum(left, right)[~holds], (~holds).nonzero()
    verdict.add("violation", reported, lambda row: "{} before {}".format(*places[row].tolist()))


def _read(model: Classifier, problems: Problems) -> Tensor:
    return model.violations(problems.source)


def _check_places(model: Classifier, task: Task, behind: int, ahead: int) -> None:
    """Replaces the tokens outside the neighbourhood of the first, an inner and the last place; no output may change."""
    device = next(model.parameters()).device
    for place in (0, LONG_SEQUENCE // 2, LONG_SEQUENCE - 1):
        problems, others = (task.testing(seed, 64, length=LONG_SEQUENCE, device=device) for seed in (1, 2))
        inside = slice(max(0, place - behind), place + ahead + 1)
        others.source[:, inside] = problems.source[:, inside]
        check_outside(_read, model, problems, others, place, f"the output at place {place}")


@torch.no_grad()
def _rounding(model: Classifier, task: Task) -> float:
    problems, longest = task.testing(3, 32, device=next(model.parameters()).device), task.lengths[1]
    longer = Problems(problems.source.repeat(1, 1 + LONG_SEQUENCE // longest), problems.answer)
    logits = model(longer.source)[:, 0]
    if not float((logits[:, 0] - logits[:, 1] - _read(model, longer).amax(1)).abs().max()) <= 1e-3:
        raise NotLocal("its answer is not the strongest violation that any place reports")
    return measure_rounding(_read, model, problems, longer, len(problems), slice(1, longest - 1))

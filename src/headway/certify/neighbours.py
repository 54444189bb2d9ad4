"""A certificate for a relation between neighbours, such as sortedness: checks every pair of tokens, every triple, or
whatever a place depends on through all layers."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from headway.certify.assumptions import check_repeats, check_shifts
from headway.certify.leads import Leads, RoundingBound, bias_of
from headway.certify.locality import NotLocal, check_outside, depends_on, find_reach, measure_rounding, read_exactly
from headway.certify.verdict import MOST, ROWS, Verdict, Watch
from headway.models import Classifier
from headway.tasks import Problems, Task
from headway.tasks.problems import Neighbours

LONG_SEQUENCE = 80  # long enough that attention gathers its keys
PERIOD, PERIODS = 37, (1, 10, 100)  # of the tokens of sequences that repeat themselves

Find = Callable[[str, Tensor, int], tuple[Leads, Leads]]
"""Called with a kind of place, contexts and the place in them; returns the leads with the bound of what float32 gives
for these contexts alone, and of what it gives wherever they occur."""

Places = dict[str, tuple[int, int]]
"""How many tokens before and after it a kind of place depends on."""

Reports = dict[str, Tensor]
"""The output at a place for every context: above 0 it reports a violation. There is one axis for each token of the
neighbourhood, in order; the first place has no tokens before it, the last none after it."""


def certify_neighbours(model: Classifier, task: Task, local: Neighbours, watch: Watch | None) -> Verdict:
    """Checks what a place reports in every context that it can have."""
    check_readout(model)
    behind, ahead = _neighbourhood(model, task)
    check_count(local, behind, ahead)
    verdict = Verdict(rounding=_rounding(model, task))
    _check_places(model, task, behind, ahead)
    _check_everywhere(model, task, local, behind, ahead)
    bound = RoundingBound(model, model.head, rivals=False)

    def find(kind: str, tokens: Tensor, place: int) -> tuple[Leads, Leads]:
        leads = bound(tokens, bias_of(model.stack("encoder", tokens[:1]).order), place)
        return leads, leads

    reports, leads = collect_reports(verdict, model, local.values, behind, ahead, find, watch, alike=True)
    judge(verdict, reports, leads, local, behind, ahead)
    return verdict


def check_readout(model: Classifier) -> None:
    """Rejects a model whose answer is not the strongest of what its places report, in the order of the sequence."""
    if model.config.index != "sequential":
        raise NotLocal(f"with the index {model.config.index} a window does not follow the sequence; use sequential")
    if model.config.pooling != "violation":
        raise NotLocal(f"with {model.config.pooling} pooling an answer depends on all places, not on the worst one")


def check_count(local: Neighbours, behind: int, ahead: int) -> None:
    """Rejects neighbourhoods with too many contents."""
    width = behind + 1 + ahead
    if local.values**width > MOST:
        total = f"{local.values**width:,} contexts"
        raise NotLocal(f"a place depends on {width} tokens: {total}; at most {MOST:,} can be checked")


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
def collect_reports(
    verdict: Verdict,
    model: Classifier,
    values: int,
    behind: int,
    ahead: int,
    find: Find,
    watch: Watch | None,
    alike: bool = False,
) -> tuple[Reports, dict[str, Leads]]:
    """Runs the model on each neighbourhood as a whole sequence and collects its output at the place in question, in
    float32 and in float64 with its bound. With `alike`, kinds of places with the same neighbours do not differ."""
    device = next(model.parameters()).device

    def run(kind: str, place: int, after: int) -> tuple[Tensor, Leads]:
        width, parts, bounds = place + 1 + after, [], []
        total = values**width
        for start in range(0, total, ROWS):
            number = torch.arange(start, min(start + ROWS, total), device=device)
            tokens = torch.stack([number // values ** (width - 1 - at) % values for at in range(width)], dim=1)
            parts.append(model.violations(tokens)[:, place].cpu())
            alone, anywhere = (Leads(*(each.cpu() for each in found)) for found in find(kind, tokens, place))
            bounds.append(anywhere)
            verdict.compare(parts[-1][:, None], alone, lambda row, t=tokens: " ".join(map(str, t[row].tolist())))
            if watch is not None:
                watch(start, total)
        leads = Leads(*(torch.cat(each).view(*[values] * width) for each in zip(*bounds, strict=True)))
        return torch.cat(parts).view(*[values] * width), leads

    found, kinds = {}, places_of(behind, ahead)
    for name, kind in kinds.items():
        twin = next((other for other in found if alike and kinds[other] == kind), None)
        found[name] = run(name, *kind) if twin is None else found[twin]
    return {name: each[0] for name, each in found.items()}, {name: each[1] for name, each in found.items()}


def places_of(behind: int, ahead: int) -> Places:
    """Returns the kinds of places: those with all their neighbours, and those near the ends, with fewer."""
    kinds = {"inside": (behind, ahead), "first": (0, ahead), "last": (behind, 0)}
    if behind and ahead:  # a sequence of one token; elsewhere that is its first or its last place
        kinds["alone"] = (0, 0)
    every = ((before, after) for before in range(behind + 1) for after in range(ahead + 1))
    return kinds | {f"{each[0]} before, {each[1]} after": each for each in every if each not in kinds.values()}


def judge(
    verdict: Verdict, reports: Reports, leads: dict[str, Leads], local: Neighbours, behind: int, ahead: int
) -> None:
    """Adds every context to the verdict: no sorted one may report a violation, every violation must be reported."""
    _judge_right(verdict, reports, leads, local)
    _judge_violations(verdict, reports, leads, local, behind, ahead)


def _judge_right(verdict: Verdict, reports: Reports, leads: dict[str, Leads], local: Neighbours) -> None:
    """Checks that no window of a sequence without a violation reports one."""
    for name, table in reports.items():
        most = leads[name].value + leads[name].bound
        axes = torch.meshgrid(*[torch.arange(local.values)] * table.ndim, indexing="ij")
        right = torch.ones_like(table, dtype=torch.bool)
        for left_one, right_one in itertools.pairwise(axes):
            right &= local.holds(left_one, right_one)
        places = right.nonzero()
        show = lambda row, p=places: " ".join(map(str, p[row].tolist()))  # noqa: E731
        verdict.add(f"sorted, {name}", -table[right], -most[right], show)


def _judge_violations(
    verdict: Verdict, reports: Reports, leads: dict[str, Leads], local: Neighbours, behind: int, ahead: int
) -> None:
    """Checks that the place of x or of y reports the first violation x, y, in every context."""
    number = torch.arange(local.values)
    holds = local.holds(number[:, None], number[None])  # left right
    least = {name: each.value - each.bound for name, each in leads.items()}
    kinds = places_of(behind, ahead)
    reported, proved = (_weakest_report(each, holds, kinds)[~holds] for each in (reports, least))
    places = (~holds).nonzero()
    verdict.add("violation", reported, proved, lambda row: "{} before {}".format(*places[row].tolist()))


def _weakest_report(reports: Reports, holds: Tensor, kinds: Places) -> Tensor:
    """Returns the weakest report of each first violation x, y, by the place that reports it more strongly. What comes
    before x is in order, what follows y may be anything."""
    unseen = torch.full_like(holds, -torch.inf, dtype=reports["inside"].dtype)
    by_place = [unseen, unseen]  # of x and of y; where it does not see the other token it reports nothing
    for name, (before, after) in kinds.items():
        for which, x in ((0, before), (1, before - 1)):  # the axis of x
            if x < 0 or x + 1 > before + after:
                continue
            table = reports[name]
            for axis in range(x):  # the tokens before x, in order up to x
                shape = [1] * table.ndim
                shape[axis : axis + 2] = holds.shape
                table = table.where(holds.view(shape), torch.inf)
            others = [axis for axis in range(table.ndim) if axis not in (x, x + 1)]
            weakest = table.amin(others) if others else table
            seen = by_place[which]
            by_place[which] = weakest if seen is unseen else torch.minimum(seen, weakest)
    return torch.maximum(*by_place)


def _read(model: Classifier, problems: Problems) -> Tensor:
    return model.violations(problems.source)


def _check_everywhere(model: Classifier, task: Task, local: Neighbours, behind: int, ahead: int) -> None:
    """Tries whether the place or the length matters: with shifted indices, and in sequences that repeat themselves,
    beside their neighbourhoods alone."""
    device = next(model.parameters()).device
    problems = task.testing(4, 8, device=device)
    check_shifts(model, problems.source, problems.answer)
    once = torch.randint(local.values, (PERIOD,), generator=torch.Generator().manual_seed(0)).to(device)
    shown = torch.arange(PERIOD)[:, None] + torch.arange(-behind, ahead + 1)  # place of the period, its neighbourhood

    def read(tokens: Tensor) -> Tensor:
        return read_exactly(_read, model, Problems(tokens, tokens.new_zeros(len(tokens), 1)))

    alone = read(once[shown % PERIOD])[:, behind, None]
    for periods in PERIODS:
        check_repeats(read(once.repeat(periods)[None])[0, :, None], alone, behind, ahead)


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

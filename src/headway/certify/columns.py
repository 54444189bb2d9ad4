"""A certificate for sums: checks every content of the columns that an answer digit depends on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from headway.certify.accuracy import find_accuracy
from headway.certify.assumptions import check_repeats, check_shifts
from headway.certify.leads import Leads, RoundingBound, bias_of
from headway.certify.locality import (
    Certifiable,
    NotLocal,
    check_outside,
    depends_on,
    find_reach,
    measure_rounding,
    read_exactly,
)
from headway.certify.verdict import MOST, ROWS, Verdict, Watch
from headway.models import Decoder
from headway.tasks import Problems, Task
from headway.tasks.problems import Columns

LONG = 24  # digits of sums long enough that attention gathers its keys
PERIOD, PERIODS = 37, (1, 10, 100)  # of the digits of sums that repeat themselves


@dataclass(frozen=True)
class ColumnPattern:
    """The tokens that one answer digit depends on: the role of each, and its column relative to the digit."""

    tokens: tuple[tuple[str, int], ...]

    @property
    def columns(self) -> list[int]:
        """The operand columns among them, relative to the predicted digit."""
        return sorted({column for role, column in self.tokens if role in ("a", "b")})

    @property
    def answers(self) -> list[int]:
        return sorted(column for role, column in self.tokens if role == "answer")

    @property
    def begins(self) -> bool:
        """Whether the start of the answer is visible, so that there are no columns further right."""
        return any(role in ("start", "operator") for role, _ in self.tokens)

    def has_room(self, column: int) -> bool:
        """Returns whether there are enough columns on its right for any carry and any visible answer digits."""
        return self.begins or column + min([*self.columns, *self.answers], default=0) >= 1

    def __str__(self) -> str:
        return " ".join(f"{role}{column:+d}" if role in ("a", "b", "answer") else role for role, column in self.tokens)


@torch.no_grad()
def certify_columns(model: Decoder, task: Task, columns: Columns, watch: Watch | None) -> Verdict:
    """Checks every content of every neighbourhood of an answer digit."""
    if model.config.index != "coupled":
        raise NotLocal(f"with the index {model.config.index} a window does not follow columns; use coupled")
    base, (behind, ahead), device = columns.base, find_reach(model), next(model.parameters()).device
    inner = base ** (2 * (behind + 1 + ahead)) * 2 * base
    if inner > MOST:
        raise NotLocal(f"there are {inner:,} contexts of inner columns; at most {MOST:,} can be checked")
    found = patterns(model, task)
    total = sum(count_contexts(pattern, base) for pattern in found)
    if total > MOST:
        raise NotLocal(f"there are {total:,} contexts; at most {MOST:,} can be checked")
    problems = task.testing(3, 64, device=device)
    (a, plus, b), zeros = columns.operands(problems), problems.source.new_zeros(64, LONG)
    longer = columns.problems(torch.cat((zeros, a), dim=1), plus, torch.cat((zeros, b), dim=1))  # the same columns
    shared = slice(0, max(1, task.lengths[1] - ahead))
    verdict = Verdict(rounding=measure_rounding(_read, model, problems, longer, 16, shared))
    bound = RoundingBound(model, model.unembed, model.segments)
    for pattern, (digits, column) in _kinds(model, task, LONG).items():
        check_digit(model, task, pattern, digits, column)
    check_everywhere(model, task, columns, *find_reach(model))
    failed: dict[ColumnPattern, list[Tensor]] = {pattern: [] for pattern in found}
    for pattern, (digits, column) in found.items():
        for problems in contexts(columns, pattern, digits, column):
            failed[pattern].append(_judge(verdict, model, bound, task, str(pattern), problems.to(device), column))
            if watch is not None:
                watch(verdict.contexts, total)
    if any(part.any() for parts in failed.values() for part in parts):
        verdict.accuracy_at_least = find_accuracy({kind: torch.cat(parts) for kind, parts in failed.items()}, base)
    return verdict


def _judge(
    verdict: Verdict, model: Decoder, bound: RoundingBound, task: Task, kind: str, problems: Problems, column: int
) -> Bool[Tensor, " row"]:
    """Adds contexts to the verdict; returns which of them fail."""
    logits, right = _read(model, problems)[:, column].double(), problems.answer[:, column, None]
    measured = (logits.gather(1, right) - logits).scatter(1, right, torch.inf).cpu()
    leads = Leads(*(each.cpu() for each in find_leads(model, bound, problems, column)))
    shown = problems.source.cpu(), problems.answer.cpu()

    def show(row: int) -> str:
        return task.show(*(each[row].tolist() for each in shown))

    verdict.compare(measured, leads, lambda row: f"{kind}: {show(row)}")
    return verdict.add(kind, measured.amin(1), (leads.value - leads.bound).amin(1), show)


def find_leads(model: Decoder, bound: RoundingBound, problems: Problems, column: int) -> Leads:
    """Returns the leads of the right digit in this column of sums, all of one length."""
    source, answer, written = problems.source, problems.answer, model.shift_right(problems.answer)
    tokens = torch.cat((source, written if model.segments is None else written + model.config.vocabulary), dim=1)
    order = model.order(source[:1], answer.shape[1])
    return bound(tokens, bias_of(order), source.shape[1] + column, answer[:, column])


def _read(model: Certifiable, problems: Problems) -> Tensor:
    return model(problems.source, problems.answer)


def patterns(model: Decoder, task: Task) -> dict[ColumnPattern, tuple[int, int]]:
    """Finds every kind of neighbourhood, each with the digits and the column of a problem that has it.

    A window covers a known number of columns, so a neighbourhood depends only on the distance to the borders within
    that range: numbers of twice its width show every kind. Longer numbers are examined as well, and must not show a
    new kind.
    """
    found: dict[ColumnPattern, tuple[int, int]] = {}
    enough = 2 * (sum(find_reach(model)) + 2)
    for digits in range(1, enough + 1):
        for pattern, place in _kinds(model, task, digits).items():
            if pattern not in found or not pattern.has_room(found[pattern][1]):
                found[pattern] = place
    if new := [pattern for pattern in _kinds(model, task, max(LONG, enough + 1)) if pattern not in found]:
        raise NotLocal(f"its neighbourhoods grow with the length: {new[0]} occurs only in longer numbers")
    return found


def _kinds(model: Decoder, task: Task, digits: int) -> dict[ColumnPattern, tuple[int, int]]:
    """Finds the neighbourhoods in numbers of this many digits, each with the last column that has it."""
    problems = task.testing(0, 1, length=digits, device=next(model.parameters()).device)
    depends = depends_on(model, model.order(problems.source, digits + 1))
    falling, found = range(digits - 1, -1, -1), {}
    operands = [*(("a", column) for column in falling), ("operator", 0), *(("b", column) for column in falling)]
    roles = [*operands, ("start", 0), *(("answer", column) for column in range(digits))]  # each with its column
    for column in range(digits + 1):
        row = depends[2 * digits + 1 + column]
        seen = [(role, place - column) for (role, place), inside in zip(roles, row.tolist(), strict=True) if inside]
        pattern = ColumnPattern(tuple(sorted((role, 0 if role in ("start", "operator") else at) for role, at in seen)))
        columns = pattern.columns
        if not columns or columns != [*range(columns[0], columns[-1] + 1)]:
            raise NotLocal(f"answer digit {column} depends on {pattern}: the columns have a gap, or there are none")
        found[pattern] = (digits, column)
    return found


def count_contexts(pattern: ColumnPattern, base: int) -> int:
    columns = pattern.columns
    free = 1 if pattern.begins else 2 * base ** len([at for at in pattern.answers if at < min(columns, default=0)])
    return base ** (2 * len(columns)) * free


def contexts(local: Columns, pattern: ColumnPattern, digits: int, column: int) -> Iterator[Problems]:
    """Yields real problems, one for each content of the neighbourhood that can occur in a right sum."""
    base, columns = local.base, pattern.columns
    lowest = column + min(columns, default=0)
    free = [] if pattern.begins else [column + at for at in pattern.answers if column + at < lowest]
    carries, total = 1 if pattern.begins else 2, count_contexts(pattern, base)
    for start in range(0, total, ROWS):
        number = torch.arange(start, min(start + ROWS, total))
        operands = torch.zeros(2, len(number), digits, dtype=torch.long)  # least significant column first
        for at in columns:
            for which in (0, 1):
                operands[which, :, column + at] = number % base
                number = number // base
        _fill(operands, lowest, free, number % carries, number // carries, base)
        a, b = operands.flip(2)
        yield local.problems(a, torch.full((len(a),), local.plus), b)


def _fill(operands: Tensor, lowest: int, free: list[int], carry: Tensor, number: Tensor, base: int) -> None:
    """Fills the columns below the neighbourhood to make `carry` into it and to show the wanted answer digits."""
    for column in range(lowest - 1, -1, -1):
        shown = torch.zeros_like(carry)
        if column in free:
            shown, number = number % base, number // base
        total = carry * base + shown
        carry = (total > 2 * (base - 1)).long()  # the carry that the next column must make: 9 + 9 alone is too small
        rest = total - carry
        operands[0, :, column] = rest.clamp(max=base - 1)
        operands[1, :, column] = rest - operands[0, :, column]


def check_everywhere(model: Certifiable, task: Task, columns: Columns, behind: int, ahead: int) -> None:
    """Tries whether the place or the length matters: with shifted indices, and in sums whose digits repeat themselves,
    beside sums of a few of their columns. Nothing is carried in them, so that both have the same neighbourhoods."""
    device = next(model.parameters()).device
    problems = task.testing(4, 8, length=5, device=device)
    check_shifts(model, problems.source, problems.answer)
    dice = torch.Generator().manual_seed(0)
    a = torch.randint(columns.base, (PERIOD,), generator=dice)
    b = (torch.rand(PERIOD, generator=dice) * (columns.base - a)).long()  # least significant column first
    column = behind + 2
    shown = torch.arange(PERIOD)[:, None] - column + torch.arange(column + ahead + 2)  # place of the period, column

    def read(a: Tensor, b: Tensor) -> Tensor:
        plus = torch.full((len(a),), columns.plus)
        return read_exactly(_read, model, columns.problems(a.flip(1), plus, b.flip(1)).to(device))

    alone = read(a[shown % PERIOD], b[shown % PERIOD])[:, column]
    for periods in PERIODS:
        check_repeats(read(a.repeat(periods)[None], b.repeat(periods)[None])[0], alone, behind, ahead)


def check_digit(model: Certifiable, task: Task, pattern: ColumnPattern, digits: int, column: int) -> None:
    """Replaces the tokens outside the neighbourhood and checks that the logits of the digit do not change."""
    device = next(model.parameters()).device
    problems, others = (task.testing(seed, 64, length=digits, device=device) for seed in (1, 2))
    inside = torch.tensor([place - column in pattern.columns for place in range(digits - 1, -1, -1)], device=device)
    outside = torch.cat((~inside, inside.new_zeros(1), ~inside))
    source = torch.where(outside, others.source, problems.source)
    shown = [column + at for at in pattern.answers]
    others.answer[:, shown] = problems.answer[:, shown]
    check_outside(_read, model, problems, Problems(source, others.answer), column, f"answer digit {column}")

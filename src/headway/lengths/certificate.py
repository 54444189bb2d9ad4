"""Certificates: a proof, by going through all cases, that a model is right at every length.

Where attention goes through windows and positions are relative, an answer depends on a bounded neighbourhood of
tokens, the same wherever it stands. There are finitely many neighbourhoods, the borders included. Each is put before
the real model inside a real problem, and what it says is held against the truth. docs/certificates.md has the argument
in one page, and what it does not cover.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.lengths.locality import SAME, NotLocal, check_influence, check_relative, depends_on, reach_of
from headway.models import Classifier, Decoder, Model
from headway.tasks import Addition, Problems, Sortedness, Task

MOST = 50_000_000
"""contexts that are gone through at most"""
ROWS = 1_000
LONG = 24
"""digits of sums that are long enough for attention to gather its keys"""
LONG_SEQUENCE = 80
MARGIN_OVER_ROUNDING = 10
"""a margin must be so many times the largest difference that rounding was seen to make"""

Watch = Callable[[int, int], None]


@dataclass
class Verdict:
    """What going through all contexts showed."""

    contexts: int = 0
    wrong: int = 0
    smallest_margin: float = float("inf")
    patterns: list[dict[str, Any]] = field(default_factory=list)
    offending: str | None = None
    rounding: float = 0.0
    reason: str | None = None

    @property
    def certified(self) -> bool:
        return self.reason is None and self.contexts > 0 and not self.wrong

    def add(self, name: str, margins: Tensor, shown: Callable[[int], str]) -> None:
        """Margins of a batch of contexts: how far the right answer leads; below 0, or 0, it is wrong."""
        margins = margins.nan_to_num(nan=-torch.inf)  # what is no number is wrong
        wrong = ~(margins > 0)
        self.contexts += len(margins)
        self.wrong += int(wrong.sum())
        self.smallest_margin = min(self.smallest_margin, float(margins.min()))
        if self.offending is None and wrong.any():
            self.offending = f"{name}: {shown(int(wrong.nonzero()[0, 0]))}"
        if not self.patterns or self.patterns[-1]["pattern"] != name:
            self.patterns.append({"pattern": name, "contexts": 0})
        self.patterns[-1]["contexts"] += len(margins)

    def settle(self) -> Verdict:
        """Adds the reason where there is one against it."""
        if self.wrong:
            self.reason = f"{self.wrong:,} of {self.contexts:,} contexts are wrong, such as {self.offending}"
        elif not self.smallest_margin > MARGIN_OVER_ROUNDING * self.rounding:
            self.reason = (
                f"the smallest margin, {self.smallest_margin:.2g}, is not {MARGIN_OVER_ROUNDING} times the largest "
                f"difference that rounding makes, {self.rounding:.2g}"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        numbers = {"smallest_margin": self.smallest_margin, "rounding": self.rounding}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"certified": self.certified, **asdict(self), **finite}


def certify(model: Model, task: Task, watch: Watch | None = None) -> Verdict:
    """Goes through every context there is; says why not where there can be no certificate."""
    was_training = model.training
    model.eval()
    try:
        check_relative(model)
        if isinstance(task, Addition) and isinstance(model, Decoder):
            return _certify_addition(model, task, watch).settle()
        if isinstance(task, Sortedness) and isinstance(model, Classifier):
            return _certify_sortedness(model, task, watch).settle()
        raise NotLocal(f"{task.name} with this model has no contexts that could be listed")
    except NotLocal as reason:
        return Verdict(reason=str(reason))
    finally:
        model.train(was_training)


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With a hash of itself, so that an altered certificate shows."""
    return {**content, "sha256": _seal(content)}


def is_sealed(content: dict[str, Any]) -> bool:
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return content.get("sha256") == _seal(rest)


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# ---- addition: columns -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """The tokens that one answer digit depends on, told by what they are and how many columns away they stand."""

    tokens: tuple[tuple[str, int], ...]

    @property
    def columns(self) -> list[int]:
        """The operand columns among them, relative to the digit that is predicted."""
        return sorted({column for role, column in self.tokens if role in ("a", "b")})

    @property
    def answers(self) -> list[int]:
        return sorted(column for role, column in self.tokens if role == "answer")

    @property
    def begins(self) -> bool:
        """Whether the answer's start is in view, so that nothing lies further right."""
        return any(role in ("start", "operator") for role, _ in self.tokens)

    def has_room(self, column: int) -> bool:
        """Whether enough lies to the right of it there to bring in any carry and to show any answer digit."""
        return self.begins or column + min([*self.columns, *self.answers], default=0) >= 1

    def __str__(self) -> str:
        return " ".join(f"{role}{column:+d}" if role in ("a", "b", "answer") else role for role, column in self.tokens)


def _certify_addition(model: Decoder, task: Addition, watch: Watch | None) -> Verdict:
    if task.operators != "+" or task.natural or task.first != "least":
        raise NotLocal(
            "only sums, padded to one more digit and answered least significant digit first, go column by column"
        )
    if model.config.index != "coupled":
        raise NotLocal(f"with the index {model.config.index} a window does not follow the columns; only coupled does")
    base, (behind, ahead) = task.base, reach_of(model)
    inner = base ** (2 * (behind + 1 + ahead)) * 2 * base
    if inner > MOST:
        raise NotLocal(f"there are {inner:,} contexts of inner columns; at most {MOST:,} are gone through")
    found = _patterns(model, task)
    counts = {pattern: _count(pattern, base) for pattern in found}
    if sum(counts.values()) > MOST:
        raise NotLocal(f"there are {sum(counts.values()):,} contexts; at most {MOST:,} are gone through")
    verdict, done = Verdict(), 0
    verdict.rounding = _rounding(model, task, ahead)
    for pattern, (digits, column) in _kinds(model, task, LONG).items():
        _check_outside(model, task, pattern, digits, column)
    for pattern, (digits, column) in found.items():
        for problems in _contexts(task, pattern, digits, column):
            verdict.add(str(pattern), _margins(model, problems, column), lambda row, p=problems: _shown(task, p, row))
            done += len(problems)
            if watch is not None:
                watch(done, sum(counts.values()))
    return verdict


def _patterns(model: Decoder, task: Addition) -> dict[Pattern, tuple[int, int]]:
    """Every kind of neighbourhood that there is, each with the digits and the column of a problem that has it.

    A window reaches a known number of columns, so a neighbourhood depends on how near the borders are, as far as that,
    and on nothing else: numbers of twice the reach show all kinds that there are. Longer ones are looked at all the
    same, and may not bring a new kind.
    """
    found: dict[Pattern, tuple[int, int]] = {}
    enough = 2 * (sum(reach_of(model)) + 2)
    for digits in range(1, enough + 1):
        for pattern, place in _kinds(model, task, digits).items():
            if pattern not in found or not pattern.has_room(found[pattern][1]):
                found[pattern] = place
    if new := [pattern for pattern in _kinds(model, task, max(LONG, enough + 1)) if pattern not in found]:
        raise NotLocal(f"its neighbourhoods grow with the length: {new[0]} is new in longer numbers")
    return found


def _kinds(model: Decoder, task: Addition, digits: int) -> dict[Pattern, tuple[int, int]]:
    """The neighbourhoods of numbers of so many digits, each with the last column that has it."""
    problems = task.testing(0, 1, length=digits, device=next(model.parameters()).device)
    depends = depends_on(model, model.order(problems.source, digits + 1))
    roles, found = _roles(digits), {}
    for column in range(digits + 1):
        row = depends[2 * digits + 1 + column]
        seen = [(role, place - column) for (role, place), inside in zip(roles, row.tolist(), strict=True) if inside]
        pattern = Pattern(tuple(sorted((role, 0 if role in ("start", "operator") else at) for role, at in seen)))
        if pattern.columns != [*range(pattern.columns[0], pattern.columns[-1] + 1)] if pattern.columns else True:
            raise NotLocal(f"answer digit {column} depends on {pattern}: columns with a gap between them, or none")
        found[pattern] = (digits, column)
    return found


def _roles(digits: int) -> list[tuple[str, int]]:
    """What each token is and in which column: an answer token stands in the column of its own digit."""
    falling = range(digits - 1, -1, -1)
    operands = [*(("a", column) for column in falling), ("operator", 0), *(("b", column) for column in falling)]
    return [*operands, ("start", 0), *(("answer", column) for column in range(digits))]


def _count(pattern: Pattern, base: int) -> int:
    columns = pattern.columns
    free = 1 if pattern.begins else 2 * base ** len([at for at in pattern.answers if at < min(columns, default=0)])
    return base ** (2 * len(columns)) * free


def _contexts(task: Addition, pattern: Pattern, digits: int, column: int) -> Iterator[Problems]:
    """Real problems, one for each content of the neighbourhood that a right sum can have there."""
    base, columns = task.base, pattern.columns
    lowest = column + min(columns, default=0)
    free = [] if pattern.begins else [column + at for at in pattern.answers if column + at < lowest]
    carries = [0] if pattern.begins else [0, 1]
    total = _count(pattern, base)
    for start in range(0, total, ROWS):
        number = torch.arange(start, min(start + ROWS, total))
        operands = torch.zeros(2, len(number), digits, dtype=torch.long)  # least significant column first
        for at in columns:
            for which in (0, 1):
                operands[which, :, column + at] = number % base
                number = number // base
        carry = number % len(carries)
        number = number // len(carries)
        _fill(operands, lowest, free, carry, number, base)
        a, b = operands.flip(2)
        yield task.problems(a, torch.full((len(a),), task.plus), b)


def _fill(operands: Tensor, lowest: int, free: list[int], carry: Tensor, number: Tensor, base: int) -> None:
    """Columns below the neighbourhood that bring `carry` into its lowest column and show the wanted answer digits."""
    coming = carry  # the carry that a column has to hand on
    for column in range(lowest - 1, -1, -1):
        shown = torch.zeros_like(carry)
        if column in free:
            shown, number = number % base, number // base
        total = coming * base + shown
        needs = (total > 2 * (base - 1)).long()  # 9 + 9 is not enough: one must come in
        rest = total - needs
        operands[0, :, column] = torch.minimum(rest, torch.full_like(rest, base - 1))
        operands[1, :, column] = rest - operands[0, :, column]
        coming = needs


@torch.no_grad()
def _margins(model: Decoder, problems: Problems, column: int) -> Tensor:
    device = next(model.parameters()).device
    logits = model(problems.source.to(device), problems.answer.to(device))[:, column].cpu()
    told = problems.answer[:, column, None]
    return logits.gather(1, told)[:, 0] - logits.scatter(1, told, -torch.inf).amax(1)


def _check_outside(model: Decoder, task: Addition, pattern: Pattern, digits: int, column: int) -> None:
    """Digits outside the neighbourhood are replaced; the logits of the digit must not move."""
    problems = task.testing(1, 64, length=digits, device=next(model.parameters()).device)
    others = task.testing(2, 64, length=digits, device=problems.source.device)
    inside = {column + at for at in pattern.columns}
    columns = [*range(digits - 1, -1, -1)]
    outside = torch.tensor([*(c not in inside for c in columns), False, *(c not in inside for c in columns)])
    source = torch.where(outside.to(problems.source.device), others.source, problems.source)
    answer = others.answer.clone()
    shown = [column + at for at in pattern.answers]
    answer[:, shown] = problems.answer[:, shown]
    check_influence(model, problems, Problems(source, answer), column, f"answer digit {column}")


@torch.no_grad()
def _rounding(model: Decoder, task: Addition, ahead: int) -> float:
    """The largest difference of a logit between one problem at a time, many at once, and in numbers so long that
    attention gathers its keys; of columns that see the same in both."""
    problems = task.testing(3, 64, length=task.digits, device=next(model.parameters()).device)
    many = model(problems.source, problems.answer)
    one = torch.cat([model(problems.source[n : n + 1], problems.answer[n : n + 1]) for n in range(16)])
    long = task.problems(*_padded(task, problems, LONG))
    same = max(1, task.digits - ahead)
    longer = model(long.source, long.answer)[:, :same]
    return _largest(one - many[:16], longer - many[:, :same])


def _largest(*differences: Tensor) -> float:
    """Infinite where one is no number."""
    return max(float(each.abs().nan_to_num(nan=torch.inf).max()) for each in differences)


def _padded(task: Addition, problems: Problems, zeros: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same sums with zeros before: the same columns, further from the end."""
    a, operator, b = task.operands(problems)
    more = a.new_zeros(len(a), zeros)
    return torch.cat((more, a), dim=1), operator, torch.cat((more, b), dim=1)


def _shown(task: Addition, problems: Problems, row: int) -> str:
    return task.show(problems.source[row].tolist(), problems.answer[row].tolist())


# ---- sortedness: neighbours ------------------------------------------------------------------------------------


def _certify_sortedness(model: Classifier, task: Sortedness, watch: Watch | None) -> Verdict:
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
    return _largest(one - many, longer[:, 1 : task.longest - 1] - many[:, 1:-1])

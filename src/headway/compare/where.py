"""Which runs: a small language of comparisons over the keys of a row, made into SQL whose values are parameters.

    positions=rope and reach>256
    not state=complete or (task=addition and final_loss <= 0.01)
    run ~ "seed-1"

A comparison with what a run does not have does not hold, whichever it is. Numbers compare with numbers, text with text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from headway.errors import HeadwayError, unknown

LONGEST = 4_000
"""letters of an expression"""
MOST = 200
"""comparisons in it"""
DEEPEST = 50
"""parentheses and nots within each other"""
SHOWN = 30
"""letters on either side of a mistake"""
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
TRUE, FALSE = b"\x01", b"\x00"
"""truth values as the table keeps them: neither numbers nor text"""

Sql = tuple[str, list[str | int | float | bytes]]
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~()])|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<word>[^\s()<>=!~'"]+)|$)"""
)


@dataclass(frozen=True)
class Condition:
    key: str
    operator: str
    text: str
    """as it was written"""
    quoted: bool = False

    @property
    def value(self) -> str | int | float | bool:
        if self.quoted:
            return self.text
        if self.text.lower() in ("true", "false"):
            return self.text.lower() == "true"
        if not _NUMBER.fullmatch(self.text):
            return self.text
        whole = self.text.lstrip("+-").isdecimal() and len(self.text) <= 18
        return int(self.text) if whole else float(self.text)

    def sql(self, column: Callable[[str], str]) -> Sql:
        name, value = column(self.key), self.value
        if self.operator == "~":
            return f"(typeof({name}) = 'text' AND instr({name}, ?) > 0)", [self.text]
        if isinstance(value, bool):
            return f"{name} {self.operator} ?", [TRUE if value else FALSE]
        if self.operator in ("=", "!="):
            either = [value] if isinstance(value, str) else [value, self.text]
            same = " OR ".join([f"{name} = ?"] * len(either))
            return (f"({same})" if self.operator == "=" else f"NOT ({same})"), [*either]
        if isinstance(value, str):
            return f"({name} {self.operator} ? AND {name} >= '' AND {name} < x'')", [value]
        return f"({name} {self.operator} ? AND {name} < '')", [value]


@dataclass(frozen=True)
class Junction:
    word: str
    """and, or"""
    parts: tuple[Expression, ...]

    def sql(self, column: Callable[[str], str]) -> Sql:
        made = [part.sql(column) for part in self.parts]
        return "(" + f" {self.word.upper()} ".join(text for text, _ in made) + ")", [v for _, vs in made for v in vs]


@dataclass(frozen=True)
class Negation:
    part: Expression

    def sql(self, column: Callable[[str], str]) -> Sql:
        text, values = self.part.sql(column)
        return f"(NOT coalesce({text}, 0))", values  # what a run does not have is no


Expression = Condition | Junction | Negation


@dataclass(frozen=True)
class Where:
    text: str
    expression: Expression

    @property
    def keys(self) -> list[str]:
        """Each once, in the order in which they stand."""

        def among(part: Expression) -> Iterator[str]:
            if isinstance(part, Condition):
                yield part.key
            else:
                for inner in part.parts if isinstance(part, Junction) else (part.part,):
                    yield from among(inner)

        return list(dict.fromkeys(among(self.expression)))

    def check(self, known: Collection[str]) -> None:
        """Refuses a key that no run can have."""
        for key in self.keys:
            if key not in known:
                raise unknown("key in --where", key, known)

    def sql(self, columns: Collection[str]) -> Sql:
        """A condition over these columns; what is none of them is missing in every run."""
        return self.expression.sql(lambda key: quoted(key) if key in columns else "NULL")


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever letters it has."""
    return '"' + name.replace('"', '""') + '"'


def parse_where(text: str) -> Where:
    """The expression in these words; what is wrong with them is said with its place."""
    return Where(text, _Reader(text).read())


class _Token(NamedTuple):
    kind: str
    """sign, quoted, word or end"""
    text: str
    place: int


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise HeadwayError(f"--where has {len(text):,} letters; write at most {LONGEST:,}")
        self.text, self.next, self.depth = text, 0, 0
        self.tokens = list(self._tokens())
        if sum(token.text in OPERATORS for token in self.tokens if token.kind == "sign") > MOST:
            raise HeadwayError(f"--where has more than {MOST} comparisons; ask for less at a time")

    def _tokens(self) -> Iterator[_Token]:
        place = 0
        while True:
            found = _TOKEN.match(self.text, place)
            if found is None:
                start = place + len(self.text[place:]) - len(self.text[place:].lstrip())
                wrong = "a quote that does not end" if self.text[start] in "'\"" else f"{self.text[start]!r} alone"
                self._fail(f"there is {wrong}", start)
            kind, place = found.lastgroup or "end", found.end()
            yield _Token(kind, found[found.lastgroup] if found.lastgroup else "", place - len(found[0].lstrip()))
            if kind == "end":
                return

    def _fail(self, wrong: str, place: int) -> NoReturn:
        before, after = self.text[:place], self.text[place:]
        before = before if len(before) <= SHOWN else "…" + before[-SHOWN:]
        after = after if len(after) <= SHOWN else after[:SHOWN] + "…"
        shown = f"{before}⟨here⟩{after}"
        raise HeadwayError(f"--where cannot be read: {wrong}: {shown!r}; write it like 'positions=rope and reach>256'")

    def _next_is(self, kind: str, *texts: str) -> bool:
        token = self.tokens[self.next]
        return token.kind == kind and (not texts or token.text.lower() in texts)

    def _take(self, expected: str, kind: str, *texts: str) -> _Token:
        token = self.tokens[self.next]
        if not self._next_is(kind, *texts):
            self._fail(f"expected {expected}", token.place)
        self.next += 1
        return token

    def read(self) -> Expression:
        expression = self._joined("or")
        self._take("'and' or 'or'", "end")
        return expression

    def _joined(self, word: str) -> Expression:
        read = (lambda: self._joined("and")) if word == "or" else self._single
        parts = [read()]
        while self._next_is("word", word):
            self.next += 1
            parts.append(read())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _single(self) -> Expression:
        opens = self._next_is("sign", "(")
        if not opens and not self._next_is("word", "not"):
            return self._condition()
        self.depth += 1
        if self.depth > DEEPEST:
            raise HeadwayError(f"--where is nested deeper than {DEEPEST}; write it flatter")
        place = self.tokens[self.next].place
        self.next += 1
        part = self._joined("or") if opens else Negation(self._single())
        if opens:
            self._take(f"the parenthesis of character {place + 1} to close", "sign", ")")
        self.depth -= 1
        return part

    def _condition(self) -> Condition:
        key = self._take("a key", "end" if self._next_is("word", "and", "or") else "word").text.lower()
        operator = self._take(f"one of {' '.join(OPERATORS)}", "sign", *OPERATORS, "==").text
        value = self._take("a value", "quoted" if self._next_is("quoted") else "word")
        is_quoted, text = value.kind == "quoted", value.text
        if is_quoted:
            text = text[1:-1].replace(text[0] * 2, text[0])
        operator = "=" if operator == "==" else operator
        condition = Condition(key, operator, text.encode(errors="replace").decode(), is_quoted)
        if isinstance(condition.value, bool) and operator not in ("=", "!=", "~"):
            self._fail(f"{text} has no order, so expected = or !=", value.place)
        return condition

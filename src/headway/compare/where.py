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
from typing import NoReturn

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
"""truth values as a table keeps them, which has no other that are neither numbers nor text"""

Sql = tuple[str, list[str | int | float | bytes]]
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~()])|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<word>[^\s()<>=!~'"]+)|$)"""
)


@dataclass(frozen=True)
class Compared:
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
class Joined:
    word: str
    """and, or"""
    parts: tuple[Expression, ...]

    def sql(self, column: Callable[[str], str]) -> Sql:
        made = [part.sql(column) for part in self.parts]
        return "(" + f" {self.word.upper()} ".join(text for text, _ in made) + ")", [v for _, vs in made for v in vs]


@dataclass(frozen=True)
class Not:
    part: Expression

    def sql(self, column: Callable[[str], str]) -> Sql:
        text, values = self.part.sql(column)
        return f"(NOT coalesce({text}, 0))", values  # what a run does not have is no


Expression = Compared | Joined | Not


@dataclass(frozen=True)
class Where:
    text: str
    expression: Expression

    @property
    def keys(self) -> list[str]:
        """Each once, in the order in which they stand."""

        def among(part: Expression) -> Iterator[str]:
            if isinstance(part, Compared):
                yield part.key
            else:
                for inner in part.parts if isinstance(part, Joined) else (part.part,):
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


@dataclass(frozen=True)
class _Token:
    kind: str
    """sign, quoted, word or end"""
    text: str
    place: int

    def says(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word


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
            kind = found.lastgroup or "end"
            place = found.end()
            yield _Token(kind, found[found.lastgroup] if found.lastgroup else "", found.end() - len(found[0].lstrip()))
            if kind == "end":
                return

    def _fail(self, wrong: str, place: int) -> NoReturn:
        before, after = self.text[:place], self.text[place:]
        before = before if len(before) <= SHOWN else "…" + before[-SHOWN:]
        after = after if len(after) <= SHOWN else after[:SHOWN] + "…"
        shown = f"{before}⟨here⟩{after}"
        raise HeadwayError(f"--where cannot be read: {wrong}: {shown!r}; write it like 'positions=rope and reach>256'")

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def _take(self) -> _Token:
        self.next += 1
        return self.tokens[self.next - 1]

    def read(self) -> Expression:
        found = self._joined("or")
        if self.token.kind != "end":
            self._fail("'and' or 'or' should stand", self.token.place)
        return found

    def _joined(self, word: str) -> Expression:
        read = (lambda: self._joined("and")) if word == "or" else self._single
        parts = [read()]
        while self.token.says(word):
            self._take()
            parts.append(read())
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _single(self) -> Expression:
        opens = self.token.kind == "sign" and self.token.text == "("
        if not opens and not self.token.says("not"):
            return self._compared()
        self.depth += 1
        if self.depth > DEEPEST:
            raise HeadwayError(f"--where is nested deeper than {DEEPEST}; write it flatter")
        begun = self._take()
        found = self._joined("or") if opens else Not(self._single())
        if opens and (self.token.kind, self.token.text) != ("sign", ")"):
            self._fail(f"the parenthesis of character {begun.place + 1} should close", self.token.place)
        if opens:
            self._take()
        self.depth -= 1
        return found

    def _compared(self) -> Compared:
        key = self.token
        if key.kind != "word" or key.text.lower() in ("and", "or"):
            self._fail("the key of a comparison should stand", key.place)
        self._take()
        operator = "=" if self.token.text == "==" else self.token.text
        if self.token.kind != "sign" or operator not in OPERATORS:
            self._fail(f"one of {' '.join(OPERATORS)} should stand", self.token.place)
        self._take()
        value = self.token
        if value.kind not in ("word", "quoted"):
            self._fail("a value should stand", value.place)
        self._take()
        text = value.text
        if value.kind == "quoted":
            text = text[1:-1].replace(text[0] * 2, text[0])
        found = Compared(key.text.lower(), operator, text.encode(errors="replace").decode(), value.kind == "quoted")
        if isinstance(found.value, bool) and operator not in ("=", "!=", "~"):
            self._fail(f"{text} is larger or smaller than nothing, so = or != should stand", value.place)
        return found

"""Which runs: a small language of comparisons over the keys of a row, made into SQL whose values are parameters.

    positions=rope and reach>256
    not state=complete or (task=addition and final_loss <= 0.01)
    run ~ "seed-1"

A comparison with what a run does not have does not hold, whichever it is. Numbers compare with numbers, text with text.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from headway.errors import HeadwayError, unknown

LONGEST = 4_000  # letters of an expression
MOST = 200  # comparisons in it
DEEPEST = 50  # parentheses and nots within each other
SHOWN = 30  # letters on either side of a mistake
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
TRUE, FALSE = b"\x01", b"\x00"  # truth values as the table keeps them: neither numbers nor text

Parameter = str | int | float | bytes
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~()])|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<word>[^\s()<>=!~'"]+)|$)"""
)
_COLUMN = re.compile("\0(.*?)\0")  # a key in SQL, until it is known whether there is a column of that name


@dataclass(frozen=True)
class Where:
    template: str
    values: list[Parameter]

    @property
    def keys(self) -> list[str]:
        """Each once, in the order in which they stand."""
        return list(dict.fromkeys(_COLUMN.findall(self.template)))

    def check(self, known: Collection[str]) -> None:
        """Refuses a key that no run can have."""
        for key in self.keys:
            if key not in known:
                raise unknown("key in --where", key, known)

    def sql(self, columns: Collection[str]) -> tuple[str, list[Parameter]]:
        """A condition over these columns; what is none of them is missing in every run."""
        return _COLUMN.sub(lambda key: quoted(key[1]) if key[1] in columns else "NULL", self.template), self.values


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever letters it has."""
    return '"' + name.replace('"', '""') + '"'


def parse_where(text: str | None) -> Where:
    """Reads an expression; what is wrong with it is said with its place. None is every run."""
    if text is None:
        return Where("1", [])
    reader = _Reader(text.replace("\0", "\ufffd"))
    template = reader.joined("or")
    reader.take("'and' or 'or'", "end")
    return Where(template, reader.values)


class _Token(NamedTuple):
    kind: str  # sign, quoted, word or end
    text: str
    place: int


class _Reader:
    """Turns an expression into SQL as it goes through its tokens."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise HeadwayError(f"--where has {len(text):,} letters; write at most {LONGEST:,}")
        self.text, self.next, self.depth, self.values = text, 0, 0, list[Parameter]()
        self.tokens = list(self._tokens())
        if sum(token.text in OPERATORS for token in self.tokens if token.kind == "sign") > MOST:
            raise HeadwayError(f"--where has more than {MOST} comparisons; ask for less at a time")

    def _tokens(self) -> Iterator[_Token]:
        place, kind = 0, ""
        while kind != "end":
            found = _TOKEN.match(self.text, place)
            if found is None:
                rest = self.text[place:].lstrip()
                wrong = "a quote that does not end" if rest[0] in "'\"" else f"{rest[0]!r} alone"
                self._fail(f"there is {wrong}", len(self.text) - len(rest))
            kind, place = found.lastgroup or "end", found.end()
            yield _Token(kind, found[found.lastgroup] if found.lastgroup else "", place - len(found[0].lstrip()))

    def _fail(self, wrong: str, place: int) -> NoReturn:
        before = "…" + self.text[place - SHOWN : place] if place > SHOWN else self.text[:place]
        after = self.text[place : place + SHOWN] + ("…" if len(self.text) > place + SHOWN else "")
        shown = repr(f"{before}⟨here⟩{after}")
        raise HeadwayError(f"--where cannot be read: {wrong}: {shown}; write it like 'positions=rope and reach>256'")

    def _next_is(self, kind: str, *texts: str) -> bool:
        token = self.tokens[self.next]
        return token.kind == kind and (not texts or token.text.lower() in texts)

    def take(self, expected: str, kind: str, *texts: str) -> _Token:
        token = self.tokens[self.next]
        if not self._next_is(kind, *texts):
            self._fail(f"expected {expected}", token.place)
        self.next += 1
        return token

    def joined(self, word: str) -> str:
        parts = list[str]()
        while not parts or self._next_is("word", word):
            self.next += bool(parts)
            parts.append(self.joined("and") if word == "or" else self._single())
        return parts[0] if len(parts) == 1 else f"({f' {word.upper()} '.join(parts)})"

    def _single(self) -> str:
        opens = self._next_is("sign", "(")
        if not opens and not self._next_is("word", "not"):
            return self._condition()
        self.depth += 1
        if self.depth > DEEPEST:
            raise HeadwayError(f"--where is nested deeper than {DEEPEST}; write it flatter")
        place = self.tokens[self.next].place
        self.next += 1
        if opens:
            sql = self.joined("or")
            self.take(f"the parenthesis of character {place + 1} to close", "sign", ")")
        else:
            sql = f"(NOT coalesce({self._single()}, 0))"  # what a run does not have is no
        self.depth -= 1
        return sql

    def _condition(self) -> str:
        key = self.take("a key", "end" if self._next_is("word", "and", "or") else "word").text.lower()
        operator = self.take(f"one of {' '.join(OPERATORS)}", "sign", *OPERATORS, "==").text.replace("==", "=")
        token = self.take("a value", "quoted" if self._next_is("quoted") else "word")
        text = token.text if token.kind == "word" else token.text[1:-1].replace(token.text[0] * 2, token.text[0])
        text = text.encode(errors="replace").decode()
        value = text if token.kind == "quoted" else value_of(text)
        if isinstance(value, bool) and operator not in ("=", "!=", "~"):
            self._fail(f"{text} has no order, so expected = or !=", token.place)
        name = f"\0{key}\0"
        match operator:
            case "~":
                self.values.append(text)
                return f"(typeof({name}) = 'text' AND instr({name}, ?) > 0)"
            case _ if isinstance(value, bool):
                self.values.append(TRUE if value else FALSE)
                return f"{name} {operator} ?"
            case "=" | "!=":
                self.values += [value] if isinstance(value, str) else [value, text]
                same = f"({name} = ?)" if isinstance(value, str) else f"({name} = ? OR {name} = ?)"
                return same if operator == "=" else f"NOT {same}"
        self.values.append(value)
        kind = f"{name} >= '' AND {name} < x''" if isinstance(value, str) else f"{name} < ''"
        return f"({name} {operator} ? AND {kind})"


def value_of(text: str) -> str | int | float | bool:
    """A number or a truth value, where a word without quotes is one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdecimal() and len(text) <= 18 else float(text)

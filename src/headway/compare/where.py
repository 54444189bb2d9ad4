"""Filters for runs: a small language of comparisons over the keys of a row, translated to SQL with bound parameters.

    positions=rope and reach>256
    not state=complete or (task=addition and final_loss <= 0.01)
    run ~ "seed-1"

A comparison with a key that a run lacks is false, whatever the operator. Numbers compare with numbers, text with text.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from headway.errors import HeadwayError, unknown

LONGEST = 4_000  # characters of an expression
MOST = 200  # comparisons in it
DEEPEST = 50  # nested parentheses and nots
SHOWN = 30  # characters on either side of a mistake
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
TRUE, FALSE = b"\x01", b"\x00"  # booleans in the table: neither numbers nor text

Parameter = str | int | float | bytes
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~()])|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<word>[^\s()<>=!~'"]+)|$)"""
)
_COLUMN = re.compile("\0(.*?)\0")  # a key in SQL, until its column is known to exist


@dataclass(frozen=True)
class Where:
    template: str
    values: list[Parameter]

    @property
    def keys(self) -> list[str]:
        """The keys of the expression, each once, in order."""
        return list(dict.fromkeys(_COLUMN.findall(self.template)))

    def check(self, known: Collection[str]) -> None:
        """Raises an error for a key that no run can have."""
        for key in self.keys:
            if key not in known:
                raise unknown("key in `where`", key, known)

    def sql(self, columns: Collection[str]) -> tuple[str, list[Parameter]]:
        """Writes a condition over these columns; any other key is NULL in every run."""
        return _COLUMN.sub(lambda key: quote(key[1]) if key[1] in columns else "NULL", self.template), self.values


def quote(name: str) -> str:
    """Quotes a name for SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def parse_where(text: str | None) -> Where:
    """Parses an expression; an error shows where it is wrong. None matches every run."""
    if text is None:
        return Where("1", [])
    reader = _Reader(text.replace("\0", "\ufffd"))
    template = reader.parse_chain("or")
    reader.take("'and' or 'or'", "end")
    return Where(template, reader.values)


class _Token(NamedTuple):
    kind: str  # sign, quoted, word or end
    text: str
    place: int


class _Reader:
    """Translates an expression to SQL, token by token."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise HeadwayError(f"`where` has {len(text):,} characters; write at most {LONGEST:,}")
        self.text, self.next, self.depth, self.values = text, 0, 0, list[Parameter]()
        self.tokens = list(self._tokens())
        if sum(token.text in OPERATORS for token in self.tokens if token.kind == "sign") > MOST:
            raise HeadwayError(f"`where` has more than {MOST} comparisons; split it up")

    def _tokens(self) -> Iterator[_Token]:
        place, kind = 0, ""
        while kind != "end":
            found = _TOKEN.match(self.text, place)
            if found is None:
                rest = self.text[place:].lstrip()
                wrong = "an unclosed quote" if rest[0] in "'\"" else f"a lone {rest[0]!r}"
                self._fail(f"there is {wrong}", len(self.text) - len(rest))
            kind, place = found.lastgroup or "end", found.end()
            yield _Token(kind, found[found.lastgroup] if found.lastgroup else "", place - len(found[0].lstrip()))

    def _fail(self, wrong: str, place: int) -> NoReturn:
        before = "…" + self.text[place - SHOWN : place] if place > SHOWN else self.text[:place]
        after = self.text[place : place + SHOWN] + ("…" if len(self.text) > place + SHOWN else "")
        shown = repr(f"{before}⟨here⟩{after}")
        raise HeadwayError(f"`where` cannot be parsed: {wrong}: {shown}; write it like 'positions=rope and reach>256'")

    def _next_is(self, kind: str, *texts: str) -> bool:
        token = self.tokens[self.next]
        return token.kind == kind and (not texts or token.text.lower() in texts)

    def take(self, expected: str, kind: str, *texts: str) -> _Token:
        token = self.tokens[self.next]
        if not self._next_is(kind, *texts):
            self._fail(f"expected {expected}", token.place)
        self.next += 1
        return token

    def parse_chain(self, word: str) -> str:
        parts = list[str]()
        while not parts or self._next_is("word", word):
            self.next += bool(parts)
            parts.append(self.parse_chain("and") if word == "or" else self._parse_term())
        return parts[0] if len(parts) == 1 else f"({f' {word.upper()} '.join(parts)})"

    def _parse_term(self) -> str:
        opens = self._next_is("sign", "(")
        if not opens and not self._next_is("word", "not"):
            return self._parse_comparison()
        self.depth += 1
        if self.depth > DEEPEST:
            raise HeadwayError(f"`where` is nested deeper than {DEEPEST}; use fewer parentheses")
        place = self.tokens[self.next].place
        self.next += 1
        if opens:
            sql = self.parse_chain("or")
            self.take(f"a closing parenthesis for the one at character {place + 1}", "sign", ")")
        else:
            sql = f"(NOT coalesce({self._parse_term()}, 0))"  # a missing key counts as false
        self.depth -= 1
        return sql

    def _parse_comparison(self) -> str:
        key = self.take("a key", "end" if self._next_is("word", "and", "or") else "word").text.lower()
        operator = self.take(f"one of {' '.join(OPERATORS)}", "sign", *OPERATORS, "==").text.replace("==", "=")
        token = self.take("a value", "quoted" if self._next_is("quoted") else "word")
        text = token.text if token.kind == "word" else token.text[1:-1].replace(token.text[0] * 2, token.text[0])
        text = text.encode(errors="replace").decode()
        value = text if token.kind == "quoted" else parse_value(text)
        if isinstance(value, bool) and operator not in ("=", "!=", "~"):
            self._fail(f"{text} has no order; expected = or !=", token.place)
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


def parse_value(text: str) -> str | int | float | bool:
    """Parses an unquoted word: a number, a boolean or else text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if text.lstrip("+-").isdecimal() and len(text) <= 18 else float(text)

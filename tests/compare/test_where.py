"""--where finds the runs that its expression describes, and rejects anything else with a one-line error."""

from __future__ import annotations

import contextlib
import math
import operator
import sqlite3
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.compare.where import FALSE, TRUE, parse_value, parse_where, quote
from headway.errors import HeadwayError


@dataclass(frozen=True)
class Condition:
    key: str
    operator: str
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Junction:
    word: str
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Negation:
    part: Expression


Expression = Condition | Junction | Negation
KEYS = ["positions", "reach", "reach.one-inversion", "perfect", "option.first"]
WORDS = ["rope", "alibi", "16", "1.5", "-3", "1e3", "and", "not", "x y", "it's", 'say "a"', "", "ä", "(", "true"]
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

values = st.one_of(
    st.none(), st.booleans(), st.integers(-20, 20), st.sampled_from([1.5, 1000.0, -3.0, 2**62]), st.sampled_from(WORDS)
)
rows = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, values)), max_size=8)
texts = st.sampled_from(["rope", "alibi", "16", "1.5", "-3", "1e3", "true", "False", "x", "op", "1e999", "9" * 30])
keys, signs = st.sampled_from(KEYS), st.sampled_from(["=", "!=", "~", *SIGNS])
compared = st.one_of(
    st.builds(Condition, keys, signs, st.sampled_from(WORDS), st.just(True)),
    st.builds(Condition, keys, signs, texts).filter(
        lambda each: not isinstance(parse_value(each.text), bool) or each.operator in ("=", "!=", "~")
    ),
)
expressions: st.SearchStrategy[Expression] = st.recursive(
    compared,
    lambda inner: st.one_of(
        st.builds(Negation, inner),
        st.builds(Junction, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


def render(part: Expression) -> str:
    if isinstance(part, Negation):
        return f"not ({render(part.part)})"
    if isinstance(part, Junction):
        return f" {part.word} ".join(f"({render(each)})" for each in part.parts)
    if part.quoted:
        return f"{part.key} {part.operator} '" + part.text.replace("'", "''") + "'"
    return f"{part.key}{part.operator}{part.text}"


def holds(part: Expression, row: dict[str, Any]) -> bool:
    """Evaluates an expression the slow, obvious way."""
    if isinstance(part, Negation):
        return not holds(part.part, row)
    if isinstance(part, Junction):
        return (all if part.word == "and" else any)([holds(each, row) for each in part.parts])
    here = row.get(part.key)
    if here is None:
        return False
    if part.operator == "~":
        return isinstance(here, str) and part.text in here
    value: Any = part.text
    if not part.quoted and part.text.lower() in ("true", "false"):
        value = part.text.lower() == "true"
    elif not part.quoted:
        with contextlib.suppress(ValueError):
            value = float(part.text)
    alike = kind(here) == kind(value)
    if part.operator in ("=", "!="):
        same = (alike and here == value) or (kind(value) == "number" and here == part.text)
        return same if part.operator == "=" else not same
    return alike and SIGNS[part.operator](here, value)


def kind(value: Any) -> str:
    return "truth" if isinstance(value, bool) else "number" if isinstance(value, int | float) else "text"


@settings(max_examples=250)
@given(expressions, rows)
def test_sql_agrees_with_direct_evaluation(expression: Expression, found: list[dict[str, Any]]) -> None:
    where = parse_where(render(expression))
    table = sqlite3.connect(":memory:")
    table.execute(f"CREATE TABLE runs (number, {', '.join(map(quote, KEYS))})")
    for number, row in enumerate(found):
        cells = [row.get(key) for key in KEYS]
        cells = [TRUE if cell is True else FALSE if cell is False else cell for cell in cells]
        table.execute(f"INSERT INTO runs VALUES ({number}, {', '.join('?' * len(KEYS))})", cells)
    condition, given_values = where.sql(KEYS)
    by_sql = [number for (number,) in table.execute(f"SELECT number FROM runs WHERE {condition}", given_values)]
    table.close()
    assert by_sql == [number for number, row in enumerate(found) if holds(expression, row)]


PIECES = ["a", "and", "or", "not", "(", ")", "=", "<", "1", "'x'", "true", "~", "!="]
ANY = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="ab1.=<>!~()'\" \t\n-", max_size=40),
    st.lists(st.sampled_from(PIECES)).map(" ".join),
)


@settings(max_examples=400)
@given(ANY)
def test_any_text_is_parsed_or_refused_with_a_message(text: str) -> None:
    try:
        where = parse_where(text)
    except HeadwayError:
        return
    condition, given_values = where.sql(where.keys)
    table = sqlite3.connect(":memory:")
    table.execute(f"CREATE TABLE runs ({', '.join(map(quote, where.keys))})")
    table.execute(f"SELECT * FROM runs WHERE {condition}", given_values)
    table.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a key"),
        ("positions", "expected one of = != < <= > >= ~"),
        ("positions=", "expected a value: 'positions=⟨here⟩'"),
        ("positions=rope reach>3", "expected 'and' or 'or': 'positions=rope ⟨here⟩reach>3'"),
        ("(positions=rope", "expected a closing parenthesis for the one at character 1"),
        ("positions=rope)", "expected 'and' or 'or'"),
        ("positions='rope", "an unclosed quote"),
        ("positions ! rope", "a lone '!'"),
        ("perfect > true", "expected = or !="),
        ("a=1 and " * 1000, "write at most 4,000"),
        (" or ".join(["a=1"] * 201), "more than 200 comparisons"),
        ("(" * 51 + "a=1" + ")" * 51, "nested deeper than 50"),
        ("not " * 60 + "a=1", "nested deeper than 50"),
        ("a=1; DROP TABLE runs", "expected 'and' or 'or'"),
    ],
)
def test_an_error_shows_its_position(text: str, told: str) -> None:
    with pytest.raises(HeadwayError) as error:
        parse_where(text)
    assert told in str(error.value)


def test_the_largest_allowed_expression_works() -> None:
    deep = "(" * 50 + " or ".join(["a=1"] * 200) + ")" * 50
    condition, values = parse_where(deep).sql(["a"])
    assert sqlite3.connect(":memory:").execute(f"SELECT 1 FROM (SELECT 1 AS a) WHERE {condition}", values).fetchall()


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(HeadwayError, match="unknown key in `where` 'reech'; did you mean 'reach'"):
        parse_where("reech > 3").check(KEYS)


def test_names_are_quoted_whatever_they_are() -> None:
    assert quote('a"; DROP TABLE runs; --') == '"a""; DROP TABLE runs; --"'
    assert math.isinf(float(parse_value("1e999")))

"""Output of the command line: one JSON object, or a short table and sentences."""

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_ROWS = 40  # of a table in a terminal
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Output:
    """The result of a command, for machines and for people."""

    content: dict[str, Any]
    title: str  # of the table; empty where there are only sentences
    rows: Rows
    more: Sequence[tuple[str, Rows]] = ()
    words: Sequence[str] = ()  # sentences below the tables
    status: int = 0
    shown: Sequence[str] = ()  # columns of the table (default: all)

    def print(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps(self.content))
            return
        if self.title:
            print_table(self.title, self.rows, self.shown)
        for title, rows in self.more:
            print_table(title, rows)
        for sentence in self.words:
            print(sentence)


def as_html(words: Sequence[str], rows: Rows) -> str:
    """Formats sentences and a table as HTML, for notebooks."""
    from html import escape

    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    head = line(rows[0], "th") if rows else ""
    body = "".join(line(("–" if cell is None else cell for cell in row.values()), "td") for row in rows)
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in words) + f"<table>{head}{body}</table>"


def print_table(title: str, rows: Rows, shown: Sequence[str] = ()) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print(f"{title}: none")
        return
    columns = shown or dict.fromkeys(key for row in rows for key in row)
    columns = [column for column in columns if any(row.get(column) is not None for row in rows)]
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(format_value(row.get(column)) for column in columns))
    if len(rows) > MOST_ROWS:
        table.caption = f"and {len(rows) - MOST_ROWS:,} more rows; --json has them all"
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140).print(table)


def format_value(value: Any) -> str:
    """Formats a value for people."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float() if value.is_integer():
            return f"{value:,.0f}"
        case float() if abs(value) >= 100:
            return f"{value:,.1f}"
        case float():
            return f"{value:.4f}" if 0.001 <= abs(value) < 1 else f"{value:.4g}"
        case [float() as low, float() as high]:
            return f"{low:.4f} to {high:.4f}"
        case dict():
            return ", ".join(f"{key} {format_value(entry)}" for key, entry in value.items())
        case list():
            return ", ".join(map(format_value, value))
    return str(value)


def as_csv(rows: Sequence[Sequence[Any]]) -> str:
    """Formats a table as CSV; text that a spreadsheet would read as a formula is prefixed with an apostrophe."""
    import csv

    def cell(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value).lower()
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return written.getvalue()


def open_in_browser(page: Path) -> bool:
    """Opens a page if there is a browser window to open it in. Without a display it does nothing: Python would start a
    browser in the terminal, and wait for it."""
    import webbrowser

    displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform not in ("darwin", "win32") and not any(map(os.environ.get, displays)):
        return False
    with contextlib.suppress(webbrowser.Error, OSError):
        return webbrowser.open(page.resolve().as_uri())
    return False


def strip_common_parts(names: Sequence[str]) -> list[str]:
    """Strips the leading and trailing parts that all of these paths and functions share."""
    parts = [re.split("[/:]", name) for name in names]
    while len(names) > 1 and min(map(len, parts)) > 1 and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    while len(names) > 1 and min(map(len, parts)) > 1 and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    return ["/".join(part) for part in parts]

"""The same report in plain words, for a repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote


def markdown_of(content: dict[str, Any], figures: Sequence[str] = ()) -> str:
    lines = [f"# {_plain(content['title'])}", ""]
    for each in content["headlines"]:
        lines += [f"**{_plain(each['question'])}** {_plain(each['answer'])}. {_plain(each['rest'])}", ""]
    for finding in content["findings"]:
        told = (
            f"~~{_plain(finding['text'])}~~ Withheld: {_plain(finding['withheld'])}." if finding["withheld"] else None
        )
        lines.append(f"- {told or _plain(finding['text'])}")
    heads = content["heads"]
    if heads is not None:
        lines += ["", "## Heads", "", "| head | right without it | cost | verdict | looks |", "|---|---|---|---|---|"]
        for row in sorted(heads["heads"], key=lambda row: -row["drop"]):
            cells = (row["head"], f"{row['accuracy']:.4f}", f"{row['drop']:.4f}", row["verdict"], row["pattern"] or "–")
            lines.append(f"| {' | '.join(_plain(cell) for cell in cells)} |")
    for study in content["lengths"]:
        lines += ["", f"## Length: {_plain(study['task'])}, {_plain(study['track'])} track", ""]
        lines += ["| encoding | index | probe | worst seed reaches | median |", "|---|---|---|---|---|"]
        for row in study["reach"]:
            cells = (row["positions"], row["index"], row["probe"], row["worst"], row["median"])
            lines.append(f"| {' | '.join('–' if cell is None else _plain(str(cell)) for cell in cells)} |")
    if figures:
        lines += ["", "## Figures", ""]
        lines += [f"![{_plain(path)}]({quote(path)})" for path in figures]
    for each in content["missing"]:
        lines += ["", f"Not in this report: {each['what']}; `{_plain(each['command'])}` makes it."]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    shown = " ".join(text.split())
    for letter in "\\`*_|[]":
        shown = shown.replace(letter, "\\" + letter)
    return shown.replace("<", "&lt;").replace(">", "&gt;")

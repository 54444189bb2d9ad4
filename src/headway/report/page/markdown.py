"""Writes the same report as Markdown, for a repository."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from headway.report.page.language import tables_of_language
from headway.report.studies import ComparisonFile, HeadJson, HeadsFile, Real, SpreadJson, group_values

TITLE = "# Headway: "
LISTED = 200  # groups of a comparison that are listed


def render_markdown(content: dict[str, Any], figures: Sequence[str] = ()) -> str:
    lines = [f"# {_escape(content['title'])}", ""]
    for each in content["headlines"]:
        if each["withheld"] is None:
            lines += [f"**{_escape(each['question'])}** {_escape(each['answer'])}. {_escape(each['rest'])}", ""]
    for finding in content["findings"]:
        text, withheld = _escape(name_heads(finding["text"])), finding["withheld"]
        lines.append(f"- ~~{text}~~ Withheld: {_escape(withheld)}." if withheld else f"- {text}")
    for each in content["certificates"]:
        proved = f"{_escape(each['run'])} is proved right at every length ({each['contexts']:,} contexts)"
        lines.append(f"- ~~{proved}~~ Invalid: {_escape(each['refused'])}." if each["refused"] else f"- {proved}.")
    if content["heads"] is not None:
        lines += ["", "## Heads", "", *_ranking(content["heads"])]
    for study in content["lengths"]:
        own = study.get("subject")
        of = f"{_escape(study['task'])}, {_escape(study['track'])} track" if own is None else _escape(own)
        lines += ["", f"## Length: {of}", ""]
        keys, failed = ("positions", "index", "probe", "worst", "median", "stopped_by"), "fails_in_range"
        reach = [[*(row.get(key) for key in keys), ", ".join(row.get(failed) or ())] for row in study["reach"]]
        names = ["encoding", "index", "probe", "reach of the worst seed", "median", "stopped by", "not held in range"]
        lines += _table(names, reach)
        remarks = [
            [row["probe"], ", ".join(map(str, row["lengths"])), row["remark"]] for row in study.get("remarks", ())
        ]
        names = ["probe", "lengths", "remark"]
        lines += ["", *_table(names, remarks)] if remarks else []
    for study in content["languages"]:
        lines += ["", f"## Length: {_escape(study['subject'])}, a language model"]
        for title, names, cells in tables_of_language(study):
            lines += ["", f"### {_escape(title)}", "", *_table(names, cells)]
        for each in study["choices"]:
            lines += ["", _escape(each["sentence"]), *(["", *_indent(each["config"])] if each["config"] else [])]
    for study in content["comparisons"]:
        lines += ["", f"## Comparison by {_escape(', '.join(study['by']))}", "", *_groups(study)]
    if figures:
        lines += ["", "## Figures", ""]
        lines += [f"![{_escape(path)}]({quote(path, errors='replace')})" for path in figures]
    for each in content["missing"]:
        lines += ["", f"Not in this report: {_escape(each['what'])}; {_code(each['command'])} makes it."]
    return "\n".join(lines) + "\n"


def name_heads(text: str) -> str:
    """Replaces the names that files use by those that people use: `decoder.0.cross.3` by 'decoder cross L0H3'."""

    def title(found: re.Match[str]) -> str:
        stack, layer, kind, number = found.groups()
        return f"{stack} {'feed-forward' if kind == 'feed' else kind} L{layer}" + (f"H{number}" if number else "")

    return re.sub(r"\b(encoder|decoder)\.(\d+)\.(self|cross|feed)(?:\.(\d+))?\b", title, text)


def _ranking(heads: HeadsFile) -> list[str]:
    def line(row: HeadJson, *costs: str | None) -> list[str | None]:
        return [name_heads(row["head"]), *costs, row["verdict"], row.get("pattern")]

    if (cost := heads.get("counted")) is None:
        ranked = sorted(heads["heads"], key=lambda row: -row["drop"])
        cells = [line(row, _format(row["accuracy"]), _format(row["drop"])) for row in ranked]
        return _table(["head", "accuracy without it", "cost", "verdict", "pattern"], cells)
    ranked = sorted(heads["heads"], key=lambda row: -(row["loss_increase"] or 0.0))
    cells = [line(row, _format(row["loss_increase"]), _format(*row["interval"] or [None])) for row in ranked]
    margin = f"A head is redundant when the {_escape(cost)} rises by less than {heads['max_loss_increase']:g}."
    return [margin, "", *_table(["head", f"more {cost}", "interval", "verdict", "pattern"], cells)]


def _groups(study: ComparisonFile) -> list[str]:
    def summary(spread: SpreadJson) -> str | None:
        if spread["median"] is None:
            return None
        ends = "" if spread["least"] == spread["most"] else f" ({spread['least']:.4g} to {spread['most']:.4g})"
        return f"{spread['median']:.4g}{ends}"

    names = [*study["by"], "runs", "complete", "seeds", *(f"{metric}, median" for metric in study["metrics"])]
    rows = [
        [*group_values(study, row), row["runs"], row["complete"], row["seeds"]]
        + [summary(row["metrics"][metric]) for metric in study["metrics"]]
        for row in study["rows"][:LISTED]
    ]
    more = len(study["rows"]) - LISTED
    return _table(names, rows) + (["", f"And {more:,} more groups, in compare.csv."] if more > 0 else [])


def _indent(text: str) -> list[str]:
    """Shows lines as code, whatever they hold."""
    return [f"    {line}".rstrip() for line in text.splitlines()]


def _table(names: list[str], rows: Sequence[list[Any]]) -> list[str]:
    cells = [["–" if cell is None else _escape(str(cell)) for cell in row] for row in [names, *rows]]
    first, *others = [f"| {' | '.join(line)} |" for line in cells]
    return [first, "|" + "---|" * len(names), *others]


def _format(*values: Real) -> str | None:
    return None if None in values else " to ".join(f"{value:.4f}" for value in values)


def _escape(text: str) -> str:
    """Escapes text for Markdown, on one line."""
    shown = " ".join(text.split())
    for letter in "\\`*_|[]~":
        shown = shown.replace(letter, "\\" + letter)
    return shown.replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """Quotes text as Markdown code, with a fence longer than any inside it."""
    shown = " ".join(text.split())
    fence = "`" * (1 + max((len(found) for found in re.findall("`+", shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"

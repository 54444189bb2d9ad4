"""Attention maps as pictures: all heads of a site in one figure, a chosen set side by side, all sites of a problem.

Knows only the JSON of maps: query rows, key columns, tokens on the axes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.report.figures import panels, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def site_figure(content: dict[str, Any], site: str, out: Path) -> list[Path]:
    """All heads of one site."""
    entry = _entry(content, site)
    return _drawn([(f"{site}.{number}", entry, number) for number in range(len(entry["heads"]))], out)


def chosen_figure(content: dict[str, Any], heads: Sequence[str], out: Path) -> list[Path]:
    """A chosen set of heads, side by side."""
    chosen = []
    for head in heads:
        site, _, number = head.rpartition(".")
        entry = _entry(content, site)
        if not number.isdecimal() or int(number) >= len(entry["heads"]):
            raise HeadwayError(f"{site} has heads 0 to {len(entry['heads']) - 1}, none called {number!r}")
        chosen.append((head, entry, int(number)))
    return _drawn(chosen, out)


def problem_figure(content: dict[str, Any], out: Path) -> list[Path]:
    """All heads of all sites: a row a site."""
    entries = content["maps"]
    rows = [[(f"{e['site']}.{n}", e, n) for n in range(len(e["heads"]))] for e in entries]
    return _drawn([cell for row in rows for cell in row], out, columns=max(map(len, rows)))


def _entry(content: dict[str, Any], site: str) -> dict[str, Any]:
    for entry in content["maps"]:
        if entry["site"] == site:
            return entry
    known = ", ".join(entry["site"] for entry in content["maps"])
    raise HeadwayError(f"there are no maps of {site!r}; there are: {known}")


def _drawn(cells: list[tuple[str, dict[str, Any], int]], out: Path, columns: int | None = None) -> list[Path]:
    if importlib.util.find_spec("matplotlib") is None:
        return []
    columns = columns or min(4, len(cells))
    lines = -(-len(cells) // columns)
    figure, axes = panels(columns, height=2.9 * lines, rows=lines, width=2.9)
    picture = None
    for place, each in enumerate(axes.flat if lines > 1 else axes):
        if place >= len(cells):
            each.set_axis_off()
            continue
        picture = _draw(each, *cells[place])
    if picture is not None:
        figure.colorbar(picture, ax=axes, label="attention", shrink=0.6)
    return save_figure(figure, out)


def _draw(axes: Axes, name: str, entry: dict[str, Any], number: int) -> Any:
    picture = axes.imshow(entry["heads"][number], cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(entry["keys"])), entry["keys"], fontsize=8, rotation=90 if _long(entry["keys"]) else 0)
    axes.set_yticks(range(len(entry["queries"])), entry["queries"], fontsize=8)
    axes.set_title(name, fontsize=9)
    return picture


def _long(labels: list[str]) -> bool:
    return any(len(label) > 2 for label in labels)

"""Draws attention maps: all heads of a site in one figure, a chosen set side by side, all sites of a problem.

Reads only the JSON of maps: rows are queries, columns are keys, with tokens on the axes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.report.figures import grid, needs_matplotlib, save_figure
from headway.report.studies import SiteMapsJson


def site_figure(content: dict[str, Any], site: str, out: Path) -> list[Path]:
    """Draws all heads of one site."""
    maps = _maps_of(content, site)
    return _draw([(maps, number) for number in range(len(maps["heads"]))], out)


def chosen_figure(content: dict[str, Any], heads: Sequence[str], out: Path) -> list[Path]:
    """Draws a chosen set of heads, side by side."""
    chosen = []
    for head in heads:
        site, _, number = head.rpartition(".")
        maps = _maps_of(content, site)
        if not number.isdecimal() or int(number) >= len(maps["heads"]):
            raise HeadwayError(f"{site} has heads 0 to {len(maps['heads']) - 1}; there is no head {number!r}")
        chosen.append((maps, int(number)))
    return _draw(chosen, out)


def problem_figure(content: dict[str, Any], out: Path) -> list[Path]:
    """Draws all heads of all sites, one row per site; nothing where no maps could be read."""
    sites: list[SiteMapsJson] = content["maps"]
    cells = [(maps, number) for maps in sites for number in range(len(maps["heads"]))]
    return _draw(cells, out, columns=max(len(maps["heads"]) for maps in sites)) if sites else []


def _maps_of(content: dict[str, Any], site: str) -> SiteMapsJson:
    by_site: dict[str, SiteMapsJson] = {maps["site"]: maps for maps in content["maps"]}
    if site not in by_site:
        raise HeadwayError(f"there are no maps of {site!r}; there are: {', '.join(by_site)}")
    return by_site[site]


@needs_matplotlib
def _draw(cells: list[tuple[SiteMapsJson, int]], out: Path, columns: int = 4) -> list[Path]:
    figure, axes = grid(len(cells), columns, height=2.9, width=2.9)
    for panel, (maps, number) in zip(axes, cells, strict=True):
        weights = [[weight or 0.0 for weight in row] for row in maps["heads"][number]]  # query key
        panel.imshow(weights, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        upright = 90 if any(len(key) > 2 for key in maps["keys"]) else 0
        panel.set_xticks(range(len(maps["keys"])), maps["keys"], fontsize=8, rotation=upright)
        panel.set_yticks(range(len(maps["queries"])), maps["queries"], fontsize=8)
        panel.set_title(f"{maps['site']}.{number}", fontsize=9)
    figure.colorbar(axes[-1].images[0], ax=figure.axes, label="attention", shrink=0.6)
    return save_figure(figure, out)

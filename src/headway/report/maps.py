"""Draws attention maps: all heads of a site in one figure, a chosen set side by side, all sites of a problem, a few
heads on twelve problems.

Reads only the JSON of maps: rows are queries, columns are keys, with tokens on the axes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError
from headway.report.figures import ORANGE, grid, needs_matplotlib, save_figure
from headway.report.studies import SeveralMapsJson, SiteMapsJson
from headway.runs import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS, LONGEST = 6, 18  # panels in a row; characters in a title
DRAW = "import sys; from headway.report import maps; maps.draw_several(*sys.argv[1:])"


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


@needs_matplotlib
def several_figure(content: SeveralMapsJson | None, out: Path) -> list[Path]:
    """Draws a few heads on several problems: for each head a block of panels, one for each problem; the answer of the
    model is in its title, in orange where it is wrong. Draws nothing where no maps could be read."""
    problems = [] if content is None else content["problems"]
    heads = [] if not problems else [maps["head"] for maps in problems[0]["maps"]]
    if not heads:
        return []
    blank, block = (-len(problems)) % ACROSS, len(problems) + (-len(problems)) % ACROSS
    figure, axes = grid(len(heads) * block, ACROSS, height=2.15, width=2.05)
    for place, head in enumerate(heads):
        own = axes[place * block : (place + 1) * block]
        for panel, problem in zip(own, problems, strict=False):
            maps = problem["maps"][place]
            panel.imshow(
                [[weight or 0.0 for weight in row] for row in maps["weights"]],
                cmap="viridis",
                vmin=0,
                vmax=1,
                aspect="auto",
            )
            _label_axes(panel, maps["keys"], maps["queries"], 7)
            right = problem["said"] == problem["wanted"]
            title = f"{_join(problem['read'])} → {_join(problem['said'])}"
            panel.set_title(title if right else f"{title} (wrong)", fontsize=8, color="black" if right else ORANGE)
        own[0].set_ylabel(head, fontsize=9, fontweight="bold")
        for spare in own[block - blank :]:
            spare.set_axis_off()
    figure.colorbar(axes[0].images[0], ax=figure.axes, label="attention", shrink=0.3)
    return save_figure(figure, out)


def draw_several(maps: str, out: str) -> None:
    """Draws the figure of several problems from the file maps.json."""
    several_figure(disk.read_json(Path(maps))["several"], Path(out))


@contextmanager
def drawing_several(maps: Path, out: Path, at_once: bool) -> Iterator[None]:
    """Draws that figure in a process of its own while the block runs; afterwards, here, if not `at_once` or if that
    process fails, such as where it cannot import Headway."""
    none = subprocess.DEVNULL
    command = [sys.executable, "-P", "-c", DRAW, str(maps), str(out)]
    process = subprocess.Popen(command, stdin=none, stdout=none, stderr=none) if at_once else None
    try:
        yield
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    if process is None or process.wait() != 0:
        draw_several(str(maps), str(out))


def _join(tokens: Sequence[str]) -> str:
    """Joins tokens as a title: single characters without spaces, and at most as many as fit."""
    text = ("" if all(len(token) == 1 for token in tokens) else " ").join(token for token in tokens if token != "end")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _label_axes(panel: Axes, keys: Sequence[str], queries: Sequence[str], size: int) -> None:
    """Writes the tokens on the axes; long ones upright, so that they do not overlap."""
    upright = 90 if any(len(key) > 2 for key in keys) else 0
    panel.set_xticks(range(len(keys)), keys, fontsize=size, rotation=upright)
    panel.set_yticks(range(len(queries)), queries, fontsize=size)


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
        _label_axes(panel, maps["keys"], maps["queries"], 8)
        panel.set_title(f"{maps['site']}.{number}", fontsize=9)
    figure.colorbar(axes[-1].images[0], ax=figure.axes, label="attention", shrink=0.6)
    return save_figure(figure, out)

"""Draws a study of heads: the ranking with intervals, the removal curves, the strata and the pairs.

Reads only heads.json and heads-population.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, needs_matplotlib, panels, save_figure
from headway.report.studies import HeadJson, HeadsFile, PopulationFile, Share, fill_defaults
from headway.runs import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VERDICTS = {"critical": ORANGE, "redundant": BLUE, "unclear": GREY, "withheld": GREY}
CONTRASTS = {
    "operand": (BLUE, "digits of column"),
    "carry": (ORANGE, "carry into column"),
    "propagated": (GREEN, "carry passed on to"),
    "written": (PURPLE, "carry passed on by"),
}
SWAPS = {"source": ", source only", "prefix": ", written digits only"}
SMALL = {"frameon": False, "fontsize": 8}  # for legends


@needs_matplotlib
def heads_figures(study: Path, out: Path) -> list[Path]:
    """Draws `heads.svg`, `heads-pairs.svg` and, where tested, `heads-roles.svg`, also as PNG, in the folder `out`."""
    heads = fill_defaults(disk.read_json(study), HeadsFile)
    figures = {"heads": (5.2, 5.4, _draw_ranking, _draw_curves), "heads-pairs": (5.8, 5.4, _draw_strata, _draw_pairs)}
    figures |= {} if heads["roles"] is None else {"heads-roles": (6.4, 6.6, _draw_roles, _draw_circuit)}
    written = []
    for name, (height, width, *both) in figures.items():
        figure, axes = panels(2, height=height, width=width)
        for draw, panel in zip(both, axes, strict=True):
            draw(panel, heads)
        written += save_figure(figure, out / name)
    return written


@needs_matplotlib
def population_figures(study: Path, out: Path) -> list[Path]:
    """Draws the distributions over a population as `heads-population.svg`, and the same as PNG."""
    population = fill_defaults(disk.read_json(study), PopulationFile)
    members = [member for member in population["members"] if "refused" not in member]
    if not members:
        return []
    together, alone = ([member[key] for member in members] for key in ("together", "alone"))
    left, kept = ([member[key] for member in members] for key in ("alone_removed_together", "together_accuracy"))
    figure, (how_many, what_is_left, where) = panels(3, height=4.2)
    for label, counts, colour in (("can go together", together, BLUE), ("cost little one at a time", alone, ORANGE)):
        edges = [edge - 0.5 for edge in range(min(counts), max(counts) + 2)]
        how_many.hist(counts, bins=edges, color=colour, alpha=0.65, label=label, edgecolor="white")
    how_many.set(xlabel="heads", ylabel="runs", title=f"How many heads, in {len(members):,} runs")
    how_many.legend(**SMALL)
    bins = [step / 40 for step in range(41)]
    what_is_left.hist(left, bins=bins, color=ORANGE, label="all that cost little alone")
    what_is_left.hist(kept, bins=bins, color=BLUE, alpha=0.65, label="the set that can go")
    what_is_left.set(yscale="log", xlabel="exact match after their removal", ylabel="runs")
    what_is_left.set_title("Accuracy when they are removed")
    what_is_left.legend(**SMALL, loc="upper left")
    sites = population["distribution"].get("critical_heads_by_site", {})
    for place, site in enumerate(sites.values()):
        where.bar(place, site["mean"], color=BLUE)
        at = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
        where.annotate(f"{site['mean']:.2f}", (place, site["mean"]), **at)
    names = [f"{stack}\n{kind} L{layer}" for stack, layer, kind in (name.split(".") for name in sites)]
    where.set_xticks(range(len(names)), names, fontsize=8)
    where.set(ylabel="critical heads, mean over the runs", title="Where the critical heads are")
    return save_figure(figure, out / "heads-population")


def _draw_roles(axes: Axes, study: HeadsFile) -> None:
    """Draws the share of pairs that patching each head flips, with a dot where that is significant."""
    assert study["roles"] is not None
    heads = [row["head"] for row in study["heads"]]
    cells = {(cell["part"], cell["contrast"]): cell for cell in study["roles"]["table"] if not cell["at_answer"]}
    names = list(dict.fromkeys(contrast for _, contrast in cells))
    shares = [[100 * _number(cells[head, name]["flips"]) for name in names] for head in heads]
    picture = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=100)
    axes.figure.colorbar(picture, ax=axes, label="percent of pairs whose answer flips when this head is patched")
    for row, head in enumerate(heads):
        for column, name in enumerate(names):
            if cells[head, name]["named"]:
                axes.plot(column, row, "o", color=ORANGE, markersize=4)
            if cells[head, name]["flips"] == "cannot":
                axes.plot(column, row, "x", color=GREY, markersize=4)
    if any(cell["flips"] == "cannot" for cell in cells.values()):
        axes.plot([], [], "x", color=GREY, label="cannot: it sees no difference that reaches the digit")
        axes.legend(**SMALL, loc="upper center", bbox_to_anchor=(0.5, -0.24))
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(heads)), [short_name(head) for head in heads], fontsize=7)
    axes.set_title("What each head carries to the output\n(dot: significantly above 2% in both directions)")


def _draw_circuit(axes: Axes, study: HeadsFile) -> None:
    """Draws each contrast, the heads that carry it, and its answer digit; the line width is the share of flips."""
    roles = study["roles"]
    assert roles is not None
    axes.set_axis_off()
    cells = [cell for cell in roles["table"] if not cell["at_answer"]]
    flips = {(cell["part"], cell["contrast"]): _number(cell["flips"]) for cell in cells}
    explained = {each["contrast"]: each for each in roles["explained"] if each["sound"]}
    if not explained:
        axes.text(0.5, 0.5, "no set of heads flips most pairs", ha="center", transform=axes.transAxes)
        return
    heads = [row["head"] for row in study["heads"] if any(row["head"] in each["heads"] for each in explained.values())]
    digits = sorted({int(contrast.split()[1]) for contrast in explained}, reverse=True)
    columns = [list(explained), heads, [f"answer {digit}" for digit in digits]]
    place = {}
    for x, names in enumerate(columns):
        place |= {name: (float(x), 1 - (number + 0.5) / len(names)) for number, name in enumerate(names)}
    for contrast, each in explained.items():
        kind, column, *_ = contrast.split()
        for head in each["heads"]:
            path = zip(place[contrast], place[head], place[f"answer {column}"], strict=True)
            look = {"color": CONTRASTS.get(kind, (GREY,))[0], "linewidth": 0.8 + 5 * flips[head, contrast]}
            axes.plot(*path, **look, alpha=0.55, zorder=1)
    for name, (x, y) in place.items():
        kind, *column = name.split()
        colour, words = CONTRASTS.get(kind, (GREY, "answer digit" if kind == "answer" else kind))
        text = f"{words} {column[0]}{SWAPS.get(column[-1], '')}" if column else short_name(name)
        text += f"\n{_number(explained[name]['flips']):.0%} explained" if name in explained else ""
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour}
        axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    axes.set(xlim=(-0.45, 2.45), ylim=(-0.06, 1.06))
    axes.set_title("Heads that suffice, and the share of pairs that they flip")


def _number(share: Share) -> float:
    """Returns a share as a number: 0 where it cannot be anything else, or was not measured."""
    return 0.0 if share is None or share == "cannot" else share


def short_name(head: str) -> str:
    """Shortens a head's name for labels: encoder.0.self.2 becomes enc self L0H2."""
    *site, number = head.split(".")
    match site:
        case [("encoder" | "decoder") as stack, layer, kind]:
            return f"{stack[:3]} {kind} L{layer}H{number}"
    return f"{'.'.join(site)[-22:]} H{number}"  # the end of a user's name for a site


def _draw_ranking(axes: Axes, study: HeadsFile) -> None:
    by_loss = study["interval_of"] == "loss_increase"
    key, scale = ("loss_increase", 1) if by_loss else ("drop", 100)
    what, unit = ("increase of the loss", " of loss") if by_loss else ("drop in percent", "%")
    alone, rows = study["alone"], sorted(study["heads"], key=lambda row: row[key] or 0.0)
    assert alone is not None
    for place, row in enumerate(rows):
        cost = row[key] or 0.0
        ends = [scale * (end or 0) for end in row["interval"] or (cost, cost)]
        axes.plot(ends, [place] * 2, color=VERDICTS[row["verdict"]], linewidth=2)
        axes.plot(scale * cost, place, "o", color=VERDICTS[row["verdict"]], markersize=4)
    for verdict, colour in VERDICTS.items():
        if any(row["verdict"] == verdict for row in rows):
            axes.plot([], [], "o-", color=colour, label=verdict)
    margin = study["max_loss_increase"] or 0.0 if by_loss else 100 * study["max_drop"]
    axes.axvline(margin, color=GREY, linestyle="--", linewidth=1, label="margin")
    axes.set_yticks(range(len(rows)), [short_name(row["head"]) for row in rows], fontsize=7)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([0, 1, 10, 50], ["0", "1", "10", "50"])
    done = "narrowed" if study["ablation"] == "window" else "removed"
    axes.set_xlabel(f"{what} when this head alone is {done}, with interval")
    axes.set_title(f"One at a time: {alone['count']} of {len(rows)} cost under {margin:g}{unit}{_kind(study)}")
    axes.legend(**SMALL, loc="lower right")


def _unit(row: HeadJson) -> str:
    """Returns the name of what was kept or closed as a whole: a head, or its group."""
    return row.get("group") or row["head"]


def _kind(study: HeadsFile) -> str:
    """Names the kind of ablation in a title; that of a window takes a line of its own."""
    words = study.get("words")
    return f" ({study['ablation']} ablation)" if words is None else f"\n{words}"


def _draw_curves(axes: Axes, study: HeadsFile) -> None:
    colours = {"by cost alone": ORANGE, "by gradient": GREEN}
    for number, curve in enumerate(study["curves"]):
        name, random = curve["order"].replace("by slope", "by gradient"), curve["order"].startswith("random")
        colour = BLUE if number == 0 else colours.get(name, GREY)
        label = "random" if name == "random 0" else None if random else name
        style = {"linewidth": 1 if random else 1.8, "alpha": 0.5 if random else 1.0}
        axes.plot(range(len(curve["accuracy"])), curve["accuracy"], color=colour, label=label, **style)
    alone, removed, together = study["alone"], study["alone_removed_together"], study["together"]
    assert alone is not None
    assert removed is not None
    assert together is not None
    count, left = alone.get("units", alone["count"]), removed["accuracy"]
    found = together.get("units", together["count"])
    axes.plot(count, left, "X", color=ORANGE, markersize=9)
    axes.annotate(
        f"all {count} that are cheap alone:\n{left:.3f}", (count, left),
        xytext=(-8, -34), textcoords="offset points", ha="right", fontsize=8, color=ORANGE,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
    )  # fmt: skip
    axes.plot(found, together["accuracy"], "o", color=BLUE, markersize=7)
    narrows, unit = study["ablation"] == "window", "groups" if study.get("units") == "groups" else "heads"
    axes.set(xlabel=f"{unit} {'narrowed' if narrows else 'removed'}", ylabel="exact match", ylim=(-0.02, 1.05))
    best = study["optimum"]
    if best is not None and best["at_most"] < len(study["heads"]):
        line = {"color": GREY, "linestyle": "--", "linewidth": 1}
        axes.axvline(best["at_most"], **line, label="no larger set is within the margin")
    axes.set_title(
        f"Together: {found} can {'be narrowed' if narrows else 'go'}, {together['accuracy']:.4f} right{_kind(study)}"
    )
    axes.legend(**SMALL, loc="lower left")


def _draw_strata(axes: Axes, study: HeadsFile) -> None:
    """Draws the error rate of each kind of problem without each head."""
    heads = study["heads"]
    names = [entry["stratum"] for entry in heads[0]["by_stratum"]]
    if not names:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "this subject has no strata", ha="center", transform=axes.transAxes)
        return
    shares = [[100 * each["errors"] / max(1, each["examples"]) for each in row["by_stratum"]] for row in heads]
    picture = axes.imshow(shares, aspect="auto", cmap="viridis", vmin=0, vmax=100)
    axes.figure.colorbar(picture, ax=axes, label="percent wrong without this head")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(heads)), [short_name(row["head"]) for row in heads], fontsize=7)
    axes.set_title("Which problems a head is needed for")


def _draw_pairs(axes: Axes, study: HeadsFile) -> None:
    """Draws how much more two heads cost together than one by one."""
    place = {name: number for number, name in enumerate(dict.fromkeys(_unit(row) for row in study["heads"]))}
    table = [[0.0] * len(place) for _ in place]
    for pair in study["pairs"]:
        a, b = (place[head] for head in pair["heads"])
        table[a][b] = table[b][a] = 100 * pair["backup"]
    most = max((abs(value) for line in table for value in line), default=1.0) or 1.0
    picture = axes.imshow(table, cmap="RdBu_r", vmin=-most, vmax=most)
    axes.figure.colorbar(picture, ax=axes, label="cost of both minus the sum of each alone, in percent")
    names = [short_name(head) for head in place]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_title("Which heads back each other up")

"""Figures of a study of heads: the ranking with intervals, the removal curves, the strata and the pairs.

Knows only heads.json.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.report.figures import BLUE, GREEN, GREY, ORANGE, panels, save_figure
from headway.runs import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 22
"""letters of a user's own name for a site"""
VERDICTS = {"critical": ORANGE, "redundant": BLUE, "unclear": GREY}


def heads_figures(study: Path, out: Path) -> list[Path]:
    """`heads.svg` and `heads-pairs.svg`, and the same as PNG, in the folder `out`. Without matplotlib, none."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    content = disk.read_json(study)
    figure, (left, right) = panels(2, height=5.2)
    _ranking(left, content)
    _curves(right, content)
    written = save_figure(figure, out / "heads")
    figure, (left, right) = panels(2, height=5.8)
    _strata(left, content)
    _pairs(right, content)
    written += save_figure(figure, out / "heads-pairs")
    if content.get("roles") is None:
        return written
    figure, (left, right) = panels(2, height=6.4, width=6.6)
    _role_table(left, content)
    _drawing(right, content)
    return written + save_figure(figure, out / "heads-roles")


def population_figures(study: Path, out: Path) -> list[Path]:
    """`heads-population.svg` and the same as PNG: what the members of a population have in common."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    found = disk.read_json(study)
    members = [member for member in found["members"] if "refused" not in member]
    if not members:
        return []
    figure, axes = panels(3, height=4.2)
    _counts(axes[0], members)
    _collapse(axes[1], members)
    _critical(axes[2], found["distribution"])
    return save_figure(figure, out / "heads-population")


def _counts(axes: Axes, members: list[dict[str, Any]]) -> None:
    both = {"can go together": ("together", BLUE), "cost little one at a time": ("alone", ORANGE)}
    for label, (key, colour) in both.items():
        counts = [member[key] for member in members]
        edges = [edge - 0.5 for edge in range(min(counts), max(counts) + 2)]
        axes.hist(counts, bins=edges, color=colour, alpha=0.65, label=label, edgecolor="white")
    axes.set_xlabel("heads")
    axes.set_ylabel("runs")
    axes.set_title(f"How many heads, in {len(members):,} runs")
    axes.legend(frameon=False, fontsize=8)


def _collapse(axes: Axes, members: list[dict[str, Any]]) -> None:
    bins = [step / 40 for step in range(41)]
    axes.hist(
        [m["alone_removed_together"] for m in members], bins=bins, color=ORANGE, label="all that cost little alone"
    )
    axes.hist([m["together_accuracy"] for m in members], bins=bins, color=BLUE, alpha=0.65, label="the set that can go")
    axes.set_yscale("log")
    axes.set_xlabel("whole answers right after their removal")
    axes.set_ylabel("runs")
    axes.set_title("What is left when they are removed")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _critical(axes: Axes, found: dict[str, Any]) -> None:
    sites = found["critical_heads_by_site"]
    for place, site in enumerate(sites.values()):
        axes.bar(place, site["mean"], color=BLUE)
        axes.annotate(
            f"{site['mean']:.2f}", (place, site["mean"]), xytext=(0, 3), textcoords="offset points", ha="center"
        )
    names = [f"{stack}\n{kind} L{layer}" for stack, layer, kind in (name.split(".") for name in sites)]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylabel("critical heads, mean over the runs")
    axes.set_title("Where the critical heads sit")


KINDS = {
    "operand": (BLUE, "digits of column"),
    "carry": (ORANGE, "carry into column"),
    "propagated": (GREEN, "carry passed on to"),
}


def _role_table(axes: Axes, content: dict[str, Any]) -> None:
    """The share of pairs that patching each head flips; a dot where that is beyond doubt."""
    heads = [row["head"] for row in content["heads"]]
    cells = {(c["part"], c["contrast"]): c for c in content["roles"]["table"] if not c["at_answer"]}
    names = list(dict.fromkeys(contrast for _, contrast in cells))
    shares = [[100 * (cells[head, name]["flips"] or 0) for name in names] for head in heads]
    picture = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=100)
    axes.figure.colorbar(picture, ax=axes, label="percent of pairs that turn when this head is patched")
    for row, head in enumerate(heads):
        for column, name in enumerate(names):
            if cells[head, name]["named"]:
                axes.plot(column, row, "o", color=ORANGE, markersize=4)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(heads)), [short(head) for head in heads], fontsize=7)
    axes.set_title("What each head brings to the answer\n(dot: above 2% in both directions, beyond doubt)")


def _drawing(axes: Axes, content: dict[str, Any]) -> None:
    """From what differs, through the heads that bring it, to the answer digit; the width is the share of flips."""
    cells = {(c["part"], c["contrast"]): c["flips"] for c in content["roles"]["table"] if not c["at_answer"]}
    explained = [each for each in content["roles"]["explained"] if each["sound"]]
    if not explained:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no set of heads turns most pairs", ha="center", transform=axes.transAxes)
        return
    heads = [row["head"] for row in content["heads"] if any(row["head"] in each["heads"] for each in explained)]
    digits = sorted({int(each["contrast"].split()[1]) for each in explained})
    place = {
        **_spread([each["contrast"] for each in explained], 0.0),
        **_spread(heads, 1.0),
        **_spread([f"answer {digit}" for digit in reversed(digits)], 2.0),
    }
    for each in explained:
        kind, column = each["contrast"].split()
        for head in each["heads"]:
            path = [place[each["contrast"]], place[head], place[f"answer {column}"]]
            width = 0.8 + 5 * cells[head, each["contrast"]]
            axes.plot(
                *zip(*path, strict=True), color=KINDS.get(kind, (GREY,))[0], linewidth=width, alpha=0.55, zorder=1
            )
    for name, (x, y) in place.items():
        kind, _, column = name.partition(" ")
        text = (
            f"{KINDS[kind][1]} {column}"
            if kind in KINDS
            else f"answer digit {column}"
            if kind == "answer"
            else name
            if column
            else short(name)
        )
        share = next((f"\n{each['flips']:.0%} explained" for each in explained if each["contrast"] == name), "")
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": KINDS[kind][0] if kind in KINDS else GREY}
        axes.text(x, y, text + share, ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    axes.set_xlim(-0.45, 2.45)
    axes.set_ylim(-0.06, 1.06)
    axes.set_axis_off()
    axes.set_title(f"Heads that are enough: patched together they turn {content['roles']['mean_explained']:.0%}")


def _spread(names: list[str], x: float) -> dict[str, tuple[float, float]]:
    """Places on a vertical line, from the top down."""
    return {name: (x, 1 - (number + 0.5) / len(names)) for number, name in enumerate(names)}


def short(head: str) -> str:
    """encoder.0.self.2 as people write it in a tight place: enc self L0H2."""
    *site, number = head.split(".")
    match site:
        case [("encoder" | "decoder") as stack, layer, kind]:
            return f"{stack[:3]} {kind} L{layer}H{number}"
    return f"{'.'.join(site)[-LONGEST:]} H{number}"


def _ranking(axes: Axes, content: dict[str, Any]) -> None:
    by_loss = content.get("interval_of") == "loss_increase"
    key, scale = ("loss_increase", 1) if by_loss else ("drop", 100)
    rows = sorted(content["heads"], key=lambda row: row[key])
    for place, row in enumerate(rows):
        low, high = row["interval"] or (row[key], row[key])
        axes.plot([scale * low, scale * high], [place, place], color=VERDICTS[row["verdict"]], linewidth=2)
        axes.plot(scale * row[key], place, "o", color=VERDICTS[row["verdict"]], markersize=4)
    for verdict, colour in VERDICTS.items():
        if any(row["verdict"] == verdict for row in rows):
            axes.plot([], [], "o-", color=colour, label=verdict)
    margin = content["max_loss_increase"] if by_loss else 100 * content["max_drop"]
    axes.axvline(margin, color=GREY, linestyle="--", linewidth=1, label="margin")
    axes.set_yticks(range(len(rows)), [short(row["head"]) for row in rows], fontsize=7)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([0, 1, 10, 50], ["0", "1", "10", "50"])
    what = "increase of the loss" if by_loss else "drop in percent"
    axes.set_xlabel(f"{what} when this head alone goes, with interval")
    count, unit = content["alone"]["count"], " of loss" if by_loss else "%"
    axes.set_title(f"One at a time: {count} of {len(rows)} cost under {margin:g}{unit}")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _curves(axes: Axes, content: dict[str, Any]) -> None:
    colours = {"by cost alone": ORANGE, "by slope": GREEN}
    for number, curve in enumerate(content["curves"]):
        name, random = curve["order"], curve["order"].startswith("random")
        colour = BLUE if number == 0 else colours.get(name, GREY)
        label = "random" if name == "random 0" else None if random else name
        style = {"linewidth": 1 if random else 1.8, "alpha": 0.5 if random else 1.0}
        axes.plot(range(len(curve["accuracy"])), curve["accuracy"], color=colour, label=label, **style)
    alone, together = content["alone"]["count"], content["together"]
    axes.plot(alone, content["alone_removed_together"]["accuracy"], "X", color=ORANGE, markersize=9)
    axes.annotate(
        f"all {alone} that are cheap alone:\n{content['alone_removed_together']['accuracy']:.3f}",
        (alone, content["alone_removed_together"]["accuracy"]),
        xytext=(-8, -34), textcoords="offset points", ha="right", fontsize=8, color=ORANGE,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
    )  # fmt: skip
    axes.plot(together["count"], together["accuracy"], "o", color=BLUE, markersize=7)
    axes.set_xlabel("heads removed")
    axes.set_ylabel("whole answers right")
    axes.set_ylim(-0.02, 1.05)
    best = content.get("optimum")
    if best is not None and best["at_most"] < len(content["heads"]):
        axes.axvline(
            best["at_most"], color=GREY, linestyle="--", linewidth=1, label="no larger set is within the margin"
        )
    axes.set_title(f"Together: {together['count']} can go, {together['accuracy']:.4f} right")
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _strata(axes: Axes, content: dict[str, Any]) -> None:
    """The error rate of each kind of problem without each head."""
    names = [entry["stratum"] for entry in content["heads"][0]["by_stratum"]]
    rows = [
        [100 * entry["errors"] / max(1, entry["examples"]) for entry in row["by_stratum"]] for row in content["heads"]
    ]
    if not names:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "this subject names no strata", ha="center", transform=axes.transAxes)
        return
    picture = axes.imshow(rows, aspect="auto", cmap="viridis", vmin=0, vmax=100)
    axes.figure.colorbar(picture, ax=axes, label="percent wrong without this head")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(rows)), [short(row["head"]) for row in content["heads"]], fontsize=7)
    axes.set_title("Which problems a head is needed for")


def _pairs(axes: Axes, content: dict[str, Any]) -> None:
    """How much more two heads cost together than one by one."""
    heads = [row["head"] for row in content["heads"]]
    place = {head: number for number, head in enumerate(heads)}
    table = [[0.0] * len(heads) for _ in heads]
    for pair in content["pairs"]:
        a, b = (place[head] for head in pair["heads"])
        table[a][b] = table[b][a] = 100 * pair["backup"]
    most = max((abs(value) for line in table for value in line), default=1.0) or 1.0
    picture = axes.imshow(table, cmap="RdBu_r", vmin=-most, vmax=most)
    axes.figure.colorbar(picture, ax=axes, label="percent that the two cost beyond the sum of both")
    ticks = range(len(heads))
    axes.set_xticks(ticks, [short(head) for head in heads], rotation=90, fontsize=6)
    axes.set_yticks(ticks, [short(head) for head in heads], fontsize=6)
    axes.set_title("Which heads stand in for each other")

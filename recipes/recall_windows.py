"""Which heads of a recall model need the whole context: ways to choose, as accuracy against the size of the cache.

    python recipes/recall.py --seeds 1 2 3 4 --out runs/recall
    python recipes/recall_windows.py recipes/recall/rotary runs/recall/seed-{1,2,3,4} --out runs/windows
    python recipes/recall.py --large --seeds 0 1 2 3 4 --out runs/recall-large --device cuda
    python recipes/recall_windows.py runs/recall-large/seed-{0,1,2,3,4} --large --device cuda --out runs/windows-large

A head is narrowed to the first 4 tokens and the last eighth of the row; every prompt ends in a question that asks for a
fact of the row. The ways to choose which heads to narrow: those that cost least alone; greedily, each given those
narrowed before; the best of all sets of a size, where they can be listed; those with the least attention outside the
window; those with the smallest gradient at their gate; and at random. All choose on the same prompts, and all are
measured on others. A model that is in the folder is not measured again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Generator

sys.path.insert(0, str(Path(__file__).parent))
import recall

from headway.attach.from_transformers import subject_from_transformers
from headway.evaluation.intervals import wilson
from headway.heads.assignments import CacheUnits, cache_units, measure_all
from headway.heads.question import WindowSize
from headway.heads.together import rank_by_gradient, remove_greedily
from headway.heads.units import Unit, heads_in
from headway.heads.variants import Variants
from headway.models import Trace
from headway.models.narrowed import find_hidden
from headway.models.sites import Closed, Narrowing
from headway.subjects.subject import Subject
from headway.tasks import Problems

CHEAP = 0.01
"""the drop of accuracy below which a head looks as if it needed no more than the window"""
RANDOM_ORDERS = 5
COLOURS = {
    "exact": "#000000", "greedy": "#0072b2", "alone": "#e69f00", "attention": "#009e73", "gradient": "#cc79a7",
    "random": "#999999",
}  # fmt: skip
NAMES = {
    "exact": "best of all sets", "greedy": "greedy", "alone": "by cost alone", "attention": "by attention outside",
    "gradient": "by gradient", "random": "random (mean of 5)",
}  # fmt: skip


def draw_prompts(setting: recall.Setting, count: int, seed: int, device: str) -> Problems:
    """Draws rows that end in a block of questions; the last value is the answer. Training uses other streams."""
    found: list[torch.Tensor] = []
    generator = Generator().manual_seed(2_000_000 + seed)
    while sum(map(len, found)) < count:
        rows = recall.draw_recall(1_000, setting, generator)
        found.append(rows.tokens[rows.final[:, -1]])
    tokens = torch.cat(found)[:count].to(device)
    return Problems(tokens[:, :-1], tokens[:, -1:])


def rank_by_attention(subject: Subject, size: WindowSize, problems: Problems) -> list[Unit]:
    """Ranks heads by their attention to what the window hides, on average over queries; the least comes first."""
    mass = dict.fromkeys(subject.heads, 0.0)
    for piece in subject.runner.pieces(problems):
        trace = Trace()
        with torch.no_grad():
            subject.runner.run(subject.runner.trim(problems[piece]), None, trace)
        for head in subject.heads:
            found = trace.maps[head.site][:, head.number]  # row query key
            narrowing = Narrowing(size.sink, torch.tensor([[size.recent]], device=found.device))
            hidden = find_hidden(narrowing, found.shape[1], found.shape[2])[:, 0]
            mass[head] += float((found * hidden).sum())
    return [*sorted(mass, key=mass.__getitem__)]


def choose(
    variants: Variants, cache: CacheUnits, size: WindowSize, select: Problems
) -> tuple[dict[str, list[Closed]], dict[str, int], Closed]:
    """Returns what each way narrows, by the number of heads; how many heads the searches narrow within the margin; and
    all heads that are cheap alone."""
    units = variants.units
    whole, *costs = variants(select, [frozenset(), *(heads_in(unit) for unit in units)]).points
    drops = {unit: (whole[0] - right, loss) for unit, (right, loss) in zip(units, costs, strict=True)}
    orders: dict[str, Sequence[Unit]] = {
        "alone": sorted(units, key=drops.__getitem__),
        "attention": rank_by_attention(variants.subject, size, select),
        "gradient": rank_by_gradient(variants, select),
    }
    chance = random.Random(0)
    orders |= {f"random {number}": chance.sample(units, len(units)) for number in range(RANDOM_ORDERS)}
    chosen: dict[str, list[Closed]] = {
        name: [heads_in(*order[:n]) for n in range(len(order) + 1)] for name, order in orders.items()
    }
    curve, least = remove_greedily(variants, select), whole[0] - CHEAP
    chosen["greedy"] = list(curve.sets)
    within = {"greedy": max(n for n, right in enumerate(curve.accuracy) if right >= least)}
    if len(units) <= 8:
        every = measure_all(variants, cache, select)
        within["exact"] = max(sum(levels) for levels, (right, _) in every.items() if right >= least)
        best = [
            max((each for each in every if sum(each) == n), key=lambda each: (every[each][0], -every[each][1]))
            for n in range(len(units) + 1)
        ]
        chosen["exact"] = [heads_in(*(unit for unit, level in zip(units, own, strict=True) if level)) for own in best]
    return chosen, within, heads_in(*(unit for unit, (drop, _) in drops.items() if drop < CHEAP))


def study(folder: Path, setting: recall.Setting, counts: tuple[int, int], device: str) -> dict[str, Any]:
    """Measures all ways to choose on one model."""
    subject = subject_from_transformers(folder, draw_prompts(setting, 8, 9, device), device=device)
    size = WindowSize(4, setting.length // 8)
    select, report = (draw_prompts(setting, count, seed, device) for seed, count in enumerate(counts))
    variants = Variants(subject, size)
    cache = cache_units(variants.units, [size], setting.length)
    assert cache is not None
    chosen, within, cheap = choose(variants, cache, size, select)
    sets = list(dict.fromkeys([frozenset(), cheap, *(each for own in chosen.values() for each in own)]))
    right = dict(zip(sets, variants(report, sets).right.sum(-1).tolist(), strict=True))

    def describe(closed: Closed) -> dict[str, Any]:
        levels = tuple(int(heads_in(unit) <= closed) for unit in variants.units)
        ends = wilson(right[closed], len(report))
        return {
            "narrowed": sum(levels), "cache_share": cache.share(levels), "accuracy": right[closed] / len(report),
            "interval": ends.to_json(), "whole": [str(head) for head in subject.heads if head not in closed],
        }  # fmt: skip

    return {
        "model": str(folder), "heads": len(subject.heads), "length": setting.length, "sink": size.sink,
        "recent": size.recent, "selected_on": len(select), "reported_on": len(report), "within": within,
        "cheap_alone": describe(cheap), "curves": {name: list(map(describe, own)) for name, own in chosen.items()},
    }  # fmt: skip


def mean_of_random(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the mean of the random orders, by the number of narrowed heads."""
    orders = [own for name, own in found["curves"].items() if name.startswith("random")]
    return [
        {**points[0], "accuracy": sum(point["accuracy"] for point in points) / len(points), "interval": None}
        for points in zip(*orders, strict=True)
    ]


def tables(found: Sequence[Mapping[str, Any]]) -> str:
    """Returns the tables in Markdown: what one at a time suggests, then accuracy by the number of narrowed heads."""
    heads = found[0]["heads"]
    lines = [
        f"| model | whole | cost under {CHEAP} alone | all of these together | greedy within {CHEAP} | best set within "
        f"{CHEAP} | heads left whole by greedy |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        cheap = each["cheap_alone"]
        cells = [_span(each["curves"]["greedy"][0]), f"{cheap['narrowed']} of {heads}", _span(cheap)]
        for name in ("greedy", "exact"):
            count = each["within"].get(name)
            cells.append("–" if count is None else f"{count}: {_span(each['curves'][name][count])}")
        best = each["curves"]["greedy"][each["within"]["greedy"]]
        lines.append(f"| {Path(each['model']).name} | {' | '.join(cells)} | {', '.join(best['whole'])} |")
    for each in found:
        lines += ["", f"**{Path(each['model']).name}** (n = {each['reported_on']:,}; 95% intervals)", ""]
        names = [name for name in NAMES if name in each["curves"] or name == "random"]
        lines += ["| cache | " + " | ".join(NAMES[name] for name in names) + " |", "|---" * (len(names) + 1) + "|"]
        for n in range(heads + 1):
            own = [mean_of_random(each)[n] if name == "random" else each["curves"][name][n] for name in names]
            lines.append(f"| {own[0]['cache_share']:.0%} | " + " | ".join(map(_span, own)) + " |")
    return "\n".join(lines) + "\n"


def _span(point: Mapping[str, Any]) -> str:
    if point["interval"] is None:
        return f"{point['accuracy']:.3f}"
    return "{:.3f} ({:.3f}–{:.3f})".format(point["accuracy"], *point["interval"])


def draw(found: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Draws accuracy against the size of the cache, a panel for each model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, len(found), figsize=(2.9 * len(found) + 0.6, 3.4), sharey=True, squeeze=False)
    for axes, each in zip(grid[0], found, strict=True):
        for name in reversed(NAMES):
            if name not in each["curves"] and name != "random":
                continue
            own = mean_of_random(each) if name == "random" else each["curves"][name]
            shares = [100 * point["cache_share"] for point in own]
            style: dict[str, Any] = {"color": COLOURS[name], "label": NAMES[name], "linewidth": 1.4, "markersize": 3.5}
            axes.plot(
                shares, [point["accuracy"] for point in own], "--" if name == "exact" else "-", marker="o", **style
            )
            if name == "greedy":
                ends = zip(*(point["interval"] for point in own), strict=True)
                axes.fill_between(shares, *ends, color=COLOURS[name], alpha=0.2, linewidth=0)
        cheap = each["cheap_alone"]
        axes.plot(100 * cheap["cache_share"], cheap["accuracy"], "X", color=COLOURS["alone"], markersize=9)
        axes.set(title=Path(each["model"]).name, xlabel="cache, % of the whole", ylim=(-0.02, 1.03))
        axes.invert_xaxis()
        axes.grid(alpha=0.25)
    grid[0][0].set_ylabel("recall, fresh prompts")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.suptitle("X: all heads that cost under 0.01 alone, narrowed together", fontsize=9, y=0.99)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    for ending in ("svg", "png"):
        figure.savefig(out / f"recall-windows.{ending}", dpi=150)


def main(argv: list[str] | None = None, draws: Callable[[Sequence[Mapping[str, Any]], Path], None] = draw) -> None:
    parser = argparse.ArgumentParser(description="Accuracy against the size of the cache, for several ways to choose.")
    parser.add_argument("models", nargs="+", type=Path, help="folders of trained recall models")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--large", action="store_true", help="the models are of the large setting")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--select", type=int, default=200, help="prompts to choose on")
    parser.add_argument("--report", type=int, default=1_000, help="prompts to report on")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    setting, found = recall.LARGE if options.large else recall.SMALL["rotary"], []
    for number, folder in enumerate(options.models):
        file = options.out / f"{number}-{folder.name}.json"
        if not file.exists():
            print(f"studying {folder}", flush=True)
            content = study(folder, setting, (options.select, options.report), options.device)
            part = file.with_suffix(".part")
            part.write_text(json.dumps(content, indent=1) + "\n")
            part.replace(file)
        found.append(json.loads(file.read_text()))
    (options.out / "tables.md").write_text(tables(found))
    draws(found, options.out)
    print(tables(found))


if __name__ == "__main__":
    main()

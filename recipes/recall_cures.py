"""Puts the cures of several language models side by side: what each brings at each length, and what stops each model.

    python recipes/recall.py --seeds 0 1 2 3 4 --out runs/recall
    python recipes/recall_cures.py runs/recall --to 512 --out runs/recall-cures
    python recipes/recall_cures.py runs/recall-large --to 4096 --device cuda --out runs/recall-large-cures    # on a GPU

Every folder seed-N is studied as `headway lengths` does, and finished studies are read, not repeated. Writes
`cures.md`: tables of task × length × cure with the accuracy of every seed, the seeds in which each cause was
established, and how often each cure was the best. No seed is left out; one that has not learned a task says so.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import headway


def study(folder: Path, out: Path, text: Path, to: int, device: str) -> dict[str, Any]:
    """Studies one model, or reads its finished study."""
    file = out / folder.name / "lengths.json"
    if not file.exists():
        headway.study_lengths(str(folder), text=text, to=to, device=device, out=file.parent, quiet=False)
    return json.loads(file.read_text())


def shown(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if interval is None else f"{value:.2f} ({interval[0]:.2f}–{interval[1]:.2f})"


def table(found: dict[str, dict[str, Any]], task: str) -> list[str]:
    """Returns the accuracy of every seed by length and cure, with its 95% interval."""
    rows = {(name, row["length"], row["cure"]): row for name, each in found.items() for row in each["rows"]
            if row["task"] == task}  # fmt: skip
    lines = [f"| length | cure | {' | '.join(found)} |", f"|---|---|{'---|' * len(found)}"]
    for length, cure in dict.fromkeys((length, cure) for _, length, cure in rows):
        own = [rows.get((name, length, cure), {"accuracy": None, "interval": None}) for name in found]
        cells = " | ".join(shown(row["accuracy"], row["interval"]) for row in own)
        lines.append(f"| {length:,} | {cure} | {cells} |")
    return lines


def effective(found: dict[str, dict[str, Any]], task: str) -> list[str]:
    """Returns the effective length of every seed under each cure."""
    rows = {
        (name, row["cure"]): row for name, each in found.items() for row in each["effective"] if row["task"] == task
    }
    lines = [f"| cure | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for cure in dict.fromkeys(cure for _, cure in rows):
        own = [rows.get((name, cure)) for name in found]
        cells = ["–" if row is None else f"{row['length']:,}" if row["learned"] else "not learned" for row in own]
        lines.append(f"| {cure} | {' | '.join(cells)} |")
    return lines


def causes(found: dict[str, dict[str, Any]], task: str) -> list[str]:
    """Counts the seeds in which each cause was tested, and in which it was established."""
    tested, true = Counter[str](), Counter[str]()
    for each in found.values():
        own = [row for row in each["causes"] if row["task"] == task]
        tested.update({row["cause"] for row in own})
        true.update({row["cause"] for row in own if row["established"]})
    return [f"- {cause}: established in {true[cause]} of {count} seeds" for cause, count in tested.most_common()]


def best(found: dict[str, dict[str, Any]]) -> list[str]:
    """Counts how often each cure was chosen, at each length."""
    chosen: dict[int, Counter[str]] = {}
    for each in found.values():
        for row in each["choices"]:
            chosen.setdefault(row["length"], Counter())[row["cure"]] += 1
    return [
        f"- {length:,} tokens: " + ", ".join(f"{cure} in {count}" for cure, count in own.most_common())
        for length, own in sorted(chosen.items())
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Puts the cures of several language models side by side.")
    parser.add_argument("folder", type=Path, help="folder of seed-N, as recipes/recall.py writes it")
    parser.add_argument("--to", type=int, required=True, help="the longest length")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(argv)
    folders = sorted(path for path in options.folder.glob("seed-*") if (path / "model.safetensors").exists())
    text = options.folder / "text.jsonl"
    found = {each.name: study(each, options.out, text, options.to, options.device) for each in folders}
    lines = []
    for task in dict.fromkeys(task for each in found.values() for task in each["tasks"]):
        lines += [f"## {task}", "", *table(found, task), "", "Effective length:", "", *effective(found, task), ""]
        lines += ["What stops it:", "", *causes(found, task), ""]
    lines += ["## The best cure", "", *best(found), ""]
    (options.out / "cures.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

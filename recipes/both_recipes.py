"""Adders of two recipes studied alike: Headway's own and the one that the published reports used (`--recipe reports`).

    python recipes/both_recipes.py [PART …] [--members 256] [--out runs/both-recipes] [--device cuda]

Each part is one or more `headway` commands that resume or reuse what is done, so a part that was cut short is simply
started again; on a GPU machine that lends ten minutes at a time, one call is one part: `train-ours`, `train-reports`,
`evaluate`, `heads-ours`, `heads-reports`, `kinds-ours`, `kinds-reports`. `table` needs no GPU: it prints both recipes
side by side and writes `both-recipes.json`, the only file to take home. Every seed counts; adders that are not good
enough for a study are counted as refused, not left out.

Post-norm, dropout, Adam without warm-up or decay and 10,000 stored sums are the reports'. The start token, which is no
digit, and the prediction of every digit are Headway's in both: how the reports decoded is no part of their recipe.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from headway.cli import main as headway

RECIPES = {"ours": [], "reports": ["--recipe", "reports"]}
PARTS = (
    "train-ours",
    "train-reports",
    "evaluate",
    "heads-ours",
    "heads-reports",
    "kinds-ours",
    "kinds-reports",
    "table",
)
EXAMPLES = "20000"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Studies adders of both recipes alike.")
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--members", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("runs/both-recipes"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--examples", default=EXAMPLES, help="sums for each study")
    parser.add_argument("--train", default="", help="more flags of `headway train`, such as '--steps 5 --d-model 16'")
    asked = parser.parse_args(words)
    if wrong := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"unknown part {wrong[0]!r}; the parts are {', '.join(PARTS)}")
    for part in asked.parts or PARTS:
        print(f"{part} …", file=sys.stderr, flush=True)
        if part == "table":
            print(write_table(asked.out))
        elif status := run_part(part, asked):
            return status
    return 0


def run_part(part: str, asked: argparse.Namespace) -> int:
    """Runs the commands of a part; keeps what they print as JSON beside the runs. Returns the exit status."""
    what, _, only = part.partition("-")
    for recipe, flags in RECIPES.items():
        home, common = asked.out / recipe, ["--device", asked.device, "--json"]
        commands = {
            "train": ["train", "addition", "--population", str(asked.members), "--resume", "--out", str(home), *flags],
            "evaluate": ["evaluate", str(home), "--all"],
            "heads": ["heads", str(home), "--examples", asked.examples],
            "kinds": ["heads", str(home), "--examples", "1000", "--kinds"],
        }
        if only in ("", recipe):
            extra = asked.train.split() if what == "train" else []
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                status = headway([*commands[what], *extra, *common])
            if status:
                return status
            asked.out.mkdir(parents=True, exist_ok=True)
            (asked.out / f"{recipe}-{what}.json").write_text(printed.getvalue())
    return 0


def write_table(out: Path) -> str:
    """Returns the numbers of both recipes side by side, and writes them to one file."""
    found: dict[str, dict[str, Any]] = {recipe: {} for recipe in RECIPES}
    for recipe, numbers in found.items():
        if (path := out / f"{recipe}-evaluate.json").exists():
            members = json.loads(path.read_text())["members"]
            errors = sorted(member["errors"] for member in members)
            numbers |= {"adders": len(members), "perfect": errors.count(0), "errors, median": statistics.median(errors)}
            numbers |= {"errors, least to most": f"{errors[0]:,} to {errors[-1]:,}"}
        for what in ("heads", "kinds"):
            if (path := out / f"{recipe}-{what}.json").exists():
                study = json.loads(path.read_text())
                numbers[what] = {key: study[key] for key in ("distribution", "kinds", "findings") if key in study}
    (out / "both-recipes.json").write_text(json.dumps(found, indent=1))
    names = [name for name in found["ours"] | found["reports"] if name not in ("heads", "kinds")]
    lines = ["| | " + " | ".join(found) + " |", "|---" * (1 + len(found)) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(str(numbers.get(name, "")) for numbers in found.values()) + " |")
    for recipe, numbers in found.items():
        for what in ("heads", "kinds"):
            lines += ["", f"{recipe}, {what}:", *(f"- {line}" for line in numbers.get(what, {}).get("findings", []))]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

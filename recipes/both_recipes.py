"""Adders of two recipes studied alike: Headway's own and the one that the published reports used (`--recipe reports`).

    python recipes/both_recipes.py [PART …] [--members 256] [--out runs/both-recipes] [--device cuda] [--workers 12]

Each part resumes or reuses what is done, so a part that was cut short is simply started again. Of either recipe:
`train-ours`, `evaluate-ours` and `heads-ours` are `headway` commands; `causes-ours` runs the tests of docs/settled.md
on every adder (study_adder.py), many adders side by side. `table` prints both recipes from what the other parts wrote.
Every seed counts; adders that are not good enough for a study are counted as refused, not left out.

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

from study_adder import Sizes, study_many, summarize

from headway.cli import main as headway

RECIPES = {"ours": [], "reports": ["--recipe", "reports"]}
PARTS = (
    "train-ours",
    "train-reports",
    "evaluate-ours",
    "evaluate-reports",
    "heads-ours",
    "heads-reports",
    "causes-ours",
    "causes-reports",
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
    parser.add_argument("--workers", type=int, default=2, help="adders whose causes are tested side by side")
    parser.add_argument("--small", action="store_true", help="few pairs and sums: a trial run")
    parser.add_argument("--pairs", type=int, default=Sizes.pairs, help="pairs of each contrast")
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
        if only not in ("", recipe):
            continue
        home, common = asked.out / recipe, ["--device", asked.device, "--json"]
        if what == "causes":
            sizes = Sizes(pairs=40, sums=200, random_sets=10) if asked.small else Sizes(asked.pairs)
            study_many(home, asked.device, asked.workers, sizes)
            continue
        commands = {
            "train": ["train", "addition", "--population", str(asked.members), "--resume", "--out", str(home), *flags],
            "evaluate": ["evaluate", str(home), "--all"],
            "heads": ["heads", str(home), "--examples", asked.examples],
        }
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
    """Returns the numbers of both recipes in words, and writes them to one file."""
    found: dict[str, dict[str, Any]] = {recipe: {} for recipe in RECIPES}
    lines: list[str] = []
    for recipe, numbers in found.items():
        if (path := out / f"{recipe}-evaluate.json").exists():
            members = json.loads(path.read_text())["members"]
            errors = sorted(member["errors"] for member in members)
            numbers |= {"adders": len(members), "perfect": errors.count(0), "errors_median": statistics.median(errors)}
            numbers |= {"errors_least": errors[0], "errors_most": errors[-1], "sums": members[0]["examples"]}
        if (path := out / f"{recipe}-heads.json").exists():
            study = json.loads(path.read_text())
            numbers["heads"] = {key: study[key] for key in ("distribution", "findings")}
        if studies := sorted((out / recipe).glob("seed-*/causes-of-claims.json")):
            numbers["causes"] = summarize([json.loads(path.read_text()) for path in studies])
    (out / "both-recipes.json").write_text(json.dumps(found, indent=1))
    for recipe, numbers in found.items():
        lines += ["", f"## {recipe}", ""]
        lines += [f"- {name}: {value}" for name, value in numbers.items() if not isinstance(value, dict)]
        lines += [f"- {line}" for line in numbers.get("heads", {}).get("findings", [])]
        for claim, told in numbers.get("causes", {}).items():
            lines += [f"- {claim}: {json.dumps(told)}"]
    return "\n".join(lines).strip()


if __name__ == "__main__":
    sys.exit(main())

"""Measures the doctor on planted mistakes: `python -m recipes.mistakes.engine --half written`.

One JSON line for each case goes to cases.jsonl in the output folder, and the totals to totals.json. A case that was
measured with the same checks and the same engine is not measured again. The cases of the unseen half are counted, but
not printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .cases import every_case, excluded, take_fraction
from .lab import default_folder
from .measuring import Outcome, Totals, total
from .running import measure_all


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.mistakes.engine", description=__doc__)
    parser.add_argument("--half", choices=("written", "unseen", "both"), default="written")
    parser.add_argument("--kinds", default="single,pair,triple,healthy", help="which cases, separated by commas")
    parser.add_argument("--fraction", type=int, default=1, help="measure one case in so many")
    parser.add_argument("--with", dest="planted", default="", help="only cases in which this mistake is planted")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--models", type=Path, default=default_folder(), help="where trained models are kept")
    parser.add_argument("--out", type=Path, default=default_folder() / "results")
    parser.add_argument("--excluded", action="store_true", help="list the pairs that cannot be combined, and stop")
    return parser.parse_args(words)


def describe(outcome: Outcome) -> str:
    """Says in one line what was wrong with an examination."""
    parts = [f"missed {', '.join(outcome.missed)}"] if outcome.missed else []
    parts += [f"false {', '.join(outcome.false)}"] if outcome.false else []
    parts += [f"refused: {outcome.refused}"] if outcome.refused else []
    if outcome.kind == "healthy" and outcome.failures:
        parts.append(f"failed ({outcome.style})")
    return f"{outcome.case}: {'; '.join(parts)} [causes: {', '.join(outcome.causes) or 'none'}]"


def describe_totals(name: str, each: Totals) -> str:
    """Says the figures of a group in one line."""
    if each.healthy == each.cases:
        return f"{name}: {each.healthy_without_failure} of {each.healthy} without a failure"
    return (
        f"{name}: {each.cases} cases, {each.planted} planted: {each.named_or_hidden:.1%} named or hidden, "
        f"{each.hidden_share:.1%} hidden ({each.uncovered} of {each.hidden} uncovered); "
        f"{each.false} of {each.causes} causes false ({each.false_share:.1%}); {each.refused} refused"
    )


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    if arguments.excluded:
        for names, reason in excluded().items():
            print(f"{' + '.join(names)}: {reason}")
        return 0
    kinds = arguments.kinds.split(",")
    cases = [case for case in every_case() if case.kind in kinds and arguments.half in (case.half, "both")]
    cases = [case for case in cases if not arguments.planted or arguments.planted in case.mistakes]
    if arguments.fraction > 1:
        cases = take_fraction(cases, arguments.fraction)
    outcomes = measure_all(cases, arguments.models, arguments.out, arguments.processes)
    for outcome in outcomes:
        if outcome.half == "written" and not outcome.is_right:
            print(describe(outcome))
    groups = {f"{kind} {half}": [] for kind in kinds for half in ("written", "unseen")}
    for outcome in outcomes:
        groups[f"{outcome.kind} {outcome.half}"].append(outcome)
    totals = {name: total(each) for name, each in groups.items() if each}
    totals["all"] = total(outcome for outcome in outcomes if outcome.kind != "single")
    for name, each in totals.items():
        print(describe_totals(name, each))
    content = {name: each.to_json() for name, each in totals.items()}
    (arguments.out / "totals.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0 if totals["all"].meets_bars else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a page says in words: a line for each question, then the findings of studies with what stands behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from headway.report.page.commands import (
    command_of_comparison,
    command_of_heads,
    command_of_lab,
    command_of_lengths,
    headway,
)
from headway.report.page.sources import Sources
from headway.report.studies import (
    ComparisonFile,
    HeadsFile,
    LabFile,
    LengthsFile,
    PopulationFile,
    RemovalJson,
    WithheldJson,
    read_study,
)
from headway.runs.metrics import COSTS

FIRST = 2
"""sentences about heads that stand first: what can go alone, and together"""
NOTHING_FORBIDDEN = "the doctor's checks forbid nothing here"
NEEDED = "Which heads it needs"


class FindingJson(TypedDict):
    text: str
    details: dict[str, str]
    withheld: str | None
    """why it may not be said"""
    more: bool
    """whether it stands below the others"""


def findings_of(sentences: Iterable[str], details: dict[str, str]) -> list[FindingJson]:
    return [{"text": text, "details": details, "withheld": None, "more": False} for text in sentences]


def withheld_finding(text: str, details: dict[str, str], reason: str) -> FindingJson:
    return {"text": text, "details": details, "withheld": reason, "more": False}


def is_by_loss(heads: HeadsFile) -> bool:
    """Whether heads are judged by a loss, and not by how often the answer is right."""
    return heads["interval_of"] == "loss_increase"


def cost_of(heads: HeadsFile) -> str:
    """What the cost of a head is counted in."""
    return COSTS.get(heads["metric"], heads["metric"])


def reasons(withheld: list[WithheldJson]) -> str:
    return "; ".join(f"{each['check']}: {each['reason'].rstrip('.')}" for each in withheld)


def headline_of_heads(heads: HeadsFile | None, population: PopulationFile | None) -> list[dict[str, str]]:
    """The answer to the first question, in a few words."""
    if heads is None:
        return [] if population is None else _headline_of_population(population)
    gone, alone, left = heads["together"], heads["alone"], heads["alone_removed_together"]
    if gone is None or alone is None or left is None:
        return []
    sure = "proved to be the largest set" if gone.get("optimal") else "the largest set found"
    harmless, costs = f"The {alone['count']} that look harmless one at a time", (gone, left)
    more, most = (each.get("loss_increase") for each in costs)
    if is_by_loss(heads) and more is not None and most is not None:
        rest = (
            f"The {cost_of(heads)} rises by {more:.4f} without them ({sure} within {heads['max_loss_increase']:g}). "
            f"{harmless} raise it by {most:.4f} when all of them go."
        )
    else:
        rest = (
            f"{gone['accuracy']:.1%} right without them ({sure}). {harmless} leave {left['accuracy']:.1%} when all of "
            "them go."
        )
    return _headline(f"{gone['count']} of {len(heads['heads'])} heads can go together", rest)


def _headline_of_population(population: PopulationFile) -> list[dict[str, str]]:
    found = population["distribution"]
    heads, gone, left = found.get("heads"), found.get("together"), found.get("alone_removed_together")
    if heads is None or gone is None or left is None:
        return []
    studied = found["members"] - found["refused"]
    rest = (
        f"From {gone['least']} to {gone['most']} over {studied:,} runs. Those that look harmless one at a time leave "
        f"{left['median']:.1%} in the median when all of them go."
    )
    return _headline(f"{gone['median']} of {heads} heads can go together in the median run", rest)


def _headline(answer: str, rest: str, question: str = "Which heads does it need?") -> list[dict[str, str]]:
    return [{"question": question, "answer": answer, "rest": rest}]


def headline_of_lengths(lengths: list[LengthsFile]) -> list[dict[str, str]]:
    """The answer to the second: of the first study, on its first probe."""
    if not lengths or not lengths[0]["reach"]:
        return []
    study = lengths[0]
    probe, trained = study["reach"][0]["probe"], study["train_lengths"][1]
    rows = [row for row in study["reach"] if row["probe"] == probe]
    reaches = [f"{row['positions']} {'not learned' if row['worst'] is None else row['worst']}" for row in rows]
    far = max((row["worst"] or 0 for row in rows), default=0)
    past = f"right up to length {far}" if far > trained else "not past its training length"
    return _headline(
        f"{study['task'].capitalize()}, trained to {trained}: {past}",
        f"Reach of the worst seed on the probe {probe}: {', '.join(reaches)}.",
        "How far past its training length does it work?",
    )


def findings_of_heads(sources: Sources, heads: HeadsFile | None, seeds: int) -> list[FindingJson]:
    if heads is None:
        return []
    details = {
        "problems": f"{heads['examples']:,}",
        **({"judged by": cost_of(heads)} if is_by_loss(heads) else {}),
        **({} if heads["metric"] != "exact" else {"right with all heads": f"{heads['baseline']:.4f}"}),
        "ablation": heads["ablation"],
        "model": heads["subject"],
        "seeds": "1" if seeds <= 1 else "1 (others: see Over seeds)",
        "check": "failed" if heads["withheld"] else NOTHING_FORBIDDEN,
        "command": command_of_heads(sources, heads),
    }
    if heads["withheld"]:
        return [withheld_finding(NEEDED, details, reasons(heads["withheld"]))]
    found = findings_of(heads["findings"], details)
    for finding, removed in zip(found, (heads["alone_removed_together"], heads["together"]), strict=False):
        finding["details"] = {**({} if is_by_loss(heads) else _interval(removed)), **details}
    return [{**finding, "more": place >= FIRST} for place, finding in enumerate(found)]


def _interval(removed: RemovalJson | None) -> dict[str, str]:
    bounds = (removed or {}).get("interval")
    if not bounds or None in bounds:
        return {}
    return {"interval of what is left (95%)": "{:.4f} to {:.4f}".format(*bounds)}


def findings_of_population(sources: Sources, population: PopulationFile | None) -> list[FindingJson]:
    if sources.population is None or population is None:
        return []
    details = {
        "seeds": f"{len(population['members']):,}",
        "check": f"{population['distribution']['refused']:,} refused: too often wrong",
        "command": headway("heads", sources.population.parent),
    }
    return findings_of(population["findings"], details)


def findings_of_lengths(sources: Sources, lengths: list[LengthsFile]) -> list[FindingJson]:
    found = []
    for path, study in zip(sources.lengths, lengths, strict=True):
        learned = [row["converged"] for row in study["converged"]]
        told = f"{sum(learned)} of {len(learned)} runs learned the task in range; the others are not told"
        details = {
            "task": study["task"],
            "track": study["track"],
            "trained on lengths": "{} to {}".format(*study["train_lengths"]),
            "problems at each length": f"{study['examples']:,}",
            "seeds": str(len({row["seed"] for row in study["rows"]})),
            "interval": "of every point, 95%, in the curves below",
            "check": reasons(study["withheld"]) or (told if learned else ""),
            "command": command_of_lengths(sources, path, study),
        }
        found += findings_of(study["findings"], details)
    return found


def findings_of_comparisons(sources: Sources, comparisons: list[ComparisonFile]) -> list[FindingJson]:
    found = []
    for path, each in zip(sources.comparisons, comparisons, strict=True):
        runs, complete = (sum(row[key] for row in each["rows"]) for key in ("runs", "complete"))
        details = {
            "runs": f"{runs:,}, {complete:,} of them complete",
            "groups": f"{len(each['rows']):,}, by {', '.join(each['by'])}",
            "seeds": ", ".join(dict.fromkeys(str(row["seeds"]) for row in each["rows"])) + " a group",
            "interval": "of the mean over runs, 95%, in the table below",
            "command": command_of_comparison(path, each),
        }
        found += findings_of(each["findings"], details)
    return found


def findings_of_lab(sources: Sources) -> list[FindingJson]:
    if sources.lab is None:
        return []
    lab, command = read_study(sources.lab, LabFile), command_of_lab(sources, sources.lab.parent)
    found = []
    for row in lab["runs"]:
        bounds = row["interval"]
        details = {
            "problems": f"{row['examples']:,}" + (" (all there are)" if bounds is None else ""),
            "wrong": f"{row['errors']:,}",
            "95% interval": "none: all were tried" if bounds is None else "{:.4f} to {:.4f}".format(*bounds),
            "seed": str(row["seed"]),
            "check": ", ".join(f"{each['check']} failed" for each in row.get("withheld", ())) or NOTHING_FORBIDDEN,
            "command": command,
        }  # fmt: skip
        found += findings_of([row["finding"]], details)
    shown = sources.heads[0].parent if sources.heads else None
    for each in lab["withheld"]:
        run = sources.run_once_at(each["run"])
        if run == shown and "heads" in each["about"]:
            continue  # the study itself says so
        details = {"run": sources.name(run), "check": each["check"], "command": headway("doctor", run)}
        text = f"What {sources.name(run)} says about {each['about']}"
        found.append(withheld_finding(text, details, each["reason"].rstrip(".")))
    return found

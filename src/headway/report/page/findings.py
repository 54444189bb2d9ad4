"""What a page says in words: a line for each question, then the findings of studies with what stands behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from headway.report import studies
from headway.report.page import commands
from headway.report.page.sources import Sources
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


Headline = dict[str, str]
"""a question, its answer, and the rest"""


def _findings(sentences: Iterable[str], details: dict[str, str], withheld: str | None = None) -> list[FindingJson]:
    return [{"text": text, "details": details, "withheld": withheld, "more": False} for text in sentences]


def is_by_loss(heads: studies.HeadsFile) -> bool:
    """Whether heads are judged by a loss, and not by how often the answer is right."""
    return heads["interval_of"] == "loss_increase"


def cost_of(heads: studies.HeadsFile) -> str:
    """What the cost of a head is counted in."""
    return COSTS.get(heads["metric"], heads["metric"])


def reasons(withheld: list[studies.WithheldJson]) -> str:
    return "; ".join(f"{each['check']}: {each['reason'].rstrip('.')}" for each in withheld)


def headline_of_heads(heads: studies.HeadsFile | None, population: studies.PopulationFile | None) -> list[Headline]:
    """The answer to the first question, in a few words."""
    question = "Which heads does it need?"
    if heads is None:
        found = studies.complete({} if population is None else population, studies.PopulationFile)["distribution"]
        many, gone, left = found.get("heads"), found.get("together"), found.get("alone_removed_together")
        if many is None or gone is None or left is None:
            return []
        answer = f"{gone['median']} of {many} heads can go together in the median run"
        studied = found["members"] - found["refused"]
        rest = (
            f"From {gone['least']} to {gone['most']} over {studied:,} runs. Those that look harmless one at a time "
            f"leave {left['median']:.1%} in the median when all of them go."
        )
        return [{"question": question, "answer": answer, "rest": rest}]
    gone, alone, left = heads["together"], heads["alone"], heads["alone_removed_together"]
    if gone is None or alone is None or left is None:
        return []
    sure = "proved to be the largest set" if gone.get("optimal") else "the largest set found"
    harmless = f"The {alone['count']} that look harmless one at a time"
    more, most = gone.get("loss_increase"), left.get("loss_increase")
    if is_by_loss(heads) and more is not None and most is not None:
        rest = (
            f"The {cost_of(heads)} rises by {more:.4f} without them ({sure} within {heads['max_loss_increase']:g}). "
            f"{harmless} raise it by {most:.4f} when all of them go."
        )
    else:
        rest = f"{gone['accuracy']:.1%} right without them ({sure}). {harmless} leave {left['accuracy']:.1%} when all "
        rest += "of them go."
    answer = f"{gone['count']} of {len(heads['heads'])} heads can go together"
    return [{"question": question, "answer": answer, "rest": rest}]


def headline_of_lengths(lengths: list[studies.LengthsFile]) -> list[Headline]:
    """The answer to the second: of the first study, on its first probe."""
    if not lengths or not lengths[0]["reach"]:
        return []
    study = lengths[0]
    probe, trained = study["reach"][0]["probe"], study["train_lengths"][1]
    rows = [row for row in study["reach"] if row["probe"] == probe]
    reaches = [f"{row['positions']} {'not learned' if row['worst'] is None else row['worst']}" for row in rows]
    far = max((row["worst"] or 0 for row in rows), default=0)
    past = f"right up to length {far}" if far > trained else "not past its training length"
    return [
        {
            "question": "How far past its training length does it work?",
            "answer": f"{study['task'].capitalize()}, trained to {trained}: {past}",
            "rest": f"Reach of the worst seed on the probe {probe}: {', '.join(reaches)}.",
        }
    ]


def findings_of_heads(sources: Sources, heads: studies.HeadsFile | None, seeds: int) -> list[FindingJson]:
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
        "command": commands.command_of_heads(sources, heads),
    }
    if heads["withheld"]:
        return _findings([NEEDED], details, reasons(heads["withheld"]))
    found = _findings(heads["findings"], details)
    for finding, removed in zip(found, (heads["alone_removed_together"], heads["together"]), strict=False):
        bounds = None if removed is None or is_by_loss(heads) else removed.get("interval")
        if bounds and None not in bounds:
            span = "{:.4f} to {:.4f}".format(*bounds)
            finding["details"] = {"interval of what is left (95%)": span, **details}
    return [{**finding, "more": place >= FIRST} for place, finding in enumerate(found)]


def findings_of_population(sources: Sources, population: studies.PopulationFile | None) -> list[FindingJson]:
    if sources.population is None or population is None:
        return []
    details = {
        "seeds": f"{len(population['members']):,}",
        "check": f"{population['distribution']['refused']:,} refused: too often wrong",
        "command": commands.headway("heads", sources.population.parent),
    }
    return _findings(population["findings"], details)


def findings_of_lengths(sources: Sources, lengths: list[studies.LengthsFile]) -> list[FindingJson]:
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
            "command": commands.command_of_lengths(sources, path, study),
        }
        found += _findings(study["findings"], details)
    return found


def findings_of_comparisons(sources: Sources, comparisons: list[studies.ComparisonFile]) -> list[FindingJson]:
    found = []
    for path, each in zip(sources.comparisons, comparisons, strict=True):
        runs, complete = (sum(row[key] for row in each["rows"]) for key in ("runs", "complete"))
        details = {
            "runs": f"{runs:,}, {complete:,} of them complete",
            "groups": f"{len(each['rows']):,}, by {', '.join(each['by'])}",
            "seeds": ", ".join(dict.fromkeys(str(row["seeds"]) for row in each["rows"])) + " a group",
            "interval": "of the mean over runs, 95%, in the table below",
            "command": commands.command_of_comparison(path, each),
        }
        found += _findings(each["findings"], details)
    return found


def findings_of_lab(sources: Sources) -> list[FindingJson]:
    if sources.lab is None:
        return []
    lab = studies.read_study(sources.lab, studies.LabFile)
    command = commands.command_of_lab(sources, sources.lab.parent)
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
        found += _findings([row["finding"]], details)
    shown = sources.heads[0].parent if sources.heads else None
    for each in lab["withheld"]:
        run = sources.run_once_at(each["run"])
        if run == shown and "heads" in each["about"]:
            continue  # the study itself says so
        details = {"run": sources.name(run), "check": each["check"], "command": commands.headway("doctor", run)}
        text = f"What {sources.name(run)} says about {each['about']}"
        found += _findings([text], details, each["reason"].rstrip("."))
    return found

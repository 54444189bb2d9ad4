"""What a page says in words: a line for each question, then the findings of studies with what stands behind them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict, TypeVar

from headway.report import studies
from headway.report.page import commands
from headway.report.page.sources import Sources

FIRST = 2
"""sentences about heads that stand first: what can go alone, and together"""
NOTHING_FORBIDDEN = "the doctor's checks forbid nothing here"
NEEDS = "Which heads does it need?"
FindingJson = TypedDict("FindingJson", {"text": str, "details": dict[str, str], "withheld": str | None, "more": bool})  # noqa: UP013
"""a sentence and what stands behind it, why it may not be said, and whether it stands below the others"""
Headline = dict[str, str]
"""a question, its answer, and the rest"""
Study = TypeVar("Study")
Found = list[tuple[Path, Study]]
"""studies and where they lie"""


def _findings(sentences: Iterable[str], details: dict[str, str], withheld: str | None = None) -> list[FindingJson]:
    return [{"text": text, "details": details, "withheld": withheld, "more": False} for text in sentences]


def reasons(withheld: list[studies.WithheldJson]) -> str:
    return "; ".join(f"{each['check']}: {each['reason'].rstrip('.')}" for each in withheld)


def headline_of_heads(heads: Found[studies.HeadsFile], populations: Found[studies.PopulationFile]) -> list[Headline]:
    """The answer to the first question, in a few words."""
    if heads:
        return _headline_of_study(heads[0][1])
    for _, population in populations:
        found = population["distribution"]
        many, gone, left = found.get("heads"), found.get("together"), found.get("alone_removed_together")
        if many is not None and gone is not None and left is not None:
            studied = found["members"] - found["refused"]
            answer = f"{gone['median']} of {many} heads can go together in the median run"
            rest = (
                f"From {gone['least']} to {gone['most']} over {studied:,} runs. Those that look harmless one at a time "
                f"leave {left['median']:.1%} in the median when all of them go."
            )
            return [{"question": NEEDS, "answer": answer, "rest": rest}]
    return []


def _headline_of_study(heads: studies.HeadsFile) -> list[Headline]:
    gone, alone, left = heads["together"], heads["alone"], heads["alone_removed_together"]
    if gone is None or alone is None or left is None:
        return []
    sure = "proved to be the largest set" if gone.get("optimal") else "the largest set found"
    harmless = f"The {alone['count']} that look harmless one at a time"
    more, most = gone.get("loss_increase"), left.get("loss_increase")
    if (cost := heads.get("counted")) is not None and more is not None and most is not None:
        rest = (
            f"The {cost} rises by {more:.4f} without them ({sure} within {heads['max_loss_increase']:g}). "
            f"{harmless} raise it by {most:.4f} when all of them go."
        )
    else:
        kept, remaining = f"{gone['accuracy']:.1%}", f"{left['accuracy']:.1%}"
        rest = f"{kept} right without them ({sure}). {harmless} leave {remaining} when all of them go."
    answer = f"{gone['count']} of {len(heads['heads'])} heads can go together"
    return [{"question": NEEDS, "answer": answer, "rest": rest}]


def headline_of_lengths(lengths: Found[studies.LengthsFile]) -> list[Headline]:
    """The answer to the second: of the first study, on its first probe."""
    if not lengths or not lengths[0][1]["reach"]:
        return []
    study = lengths[0][1]
    probe, trained = study["reach"][0]["probe"], study["train_lengths"][1]
    rows = [row for row in study["reach"] if row["probe"] == probe]
    reaches = [f"{row['positions']} {'not learned' if row['worst'] is None else row['worst']}" for row in rows]
    far = max((row["worst"] or 0 for row in rows), default=0)
    past = f"right up to length {far}" if far > trained else "not past its training length"
    answer = f"{study['task'].capitalize()}, trained to {trained}: {past}"
    rest = f"Reach of the worst seed on the probe {probe}: {', '.join(reaches)}."
    return [{"question": "How far past its training length does it work?", "answer": answer, "rest": rest}]


def findings_of_heads(sources: Sources, found: Found[studies.HeadsFile], seeds: int) -> list[FindingJson]:
    if not found:
        return []
    path, heads = found[0]
    cost = heads.get("counted")
    details = {
        "problems": f"{heads['examples']:,}",
        **({} if cost is None else {"judged by": cost}),
        **({} if heads["metric"] != "exact" else {"right with all heads": f"{heads['baseline']:.4f}"}),
        "ablation": heads["ablation"],
        "model": heads["subject"],
        "seeds": "1" if seeds <= 1 else "1 (others: see Over seeds)",
        "check": "failed" if heads["withheld"] else NOTHING_FORBIDDEN,
        "command": commands.command_of_heads(sources, path.parent, heads),
    }
    if heads["withheld"]:
        return _findings(["Which heads it needs"], details, reasons(heads["withheld"]))
    told = _findings(heads["findings"], details)
    for finding, removed in zip(told, (heads["alone_removed_together"], heads["together"]), strict=False):
        bounds = removed.get("interval") if removed is not None and cost is None else None
        if bounds and None not in bounds:
            span = "{:.4f} to {:.4f}".format(*bounds)
            finding["details"] = {"interval of what is left (95%)": span, **details}
    return [{**finding, "more": place >= FIRST} for place, finding in enumerate(told)]


def findings_of_population(path: Path, population: studies.PopulationFile) -> list[FindingJson]:
    details = {
        "seeds": f"{len(population['members']):,}",
        "check": f"{population['distribution']['refused']:,} refused: too often wrong",
        "command": commands.headway("heads", path.parent),
    }
    return _findings(population["findings"], details)


def findings_of_lengths(sources: Sources, path: Path, study: studies.LengthsFile) -> list[FindingJson]:
    learned = [row["converged"] for row in study["converged"]]
    told = f"{sum(learned)} of {len(learned)} runs learned the task in range; the others are left out"
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
    return _findings(study["findings"], details)


def findings_of_comparison(path: Path, study: studies.ComparisonFile) -> list[FindingJson]:
    runs, complete = (sum(row[key] for row in study["rows"]) for key in ("runs", "complete"))
    details = {
        "runs": f"{runs:,}, {complete:,} of them complete",
        "groups": f"{len(study['rows']):,}, by {', '.join(study['by'])}",
        "seeds": ", ".join(dict.fromkeys(str(row["seeds"]) for row in study["rows"])) + " a group",
        "interval": "of the mean over runs, 95%, in the table below",
        "command": commands.command_of_comparison(path, study),
    }
    return _findings(study["findings"], details)


def findings_of_lab(sources: Sources, path: Path, lab: studies.LabFile) -> list[FindingJson]:
    found, command = [], commands.command_of_lab(sources, path.parent)
    for row in lab["runs"]:
        bounds = row["interval"]
        failed = ", ".join(f"{each['check']} failed" for each in row.get("withheld", ()))
        details = {
            "problems": f"{row['examples']:,}" + (" (all there are)" if bounds is None else ""),
            "wrong": f"{row['errors']:,}",
            "95% interval": "none: all were tried" if bounds is None else "{:.4f} to {:.4f}".format(*bounds),
            "seed": str(row["seed"]),
            "check": failed or NOTHING_FORBIDDEN,
            "command": command,
        }
        found += _findings([row["finding"]], details)
    for each in lab["withheld"]:
        run = sources.run_once_at(each["run"])
        if "heads" in each["about"] and sources.heads is not None and run == sources.heads.parent:
            continue  # the study itself says so
        details = {"run": sources.name(run), "check": each["check"], "command": commands.headway("doctor", run)}
        text = f"What {sources.name(run)} says about {each['about']}"
        found += _findings([text], details, each["reason"].rstrip("."))
    return found

"""What a page says in words: a line for each question, then the findings with what stands behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.report.page import commands
from headway.report.page.found import Found
from headway.report.page.reading import DISTRIBUTION, LAB, fault, read

FIRST = 2
"""sentences about heads that are told first: what can go alone, and together"""
NOTHING_FORBIDDEN = "the doctor's checks forbid nothing here"
NEEDED = "Which heads it needs"
COUNTED = {
    "exact": "loss",
    "kl": "KL divergence",
    "accuracy": "share of wrong tokens",
    "logit-difference": "lost logit difference",
}
"""what a cost is counted in, by metric; a metric of one's own is called by its name"""


def by_loss(heads: dict[str, Any]) -> bool:
    """Whether heads are judged by a loss, and not by how often the answer is right."""
    return heads.get("interval_of") == "loss_increase"


def counted_in(heads: dict[str, Any]) -> str:
    metric: str = heads.get("metric", "exact")
    return COUNTED.get(metric, metric)


def reasons(withheld: list[dict[str, str]]) -> str:
    return "; ".join(f"{each['check']}: {each['reason'].rstrip('.')}" for each in withheld)


def headline_of_heads(heads: dict[str, Any] | None, population: dict[str, Any] | None) -> list[dict[str, str]]:
    """The answer to the first question, in a few words."""
    question = {"question": "Which heads does it need?"}
    if heads is None:
        found = (population or {}).get("distribution") or {}
        if fault(found, DISTRIBUTION):
            return []
        gone, left = found["together"], found["alone_removed_together"]["median"]
        return [
            {
                **question,
                "answer": f"{gone['median']} of {found['heads']} heads can go together in the median run",
                "rest": f"From {gone['least']} to {gone['most']} over {found['members'] - found['refused']:,} runs. "
                f"Those that look harmless one at a time leave {left:.1%} in the median when all of them go.",
            }
        ]
    if heads["together"] is None or heads["alone"] is None or heads["alone_removed_together"] is None:
        return []
    gone, alone, left = heads["together"], heads["alone"]["count"], heads["alone_removed_together"]
    sure = "proved to be the largest set" if gone.get("optimal") else "the largest set found"
    if by_loss(heads) and None not in (gone.get("loss_increase"), left.get("loss_increase")):
        rest = (
            f"The {counted_in(heads)} rises by {gone['loss_increase']:.4f} without them ({sure} within "
            f"{heads['max_loss_increase']:g}). The {alone} that look harmless one at a time raise it by "
            f"{left['loss_increase']:.4f} when all of them go."
        )
    else:
        rest = (
            f"{gone['accuracy']:.1%} right without them ({sure}). The {alone} that look harmless one at a time leave "
            f"{left['accuracy']:.1%} when all of them go."
        )
    return [{**question, "answer": f"{gone['count']} of {len(heads['heads'])} heads can go together", "rest": rest}]


def headline_of_lengths(lengths: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The answer to the second: of the first study, on its first probe."""
    if not lengths or not lengths[0]["reach"]:
        return []
    study = lengths[0]
    probe, trained = study["reach"][0]["probe"], study["train_lengths"][1]
    rows = [row for row in study["reach"] if row["probe"] == probe]
    told = [f"{row['positions']} {'not learned' if row['worst'] is None else row['worst']}" for row in rows]
    far = max((row["worst"] or 0 for row in rows), default=0)
    past = f"right up to length {far}" if far > trained else "not past its training length"
    return [
        {
            "question": "How far past its training length does it work?",
            "answer": f"{study['task'].capitalize()}, trained to {trained}: {past}",
            "rest": f"Reach of the worst seed on the probe {probe}: {', '.join(told)}.",
        }
    ]


def of_heads(found: Found, heads: dict[str, Any] | None, seeds: int) -> list[dict[str, Any]]:
    if heads is None:
        return []
    details = {
        "problems": f"{heads['examples']:,}",
        **({"judged by": counted_in(heads)} if by_loss(heads) else {}),
        **({} if heads.get("metric", "exact") != "exact" else {"right with all heads": f"{heads['baseline']:.4f}"}),
        "ablation": heads["ablation"],
        "model": heads["subject"],
        "seeds": "1" if seeds <= 1 else "1 (others: see Over seeds)",
        "check": "failed" if heads["withheld"] else NOTHING_FORBIDDEN,
        "command": commands.command_of_heads(found, found.heads[0], heads),
    }
    if heads["withheld"]:
        return [{"text": NEEDED, "details": details, "withheld": reasons(heads["withheld"])}]
    sets = (heads["alone_removed_together"], heads["together"])
    told = []
    for place, text in enumerate(heads["findings"]):
        own = {**(_interval(sets[place]) if place < FIRST and not by_loss(heads) else {}), **details}
        told.append({"text": text, "details": own, "withheld": None, "more": place >= FIRST})
    return told


def _interval(removed: dict[str, Any] | None) -> dict[str, str]:
    bounds = (removed or {}).get("interval")
    if not bounds or None in bounds:
        return {}
    return {"interval of what is left (95%)": "{:.4f} to {:.4f}".format(*bounds)}


def of_population(found: Found, population: dict[str, Any] | None) -> list[dict[str, Any]]:
    if found.population is None or population is None:
        return []
    spread = population.get("distribution") or {}
    words = population.get("findings") or _in_words(spread)
    details = {
        "seeds": f"{len(population['members']):,}",
        "check": f"{spread.get('refused', 0):,} refused: too often wrong",
        "command": commands.command_of_population(found.population),
    }
    return [{"text": text, "details": details, "withheld": None} for text in words]


def _in_words(found: dict[str, Any]) -> list[str]:
    if fault(found, DISTRIBUTION):
        return []
    alone, left, together = found["alone"], found["alone_removed_together"], found["together"]
    sure = (
        f"In {found['proved']:,} runs all sets of heads are accounted for: no larger one can go."
        if found.get("proved")
        else "Found by greedy removal; a larger set may exist."
    )
    return [
        f"Of {found['members']:,} runs the median has {alone['median']} of {found['heads']} heads that cost little one "
        f"at a time ({alone['least']} to {alone['most']}); removed together they leave {left['median']:.4f} right "
        f"({left['least']:.4f} to {left['most']:.4f}).",
        f"Together {together['median']} can go in the median run ({together['least']} to {together['most']}). {sure}",
    ]


def of_lengths(found: Found, lengths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = []
    for path, study in zip(found.lengths, lengths, strict=True):
        details = {
            "task": study["task"],
            "track": study["track"],
            "trained on lengths": f"{study['train_lengths'][0]} to {study['train_lengths'][1]}",
            "problems at each length": f"{study['examples']:,}",
            "seeds": str(len({row["seed"] for row in study["rows"]})),
            "interval": "of every point, 95%, in the curves below",
            "check": _checked(study),
            "command": commands.command_of_lengths(found, path, study),
        }
        told += [{"text": text, "details": details, "withheld": None} for text in study["findings"]]
    return told


def of_comparisons(found: Found, comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = []
    for path, each in zip(found.comparisons, comparisons, strict=True):
        runs, complete = (sum(row[key] for row in each["rows"]) for key in ("runs", "complete"))
        details = {
            "runs": f"{runs:,}, {complete:,} of them complete",
            "groups": f"{len(each['rows']):,}, by {', '.join(each['by'])}",
            "seeds": ", ".join(dict.fromkeys(str(row["seeds"]) for row in each["rows"])) + " a group",
            "interval": "of the mean over runs, 95%, in the table below",
            "command": commands.command_of_comparison(path, each),
        }
        told += [{"text": text, "details": details, "withheld": None} for text in each["findings"]]
    return told


def _checked(study: dict[str, Any]) -> str:
    """What was looked at before anything was concluded."""
    if study.get("withheld"):
        return reasons(study["withheld"])
    learned = [row["converged"] for row in study.get("converged", ())]
    return (
        f"{sum(learned)} of {len(learned)} runs learned the task in range; the others are not told" if learned else ""
    )


def of_lab(found: Found) -> list[dict[str, Any]]:
    if found.lab is None:
        return []
    lab, command = read(found.lab, LAB), commands.command_of_lab(found, found.lab.parent)
    told = []
    for row in lab["runs"]:
        low_high = row["interval"]
        details = {
            "problems": f"{row['examples']:,}" + (" (all there are)" if low_high is None else ""),
            "wrong": f"{row['errors']:,}",
            "95% interval": "none: all were tried" if low_high is None else "{:.4f} to {:.4f}".format(*low_high),
            "seed": str(row["seed"]),
            "check": ", ".join(f"{each['check']} failed" for each in row.get("withheld", ())) or NOTHING_FORBIDDEN,
            "command": command,
        }  # fmt: skip
        told.append({"text": row["finding"], "details": details, "withheld": None})
    shown = found.heads[0].parent if found.heads else None
    for each in lab.get("withheld", ()):
        run: Path = found.run_once_at(each["run"])
        if run == shown and "heads" in each["about"]:
            continue  # the study itself says so
        details = {"run": found.name(run), "check": each["check"], "command": commands.command_of_doctor(run)}
        text = f"What {found.name(run)} says about {each['about']}"
        told.append({"text": text, "details": details, "withheld": each["reason"].rstrip(".")})
    return told

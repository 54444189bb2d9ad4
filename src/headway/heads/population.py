"""What the studies of many runs have in common: distributions over a folder of runs, as `heads-population.json` holds
them."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.causes.kinds import kinds_finding
from headway.heads.result import HeadStudy

SCHEMA = "headway.heads-population/1"
FILE = "heads-population.json"


@dataclass(frozen=True)
class RefusedMember:
    """A member that no verdict can be given about; it is reported, not left out."""

    subject: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "refused": self.reason}


Member = HeadStudy | RefusedMember


@dataclass(frozen=True)
class PopulationStudy:
    """The studies of the runs of a folder, and what they have in common."""

    members: tuple[Member, ...]
    kinds: dict[str, Any] | None = None
    """of solution, where that was asked"""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "members": [study.to_json() for study in self.members],
            "distribution": distribution(self.members),
            "kinds": self.kinds,
            "findings": self.findings(),
        }

    def summary(self) -> dict[str, Any]:
        """The same with a line for every member, as it is kept."""
        return {**self.to_json(), "members": [summary(study) for study in self.members]}

    def findings(self) -> list[str]:
        words = population_findings(distribution(self.members))
        if self.kinds is not None:
            words.append(kinds_finding(self.kinds))
        return words


def summary(member: Member) -> dict[str, Any]:
    """A line about one member."""
    if isinstance(member, RefusedMember):
        return member.to_json()
    return {
        "subject": member.subject,
        "baseline": member.baseline,
        "examples": member.examples,
        "alone": member.alone.count,
        "alone_removed_together": member.alone.accuracy,
        "together": member.together.count,
        "together_accuracy": member.together.accuracy,
        "critical": [str(row.head) for row in member.heads if row.verdict == "critical"],
        "removed": member.together.names,
        "optimum": None if member.optimum is None else member.optimum.to_json(),
    }


def distribution(members: Sequence[Member]) -> dict[str, Any]:
    """What the members of a population have in common, and how far they differ."""
    studies = [member for member in members if isinstance(member, HeadStudy)]
    if not studies:
        return {"members": len(members), "refused": len(members)}
    critical: dict[str, list[int]] = {}
    for study in studies:
        counts = Counter(str(row.head.site) for row in study.heads if row.verdict == "critical")
        for site in dict.fromkeys(str(row.head.site) for row in study.heads):
            critical.setdefault(site, []).append(counts[site])
    return {
        "members": len(members),
        "refused": len(members) - len(studies),
        "heads": len(studies[0].heads),
        "proved": sum(study.optimal for study in studies),
        "together": spread([study.together.count for study in studies]),
        "together_accuracy": spread([study.together.accuracy for study in studies]),
        "alone": spread([study.alone.count for study in studies]),
        "alone_removed_together": spread([study.alone.accuracy for study in studies]),
        "critical_heads": spread([sum(row.verdict == "critical" for row in study.heads) for study in studies]),
        "critical_heads_by_site": {
            site: {"mean": statistics.fmean(counts), "members": counted(counts)} for site, counts in critical.items()
        },
    }


def spread(values: Sequence[int | float]) -> dict[str, Any]:
    """From the least to the most; of whole numbers also how many members have each."""
    ordered = sorted(values)

    def at(share: float) -> int | float:
        return ordered[round(share * (len(ordered) - 1))]

    found = {"least": ordered[0], "tenth": at(0.1), "median": at(0.5), "nine_tenths": at(0.9), "most": ordered[-1]}
    whole = [value for value in ordered if isinstance(value, int)]
    return found | {"mean": statistics.fmean(ordered)} | ({"members": counted(whole)} if whole else {})


def counted(values: Sequence[int]) -> dict[str, int]:
    return {str(value): number for value, number in sorted(Counter(values).items())}


def population_findings(found: dict[str, Any]) -> list[str]:
    """The same in sentences."""
    if "heads" not in found:
        return [f"None of the {found['members']} runs is right often enough to say anything about its heads."]
    alone, left, together = found["alone"], found["alone_removed_together"], found["together"]
    judged = found["members"] - found["refused"]
    sure = (
        f"In {found['proved']:,} of {judged:,} runs all sets of heads are accounted for: no larger one can go."
        if found["proved"]
        else "Found by greedy removal; a larger set may exist."
    )
    words = [
        f"Of {found['members']:,} runs the median has {alone['median']} of {found['heads']} heads that cost little one "
        f"at a time ({alone['least']} to {alone['most']}); removed together they leave {left['median']:.4f} right "
        f"({left['least']:.4f} to {left['most']:.4f}).",
        f"Together {together['median']} can go in the median run ({together['least']} to {together['most']}). {sure}",
    ]
    if found["refused"]:
        words.append(f"{found['refused']:,} runs are right too seldom to say anything about their heads.")
    return words

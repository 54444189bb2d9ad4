"""Summarizes the studies of many runs: distributions over a folder of runs, as they are stored in
`heads-population.json`."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.causes.kinds import Kinds
from headway.heads.result import HeadStudy

SCHEMA = "headway.heads-population/1"
FILE = "heads-population.json"


@dataclass(frozen=True)
class RefusedMember:
    """A member whose heads cannot be judged; it is reported, not left out."""

    subject: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "refused": self.reason}


Member = HeadStudy | RefusedMember


@dataclass(frozen=True)
class PopulationStudy:
    """The studies of the runs of a folder, with their distribution."""

    members: tuple[Member, ...]
    kinds: Kinds | None = None
    """the kinds of solution, where they were requested"""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "members": [study.to_json() for study in self.members],
            "distribution": distribution(self.members),
            "kinds": None if self.kinds is None else self.kinds.to_json(),
            "findings": self.findings(),
        }

    def summary(self) -> dict[str, Any]:
        """Returns the same with one line for every member, as it is stored."""
        return {**self.to_json(), "members": [summary(study) for study in self.members]}

    def findings(self) -> list[str]:
        """States the same in sentences."""
        found, kinds = distribution(self.members), [] if self.kinds is None else self.kinds.findings()
        if "heads" not in found:
            none = f"None of the {found['members']} runs is accurate enough to say anything about its heads."
            return [none, *kinds]
        alone, left, together = found["alone"], found["alone_removed_together"], found["together"]
        judged = found["members"] - found["refused"]
        sure = (
            f"In {found['proved']:,} of {judged:,} runs all sets of heads are accounted for: no larger one can go."
            if found["proved"]
            else "Found by greedy removal; a larger set may exist."
        )
        refused = f"{found['refused']:,} runs are not accurate enough to say anything about their heads."
        return [
            f"Under {found['ablation']} ablation, of {found['members']:,} runs the median has {alone['median']} of "
            f"{found['heads']} heads that cost little one at a time ({alone['least']} to {alone['most']}); removed "
            f"together they leave an accuracy of {left['median']:.4f} ({left['least']:.4f} to {left['most']:.4f}).",
            f"Under {found['ablation']} ablation, {together['median']} can go together in the median run "
            f"({together['least']} to {together['most']}). {sure}",
            *([refused] if found["refused"] else []),
            *kinds,
        ]


def summary(member: Member) -> dict[str, Any]:
    """Summarizes one member in a line."""
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
        "removed": [str(head) for head in member.together.heads],
        "optimum": None if member.optimum is None else member.optimum.to_json(),
    }


def distribution(members: Sequence[Member]) -> dict[str, Any]:
    """Returns how the results are distributed over the members of a population."""
    studies = [member for member in members if isinstance(member, HeadStudy)]
    if not studies:
        return {"members": len(members), "refused": len(members)}
    critical: dict[str, list[int]] = {}
    for study in studies:
        counts = Counter(str(row.head.site) for row in study.heads if row.verdict == "critical")
        for site in dict.fromkeys(str(row.head.site) for row in study.heads):
            critical.setdefault(site, []).append(counts[site])
    lines = [summary(study) for study in studies]
    counted_over = ("together", "together_accuracy", "alone", "alone_removed_together")
    return {
        "members": len(members),
        "refused": len(members) - len(studies),
        "ablation": studies[0].ablation,
        "heads": len(studies[0].heads),
        "proved": sum(study.optimal for study in studies),
        **{name: spread([line[name] for line in lines]) for name in counted_over},
        "critical_heads": spread([len(line["critical"]) for line in lines]),
        "critical_heads_by_site": {
            site: {"mean": statistics.fmean(each), "members": count_values(each)} for site, each in critical.items()
        },
    }


def spread(values: Sequence[int | float]) -> dict[str, Any]:
    """Returns quantiles and the mean; for whole numbers also how many members have each value."""
    ordered = sorted(values)
    shares = {"least": 0, "tenth": 0.1, "median": 0.5, "nine_tenths": 0.9, "most": 1}
    found = {name: ordered[round(share * (len(ordered) - 1))] for name, share in shares.items()}
    whole = [value for value in ordered if isinstance(value, int)]
    return found | {"mean": statistics.fmean(ordered)} | ({"members": count_values(whole)} if whole else {})


def count_values(values: Sequence[int]) -> dict[str, int]:
    return {str(value): number for value, number in sorted(Counter(values).items())}

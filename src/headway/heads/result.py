"""What a study of heads found: the numbers of one subject as `heads.json` holds them, and of many as distributions."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.causes.kinds import kinds_finding
from headway.causes.patterns import Pattern
from headway.causes.roles import Roles
from headway.causes.upstream import Feed
from headway.errors import HeadwayError
from headway.evaluation.intervals import Interval, wilson
from headway.evaluation.metrics import METRICS
from headway.heads.ablation import Effect, Judge, Margin, Verdict
from headway.heads.optimum import Optimum
from headway.heads.together import Curve, Pair
from headway.heads.variants import ABLATIONS
from headway.models import Head
from headway.models.sites import Closed, site_of
from headway.output import as_html


@dataclass(frozen=True)
class HeadRow:
    head: Head
    effect: Effect
    verdict: Verdict
    interval: list[float] | None
    verdicts: dict[str, Verdict]
    """under each kind of ablation that was tried"""

    def to_json(self, pattern: Pattern | None = None) -> dict[str, Any]:
        kinds = set(self.verdicts.values())
        return {
            "head": str(self.head),
            "accuracy": self.effect.accuracy,
            "drop": self.effect.drop,
            "interval": self.interval,
            "loss_increase": self.effect.loss_increase,
            "verdict": self.verdict,
            "verdicts": self.verdicts,
            "depends_on_ablation": {"critical", "redundant"} <= kinds if len(self.verdicts) > 1 else None,
            "pattern": None if pattern is None else pattern.label,
            "pattern_scores": None if pattern is None else pattern.to_json(),
            "by_stratum": [
                {"stratum": name, "examples": count, "errors": count - right}
                for name, (count, right) in self.effect.by_stratum.items()
            ],
        }


@dataclass(frozen=True)
class Removal:
    """Heads, and what is left when all of them go."""

    heads: tuple[Head, ...]
    effect: Effect

    @property
    def count(self) -> int:
        return len(self.heads)

    @property
    def accuracy(self) -> float:
        return self.effect.accuracy


@dataclass(frozen=True)
class HeadStudy:
    subject: str
    ablation: str
    whole: Effect
    """with all heads open"""
    judge: Judge
    heads: tuple[HeadRow, ...]
    parts: tuple[Effect, ...]
    """whole sites, layers and feed-forward blocks"""
    alone: Removal
    """what the single-head rule would remove"""
    together: Removal
    """the largest set that was found within the margin"""
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...]
    optimum: Optimum | None
    patterns: tuple[Pattern, ...]
    """where each head looks; none where that was not asked"""
    roles: Roles | None
    """what each head brings to the answer, tested; None where there are no pairs of problems to test it with"""
    seconds: float
    withheld: tuple[dict[str, str], ...] = ()
    """the checks that forbid to tell what was found, each with its reason"""
    metric: str = "exact"
    """what heads are judged by"""
    feeds: tuple[Feed, ...] = ()
    """which heads make others look where they look, tested; of users' models"""
    view: Callable[[Any], Any] | None = field(default=None, repr=False, compare=False)
    """draws the maps of a problem, where the subject is at hand"""

    def maps(self, problem: Any = None) -> Any:
        """The attention of every head on one problem, to look at in a notebook: a sum like "457+968", a text for
        a language model, one of headway.Problems, or nothing for a fresh one."""
        if self.view is None:
            raise HeadwayError("this study has no model at hand; study_heads(…) returns one that has")
        return self.view(problem)

    @property
    def examples(self) -> int:
        return self.whole.examples

    @property
    def baseline(self) -> float:
        return self.whole.accuracy

    @property
    def exact(self) -> bool:
        """Whether every problem there is was looked at."""
        return self.judge.exact

    @property
    def margin(self) -> Margin:
        return self.judge.margin

    def to_json(self) -> dict[str, Any]:
        interval = None if self.exact else wilson(self.alone.effect.right, self.examples).to_json()
        kept = None if self.exact else wilson(self.together.effect.right, self.examples).to_json()
        patterns = {pattern.head: pattern for pattern in self.patterns}
        content = {
            "subject": self.subject,
            "baseline": self.baseline,
            "examples": self.examples,
            "ablation": self.ablation,
            "metric": self.metric,
            "max_drop": self.margin.drop,
            "max_loss_increase": self.margin.loss,
            "confidence_of_each_interval": None if self.exact else self.judge.confidence,
            "interval_of": "drop" if self.margin.loss is None else "loss_increase",
            "heads": [row.to_json(patterns.get(row.head)) for row in self.heads],
            "parts": [
                {
                    "part": named(effect.closed),
                    "accuracy": effect.accuracy,
                    "drop": effect.drop,
                    "interval": as_list(self.judge.interval(effect)),
                    "loss_increase": effect.loss_increase,
                    "verdict": self.judge.verdict(effect),
                }
                for effect in self.parts
            ],
            "alone": {"count": self.alone.count, "heads": [str(head) for head in self.alone.heads]},
            "alone_removed_together": {
                "accuracy": self.alone.accuracy,
                "loss_increase": self.alone.effect.loss_increase,
                "interval": interval,
            },
            "together": {
                "count": self.together.count,
                "heads": [str(head) for head in self.together.heads],
                "accuracy": self.together.accuracy,
                "loss_increase": self.together.effect.loss_increase,
                "interval": kept,
                "optimal": self.optimal,
                "confidence": None if self.optimum is None else self.optimum.confidence,
                "searched": max(curve.searched for curve in self.curves)
                + (0 if self.optimum is None else self.optimum.searched),
            },
            "optimum": None if self.optimum is None else self.optimum.to_json(),
            "curves": [
                {
                    "order": curve.order,
                    "accuracy": list(curve.accuracy),
                    "loss": list(curve.loss),
                    "searched": curve.searched,
                    "heads": [sorted(map(str, closed)) for closed in curve.sets],
                }
                for curve in self.curves
            ],
            "pairs": [
                {
                    "heads": [str(head) for head in pair.heads],
                    "drop": pair.drop,
                    "sum_of_drops": pair.sum_of_drops,
                    "backup": pair.backup,
                }
                for pair in self.pairs
            ],
            "roles": None if self.roles is None else self.roles.to_json(),
            "feeds": [feed.to_json() for feed in self.feeds],
            "seconds": self.seconds,
            "findings": self.findings(),
            "withheld": list(self.withheld),
        }
        return without_findings(content) if self.withheld else content

    @property
    def optimal(self) -> bool:
        return self.optimum is not None and self.optimum.proved

    def findings(self) -> list[str]:
        """The answer in sentences, the false one beside the true one; or why there is none."""
        if self.withheld:
            return [f"No finding is told: {each['check']}: {each['reason']}." for each in self.withheld]
        heads, checked = len(self.heads), "all" if self.exact else "fresh"
        limit = f"{self.margin.drop:g}" if self.margin.loss is None else f"{self.margin.loss:g} of {self._counted}"
        return [
            f"One at a time, {self.alone.count} of {heads} heads cost less than {limit} each; removed together they "
            f"{self._left(self.alone)} (n = {self.examples:,} {checked} problems).",
            f"Together, {self.together.count} of {heads} heads can go within {limit}: {self._left_all()}. "
            f"{self._how_sure()}",
            *(self.roles.findings() if self.roles is not None else []),
            *(feed.finding() for feed in self.feeds),
        ]

    @property
    def _counted(self) -> str:
        """What a cost is counted in."""
        known = METRICS.get(self.metric)
        return "loss" if self.metric == "exact" else self.metric if known is None else known.says or known.name

    def _left(self, removal: Removal) -> str:
        if self.metric == "exact":
            return f"leave {removal.accuracy:.4f} right"
        return f"raise the {self._counted} by {removal.effect.loss_increase:.4f}"

    def _left_all(self) -> str:
        if self.metric == "exact":
            return f"{self.together.accuracy:.4f} right, of {self.baseline:.4f} with all heads"
        return f"they {self._left(self.together)}, from {self.whole.loss:.4f} with all heads"

    def _how_sure(self) -> str:
        best = self.optimum
        if best is None:
            order = self.curves[0].order
            how = "in rounds" if "rounds" in order else "one by one"
            return f"Found by removing them {how} ({order}); a larger set may exist."
        sure = f"with confidence {best.confidence:g}"
        if not best.proved or best.checked is None:
            why = "the search ran out of time" if best.out_of_time else "sets are too close to the margin to decide"
            return f"No set of more than {best.most} heads can, {sure}; between the two {why}."
        wrong = best.checked.examples - best.checked.right
        return (
            f"No larger set can, {sure}: all {2 ** len(self.heads):,} sets are accounted for, and this one has "
            f"{wrong:,} wrong of {best.checked.examples:,}."
        )

    def _repr_html_(self) -> str:
        """Sentences and a table in a notebook."""
        patterns = {pattern.head: pattern.label for pattern in self.patterns}
        rows = [
            {
                "head": str(row.head),
                "drop": f"{row.effect.drop:.4f}",
                "verdict": row.verdict,
                "pattern": patterns.get(row.head, ""),
            }
            for row in self.heads
        ]
        return as_html(self.findings(), rows)

    def to_csv(self) -> str:
        """One line a head, tidy."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        patterns = {pattern.head: pattern.label for pattern in self.patterns}
        writer.writerow(["head", "accuracy", "drop", "low", "high", "loss_increase", "verdict", *ABLATIONS, "pattern"])
        for row in self.heads:
            low, high = row.interval or ("", "")
            kinds = [row.verdicts.get(kind, "") for kind in ABLATIONS]
            effect = row.effect
            writer.writerow(
                [row.head, effect.accuracy, effect.drop, low, high, effect.loss_increase, row.verdict, *kinds,
                 patterns.get(row.head, "")]
            )  # fmt: skip
        return text.getvalue()

    def to_dataframe(self) -> Any:
        """The same as a pandas table, where pandas is there."""
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError as error:
            raise HeadwayError("to_dataframe needs pandas: pip install pandas; to_csv() needs nothing") from error
        return pandas.read_csv(io.StringIO(self.to_csv()))


@dataclass(frozen=True)
class Refused:
    """A member that no verdict can be given about; it is reported, not left out."""

    subject: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "refused": self.reason}


def without_findings(content: dict[str, Any]) -> dict[str, Any]:
    """The numbers as they were measured, without what may not be concluded from them."""
    heads = [{**row, "verdict": "unclear", "verdicts": {}, "depends_on_ablation": None} for row in content["heads"]]
    parts = [{**part, "verdict": "unclear"} for part in content["parts"]]
    gone = dict.fromkeys(("alone", "alone_removed_together", "together", "optimum", "roles"))
    return {**content, "heads": heads, "parts": parts, **gone}


def as_list(interval: Interval | None) -> list[float] | None:
    return None if interval is None else interval.to_json()


def named(closed: Closed) -> str:
    """A part as people write it: a site, or a layer where all its sites are closed."""
    names = sorted(map(str, closed))
    if len(names) == 1:
        return names[0]
    site = site_of(next(iter(closed)))
    return f"{site.stack}.{site.layer}"


@dataclass(frozen=True)
class PopulationStudy:
    """The studies of the runs of a folder, and what they have in common."""

    members: tuple[HeadStudy | Refused, ...]
    kinds: dict[str, Any] | None = None
    """of solution, where that was asked"""

    def to_json(self) -> dict[str, Any]:
        members = [study.to_json() for study in self.members]
        return {"members": members, "distribution": distribution(self.members), "kinds": self.kinds}

    def summary(self) -> dict[str, Any]:
        """The same with a line for every member."""
        return {**self.to_json(), "members": [summary(study) for study in self.members]}

    def findings(self) -> list[str]:
        words = population_findings(distribution(self.members))
        if self.kinds is not None:
            words.append(kinds_finding(self.kinds))
        return words


def summary(study: HeadStudy | Refused) -> dict[str, Any]:
    if isinstance(study, Refused):
        return study.to_json()
    return {
        "subject": study.subject,
        "baseline": study.baseline,
        "examples": study.examples,
        "alone": study.alone.count,
        "alone_removed_together": study.alone.accuracy,
        "together": study.together.count,
        "together_accuracy": study.together.accuracy,
        "critical": [str(row.head) for row in study.heads if row.verdict == "critical"],
        "removed": [str(head) for head in study.together.heads],
        "optimum": None if study.optimum is None else study.optimum.to_json(),
    }


def distribution(found: Sequence[HeadStudy | Refused]) -> dict[str, Any]:
    """What the members of a population have in common, and how far they differ."""
    studies = [study for study in found if isinstance(study, HeadStudy)]
    if not studies:
        return {"members": len(found), "refused": len(found)}
    critical: dict[str, list[int]] = {}
    for study in studies:
        counts = Counter(str(row.head.site) for row in study.heads if row.verdict == "critical")
        for site in dict.fromkeys(str(row.head.site) for row in study.heads):
            critical.setdefault(site, []).append(counts[site])
    return {
        "members": len(found),
        "refused": len(found) - len(studies),
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

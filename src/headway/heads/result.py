"""The result of a study of one subject's heads: numbers, verdicts and sentences, as stored in `heads.json`."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from headway.causes.patterns import Pattern, Upstream
from headway.causes.roles import Roles
from headway.errors import HeadwayError
from headway.evaluation.intervals import needed_examples, wilson
from headway.evaluation.metrics import METRICS
from headway.heads.ablation import Effect, Judge, Verdict
from headway.heads.ablations import ABLATIONS
from headway.heads.assignments import WindowPlan
from headway.heads.optimum import Optimum
from headway.heads.question import WINDOW, Margin, WindowSize
from headway.heads.sets import FoundSet, Removal
from headway.heads.together import Curve, Pair
from headway.heads.window_findings import WindowFindings
from headway.heads.wording import Wording
from headway.models import Head, Site
from headway.models.sites import Part, site_of
from headway.output import as_csv, as_html

SCHEMA = "headway.heads/1"
MOST_NAMED = 12  # heads in a sentence
Withheld = tuple[dict[str, str], ...]
"""the checks that forbid a conclusion, each with its reason; none where conclusions may be drawn"""


class WindowJson(TypedDict):
    recent: int
    drop: float
    loss_increase: float
    interval: list[float] | None
    verdict: str  # fmt: skip


@dataclass(frozen=True)
class PartRow:
    """What removing one head, or a whole part, costs."""

    effect: Effect
    verdict: Verdict
    """under the kind of ablation asked for"""
    interval: list[float] | None
    verdicts: dict[str, Verdict]
    """the verdict under each kind of ablation that was tried"""
    drops: dict[str, float]
    intervals: dict[str, list[float] | None] = field(default_factory=dict)
    """the interval of the drop, or of the increase of the loss, under each kind"""
    loss_increases: dict[str, float] = field(default_factory=dict)

    def numbers(self, withheld: bool) -> dict[str, Any]:
        """Returns the cost under the kind asked for, and the verdicts and drops under all kinds."""
        return {
            "accuracy": self.effect.accuracy,
            "drop": self.effect.drop,
            "interval": self.interval,
            "loss_increase": self.effect.loss_increase,
            "verdict": "withheld" if withheld else self.verdict,
            "verdicts": {} if withheld else self.verdicts,
            "drops": self.drops,
        }


@dataclass(frozen=True)
class HeadRow(PartRow):
    head: Head = field(kw_only=True)
    group: str | None = None
    """the group that is kept or closed as a whole, whose numbers these are"""

    def least_window(self, sizes: Sequence[WindowSize]) -> int | None:
        """Returns the fewest recent tokens that are enough for this head while all others see everything; None where
        every window costs something, or may."""
        return next((size.recent for size in sizes if self.verdicts.get(str(size)) == "redundant"), None)

    def windows_json(self, sizes: Sequence[WindowSize], withheld: bool) -> dict[str, list[WindowJson] | int | None]:
        """Returns what each window costs, and the least that costs nothing."""
        if not sizes:
            return {}
        windows: list[WindowJson] = [
            {"recent": size.recent, "drop": self.drops[kind], "loss_increase": self.loss_increases[kind],
             "interval": self.intervals[kind], "verdict": "withheld" if withheld else self.verdicts[kind]}
            for size in sizes if (kind := str(size)) in self.drops
        ]  # fmt: skip
        return {"windows": windows, "least_window": None if withheld else self.least_window(sizes)}

    @property
    def needed(self) -> bool | None:
        """Whether every kind of ablation says that it is critical; None where a kind that might disagree is missing."""
        if set(self.verdicts.values()) != {"critical"}:
            return False
        return True if self.verdicts.keys() >= ABLATIONS.keys() else None

    def to_json(self, pattern: Pattern | None, withheld: bool) -> dict[str, Any]:
        several = len(self.verdicts) > 1 and not withheld
        return {
            "head": str(self.head),
            "group": self.group,
            **self.numbers(withheld),
            "needed": None if withheld else self.needed,
            "depends_on_ablation": {"critical", "redundant"} <= set(self.verdicts.values()) if several else None,
            "pattern": None if pattern is None else pattern.label,
            "pattern_scores": None if pattern is None else pattern.to_json(),
            "by_stratum": [
                {"stratum": name, "examples": count, "errors": count - right}
                for name, (count, right) in self.effect.by_stratum.items()
            ],
        }


@dataclass(frozen=True, kw_only=True)
class HeadStudy:
    subject: str
    ablation: str
    """the kind of ablation asked for; of several windows the smallest"""
    units: str = "heads"
    """what was kept or closed as a whole: heads, or groups of them"""
    wording: Wording = field(default_factory=Wording)
    left_out: tuple[Site, ...] = ()
    """the sites whose heads cannot be narrowed"""
    windows: WindowPlan | None = None
    """the windows that the study ends with"""
    whole: Effect
    """the whole model, with all heads open"""
    judge: Judge
    heads: tuple[HeadRow, ...]
    parts: tuple[PartRow, ...] = ()
    """whole sites, layers and feed-forward blocks"""
    alone: Removal
    """the heads that the single-head rule would remove; none where conclusions are withheld"""
    together: Removal
    """the largest set that was found within the margin under the kind of ablation asked for; empty where conclusions
    are withheld"""
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...] = ()
    optimum: Optimum | None = None
    sets: tuple[FoundSet, ...] = ()
    """the largest set under each kind of ablation that sets were searched under; empty where only one was"""
    patterns: tuple[Pattern, ...] = ()
    """where each head looks; empty where that was not requested"""
    roles: Roles | None = None
    """what each head carries to the output by causal tests; None where there are no pairs of problems for them"""
    upstream: tuple[Upstream, ...] = ()
    """the upstream heads that patterns depend on, by ablation; for users' models only"""
    seconds: float = 0.0
    metric: str = "exact"
    """the metric that heads are judged by"""
    withheld: Withheld = ()
    view: Callable[[Any], Any] | None = field(default=None, repr=False, compare=False)
    """draws the maps of a problem, where the subject is loaded"""

    def maps(self, problem: Any = None) -> Any:
        """Shows the attention of every head on one problem in a notebook: a sum like "457+968", a text for a language
        model, one of headway.Problems, or a fresh problem by default."""
        if self.view is None:
            raise HeadwayError("this study has no model loaded; use a study returned by study_heads(…)")
        return self.view(problem)

    @property
    def examples(self) -> int:
        return self.whole.examples

    @property
    def baseline(self) -> float:
        return self.whole.accuracy

    @property
    def exact(self) -> bool:
        """Whether every possible problem was tested."""
        return self.judge.exact

    @property
    def margin(self) -> Margin:
        return self.judge.margin

    @property
    def optimal(self) -> bool:
        return self.optimum is not None and self.optimum.proved

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "baseline": self.baseline,
            "examples": self.examples,
            "ablation": WINDOW if self.sizes else self.ablation,
            "units": self.units,
            **self._windows_json(),
            "metric": self.metric,
            "max_drop": self.margin.drop,
            "max_loss_increase": self.margin.limit(self.whole.loss) if self.margin.by_loss else None,
            "max_loss_increase_share": self.margin.share,
            "baseline_loss": self.whole.loss,
            "confidence_of_each_interval": None if self.exact else self.judge.confidence,
            "comparisons": self.judge.comparisons,
            "held_out": self.whole.held_out_json(),
            "interval_of": "loss_increase" if self.margin.by_loss else "drop",
            "heads": self._rows(),
            "parts": [
                {"part": _part_name(*row.effect.closed), **row.numbers(bool(self.withheld))} for row in self.parts
            ],
            **self._conclusions(),
            "curves": [curve.to_json() for curve in self.curves],
            "pairs": [pair.to_json() for pair in self.pairs],
            "feeds": [each.to_json() for each in self.upstream],
            "seconds": self.seconds,
            "findings": self.findings(),
            "withheld": list(self.withheld),
        }

    @property
    def sizes(self) -> tuple[WindowSize, ...]:
        """The windows that heads were narrowed to, from the smallest; none where they were removed."""
        return self.wording.sizes

    def _rows(self) -> list[dict[str, Any]]:
        patterns, withheld = {pattern.head: pattern for pattern in self.patterns}, bool(self.withheld)
        rows = [(row, row.to_json(patterns.get(row.head), withheld)) for row in self.heads]
        return [{**content, **row.windows_json(self.sizes, withheld)} for row, content in rows]

    def _windows_json(self) -> Mapping[str, object]:
        if not self.sizes:
            return {}
        plan = self.windows
        return {
            "asked": self.ablation,
            "words": self.wording.kind(self.ablation),
            "sink": self.sizes[0].sink,
            "recent": [size.recent for size in self.sizes],
            "left_out": list(map(str, self.left_out)),
            "budget": None if plan is None else plan.chosen.budget.to_json(),
            "windows": None if plan is None else plan.to_json(),
        }

    def _conclusions(self) -> dict[str, Any]:
        """Returns which heads can go and what they do, or nothing where that is withheld."""
        if self.withheld:
            return dict.fromkeys(("alone", "alone_removed_together", "together", "sets", "optimum", "roles"))
        best, alone = self.optimum, self.alone.to_json(self.exact)
        return {
            "alone": {
                "count": alone.pop("count"),
                "heads": alone.pop("heads"),
                "units": self.wording.count(self.alone.heads),
            },
            "alone_removed_together": alone,
            "together": {
                **self.together.to_json(self.exact),
                "units": self.wording.count(self.together.heads),
                "optimal": self.optimal,
                "confidence": None if best is None else best.confidence,
                "searched": max(curve.searched for curve in self.curves) + (0 if best is None else best.searched),
            },
            "sets": [each.to_json(self.exact) for each in self.sets] or None,
            "optimum": None if best is None else best.to_json(),
            "roles": None if self.roles is None else self.roles.to_json(),
        }

    def findings(self) -> list[str]:
        """States the answer in sentences, the misleading one next to the true one; or why it is withheld."""
        if self.withheld:
            return [f"Withheld: {each['check']}: {each['reason'].rstrip('.')}." for each in self.withheld]
        words, alone, limit = self.wording, self.alone, self._limit
        heads, cheap = words.count(row.head for row in self.heads), words.count(alone.heads)
        asked = FoundSet(self.ablation, self.together, self.curves[0], self.optimum)
        sets = [*(each for each in self.sets if each.ablation == self.ablation), asked][:1]
        sets += [each for each in self.sets if each.ablation != self.ablation]
        return [
            f"Under {words.kind(self.ablation)}, {cheap} of {heads} {words.things} cost less than {limit} each, one at "
            f"a time; {words.done} together they {self._left(alone.effect)} "
            f"(n = {self.examples:,} {'all' if self.exact else 'fresh'} problems).",
            *map(self._describe_set, sets),
            *self._window_findings(),
            *self._agreement(),
            *(self.roles.findings() if self.roles is not None else []),
            *(each.finding() for each in self.upstream),
        ]

    def _window_findings(self) -> list[str]:
        if not self.sizes:
            return []
        least = {row.group or str(row.head): row.least_window(self.sizes) for row in self.heads}
        cost = None if self.metric == "exact" else self._cost_name
        return WindowFindings(self.wording, least, self._limit, cost, self.windows, self.left_out).sentences()

    @property
    def _cost_name(self) -> str:
        known = METRICS.get(self.metric)
        return "loss" if self.metric == "exact" else self.metric if known is None else known.description or known.name

    @property
    def _limit(self) -> str:
        margin, whole = self.margin, self.whole.loss
        if margin.share is not None:
            return (
                f"{margin.limit(whole):.3g} of {self._cost_name} ({margin.share:.3g} of the {whole:.3g} with all heads)"
            )
        return f"{margin.drop:g}" if margin.loss is None else f"{margin.loss:g} of {self._cost_name}"

    def _left(self, effect: Effect) -> str:
        if self.metric == "exact":
            loss = f" and raise the loss by {effect.loss_increase:.3g}" if self.margin.by_loss else ""
            return f"leave an accuracy of {effect.accuracy:.4f}{loss}"
        return f"raise the {self._cost_name} by {effect.loss_increase:.4f}"

    def _describe_set(self, found: FoundSet) -> str:
        """States which heads can go together under one kind of ablation, and what they cost under resample ablation."""
        effect, words = found.removal.effect, self.wording
        heads, gone = words.count(row.head for row in self.heads), words.count(found.removal.heads)
        if self.metric == "exact":
            loss = f" and a loss {effect.loss_increase:.3g} higher" if self.margin.by_loss else ""
            left = f"accuracy {effect.accuracy:.4f}{loss}, against {self.baseline:.4f} {words.whole}"
        else:
            left = f"they {self._left(effect)}, from {self.whole.loss:.4f} {words.whole}"
        sentence = (
            f"Under {words.kind(found.ablation)}, {gone} of {heads} {words.things} {words.can} within "
            f"{self._limit}: {left}. {found.how_sure(heads, words.doing)}"
        )
        if found.resampled is None or found.ablation == "resample" or not found.removal.count:
            return sentence
        other = self._left(found.resampled)
        if self.metric == "exact":
            ends = wilson(found.resampled.right, found.resampled.examples)
            other += f" (95% interval {ends.low:.4f} to {ends.high:.4f}, n = {found.resampled.examples:,})"
        return f"{sentence} Under resample ablation the same heads {other}."

    def _agreement(self) -> list[str]:
        """States which heads every kind of ablation calls critical, and where there are too few problems to tell."""
        kinds, found = self.heads[0].verdicts, []
        if len(kinds) > 1 and not self.sizes:
            each = [str(row.head) for row in self.heads if set(row.verdicts.values()) == {"critical"}]
            named = f": {', '.join(each)}" if 0 < len(each) <= MOST_NAMED else ""
            found.append(
                f"Under each of {', '.join(kinds)} ablation alike, {len(each)} of {len(self.heads)} heads are critical"
                f"{named}."
            )
        needed = needed_examples(self.margin.drop, self.judge.confidence)
        if not self.exact and not self.margin.by_loss and self.examples < needed:
            found.append(
                f"{self.examples:,} problems are too few to call a head redundant at a level corrected for "
                f"{self.judge.comparisons} verdicts; {needed:,} would do."
            )
        return found

    def _repr_html_(self) -> str:
        """Renders sentences and a table for a notebook."""
        rows = [{**row, "drop": f"{row['drop']:.4f}", "pattern": row["pattern"] or ""} for row in self._rows()]
        shown = ("head", "drop", "verdict", "pattern")
        return as_html(self.findings(), [{name: row[name] for name in shown} for row in rows])

    def to_csv(self) -> str:
        """Returns a tidy table with one line per head."""
        numbers = ("head", "accuracy", "drop")
        table = [[*numbers, "low", "high", "loss_increase", "verdict", *ABLATIONS, "pattern"]]
        for row in self._rows():
            kinds = (row["verdicts"].get(kind, "") for kind in ABLATIONS)
            measured = *(row[name] for name in numbers), *(row["interval"] or ("", "")), row["loss_increase"]
            table.append([*measured, row["verdict"], *kinds, row["pattern"] or ""])
        return as_csv(table)

    def to_dataframe(self) -> Any:
        """Returns the same as a pandas data frame, where pandas is installed."""
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError as error:
            raise HeadwayError("to_dataframe needs pandas: pip install pandas; to_csv() needs nothing") from error
        return pandas.read_csv(io.StringIO(self.to_csv()))


def _part_name(*sites: Part) -> str:
    """Returns the name of a part: a site, or a layer where all its sites are closed."""
    return str(sites[0]) if len(sites) == 1 else f"{site_of(sites[0]).stack}.{site_of(sites[0]).layer}"

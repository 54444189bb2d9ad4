"""The result of a study of one subject's heads: numbers, verdicts and sentences, as stored in `heads.json`."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway.causes.patterns import Pattern, Upstream
from headway.causes.roles import Roles
from headway.errors import HeadwayError
from headway.evaluation.intervals import wilson
from headway.evaluation.metrics import METRICS
from headway.heads.ablation import Effect, Judge, Verdict
from headway.heads.ablations import ABLATIONS
from headway.heads.optimum import Optimum
from headway.heads.question import Margin
from headway.heads.together import Curve, Pair
from headway.models import Head
from headway.models.sites import Part, site_of
from headway.output import as_csv, as_html

SCHEMA = "headway.heads/1"
Withheld = tuple[dict[str, str], ...]
"""the checks that forbid a conclusion, each with its reason; none where conclusions may be drawn"""


@dataclass(frozen=True)
class HeadRow:
    head: Head
    effect: Effect
    verdict: Verdict
    interval: list[float] | None
    verdicts: dict[str, Verdict]
    """the verdict under each kind of ablation that was tried"""

    def to_json(self, pattern: Pattern | None, withheld: bool) -> dict[str, Any]:
        kinds = {} if withheld else self.verdicts
        differs = None if len(kinds) < 2 else {"critical", "redundant"} <= set(kinds.values())
        return {
            "head": str(self.head),
            "accuracy": self.effect.accuracy,
            "drop": self.effect.drop,
            "interval": self.interval,
            "loss_increase": self.effect.loss_increase,
            "verdict": "unclear" if withheld else self.verdict,
            "verdicts": kinds,
            "depends_on_ablation": differs,
            "pattern": None if pattern is None else pattern.label,
            "pattern_scores": None if pattern is None else pattern.to_json(),
            "by_stratum": [
                {"stratum": name, "examples": count, "errors": count - right}
                for name, (count, right) in self.effect.by_stratum.items()
            ],
        }


@dataclass(frozen=True)
class Removal:
    """Heads, and the effect of removing all of them."""

    heads: tuple[Head, ...]
    effect: Effect

    @property
    def count(self) -> int:
        return len(self.heads)

    @property
    def accuracy(self) -> float:
        return self.effect.accuracy

    def to_json(self, exact: bool) -> dict[str, Any]:
        """Returns the heads and the accuracy without them, with no interval where that is exact."""
        return {
            "count": self.count,
            "heads": [str(head) for head in self.heads],
            "accuracy": self.accuracy,
            "loss_increase": self.effect.loss_increase,
            "interval": None if exact else wilson(self.effect.right, self.effect.examples).to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class HeadStudy:
    subject: str
    ablation: str
    whole: Effect
    """the whole model, with all heads open"""
    judge: Judge
    heads: tuple[HeadRow, ...]
    parts: tuple[Effect, ...] = ()
    """whole sites, layers and feed-forward blocks"""
    alone: Removal
    """the heads that the single-head rule would remove; none where conclusions are withheld"""
    together: Removal
    """the largest set that was found within the margin; empty where conclusions are withheld"""
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...] = ()
    optimum: Optimum | None = None
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
            "ablation": self.ablation,
            "metric": self.metric,
            "max_drop": self.margin.drop,
            "max_loss_increase": self.margin.loss,
            "confidence_of_each_interval": None if self.exact else self.judge.confidence,
            "interval_of": "drop" if self.margin.loss is None else "loss_increase",
            "heads": self._rows(),
            "parts": [
                {
                    "part": _part_name(*effect.closed),
                    "accuracy": effect.accuracy,
                    "drop": effect.drop,
                    "interval": self.judge.interval(effect),
                    "loss_increase": effect.loss_increase,
                    "verdict": "unclear" if self.withheld else self.judge.verdict(effect),
                }
                for effect in self.parts
            ],
            **self._conclusions(),
            "curves": [curve.to_json() for curve in self.curves],
            "pairs": [pair.to_json() for pair in self.pairs],
            "feeds": [each.to_json() for each in self.upstream],
            "seconds": self.seconds,
            "findings": self.findings(),
            "withheld": list(self.withheld),
        }

    def _rows(self) -> list[dict[str, Any]]:
        patterns = {pattern.head: pattern for pattern in self.patterns}
        return [row.to_json(patterns.get(row.head), bool(self.withheld)) for row in self.heads]

    def _conclusions(self) -> dict[str, Any]:
        """Returns which heads can go and what they do, or nothing where that is withheld."""
        if self.withheld:
            return dict.fromkeys(("alone", "alone_removed_together", "together", "optimum", "roles"))
        best, alone = self.optimum, self.alone.to_json(self.exact)
        return {
            "alone": {"count": alone.pop("count"), "heads": alone.pop("heads")},
            "alone_removed_together": alone,
            "together": {
                **self.together.to_json(self.exact),
                "optimal": self.optimal,
                "confidence": None if best is None else best.confidence,
                "searched": max(curve.searched for curve in self.curves) + (0 if best is None else best.searched),
            },
            "optimum": None if best is None else best.to_json(),
            "roles": None if self.roles is None else self.roles.to_json(),
        }

    def findings(self) -> list[str]:
        """States the answer in sentences, the misleading one next to the true one; or why it is withheld."""
        if self.withheld:
            return [f"Withheld: {each['check']}: {each['reason'].rstrip('.')}." for each in self.withheld]
        heads, known, alone, together = len(self.heads), METRICS.get(self.metric), self.alone, self.together
        cost = "loss" if self.metric == "exact" else self.metric if known is None else known.description or known.name
        limit = f"{self.margin.drop:g}" if self.margin.loss is None else f"{self.margin.loss:g} of {cost}"
        if self.metric == "exact":
            left = f"leave an accuracy of {alone.accuracy:.4f}"
            left_all = f"accuracy {together.accuracy:.4f}, against {self.baseline:.4f} with all heads"
        else:
            left = f"raise the {cost} by {alone.effect.loss_increase:.4f}"
            raised = f"raise the {cost} by {together.effect.loss_increase:.4f}"
            left_all = f"they {raised}, from {self.whole.loss:.4f} with all heads"
        return [
            f"One at a time, {alone.count} of {heads} heads cost less than {limit} each; removed together they "
            f"{left} (n = {self.examples:,} {'all' if self.exact else 'fresh'} problems).",
            f"Together, {together.count} of {heads} heads can go within {limit}: {left_all}. {self._how_sure()}",
            *(self.roles.findings() if self.roles is not None else []),
            *(each.finding() for each in self.upstream),
        ]

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

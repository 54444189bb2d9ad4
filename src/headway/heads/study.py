"""The study of a model's heads: what each costs alone, and which can go together, as `heads.json` holds it."""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.errors import HeadwayError
from headway.evaluation.examples import MOST_LISTED
from headway.evaluation.intervals import wilson
from headway.heads.ablation import CONFIDENCE, Effect, Judge, Margin, Verdict, measure
from headway.heads.together import Curve, Pair, at_random, by_cost, by_slope, greedy, in_order, pairs
from headway.heads.variants import ABLATIONS, Closed, Part, Variants, site_of
from headway.models import Head, Site
from headway.models.rerun import sites_of
from headway.progress import Progress
from headway.subjects.subject import Subject
from headway.tasks import Problems

EXAMPLES, SELECTED, PAIRED, RANDOM_ORDERS = 10_000, 1_000, 500, 3


@dataclass(frozen=True)
class Asked:
    """What a study was asked for."""

    ablation: str = "zero"
    examples: int | None = None
    all: bool = False
    margin: Margin = field(default_factory=Margin)
    seed: int = 0
    beam: int = 1

    def __post_init__(self) -> None:
        if self.all and self.examples is not None:
            raise HeadwayError("--all takes every problem; leave out --examples")
        if self.examples is not None and self.examples < 1:
            raise HeadwayError(f"examples is {self.examples}; it must be at least 1")
        if not 1 <= self.beam <= 64:
            raise HeadwayError(f"beam is {self.beam}; it must be from 1 to 64")


@dataclass(frozen=True)
class HeadRow:
    head: Head
    effect: Effect
    verdict: Verdict
    interval: list[float] | None
    verdicts: dict[str, Verdict]
    """under every kind of ablation"""

    def to_json(self) -> dict[str, Any]:
        return {
            "head": str(self.head),
            "accuracy": self.effect.accuracy,
            "drop": self.effect.drop,
            "interval": self.interval,
            "loss_increase": self.effect.loss_increase,
            "verdict": self.verdict,
            "verdicts": self.verdicts,
            "depends_on_ablation": {"critical", "redundant"} <= set(self.verdicts.values()),
            "pattern": None,
            "by_stratum": [
                {"stratum": name, "examples": count, "errors": count - right}
                for name, (count, right) in self.effect.by_stratum.items()
            ],
        }


@dataclass(frozen=True)
class HeadStudy:
    subject: str
    ablation: str
    examples: int
    baseline: float
    exact: bool
    confidence: float
    margin: Margin
    heads: tuple[HeadRow, ...]
    parts: tuple[Effect, ...]
    """whole sites, layers and feed-forward blocks"""
    alone: tuple[Head, ...]
    """what the single-head rule would remove"""
    alone_together: Effect
    together: tuple[Head, ...]
    together_effect: Effect
    curves: tuple[Curve, ...]
    pairs: tuple[Pair, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        interval = None if self.exact else wilson(self.alone_together.right, self.examples).to_json()
        kept = None if self.exact else wilson(self.together_effect.right, self.examples).to_json()
        return {
            "subject": self.subject,
            "baseline": self.baseline,
            "examples": self.examples,
            "ablation": self.ablation,
            "max_drop": self.margin.drop,
            "max_loss_increase": self.margin.loss,
            "confidence_of_each_interval": None if self.exact else self.confidence,
            "interval_of": "drop" if self.margin.loss is None else "loss_increase",
            "heads": [row.to_json() for row in self.heads],
            "parts": [
                {
                    "part": named(effect.closed),
                    "accuracy": effect.accuracy,
                    "drop": effect.drop,
                    "loss_increase": effect.loss_increase,
                }
                for effect in self.parts
            ],
            "alone": {"count": len(self.alone), "heads": [str(head) for head in self.alone]},
            "alone_removed_together": {"accuracy": self.alone_together.accuracy, "interval": interval},
            "together": {
                "count": len(self.together),
                "heads": [str(head) for head in self.together],
                "accuracy": self.together_effect.accuracy,
                "interval": kept,
                "optimal": False,
                "confidence": None,
                "searched": max(curve.searched for curve in self.curves),
            },
            "curves": [
                {
                    "order": curve.order,
                    "accuracy": list(curve.accuracy),
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
            "seconds": self.seconds,
        }

    def findings(self) -> list[str]:
        """The answer in sentences, the false one beside the true one."""
        heads, drop, left = len(self.heads), self.margin.drop, self.together_effect.accuracy
        checked = "all" if self.exact else "fresh"
        limit = f"{drop:g}" if self.margin.loss is None else f"{self.margin.loss:g} of loss"
        return [
            f"One at a time, {len(self.alone)} of {heads} heads cost less than {limit} each; removed together they "
            f"leave {self.alone_together.accuracy:.4f} right (n = {self.examples:,} {checked} problems).",
            f"Together, {len(self.together)} of {heads} heads can go within {drop:g}: {left:.4f} right, of "
            f"{self.baseline:.4f} with all heads. Found by removing them one by one ({self.curves[0].order}); a larger "
            "set may exist.",
        ]

    def to_csv(self) -> str:
        """One line a head, tidy."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["head", "accuracy", "drop", "low", "high", "loss_increase", "verdict", *ABLATIONS])
        for row in self.heads:
            low, high = row.interval or ("", "")
            kinds = [row.verdicts.get(kind, "") for kind in ABLATIONS]
            effect = row.effect
            writer.writerow(
                [row.head, effect.accuracy, effect.drop, low, high, effect.loss_increase, row.verdict, *kinds]
            )
        return text.getvalue()

    def to_dataframe(self) -> Any:
        """The same as a pandas table, where pandas is there."""
        try:
            import pandas  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
        except ImportError as error:
            raise HeadwayError("to_dataframe needs pandas: pip install pandas; to_csv() needs nothing") from error
        return pandas.read_csv(io.StringIO(self.to_csv()))


def study_subject(subject: Subject, asked: Asked, quiet: bool = True) -> HeadStudy:
    """Every head alone, then which can go together."""
    began = time.monotonic()
    if asked.all and (subject.every is None or subject.count is None or subject.count > MOST_LISTED):
        raise HeadwayError(f"{subject.name} has too many problems for --all; leave it out")
    variants = Variants(subject, asked.ablation, asked.seed)
    exact = asked.all and asked.ablation != "resample"  # what is put in a head's place is drawn
    judge = Judge(asked.margin, len(subject.heads), exact)
    total = subject.count if asked.all and subject.count is not None else asked.examples or EXAMPLES
    report = _Report(subject, asked, total)
    first = subject.examples(SELECTED, asked.seed + 20, False)
    judge.check(total, variants(first, [frozenset()]).accuracy[0], best_constant(first))
    singles: list[Closed] = [frozenset({head}) for head in subject.heads]
    wholes = parts_of(subject)
    with Progress(f"ablating {len(singles)} heads", quiet) as watch:
        whole, *effects = measure(variants, report(), singles + wholes, watch=watch, total=total)
    verdicts: dict[str, list[Verdict]] = {asked.ablation: [judge.verdict(effect) for effect in effects[: len(singles)]]}
    sample = subject.examples(min(total, EXAMPLES), asked.seed, False)
    for kind in ABLATIONS:
        if kind not in verdicts:
            other = measure(Variants(subject, kind, asked.seed), [sample], singles)[1:]
            sampled = Judge(asked.margin, len(subject.heads), exact=False)
            verdicts[kind] = [sampled.verdict(effect) for effect in other]
    rows = []
    for place, (head, effect) in enumerate(zip(subject.heads, effects, strict=False)):
        interval = judge.interval(effect)
        kinds: dict[str, Verdict] = {kind: verdicts[kind][place] for kind in ABLATIONS}
        rows.append(HeadRow(head, effect, kinds[asked.ablation], interval.to_json() if interval else None, kinds))
    alone = tuple(row.head for row in rows if judge.cost(row.effect) < judge.limit)
    chosen = subject.examples(SELECTED, asked.seed + 10, False)
    with Progress("removing heads together", quiet) as watch:
        best = greedy(variants, chosen, asked.beam, watch)
    others = [
        in_order(variants, chosen, "by cost alone", by_cost(effects[: len(singles)])),
        in_order(variants, chosen, "by slope", by_slope(variants, chosen)),
        *at_random(variants, chosen, asked.seed, RANDOM_ORDERS),
    ]
    gone = _confirmed(variants, subject.examples(EXAMPLES, asked.seed + 40, False), best, asked.margin)
    _, together_effect, alone_effect = measure(variants, report(), [frozenset(gone), frozenset(alone)])
    with Progress("pairs of heads", quiet) as watch:
        found = pairs(variants, subject.examples(PAIRED, asked.seed + 30, False), watch)
    return HeadStudy(
        subject.name,
        asked.ablation,
        whole.examples,
        whole.accuracy,
        exact,
        judge.confidence,
        asked.margin,
        tuple(rows),
        tuple(effects[len(singles) :]),
        alone,
        alone_effect,
        tuple(head for head in subject.heads if head in gone),
        together_effect,
        (best, *others),
        tuple(found),
        time.monotonic() - began,
    )


class _Report:
    """The problems that results are reported on, as often as they are wanted."""

    def __init__(self, subject: Subject, asked: Asked, total: int) -> None:
        self.subject, self.asked, self.total = subject, asked, total

    def __call__(self) -> Iterable[Problems]:
        if self.asked.all and self.subject.every is not None:
            return self.subject.every()
        return [self.subject.examples(self.total, self.asked.seed, False)]


def _confirmed(variants: Variants, problems: Problems, curve: Curve, margin: Margin) -> Closed:
    """The largest set of the curve that is within the margin also on problems that had no say in it: the whole
    interval of its drop lies below."""
    allowed = curve.accuracy[0] - margin.drop
    for closed in sorted(curve.sets, key=len, reverse=True):
        if curve.accuracy[len(closed)] < allowed:
            continue
        if not closed or measure(variants, [problems], [closed])[1].interval(CONFIDENCE).high < margin.drop:
            return closed
    return frozenset()


def best_constant(problems: Problems) -> float:
    """The share of problems that have the most frequent answer."""
    _, counts = problems.answer.unique(dim=0, return_counts=True)
    return int(counts.max()) / len(problems)


def parts_of(subject: Subject) -> list[Closed]:
    """Whole attention sites, layers and feed-forward blocks."""
    sites = sites_of(subject.model)  # pyright: ignore[reportArgumentType]
    layers: dict[tuple[str, int], list[Site]] = {}
    for site in sites:
        layers.setdefault((site.stack, site.layer), []).append(site)
    groups = [[site] for site in sites] + list(layers.values())
    return [frozenset[Part](own) for own in groups]


def named(closed: Closed) -> str:
    """A part as people write it: a site, or a layer where all its sites are closed."""
    names = sorted(map(str, closed))
    if len(names) == 1:
        return names[0]
    site = site_of(next(iter(closed)))
    return f"{site.stack}.{site.layer}"


def distribution(studies: Sequence[HeadStudy]) -> dict[str, Any]:
    """What the members of a population have in common."""
    together, alone = [len(study.together) for study in studies], [len(study.alone) for study in studies]
    left = [study.alone_together.accuracy for study in studies]
    critical: dict[str, int] = {}
    for study in studies:
        for row in study.heads:
            critical.setdefault(str(row.head.site), 0)
            critical[str(row.head.site)] += row.verdict == "critical"

    def spread(values: list[Any]) -> dict[str, Any]:
        return {"least": min(values), "median": statistics.median(values), "most": max(values)}

    return {
        "members": len(studies),
        "together": spread(together),
        "alone": spread(alone),
        "alone_removed_together": spread(left),
        "critical_heads_by_site": critical,
    }

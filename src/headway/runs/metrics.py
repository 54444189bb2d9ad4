"""Metrics of runs, by name: which direction is better, which command measures them, and under which conditions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunMetric:
    command: str | None = None  # the command that measures it
    conditions: tuple[str, ...] = ()  # keys of a run that record how it was measured
    lower_is_better: bool = False
    is_share: bool = False  # whether it lies between 0 and 1


_STUDIED = ("ablation", "max_drop")
METRICS = {
    "exact_match": RunMetric("headway evaluate", ("examples",), is_share=True),
    "reach": RunMetric("headway lengths", ("tested_to",)),
    "in_range": RunMetric("headway lengths", is_share=True),
    "heads_together": RunMetric("headway heads", _STUDIED),
    "final_loss": RunMetric(lower_is_better=True),
    "errors": RunMetric("headway evaluate", ("examples",), lower_is_better=True),
    "heads_alone": RunMetric("headway heads", _STUDIED),
    "together_accuracy": RunMetric("headway heads", _STUDIED, is_share=True),
    "baseline": RunMetric(is_share=True),
    "certified": RunMetric("headway certify"),
    "perfect": RunMetric("headway train --until perfect"),
    **dict.fromkeys(("seconds", "steps", "parameters"), RunMetric(lower_is_better=True)),
}
USUAL = tuple(METRICS)[:5]  # compared by default, as far as any run has them
COSTS = {
    "exact": "loss",
    "kl": "KL divergence",
    "accuracy": "share of wrong tokens",
    "logit-difference": "lost logit difference",
}
"""the unit of a head's cost, by the metric of a study; a user's metric goes by its own name"""


def is_reach(metric: str) -> bool:
    return metric == "reach" or metric.startswith("reach.")


def find_run_metric(name: str) -> RunMetric:
    """Finds a metric by name; `reach.PROBE` is a reach, and an unknown metric has the default properties."""
    return METRICS.get("reach" if is_reach(name) else name, RunMetric())

"""What a study of windows found, in sentences: the window that each unit needs alone, then all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.evaluation.intervals import wilson
from headway.heads.assignments import Assignment, WindowPlan
from headway.heads.wording import Wording, list_words
from headway.models import Site

MOST_NAMED = 12  # units in a sentence


@dataclass(frozen=True)
class WindowFindings:
    """What the sentences are made of."""

    wording: Wording
    least: Mapping[str, int | None]
    """the least window of each unit alone, by its name"""
    limit: str
    """the largest cost allowed"""
    cost: str | None
    """what the costs are in, such as loss; None for accuracy"""
    plan: WindowPlan | None
    left_out: Sequence[Site]

    def sentences(self) -> list[str]:
        found = [self._describe_least()] if len(self.wording.sizes) > 1 else []
        if self.plan is not None:
            found += self._describe_plan(self.plan)
        if self.left_out:
            sites = list_words(list(map(str, self.left_out)))
            found.append(f"Heads of cross-attention were not narrowed, as they see another sequence: {sites}.")
        return found

    def _describe_least(self) -> str:
        counts = Counter(self.least.values())
        recents = [size.recent for size in self.wording.sizes if counts[size.recent]]
        parts = [f"{recent} recent tokens for {counts[recent]}" for recent in recents]
        if counts[None]:
            parts.append(f"none for {counts[None]}")
        return (
            f"The least window that is shown to cost less than {self.limit} while all other {self.wording.things} see "
            f"everything, of {len(self.least)}: {list_words(parts)}."
        )

    def _describe_plan(self, plan: WindowPlan) -> list[str]:
        found, length = [], f"at {plan.length:,} tokens"
        if plan.alone.share < 1:
            found.append(
                f"With the window that each {self._unit} needs alone, the cache is {plan.alone.share:.0%} of the whole "
                f"one {length}, and {self._describe(plan.alone)}."
            )
        if plan.asked is None:
            found.append(
                f"Chosen together, the smallest cache within {self.limit} that was found and confirmed is "
                f"{plan.chosen.share:.0%} of the whole one {length}: {self._describe(plan.chosen)}.{self._full(plan)}"
            )
            if plan.listed:
                found[-1] += f" All {plan.listed:,} assignments were measured."
            return found
        found.append(
            f"With a cache of at most {plan.asked:.0%} of the whole one {length}, the greedy assignment of windows "
            f"needs {plan.greedy.share:.0%}: {self._describe(plan.greedy)}."
        )
        if plan.exact is not None:
            found[-1] = found[-1][:-1] + f"; the best of all {plan.listed:,} assignments needs {plan.exact.share:.0%}: "
            found[-1] += f"{self._describe(plan.exact)}."
        found[-1] += self._full(plan)
        return found

    @property
    def _unit(self) -> str:
        return self.wording.things.removesuffix("s")

    def _full(self, plan: WindowPlan) -> str:
        """Names the units that see everything."""
        windows = zip(plan.names, plan.chosen.budget, strict=True)
        full = [name for name, (_, _, window) in windows if window is None]
        named = f": {', '.join(full)}" if 0 < len(full) <= MOST_NAMED else ""
        return f" {len(full)} of {plan.chosen.budget.groups} {self.wording.things} then see everything{named}."

    def _describe(self, assignment: Assignment) -> str:
        effect = assignment.effect
        if self.cost is not None:
            return f"the {self.cost} is {effect.loss_increase:.4f} higher (n = {effect.examples:,})"
        ends = wilson(effect.right, effect.examples)
        return (
            f"the accuracy is {effect.accuracy:.4f} (95% interval {ends.low:.4f} to {ends.high:.4f}, "
            f"n = {effect.examples:,})"
        )

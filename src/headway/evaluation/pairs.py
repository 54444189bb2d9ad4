"""Intervals for problems that come in pairs, such as a sequence and a permutation of it.

A model that misses one problem of a pair is likelier to miss the other, so the two count for less than two independent
problems. How much less is measured: the variance of the errors per pair gives the number of independent problems that
would be as informative. No torch.
"""

from dataclasses import dataclass

from headway.evaluation.intervals import Interval, wilson


@dataclass(frozen=True)
class PairCounts:
    """How the errors of a sample fall on its pairs; a problem without a twin counts as a pair of its own."""

    examples: int
    errors: int
    pairs: int
    both_wrong: int

    @property
    def effective_examples(self) -> float:
        """The number of independent problems that are as informative: from the number of pairs, if verdicts within a
        pair always agree or nothing distinguishes them, to the number of problems."""
        share = self.errors / self.examples
        spread = (self.errors + 2 * self.both_wrong) / self.pairs - (self.errors / self.pairs) ** 2
        if not 0 < self.errors < self.examples:
            return float(self.pairs)
        alike = self.examples if spread <= 0 else share * (1 - share) * self.examples**2 / (self.pairs * spread)
        return float(min(max(alike, self.pairs), self.examples))

    def interval(self) -> Interval:
        """Returns Wilson's 95% interval of the accuracy for the effective number of problems."""
        known = self.effective_examples
        return wilson((1 - self.errors / self.examples) * known, known)

    def to_json(self) -> dict[str, int | float]:
        return {"pairs": self.pairs, "both_wrong": self.both_wrong, "effective_examples": self.effective_examples}

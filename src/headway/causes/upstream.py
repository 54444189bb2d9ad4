"""Which heads make others look where they look: a test of cause. A head is closed, and the patterns of the later ones
are measured again; what falls was fed by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.causes.patterns import NONE, Pattern, find_patterns
from headway.evaluation.exact import Watch
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems

LOST = 0.5
"""of a head's score: what must be gone for another one to be called its cause"""


@dataclass(frozen=True)
class Feed:
    """One head, where it looks, and how much of that is left without each other head before it."""

    head: Head
    pattern: str
    score: float
    without: dict[Head, float]

    @property
    def fed_by(self) -> list[Head]:
        """The heads without which more than half of it is gone."""
        return [head for head, left in self.without.items() if left < (1 - LOST) * self.score]

    def to_json(self) -> dict[str, Any]:
        return {
            "head": str(self.head),
            "pattern": self.pattern,
            "score": self.score,
            "fed_by": [str(head) for head in self.fed_by],
            "without": {str(head): left for head, left in self.without.items()},
        }

    def finding(self) -> str:
        told = ", ".join(f"{head} ({self.without[head]:.2f} without it)" for head in self.fed_by)
        others = [left for head, left in self.without.items() if head not in self.fed_by]
        rest = f"; without any other one at least {min(others):.2f}" if others else ""
        return f"{self.head} puts {self.score:.2f} of its weight on {self.pattern} because of {told}{rest}."


def find_feeds(
    subject: Subject, problems: Problems, patterns: Sequence[Pattern], watch: Watch | None = None
) -> list[Feed]:
    """For every head with a clear pattern, what is left of it without each head of an earlier site."""
    order = {site: place for place, site in enumerate(subject.sites)}
    clear = [pattern for pattern in patterns if pattern.label != NONE]
    left: dict[Head, dict[Head, float]] = {pattern.head: {} for pattern in clear}
    for number, closed in enumerate(subject.heads):
        later = [pattern for pattern in clear if order[pattern.head.site] > order[closed.site]]
        if later:
            gates = subject.runner.close([closed])
            found = {each.head: each for each in find_patterns(subject, problems, gates)}
            for pattern in later:
                left[pattern.head][closed] = found[pattern.head].scores[pattern.label][0]
        if watch is not None:
            watch(number + 1, len(subject.heads))
    feeds = [Feed(p.head, p.label, p.scores[p.label][0], left[p.head]) for p in clear if left[p.head]]
    return [feed for feed in feeds if feed.fed_by]

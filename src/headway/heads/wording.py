"""How findings speak of a study: of heads or of groups of them, removed or narrowed to a window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.heads.question import WindowSize
from headway.models import Head


@dataclass(frozen=True)
class Wording:
    """The words for the units of a study, and for what is done to them."""

    sizes: tuple[WindowSize, ...] = ()
    groups: tuple[tuple[Head, str], ...] = ()
    """the heads that are in a group, each with the name of its group"""

    @property
    def things(self) -> str:
        return "key-value groups" if self.groups else "heads"

    @property
    def done(self) -> str:
        return "narrowed" if self.sizes else "removed"

    @property
    def doing(self) -> str:
        return "narrowing" if self.sizes else "removing"

    @property
    def can(self) -> str:
        return "can be narrowed together" if self.sizes else "can go together"

    @property
    def whole(self) -> str:
        return "with all heads seeing everything" if self.sizes else "with all heads"

    def kind(self, ablation: str) -> str:
        """Names a kind of ablation."""
        window = next((size for size in self.sizes if str(size) == ablation), None)
        return f"{ablation} ablation" if window is None else f"window ablation ({window.words})"

    def count(self, heads: Iterable[Head]) -> int:
        """Counts the units among heads."""
        names = dict(self.groups)
        return len({names.get(head, str(head)) for head in heads})


def list_words(words: Sequence[str]) -> str:
    """Joins words by commas, the last by *and*."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)

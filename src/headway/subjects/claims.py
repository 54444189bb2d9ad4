"""What is claimed about a subject, for the doctor: how its own evaluation decodes and counts, what it was trained on,
and which heads are said to be prunable. Every claim may be left out; a check that needs one then says so."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models import Head, Site
from headway.tasks import Problems

Ablate = Callable[[Problems, Collection[Head]], Tensor]
"""Called with problems and the heads that are to be closed: the logits."""


@dataclass(frozen=True, kw_only=True)
class SubjectClaims:
    decode: Callable[[Tensor, Tensor], Tensor] | None = None
    """called with the source and with what the decoder has been given, the start token first: the logits after each"""
    generate: Callable[[Problems], Tensor] | None = None
    """the answers as the subject's own evaluation writes them; it is handed the right ones, so that it shows if it uses
    them"""
    forced: Callable[[Problems], Tensor] | None = None
    """the tokens that the subject's own teacher-forced evaluation predicts, where it has one"""
    score: Callable[[Problems], float] | None = None
    """the accuracy as it is reported"""
    sets: Callable[[], Mapping[str, Problems]] | None = None
    """the sets that are evaluated, by name"""
    held_out: Callable[[Problems], Tensor] | None = None
    """which problems training never shows"""
    trained_on: Problems | Sequence[Problems] | None = None
    """the training problems, where they are a list; several where they have several lengths"""
    tables: Sequence[Tensor] = ()
    """the weights of position tables, a row for each position, distance or bucket"""
    untrained: Callable[[Problems], list[int]] | None = None
    """instead: the positions that problems use and no training step has touched"""
    pad: int | None = None
    """the padding token"""
    ablate: Ablate | None = None
    """the logits with some heads closed, as the subject's own study closes them"""
    projections: Mapping[Site, nn.Module] = field(default_factory=dict)
    """the output projection of each site, whose columns belong to the heads"""
    ranked_on: Problems | None = None
    """the problems that heads are ranked on, where they are not the examples"""
    claimed: tuple[Head, ...] = ()
    """heads that are said to be prunable, one at a time"""
    claimed_on: int | None = None
    """on how many examples that was said"""
    max_drop: float = 0.01
    """and within which drop of accuracy"""

    def __post_init__(self) -> None:
        trained_on = self.trained_on if isinstance(self.trained_on, Sequence) else [self.trained_on]
        for what, value in [("ranked_on", self.ranked_on), *(("trained_on", each) for each in trained_on)]:
            if value is not None and not isinstance(value, Problems):
                raise HeadwayError(f"{what} is {type(value).__name__}; give headway.Problems")
        if isinstance(self.tables, Tensor):
            object.__setattr__(self, "tables", [self.tables])
        if not 0 < self.max_drop <= 1 or (self.claimed_on is not None and self.claimed_on < 2):
            raise HeadwayError(
                f"max_drop is {self.max_drop} on {self.claimed_on} examples; it must be above 0 and at most 1, on at "
                "least 2"
            )

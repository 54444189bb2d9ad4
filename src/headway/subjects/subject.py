"""What a study studies: a model, its heads, its examples, and what counts as correct.

The door is narrow on purpose. A model is called as `model(source, answer, gates, trace)`; everything else a study
needs to know is given here as a function. `subjects/own.py` makes a Subject of a run, `attach/from_transformers.py`
one of a Hugging Face model; a user's `module:factory` returns one of theirs, whose model is attached where `sites` are
named, and gives of the rest only what the checks that they want need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headway.attach.foreign import MEMORY, Foreign, by_length, check_reads, few_of_one_length
from headway.attach.module import attach_module
from headway.attach.projections import Maps
from headway.attach.readers import Reader, read_module
from headway.errors import HeadwayError
from headway.evaluation.metrics import Metric, metric_named, own_metric
from headway.models import Head, Site
from headway.runs.folder import RunFolder
from headway.tasks import Problems
from headway.tasks.problems import Contrast, Layout

Examples = Callable[[int, int, bool], Problems]
"""Called with how many, a seed, and whether only held-out problems are wanted."""


def all_tokens_right(logits: Float[Tensor, "row answer token"], problems: Problems) -> Bool[Tensor, " row"]:
    same = logits.argmax(-1) == problems.answer
    return same.all(-1) if problems.scored is None else (same | ~problems.scored).all(-1)


def no_strata(problems: Problems) -> dict[str, Int[Tensor, " row"]]:
    return {}


def numbers(tokens: list[int]) -> list[str]:
    return [str(token) for token in tokens]


MOST_LOOKED_AT = 1_000
PROVED = 4
"""problems that interventions are proved on"""
Ablate = Callable[[Problems, Collection[Head]], Tensor]
"""Called with problems and the heads that are to be closed: the logits."""


def _listed(problems: Any) -> Sequence[Any]:
    return [problems] if isinstance(problems, Problems) or not isinstance(problems, Sequence) else problems


@dataclass(frozen=True)
class Subject:
    model: nn.Module
    _: KW_ONLY
    examples: Examples | Problems
    """as a function, or a list out of which they are drawn"""
    name: str = ""
    heads: tuple[Head, ...] = ()
    """none where heads are not to be studied"""
    sites: Any = ()
    """the attention modules of a user's own model: "auto", or Sites, names and patterns such as "*.linear_out"; their
    heads are then found, and every intervention proved"""
    reader: Reader | None = None
    """how such a model reads a problem: called with the model, sources and answers, it returns the logits"""
    maps: Maps | None = None
    """reads the attention map of a hand-written module, called with it, its inputs and its output"""
    tokenizer: Any = None
    """saved beside a model of transformers that is pruned"""
    memory: int = MEMORY
    """bytes that a pass of such a model may take"""
    metric: Metric | str | Callable[[Tensor, Problems], Tensor] | None = None
    """what heads are judged by, instead of whole answers right: the name of a metric, or a function of logits and
    problems that returns a cost for each problem"""
    every: Callable[[], Iterator[Problems]] | None = None
    """all problems there are, in chunks; None where they cannot be listed"""
    count: int | None = None
    """how many those are"""
    even: bool = False
    """whether `examples` draws evenly from all of them"""
    correct: Callable[[Tensor, Problems], Tensor] = all_tokens_right
    strata: Callable[[Problems], dict[str, Tensor]] = no_strata
    spelled: Callable[[list[int]], list[str]] = numbers
    """tokens as people write them"""
    problem: Callable[[str], Problems] | None = None
    """the problem that a person writes"""
    start: int | None = None
    """the token an answer begins with"""
    layout: Layout | None = None
    """which token is which digit; None where there are no digits"""
    contrasts: Callable[[int, int], list[Contrast]] | None = None
    """called with how many and a seed: pairs of problems that differ in one thing; None where there are none"""
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
    others: Sequence[Subject] = ()
    """the same experiment with other seeds"""
    folder: RunFolder | None = None
    """where results are kept"""
    about: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.examples) and not isinstance(self.examples, Problems):
            raise HeadwayError(
                f"examples are {type(self.examples).__name__}; give headway.Problems, or a function of a count, a seed "
                "and whether only held-out ones are wanted"
            )
        if not isinstance(self.model, nn.Module):
            raise HeadwayError(f"model is {type(self.model).__name__}; a Subject studies a torch.nn.Module")
        if not self.name:
            object.__setattr__(self, "name", type(self.model).__name__)
        for what, value in (
            ("ranked_on", self.ranked_on),
            *(("trained_on", each) for each in _listed(self.trained_on)),
        ):
            if value is not None and not isinstance(value, Problems):
                raise HeadwayError(f"{what} is {type(value).__name__}; give headway.Problems")
        if not all(isinstance(other, Subject) for other in self.others):
            raise HeadwayError("others are the same experiment with other seeds, each a headway.Subject")
        if isinstance(self.tables, Tensor):
            object.__setattr__(self, "tables", [self.tables])
        if not 0 < self.max_drop <= 1 or (self.claimed_on is not None and self.claimed_on < 2):
            raise HeadwayError(
                f"max_drop is {self.max_drop} on {self.claimed_on} examples; it must be above 0 and at most 1, on at "
                "least 2"
            )
        if len(set(self.heads)) < len(self.heads):
            raise HeadwayError(f"{self.name} names a head twice")
        if isinstance(self.metric, str):
            object.__setattr__(self, "metric", metric_named(self.metric))
        elif self.metric is not None and not isinstance(self.metric, Metric):
            object.__setattr__(self, "metric", own_metric(self.metric))
        if isinstance(self.model, Foreign):
            self._take(self.model)
        elif self.sites and not self.heads:
            self._take(self._attached())
        elif not self.sites:
            object.__setattr__(self, "sites", tuple(dict.fromkeys(head.site for head in self.heads)))

    def _attached(self) -> Foreign:
        """The user's model with its sites found, every intervention proved on a few of the examples."""
        reader = self.reader or read_module
        drawn = self.draw(MOST_LOOKED_AT, 0, False)
        check_reads(self.model, reader, drawn)
        few = few_of_one_length(drawn, PROVED)
        named = None if isinstance(self.sites, str) and self.sites == "auto" else self.sites
        attached = attach_module(
            self.model, named, call=lambda: reader(self.model, few.source, few.answer), maps=self.maps
        )
        return Foreign(attached, reader, self.memory)

    def _take(self, model: Foreign) -> None:
        taken = {"model": model, "heads": self.heads or model.attached.heads, "sites": model.attached.sites}
        for name, value in taken.items():
            object.__setattr__(self, name, value)
        if self.ablate is None:
            object.__setattr__(self, "ablate", model.without)

    @property
    def measured_by(self) -> Metric | None:
        """The metric; None where whole answers are right or wrong."""
        return self.metric if isinstance(self.metric, Metric) else None

    def draw(self, rows: int, seed: int, held_out: bool) -> Problems:
        """Examples; out of a list none is drawn twice, and there may be fewer."""
        if not isinstance(self.examples, Problems):
            return self.examples(rows, seed, held_out)
        order = torch.randperm(len(self.examples), generator=torch.Generator().manual_seed(seed))
        return by_length(self.examples[order[:rows].to(self.examples.source.device)])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

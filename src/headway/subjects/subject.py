"""What a study studies: a model, its heads, its examples, and what counts as correct.

A Subject is plain data: everything that a study needs to know of a model is given here, as values and functions.
`subjects/own.py` makes one of a run, `attach/from_transformers.py` one of a Hugging Face model; a user's
`module:factory` returns one of theirs. `attach.opening.ready` finds the sites of a user's model and gives the subject
its runner, which runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.evaluation.metrics import Metric, find_metric, metric_from_function
from headway.evaluation.verdicts import right
from headway.models import Head, Site
from headway.runs.folder import RunFolder
from headway.subjects.ragged import sort_by_length
from headway.subjects.runner import MEMORY, Runner
from headway.tasks import Problems
from headway.tasks.problems import Contrast, Layout

Examples = Callable[[int, int, bool], Problems]
"""Called with how many, a seed, and whether only held-out problems are wanted."""
Reader = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Called with the model, the sources and the answers: the logits, [row, answer, token]."""
Maps = Callable[[nn.Module, tuple[Any, ...], Any], Tensor | None]
"""Called with an attention module, its inputs and its output: the map, [batch, head, query, key]."""


@dataclass(frozen=True, kw_only=True)
class SubjectClaims:
    """What is claimed about a subject, for the doctor; a check that needs a claim which was left out says so."""

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
    ablate: Callable[[Problems, Collection[Head]], Tensor] | None = None
    """called with problems and heads: the logits with these closed, as the subject's own study closes them"""
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
            self.__dict__["tables"] = [self.tables]  # the dataclass is frozen
        if not 0 < self.max_drop <= 1 or (self.claimed_on is not None and self.claimed_on < 2):
            raise HeadwayError(
                f"max_drop is {self.max_drop} on {self.claimed_on} examples; it must be above 0 and at most 1, on at "
                "least 2"
            )


@dataclass(frozen=True)
class Subject(SubjectClaims):
    model: nn.Module
    _: KW_ONLY
    examples: Examples | Problems
    """as a function, or a list out of which they are drawn"""
    name: str = ""
    heads: tuple[Head, ...] = ()
    """none where heads are not to be studied"""
    sites: Any = ()
    """the attention modules of a user's own model: "auto", or Sites, names and patterns such as "*.linear_out"; their
    heads are then found, and every intervention proved, when the subject is opened"""
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
    correct: Callable[[Tensor, Problems], Tensor] = right
    strata: Callable[[Problems], dict[str, Tensor]] = field(default=lambda problems: {})
    spelled: Callable[[list[int]], list[str]] = field(default=lambda tokens: list(map(str, tokens)))
    """tokens as people write them"""
    problem: Callable[[str], Problems] | None = None
    """the problem that a person writes"""
    start: int | None = None
    """the token an answer begins with"""
    layout: Layout | None = None
    """which token is which digit; None where there are no digits"""
    contrasts: Callable[[int, int], list[Contrast]] | None = None
    """called with how many and a seed: pairs of problems that differ in one thing; None where there are none"""
    others: Sequence[Subject] = ()
    """the same experiment with other seeds"""
    folder: RunFolder | None = None
    """where results are kept"""
    about: dict[str, Any] | None = None
    opened: Runner | None = field(default=None, repr=False)
    """what runs the model, once the subject was opened"""

    def __post_init__(self) -> None:
        if not callable(self.examples) and not isinstance(self.examples, Problems):
            raise HeadwayError(
                f"examples are {type(self.examples).__name__}; give headway.Problems, or a function of a count, a seed "
                "and whether only held-out ones are wanted"
            )
        if not isinstance(self.model, nn.Module):
            raise HeadwayError(f"model is {type(self.model).__name__}; a Subject studies a torch.nn.Module")
        super().__post_init__()
        if not all(isinstance(other, Subject) for other in self.others):
            raise HeadwayError("others are the same experiment with other seeds, each a headway.Subject")
        name, metric = self.name or type(self.model).__name__, self.metric
        if len(set(self.heads)) < len(self.heads):
            raise HeadwayError(f"{name} names a head twice")
        if isinstance(metric, str):
            metric = find_metric(metric)
        elif metric is not None and not isinstance(metric, Metric):
            metric = metric_from_function(metric)
        sites = self.sites or tuple(dict.fromkeys(head.site for head in self.heads))
        self.__dict__.update(name=name, metric=metric, sites=sites)

    def with_runner(self, runner: Runner) -> Subject:
        """The same subject, opened: of a user's model with its sites and heads."""
        if not runner.is_attached:
            return replace(self, opened=runner)
        return replace(self, opened=runner, heads=self.heads or runner.heads, sites=tuple(runner.sites))

    @property
    def runner(self) -> Runner:
        """What runs the model, whole and with heads closed."""
        if self.opened is None or self.opened.model is not self.model:
            raise HeadwayError(f"{self.name} is not opened; headway.attach.opening.ready(subject) finds its sites")
        return self.opened

    @property
    def measured_by(self) -> Metric | None:
        """The metric; None where whole answers are right or wrong."""
        return self.metric if isinstance(self.metric, Metric) else None

    def draw(self, rows: int, seed: int, held_out: bool) -> Problems:
        """Examples; out of a list none is drawn twice, and there may be fewer."""
        if not isinstance(self.examples, Problems):
            return self.examples(rows, seed, held_out)
        order = torch.randperm(len(self.examples), generator=torch.Generator().manual_seed(seed))
        return sort_by_length(self.examples[order[:rows].to(self.examples.source.device)])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

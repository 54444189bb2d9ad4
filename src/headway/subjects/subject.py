"""Subject: a model to be studied, with its heads, its examples and the definition of a correct answer.

A Subject is plain data: everything that a study needs to know about a model is given here, as values and functions.
`subjects/own.py` makes one from a run, `attach/from_transformers.py` one from a Hugging Face model; a user's
`module:factory` returns one for a user's model. `attach.opening.prepare_subject` finds the sites of a user's model and
adds the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.evaluation.exact import device_of
from headway.evaluation.metrics import Metric, find_metric, metric_from_function
from headway.evaluation.verdicts import right
from headway.models import Head, Site
from headway.runs.folder import RunFolder
from headway.subjects.drawing import Examples, ProblemsOfLength, examples_of, find_problems
from headway.subjects.ragged import sort_by_length
from headway.subjects.runner import MEMORY, Runner
from headway.tasks import Problems, Task
from headway.tasks.problems import Contrast, Layout

Reader = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Called with the model, the sources and the answers; returns the logits, [row, answer, token]."""
Maps = Callable[[nn.Module, tuple[Any, ...], Any], Tensor | None]
"""Called with an attention module, its inputs and its output; returns the map, [batch, head, query, key]."""


@dataclass(frozen=True, kw_only=True)
class SubjectClaims:
    """The claims about a subject that the doctor checks; a check whose claim is missing is skipped and says so."""

    decode: Callable[[Tensor, Tensor], Tensor] | None = None
    """called with the sources and the decoder inputs, the start token first; returns the logits after each input"""
    generate: Callable[[Problems], Tensor] | None = None
    """the answers as the subject's own evaluation generates them; it also gets the right answers, so that the
    doctor can detect whether it uses them"""
    forced: Callable[[Problems], Tensor] | None = None
    """the tokens that the subject's own teacher-forced evaluation predicts, if it has one"""
    score: Callable[[Problems], float] | None = None
    """the reported accuracy"""
    reported: float | None = None
    """the accuracy that was published, as a share or in percent; the table of a class shows it beside the measured"""
    sets: Callable[[], Mapping[str, Problems]] | None = None
    """the evaluation sets, by name"""
    held_out: Callable[[Problems], Tensor] | None = None
    """marks the problems that training never uses"""
    trained_on: Problems | Sequence[Problems] | None = None
    """the training problems, if they are a fixed list; one table for each length"""
    tables: Sequence[Tensor] = ()
    """the weights of position tables, with a row for each position, distance or bucket"""
    untrained: Callable[[Problems], list[int]] | None = None
    """alternative to `tables`: returns the positions that the problems use and training never updated"""
    pad: int | None = None
    """the padding token"""
    ablate: Callable[[Problems, Collection[Head]], Tensor] | None = None
    """called with problems and heads; returns the logits with these heads ablated by the subject's own code"""
    projections: Mapping[Site, nn.Module] = field(default_factory=dict)
    """the output projection of each site, whose columns belong to the heads"""
    ranked_on: Problems | None = None
    """the problems that heads are ranked on, if not the examples"""
    claimed: tuple[Head, ...] = ()
    """heads that are claimed to be prunable, one at a time"""
    claimed_on: int | None = None
    """the number of examples behind that claim"""
    max_drop: float = 0.01
    """the drop in accuracy that the claim allows"""

    def __post_init__(self) -> None:
        trained_on = self.trained_on if isinstance(self.trained_on, Sequence) else [self.trained_on]
        for what, value in [("ranked_on", self.ranked_on), *(("trained_on", each) for each in trained_on)]:
            if value is not None and not isinstance(value, Problems):
                raise HeadwayError(f"{what} is {type(value).__name__}; it must be headway.Problems")
        if isinstance(self.tables, Tensor):
            self.__dict__["tables"] = [self.tables]  # the dataclass is frozen
        if not 0 < self.max_drop <= 1 or (self.claimed_on is not None and self.claimed_on < 2):
            raise HeadwayError(
                f"max_drop is {self.max_drop} on {self.claimed_on} examples; it must be above 0 and at most 1, on at "
                "least 2"
            )


def no_examples(rows: int, seed: int, held_out: bool) -> Problems:
    """Stands for examples that were not given."""
    raise HeadwayError("there are no examples")


@dataclass(frozen=True)
class Subject(SubjectClaims):
    model: nn.Module
    _: KW_ONLY
    examples: Examples | Problems = no_examples
    """a function that draws examples, or a fixed list to draw from (default: `problems` of the longest training
    length)"""
    problems: ProblemsOfLength | Task | str | None = None
    """for studies of length: a function of a length, a number of rows and a seed that returns Problems; or a task, or
    the name of one, such as "sortedness"; a subject holds the task, not its name"""
    probes: Mapping[str, ProblemsOfLength] = field(default_factory=dict)
    """families of harder or easier problems to test as well, by name: functions like `problems`"""
    trained: tuple[int, int] | None = None
    """the shortest and the longest training length (default: those of the task)"""
    name: str = ""
    heads: tuple[Head, ...] = ()
    """empty where heads are not studied"""
    sites: Any = ()
    """the attention modules of a user's model: "auto", or Sites, names and patterns such as "*.linear_out"; opening the
    subject finds their heads and proves every intervention"""
    reader: Reader | None = None
    """how a user's model reads a problem: called with the model, sources and answers, it returns the logits"""
    maps: Maps | None = None
    """reads the attention map of a hand-written module; called with the module, its inputs and its output"""
    tokenizer: Any = None
    """saved with the pruned model, if that is a Hugging Face model"""
    memory: int = MEMORY
    """limit, in bytes, on the memory of one pass of a user's model"""
    metric: Metric | str | Callable[[Tensor, Problems], Tensor] | None = None
    """the metric for heads, instead of exact match: its name, or a function of logits and problems that returns a cost
    for each problem"""
    every: Callable[[], Iterator[Problems]] | None = None
    """enumerates all problems, in chunks; None where that is impossible"""
    count: int | None = None
    """the number of all problems"""
    even: bool = False
    """whether `examples` draws uniformly from all problems"""
    correct: Callable[[Tensor, Problems], Tensor] = right
    strata: Callable[[Problems], dict[str, Tensor]] = field(default=lambda problems: {})
    spelled: Callable[[list[int]], list[str]] = field(default=lambda tokens: list(map(str, tokens)))
    """turns tokens into text"""
    problem: Callable[[str], Problems] | None = None
    """parses a problem from text"""
    start: int | None = None
    """the start token of an answer"""
    layout: Layout | None = None
    """which token is which digit; None where there are no digits"""
    contrasts: Callable[[int, int], list[Contrast]] | None = None
    """called with a count and a seed; returns pairs of problems that differ in one thing; None where there are none"""
    others: Sequence[Subject] = ()
    """subjects of the same experiment with other seeds"""
    folder: RunFolder | None = None
    """the folder for results"""
    about: dict[str, Any] | None = None
    opened: Runner | None = field(default=None, repr=False)
    """the runner, once the subject was opened"""

    def __post_init__(self) -> None:
        if not callable(self.examples) and not isinstance(self.examples, Problems):
            raise HeadwayError(
                f"examples are {type(self.examples).__name__}; give headway.Problems, or a function of a count, a seed "
                "and whether to draw only held-out problems"
            )
        if not isinstance(self.model, nn.Module):
            raise HeadwayError(f"model is {type(self.model).__name__}; it must be a torch.nn.Module")
        super().__post_init__()
        problems, trained = find_problems(self.problems, self.probes, self.trained)
        self.__dict__.update(problems=problems, trained=trained)
        if self.examples is no_examples:
            if problems is None or trained is None:
                raise HeadwayError("a Subject needs examples, or problems=, a function of a length, rows and a seed")
            self.__dict__["examples"] = examples_of(problems, trained[1], self.device)
        if not all(isinstance(other, Subject) for other in self.others):
            raise HeadwayError("others must be headway.Subjects: the same experiment with other seeds")
        name, metric = self.name or type(self.model).__name__, self.metric
        if len(set(self.heads)) < len(self.heads):
            raise HeadwayError(f"{name} lists the same head twice")
        if isinstance(metric, str):
            metric = find_metric(metric)
        elif metric is not None and not isinstance(metric, Metric):
            metric = metric_from_function(metric)
        sites = self.sites or tuple(dict.fromkeys(head.site for head in self.heads))
        self.__dict__.update(name=name, metric=metric, sites=sites)

    def with_runner(self, runner: Runner) -> Subject:
        """Returns a copy with this runner; for a user's model also with its sites and heads."""
        if not runner.is_attached:
            return replace(self, opened=runner)
        return replace(self, opened=runner, heads=self.heads or runner.heads, sites=tuple(runner.sites))

    @property
    def runner(self) -> Runner:
        """The runner of the model."""
        if self.opened is None or self.opened.model is not self.model:
            raise HeadwayError(f"{self.name} is not opened; call headway.attach.opening.prepare_subject on it")
        return self.opened

    @property
    def measured_by(self) -> Metric | None:
        """The metric; None for exact match."""
        return self.metric if isinstance(self.metric, Metric) else None

    def draw(self, rows: int, seed: int, held_out: bool) -> Problems:
        """Draws examples; from a fixed list without repetition, so there may be fewer than `rows`."""
        if not isinstance(self.examples, Problems):
            return self.examples(rows, seed, held_out)
        order = torch.randperm(len(self.examples), generator=torch.Generator().manual_seed(seed))
        return sort_by_length(self.examples[order[:rows].to(self.examples.source.device)])

    @property
    def device(self) -> torch.device:
        return device_of(self.model)

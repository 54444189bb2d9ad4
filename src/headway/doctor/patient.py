"""A subject under examination: the same problems for every check, and the model's logits for them, computed once.

The user's model and functions are called only here, so that an error in them becomes one sentence that quotes it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.doctor.alignment import Aligned, align
from headway.doctor.leaks import Leaks, measure_leaks
from headway.doctor.randomness import Repeats
from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.evaluation.intervals import Interval, wilson
from headway.models import Head
from headway.subjects.given import describe, find_fault
from headway.subjects.subject import Subject
from headway.tasks import Problems

ROWS = 1_000
FEW = 200  # of these rows, for slow checks
ALONE = 20  # problems that are run one by one
SEED = 1_000  # no study draws its problems with it
TOLERANCE = 1e-4  # logits that differ by no more are equal up to rounding
LARGEST_LOGIT = 1e4  # replaces an infinite one
MOST_SCORED = 20_000  # of a list of examples, the most on which the reported accuracy is computed
LEARNED = 0.95  # in-range accuracy above which a model has learned its task

Result = TypeVar("Result")


@dataclass(frozen=True)
class Reported:
    """The accuracy as the subject's own score computes it."""

    value: float  # a share, also where the score is in percent
    rows: int
    whole: bool  # whether these are all examples that were given


@dataclass(frozen=True)
class Patient:
    subject: Subject
    repeats: Repeats = field(default_factory=Repeats)
    """how much evaluations differ when repeated; where they do, randomness is off while other checks run"""
    broken: dict[str, str] = field(default_factory=dict)
    """optional functions of the subject that failed, by name, with what happened; they count as not given"""
    broadcast: set[str] = field(default_factory=set)
    """functions that returned one row of tokens for many problems"""
    outputs: dict[tuple[str, int], tuple[Problems, Tensor]] = field(default_factory=dict, repr=False)
    """tokens that were computed for the sets of problems above"""
    facts: dict[str, object] = field(default_factory=dict, repr=False)
    """what several checks need to know, computed once"""

    def once(self, fact: Callable[["Patient"], Result]) -> Result:
        """Computes a fact about this patient, or returns it if it was computed before."""
        if fact.__name__ not in self.facts:
            self.facts[fact.__name__] = fact(self)
        return self.facts[fact.__name__]  # pyright: ignore[reportReturnType]

    @cached_property
    def problems(self) -> Problems:
        drawn = self._check_problems("examples", self.call("examples", self.subject.draw, ROWS, SEED, False))
        return drawn[: self.subject.runner.rows_per_pass(drawn)]

    @cached_property
    def few(self) -> Problems:
        return self.problems[:FEW]

    @cached_property
    def singles(self) -> list[Problems]:
        """The first few problems, one by one."""
        return [self.few[row : row + 1] for row in range(min(ALONE, len(self.few)))]

    @cached_property
    def sets(self) -> dict[str, Problems]:
        """The evaluated sets: the subject's own, or else the examples."""
        if self.subject.sets is None:
            return {"examples": self.problems}
        sets = self.attempt("sets", self._call_for_sets)
        return {"examples": self.problems} if sets is None else sets

    def _call_for_sets(self) -> dict[str, Problems]:
        sets = None if self.subject.sets is None else self.subject.sets()
        if not isinstance(sets, Mapping) or not sets:
            raise self.bad_return("sets", sets, "; return Problems by name")
        return {str(name): self._check_problems(f"the set {name}", problems) for name, problems in sets.items()}

    @property
    def trained_on(self) -> list[Problems]:
        """The training problems that were given, a table per length."""
        given = self.subject.trained_on
        return [] if given is None else [given] if isinstance(given, Problems) else list(given)

    @cached_property
    def tolerance(self) -> float:
        """The difference up to which logits are equal, given the rounding of the model's dtype."""
        return self.tolerance_of(self.logits)

    def tolerance_of(self, logits: Tensor) -> float:
        """Returns the difference up to which logits of this size are equal."""
        dtype = next((p.dtype for p in self.subject.model.parameters() if p.is_floating_point()), torch.float32)
        return max(TOLERANCE, 16 * torch.finfo(dtype).eps * float(logits.abs().max()))

    @cached_property
    def reported(self) -> Reported | None:
        """The accuracy as reported, on all examples that the subject gives as a list; None if it has no score."""
        examples, drawn = self.subject.examples, self.problems
        fixed = isinstance(examples, Problems) and len(examples) <= MOST_SCORED
        problems = examples if fixed and isinstance(examples, Problems) and len(examples) > len(drawn) else drawn
        value = self.score(problems)
        whole = isinstance(examples, Problems) and len(problems) == len(examples)
        return None if value is None else Reported(value, len(problems), whole)

    def score(self, problems: Problems) -> float | None:
        """Computes the accuracy with the subject's own score, as a share; None if it cannot."""
        if self.subject.score is None:
            return None
        value = self.attempt("score", self.subject.score, problems)
        if value is not None and not isinstance(value, int | float):
            value = float(value) if isinstance(value, Tensor) and value.numel() == 1 else value
        if value is not None and not isinstance(value, int | float):
            self.broken["score"] = str(self.bad_return("score", value, "; return one number"))
        if value is None or "score" in self.broken:
            return None
        return float(value) / 100 if float(value) > 1 or self.scores_in_percent else float(value)

    @cached_property
    def scores_in_percent(self) -> bool:
        """Whether a problem that the model gets right scores 100 by itself, not 1."""
        assert self.subject.score is not None
        for row in self.right.nonzero()[:3, 0].tolist():
            try:
                value = self.call("score", self.subject.score, self.problems[row : row + 1])
            except HeadwayError:  # it may need more problems
                return False
            if isinstance(value, int | float) and value > 1:
                return True
        return False

    @property
    def answers_with_class(self) -> bool:
        return self.problems.answer.shape[1] == 1 and self.subject.start is None

    @property
    def decodes(self) -> bool:
        return self.gives("generate") and not self.answers_with_class

    def gives(self, name: str) -> bool:
        """Tells whether the subject has this optional function, and it works."""
        return getattr(self.subject, name) is not None and name not in self.broken

    @cached_property
    def logits(self) -> Float[Tensor, "row answer token"]:
        return self.run(self.problems)

    @cached_property
    def right(self) -> Bool[Tensor, " row"]:
        return self.judge(self.logits, self.problems)

    @property
    def accuracy(self) -> float:
        return int(self.right.sum()) / len(self.right)

    @property
    def interval(self) -> Interval:
        """The interval of the accuracy."""
        return wilson(int(self.right.sum()), len(self.right))

    def scored(self, problems: Problems) -> Bool[Tensor, "row answer"]:
        """Masks the answer tokens that count."""
        return torch.ones_like(problems.answer, dtype=torch.bool) if problems.scored is None else problems.scored

    def judge(self, logits: Tensor, problems: Problems) -> Bool[Tensor, " row"]:
        """Decides which problems are right, by the subject's own rule."""
        right = self.call("correct", self.subject.correct, logits, problems)
        if not isinstance(right, Tensor) or right.shape != (len(problems),):
            raise self.bad_return("correct", right, f" for {len(problems)} problems; return one verdict per problem")
        return right.bool()

    def judge_tokens(self, tokens: Int[Tensor, "row answer"], problems: Problems) -> Bool[Tensor, " row"]:
        """Decides the same for answers given as tokens."""
        vocabulary = self.logits.shape[-1]
        return self.judge(F.one_hot(tokens.clamp(0, vocabulary - 1), vocabulary).float(), problems)

    def run(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """Computes the logits of every answer token, each given the right ones before it."""
        if self.can_decode and self.reads_stepwise:
            pieces = self.subject.runner.pieces(problems)
            return torch.cat([self.run_stepwise(problems[rows]) for rows in pieces])
        return self.run_as_given(problems)

    def run_as_given(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """Computes them in one pass: with `decode`, or else with the model."""
        runner = self.subject.runner
        pieces = [problems[rows] for rows in runner.pieces(problems)]
        if self.can_decode:
            return torch.cat([self.run_one_pass(some) for some in pieces])
        return torch.cat([self._call_for_logits("the model", p.answer.shape, runner.run, p) for p in pieces])

    @property
    def can_decode(self) -> bool:
        return self.subject.decode is not None and self.subject.start is not None

    def run_one_pass(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """Computes the logits with `decode` in one pass over the whole decoder input."""
        return self.decode(problems.source, self.decoder_input(problems))

    def run_stepwise(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """Computes the logits with `decode` for each prefix alone, so that nothing later can be seen."""
        written = self.decoder_input(problems)
        steps = range(1, written.shape[1] + 1)
        return torch.cat([self.decode(problems.source, written[:, :step])[:, -1:] for step in steps], dim=1)

    @cached_property
    def reads_stepwise(self) -> bool:
        """Whether `decode` is run prefix by prefix: in one pass it sees later tokens, which makes it no better, and the
        subject's own teacher-forced pass does not. Then only `decode` as it was given lacks the mask."""
        return False if self.answers_with_class else self.leaks.only_in_decode

    @cached_property
    def leaks(self) -> Leaks:
        return measure_leaks(self, self.few)

    def decode(self, source: Tensor, written: Tensor) -> Float[Tensor, "row written token"]:
        """Computes the logits after each token that the decoder is given."""
        assert self.subject.decode is not None
        return self._call_for_logits("decode", written.shape, self.subject.decode, source, written)

    def generate(self, problems: Problems) -> Int[Tensor, "row written"] | None:
        """Decodes answers as the subject's own evaluation does; None if it cannot."""
        return self._call_for_tokens("generate", self.subject.generate, problems)

    def predict(self, problems: Problems) -> Int[Tensor, "row predicted"] | None:
        """Predicts tokens with the subject's own teacher-forced pass; None if there is none."""
        return self._call_for_tokens("forced", self.subject.forced, problems)

    def predict_alone(self, problems: Problems) -> Int[Tensor, "row predicted"] | None:
        """Predicts tokens likewise, each problem by itself if the others of a batch change them."""
        if not self.forced_depends:
            return self.predict(problems)
        rows = [self.predict(problems[row : row + 1]) for row in range(len(problems))]
        return torch.cat([row for row in rows if row is not None]) if all(row is not None for row in rows) else None

    @cached_property
    def forced_depends(self) -> int:
        """How many of a few teacher-forced answers change alone or in another order."""
        return self._count_dependent(self.predict)

    @cached_property
    def decoding_depends(self) -> int:
        """How many of a few decoded answers change alone or in another order."""
        return self._count_dependent(self.generate) if self.decodes else 0

    def _count_dependent(self, write: Callable[[Problems], Tensor | None]) -> int:
        few = self.few[: len(self.singles)]
        together, alone = write(few), [write(single) for single in self.singles]
        if together is None or any(each is None for each in alone):
            return 0
        width = max(t.shape[1] for t in (together, *alone) if t is not None)
        wide = [F.pad(t, (0, width - t.shape[1]), value=-1) for t in (together, *alone) if t is not None]
        changed = (wide[0] != torch.cat(wide[1:])).any(1)
        if (all_few := write(self.few)) is not None and all_few.shape[1] == together.shape[1]:
            changed = changed | (all_few[: len(few)] != together).any(1)
        return int(changed.sum())

    def align_forced(self, problems: Problems) -> Aligned | None:
        """Returns the teacher-forced predictions in the places of the answer."""
        tokens = self.predict_alone(problems) if len(problems) <= len(self.few) else self.predict(problems)
        return None if tokens is None else align(tokens, problems.answer, self.scored(problems))

    def align_decoded(self, problems: Problems) -> Aligned | None:
        """Returns the decoded answers in the places of the answer."""
        tokens = self.generate(problems)
        return None if tokens is None else align(tokens, problems.answer, self.scored(problems), ends=False)

    def decoder_input(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """Makes the decoder's input: the start token and all but the last token of the answer."""
        assert self.subject.start is not None
        start = torch.full_like(problems.answer[:, :1], self.subject.start)
        return torch.cat((start, problems.answer[:, :-1]), dim=1)

    @property
    def can_ablate(self) -> bool:
        return self.gives("ablate") or bool(self.subject.runner.width)

    def ablate(self, problems: Problems, heads: Collection[Head]) -> Float[Tensor, "row width token"]:
        """Computes the logits with these heads ablated, as the subject's own study ablates them, whatever their
        width."""
        ablate, runner = self.subject.ablate, self.subject.runner
        if ablate is None:
            return self.call("the model", runner.logits, problems, runner.close_heads(heads))
        pieces = [self.call("ablate", ablate, p, heads) for p in batches(problems)]
        for rows, logits in zip(batches(problems), pieces, strict=True):
            self._check_logits("ablate", logits, torch.Size((len(rows),)))
        return torch.cat([logits.float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT) for logits in pieces])

    def judge_ablated(self, problems: Problems, heads: Collection[Head]) -> Bool[Tensor, " row"]:
        """Decides which problems are right with these heads ablated, on the answer tokens that the ablation has."""
        logits = self.ablate(problems, heads)
        if logits.shape[1] == problems.answer.shape[1]:
            return self.judge(logits, problems)
        scored = self.scored(problems)
        return align(logits.argmax(-1), problems.answer, scored).verdict(problems.answer, scored)

    def call(self, what: str, function: Callable[..., Result], *given: Any) -> Result:
        """Calls the user's code; what it raises becomes one sentence."""
        try:
            return function(*given)
        except HeadwayError:
            raise
        except (Exception, SystemExit) as error:
            parts = [(each.source, each.answer) if isinstance(each, Problems) else (each,) for each in given]
            shapes = [str(tuple(t.shape)) for part in parts for t in part if isinstance(t, Tensor)]
            on = f" on tensors of shape {', '.join(shapes)}" if shapes else ""
            cause = f"({type(error).__name__}: {error}); call it by itself to see the traceback"
            raise HeadwayError(f"{what} of {self.subject.name} failed{on} {cause}") from error

    def bad_return(self, what: str, value: Any, wanted: str) -> HeadwayError:
        """Makes an error for a value that a user's function returned."""
        return HeadwayError(f"{what} of {self.subject.name} returned {describe(value)}{wanted}")

    def _call_for_logits(self, what: str, shape: torch.Size, function: Callable[..., Any], *given: Any) -> Tensor:
        logits = self.call(what, function, *given)
        self._check_logits(what, logits, shape)
        return logits.float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)  # an excluded token has minus infinity

    def _check_logits(self, what: str, logits: Any, shape: torch.Size) -> None:
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[: len(shape)] != shape:
            width = shape[1] if len(shape) > 1 else "answer"
            wanted = f"logits of shape ({shape[0]}, {width}, tokens), one row per answer token"
            raise self.bad_return(what, logits, f"; return {wanted}")
        if logits.isnan().any():
            raise HeadwayError(f"{what} of {self.subject.name} returned logits that are not numbers (NaN)")

    def attempt(self, what: str, function: Callable[..., Result], *given: Any) -> Result | None:
        """Calls an optional function of the subject. If it fails it counts as not given, and `broken` says why."""
        if what in self.broken:
            return None
        try:
            return self.call(what, function, *given)
        except HeadwayError as error:
            self.broken[what] = str(error)
            return None

    def _call_for_tokens(self, what: str, function: Callable[[Problems], Any] | None, problems: Problems) -> Any:
        if function is None or what in self.broken:
            return None
        if (kept := self.outputs.get((what, id(problems)))) is not None:
            return kept[1]
        tokens = self.write(what, function, problems)
        if tokens is not None and any(problems is each for each in (self.few, self.problems)):
            self.outputs[what, id(problems)] = problems, tokens
        return tokens

    def write(self, what: str, function: Callable[[Problems], Any], problems: Problems) -> Tensor | None:
        """Returns the tokens that a function writes; one row for many problems is repeated, as broadcasting does."""
        tokens = self.attempt(what, function, problems)
        if tokens is None and what in self.broken:
            return None
        rows, length = len(problems), problems.answer.shape[1]
        if isinstance(tokens, Tensor) and not tokens.is_floating_point():
            if tokens.dim() == 1:  # a class for each problem, or one answer
                tokens = tokens[:, None] if length == 1 and len(tokens) == rows else tokens[None]
            if tokens.dim() == 2 and len(tokens) == 1 and rows > 1:
                self.broadcast.add(what)
                tokens = tokens.expand(rows, -1)
        if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() != 2 or len(tokens) != rows:
            error = self.bad_return(what, tokens, f" for {rows} problems; return a row of tokens for each")
            self.broken[what] = str(error)
            return None
        return tokens.long().to(problems.answer.device)

    def _check_problems(self, what: str, given: Any) -> Problems:
        if not isinstance(given, Problems):
            raise self.bad_return(what, given, "; return headway.Problems")
        if (wrong := find_fault(given)) is not None:
            raise HeadwayError(f"{what} of {self.subject.name} {wrong}")
        return given

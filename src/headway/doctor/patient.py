"""A subject under examination: the same problems for every check, and the model's logits for them, computed once.

The user's model and functions are called only here, so that an error in them becomes one sentence that quotes it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.evaluation.intervals import Interval, wilson
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems

ROWS = 1_000
FEW = 200  # of these rows, for slow checks
ALONE = 20  # problems that are run one by one
SEED = 1_000  # no study draws its problems with it
TOLERANCE = 1e-4  # logits that differ by no more are equal up to rounding
LARGEST_LOGIT = 1e4  # replaces an infinite one
LEARNED = 0.95  # in-range accuracy above which a model has learned its task

Result = TypeVar("Result")


@dataclass(frozen=True)
class Patient:
    subject: Subject

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
        sets = self.call("sets", self.subject.sets)
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
        dtype = next((p.dtype for p in self.subject.model.parameters() if p.is_floating_point()), torch.float32)
        largest = float(self.logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT).abs().max())
        return max(TOLERANCE, 16 * torch.finfo(dtype).eps * largest)

    @property
    def answers_with_class(self) -> bool:
        return self.problems.answer.shape[1] == 1 and self.subject.start is None

    @property
    def decodes(self) -> bool:
        return self.subject.generate is not None and not self.answers_with_class

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
        runner = self.subject.runner
        pieces = [problems[rows] for rows in runner.pieces(problems)]
        if self.subject.decode is not None and self.subject.start is not None:
            return torch.cat([self.decode(some.source, self.decoder_input(some)) for some in pieces])
        return torch.cat([self._call_for_logits("the model", p.answer.shape, runner.run, p) for p in pieces])

    def decode(self, source: Tensor, written: Tensor) -> Float[Tensor, "row written token"]:
        """Computes the logits after each token that the decoder is given."""
        assert self.subject.decode is not None
        return self._call_for_logits("decode", written.shape, self.subject.decode, source, written)

    def generate(self, problems: Problems) -> Int[Tensor, "row written"]:
        """Decodes answers as the subject's own evaluation does."""
        return self._call_for_tokens("generate", self.subject.generate, problems)

    def generate_wide(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """Decodes answers, padded to the width of the right ones."""
        return widen(self.generate(problems), problems)

    def predict(self, problems: Problems) -> Int[Tensor, "row predicted"]:
        """Predicts tokens with the subject's own teacher-forced pass."""
        return self._call_for_tokens("forced", self.subject.forced, problems)

    def predict_whole(self, problems: Problems) -> Int[Tensor, "row answer"] | None:
        """Predicts tokens, if the subject has a teacher-forced pass that predicts every one."""
        forced = None if self.subject.forced is None else self.predict(problems)
        return forced if forced is not None and forced.shape == problems.answer.shape else None

    def decoder_input(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """Makes the decoder's input: the start token and all but the last token of the answer."""
        assert self.subject.start is not None
        start = torch.full_like(problems.answer[:, :1], self.subject.start)
        return torch.cat((start, problems.answer[:, :-1]), dim=1)

    @property
    def can_ablate(self) -> bool:
        return self.subject.ablate is not None or bool(self.subject.runner.width)

    def ablate(self, problems: Problems, heads: Collection[Head]) -> Float[Tensor, "row answer token"]:
        """Computes the logits with these heads ablated, as the subject's own study ablates them."""
        ablate, runner = self.subject.ablate, self.subject.runner
        if ablate is None:
            return self.call("the model", runner.logits, problems, runner.close_heads(heads))
        pieces = batches(problems)
        return torch.cat([self._call_for_logits("ablate", p.answer.shape, ablate, p, heads) for p in pieces])

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
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != shape:
            wanted = f"logits of shape ({shape[0]}, {shape[1]}, tokens), one row per answer token"
            raise self.bad_return(what, logits, f"; return {wanted}")
        if logits.isnan().any():
            raise HeadwayError(f"{what} of {self.subject.name} returned logits that are not numbers (NaN)")
        return logits.float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)  # an excluded token has minus infinity

    def _call_for_tokens(self, what: str, function: Callable[[Problems], Any] | None, problems: Problems) -> Tensor:
        assert function is not None
        tokens = self.call(what, function, problems)
        whole = isinstance(tokens, Tensor) and not tokens.is_floating_point()
        if not whole or tokens.dim() != 2 or len(tokens) != len(problems):
            raise self.bad_return(what, tokens, f" for {len(problems)} problems; return a row of tokens for each")
        return tokens.long().to(problems.answer.device)

    def _check_problems(self, what: str, given: Any) -> Problems:
        if not isinstance(given, Problems):
            raise self.bad_return(what, given, "; return headway.Problems")
        source, answer, scored, wrong = given.source, given.answer, given.scored, None
        if any(t.dim() != 2 or t.is_floating_point() for t in (source, answer)) or len(source) != len(answer):
            tables = f"{describe(source)} and {describe(answer)}"
            wrong = f"holds {tables}; it must hold rows of integers, as many answers as sources"
        elif scored is not None and (scored.dtype != torch.bool or scored.shape != answer.shape):
            one_each = f"one bool for every answer token, {tuple(answer.shape)}"
            wrong = f"has {describe(scored)} as scored; it must be {one_each}"
        elif len(given) < 2:
            wrong = f"has {len(given)} problems; at least 2 are needed"
        if wrong is not None:
            raise HeadwayError(f"{what} of {self.subject.name} {wrong}")
        return given


def widen(written: Int[Tensor, "row written"], problems: Problems) -> Int[Tensor, "row answer"]:
    """Pads what was written to the width of the right answers, with −1 where decoding has stopped."""
    length = problems.answer.shape[1]
    return F.pad(written[:, :length], (0, max(0, length - written.shape[1])), value=-1)


def describe(value: Any) -> str:
    """Describes a returned value by its type and shape."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return type(value).__name__

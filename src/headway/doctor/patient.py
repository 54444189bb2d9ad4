"""A subject under examination: the same problems for every check, and the model's logits for them, computed once.

Everything that is the user's, model and functions, is called here, so that what goes wrong in it becomes one sentence
with the user's own error in it.
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
FEW = 200  # of them, where a check is slow
ALONE = 20  # problems that are asked one by one
SEED = 1_000  # of problems that no study draws
SAME = 1e-4  # logits that differ by no more are the same up to rounding, at least
SURE = 1e4  # in the place of an infinite logit
LEARNED = 0.95  # the accuracy in range above which a model has learned its task

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
        """The first of them, one by one."""
        return [self.few[row : row + 1] for row in range(min(ALONE, len(self.few)))]

    @cached_property
    def sets(self) -> dict[str, Problems]:
        """What is evaluated: the subject's own sets, or the problems above."""
        if self.subject.sets is None:
            return {"examples": self.problems}
        sets = self.call("sets", self.subject.sets)
        if not isinstance(sets, Mapping) or not sets:
            raise self.wrong("sets", sets, "; return Problems by name")
        return {str(name): self._check_problems(f"the set {name}", problems) for name, problems in sets.items()}

    @property
    def trained_on(self) -> list[Problems]:
        """The training problems that were given, in as many tables as they have lengths."""
        given = self.subject.trained_on
        return [] if given is None else [given] if isinstance(given, Problems) else list(given)

    @cached_property
    def same(self) -> float:
        """Logits that differ by no more are the same up to the rounding of the model's numbers."""
        exact = next((p.dtype for p in self.subject.model.parameters() if p.is_floating_point()), torch.float32)
        return max(SAME, 16 * torch.finfo(exact).eps * float(self.logits.clamp(-SURE, SURE).abs().max()))

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
        """Of the accuracy."""
        return wilson(int(self.right.sum()), len(self.right))

    def scored(self, problems: Problems) -> Bool[Tensor, "row answer"]:
        """Which answer tokens count."""
        return torch.ones_like(problems.answer, dtype=torch.bool) if problems.scored is None else problems.scored

    def judge(self, logits: Tensor, problems: Problems) -> Bool[Tensor, " row"]:
        """Which problems are right, as the subject counts."""
        right = self.call("correct", self.subject.correct, logits, problems)
        if not isinstance(right, Tensor) or right.shape != (len(problems),):
            raise self.wrong("correct", right, f" for {len(problems)} problems; return one verdict a problem")
        return right.bool()

    def judge_tokens(self, tokens: Int[Tensor, "row answer"], problems: Problems) -> Bool[Tensor, " row"]:
        """The same for answers given as tokens."""
        vocabulary = self.logits.shape[-1]
        return self.judge(F.one_hot(tokens.clamp(0, vocabulary - 1), vocabulary).float(), problems)

    def run(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """The logits of every answer token, each given the right ones before it."""
        runner = self.subject.runner
        pieces = [problems[rows] for rows in runner.pieces(problems)]
        if self.subject.decode is not None and self.subject.start is not None:
            return torch.cat([self.decode(some.source, self.decoder_input(some)) for some in pieces])
        return torch.cat([self._call_for_logits("the model", p.answer.shape, runner.run, p) for p in pieces])

    def decode(self, source: Tensor, written: Tensor) -> Float[Tensor, "row written token"]:
        """The logits after each token that the decoder was given."""
        assert self.subject.decode is not None
        return self._call_for_logits("decode", written.shape, self.subject.decode, source, written)

    def generate(self, problems: Problems) -> Int[Tensor, "row written"]:
        """The answers as the subject's own evaluation writes them."""
        return self._call_for_tokens("generate", self.subject.generate, problems)

    def generate_wide(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """The same, as wide as the right answers."""
        return widen(self.generate(problems), problems)

    def predict(self, problems: Problems) -> Int[Tensor, "row predicted"]:
        """The tokens that the subject's own teacher-forced pass predicts."""
        return self._call_for_tokens("forced", self.subject.forced, problems)

    def predict_whole(self, problems: Problems) -> Int[Tensor, "row answer"] | None:
        """The same, where it has such a pass that predicts every token."""
        forced = None if self.subject.forced is None else self.predict(problems)
        return forced if forced is not None and forced.shape == problems.answer.shape else None

    def decoder_input(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """What the decoder is given: the start token and all but the last of the answer."""
        assert self.subject.start is not None
        start = torch.full_like(problems.answer[:, :1], self.subject.start)
        return torch.cat((start, problems.answer[:, :-1]), dim=1)

    @property
    def can_ablate(self) -> bool:
        return self.subject.ablate is not None or bool(self.subject.runner.width)

    def ablate(self, problems: Problems, heads: Collection[Head]) -> Float[Tensor, "row answer token"]:
        """The logits with these heads closed, as the subject's own study closes them."""
        ablate, runner = self.subject.ablate, self.subject.runner
        if ablate is None:
            return self.call("the model", runner.logits, problems, runner.close_heads(heads))
        pieces = batches(problems)
        return torch.cat([self._call_for_logits("ablate", p.answer.shape, ablate, p, heads) for p in pieces])

    def call(self, what: str, function: Callable[..., Result], *given: Any) -> Result:
        """What the user's own code returns; what it raises becomes one sentence."""
        try:
            return function(*given)
        except HeadwayError:
            raise
        except (Exception, SystemExit) as error:
            parts = [(each.source, each.answer) if isinstance(each, Problems) else (each,) for each in given]
            shapes = [str(tuple(t.shape)) for part in parts for t in part if isinstance(t, Tensor)]
            on = f" on tensors of shape {', '.join(shapes)}" if shapes else ""
            said = f"({type(error).__name__}: {error}); call it by itself to see where"
            raise HeadwayError(f"{what} of {self.subject.name} failed{on} {said}") from error

    def wrong(self, what: str, value: Any, wanted: str) -> HeadwayError:
        """An error for what a user's function returned."""
        return HeadwayError(f"{what} of {self.subject.name} returned {describe(value)}{wanted}")

    def _call_for_logits(self, what: str, shape: torch.Size, function: Callable[..., Any], *given: Any) -> Tensor:
        logits = self.call(what, function, *given)
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != shape:
            wanted = f"logits of shape ({shape[0]}, {shape[1]}, tokens), a row of them for every answer token"
            raise self.wrong(what, logits, f"; return {wanted}")
        if logits.isnan().any():
            raise HeadwayError(f"{what} of {self.subject.name} returned logits that are no numbers (NaN)")
        return logits.float().clamp(-SURE, SURE)  # tokens that cannot be may have a logit of minus infinity

    def _call_for_tokens(self, what: str, function: Callable[[Problems], Any] | None, problems: Problems) -> Tensor:
        assert function is not None
        tokens = self.call(what, function, problems)
        whole = isinstance(tokens, Tensor) and not tokens.is_floating_point()
        if not whole or tokens.dim() != 2 or len(tokens) != len(problems):
            raise self.wrong(what, tokens, f" for {len(problems)} problems; return a row of tokens for each")
        return tokens.long().to(problems.answer.device)

    def _check_problems(self, what: str, given: Any) -> Problems:
        if not isinstance(given, Problems):
            raise self.wrong(what, given, "; return headway.Problems")
        source, answer, scored, wrong = given.source, given.answer, given.scored, None
        if any(t.dim() != 2 or t.is_floating_point() for t in (source, answer)) or len(source) != len(answer):
            tables = f"{describe(source)} and {describe(answer)}"
            wrong = f"holds {tables}; it takes rows of whole numbers, as many answers as sources"
        elif scored is not None and (scored.dtype != torch.bool or scored.shape != answer.shape):
            one_each = f"one bool for every answer token, {tuple(answer.shape)}"
            wrong = f"has {describe(scored)} as scored; it takes {one_each}"
        elif len(given) < 2:
            wrong = f"has {len(given)} problems; at least 2 are needed"
        if wrong is not None:
            raise HeadwayError(f"{what} of {self.subject.name} {wrong}")
        return given


def widen(written: Int[Tensor, "row written"], problems: Problems) -> Int[Tensor, "row answer"]:
    """What was written, as wide as the right answers: −1 stands where decoding has stopped."""
    length = problems.answer.shape[1]
    return F.pad(written[:, :length], (0, max(0, length - written.shape[1])), value=-1)


def describe(value: Any) -> str:
    """What a user's function returned, by its type and shape."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return type(value).__name__

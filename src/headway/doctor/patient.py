"""A subject under examination: the same problems for every check, and what the model says to them, computed once.

Everything that is the user's own, model and functions, is called here, so that what goes wrong in it is told in one
sentence with the user's own error in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.models import Head
from headway.subjects.subject import Subject
from headway.tasks import Problems

ROWS = 1_000
FEW = 200
"""of them, where a check is slow"""
SEED = 1_000
"""of problems that no study draws"""
SAME = 1e-4
"""logits that differ by no more are the same up to rounding, at least"""
SURE = 1e4
"""in the place of an infinite logit"""


@dataclass(frozen=True)
class Patient:
    subject: Subject

    @cached_property
    def problems(self) -> Problems:
        drawn = self._problems("examples", self.asked("examples", self.subject.draw, ROWS, SEED, False))
        return drawn[: self.subject.runner.rows(drawn)]

    @cached_property
    def few(self) -> Problems:
        return self.problems[:FEW]

    @cached_property
    def sets(self) -> dict[str, Problems]:
        """What is evaluated: the subject's own sets, or the problems above."""
        if self.subject.sets is None:
            return {"examples": self.problems}
        sets = self.asked("sets", self.subject.sets)
        if not isinstance(sets, Mapping) or not sets:
            raise HeadwayError(f"sets of {self.subject.name} returned {shown(sets)}; return Problems by name")
        return {str(name): self._problems(f"the set {name}", problems) for name, problems in sets.items()}

    @cached_property
    def same(self) -> float:
        """Logits that differ by no more are the same up to the rounding of the model's numbers."""
        exact = next((p.dtype for p in self.subject.model.parameters() if p.is_floating_point()), torch.float32)
        return max(SAME, 16 * torch.finfo(exact).eps * float(self.logits.clamp(-SURE, SURE).abs().max()))

    @property
    def answers_with_class(self) -> bool:
        return self.problems.answer.shape[1] == 1 and self.subject.start is None

    @cached_property
    def logits(self) -> Float[Tensor, "row answer token"]:
        return self.told(self.problems)

    @cached_property
    def right(self) -> Bool[Tensor, " row"]:
        return self.judged(self.logits, self.problems)

    def scored(self, problems: Problems) -> Bool[Tensor, "row answer"]:
        """Which answer tokens count."""
        return torch.ones_like(problems.answer, dtype=torch.bool) if problems.scored is None else problems.scored

    def exact(self, tokens: Int[Tensor, "row answer"], problems: Problems) -> float:
        """The share of these answers that are right."""
        return float(self.judged(one_hot(tokens, self.logits.shape[-1]), problems).float().mean())

    def judged(self, logits: Tensor, problems: Problems) -> Bool[Tensor, " row"]:
        right = self.asked("correct", self.subject.correct, logits, problems)
        if not isinstance(right, Tensor) or right.shape != (len(problems),):
            raise HeadwayError(
                f"correct of {self.subject.name} returned {shown(right)} for {len(problems)} problems; return one "
                "verdict a problem"
            )
        return right.bool()

    def told(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """The logits of every answer token, each given the right ones before it."""
        return torch.cat([self._pass(problems[rows]) for rows in self.subject.runner.pieces(problems)])

    def after(self, source: Tensor, written: Tensor) -> Float[Tensor, "row written token"]:
        """The logits after each token that the decoder was given."""
        assert self.subject.decode is not None
        return self._checked("decode", self.asked("decode", self.subject.decode, source, written), written.shape)

    def generated(self, problems: Problems) -> Int[Tensor, "row written"]:
        """The answers as the subject's own evaluation writes them."""
        assert self.subject.generate is not None
        return self._tokens("generate", self.asked("generate", self.subject.generate, problems), problems)

    def forced(self, problems: Problems) -> Int[Tensor, "row predicted"] | None:
        """The tokens that the subject's own one pass predicts, where it has one."""
        if self.subject.forced is None:
            return None
        return self._tokens("forced", self.asked("forced", self.subject.forced, problems), problems)

    def written(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """What the decoder is given: the start token and all but the last of the answer."""
        assert self.subject.start is not None
        start = torch.full_like(problems.answer[:, :1], self.subject.start)
        return torch.cat((start, problems.answer[:, :-1]), dim=1)

    @property
    def can_ablate(self) -> bool:
        return self.subject.ablate is not None or bool(self.subject.runner.width)

    def without(self, problems: Problems, heads: Collection[Head]) -> Float[Tensor, "row answer token"]:
        """The logits with these heads closed, as the subject's own study closes them."""
        subject = self.subject
        if subject.ablate is not None:
            return torch.cat([
                self._checked("ablate", self.asked("ablate", subject.ablate, some, heads), some.answer.shape)
                for some in batches(problems)
            ])  # fmt: skip
        return self.asked("the model", subject.runner.logits, problems, subject.runner.close(heads))

    def asked(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """What the user's own code returns; what it raises becomes one sentence."""
        try:
            with torch.no_grad():
                return function(*given)
        except HeadwayError:
            raise
        except (Exception, SystemExit) as error:
            shapes = [tuple(each.shape) for each in given if isinstance(each, Tensor)]
            shapes += [
                tuple(t.shape) for each in given if isinstance(each, Problems) for t in (each.source, each.answer)
            ]
            on = f" on tensors of shape {', '.join(map(str, shapes))}" if shapes else ""
            raise HeadwayError(
                f"{what} of {self.subject.name} failed{on} ({type(error).__name__}: {error}); call it by itself to see "
                "where"
            ) from error

    def _pass(self, problems: Problems) -> Tensor:
        if self.subject.decode is not None and self.subject.start is not None:
            return self.after(problems.source, self.written(problems))
        logits = self.asked("the model", self.subject.runner.run, problems)
        return self._checked("the model", logits, problems.answer.shape)

    def _checked(self, what: str, logits: Any, shape: torch.Size) -> Tensor:
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != shape:
            raise HeadwayError(
                f"{what} of {self.subject.name} returned {shown(logits)}; return logits of shape "
                f"({shape[0]}, {shape[1]}, tokens), a row of them for every answer token"
            )
        if logits.isnan().any():
            raise HeadwayError(f"{what} of {self.subject.name} returned logits that are no numbers (NaN)")
        return logits.float().clamp(-SURE, SURE)  # tokens that cannot be may have a logit of minus infinity

    def _tokens(self, what: str, tokens: Any, problems: Problems) -> Tensor:
        whole = isinstance(tokens, Tensor) and not tokens.is_floating_point()
        if not whole or tokens.dim() != 2 or len(tokens) != len(problems):
            raise HeadwayError(
                f"{what} of {self.subject.name} returned {shown(tokens)} for {len(problems)} problems; return a row "
                "of tokens for each"
            )
        return tokens.long().to(problems.answer.device)

    def _problems(self, what: str, given: Any) -> Problems:
        if not isinstance(given, Problems):
            raise HeadwayError(f"{what} of {self.subject.name} returned {shown(given)}; return headway.Problems")
        tables = (given.source, given.answer)
        if any(t.dim() != 2 or t.is_floating_point() for t in tables) or len(given.source) != len(given.answer):
            raise HeadwayError(
                f"{what} of {self.subject.name} holds {shown(given.source)} and {shown(given.answer)}; it takes rows "
                "of whole numbers, as many answers as sources"
            )
        if given.scored is not None and (given.scored.dtype != torch.bool or given.scored.shape != given.answer.shape):
            raise HeadwayError(
                f"{what} of {self.subject.name} has {shown(given.scored)} as scored; it takes one bool for every "
                f"answer token, {tuple(given.answer.shape)}"
            )
        if len(given) < 2:
            raise HeadwayError(f"{what} of {self.subject.name} has {len(given)} problems; at least 2 are needed")
        return given


def largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """Answers as logits that say nothing else."""
    return torch.nn.functional.one_hot(tokens.clamp(0, vocabulary - 1), vocabulary).float()


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return type(value).__name__

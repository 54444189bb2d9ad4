"""A subject under examination: the same problems for every check, and what the model says to them, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.subjects.subject import Subject
from headway.tasks import Problems

ROWS = 1_000
FEW = 200
"""of them, where a check is slow"""
SEED = 1_000
"""of problems that no study draws"""
SAME = 1e-4
"""logits that differ by no more are the same up to rounding"""


@dataclass(frozen=True)
class Patient:
    subject: Subject

    @cached_property
    def problems(self) -> Problems:
        return self.subject.examples(ROWS, SEED, False)

    @cached_property
    def sets(self) -> dict[str, Problems]:
        """What is evaluated: the subject's own sets, or the problems above."""
        return {"examples": self.problems} if self.subject.sets is None else self.subject.sets()

    @property
    def answers_with_class(self) -> bool:
        return self.problems.answer.shape[1] == 1 and self.subject.start is None

    @cached_property
    def logits(self) -> Float[Tensor, "row answer token"]:
        return self.told(self.problems)

    @cached_property
    def right(self) -> Bool[Tensor, " row"]:
        return self.subject.correct(self.logits, self.problems)

    @torch.no_grad()
    def told(self, problems: Problems) -> Float[Tensor, "row answer token"]:
        """The logits of every answer token, each given the right ones before it."""
        return torch.cat([self._pass(some) for some in batches(problems)])

    def written(self, problems: Problems) -> Int[Tensor, "row answer"]:
        """What the decoder is given: the start token and all but the last of the answer."""
        assert self.subject.start is not None
        start = torch.full_like(problems.answer[:, :1], self.subject.start)
        return torch.cat((start, problems.answer[:, :-1]), dim=1)

    def _pass(self, problems: Problems) -> Tensor:
        try:
            if self.subject.decode is not None:
                return self.subject.decode(problems.source, self.written(problems))
            return self.subject.model(problems.source, problems.answer)
        except Exception as error:  # whatever a user's model may raise
            shapes = f"{tuple(problems.source.shape)}, {tuple(problems.answer.shape)}"
            raise HeadwayError(
                f"the model of {self.subject.name} failed on problems of shape {shapes} "
                f"({type(error).__name__}: {error})"
            ) from error

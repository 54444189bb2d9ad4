"""Shares of answers: how often each answer is given, and whether one of them is given to nearly every problem.

An accuracy says little where all answers are the same: on balanced classes a constant answer is right half the time,
and where nearly every right answer is the same, it is right nearly always.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from headway.evaluation.verdicts import best_constant
from headway.tasks import Problems

NEARLY = 0.95
"""With a larger share for one answer, at most one problem in twenty is distinguished from the others: on two balanced
classes the accuracy is then at most 0.55."""
BEYOND = 0.1
"""by how much that share must exceed the answer's share among the right answers; otherwise the problems are alike"""
LISTED, TOKENS = 5, 8
"""how many answers are listed, and how many tokens of each"""

Constancy = Literal["no", "nearly", "constant"]


@dataclass(frozen=True)
class AnswerShare:
    """How often an answer is given, and how often it is right."""

    answer: tuple[int, ...]
    given: float
    right: float

    @property
    def text(self) -> str:
        more = " …" if len(self.answer) > TOKENS else ""
        return " ".join(map(str, self.answer[:TOKENS])) + more

    def to_json(self) -> dict[str, str | float]:
        return {"answer": self.text, "given": self.given, "right": self.right}


@dataclass(frozen=True)
class AnswerShares:
    """The answers to a set of problems: the commonest ones, and the commonest token of long answers."""

    commonest: tuple[AnswerShare, ...]
    different: int  # how many different answers were given
    varied: bool  # whether the right answers differ
    chance: float  # the accuracy of always giving the commonest right answer
    token: AnswerShare | None = None  # the commonest token, where answers have several

    @property
    def constancy(self) -> Constancy:
        """Whether one answer was given to every problem, or to nearly every one, although the right ones differ."""
        first = self.commonest[0]
        if not self.varied:
            return "no"
        if self.different == 1:
            return "constant"
        for each in (first, self.token):
            if each is not None and each.given >= NEARLY and each.given > each.right + BEYOND:
                return "nearly"
        return "no"

    def describe(self) -> str:
        """Describes a constant or nearly constant answer in words."""
        first = self.commonest[0]
        if self.constancy == "constant":
            return f"every answer is '{first.text}'"
        if first.given >= NEARLY or self.token is None:
            return f"{first.given:.1%} of the answers are '{first.text}', which is right for {first.right:.1%}"
        token = self.token
        return f"{token.given:.1%} of the answers' tokens are '{token.text}', {token.right:.1%} of the right ones"


def share_answers(written: Int[Tensor, "row answer"], problems: Problems) -> AnswerShares:
    """Counts the answers to these problems; tokens that do not count are left aside."""
    written, answer = written.long(), problems.answer.long()
    if problems.scored is not None:
        written, answer = (each.masked_fill(~problems.scored, -1) for each in (written, answer))
    different, counts = written.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:LISTED]
    shares = tuple(
        AnswerShare(
            tuple(different[n].tolist()),
            int(counts[n]) / len(problems),
            float((answer == different[n]).all(1).double().mean()),
        )
        for n in order
    )
    varied = bool((answer != answer[:1]).any())
    token = None if answer.shape[1] == 1 else _share_token(written, answer)
    chance = best_constant(Problems(problems.source, answer))
    return AnswerShares(shares, len(different), varied, chance, token)


def _share_token(written: Tensor, answer: Tensor) -> AnswerShare:
    counted = answer >= 0
    tokens = written[counted]
    different, counts = tokens.unique(return_counts=True)
    token = different[counts.argmax()]
    right = float((answer[counted] == token).double().mean())
    return AnswerShare((int(token),), int(counts.max()) / max(1, len(tokens)), right)


def mark_answered(logits: Tensor) -> Int[Tensor, "row answer"]:
    """Returns the likeliest tokens; −1 where the logits are not numbers."""
    return logits.argmax(-1).masked_fill(logits.isnan().any(-1), -1)

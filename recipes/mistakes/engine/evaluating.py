"""How a lab evaluates its adder: the teacher-forced pass, decoding, and the accuracy it reports. Each function does
what the plan says, in the lab's style."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway import Problems

from .models import START, Adder, causal_mask
from .plan import Plan, Style
from .training import decoder_input

BATCH = 64
TEMPERATURE = 2.0


@dataclass(frozen=True)
class Evaluation:
    model: Adder
    plan: Plan
    style: Style

    def call(self, source: Tensor, written: Tensor, masked: bool = True) -> Tensor:
        """Calls the model as its style wants to be called; `masked` says whether the caller passes the mask."""
        given = (source, written) if self.model.batch_first else (source.T, written.T)
        if self.style.mask == "argument" and masked:
            logits = self.model(*given, mask=causal_mask(written.shape[1]))
        else:
            logits = self.model(*given)
        return logits if self.model.batch_first else logits.transpose(0, 1)

    def decode(self, source: Tensor, written: Tensor) -> Tensor:
        """Returns the logits after each token, for the doctor."""
        return self.call(source, written, masked=self.style.decode == "full" and self.plan.recipe.masked)

    def read(self, problems: Problems) -> Tensor:
        """Returns the logits of the teacher-forced pass."""
        return self.call(problems.source, decoder_input(problems.answer, self.plan.recipe.start), self.plan.masked)

    @property
    def first(self) -> int:
        """The token in front of an answer, where there is one."""
        return START if self.plan.recipe.start is None else self.plan.recipe.start

    def force(self, problems: Problems) -> Tensor:
        """Returns the predictions of the teacher-forced pass."""
        if self.style.forced == "one more" and self.plan.recipe.start is not None:  # nothing is cut off at the end
            start = torch.full_like(problems.answer[:, :1], self.first)
            written = torch.cat((start, problems.answer), dim=1)
            predicted = self.call(problems.source, written, self.plan.masked).argmax(-1)
        else:
            predicted = self.read(problems).argmax(-1)
        if self.plan.compares == "first row":
            predicted = predicted[0].expand_as(predicted)
        if self.style.forced == "start first":
            given = self.plan.recipe.start is None
            front = problems.answer[:, :1] if given else torch.full_like(problems.answer[:, :1], self.first)
            predicted = torch.cat((front, predicted), dim=1)
        return predicted

    def begin(self, problems: Problems) -> Tensor:
        """Returns the tokens that decoding begins with."""
        first, start = problems.answer[:, :1], torch.full_like(problems.answer[:, :1], self.first)
        return {
            "start": lambda: start,
            "zero": lambda: torch.zeros_like(first),
            "commonest": lambda: torch.full_like(first, int(first.mode(0).values)),
            "given": lambda: first,
            "fed": lambda: torch.cat((start, first), dim=1),
            "other": lambda: torch.zeros_like(first),
        }[self.plan.begins]()

    def choose(self, logits: Tensor) -> Tensor:
        """Returns the next token."""
        if not self.plan.samples:
            return logits.argmax(-1, keepdim=True)
        return torch.multinomial((logits / TEMPERATURE).softmax(-1), 1)

    @torch.no_grad()
    def write(self, problems: Problems) -> Tensor:
        """Decodes one batch."""
        written, length = self.begin(problems), problems.answer.shape[1]
        has_start = self.plan.begins in ("start", "fed", "other")
        wanted = length + has_start - (self.plan.output != "answer")
        while written.shape[1] < wanted:
            masked = self.style.decode != "one line" and self.plan.masked
            written = torch.cat((written, self.choose(self.call(problems.source, written, masked)[:, -1])), dim=1)
        return written[:, 1:] if has_start and self.plan.output != "keeps start" else written

    def generate(self, problems: Problems) -> Tensor:
        """Decodes answers, in batches where the style or the plan has them."""
        if not (self.style.batches or self.plan.begins == "commonest"):
            return self.write(problems)
        return torch.cat([self.write(problems[at : at + BATCH]) for at in range(0, len(problems), BATCH)])

    @property
    def predict(self) -> Callable[[Problems], Tensor]:
        """What the reported accuracy is computed from."""
        return self.force if self.style.score == "forced" else self.generate

    def score(self, problems: Problems) -> float:
        """Computes the reported accuracy."""
        predicted, answer = self.predict(problems), problems.answer
        if self.style.score == "forced":
            if self.style.forced == "start first" and self.plan.recipe.start is not None:
                predicted = predicted[:, 1:]
            if self.style.forced != "start first" and self.plan.recipe.start is None:
                answer = answer[:, 1:]  # what was given is not asked for
        width = min(predicted.shape[1], answer.shape[1])
        predicted, answer = predicted[:, :width], answer[:, :width]
        if self.plan.skips_first:
            predicted, answer = predicted[:, 1:], answer[:, 1:]
        same, counted = predicted == answer, answer != 0
        if self.plan.over_tokens:
            value = same[counted].float().mean() if self.plan.skips_zero else same.float().mean()
        else:
            value = (same | ~counted if self.plan.skips_zero else same).all(1).float().mean()
        return 100 * float(value) if self.style.percent else float(value)

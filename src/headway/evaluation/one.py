"""Answers of one model, as fast as this machine gives them.

On a CPU with bfloat16 instructions a pass in bfloat16 decides every problem whose answer it finds right by a wide
margin (verdicts.py). All others, every wrong one among them, are decided in float32. The first problems are answered in
both precisions: where bfloat16 moves a margin by more than a share of the margin that counts as wide, or leaves too
many problems undecided, everything is decided in float32.
"""

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.evaluation.examples import batch_slices
from headway.evaluation.verdicts import NARROW, margins
from headway.machine import cpu_has_bfloat16, map_in_threads
from headway.models import Model
from headway.tasks import Problems

MOST_MOVED = NARROW[torch.bfloat16] / 8  # of a margin, on the problems that are answered in both precisions
MOST_UNDECIDED = 0.25  # of the problems; above that the pass in bfloat16 costs more than it saves
COMPARED = 1_000  # problems answered in both precisions


class OneModel:
    """A model that answers chunks of problems, each token given the right tokens before it."""

    def __init__(self, model: Model, fast: bool | None = None) -> None:
        """`fast` asks for bfloat16, which needs a float32 model on a CPU; by default where the CPU has it."""
        weight = next(model.parameters())
        usable = weight.device.type == "cpu" and weight.dtype == torch.float32
        self.model, self.device = model, weight.device
        self.fast: Model | None = None
        if usable and (cpu_has_bfloat16() if fast is None else fast):
            self.fast = copy.deepcopy(model).to(torch.bfloat16)
        self.compared = False

    def answers(self, chunk: Problems, done: Callable[[int], None]) -> Int[Tensor, "1 row answer"]:
        """Returns the answers to a chunk; calls `done` with the number of problems answered."""
        if self.fast is not None and not self.compared:
            self._compare(self.fast, chunk)

        @torch.inference_mode()  # other threads do not inherit it
        def answer(rows: slice) -> Tensor:
            written = self._answer(chunk[rows])
            done(len(written))
            return written

        return torch.cat(map_in_threads(answer, batch_slices(chunk), self.device))[None]

    def _answer(self, problems: Problems) -> Int[Tensor, "row answer"]:
        if self.fast is None:
            return self.model(problems.source, problems.answer).argmax(-1)
        logits = self.fast(problems.source, problems.answer).float()
        written, undecided = logits.argmax(-1), ~(margins(logits, problems) >= NARROW[torch.bfloat16])
        if undecided.any():
            again = problems[undecided.nonzero()[:, 0]]
            written[undecided] = self.model(again.source, again.answer).argmax(-1)
        return written

    def _compare(self, fast: Model, chunk: Problems) -> None:
        """Gives bfloat16 up where it moves margins too far or decides too little."""
        self.compared, some = True, chunk[slice(0, COMPARED)]
        quick, exact = (self._margins(model, some) for model in (fast, self.model))
        undecided = ~(quick >= NARROW[torch.bfloat16])
        moved = (quick - exact).abs()
        if not float(moved.max()) <= MOST_MOVED or float(undecided.float().mean()) > MOST_UNDECIDED:
            self.fast = None

    @torch.inference_mode()
    def _margins(self, model: Model, problems: Problems) -> Float[Tensor, " row"]:
        pieces = [problems[rows] for rows in batch_slices(problems)]
        return torch.cat([margins(model(piece.source, piece.answer).float(), piece) for piece in pieces])

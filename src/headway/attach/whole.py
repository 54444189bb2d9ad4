"""ReaderRunner: runs a user's model as it is, whole and without hooks, through the function that reads its problems.

A piece that runs out of memory is halved, and so are all that follow.
"""

import sys
from collections.abc import Callable

import torch
from torch import nn

from headway.attach.readers import read_module
from headway.evaluation.examples import batch_slices
from headway.evaluation.verdicts import Logits
from headway.machine import is_out_of_memory
from headway.models import Gates, Model, Trace
from headway.subjects.runner import Result, Runner
from headway.subjects.subject import Reader, Subject
from headway.tasks import Problems


class ReaderRunner(Runner):
    """Runs a user's model with no head closed, in pieces that fit the machine."""

    def __init__(self, model: nn.Module, reader: Reader, name: str = "") -> None:
        super().__init__(model, name or type(model).__name__)
        self.reader = reader
        self.most: int | None = None
        """limit on the problems in one pass, after memory ran out"""

    def run(self, problems: Problems, gates: Gates | None = None, trace: Trace | None = None) -> Logits:
        return self.reader(self.model, problems.source, problems.answer)

    def pieces(self, problems: Problems) -> list[slice]:
        return batch_slices(problems, self.most)

    def map_pieces(self, work: Callable[[slice], Result], problems: Problems) -> list[Result]:
        done, waiting = [], self.pieces(problems)
        while waiting:
            piece = waiting.pop(0)
            try:
                done.append(work(piece))
            except (RuntimeError, MemoryError) as error:
                rows = piece.stop - piece.start
                if rows == 1 or not is_out_of_memory(error):
                    raise
                self.shrink(rows // 2)
                rest = self.pieces(problems[piece.start :])
                waiting = [slice(each.start + piece.start, each.stop + piece.start) for each in rest]
        return done

    def shrink(self, rows: int) -> None:
        """Runs at most so many problems at a time from now on."""
        self.most = rows
        print(f"out of memory; continuing with {rows} problems at a time", file=sys.stderr)


def reader_of_subject(subject: Subject) -> Reader:
    """Returns the function that reads a subject's problems: its own, or one that calls `decode`, or the model."""
    decode, start = subject.decode, subject.start
    if subject.reader is None and isinstance(subject.model, Model):
        return lambda model, source, answer: model(source, answer)
    if subject.reader is not None or decode is None or start is None:
        return subject.reader or read_module

    def read(model: nn.Module, source: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        return decode(source, torch.cat((torch.full_like(answer[:, :1], start), answer[:, :-1]), dim=1))

    return read

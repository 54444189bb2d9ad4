"""Chooses the problems to evaluate on: every possible one, or fresh ones, in pieces that fit the machine."""

import math
from collections.abc import Iterator

import torch

from headway.errors import HeadwayError
from headway.tasks import Problems, Task

CPU_TOKENS = 6_000  # in a batch: as many as stay in the caches of a core
GPU_TOKENS = 250_000
CHUNK_TOKENS = 800_000  # in a chunk: as many as are drawn and counted at a time
MOST_LISTED = 10**9


def number_of_problems(task: Task, wanted_by: str) -> int:
    """Returns how many problems there are; raises where they are too many to enumerate."""
    count = task.count
    if count is None or count > MOST_LISTED:
        how_many = "too many" if count is None else f"about 10^{round(math.log10(count))}"
        raise HeadwayError(f"{task.name} has {how_many} problems, more than {wanted_by} can enumerate; leave it out")
    return count


def list_problems(task: Task, device: torch.device) -> Iterator[Problems]:
    """Yields every possible problem, in chunks."""
    number_of_problems(task, "`all`")
    yield from task.every(_chunk_rows(task, task.lengths[1]), device)


def sample_problems(
    task: Task, examples: int, *, seed: int, length: int | None, probe: str, device: torch.device
) -> Iterator[Problems]:
    """Yields fresh problems in chunks: of one length, or evenly over the training lengths."""
    shortest, longest = (length, length) if length is not None else task.lengths
    lengths = range(shortest, longest + 1)
    each, over = divmod(examples, len(lengths))
    for number, tokens in enumerate(lengths):
        wanted, rows = each + (number < over), _chunk_rows(task, tokens)
        for first in range(0, wanted, rows):
            yield task.testing(seed, min(rows, wanted - first), probe=probe, length=tokens, first=first, device=device)


def batches(problems: Problems) -> Iterator[Problems]:
    """Splits a chunk into batches of one forward pass each."""
    return (problems[rows] for rows in batch_slices(problems))


def batch_slices(problems: Problems, most: int | None = None) -> list[slice]:
    """Returns the rows of each of those batches, at most `most` in one."""
    rows, count = min(_batch_rows(problems), most or len(problems) or 1), len(problems)
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]


def even_pieces(problems: Problems) -> list[slice]:
    """Splits rows into forward passes of nearly equal size, the same number for every thread."""
    workers = torch.get_num_threads() if problems.source.device.type == "cpu" else 1
    pieces = workers * max(1, math.ceil(len(problems) / (workers * _batch_rows(problems))))
    rows = math.ceil(len(problems) / pieces)
    return [slice(start, start + rows) for start in range(0, len(problems), rows)]


def _batch_rows(problems: Problems) -> int:
    tokens = CPU_TOKENS if problems.source.device.type == "cpu" else GPU_TOKENS
    return max(1, tokens // (problems.source.shape[1] + problems.answer.shape[1]))


def _chunk_rows(task: Task, length: int) -> int:
    """Returns an even number of rows, so that pairs stay together."""
    return 2 * max(1, CHUNK_TOKENS // (2 * (task.source_tokens(length) + task.answer_tokens(length))))

"""Problems of any length for a subject, from a task or a user's function of a length, a number of rows and a seed.

What a user gives is checked here when the Subject is made; what a function returns is checked where it is drawn for a
study (lengths/drawn.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.tasks import Problems, Task, create_task, options_for_lengths

Examples = Callable[[int, int, bool], Problems]
"""Called with a count, a seed and whether to draw only held-out problems; returns the problems."""
ProblemsOfLength = Callable[[int, int, int], Problems]
"""Called with a length, a number of rows and a seed; returns the problems."""
FORM = "a function of a length, a number of rows and a seed that returns headway.Problems"


def find_problems(problems: Any, probes: Any, trained: Any) -> tuple[Any, tuple[int, int] | None]:
    """Checks what a Subject says about lengths; returns its function or task, and its training lengths."""
    if trained is not None:
        trained = check_trained(trained)
    if not isinstance(probes, Mapping) or not all(isinstance(n, str) and callable(p) for n, p in probes.items()):
        raise HeadwayError(f"probes must map names to functions: each is {FORM}")
    if problems is None:
        if probes:
            raise HeadwayError(f"probes are for studies of length, which need problems= as well: {FORM}")
        return None, trained
    if isinstance(problems, str):
        problems = create_task(problems, options_for_lengths(problems, trained))
    if isinstance(problems, type) or not (callable(problems) or isinstance(problems, Task)):
        shown = problems.__name__ if isinstance(problems, type) else type(problems).__name__
        raise HeadwayError(f"problems is {shown}; give {FORM}, or the name of a task such as 'sortedness'")
    if isinstance(problems, Task):
        return problems, trained or problems.lengths
    if trained is None:
        raise HeadwayError("problems= needs trained=, the shortest and the longest training length, such as (8, 16)")
    return problems, trained


def check_trained(trained: Any) -> tuple[int, int]:
    """Checks a pair of training lengths."""
    pair = tuple(trained) if isinstance(trained, tuple | list) else ()
    if len(pair) != 2 or not all(type(each) is int for each in pair) or not 1 <= pair[0] <= pair[1]:
        raise HeadwayError(
            f"trained is {trained!r}; give the shortest and the longest training length, such as (8, 16)"
        )
    return pair[0], pair[1]


def examples_of(problems: ProblemsOfLength | Task, length: int, device: torch.device) -> Examples:
    """Returns a function that draws examples of this length. Which problems of a user's function were held out is not
    known here, so it draws from all."""
    if isinstance(problems, Task):
        return examples_of_task(problems, device, length)
    return lambda rows, seed, held_out: problems(length, rows, seed).to(device)


def examples_of_task(task: Task, device: torch.device | str, length: int | None = None) -> Examples:
    """Returns a function that draws examples of a task, of this length or of the longest training length."""

    def examples(rows: int, seed: int, held_out: bool) -> Problems:
        if not held_out:
            return task.independent(seed, rows, length=length, device=device)
        drawn, first = [], 0
        while sum(map(len, drawn)) < rows:  # one in ten is held out
            some = task.independent(seed, 16 * rows, length=length, first=first, device=device)
            drawn.append(some[task.held_out(some).nonzero()[:, 0]])
            first += 16 * rows
            if first > 1600 * rows:
                raise HeadwayError(f"{task.name} has too few held-out problems; study it with `ablation=zero`")
        return Problems.join(drawn)[:rows]

    return examples

"""The tasks that models learn, by name."""

from dataclasses import MISSING, fields, is_dataclass
from inspect import isabstract
from typing import Any

from headway.errors import HeadwayError, unknown
from headway.plugins import load_class
from headway.tasks.addition import Addition
from headway.tasks.problems import Problems
from headway.tasks.random import Dice
from headway.tasks.sortedness import Sortedness
from headway.tasks.task import Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Addition, Sortedness)}

__all__ = [
    "TASKS",
    "Addition",
    "Dice",
    "Problems",
    "Sortedness",
    "Task",
    "create_task",
    "options_for_lengths",
    "options_of",
]


def create_task(name: str, options: dict[str, Any] | None = None) -> Task:
    """Creates a task by its name, or a user's as `module:Class`; rejects unknown options and wrong types."""
    kind = load_class(name, Task) if ":" in name else TASKS.get(name)
    if kind is None:
        raise unknown("task", name, TASKS)
    if isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise HeadwayError(f"task {name!r} does not implement {missing}; see recipes/reversal.py for a complete task")
    if not is_dataclass(kind):
        raise HeadwayError(f"task {name!r} is not a dataclass; decorate it with @dataclass(frozen=True)")
    known = {entry.name: entry for entry in fields(kind)}
    for option, value in (options or {}).items():
        if option not in known:
            what = f"it has: {', '.join(known)}" if known else "it has no options"
            raise HeadwayError(f"task {name!r} has no option {option!r}; {what}")
        default = known[option].default
        if default is not MISSING and type(value) is not type(default):
            raise HeadwayError(f"option {option!r} of task {name!r} is {value!r}; it must be like {default!r}")
    return kind(**(options or {}))


def options_of(task: Task) -> dict[str, Any]:
    """Returns every option of a task with its value."""
    return {entry.name: getattr(task, entry.name) for entry in fields(task)}  # pyright: ignore[reportArgumentType]


def options_for_lengths(name: str, lengths: tuple[int, int] | None) -> dict[str, int]:
    """Returns the options that give the task of this name these training lengths, the shortest and the longest."""
    if lengths is None:
        return {}
    return {"shortest": lengths[0], "digits" if name == "addition" else "longest": lengths[1]}

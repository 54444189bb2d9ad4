"""What is learned: tasks by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from headway.errors import HeadwayError, unknown
from headway.tasks.addition import Addition
from headway.tasks.random import Dice
from headway.tasks.sortedness import Sortedness
from headway.tasks.task import Problems, Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Addition, Sortedness)}

__all__ = ["TASKS", "Addition", "Dice", "Problems", "Sortedness", "Task", "create_task", "find_task"]


def find_task(name: str) -> type[Task]:
    """A task's class, by its name or as a user's own `module:Class`."""
    from headway.plugins import load_class

    if ":" in name:
        return load_class(name, Task)
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def create_task(name: str, options: dict[str, Any] | None = None) -> Task:
    """A task with these options; an option it does not have is refused by name."""
    kind = find_task(name)
    known = [field.name for field in fields(kind)]  # pyright: ignore[reportArgumentType]
    for option in options or {}:
        if option not in known:
            what = f"it has: {', '.join(known)}" if known else "it has none"
            raise HeadwayError(f"task {name!r} has no option {option!r}; {what}")
    return kind(**(options or {}))

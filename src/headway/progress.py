"""Progress of long work: a live bar on a terminal, an occasional plain line elsewhere. Everything goes to standard
error; standard output is for results."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


@runtime_checkable
class Watch(Protocol):
    """A callback that long work calls with the amount done, the total, and words to show beside them."""

    def __call__(self, done: int, total: int, words: str = "", /) -> None: ...


SOON, EVERY = 2, 15  # seconds before anything is printed, and between two plain lines
REUSED = 0.1  # of the expected seconds: a shorter stage found its results on the disk
LEAST_SHARE = 0.02  # of the work; before that much is done nobody knows the time left


class Progress:
    """A bar that shows the time left. It prints nothing for the first two seconds, and never when quiet. Inside a stage
    of longer work it names the stage, and shows the time left of the whole."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.began = self.printed = time.monotonic()
        self.first: tuple[int, float] | None = None  # the amount done at the first report, and when that was
        self.stages: Stages | None = None
        self._bar: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Progress:
        self.stages = _stages.get()
        if self.stages is not None:
            self.title = f"{self.stages.heading}: {self.title}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def __call__(self, done: int, total: int, words: str = "") -> None:
        """Reports how much of the work is done, with `words` beside it."""
        now = time.monotonic()
        self.first = self.first or (done, now)
        if self.quiet or now - self.began < SOON:
            return
        whole = None if self.stages is None else self.stages.left()
        in_all = "" if whole is None else f"{about(whole)} left in all"
        if sys.stderr.isatty():
            self._draw(done, total, "  ".join(filter(None, (in_all, words))))
        elif now - self.printed > EVERY or done >= total:
            self.printed = now
            left = self._left(done, total, now)
            own = "" if left is None else f"{left:.0f} s left"
            parts = (f"{self.title}: {done:,} of {total:,}", words, own, in_all)
            print("  ".join(filter(None, parts)), file=sys.stderr, flush=True)

    def _left(self, done: int, total: int, now: float) -> float | None:
        """Estimates the seconds left from the pace since the first report; None before that is known."""
        assert self.first is not None
        before, then = self.first
        if done >= total:
            return 0.0
        if done - before < LEAST_SHARE * (total - before):
            return None
        return (now - then) / (done - before) * (total - done)

    def _draw(self, done: int, total: int, words: str) -> None:
        if self._bar is None:
            bar = _create_bar()
            self._bar = bar, bar.add_task(self.title, total=total, words=words)
            bar.start()
        bar, task = self._bar
        bar.update(task, completed=done, total=total, words=words)


def _create_bar() -> Bar:
    """Creates a bar whose words come last, so that a narrow terminal cuts them and not the numbers."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class Words(ProgressColumn):
        def get_table_column(self) -> Column:
            return Column(no_wrap=False)

        def render(self, task: Task) -> Text:
            return Text(task.fields["words"], no_wrap=True, overflow="ellipsis")

    console, whole = Console(stderr=True), Column(no_wrap=True)
    bar = [BarColumn(bar_width=20)] if console.width >= 110 else []
    done, left = MofNCompleteColumn(table_column=whole), TimeRemainingColumn(table_column=whole)
    title = TextColumn("{task.description}", table_column=whole)
    return Bar(title, *bar, done, left, Words(), console=console, transient=True)


class Stages:
    """Long work in stages, shown as one. The time left of the whole is known once a stage has ended: its seconds beside
    those expected say how fast this machine is."""

    def __init__(self, title: str, expected: Mapping[str, float], quiet: bool = False) -> None:
        """`expected` are the seconds that each stage takes on some machine; only their ratios matter."""
        self.title, self.expected, self.quiet = title, dict(expected), quiet
        self.seconds = dict[str, float]()  # of the stages that have ended
        self._running: tuple[str, float] | None = None  # the stage, and when it began

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Runs a stage, and prints a line when it has ended; progress inside is part of it."""
        began = time.monotonic()
        self._running, token = (name, began), _stages.set(self)
        try:
            yield
        finally:
            _stages.reset(token)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
        heading, left, self._running = self.heading, self.left(), None
        if not self.quiet:
            rest = "" if left is None or name == list(self.expected)[-1] else f"; {about(left)} left"
            print(f"{heading}, done in {about(self.seconds[name])}{rest}", file=sys.stderr, flush=True)

    @property
    def heading(self) -> str:
        """The title, and the number and name of the running stage."""
        assert self._running is not None
        name, names = self._running[0], list(self.expected)
        return f"{self.title} {names.index(name) + 1}/{len(names)}, {name}"

    def left(self) -> float | None:
        """Estimates the seconds left; None before a stage has ended. Stages that reused what was there say nothing."""
        worked = {name for name, seconds in self.seconds.items() if seconds > REUSED * self.expected[name]}
        if not worked:
            return None
        pace = sum(self.seconds[name] for name in worked) / sum(self.expected[name] for name in worked)
        ahead = {name: pace * seconds for name, seconds in self.expected.items() if name not in self.seconds}
        if self._running is not None and (name := self._running[0]) in ahead:
            ahead[name] = max(ahead[name] - (time.monotonic() - self._running[1]), 0.0)
        return sum(ahead.values(), 0.0)


_stages: ContextVar[Stages | None] = ContextVar("stages", default=None)


def about(seconds: float) -> str:
    """Writes seconds as people say them: 8 s, 50 s, 4 min 10 s."""
    rounded = round(seconds) if seconds < 20 else round(seconds, -1)
    minutes, rest = divmod(int(rounded), 60)
    return f"{minutes} min {rest} s" if minutes and rest else f"{minutes} min" if minutes else f"{rest} s"


SILENT = Progress("", quiet=True)  # for work that shows no progress

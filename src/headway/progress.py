"""Progress of long work: a live bar on a terminal, an occasional plain line elsewhere. Everything goes to standard
error; standard output is for results."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


@runtime_checkable
class Watch(Protocol):
    """A callback that long work calls with the amount done, the total, and words to show beside them."""

    def __call__(self, done: int, total: int, words: str = "", /) -> None: ...


class Progress:
    """A bar that shows the time left. It prints nothing for the first two seconds, and never when quiet."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.began = self.printed = time.monotonic()
        self.first: int | None = None
        self._bar: tuple[Bar, TaskID] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def __call__(self, done: int, total: int, words: str = "") -> None:
        """Reports how much of the work is done, with `words` beside it."""
        now = time.monotonic()
        self.first = done if self.first is None else self.first
        if self.quiet or now - self.began < 2:
            return
        if sys.stderr.isatty():
            self._draw(done, total, words)
        elif now - self.printed > 15 or done >= total:
            self.printed = now
            left = (now - self.began) / max(done - self.first, 1) * (total - done)
            print(f"{self.title}: {done:,} of {total:,}  {words}  {left:.0f} s left", file=sys.stderr, flush=True)

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


SILENT = Progress("", quiet=True)  # for work that shows no progress

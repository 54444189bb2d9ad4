"""What a person sees while they wait: a live line on a terminal, now and then a plain line elsewhere.

Everything goes to standard error; standard output is for results.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType


class Progress:
    """A bar with time left. Silent for the first two seconds, and altogether when quiet."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.began = self.spoke = time.monotonic()
        self.first: int | None = None
        self._bar = None
        self._task = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int, words: str = "") -> None:
        """Says how far the work is; `words` are shown beside it."""
        now = time.monotonic()
        self.first = done if self.first is None else self.first
        if self.quiet or now - self.began < 2:
            return
        if sys.stderr.isatty():
            self._draw(done, total, words)
        elif now - self.spoke > 15 or done >= total:
            self.spoke = now
            left = (now - self.began) / max(done - self.first, 1) * (total - done)
            print(f"{self.title}: {done:,} of {total:,}  {words}  {left:.0f} s left", file=sys.stderr, flush=True)

    def _draw(self, done: int, total: int, words: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        if self._bar is None or self._task is None:
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[words]}"), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.title, total=total, words=words)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, words=words)

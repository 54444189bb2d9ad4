"""The progress display of a sweep: done, running, failed, reused, time left, best so far.

It is a live table on a terminal and an occasional plain line elsewhere, always on standard error.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from headway.output import format_value
from headway.runs.metrics import find_run_metric
from headway.trials.trial import Metrics, Trial

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

DEFAULT_METRICS = ("reach", "exact_match", "heads_together", "final_loss")
LINE_EVERY = 15.0  # seconds
RECENT = 200  # trials that the pace is estimated from


class Board:
    def __init__(self, title: str, total: int, metric: str | None, quiet: bool) -> None:
        self.title, self.total, self.metric, self.quiet = title, total, metric, quiet
        self.done = self.reused = 0
        self.note, self.failed, self.running = "", dict[str, str](), dict[str, float]()
        self.best: tuple[float, str] | None = None
        self.began = self.last_line = time.monotonic()
        self._ends: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._live: Live | None = None

    def __enter__(self) -> Board:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, trial: Trial) -> None:
        self.running[trial.title] = time.monotonic()

    def end(self, trial: Trial, metrics: Metrics | None, error: str = "", reused: bool = False) -> None:
        self.running.pop(trial.title, None)
        if metrics is None:
            self.failed[trial.title] = error
        elif reused:
            self.reused += 1
        else:
            self.done += 1
        self._ends.append((time.monotonic(), 0 if reused else 1))
        found = metrics or {}
        self.metric = self.metric or next((name for name in DEFAULT_METRICS if found.get(name) is not None), None)
        value = found.get(self.metric or "")
        if isinstance(value, int | float) and not isinstance(value, bool):
            sign = -1 if find_run_metric(self.metric or "").lower_is_better else 1
            if self.best is None or sign * value > sign * self.best[0]:
                self.best = (value, trial.title)
        self.tick()

    def tick(self) -> None:
        """Prints a plain line now and then if there is no terminal."""
        now = time.monotonic()
        if self._live is None and not self.quiet and now - self.last_line > LINE_EVERY:
            self.last_line = now
            print(f"{self.title}: {self.line()}", file=sys.stderr, flush=True)

    def line(self) -> str:
        counts = {"done": self.done, "reused": self.reused, "failed": len(self.failed), "running": len(self.running)}
        parts = [f"{count:,} {what}" for what, count in {**counts, "left": self.left}.items()]
        if (seconds := self.seconds_left()) is not None:
            parts.append(f"{_clock(seconds)} to go")
        if self.best is not None:
            parts.append(f"best {self.metric} {format_value(self.best[0])} ({self.best[1]})")
        return ", ".join(filter(None, [*parts, self.note]))

    @property
    def left(self) -> int:
        return self.total - self.done - self.reused - len(self.failed) - len(self.running)

    def seconds_left(self) -> float | None:
        """Estimates the time left from the pace of the last trials."""
        ended = sum(count for _, count in self._ends)
        if not ended:
            return None
        since = self.began if len(self._ends) < RECENT else self._ends[0][0]
        return (time.monotonic() - since) / ended * (self.left + len(self.running) / 2)

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        now, seconds, ended = time.monotonic(), self.seconds_left(), self.done + self.reused + len(self.failed)
        rows = [
            ("done", f"{self.done:,}  (reused {self.reused:,})  {ended:,} of {self.total:,}", ""),
            ("failed", f"{len(self.failed):,}", "red" if self.failed else ""),
            ("time left", "–" if seconds is None else _clock(seconds), ""),
        ]
        if self.best is not None:
            rows.append(("best so far", f"{self.metric} {format_value(self.best[0])}  {self.best[1]}", ""))
        rows += [("running", f"{_clock(now - since)}  {title}", "") for title, since in list(self.running.items())[:8]]
        if len(self.running) > 8:
            rows.append(("", f"and {len(self.running) - 8:,} more", ""))
        rows += [("last failure", f"{title}: {error}", "") for title, error in list(self.failed.items())[-1:]]
        rows += [("", self.note, "bold")] if self.note else []
        table = Table(box=box.SIMPLE, title=self.title, title_justify="left", title_style="bold", show_header=False)
        table.add_column(justify="right")
        table.add_column(overflow="ellipsis", no_wrap=True)
        for what, text, style in rows:
            table.add_row(what, Text(text, style=style))
        return table


def _clock(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"

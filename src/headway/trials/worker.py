"""A process of the local engine: pieces of work come in on standard input, a line each; answers go out by a pipe of
their own, whose number is the one argument. What trials print is their log."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from typing import TextIO

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    if sys.platform == "linux":  # a driver that was killed leaves nobody writing in folders that its successor resumes
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    answering = int(sys.argv[1])
    os.set_inheritable(answering, False)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(_own_input(), lines), daemon=True).start()
    with os.fdopen(answering, "w", encoding="utf-8") as answers:
        from headway.trials.carry import carry_out
        from headway.trials.trial import from_line

        def say(text: str) -> None:
            answers.write(text + "\n")
            answers.flush()

        def watch(done: int, total: int, words: str) -> None:
            say(json.dumps({"steps": done, "words": words}))

        say("ready")
        while True:
            piece, terms = from_line(lines.get())
            results = carry_out(piece, terms, watch if terms.watched else None)
            sys.stdout.flush()
            sys.stderr.flush()
            say(json.dumps([asdict(result) for result in results]))


def _own_input() -> TextIO:
    """Standard input for ourselves alone: a trial that reads it finds its end."""
    own, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(own, encoding="utf-8")


def _read(source: TextIO, lines: queue.SimpleQueue[str]) -> None:
    try:
        for line in source:
            lines.put(line)
    finally:
        os._exit(0)  # the driver has ended, or wants us to


if __name__ == "__main__":
    main()

"""A process of the local engine: orders come in on standard input, a line each; answers go out by a pipe of their own,
whose number is the one argument. What trials print is their log."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from typing import TextIO

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    _die_with_parent()
    answering = int(sys.argv[1])
    os.set_inheritable(answering, False)
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(_own_input(), orders), daemon=True).start()
    with os.fdopen(answering, "w", encoding="utf-8") as answers:
        from headway.sweeps.trial import Order, carry_out

        answers.write("ready\n")
        answers.flush()
        while True:
            results = carry_out(Order(**json.loads(orders.get())))
            sys.stdout.flush()
            sys.stderr.flush()
            answers.write(json.dumps([result.to_json() for result in results]) + "\n")
            answers.flush()


def _own_input() -> TextIO:
    """Standard input for ourselves alone: a trial that reads it finds its end."""
    own, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(own, encoding="utf-8")


def _read(lines: TextIO, orders: queue.SimpleQueue[str]) -> None:
    try:
        for line in lines:
            orders.put(line)
    finally:
        os._exit(0)  # the driver has ended, or wants us to


def _die_with_parent() -> None:
    """A driver that was killed leaves nobody writing in the folders that its successor will go on with."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    main()

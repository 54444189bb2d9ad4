"""A process of the local engine: receives pieces of work and sends results through a pipe, whose file descriptor is its
argument. The output of trials is their log."""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from multiprocessing.connection import Connection


def connect() -> Connection:
    """Opens the pipe to the driver, whose file descriptor is the argument of this process; it ends with the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    if sys.platform == "linux":  # end with a killed driver: its successor resumes the same folders
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    return pipe


def main() -> None:
    pipe = connect()
    lines = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read, args=(pipe, lines), daemon=True).start()
    from headway.trials.execute import run_piece
    from headway.trials.trial import from_line

    def watch(done: int, total: int, words: str) -> None:
        pipe.send_bytes(json.dumps([done, words]).encode())

    pipe.send_bytes(b'"ready"')
    while True:
        piece, terms = from_line(lines.get())
        results = run_piece(piece, terms, watch if terms.watched else None)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send_bytes(json.dumps([asdict(result) for result in results]).encode())


def _read(pipe: Connection, lines: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            lines.put(pipe.recv_bytes())
    finally:
        os._exit(0)  # the driver has ended, or closed the pipe

"""A process of the local engine: pieces of work come in, and answers go out, by a pipe whose number is its argument.
What trials print is their log."""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from multiprocessing.connection import Connection


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    if sys.platform == "linux":  # a driver that was killed leaves nobody writing in folders that its successor resumes
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    pipe = Connection(int(sys.argv[1]))
    os.set_inheritable(pipe.fileno(), False)
    lines = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read, args=(pipe, lines), daemon=True).start()
    from headway.trials.carry import carry_out
    from headway.trials.trial import from_line

    def watch(done: int, total: int, words: str) -> None:
        pipe.send_bytes(json.dumps([done, words]).encode())

    pipe.send_bytes(b'"ready"')
    while True:
        piece, terms = from_line(lines.get())
        results = carry_out(piece, terms, watch if terms.watched else None)
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.send_bytes(json.dumps([asdict(result) for result in results]).encode())


def _read(pipe: Connection, lines: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            lines.put(pipe.recv_bytes())
    finally:
        os._exit(0)  # the driver has ended, or wants us to

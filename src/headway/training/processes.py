"""A population on a CPU: each member is trained alone, as many at a time as there are cores, a thread each.

One small model does not keep several threads busy; several models, a thread each, do. Stacking them as on a
GPU is slower here ('headway bench population' measures all three ways). A member's checkpoint is in its own
folder, as that of any run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from headway.errors import HeadwayError
from headway.machine import cores, prepare
from headway.tasks.data import Stored
from headway.training.loop import Report, Watch, train_run
from headway.training.population import Member, check_alike

CPU = torch.device("cpu")


def train_apart(
    members: Sequence[Member],
    *,
    resume: bool = False,
    checkpoint_every: int,
    stored: Stored | None = None,
    watch: Watch | None = None,
    alike: bool = True,
) -> list[Report]:
    """Trains the members in processes of their own; those that are complete already are not trained again. Members
    of a population are alike, but here they need not be."""
    if alike:
        check_alike([member.config for member in members])
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    news = context.Queue()
    workers = min(cores(), len(members))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(news,))
    settings = {"resume": resume, "checkpoint_every": checkpoint_every, "stored": stored}
    try:
        with _interrupts_later():  # what is begun now never sees Ctrl-C
            jobs = [pool.submit(_train, row, member, settings) for row, member in enumerate(members)]
        _follow(jobs, news, watch, sum(member.config.training.steps for member in members))
        return [job.result() for job in jobs]
    except BrokenProcessPool as error:
        raise HeadwayError(
            "a process of the population ended, perhaps killed for want of memory; go on with --resume, or with "
            "--seeds, which trains one run after another (a script needs its 'if __name__ == \"__main__\":')"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.kill()  # a run can be killed anywhere
        news.close()


def _follow(jobs: Sequence[Future[Report]], news: Any, watch: Watch | None, total: int) -> None:
    """Tells `watch` how far the members have come together, until all have ended or one has failed."""
    done: dict[int, int] = {}
    while not all(job.done() for job in jobs):
        with contextlib.suppress(queue.Empty):
            row, steps, words = news.get(timeout=0.2)
            done[row] = steps
            if watch is not None:
                watch(sum(done.values()), total, words)
        for job in jobs:
            if job.done():
                job.result()  # raises what a member raised


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Holds Ctrl-C back. A process that is begun meanwhile holds it back for good: it is the parent's to answer."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_news: Any = None


def _begin(news: Any) -> None:
    """In a worker: one thread of torch, and Ctrl-C is the parent's to answer."""
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["HEADWAY_THREADS"] = "1"
    prepare(CPU)


def _end_with_parent() -> None:
    """A parent that was killed leaves nobody writing in the folders that its successor will resume."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _train(row: int, member: Member, settings: dict[str, Any]) -> Report:
    name = f"seed {member.config.seed}: "

    def watch(done: int, total: int, words: str) -> None:
        _news.put((row, done, name + words))

    return train_run(member.config, member.folder.path, device=CPU, watch=watch, may_diverge=True, **settings)

"""The process of one submission: receives its job through a pipe, examines the submission in its folder, and sends the
result back with the secret of the job. Standard output and standard error are the submission's own."""

import contextlib
import faulthandler
import json
import os
import resource
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from headway.errors import HeadwayError
from headway.submissions.submission import Submission, summarize
from headway.trials.worker import connect

if TYPE_CHECKING:
    from headway.subjects.subject import Subject

NO_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "bad_alloc", "MemoryError")
"""messages of errors that mean out of memory"""


@dataclass(frozen=True)
class Job:
    folder: str
    adapter: str  # an absolute path and a function
    checks: tuple[str, ...]  # the user's own
    strict: bool
    device: str
    seconds: float
    memory: int
    secret: str  # without it, a message is not a result


def main() -> None:
    pipe = connect()
    given = json.loads(pipe.recv_bytes())
    job = Job(**{**given, "checks": tuple(given["checks"])})
    from headway.doctor.examination import CHECKS  # before the submission's modules can be found in place of ours

    assert CHECKS
    _send(pipe, job, "ready")
    began, limits = time.monotonic(), resource.getrlimit(resource.RLIMIT_DATA)
    _limit_memory(job)
    faulthandler.dump_traceback_later(job.seconds)  # says where it hangs
    try:
        member = examine_folder(job)
    except (Exception, SystemExit) as error:
        member = refuse(job, error)
    faulthandler.cancel_dump_traceback_later()
    resource.setrlimit(resource.RLIMIT_DATA, limits)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it may have closed them
            stream.flush()
    _send(pipe, job, asdict(replace(member, seconds=round(time.monotonic() - began, 3))))
    os._exit(0)  # threads and exit handlers of the submission must not keep it running


def _send(pipe: Connection, job: Job, message: object) -> None:
    """Sends a line with the secret; the line before it, which a submission may have begun, ends first."""
    line = memoryview(f"\n{json.dumps([job.secret, message])}\n".encode())
    while line:
        line = line[os.write(pipe.fileno(), line) :]


def _limit_memory(job: Job) -> None:
    import torch

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not torch.cuda.is_available():  # a GPU's driver reserves far more than it uses
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = job.memory if hard == resource.RLIM_INFINITY else min(job.memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def examine_folder(job: Job) -> Submission:
    """Builds the subject in the folder of a submission and examines it."""
    import torch

    from headway.doctor.examination import CHECKS, examine_subject, load_check
    from headway.machine import choose_device

    choose_device(job.device)
    own = list(map(load_check, job.checks))
    os.chdir(job.folder)
    adapter = Path(job.adapter.rpartition(":")[0])
    sys.path[:0] = [job.folder, str(adapter.parent), str(adapter.resolve().parent)]
    torch.manual_seed(0)
    subject = _build(job)
    found = examine_subject(subject, job.strict, [*CHECKS.values(), *own])
    examination = found.to_json()
    short = summarize(examination, {})
    if subject.reported is not None:
        short = replace(short, reported=subject.reported / 100 if subject.reported > 1 else subject.reported)
    checks = tuple(json.loads(json.dumps(examination["checks"]), parse_constant=lambda _: None))  # no NaN
    return Submission("", job.folder, found.healthy, **vars(short), checks=checks)


def _build(job: Job) -> "Subject":
    """Builds the subject; an error in the submission's own files names the line first."""
    from headway.attach.opening import call_factory, prepare_subject

    try:
        return prepare_subject(call_factory(job.adapter, Path(job.folder)))
    except HeadwayError as error:
        cause = error.__cause__
        if cause is None or not (where := _locate(cause.__traceback__, job.folder)):
            raise
        raise HeadwayError(f"{where}: {type(cause).__name__}: {cause}") from cause


def refuse(job: Job, error: BaseException) -> Submission:
    """Says in one sentence why a submission could not be examined, and where in its files it failed."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    messages = [f"{type(each).__name__}: {each}" for each in chain]
    if any(words in message for message in messages for words in NO_MEMORY):
        return explain_memory(job)
    where = next(filter(None, (_locate(each.__traceback__, job.folder) for each in chain)), "")
    sentence = str(error) if isinstance(error, HeadwayError) else messages[0]
    sentence = str(HeadwayError(sentence.replace(f"{Path(job.adapter).parent}{os.sep}", "")))
    place = f" ({where})" if where and where not in sentence else ""
    traceback.print_exception(chain[-1])  # into the output that is kept
    return Submission("", job.folder, sentence=sentence + place, refused=sentence + place, ended="error")


def explain_memory(job: Job) -> Submission:
    sentence = f"it needed more than {job.memory / 2**30:.3g} GB of memory"
    return Submission("", job.folder, sentence=sentence, refused=sentence, ended="memory")


def _locate(trace: TracebackType | None, folder: str) -> str:
    """Names the last line of the submission's own files in a traceback."""
    own = [each for each in traceback.extract_tb(trace) if Path(each.filename).is_relative_to(folder)]
    return f"{Path(own[-1].filename).relative_to(folder)}, line {own[-1].lineno}" if own else ""

"""The stored results of submissions, by which an examination that was killed resumes: each is sealed, and counts only
while the adapter, the doctor, the limits and the submission's own files are unchanged."""

import hashlib
import os
import re
import stat
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from headway.errors import HeadwayError
from headway.runs import disk
from headway.runs.seal import read_sealed, write_sealed
from headway.submissions.process import submission_from_json
from headway.submissions.submission import Submission
from headway.submissions.worker import Job

LARGE = 2**26  # bytes; of a larger file the size and time are compared, not the content


def hash_folder(folder: Path) -> str:
    """Hashes the files of a folder, without what Python compiles."""
    digest = hashlib.sha256()
    for home, names, found in os.walk(folder):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(found):
            digest.update(
                f"{Path(home, name).relative_to(folder)}\0{_hash_file(Path(home, name))}\0".encode("utf-8", "replace")
            )
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "not a file"
        return disk.sha256(path) if found.st_size <= LARGE else f"{found.st_size} {found.st_mtime_ns}"
    except (OSError, HeadwayError):
        return "unreadable"


def hash_request(job: Job) -> str:
    """Hashes what a result depends on besides the submission: the adapter and the Python files beside it, the user's
    own checks, and the doctor."""
    adapter = Path(job.adapter.rpartition(":")[0])
    own = [Path(each.partition(":")[0]) for each in job.checks]
    doctor = [Path(str(each)) for each in files("headway.doctor").iterdir()]
    everything = {adapter, *adapter.parent.glob("*.py"), *own, *(each for each in doctor if each.suffix == ".py")}
    parts = [job.adapter, *job.checks, str(job.strict), job.device]
    parts += [f"{path} {_hash_file(path)}" for path in sorted(everything)]
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()


class Records:
    """The results in a folder."""

    def __init__(self, out: Path, request: str) -> None:
        self.home, self.request = out / "members", request

    def read(self, job: Job, submission: str) -> Submission | None:
        """Returns the stored result of a submission, if it is still valid."""
        content = read_sealed(self._path(job))
        if content.get("request") != self.request or submission not in content.get("submission", ()):
            return None
        if content.get("limits") not in (None, [job.seconds, job.memory]):
            return None
        try:
            return submission_from_json(content.get("member"))
        except HeadwayError:
            return None

    def write(self, job: Job, member: Submission, *submission: str) -> None:
        """Stores a result, with the hashes of the submission before and after it was examined."""
        limits = [job.seconds, job.memory] if member.refused else None
        content = {"request": self.request, "submission": list(submission), "limits": limits, "member": asdict(member)}
        write_sealed(self._path(job), content)

    def _path(self, job: Job) -> Path:
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", Path(job.folder).name)[:60]
        return self.home / f"{plain}.{hashlib.sha256(os.fsencode(job.folder)).hexdigest()[:8]}.json"

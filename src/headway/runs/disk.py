"""Writing that a crash cannot halve: write beside, fsync, rename. Reading that names what is broken."""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from headway.errors import BrokenRun, CannotWrite, HeadwayError

AGAIN = "restore it or train again elsewhere"


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces the file as a whole, or leaves it as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise explained(error, path) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise explained(error, path) from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BufferedReader]:
    """Opens a file to be read; a pipe, a device or a folder in its place is refused, and never waited for."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise IsADirectoryError
            yield file
    except IsADirectoryError as error:
        raise BrokenRun(f"{path} is not a regular file; remove it, then restore it or make it again") from error
    except FileNotFoundError as error:
        raise BrokenRun(f"{path} is missing; restore it, or check that {path.parent} is a run folder") from error
    except OSError as error:
        raise explained(error, path) from error


def read_bytes(path: Path) -> bytes:
    with _reading(path) as file:
        return file.read()


def read_json(path: Path) -> Any:
    content = read_bytes(path)
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenRun(f"{path} is not JSON ({error}); it was truncated or altered: {AGAIN}") from error


def sha256(path: Path) -> str:
    with _reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def explained(error: OSError, path: Path) -> HeadwayError:
    """What the system said, as a sentence with a way out."""
    kind, why, remedy = HeadwayError, error.strerror or str(error), "choose another folder"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            kind, why, remedy = CannotWrite, "no space is left on the disk", "free some; what was there before is whole"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            kind, why, remedy = CannotWrite, "no permission", "choose a folder that you may read and write"
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            why = "a file stands where a folder should, or the other way round"
    return kind(f"cannot write or read {path}: {why}; {remedy}")

"""Atomic writes (to a temporary file, fsync, rename), and reads whose errors name the broken file."""

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
    """Replaces the whole file, or leaves it unchanged."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise explain_os_error(error, path) from error


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise explain_os_error(error, path) from error


@contextlib.contextmanager
def _open_for_reading(path: Path) -> Iterator[BufferedReader]:
    """Opens a file for reading; a pipe, a device or a folder in its place is refused without blocking."""
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
        raise explain_os_error(error, path) from error


def read_bytes(path: Path) -> bytes:
    with _open_for_reading(path) as file:
        return file.read()


def read_json(path: Path) -> Any:
    content = read_bytes(path)
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenRun(f"{path} is not JSON ({error}); it was truncated or altered: {AGAIN}") from error


def sha256(path: Path) -> str:
    with _open_for_reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def explain_os_error(error: OSError, path: Path) -> HeadwayError:
    """Turns an error of the operating system into a sentence with a remedy."""
    kind, why, remedy = HeadwayError, error.strerror or str(error), "choose another folder"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            kind, why, remedy = CannotWrite, "no space is left on the disk", "free some; existing files are intact"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            kind, why, remedy = CannotWrite, "no permission", "choose a folder that you may read and write"
        case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
            why = "a file is where a folder should be, or the other way round"
    return kind(f"cannot write or read {path}: {why}; {remedy}")

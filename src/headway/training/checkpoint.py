"""The state to resume from. A new checkpoint is complete on disk before the pointer moves to it, so a kill
at any moment leaves an intact one; its hash is checked before it is used."""

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from headway.errors import BrokenRun
from headway.runs import disk
from headway.runs.seal import KEY, seal
from headway.runs.shapes import fill


@dataclass(frozen=True)
class Pointer:
    """The content of `checkpoint/latest.json`."""

    file: str
    steps: int
    seconds: float
    sha256: str

    @property
    def seal(self) -> str:
        """A hash of the entries above, which detects edits."""
        return seal(asdict(self))[KEY]


def save_checkpoint(folder: Path, state: dict[str, Tensor], steps: int, seconds: float) -> None:
    path = folder / f"step-{steps:08d}.safetensors"
    disk.write_bytes(path, save(state))
    pointer = Pointer(path.name, steps, seconds, disk.sha256(path))
    disk.write_json(folder / "latest.json", {**asdict(pointer), "seal": pointer.seal})
    for old in folder.glob("step-*.safetensors"):
        if old != path:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], Pointer] | None:
    """Loads the last checkpoint; returns None before the first."""
    latest, remedy = folder / "latest.json", f"delete {folder} to start again"
    if not os.path.lexists(latest):
        return None
    try:
        record = disk.read_json(latest)
        seal, pointer = record.pop("seal"), fill(Pointer, record)
    except (TypeError, KeyError, AttributeError) as error:
        raise BrokenRun(f"{latest} does not describe a checkpoint ({error}); {remedy}") from error
    if pointer.seal != seal or not (pointer.steps >= 0 and 0 <= pointer.seconds < math.inf):
        raise BrokenRun(f"{latest} was altered; {remedy}")
    path = folder / Path(pointer.file).name
    if disk.sha256(path) != pointer.sha256:
        raise BrokenRun(f"{path} is truncated or altered: its hash does not match the recorded one; {remedy}")
    try:
        return load(disk.read_bytes(path)), pointer
    except (SafetensorError, ValueError, RuntimeError, OverflowError) as error:
        raise BrokenRun(f"{path} holds no tensors ({error}); {remedy}") from error

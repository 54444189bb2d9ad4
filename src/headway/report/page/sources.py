"""What lies in the folders of a report, and how a page carries models and files: as half floats, and as gzip."""

import base64
import gzip
import os
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import BrokenRun, HeadwayError
from headway.report.studies import read_study
from headway.runs import disk
from headway.runs.folder import AGAIN, RunFolder
from headway.runs.shapes import schema_of

KINDS = ("heads", "heads-population", "lengths", "certificate", "compare", "lab")  # of studies that a page shows
MOST_FILES = 1_000_000  # bytes that all files may take in the page, packed; the largest stay outside
Shape = TypeVar("Shape")


@dataclass
class Sources:
    folders: list[Path]  # as they were named
    root: Path
    runs: list[RunFolder] = field(default_factory=list)
    studies: dict[str, list[Path]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """by what they hold; of heads the first is shown"""
    files: list[Path] = field(default_factory=list)

    @property
    def heads(self) -> Path | None:
        """The study of heads that is shown."""
        return next(iter(self.studies["heads"]), None)

    def read(self, kind: str, shape: type[Shape]) -> list[tuple[Path, Shape]]:
        """Reads the studies of a kind."""
        return [(path, read_study(path, shape)) for path in self.studies[kind]]

    def name(self, path: Path) -> str:
        """A path from the folder of the report on."""
        here = path.resolve()
        return str(here.relative_to(self.root)) if self.root in here.parents else here.name or str(here)

    def run_at(self, folder: Path) -> RunFolder | None:
        return next((run for run in self.runs if run.path == folder), None)

    def run_once_at(self, written: str) -> Path:
        """The folder of a run that was written down before its parents may have been renamed."""
        last = Path(written).parts[-2:]
        same = [run.path for run in self.runs if run.path.resolve().parts[-2:] == last]
        return same[0] if len(same) == 1 else Path(written)

    @property
    def adder(self) -> RunFolder | None:
        """The model for the page: of the study that is shown; where none is, the first that can run there."""
        candidates = self.runs if self.heads is None else [self.run_at(self.heads.parent)]
        return next((run for run in candidates if runs_in_page(run)), None)

    def take(self, path: Path, in_run: bool) -> None:
        """Adds a file to what the page shows, and to the files that it carries."""
        kind = path.stem if path.suffix == ".json" else ""
        if kind in ("heads", "lengths"):
            kind = schema_of(path, read_study(path, dict), in_run)
        is_study = kind in KINDS and not (kind == "compare" and in_run)
        of_run = in_run and kind.startswith(("config", "training", "environment", "evaluation"))
        if is_study:
            self.studies[kind].append(path)
        if is_study or of_run or kind in ("maps", "measured") or path.suffix in (".svg", ".csv"):
            self.files.append(path)


def find_sources(folders: list[Path]) -> Sources:
    for folder in folders:
        if not folder.is_dir():
            raise HeadwayError(f"there is no folder {folder}; name folders that train, heads, lengths or lab wrote")
    found, seen = Sources(folders, Path(os.path.commonpath([folder.resolve() for folder in folders]))), set()
    for folder in folders:
        for home, names, files in os.walk(folder):
            here = Path(home)
            if here.resolve() in seen:
                names.clear()
                continue
            seen.add(here.resolve())
            names[:] = sorted(name for name in names if name != "checkpoint")
            in_run = RunFolder.is_run(here)
            found.runs += [RunFolder(here)] if in_run else []
            for name in sorted(files):
                found.take(here / name, in_run)
    if not found.runs and not any(found.studies.values()):
        raise HeadwayError(f"{folders[0]} holds no run and no study; 'headway lab' makes one")
    found.studies["heads"].sort(key=lambda path: not runs_in_page(found.run_at(path.parent)))
    return found


def runs_in_page(run: RunFolder | None) -> bool:
    """Whether there is a run, and the forward pass in the page is written for it."""
    if run is None:
        return False
    config = run.config()
    model, options = config.model, config.options
    usual = {"base": 10, "operators": "+", "first": "most", "natural": False}
    return (
        run.complete
        and (config.task, model.kind, model.index, model.pruned) == ("addition", "encoder-decoder", "sequential", "")
        and model.positions in ("learned", "sinusoidal", "none", "rope", "alibi")
        and options.get("digits", 3) in range(1, 16)  # a browser's numbers hold the sums of 15 digits
        and all(options.get(name, value) == value for name, value in usual.items())
    )


def pack_model(run: RunFolder) -> dict[str, Any]:
    """Packs a model as half floats, after its files were held against their hashes. Of position tables it takes only
    the rows that a sum of these digits uses."""
    import numpy
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = run.verify()
    model, digits = config.model, config.options.get("digits", 3)
    rows = {"source_positions.table": 2 * digits + 1, "answer_positions.table": digits + 1}
    try:
        tensors, weights = load_file(run.weights), {}
    except (SafetensorError, OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise BrokenRun(f"{run.weights} holds no tensors ({error}); {AGAIN}") from error
    for name, weight in tensors.items():
        if weight.ndim == 0 or weight.dtype.kind != "f":
            raise BrokenRun(f"{run.weights}: {name} is not a table of weights; {AGAIN}")
        with numpy.errstate(over="ignore"):  # what a half float cannot hold is infinite in the page too
            half = weight[: rows.get(name, len(weight))].astype(numpy.float16)
        data = base64.b64encode(half.astype("<f2").tobytes()).decode()
        weights[name] = {"shape": list(half.shape), "data": data}
    return {
        **{key: getattr(model, key) for key in ("d_model", "heads", "layers", "decoder_layers", "start", "positions")},
        "vocabulary": [*map(str, range(10)), "+", "−", "start", "end"],
        "digits": digits,
        "weights": weights,
    }


def pack_files(sources: Sources) -> tuple[list[dict[str, str]], list[str]]:
    """Packs what lies in the folders; names the largest files, where all would be too much."""
    packed = {path: gzip.compress(disk.read_bytes(path), mtime=0) for path in sources.files}
    by_size = sorted(packed, key=lambda path: len(packed[path]))
    sizes = accumulate(len(packed[path]) for path in by_size)
    taken = {path for path, size in zip(by_size, sizes, strict=True) if size <= MOST_FILES}
    names = {path: sources.name(path).replace("/", "-") for path in sources.files}
    data = {path: base64.b64encode(packed[path]).decode() for path in names if path in taken}
    files = [{"name": names[path], "data": each} for path, each in data.items()]
    return files, [name for path, name in names.items() if path not in taken]

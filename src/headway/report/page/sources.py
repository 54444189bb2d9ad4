"""Finds the files of a report, and packs them as gzip into the page."""

import base64
import gzip
import os
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from headway.errors import HeadwayError
from headway.report.page.models import runs_in_page
from headway.report.studies import read_study
from headway.runs import disk
from headway.runs.folder import RunFolder
from headway.runs.shapes import schema_of

KINDS = (
    "heads",
    "heads-population",
    "lengths",
    "lengths-of-subject",
    "lengths-of-language",
    "certificate",
    "compare",
    "lab",
)  # kinds of studies that a page shows
MOST_FILES = 1_000_000  # bytes of all packed files in the page; the largest files are left out
Shape = TypeVar("Shape")


@dataclass
class Sources:
    folders: list[Path]  # as they were given
    root: Path
    runs: list[RunFolder] = field(default_factory=list)
    studies: dict[str, list[Path]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """by kind; of the studies of heads the first is shown"""
    files: list[Path] = field(default_factory=list)

    @property
    def heads(self) -> Path | None:
        """The study of heads that is shown."""
        return next(iter(self.studies["heads"]), None)

    def read(self, kind: str, shape: type[Shape]) -> list[tuple[Path, Shape]]:
        """Reads the studies of a kind."""
        return [(path, read_study(path, shape)) for path in self.studies[kind]]

    def name(self, path: Path) -> str:
        """Returns a path relative to the folder of the report."""
        here = path.resolve()
        return str(here.relative_to(self.root)) if self.root in here.parents else here.name or str(here)

    def run_at(self, folder: Path) -> RunFolder | None:
        return next((run for run in self.runs if run.path == folder), None)

    def find_moved_run(self, written: str) -> Path:
        """Finds the folder of a run whose parent folders may have been renamed since its path was written."""
        last = Path(written).parts[-2:]
        same = [run.path for run in self.runs if run.path.resolve().parts[-2:] == last]
        return same[0] if len(same) == 1 else Path(written)

    @property
    def adder(self) -> RunFolder | None:
        """The model for the page: that of the study shown, or else the first that can run in a page."""
        candidates = self.runs if self.heads is None else [self.run_at(self.heads.parent)]
        return next((run for run in candidates if runs_in_page(run)), None)

    def add(self, path: Path, in_run: bool) -> None:
        """Adds a file to what the page shows, and to the files that it contains."""
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
            raise HeadwayError(f"there is no folder {folder}; name folders written by train, heads, lengths or lab")
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
                found.add(here / name, in_run)
    if not found.runs and not any(found.studies.values()):
        raise HeadwayError(f"{folders[0]} holds no run and no study; 'headway lab' makes one")
    found.studies["heads"].sort(key=lambda path: not runs_in_page(found.run_at(path.parent)))
    return found


def pack_files(sources: Sources) -> tuple[list[dict[str, str]], list[str]]:
    """Packs the files in the folders; returns the names of the largest ones where all would be too much."""
    packed = {path: gzip.compress(disk.read_bytes(path), mtime=0) for path in sources.files}
    by_size = sorted(packed, key=lambda path: len(packed[path]))
    sizes = accumulate(len(packed[path]) for path in by_size)
    taken = {path for path, size in zip(by_size, sizes, strict=True) if size <= MOST_FILES}
    names = {path: sources.name(path).replace("/", "-") for path in sources.files}
    data = {path: base64.b64encode(packed[path]).decode() for path in names if path in taken}
    files = [{"name": names[path], "data": each} for path, each in data.items()]
    return files, [name for path, name in names.items() if path not in taken]

"""What lies in the folders of a report."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headway.errors import HeadwayError
from headway.report.studies import read_study
from headway.runs.folder import RunFolder
from headway.runs.shapes import schema_of

KINDS = ("heads", "heads-population", "lengths", "certificate", "compare", "lab")
"""of studies that a page shows"""
IN_PAGE = ("learned", "sinusoidal", "none", "rope", "alibi")
"""encodings that the forward pass in the page knows"""
MOST_DIGITS = 15
"""whose sums a browser's numbers hold"""
Shape = TypeVar("Shape")


@dataclass
class Sources:
    folders: list[Path]
    """as they were named"""
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
    def only_compares(self) -> bool:
        """Whether there is nothing but comparisons of runs that lie elsewhere."""
        return not self.runs and [kind for kind, paths in self.studies.items() if paths] == ["compare"]

    @property
    def adder(self) -> RunFolder | None:
        """The model for the page: of the study that is shown; where none is, the first that can run there."""
        if self.heads is not None:
            return self.run_at(self.heads.parent) if self.is_in_page(self.heads) else None
        return next((run for run in self.runs if runs_in_page(run)), None)

    def is_in_page(self, study: Path) -> bool:
        """Whether the model that was studied can run in the page."""
        run = self.run_at(study.parent)
        return run is not None and runs_in_page(run)

    def take(self, path: Path, in_run: bool) -> None:
        """Adds a file to what the page shows, and to the files that it carries."""
        kind = path.stem if path.suffix == ".json" else ""
        if kind in ("heads", "lengths"):
            kind = schema_of(path, read_study(path, dict), in_run)
        if kind in KINDS and not (kind == "compare" and in_run):
            self.studies[kind].append(path)
        elif not (
            kind in ("maps", "measured")
            or path.suffix in (".svg", ".csv")
            or (in_run and kind.startswith(("config", "training", "environment", "evaluation")))
        ):
            return
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
    found.studies["heads"].sort(key=lambda path: not found.is_in_page(path))
    return found


def find_comparison(comparison: Path) -> Sources:
    """A comparison with the files beside it, and nothing of the runs that may lie in the same folder."""
    home = comparison.parent
    beside = [home / name for name in ("compare.csv", "compare-runs.csv", "compare.svg")]
    files = [comparison, *(path for path in beside if path.is_file())]
    found = Sources([home], home.resolve(), files=files)
    found.studies["compare"].append(comparison)
    return found


def runs_in_page(run: RunFolder) -> bool:
    """Whether the forward pass in the page is written for this run."""
    config = run.config()
    model, options = config.model, config.options
    usual = {"base": 10, "operators": "+", "first": "most", "natural": False}
    return (
        run.complete
        and (config.task, model.kind, model.index, model.pruned) == ("addition", "encoder-decoder", "sequential", "")
        and model.positions in IN_PAGE
        and options.get("digits", 3) in range(1, MOST_DIGITS + 1)
        and all(options.get(name, value) == value for name, value in usual.items())
    )

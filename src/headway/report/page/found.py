"""What lies in the folders of a report."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from headway.errors import HeadwayError
from headway.report.page.reading import read
from headway.runs.folder import RunFolder

OF_A_RUN = ("config.json", "training.json", "environment.json")
IN_PAGE = ("learned", "sinusoidal", "none", "rope", "alibi")
"""encodings that the forward pass in the page knows"""
MOST_DIGITS = 15
"""whose sums a browser's numbers hold"""


@dataclass
class Found:
    folders: list[Path]
    """as they were named"""
    root: Path
    runs: list[RunFolder] = field(default_factory=list)
    heads: list[Path] = field(default_factory=list)
    """of one subject each; the one that is shown is the first"""
    population: Path | None = None
    """of many runs"""
    lengths: list[Path] = field(default_factory=list)
    certificates: list[Path] = field(default_factory=list)
    comparisons: list[Path] = field(default_factory=list)
    lab: Path | None = None
    files: list[Path] = field(default_factory=list)

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
        others = (self.runs, self.heads, self.population, self.lengths, self.certificates, self.lab)
        return bool(self.comparisons) and not any(others)

    @property
    def adder(self) -> RunFolder | None:
        """The model for the page: of the study that is shown; where none is, the first that can run there."""
        if self.heads:
            studied = self.run_at(self.heads[0].parent)
            return studied if studied is not None and runs_in_page(studied) else None
        return next((run for run in self.runs if runs_in_page(run)), None)


def find(folders: list[Path]) -> Found:
    for folder in folders:
        if not folder.is_dir():
            raise HeadwayError(f"there is no folder {folder}; name folders that train, heads, lengths or lab wrote")
    found, seen = Found(folders, Path(os.path.commonpath([folder.resolve() for folder in folders]))), set()
    for folder in folders:
        for home, names, files in os.walk(folder):
            here = Path(home)
            if here.resolve() in seen:
                names.clear()
                continue
            seen.add(here.resolve())
            names[:] = sorted(name for name in names if name != "checkpoint")
            if RunFolder.is_run(here):
                found.runs.append(RunFolder(here))
            for name in sorted(files):
                _take(found, here / name)
    if not (found.runs or found.heads or found.population or found.lengths or found.comparisons or found.lab):
        raise HeadwayError(f"{folders[0]} holds no run and no study; 'headway lab' makes one")
    found.heads.sort(key=lambda path: not _studies_one_in_page(found, path))
    return found


def find_comparison(comparison: Path) -> Found:
    """A comparison with the files beside it, and nothing of the runs that may lie in the same folder."""
    home = comparison.parent
    beside = [home / name for name in ("compare.csv", "compare-runs.csv", "compare.svg")]
    files = [comparison, *(path for path in beside if path.is_file())]
    return Found([home], home.resolve(), comparisons=[comparison], files=files)


def _take(found: Found, path: Path) -> None:
    of_run = RunFolder.is_run(path.parent)
    match path.name:
        case "heads-population.json":
            found.population = found.population or path
        case "heads.json" if not of_run and "members" in read(path):  # as folders of runs had it before
            found.population = found.population or path
        case "heads.json":
            found.heads.append(path)
        case "lengths.json" if "train_lengths" in read(path) or not of_run:  # in a run's folder it has its rows
            found.lengths.append(path)
        case "certificate.json":
            found.certificates.append(path)
        case "compare.json" if not of_run:
            found.comparisons.append(path)
        case "lab.json":
            found.lab = path
        case "maps.json" | "measured.json" | "lengths.json":
            pass
        case name if of_run and (name in OF_A_RUN or (name.startswith("evaluation") and name.endswith(".json"))):
            pass
        case name if not name.endswith((".svg", ".csv")):
            return
    found.files.append(path)


def _studies_one_in_page(found: Found, study: Path) -> bool:
    run = found.run_at(study.parent)
    return run is not None and runs_in_page(run)


def runs_in_page(run: RunFolder) -> bool:
    """Whether the forward pass in the page is written for this run."""
    config = run.config()
    model, options = config.model, config.options
    usual = {"base": 10, "operators": "+", "first": "most", "natural": False}
    return (
        run.complete
        and config.task == "addition"
        and model.kind == "encoder-decoder"
        and model.positions in IN_PAGE
        and model.index == "sequential"
        and not model.pruned
        and options.get("digits", 3) in range(1, MOST_DIGITS + 1)
        and all(options.get(name, value) == value for name, value in usual.items())
    )

"""Runs cases on several processes. One JSON line for each goes to a file; a case that was measured with the same checks
and the same engine is not measured again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

import headway.doctor

from .cases import Case
from .measuring import Outcome, measure


def fingerprint() -> str:
    """Returns a hash of the doctor's checks and of the engine."""
    folders = (Path(str(headway.doctor.__file__)).parent, Path(__file__).parent)
    files = sorted(path for folder in folders for path in folder.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def read_outcomes(path: Path, version: str) -> dict[str, Outcome]:
    """Reads the outcomes of this version, by the name of their case."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    mine = [row for row in rows if row.pop("version") == version]
    return {row["case"]: Outcome(**row) for row in mine}


def one_thread() -> None:
    torch.set_num_threads(1)


def measure_all(cases: Sequence[Case], models: Path, out: Path, processes: int = 2) -> list[Outcome]:
    """Measures the cases that were not measured before, each on one thread."""
    out.mkdir(parents=True, exist_ok=True)
    path, version = out / "cases.jsonl", fingerprint()
    known = read_outcomes(path, version)
    left = sorted((case for case in cases if case.name not in known), key=lambda case: case.plan.recipe.key)
    context = multiprocessing.get_context("spawn")
    with path.open("a") as file, ProcessPoolExecutor(processes, context, one_thread) as pool:
        for number, outcome in enumerate(pool.map(measure, left, [models] * len(left)), 1):
            file.write(json.dumps({"version": version, **asdict(outcome)}) + "\n")
            file.flush()
            known[outcome.case] = outcome
            if number % 25 == 0:
                print(f"{number} of {len(left)} cases", file=sys.stderr)
    return [known[case.name] for case in cases]

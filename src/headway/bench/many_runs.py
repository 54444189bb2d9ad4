"""What many runs cost beyond training them: finding some by a question, and a trial of a sweep."""

import json
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from headway.bench.first_minutes import call_headway
from headway.bench.row import Row, timed
from headway.compare.index import list_runs
from headway.progress import Progress
from headway.runs.config import Overrides
from headway.runs.folder import Training
from headway.runs.seal import sealed
from headway.training.defaults import plan

RUNS = 4_000
ENCODINGS = ("rope", "alibi", "t5", "kerple", "fire", "none", "learned", "sinusoidal")
QUESTION = "positions=rope and reach>256"
TRIALS = 400
SHAPE = {"d_model": 8, "heads": 2, "d_ff": 16, "layers": 1, "decoder_layers": 1, "steps": 1, "batch": 8}


def queries(seed: int, device: torch.device, quiet: bool, runs: int = RUNS) -> Row:
    """Seconds of a question over many runs that the index has seen, the check for changes included."""
    with tempfile.TemporaryDirectory() as folder, Progress(f"{runs:,} run folders", quiet):
        root = Path(folder)
        for number in range(runs):
            _write_run(root / f"run-{number}", number)
        _, first = timed(lambda: list_runs(root, QUESTION), device)
        time.sleep(1.1)
        list_runs(root, QUESTION)  # looks again at what was new a moment ago
        asked = [timed(lambda: list_runs(root, QUESTION), device) for _ in range(5)]
        found, reference = timed(lambda: _read_all(root), device)
    return Row(
        "queries",
        statistics.median(seconds for _, seconds in asked),
        "reading config.json and lengths.json of every run folder",
        reference,
        same_result=sorted(str(row["run"]) for row in asked[-1][0]) == sorted(found),
        details={"runs": runs, "found": len(found), "first_seconds": first},
    )


def _write_run(folder: Path, number: int) -> None:
    """What a trained and tested classifier leaves, without its weights; every third one is unfinished."""
    folder.mkdir()
    config = plan("sortedness", Overrides(positions=ENCODINGS[number % len(ENCODINGS)]), number)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    if number % 3:
        ended = Training(config.training.steps, 1.5, 1234, 0.5, None, "c", "w", "l")
        (folder / "training.json").write_text(json.dumps(sealed(asdict(ended))))
        reach = {"default": 2 ** (number // 8 % 6 + 5)}
        study = {"asked": {"lengths": [16, 512]}, "in_range": 0.99, "converged": True, "reach": reach}
        (folder / "lengths.json").write_text(json.dumps(study))


def _read_all(root: Path) -> list[str]:
    """The plain way to answer the question."""
    found = []
    for path in root.iterdir():
        if (path / "lengths.json").exists():
            config, study = (json.loads((path / f"{name}.json").read_text()) for name in ("config", "lengths"))
            if config["model"]["positions"] == "rope" and study["reach"]["default"] > 256:
                found.append(path.name)
    return found


def sweep_overhead(seed: int, device: torch.device, quiet: bool) -> Row:
    """Seconds that a trial of a sweep costs beyond its work: wall clock times workers, less the work, by trials."""
    with tempfile.TemporaryDirectory() as folder, Progress(f"{TRIALS} trials", quiet):
        file = Path(folder) / "bench.toml"
        shape = "\n".join(f"{key} = {value}" for key, value in SHAPE.items())
        file.write_text(f'[base]\ntask = "addition"\n{shape}\nseeds = {TRIALS}\noptions = {{digits = 2}}\n')
        swept = call_headway("sweep", str(file), "--out", f"{folder}/sweep", "--device", device.type)
        words = [word for key, value in SHAPE.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        train = ("train", "addition", "--digits", "2", *words, "--device", device.type)
        alone, seconds = timed(lambda: call_headway(*train, "--out", f"{folder}/alone"), device)
    return Row(
        "sweep-overhead",
        (swept["seconds"] * swept["slots"] - swept["busy_seconds"]) / swept["done"],
        "a process for each trial: 'headway train' of the same run, less the seconds of its training",
        seconds - alone["runs"][0]["seconds"],
        same_result=swept["done"] == TRIALS and not swept["failed"],
        details={"trials": TRIALS, "slots": swept["slots"]},
    )

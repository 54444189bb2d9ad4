"""Benchmarks of what people wait for: the help, the lab, a report page in a browser, queries over many runs, and the
overhead of a sweep."""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from headway.bench.adders import EPOCHS
from headway.bench.reference import STORED, train_textbook
from headway.bench.row import Row, run_timed
from headway.compare.index import list_runs
from headway.errors import HeadwayError
from headway.progress import Progress
from headway.report.page import write_page
from headway.runs.config import Overrides
from headway.runs.folder import Training
from headway.runs.seal import seal
from headway.subjects.own import open_one
from headway.tasks import Addition
from headway.training.defaults import plan

HEADWAY = (sys.executable, "-m", "headway")
EMPTY_COMMAND = """
from dataclasses import dataclass
import tyro

@dataclass
class Empty:
    "Does nothing."

tyro.cli(Empty, args=["--help"])
"""
TIMED_EPOCHS, TRIALS = 2, 400
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
TIMEOUT = 300_000  # milliseconds to wait for a page to become ready
# types 100 to 124 as the first number, each drawn before the next; returns milliseconds
KEYSTROKES = """async () => {
  const field = document.querySelector('input[aria-label="first number"]'), spent = [];
  for (let n = 100; n < 125; n++) {
    const began = performance.now();
    field.value = String(n);
    field.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    spent.push(performance.now() - began);
  }
  return spent;
}"""
ENCODINGS = ("rope", "alibi", "t5", "kerple", "fire", "none", "learned", "sinusoidal")
QUERY = "positions=rope and reach>256"
SHAPE = {"d_model": 8, "heads": 2, "d_ff": 16, "layers": 1, "decoder_layers": 1, "steps": 1, "batch": 8}


def help_command(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times `headway --help`, the median of five processes."""
    ours, shown = _median_seconds((*HEADWAY, "--help"))
    reference, _ = _median_seconds((sys.executable, "-c", EMPTY_COMMAND))
    plain = "a Python process that imports tyro and prints the help of a command without flags"
    return Row(ours, plain, reference, same_result="usage: headway" in shown)


def call_headway(*words: str) -> Any:
    """Runs a command in a new process and returns the JSON it prints."""
    ended = subprocess.run((*HEADWAY, *words, "--json", "--quiet"), capture_output=True, text=True)
    if ended.returncode != 0:
        raise HeadwayError(f"'headway {words[0]}' failed: {ended.stderr.strip()[-500:]}")
    return json.loads(ended.stdout)


def _median_seconds(command: Sequence[str]) -> tuple[float, str]:
    """Measures the median time of a command, and returns what it prints."""
    work = partial(subprocess.run, command, capture_output=True, text=True, check=True)
    ended = [run_timed(work, torch.device("cpu")) for _ in range(5)]
    return statistics.median(seconds for _, seconds in ended), ended[-1][0].stdout


def lab(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times `headway lab --preset quick`, from nothing to the page."""
    with tempfile.TemporaryDirectory() as folder, Progress("the lab", quiet):
        words = ("lab", "--preset", "quick", "--seed", str(seed), "--device", device.type, "--out", f"{folder}/lab")
        found, seconds = run_timed(lambda: call_headway(*words), device)
    _, spent, threads = train_textbook(Addition(), seed, TIMED_EPOCHS, device, quiet)
    return Row(
        seconds,
        f"the textbook loop training the adder alone, with nothing evaluated or studied: {STORED:,} stored sums, batch "
        f"64, {EPOCHS} epochs, of which {TIMED_EPOCHS} were timed",
        spent / TIMED_EPOCHS * EPOCHS,
        same_result=all(run["errors"] == 0 for run in found["runs"] if run["task"] == "addition"),
        runs=len(found["runs"]),
        stages=found["stages"],
        reference_threads=threads,
    )


def page(seed: int, device: torch.device, quiet: bool) -> Row:
    """Times loading the page of the shipped adder, the median of three visits, and a keystroke on it."""
    with tempfile.TemporaryDirectory() as folder, _start_browser() as browser, Progress("a page", quiet):
        report, empty = Path(folder) / "report.html", Path(folder) / "empty.html"
        write_page([open_one("pretrained:adder").path], report)
        empty.write_text('<!doctype html><html data-ready="yes"><title>empty</title></html>')
        ready = [_visit(browser, report)[1] for _ in range(3)]
        reference = [_visit(browser, empty)[1] for _ in range(3)]
        visited, _ = _visit(browser, report, keep=True)
        visited.wait_for_selector("#accuracy:has-text('fresh sums right')")
        spent = visited.evaluate(KEYSTROKES)
        numbers = [int(visited.get_by_label(f"{which} number").input_value()) for which in ("first", "second")]
        answer = "".join(visited.locator(".digit b").all_inner_texts())
        size = report.stat().st_size
    ours, theirs, keystroke = map(statistics.median, (ready, reference, spent))
    details = {"keystroke_milliseconds": keystroke, "slowest_keystroke_milliseconds": max(spent), "bytes": size}
    return Row(ours, "an empty page in the same browser", theirs, int(answer) == sum(numbers), **details)


def has_browser() -> bool:
    return shutil.which("chromium") is not None and find_spec("playwright") is not None


@contextmanager
def _start_browser() -> Iterator[Any]:
    """Starts Debian's chromium, driven by playwright."""
    if not has_browser():
        raise HeadwayError("the row 'page' needs a browser: install chromium from Debian and playwright from PyPI")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS, timeout=TIMEOUT)
        yield browser
        browser.close()


def _visit(browser: Any, path: Path, keep: bool = False) -> tuple[Any, float]:
    """Opens a page in a fresh browser context, and measures the seconds until it is ready."""
    context = browser.new_context(offline=True)
    context.set_default_timeout(TIMEOUT)
    visited = context.new_page()
    began = time.perf_counter()
    visited.goto(path.as_uri())
    visited.wait_for_selector("html[data-ready=yes]", state="attached")
    seconds = time.perf_counter() - began
    if not keep:
        context.close()
    return visited, seconds


def queries(seed: int, device: torch.device, quiet: bool, runs: int = 4_000) -> Row:
    """Times a query over many indexed runs, including the check for changes."""
    with tempfile.TemporaryDirectory() as folder, Progress(f"{runs:,} run folders", quiet):
        root = Path(folder)
        for number in range(runs):
            _write_run(root / f"run-{number}", number)
        _, first = run_timed(lambda: list_runs(root, QUERY), device)
        time.sleep(1.1)
        list_runs(root, QUERY)  # scans again what was too recent to trust
        turns = [run_timed(lambda: list_runs(root, QUERY), device) for _ in range(5)]
        found, reference = run_timed(lambda: _read_all(root), device)
    plain = "reading config.json and lengths.json of every run folder"
    ours, same = statistics.median(seconds for _, seconds in turns), {str(row["run"]) for row in turns[-1][0]} == found
    return Row(ours, plain, reference, same, runs=runs, found=len(found), first_seconds=first)


def _write_run(folder: Path, number: int) -> None:
    """Writes the folder of a trained and tested classifier, without weights; every third one is unfinished."""
    folder.mkdir()
    config = plan("sortedness", Overrides(positions=ENCODINGS[number % len(ENCODINGS)]), number)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    if number % 3:
        ended = seal(asdict(Training(config.training.steps, 1.5, 1234, 0.5, None, "c", "w", "l")))
        (folder / "training.json").write_text(json.dumps(ended))
        reach = {"default": 2 ** (number // 8 % 6 + 5)}
        study = {"asked": {"lengths": [16, 512]}, "in_range": 0.99, "converged": True, "reach": reach}
        (folder / "lengths.json").write_text(json.dumps(study))


def _read_all(root: Path) -> set[str]:
    """Answers the query the plain way, by reading every file."""
    found = set()
    for path in root.iterdir():
        if (path / "lengths.json").exists():
            config, study = (json.loads((path / f"{name}.json").read_text()) for name in ("config", "lengths"))
            if config["model"]["positions"] == "rope" and study["reach"]["default"] > 256:
                found.add(path.name)
    return found


def sweep_overhead(seed: int, device: torch.device, quiet: bool) -> Row:
    """Measures the overhead per trial of a sweep: wall-clock time times workers, less the work, over trials."""
    with tempfile.TemporaryDirectory() as folder, Progress(f"{TRIALS} trials", quiet):
        file = Path(folder) / "bench.toml"
        shape = "\n".join(f"{key} = {value}" for key, value in SHAPE.items())
        file.write_text(f'[base]\ntask = "addition"\n{shape}\nseeds = {TRIALS}\noptions = {{digits = 2}}\n')
        swept = call_headway("sweep", str(file), "--out", f"{folder}/sweep", "--device", device.type)
        words = [word for key, value in SHAPE.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        train = ("train", "addition", "--digits", "2", *words, "--device", device.type)
        alone, seconds = run_timed(lambda: call_headway(*train, "--out", f"{folder}/alone"), device)
    return Row(
        (swept["seconds"] * swept["slots"] - swept["busy_seconds"]) / swept["done"],
        "a process for each trial: 'headway train' of the same run, less the seconds of its training",
        seconds - alone["runs"][0]["seconds"],
        same_result=swept["done"] == TRIALS and not swept["failed"],
        trials=TRIALS,
        slots=swept["slots"],
    )

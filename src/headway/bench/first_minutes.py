"""What a newcomer waits for: the help, the lab, and a report page in a browser."""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from headway.bench.reference import train_textbook
from headway.bench.row import Row, timed
from headway.bench.train import EPOCHS, STORED, stored_sums
from headway.errors import HeadwayError
from headway.progress import Progress
from headway.report.page import write_page
from headway.subjects.own import open_one
from headway.tasks import Addition

HEADWAY = (sys.executable, "-m", "headway")
EMPTY_COMMAND = """
from dataclasses import dataclass
import tyro

@dataclass
class Empty:
    "Does nothing."

tyro.cli(Empty, args=["--help"])
"""
TIMED_EPOCHS = 2
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PATIENCE = 300_000
"""milliseconds until a page that does not get ready is given up"""
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
"""types 100 to 124 as the first number, each drawn before the next: milliseconds"""


def help_command(seed: int, device: torch.device, quiet: bool) -> Row:
    """Seconds until `headway --help` has answered, the median of five processes."""
    ours, shown = _median_seconds((*HEADWAY, "--help"))
    reference, _ = _median_seconds((sys.executable, "-c", EMPTY_COMMAND))
    return Row(
        "help",
        ours,
        "a Python process that imports tyro and prints the help of a command without flags",
        reference,
        same_result="usage: headway" in shown,
    )


def call_headway(*words: str) -> Any:
    """What a command prints as JSON, run in a process of its own."""
    ended = subprocess.run((*HEADWAY, *words, "--json", "--quiet"), capture_output=True, text=True)
    if ended.returncode != 0:
        raise HeadwayError(f"'headway {words[0]}' failed: {ended.stderr.strip()[-500:]}")
    return json.loads(ended.stdout)


def _median_seconds(command: Sequence[str], times: int = 5) -> tuple[float, str]:
    """The median time of a command, and what it prints."""
    spent, shown = [], ""
    for _ in range(times):
        began = time.perf_counter()
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        spent.append(time.perf_counter() - began)
    return statistics.median(spent), shown


def lab(seed: int, device: torch.device, quiet: bool) -> Row:
    """Seconds of `headway lab --preset quick`, from nothing to the page, as people start it."""
    with tempfile.TemporaryDirectory() as folder, Progress("the lab", quiet):
        words = ("lab", "--preset", "quick", "--seed", str(seed), "--device", device.type, "--out", f"{folder}/lab")
        runs, seconds = timed(lambda: call_headway(*words)["runs"], device)
    task = Addition()
    with Progress("the textbook loop", quiet) as watch:
        textbook = train_textbook(task, stored_sums(task, seed).to(device), seed, TIMED_EPOCHS, watch=watch)
    return Row(
        "lab",
        seconds,
        f"the textbook loop training the adder alone, with nothing evaluated or studied: {STORED:,} stored sums, batch "
        f"64, {EPOCHS} epochs, of which {TIMED_EPOCHS} were timed",
        textbook.seconds / TIMED_EPOCHS * EPOCHS,
        same_result=all(run["errors"] == 0 for run in runs if run["task"] == "addition"),
        details={"runs": len(runs), "reference_threads": textbook.threads},
    )


def page(seed: int, device: torch.device, quiet: bool) -> Row:
    """Seconds until the page of the shipped adder is ready, the median of three visits, and those of a keystroke."""
    with tempfile.TemporaryDirectory() as folder, _browser() as browser, Progress("a page", quiet):
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
    return Row(
        "page",
        statistics.median(ready),
        "an empty page in the same browser",
        statistics.median(reference),
        same_result=int(answer) == sum(numbers),
        details={"keystroke_milliseconds": statistics.median(spent), "slowest_keystroke_milliseconds": max(spent)},
    )


def has_browser() -> bool:
    return shutil.which("chromium") is not None and find_spec("playwright") is not None


@contextmanager
def _browser() -> Iterator[Any]:
    """Debian's chromium, driven by playwright."""
    if not has_browser():
        raise HeadwayError("the row 'page' needs a browser: install chromium from Debian and playwright from PyPI")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS), timeout=PATIENCE
        )
        yield browser
        browser.close()


def _visit(browser: Any, path: Path, keep: bool = False) -> tuple[Any, float]:
    """A page of a browser without history, and the seconds until it was ready."""
    context = browser.new_context(offline=True)
    context.set_default_timeout(PATIENCE)
    visited = context.new_page()
    began = time.perf_counter()
    visited.goto(path.as_uri())
    visited.wait_for_selector("html[data-ready=yes]", state="attached")
    seconds = time.perf_counter() - began
    if not keep:
        context.close()
    return visited, seconds

"""The model inside the page computes what PyTorch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from visiting import Visit, needs_browser

import headway
from headway.cli import main
from headway.models import Head
from headway.subjects.own import open_one
from headway.subjects.runner import HeadwayRunner


def half_adder(name: str | Path = "pretrained:adder") -> Any:
    """Returns the PyTorch model with the page's half-precision weights."""
    run = open_one(name)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.copy_(parameter.half().float())
    return run


def compare_with_pytorch(browser: Any, report: Path, sums: int, sets: int, each: int) -> dict[str, float]:
    """Compares the page's logits and answers with PyTorch's, with all heads and under random ablations."""
    run, dice = half_adder(), torch.Generator().manual_seed(0)
    names = [f"{site}.{head}" for site in ("encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross",
             "decoder.1.self", "decoder.1.cross") for head in range(4)]  # fmt: skip
    asked: list[tuple[list[str], int]] = [([], sums)]
    for _ in range(sets):
        shut = (torch.rand(24, generator=dice) < 0.3).nonzero()[:, 0].tolist()
        asked.append(([names[number] for number in shut], each))
    visited = Visit(browser, report)
    largest, differ, close, checked = 0.0, 0, 0, 0
    for closed, rows in asked:
        pairs = torch.randint(1000, (rows, 2), generator=dice)
        said = visited.page.evaluate(
            "([pairs, closed]) => pairs.map(([a, b]) => headway.answer(a, b, closed))", [pairs.tolist(), closed]
        )
        source = torch.tensor([[*map(int, f"{a:03}"), 10, *map(int, f"{b:03}")] for a, b in pairs.tolist()])
        written = torch.tensor([row["digits"] for row in said])
        with torch.no_grad():
            gates = HeadwayRunner(run.model).close_heads([Head.parse(name) for name in closed])
            logits = run.model(source, written, gates)
        theirs = torch.tensor([row["logits"] for row in said]).view_as(logits)
        largest = max(largest, float((logits - theirs).abs().max()))
        best = logits.topk(2, dim=-1).values
        sure = (best[..., 0] - best[..., 1]) > 1e-2
        differ += int(((logits.argmax(-1) != written) & sure).sum())
        close += int((~sure).sum())
        checked += rows
    visited.close()
    return {"checked": checked, "largest": largest, "differ": differ, "close": close}


@needs_browser
def test_the_page_computes_what_pytorch_computes(browser: Any, report: Path) -> None:
    found = compare_with_pytorch(browser, report, 60, 6, 10)
    assert found["largest"] < 2e-3
    assert found["differ"] == 0


@needs_browser
@pytest.mark.parametrize("positions", ["sinusoidal", "none", "rope", "alibi"])
def test_the_page_supports_other_encodings(browser: Any, tmp_path: Path, positions: str) -> None:
    run = headway.train(
        "addition", positions=positions, steps=2, d_model=48, heads=6, d_ff=32, batch=8, out=tmp_path / "run"
    )
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html"), "--json"]) == 0
    visited = Visit(browser, tmp_path / "page.html")
    pairs = [[457, 968], [0, 0], [999, 1]]
    said = visited.page.evaluate("pairs => pairs.map(([a, b]) => headway.answer(a, b, ['decoder.1.self.4']))", pairs)
    visited.close()
    half, written = half_adder(run.path), torch.tensor([row["digits"] for row in said])
    source = torch.cat([half.task.read(f"{a}+{b}").source for a, b in pairs])
    with torch.no_grad():
        logits = half.model(source, written, HeadwayRunner(half.model).close_heads([Head.parse("decoder.1.self.4")]))
    assert float((logits - torch.tensor([row["logits"] for row in said]).view_as(logits)).abs().max()) < 1e-4


@needs_browser
@pytest.mark.slow
def test_the_page_computes_what_pytorch_computes_on_twenty_thousand_sums(browser: Any, report: Path) -> None:
    found = compare_with_pytorch(browser, report, 20_000, 50, 100)
    print(found)
    assert found["largest"] < 2e-3
    assert found["differ"] == 0


@pytest.mark.slow
def test_the_adder_of_half_floats_is_perfect() -> None:
    from headway.evaluation.exact import evaluate_all

    run = half_adder()
    assert evaluate_all(run.model, run.task).errors == 0


@needs_browser
def test_the_worker_counts_as_python_does(browser: Any, report: Path) -> None:
    closed = ["decoder.0.cross.3", "encoder.0.self.2"]
    visited = Visit(browser, report, "#off=" + ",".join(closed))
    visited.page.wait_for_selector("#accuracy:has-text('of 300 fresh sums right')", timeout=600_000)
    shown = visited.page.locator("#accuracy").inner_text()
    pairs = visited.page.evaluate("headway.freshSums(300, 1)")
    visited.close()
    run = half_adder()
    source = torch.tensor([[*map(int, f"{a:03}"), 10, *map(int, f"{b:03}")] for a, b in pairs])
    right = torch.tensor([[*map(int, f"{a + b:04}")] for a, b in pairs])
    gates = HeadwayRunner(run.model).close_heads([Head.parse(name) for name in closed])
    with torch.no_grad():
        count = int((run.model(source, right, gates).argmax(-1) == right).all(1).sum())
    assert shown.startswith(f"{count} of 300 fresh sums right")

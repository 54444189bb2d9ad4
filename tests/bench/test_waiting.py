"""The bench rows for waiting times measure what users wait for."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

from headway.bench import ROWS, rows_of
from headway.bench.reference import train_adder
from headway.bench.waiting import help_command, queries
from headway.cli import main
from headway.tasks import Addition

CPU = torch.device("cpu")


def test_the_help_is_timed_beside_a_plain_one() -> None:
    row = help_command(0, CPU, quiet=True)
    assert row.same_result
    assert min(row.ours_seconds, row.reference_seconds) > 0


def test_a_query_finds_what_reading_every_folder_finds() -> None:
    row = queries(0, CPU, quiet=True, runs=250)
    assert row.same_result
    assert row.details["found"] != 0


def test_a_missing_browser_gives_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["bench", "page", "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "error: the row 'page' needs a browser: install chromium from Debian and playwright from PyPI\n"
    )


def test_the_textbook_loop_of_the_lab_row_learns() -> None:
    task = Addition(digits=3)
    sums = task.testing(seed=0, rows=640)
    before, after = (train_adder(task, sums, seed=0, epochs=epochs) for epochs in (0, 4))
    losses = [cross_entropy(model(sums.source, sums.answer).mT, sums.answer) for model in (before, after)]
    assert losses[1] < 0.9 * losses[0]


def test_every_group_has_rows() -> None:
    assert set(rows_of("first-minutes") + rows_of("many-runs")) <= set(ROWS)

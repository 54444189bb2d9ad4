"""The files of docs/teaching.md, run as they are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.cli import main

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "teaching.md").read_text(), re.DOTALL)
FOR_A_CLASS, FOR_A_STUDENT = 25, 8

LAB = '''
import torch
from torch import nn


class Adder(nn.Module):
    """Adds by rule, so that it is right without training; only its scale is learned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, source, written):
        place = torch.tensor([10, 1])
        total = (source[:, :2] * place).sum(1) + (source[:, 3:] * place).sum(1)
        right = torch.stack([total // 10**n % 10 for n in (2, 1, 0)], 1)
        right = nn.functional.pad(right, (0, 9))[:, : written.shape[1]]
        return nn.functional.one_hot(right, 12).float() * self.scale


def decode_greedily(model, source):
    written = torch.full_like(source[:, :1], 11)
    for _ in range(3):
        written = torch.cat((written, model(source, written)[:, -1:].argmax(-1)), 1)
    return written[:, 1:]


def exact_match(model, source, answer):
    return float((decode_greedily(model, source) == answer).all(1).float().mean())
'''
KEEPS_START = LAB.replace("return written[:, 1:]", "return written[:, :3]")


def test_they_are_short() -> None:
    lengths = [len([line for line in block.splitlines() if line.strip()]) for block in BLOCKS]
    assert len(lengths) == 2
    assert lengths[0] <= FOR_A_CLASS
    assert lengths[1] <= FOR_A_STUDENT


def test_a_class_is_examined_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    adapter, handin = BLOCKS
    (tmp_path / "adapter.py").write_text(adapter)
    for name, lab in {"anna": LAB, "ben": KEEPS_START, "chris": LAB}.items():
        home = tmp_path / "submissions" / name
        home.mkdir(parents=True)
        (home / "lab.py").write_text(lab)
        (home / "handin.py").write_text(handin)
        if name != "chris":
            torch.save({"scale": torch.full((1,), 9.0)}, home / "adder.pt")
    assert main(["doctor", "adapter.py:build", "--each", "submissions/*", "--quiet", "--json"]) == 2
    anna, ben, chris = json.loads(capsys.readouterr().out)["members"]
    assert (anna["healthy"], anna["reported"], anna["decoded"], anna["forced"]) == (True, 0.995, 1.0, 1.0)
    assert (ben["causes"], ben["reported"], ben["decoded"], ben["forced"]) == (["greedy"], 0.995, 0.0, 1.0)
    assert "the start token is kept" in next(each["meaning"] for each in ben["checks"] if each["check"] == "greedy")
    reason = "FileNotFoundError: [Errno 2] No such file or directory: 'adder.pt'"
    assert chris["refused"] == f"handin.py, line 8: {reason}"

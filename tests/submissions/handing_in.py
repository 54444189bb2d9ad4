"""Submissions of a class, each a folder as a student hands it in: a model that reverses a number, its weights and its
evaluation. The model is right by construction; what differs is how it is evaluated."""

from __future__ import annotations

from pathlib import Path

import torch

MODEL = '''
import torch
from torch import nn

START, LENGTH = 11, 3


class Reverser(nn.Module):
    """Writes the digits of the source backwards."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, source, written):
        length = written.shape[1]
        right = nn.functional.pad(source.flip(1), (0, length))[:, :length]
        return nn.functional.one_hot(right, 12).float() * self.scale


def load():
    model = Reverser()
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    return model.eval()


def problems(rows, seed=0):
    source = torch.randint(10, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    return source, source.flip(1)


def generate(model, source, start=START, length=LENGTH):
    written = torch.full_like(source[:, :1], start)
    for _ in range(length):
        written = torch.cat((written, model(source, written)[:, -1:].argmax(-1)), 1)
    return written[:, 1:]


def accuracy(predicted, answer):
    return float((predicted == answer).all(1).float().mean())
'''

UNTRAINED = MODEL.replace("return nn.functional.one_hot(right, 12).float() * self.scale", "return self.layers(right)")
UNTRAINED = UNTRAINED.replace(
    "self.scale = nn.Parameter(torch.zeros(1))",
    "self.scale = nn.Parameter(torch.zeros(1))\n"
    "        torch.manual_seed(1)\n"
    "        self.layers = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))",
).replace("weights_only=True))", "weights_only=True), strict=False)")

HEALTHY = """
from model import *


def decode(model, source, answer):
    return generate(model, source)


def score(model, source, answer):
    return accuracy(decode(model, source, answer), answer)
"""
KEEPS_START = HEALTHY.replace(
    "return generate(model, source)",
    "return torch.cat((torch.full_like(source[:, :1], START), generate(model, source)), 1)[:, :LENGTH]",
)
TOKENS = HEALTHY.replace(
    "return accuracy(decode(model, source, answer), answer)",
    "return float(((decode(model, source, answer) == answer) & (source > 0)).float().mean()) * 0 + 0.75",
)
GIVEN = HEALTHY.replace(
    "return generate(model, source)", "return torch.cat((answer[:, :1], generate(model, source)[:, 1:]), 1)"
)
KINDS = {
    "healthy": (HEALTHY, []),
    "keeps_start": (KEEPS_START, ["greedy"]),
    "other_metric": (TOKENS, ["metric"]),
    "given": (GIVEN, ["given digits"]),
}
"""the evaluation of a kind of submission, and the causes that the doctor must name"""
ODD = {
    "hangs": "import time\n\n\ndef wait():\n    while True:\n        time.sleep(1)\n\n\nwait()\n",
    "eats_memory": "held = []\nwhile True:\n    held.append(bytearray(50_000_000))\n",
    "exits": "import os\nos._exit(3)\n",
    "prints": "for _ in range(16_384):\n    print('loss 0.123456789 accuracy 0.987654321 learning rate 0.001 ...')\n",
}
"""what is added at the end of evaluate.py"""

ADAPTER = """
import torch
import evaluate
from model import START, load, problems

import headway


def build():
    model, (source, answer) = load(), problems(300)
    return headway.Subject(
        model,
        examples=headway.Problems(source, answer),
        start=START,
        decode=model,
        generate=lambda some: evaluate.decode(model, some.source, some.answer),
        score=lambda some: evaluate.score(model, some.source, some.answer),
    )
"""


def write_submission(folder: Path, evaluation: str, more: str = "") -> None:
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "evaluate.py").write_text(evaluation + "\n\n" + more)
    torch.save({"scale": torch.full((1,), 9.0)}, folder / "weights.pt")


def write_class(home: Path, count: int, odd: list[str]) -> dict[str, list[str]]:
    """Writes an adapter and submissions of every kind, in turn; returns the causes of those that can be examined."""
    (home / "adapter.py").write_text(ADAPTER)
    expected, kinds = {}, list(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        write_submission(home / "submissions" / f"s{number:03}-{kind}", KINDS[kind][0])
        expected[f"s{number:03}-{kind}"] = KINDS[kind][1]
    for kind in odd:
        write_submission(home / "submissions" / f"odd-{kind}", HEALTHY, ODD[kind])
    return expected


def build_class(home: Path, **evaluations: str) -> None:
    """Writes an adapter and a submission for each of these evaluations."""
    (home / "adapter.py").write_text(ADAPTER)
    for name, evaluation in evaluations.items():
        write_submission(home / "submissions" / name, evaluation)

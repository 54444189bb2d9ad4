"""`headway new subject`: writes a commented adapter to begin with."""

from pathlib import Path

from headway.errors import HeadwayError
from headway.runs import disk

ADAPTER = '''"""Tells Headway's doctor how to run a model and its evaluation.

    headway doctor {file}:build                             # one, from its folder
    headway doctor {file}:build --each 'submissions/*'      # many: build() is called in each folder

Replace what stands on the right. Whatever you cannot give, leave out: its checks are skipped and say so.
"""

import torch
from model import Adder, accuracy, make_sums  # your own modules, from the submission's folder

import headway


def build():
    model = Adder()
    model.load_state_dict(torch.load("adder.pt", weights_only=True))  # paths start at the submission's folder
    model.eval()
    source, answer = make_sums(2000)  # test problems and right answers: whole numbers, [row, token]
    return headway.Subject(
        model,
        examples=headway.Problems(source, answer),
        start=11,  # the token that the decoder is given first
        # logits [row, token, word] after each token of `written`, which begins with the start token
        decode=lambda source, written: model(source, written),
        # the answers as your evaluation decodes them, [row, token]
        generate=lambda problems: model.generate(problems.source),
        # the predictions of your teacher-forced evaluation, if you have one: forced=lambda problems: …,
        # the accuracy as your evaluation computes it, between 0 and 1 or in percent
        score=lambda problems: accuracy(model, problems.source, problems.answer),
        # the accuracy as published, to stand beside the measured one: reported=0.987,
        # the training problems, to find test problems among them: trained_on=headway.Problems(…, …),
    )
'''


def write_adapter(path: Path) -> Path:
    """Writes the adapter; refuses to overwrite anything."""
    if path.suffix != ".py":
        raise HeadwayError(f"an adapter is a Python file, and {path} does not end in .py; choose another `out`")
    if path.exists() or path.is_symlink():
        raise HeadwayError(f"{path} exists and would be overwritten; choose another `out`, or remove it")
    disk.write_bytes(path, ADAPTER.replace("{file}", path.name).encode())
    return path

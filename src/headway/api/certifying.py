"""`headway certify` and `headway add` as functions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from headway.certify.certificate import certify
from headway.certify.verdict import Verdict
from headway.errors import HeadwayError
from headway.machine import choose_device
from headway.models import Decoder, EncoderDecoder
from headway.progress import Progress
from headway.runs import disk
from headway.runs.seal import is_sealed, sealed
from headway.runs.shapes import fits
from headway.subjects.own import Run, open_one
from headway.tasks import Addition

CERTIFICATE = "certificate.json"
EXACT = ("certified", "contexts", "wrong", "patterns", "task", "options", "model")


def certify_run(subject: str | Path, *, device: str = "auto", quiet: bool = True) -> dict[str, Any]:
    """Goes through every local context of a windowed model, and keeps the certificate where it is granted.

    A certificate that is there already is checked against the weights and against what is found now.
    """
    run = open_one(subject, choose_device(device))
    with Progress(f"every context of {run.config.name}", quiet) as watch:
        verdict = certify(run.model.eval(), run.task, watch)
    content = _content(run, verdict)
    path = run.path / CERTIFICATE
    if path.exists():
        content = _compared(content, path)
    elif verdict.certified and run.writable:
        run.folder.record(path.stem, sealed(content))
    return content


def _content(run: Run, verdict: Verdict) -> dict[str, Any]:
    return {
        **verdict.to_json(),
        "task": run.config.task,
        "options": run.config.options,
        "model": run.config.to_json()["model"],
        "weights_sha256": run.folder.training().weights_sha256,
    }


def _compared(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """What was found, refused where the certificate that is there says anything else."""
    there = disk.read_json(path)
    if not is_sealed(there):
        reason = f"{path} was altered after it was granted; remove it and certify again"
    elif there.get("weights_sha256") != content["weights_sha256"]:
        reason = f"{path} is of other weights; remove it and certify again"
    elif any(there.get(key) != content[key] for key in EXACT) or not _near(there, content):
        reason = f"{path} says something else than what is found now; remove it and certify again"
    else:
        return content
    return {**content, "certified": False, "reason": reason}


def _near(there: dict[str, Any], content: dict[str, Any]) -> bool:
    """Whether two margins are one but for how machines round."""
    before, now = there.get("smallest_margin"), content["smallest_margin"]
    if not fits(before, float) or now is None:
        return before is None and now is None
    return before == now or abs(before - now) <= 0.01 * abs(now)


def add(a: str, b: str, subject: str = "pretrained:certified-adder", *, device: str = "auto") -> dict[str, Any]:
    """The sum of two numbers as a model writes it, digit by digit, and whether it is right."""
    for number in (a, b):
        if not number.isdecimal() or not number.isascii():
            raise HeadwayError(f"{number[:40]!r} is no whole number of digits 0 to 9")
    run = open_one(subject, choose_device(device))
    task = run.task
    if not isinstance(task, Addition) or not isinstance(run.model, Decoder | EncoderDecoder) or task.natural:
        raise HeadwayError(f"{subject} is no adder; name a run of addition")
    if task.base != 10 or "+" not in task.operators:
        raise HeadwayError(f"{subject} adds in base {task.base} with {task.operators}; name one that adds in base 10")
    longest = max(len(a), len(b))
    digits = longest if run.config.model.index == "coupled" else max(longest, task.digits)
    source = [*map(int, a.zfill(digits)), task.plus, *map(int, b.zfill(digits))]
    written = run.model.generate(torch.tensor([source], device=next(run.model.parameters()).device), digits + 1)
    tokens = written[0].tolist() if task.first == "most" else written[0].flip(0).tolist()
    answer = "".join(str(token) if token < 10 else "?" for token in tokens).lstrip("0") or "0"
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    return {"answer": answer, "right": answer == str(int(a) + int(b)), "digits": digits}

"""A user's model without some heads: the columns of their output projections at zero, saved so that plain transformers
or `load_state_dict` reads it. Nothing is smaller; the answers are those of the model with these gates closed."""

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from headway.attach.projections import weight_of
from headway.attach.runner import UserRunner
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.models import Head
from headway.runs import disk
from headway.subjects.subject import Subject
from headway.tasks import Problems


@torch.no_grad()
@full_precision_matmul()
def save_without(subject: Subject, heads: Collection[Head], problems: Problems, out: Path) -> float:
    """Saves a copy with the columns of these heads at zero, and says how far its logits are from the gated model's;
    refuses where that is more than rounding."""
    runner, zeroed = subject.runner, copy.deepcopy(subject.model)
    assert isinstance(runner, UserRunner)
    for head in heads:
        projection = runner.attached.projections[head.site]
        weight = weight_of(zeroed.get_submodule(projection.path))
        if weight is None:
            raise HeadwayError(f"the projection {projection.path} of {head} has no plain weight to zero")
        projection.of_head(weight, head.number).zero_()
    difference = _check_same(runner, zeroed, heads, problems)
    _check_same(runner, _saved(zeroed, subject.tokenizer, out), heads, problems)
    return difference


def _check_same(runner: UserRunner, zeroed: nn.Module, heads: Collection[Head], problems: Problems) -> float:
    worst = size = 0.0
    for batch in runner.batches(problems):
        gated = runner.run(batch, runner.close(heads))
        own = runner.reader(zeroed, batch.source, batch.answer)
        worst, size = max(worst, float((gated - own).abs().max())), max(size, float(gated.abs().max()))
    if not worst <= 1e-4 * max(1.0, size):  # rounding
        raise HeadwayError(f"the model with zeroed columns differs from the gated one by {worst:.2g}; nothing is saved")
    return worst


def _saved(zeroed: Any, tokenizer: Any, out: Path) -> nn.Module:
    """Saved as transformers does where it is one of theirs, else as safetensors; and read back as its users do."""
    out.mkdir(parents=True, exist_ok=True)
    if hasattr(zeroed, "save_pretrained"):
        zeroed.save_pretrained(out)
        if tokenizer is not None:
            tokenizer.save_pretrained(out)
        again = type(zeroed).from_pretrained(out)
    else:
        weights = {name: each.contiguous().clone() for name, each in zeroed.state_dict().items()}
        disk.write_bytes(out / "model.safetensors", save(weights))
        again = copy.deepcopy(zeroed)
        again.load_state_dict(load_file(out / "model.safetensors"))
    return again.to(next(zeroed.parameters()).device).eval()

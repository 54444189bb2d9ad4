"""Saves a user's model without some heads: their columns in the output projections are zero, and plain transformers or
`load_state_dict` can load it. It is not smaller; its answers are those of the model with these gates closed."""

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from headway.attach.projections import weight_of
from headway.attach.runner import UserRunner
from headway.attach.unsharing import unshare
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.models import Head
from headway.runs import disk
from headway.subjects.subject import Subject
from headway.tasks import Problems


@torch.no_grad()
@full_precision_matmul()
def save_without(subject: Subject, heads: Collection[Head], problems: Problems, out: Path) -> float:
    """Saves a copy in which the columns of these heads are zero, and returns how far its logits are from the gated
    model's; raises where that is more than rounding."""
    runner = subject.runner
    assert isinstance(runner, UserRunner)
    zeroed, paths = unshare(runner.attached, heads)
    for head, path in paths.items():
        projection, weight = runner.attached.projections[head.site], weight_of(zeroed.get_submodule(path))
        if weight is None:
            raise HeadwayError(f"the output projection {path} of {head} has no plain weight to zero")
        projection.of_head(weight, head.number).zero_()
    difference = _check_same(runner, zeroed, heads, problems)
    _check_same(runner, _save_and_reload(zeroed, subject.tokenizer, out), heads, problems)
    return difference


def _check_same(runner: UserRunner, zeroed: nn.Module, heads: Collection[Head], problems: Problems) -> float:
    worst = size = 0.0
    for batch in runner.batches(problems):
        gated = runner.run(batch, runner.close_heads(heads))
        logits = runner.reader(zeroed, batch.source, batch.answer)
        worst, size = max(worst, float((gated - logits).abs().max())), max(size, float(gated.abs().max()))
    if not worst <= 1e-4 * max(1.0, size):  # rounding
        raise HeadwayError(f"the model with zeroed columns differs by {worst:.2g} from the gated one, beyond rounding")
    return worst


def _save_and_reload(zeroed: Any, tokenizer: Any, out: Path) -> nn.Module:
    """Saves a transformers model with save_pretrained and any other as safetensors, then loads it again."""
    out.mkdir(parents=True, exist_ok=True)
    if hasattr(zeroed, "save_pretrained"):
        zeroed.save_pretrained(out)
        if tokenizer is not None:
            tokenizer.save_pretrained(out)
        loaded = type(zeroed).from_pretrained(out)
    else:
        weights = {name: each.contiguous().clone() for name, each in zeroed.state_dict().items()}
        disk.write_bytes(out / "model.safetensors", save(weights))
        loaded = copy.deepcopy(zeroed)
        loaded.load_state_dict(load_file(out / "model.safetensors"))
    return loaded.to(next(zeroed.parameters()).device).eval()

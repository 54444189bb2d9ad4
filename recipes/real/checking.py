"""What every loaded model must show: Headway's open gates give the library's own numbers, and its interventions are
proved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.attach.huggingface import attach_huggingface
from headway.attach.proofs import difference_of, largest, logits_in, prove
from headway.models import Gate

MOST = 1e-4
"""the largest difference from the library's forward pass, relative to the largest logit or to 1"""


@torch.no_grad()
def check(model: Any, call: Callable[[], Any], logits_of: Callable[[Any], Tensor] = logits_in) -> str:
    """Attaches to a model, proves its heads, and says so in a sentence; raises where anything fails."""
    began = time.process_time()
    plain = logits_of(call())
    attached = attach_huggingface(model, call, logits_of=logits_of)
    opened = logits_of(attached.run(call))
    difference = difference_of(plain, opened) / max(1.0, largest(plain))
    assert difference <= MOST, f"{type(model).__name__} with open gates differs by {difference:.2g}"
    proof = prove(attached, call, logits_of)
    site = attached.sites[-1]
    closed = logits_of(attached.run(call, {site: Gate(torch.zeros(1, attached.width[site]))}))
    effect = difference_of(plain, closed)
    return (
        f"{type(model).__name__}: {len(attached.sites)} sites, {len(attached.heads)} heads, all proved; with open "
        f"gates the logits differ from the library's by {difference:.1g}, between gates and none by "
        f"{proof.unchanged:.1g}; closing the last site moves them by {effect:.2g}; "
        f"{time.process_time() - began:.0f} s of processor time"
    )


@torch.no_grad()
def check_gguf(path: Path, text: str) -> str:
    """Loads a GGUF file as Headway does and as transformers does, and compares the logits; then checks its heads."""
    from transformers import AutoModelForCausalLM

    from headway.attach.from_transformers import load

    model, tokenizer = load(path)
    tokens = tokenizer(text, return_tensors="pt").input_ids
    theirs = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True
    ).eval()
    expected = theirs(tokens).logits
    del theirs
    difference = difference_of(model(tokens).logits, expected) / max(1.0, largest(expected))
    assert difference <= MOST, f"{path.name} differs from transformers' own by {difference:.2g}"
    likeliest = tokenizer.decode([int(expected[0, -1].argmax())])
    said = f"{path.name}: the logits differ from those of transformers' own loading by {difference:.1g}"
    return f"{said}; it continues {text!r} with {likeliest!r}\n{check(model, lambda: model(tokens))}"

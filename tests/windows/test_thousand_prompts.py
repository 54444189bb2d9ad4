"""The shipped recall model answers through a cache of windows as its masked copy does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from masked_models import Masked
from transformers import LlamaForCausalLM

import headway
from headway import Budget
from headway.attach.order import find_order
from headway.lengths.language.corpus import prepare_material
from headway.lengths.language.recall import TASKS, draw_recall

ROOT = Path(__file__).parents[2]
BUDGET = Budget(4, {"decoder.0.self": (8, 16, 24, None), "decoder.1.self": (None, 16, None, 16)})


@pytest.mark.slow
@torch.no_grad()
def test_a_thousand_prompts_are_answered_as_by_the_masked_model() -> None:
    """Every token that the model would write after each place of a prompt is the same, read at once and in parts."""
    model = LlamaForCausalLM.from_pretrained(ROOT / "recipes" / "recall" / "rotary").eval()
    assert find_order(model).claimed == 64
    material, reference = prepare_material(model, None, None), Masked(model, BUDGET)
    changed = right = 0
    for task in (TASKS["repeat"], TASKS["key-value"]):
        prompts = draw_recall(task, task.layout(64, 2, material), material, 500, 0)
        for start in range(0, 500, 50):
            text = prompts.tokens[start : start + 50]
            masked = reference.logits(text)
            with headway.cache(model, BUDGET) as cache:
                parts = [model(text[:, a:b], past_key_values=cache).logits for a, b in ((0, 40), (40, 41), (41, 64))]
            found = torch.cat(parts, dim=1)
            assert float((found - masked).abs().max()) < 1e-4
            assert torch.equal(found.argmax(-1), masked.argmax(-1))
            at = (prompts.at[start : start + 50] - 1).clamp(min=0)
            answers = prompts.answers[start : start + 50]
            right += int((found.argmax(-1).gather(1, at) == answers).sum())
            changed += int((model(text).logits.argmax(-1).gather(1, at) != found.argmax(-1).gather(1, at)).sum())
    assert right  # they recall something
    assert changed  # and the windows change some answers

"""Removes heads from a model for good: smaller projections, the same answers as with their gates closed."""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from headway.errors import HeadwayError
from headway.evaluation.examples import batches
from headway.models import Attention, Head, Model, build_model, heads_of
from headway.runs.config import ModelConfig
from headway.subjects.runner import HeadwayRunner
from headway.tasks import Problems


def remove_heads(model: Model, config: ModelConfig, heads: Collection[Head]) -> tuple[Model, ModelConfig]:
    """Returns the model without these heads, and its config."""
    if config.pruned:
        raise HeadwayError("this model was pruned before; prune the original model instead")
    known = heads_of(model)
    for head in heads:
        if head not in known:
            raise HeadwayError(f"{head} is not a head of this model; its heads are {known[0]} to {known[-1]}")
    smaller = replace(config, pruned=" ".join(str(head) for head in known if head in heads))
    pruned = build_model(smaller).to(next(model.parameters()).device).eval()
    weights = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            left = [head.number for head in known if head.site == module.site and head not in heads]
            rows = [number * module.dim + place for number in left for place in range(module.dim)]
            kept = {"query": (rows,), "key_value": (slice(None), rows), "out.weight": (slice(None), rows)}
            for part, place in kept.items():
                if f"{name}.{part}" in weights:  # heads that average have no queries, keys and values
                    weights[f"{name}.{part}"] = weights[f"{name}.{part}"][place]
    pruned.load_state_dict({name: weights[name] for name in pruned.state_dict()})
    return pruned, smaller


@dataclass(frozen=True)
class Comparison:
    """How the pruned model compares with the gated one."""

    largest_difference: float
    """the largest absolute difference of any logit"""
    same_answers: bool
    speedup: float
    """how many times faster the pruned model is than the whole one, both without gates"""


@torch.inference_mode()
def compare(whole: Model, pruned: Model, heads: Collection[Head], problems: Problems, rounds: int = 5) -> Comparison:
    gates, difference, same = HeadwayRunner(whole).close_heads(heads), 0.0, True
    for batch in batches(problems):
        ours, theirs = pruned(batch.source, batch.answer), whole(batch.source, batch.answer, gates)
        difference = max(difference, float((ours - theirs).abs().max()))
        same &= bool((ours.argmax(-1) == theirs.argmax(-1)).all())
    spent = [(_seconds(whole, problems), _seconds(pruned, problems)) for _ in range(rounds)]
    slow, quick = map(min, zip(*spent, strict=True))  # timed in turn, so that a busy moment slows both
    return Comparison(difference, same, slow / quick)


def _seconds(model: Model, problems: Problems) -> float:
    began = time.perf_counter()
    for batch in batches(problems):
        model(batch.source, batch.answer)
    if problems.source.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began

"""What a lab does: its style, in which nothing is wrong, and its plan, whose every default is right. A mistake changes
fields of the plan or of the recipe."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from itertools import product

from .training import Recipe


@dataclass(frozen=True)
class Style:
    """One of the ways in which people write a correct lab."""

    mask: str = "inside"
    """inside the model, or argument: passed by the caller"""
    batch: str = "first"
    """first, or last"""
    layers: str = "hand"
    """hand, or torch: nn.TransformerEncoderLayer and nn.TransformerDecoderLayer"""
    forced: str = "answer"
    """what teacher forcing returns: answer, the predictions; start first, with the start token in front; one more, with
    a prediction after the end; or none, if there is no such pass"""
    decode: str = "full"
    """how the doctor is given the model: full, with its mask; one line, as `model(source, written)`; or wrapped in a
    module that shifts the answer by itself, without `decode`"""
    ablation: str = "gates"
    """how heads are ablated: gates, columns or hook; PyTorch's layers allow only columns"""
    score: str = "generate"
    """what the reported accuracy is computed from: generate or forced"""
    percent: bool = False
    batches: bool = False
    """whether evaluation runs in batches of 64"""
    unseen: str = "function"
    """how held-out problems are known: by a function, or because test and training problems are a list each"""

    @property
    def name(self) -> str:
        return " ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self))


@functools.cache
def every_style() -> tuple[Style, ...]:
    """Returns every style of the adder, in a fixed order; wrapped ones are for healthy labs only."""
    choices = product(
        ("inside", "argument"),
        ("first", "last"),
        (("hand", "gates"), ("hand", "columns"), ("hand", "hook"), ("torch", "columns")),
        ("answer", "start first", "one more", "none"),
        ("full", "one line", "wrapped"),
        ("generate", "forced"),
        (False, True),
        (False, True),
        ("function", "list"),
    )
    return tuple(
        Style(mask, batch, layers, forced, decode, ablation, score, percent, batches, unseen)
        for mask, batch, (layers, ablation), forced, decode, score, percent, batches, unseen in choices
        if (forced, score) != ("none", "forced")
    )


@dataclass(frozen=True)
class Plan:
    """What a lab does, besides training."""

    recipe: Recipe = field(default_factory=Recipe)
    begins: str = "start"
    """how decoding begins: with training's start token; with zero; with the commonest digit of the batch; with the
    right first digit, given instead of a start token or fed after it; with another start token, 0"""
    output: str = "answer"
    """what decoding returns: the answer; keeps start, one place late; short, without its last token"""
    masked: bool = True
    """whether evaluation passes the causal mask"""
    training_mode: bool = False
    compares: str = "rows"
    """which predictions of teacher forcing are compared: rows, each row's own; or the first row's"""
    samples: bool = False
    """whether decoding samples"""
    over_tokens: bool = False
    skips_zero: bool = False
    skips_first: bool = False
    """whether the reported accuracy is over tokens, leaves out token 0, leaves out the first token"""
    unfilled: bool = False
    """whether two thirds of the test table are copies of its first row"""
    tests_training: bool = False
    """whether the test repeats what was trained on"""
    ablates: str = "columns"
    """what ablating a head zeroes: columns, rows, nothing, or the columns of its neighbour"""
    claimed_on: int | None = None
    ranks_long: bool = False
    """whether heads are ranked on long problems, which the model gets wrong"""
    one_at_a_time: bool = False
    """whether heads that are redundant alone are claimed to be prunable"""
    seeds: int = 1
    """how many seeds there are"""
    sets: str = "none"
    """which longer problems are evaluated: none, longer, much longer"""

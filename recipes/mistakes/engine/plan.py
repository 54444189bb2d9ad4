"""What a lab does: its style, in which nothing is wrong, and its plan, whose every default is right. A mistake changes a
field of the plan or of the recipe."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from typing import Literal

from .training import Recipe


@dataclass(frozen=True)
class Style:
    """One of the ways in which people write a correct lab."""

    mask: Literal["inside", "argument"] = "inside"
    """whether the causal mask is built inside the model or passed by the caller"""
    batch: Literal["first", "last"] = "first"
    layers: Literal["hand", "torch"] = "hand"
    """attention written by hand, or nn.TransformerEncoderLayer and nn.TransformerDecoderLayer"""
    forced: Literal["answer", "start first", "one more", "none"] = "answer"
    """what teacher forcing returns: the predictions; with the start token in front; with one more at the end"""
    decode: Literal["full", "one line", "wrapped"] = "full"
    """how the doctor is given the model: with its mask; as `model(source, written)`; or as a module that shifts the
    answer by itself, without `decode`"""
    ablation: Literal["gates", "columns", "hook"] = "gates"
    """how heads are ablated; PyTorch's layers allow only columns"""
    score: Literal["generate", "forced"] = "generate"
    """what the reported accuracy is computed from"""
    percent: bool = False
    batches: bool = False
    """whether evaluation runs in batches of 64"""
    unseen: Literal["function", "list"] = "function"
    """whether held-out problems are marked by a function, or test and training problems are two lists"""

    @property
    def name(self) -> str:
        return " ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self))


def every_style() -> list[Style]:
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
    return [
        Style(mask, batch, layers, forced, decode, ablation, score, percent, batches, unseen)
        for mask, batch, (layers, ablation), forced, decode, score, percent, batches, unseen in choices
        if (forced, score) != ("none", "forced")
    ]


@dataclass(frozen=True)
class Plan:
    """What a lab does, besides training."""

    recipe: Recipe = Recipe()
    begins: Literal["start", "zero", "commonest", "given", "fed", "other"] = "start"
    """how decoding begins: with training's start token; with 0; with the commonest digit of the batch; with the right
    first digit instead of a start token, or after it; with another start token"""
    output: Literal["answer", "keeps start", "short"] = "answer"
    """what decoding returns"""
    masked: bool = True
    """whether evaluation passes the causal mask"""
    training_mode: bool = False
    compares: Literal["rows", "first row"] = "rows"
    """whether every prediction of teacher forcing is the row's own, or the first row's"""
    samples: bool = False
    """whether decoding samples"""
    over_tokens: bool = False
    skips_zero: bool = False
    skips_first: bool = False
    """whether the reported accuracy is over tokens, leaves out token 0, leaves out the first token"""
    unfilled: bool = False
    """whether two thirds of the test table were never filled, and hold 0 + 0 = 0"""
    tests_training: bool = False
    """whether the test repeats what was trained on"""
    ablates: Literal["columns", "rows", "nothing", "neighbour"] = "columns"
    """what ablating a head zeroes"""
    claimed_on: int | None = None
    ranks_long: bool = False
    """whether heads are ranked on long problems, which the model gets wrong"""
    one_at_a_time: bool = False
    """whether heads that are redundant alone are claimed to be prunable"""
    few_seeds: bool = False
    """whether a second seed, and no third, is all there is"""
    sets: Literal["none", "longer", "much longer"] = "none"
    """which longer problems are evaluated"""

"""Training, in seconds, and only once: a trained model is stored in a folder under the hash of its recipe."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from headway import Problems

from .models import PAD, SORTER_PAD, START, Adder, Lab, Sorter
from .problems import LENGTHS, mixed_sequences, padded, sequences, split_sums

STEPS, SORTER_STEPS, SHORT, SORTER_SHORT = 400, 150, 100, 25
BATCH, RATE, SORTER_RATE = 128, 8e-3, 3e-3
FEW = 150
"""problems to train on where there are only a few"""


@dataclass(frozen=True)
class Recipe:
    """What a model is trained on and how; equal recipes give the same model."""

    task: str = "sums"
    """sums, or order: whether a sequence is sorted"""
    seed: int = 0
    start: int | None = START
    """the token that begins an answer; with None the first digit does, and is never predicted"""
    masked: bool = True
    """whether the decoder has a causal mask"""
    ignores_zero: bool = False
    """whether the loss ignores token 0"""
    stopped: bool = False
    """whether training stops early"""
    dropout: float = 0.0
    positions: bool = True
    """whether the source has positions"""
    few: bool = False
    """whether training repeats 150 problems"""
    padding: str = "none"
    """none; masked; or read: in attention and pooling like any other token"""
    positive: float = 0.5
    """the share of sorted sequences"""

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]

    @property
    def pad(self) -> int | None:
        """The padding token."""
        return None if self.padding == "none" else PAD if self.task == "sums" else SORTER_PAD


def make_model(recipe: Recipe) -> Lab:
    """Returns the untrained model of a recipe."""
    torch.manual_seed(recipe.seed)
    model = (Adder if recipe.task == "sums" else Sorter)(recipe.dropout)
    model.has_positions = recipe.positions
    model.pad = recipe.pad if recipe.padding == "masked" else None
    if isinstance(model, Adder):
        model.mask_inside = recipe.masked
    return model


@functools.cache
def training_sums(recipe: Recipe) -> Problems:
    """Returns the sums that are trained on."""
    problems = split_sums()[0]
    problems = problems[:FEW] if recipe.few else problems
    return problems if recipe.padding == "none" else padded(problems)


def draw_batch(recipe: Recipe, step: int) -> Problems:
    """Returns the batch of a step."""
    if recipe.task == "sums":
        known = training_sums(recipe)
        dice = torch.Generator().manual_seed(100_000 * recipe.seed + step)
        return known[torch.randint(len(known), (BATCH,), generator=dice)]
    seed = 100_000 * recipe.seed + (0 if recipe.few else step)
    if recipe.padding != "none":
        return mixed_sequences(FEW if recipe.few else BATCH, seed, recipe.positive)
    length = LENGTHS[-1] if recipe.few else LENGTHS[step % len(LENGTHS)]
    return sequences(FEW if recipe.few else BATCH, seed, length, recipe.positive)


def decoder_input(answer: Tensor, start: int | None) -> Tensor:
    """Returns the start token and all but the last digit; without a start token, all but the last digit."""
    if start is None:
        return answer[:, :-1]
    return torch.cat((torch.full_like(answer[:, :1], start), answer[:, :-1]), dim=1)


def measure_loss(model: Lab, recipe: Recipe, problems: Problems) -> Tensor:
    """Computes the loss as the recipe does."""
    ignored = 0 if recipe.ignores_zero else -100
    if isinstance(model, Sorter):
        return F.cross_entropy(model(problems.source)[:, 0], problems.answer[:, 0])
    logits = model(problems.source, decoder_input(problems.answer, recipe.start))
    target = problems.answer[:, -logits.shape[1] :]
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=ignored)


def train(recipe: Recipe) -> Lab:
    """Trains a model with AdamW, warm-up and decay."""
    model = make_model(recipe)
    adds = recipe.task == "sums"
    whole, rate = (STEPS, RATE) if adds else (SORTER_STEPS, SORTER_RATE)
    steps = (SHORT if adds else SORTER_SHORT) if recipe.stopped else whole
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, whole, pct_start=0.1)
    with torch.enable_grad():
        for step in range(steps):
            optimizer.zero_grad()
            measure_loss(model, recipe, draw_batch(recipe, step)).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def open_model(recipe: Recipe, folder: Path) -> Lab:
    """Returns the model of a recipe, from the folder if it was trained before."""
    path = folder / f"{recipe.key}.pt"
    if path.exists():
        model = make_model(recipe)
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    model = train(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    torch.save(model.state_dict(), beside)
    beside.replace(path)  # another process may have trained the same one
    return model

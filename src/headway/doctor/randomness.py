"""Whether a subject's functions give the same twice, and a context in which their randomness is switched off.

An evaluation with dropout on, or one that samples, differs each time; every other check would then measure noise. So
this is measured first, and if it is so the other checks run with dropout and sampling off. Noise on the weights is the
opposite: it makes a model that is always right err, so that two ways of running it can be distinguished.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


@dataclass(frozen=True)
class Repeats:
    """How much two evaluations of the same problems differ."""

    logits: float = 0.0
    """the largest difference"""
    tolerance: float = 0.0
    """the difference up to which logits are equal"""
    forced: int = 0
    """answers of the teacher-forced pass that differ"""
    decoded: int = 0
    """decoded answers that differ"""
    rows: int = 0
    """answers that were decoded twice"""
    sampled: int = 0
    """decoded answers that differ with dropout off"""

    @property
    def differ(self) -> bool:
        return self.logits > self.tolerance or bool(self.forced or self.decoded)


@contextmanager
def without_randomness(model: nn.Module, *, sampling: bool = False) -> Iterator[None]:
    """Puts the model in evaluation mode, and switches dropout and, unless it is to stay, sampling off in whatever is
    called, also where the called code puts the model back in training mode."""
    training = [(module, module.training) for module in model.modules()]
    attention = F.scaled_dot_product_attention

    def unchanged(x: Tensor, *_: object, **__: object) -> Tensor:
        return x

    def attend(*given: Any, **named: object) -> Tensor:
        if len(given) > 4:  # the fifth is the probability of dropout
            return attention(*given[:4], 0.0, *given[5:], **named)  # pyright: ignore[reportArgumentType]
        return attention(*given, **{**named, "dropout_p": 0.0})  # pyright: ignore[reportArgumentType]

    def most_likely(weights: Tensor, num_samples: int, *_: object, **__: object) -> Tensor:
        return weights.topk(num_samples, dim=-1).indices

    functions: list[tuple[Any, str, Callable[..., Tensor]]] = [
        *((F, name, unchanged) for name in DROPOUTS),
        (torch, "dropout", unchanged),
        (F, "scaled_dot_product_attention", attend),
        *([] if sampling else [(torch, "multinomial", most_likely)]),
    ]
    originals = [getattr(place, name) for place, name, _ in functions]
    model.eval()
    try:
        for place, name, function in functions:
            setattr(place, name, function)
        yield
    finally:
        for (place, name, _), original in zip(functions, originals, strict=True):
            setattr(place, name, original)
        for module, mode in training:
            module.training = mode


@contextmanager
def add_noise(model: nn.Module, scale: float) -> Iterator[None]:
    """Adds the same noise each time to every weight, in proportion to its standard deviation; restores them to the
    bit."""
    dice = torch.Generator().manual_seed(0)
    original = [(weight, weight.detach().clone()) for weight in model.parameters() if weight.is_floating_point()]
    try:
        for weight, before in original:
            noise = torch.randn(before.shape, generator=dice).to(before)
            weight.data.add_(noise * (scale * float(before.float().std()) if before.numel() > 1 else 0.0))
        yield
    finally:
        for weight, before in original:
            weight.data.copy_(before)

"""Linear layers give the same numbers whichever library computes them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from headway.models import linear as module
from headway.models.linear import Linear, linear

SIZES = [(300, 16, 512), (2_000, 128, 14), (64, 512, 128), (3, 8, 4)]
"""rows, inputs, outputs; the last are too few for oneDNN"""


def draw(rows: int, width: int, out: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    shapes = (rows, 2, width), (out, width), (out,)
    x, weight, bias = (torch.randn(shape, generator=chance) for shape in shapes)
    return x, weight * width**-0.5, bias


@pytest.mark.parametrize("size", SIZES)
def test_every_way_computes_the_product(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this CPU is: where torch has oneDNN, both ways are compared with the product in double precision."""
    x, weight, bias = draw(*size)
    exact = F.linear(x.double(), weight.double(), bias.double())
    ways = [False] + [True] * torch.backends.mkldnn.is_available()
    for way in ways:
        monkeypatch.setattr(module, "onednn_is_faster", lambda way=way: way)
        with torch.inference_mode():
            torch.testing.assert_close(linear(x, weight, bias).double(), exact, rtol=1e-5, atol=1e-5)
            assert torch.equal(linear(x, weight), linear(x, weight, torch.zeros_like(bias)))


def test_gradients_and_many_models_at_once_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's operation has no gradient and no batching rule: both raise where it is called."""
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    x, weight, bias = draw(*SIZES[0])
    layer = Linear(16, 512)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    with torch.inference_mode():
        many = torch.func.vmap(linear)(torch.stack([x, 2 * x]), torch.stack([weight] * 2), torch.stack([bias] * 2))
        torch.testing.assert_close(many[1], F.linear(2 * x, weight, bias))
        assert linear(x.double(), weight.double()).dtype == torch.float64

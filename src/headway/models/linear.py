"""Linear layers, computed by the faster of the two libraries that torch contains.

torch computes float32 products on a CPU with MKL, which does not use AVX-512 on CPUs that are not Intel's. oneDNN does,
and takes less than half the time there. Only passes without gradients go through it: training keeps to MKL, so that
trained weights keep their bytes.
"""

from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.compiler import is_compiling
from torch.nn import functional as F

LEAST = 2**20  # multiplications in a product, below which calling oneDNN takes longer than it saves


@cache
def onednn_is_faster() -> bool:
    """Whether this CPU has AVX-512 that MKL does not use, and torch's operation for oneDNN is there."""
    info = Path("/proc/cpuinfo")
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    intel = not info.exists() or "GenuineIntel" in info.read_text()
    return not intel and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(
    x: Float[Tensor, "*batch into"], weight: Float[Tensor, "out into"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "*batch out"]:
    """Returns x · weightᵀ + bias, as F.linear does."""
    if is_compiling() or torch.is_grad_enabled() or x.device.type != "cpu" or not onednn_is_faster():
        return F.linear(x, weight, bias)
    plain = x.dtype == weight.dtype == torch.float32 and not is_batchedtensor(x) and not is_batchedtensor(weight)
    if not plain or x.numel() * weight.shape[0] < LEAST:
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class Linear(nn.Linear):
    """A linear layer of a model."""

    def forward(self, input: Float[Tensor, "*batch into"]) -> Float[Tensor, "*batch out"]:
        return linear(input, self.weight, self.bias)

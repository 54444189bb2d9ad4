"""Muon: momentum whose matrices are orthogonalised before they are applied (Jordan et al., 2024).

All matrices of one shape go through the Newton–Schulz iteration as one batch, in the precision of the
weights; PyTorch's Muon goes matrix by matrix in bfloat16, which costs more than the training step on a CPU.
A parameter with more than two axes is a stack of matrices: the members of a population, or the key and
value projections of a site.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(
    matrices: Float[Tensor, "matrix row column"], precision: torch.dtype | None = None, steps: int = 5
) -> Float[Tensor, "matrix row column"]:
    """Brings the singular values of each matrix near 1 and keeps its singular vectors; iterates in `precision`."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)).to(precision or matrices.dtype)
    for _ in range(steps):
        gram = x @ x.mT  # matrix row row
        if is_compiling():  # baddbmm copies what it adds to; compiled, the sum is one pass
            unit = torch.eye(x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
            x = (a * unit + b * gram + c * (gram @ gram)).to(x.dtype) @ x
        else:
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """The same step as `torch.optim.Muon` with its original learning-rate adjustment."""

    def __init__(
        self, parameters: Iterable[Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape[-2:]].append(parameter)
            for (rows, columns), parameters in by_shape.items():
                moved = torch.cat([self._momentum(p, group["momentum"]).view(-1, rows, columns) for p in parameters])
                scale = group["lr"] * max(1, rows / columns) ** 0.5
                pieces = orthogonalise(moved).split([p.numel() // (rows * columns) for p in parameters])
                for parameter, piece in zip(parameters, pieces, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(piece.view_as(parameter), alpha=scale)

    def _momentum(self, parameter: Parameter, momentum: float) -> Tensor:
        """Updates the momentum and returns the Nesterov update."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["momentum"], momentum)

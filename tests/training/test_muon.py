"""Headway's Muon equals PyTorch's, up to the precision of the iteration."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from headway.training import muon
from headway.training.muon import NEWTON_SCHULZ, Muon, orthogonalise


def slow_orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Runs the published iteration on one matrix, written out plainly."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@pytest.mark.parametrize("shape", [(6, 6), (5, 9), (9, 5)])
def test_a_batch_of_matrices_equals_each_alone(shape: tuple[int, int]) -> None:
    matrices = torch.randn(7, *shape, dtype=torch.float64)
    together = orthogonalise(matrices)
    for matrix, found in zip(matrices, together, strict=True):
        assert torch.allclose(found, slow_orthogonalise(matrix), atol=1e-12)


def test_singular_values_come_near_one_and_vectors_stay() -> None:
    matrix = torch.randn(1, 20, 40, dtype=torch.float64)
    found = orthogonalise(matrix)
    values = torch.linalg.svdvals(found[0])
    assert values.min() > 0.4
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrix[0], full_matrices=False)
    turned = left.T @ found[0] @ right.T
    assert (turned - turned.diagonal().diag()).abs().max() < 1e-9


def test_steps_equal_pytorchs_muon() -> None:
    """PyTorch's iterates in bfloat16, so directions agree to about a hundredth of a step."""
    torch.manual_seed(0)
    shapes = [(16, 16), (16, 16), (32, 16), (16, 32)]
    start = [torch.randn(shape) for shape in shapes]
    ours = [Parameter(w.clone()) for w in start]
    theirs = [Parameter(w.clone()) for w in start]
    one = Muon(ours, lr=0.02, momentum=0.8, weight_decay=0.1)
    other = torch.optim.Muon(theirs, lr=0.02, momentum=0.8, weight_decay=0.1, nesterov=True)
    for _ in range(5):
        for mine, yours in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            yours.grad = mine.grad.clone()
        one.step()
        other.step()
    for mine, yours, begun in zip(ours, theirs, start, strict=True):
        assert (mine - yours).norm() < 0.02 * (mine - begun).norm()


def test_a_stack_of_matrices_is_each_matrix_alone() -> None:
    torch.manual_seed(0)
    stacked = Parameter(torch.randn(3, 8, 8, dtype=torch.float64))
    alone = [Parameter(matrix.detach().clone()) for matrix in stacked]
    stacked.grad = torch.randn_like(stacked)
    for parameter, gradient in zip(alone, stacked.grad, strict=True):
        parameter.grad = gradient.clone()
    Muon([stacked]).step()
    Muon(alone).step()
    assert torch.allclose(stacked, torch.stack(list(alone)), atol=1e-12)


def test_the_compiled_iteration_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for shape in ((3, 8, 8), (2, 4, 16), (2, 16, 4)):
        matrices = torch.randn(shape, dtype=torch.float64)
        plain = orthogonalise(matrices)
        monkeypatch.setattr(muon, "is_compiling", lambda: True)
        torch.testing.assert_close(orthogonalise(matrices), plain, rtol=1e-10, atol=1e-12)
        monkeypatch.undo()

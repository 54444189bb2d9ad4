"""AdamW takes torch's steps to the bit, and training does not load the compiler."""

from __future__ import annotations

import subprocess
import sys

import torch

from headway.training.adamw import AdamW

TRAIN = """
import sys
from headway.cli import main
small = "--steps 2 --batch 4 --d-model 16 --d-ff 32 --heads 2 --layers 1 --quiet --device cpu"
assert main(["train", "addition", "--out", sys.argv[1], *small.split()]) == 0
assert "torch" in sys.modules
assert "torch._dynamo" not in sys.modules
"""


def test_the_steps_are_torchs() -> None:
    def train(kind: type[torch.optim.Optimizer], decay: float) -> torch.Tensor:
        torch.manual_seed(0)
        layer = torch.nn.Linear(7, 5)
        optimizer = kind(layer.parameters(), lr=0.01, betas=(0.9, 0.98), weight_decay=decay)  # pyright: ignore[reportCallIssue]
        for _ in range(6):
            layer(torch.randn(3, 7)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.is_grad_enabled()
        return torch.cat([each.detach().flatten() for each in layer.parameters()])

    for decay in (0.0, 0.1):
        assert torch.equal(train(AdamW, decay), train(torch.optim.AdamW, decay))
    assert not torch.equal(train(AdamW, 0.1), train(torch.optim.AdamW, 0.0))


def test_a_run_does_not_load_the_compiler(tmp_path) -> None:
    ended = subprocess.run([sys.executable, "-c", TRAIN, str(tmp_path / "run")], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]

"""The adapter printed in docs/ten-digits.md describes the model that it is about."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from headway.certify.digits.adder import check_adder

DOC = Path(__file__).parents[2] / "docs" / "ten-digits.md"
MODEL = """
import torch
from torch import nn

torch.manual_seed(0)


class Small(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(13, d), nn.Embedding(32, d)
        self.query, self.key, self.value, self.out = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.into, self.back = nn.Linear(d, 64, bias=False), nn.Linear(64, d, bias=False)
        self.readout = nn.Linear(d, 13, bias=False)
        self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(d) for _ in range(3))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        read = self.norm_1(x)
        parts = [part(read).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        z = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        x = x + self.back(nn.functional.gelu(self.into(self.norm_2(x))))
        return self.readout(self.norm_3(x))


model = Small()
"""


def test_the_printed_adapter_describes_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), flags=re.DOTALL)
    (tmp_path / "printed_adapter.py").write_text(block)
    (tmp_path / "my_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    adder = importlib.import_module("printed_adapter").build()
    assert adder.description.digits == 10
    assert check_adder(adder) < 1e-4

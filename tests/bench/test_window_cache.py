"""The bench of the cache of windows predicts its bytes and compares it with masked attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.bench.windows import SIZES, compare_caches, equals_masked, make_model

pytest.importorskip("transformers")


def test_the_bench_predicts_the_bytes_and_compares_with_masked_attention() -> None:
    size = replace(SIZES["small"], layers=2, width=64, inner=64, length=1_100, batch=1, new=2)
    model = make_model(size, torch.device("cpu"))
    same, _ = equals_masked(model, size, tokens=24)
    assert same
    found = compare_caches(model, size, torch.device("cpu"))
    assert found.windows.bytes == pytest.approx(found.predicted_bytes, rel=0.03)
    assert found.dynamic.bytes == found.full_bytes
    assert found.cache_share == pytest.approx((1_100 + 68) / 2_200)

"""Windowed attention equals the dense form with the same mask, forward and backward."""

from __future__ import annotations

import pytest
import torch

from headway.models import Attention, Decoder, Order, Site, Trace, build_model
from headway.models import attention as attention_module
from headway.models.attention import PassInputs
from headway.models.windowed import find_visible_keys
from headway.positions import Shape, build_index, find_positions
from headway.runs.config import Overrides
from headway.tasks import Addition, Sortedness
from headway.training.defaults import plan
from small import small_model

SMALL = small_model(32, heads=4, layers=2)


def sites(window: str, index: str, causal: bool, length: int) -> tuple[Attention, Order, torch.Tensor]:
    torch.manual_seed(0)
    positions = find_positions(window)(Shape(32, 4, 16, causal)).double()
    if index == "coupled":
        source = Addition().testing(0, 3, length=length).source
        numbers = torch.cat(build_index("coupled", 10, True).numbers(source, length + 1, joined=True), dim=1)
    else:
        source = Sortedness().testing(0, 3, length=length).source
        numbers, _ = build_index(index, None, False).numbers(source)
    module = Attention(Site("decoder", 0, "self"), 32, 8, range(4)).double()
    x = torch.randn(3, numbers.shape[1], 32, dtype=torch.float64, requires_grad=True)
    return module, Order(positions, numbers, numbers, causal), x


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("index", ["sequential", "coupled", "randomized+range=200"])
@pytest.mark.parametrize(
    "window", ["window+behind=1+ahead=0", "window", "window+behind=0+ahead=3", "window+behind=40+ahead=40"]
)
def test_gathered_keys_give_what_the_dense_mask_gives(window: str, index: str, causal: bool) -> None:
    module, order, x = sites(window, index, causal, length=70)
    fast = module(x, x, order)
    slow = module(x, x, Order(order.positions, order.query_index, order.key_index, causal), PassInputs(trace=Trace()))
    assert (fast - slow).abs().max() < 1e-12
    wanted = [x, *module.parameters(), *order.positions.parameters()]  # pyright: ignore[reportOptionalMemberAccess]
    weight = torch.randn_like(fast)
    slopes = (torch.autograd.grad((each * weight).sum(), wanted) for each in (fast, slow))
    for one, other in zip(*slopes, strict=True):
        assert (one - other).abs().max() < 1e-9


def test_in_single_precision_to_a_millionth_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.models import windowed as windowed_module

    module, order, x = sites("window", "sequential", False, length=90)
    module, x = module.float(), x.detach().float()
    order.positions.float()  # pyright: ignore[reportOptionalMemberAccess]
    monkeypatch.setattr(windowed_module, "CHUNK", 60)
    with torch.no_grad():
        assert (module(x, x, order) - module(x, x, order, PassInputs(trace=Trace()))).abs().max() < 1e-6


def test_each_query_sees_exactly_the_keys_at_its_offsets() -> None:
    index = torch.tensor([[3, 2, 1, 0, 3, 2, 1, 1, 2, 3]])  # 3-digit operands, the operator, an answer
    seen = find_visible_keys(index, index, range(-1, 1), causal=True)
    for query in range(10):
        found = sorted(seen.place[0, query][seen.filled[0, query]].tolist())
        assert found == [key for key in range(query + 1) if int(index[0, key] - index[0, query]) in (-1, 0)]


@pytest.mark.parametrize("pruned", [False, True])
def test_long_problems_take_the_fast_path_and_give_the_same_answers(
    pruned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    overrides = Overrides(model="decoder", positions="window+behind=1+ahead=0", index="coupled", **SMALL)  # pyright: ignore[reportArgumentType]
    config = plan("addition", overrides, 0, {"first": "least"}).model
    if pruned:
        config = replace(config, pruned="decoder.0.self.1 decoder.1.self.0 decoder.1.self.3")
    model = build_model(config, seed=2).eval()
    assert isinstance(model, Decoder)
    problems = Addition(first="least").testing(0, 4, length=60)
    with torch.no_grad():
        fast = model(problems.source, problems.answer)
        monkeypatch.setattr(attention_module, "FEW_KEYS", 10**9)
        slow = model(problems.source, problems.answer)
    assert (fast - slow).abs().max() < 1e-4
    assert torch.equal(fast.argmax(-1), slow.argmax(-1))

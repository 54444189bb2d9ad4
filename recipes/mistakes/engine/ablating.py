"""How a lab ablates heads: by gates, by columns of the output projection, by a hook; or wrongly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn

from headway import Head, Problems, Site

from .models import HEAD_WIDTH, HEADS, Attention, Lab, projections_of

Read = Callable[[Problems], Tensor]


def heads_of(model: Lab) -> tuple[Head, ...]:
    return tuple(Head(site, number) for site in projections_of(model) for number in range(HEADS))


def columns_of(numbers: Collection[int]) -> list[int]:
    return [HEAD_WIDTH * number + each for number in numbers for each in range(HEAD_WIDTH)]


@contextmanager
def zero_weight(output: nn.Module, numbers: Collection[int], rows: bool) -> Iterator[None]:
    """Zeroes the columns of these heads in the output projection, or their rows."""
    weight = output.weight
    assert isinstance(weight, Tensor)
    kept, places = weight.data.clone(), columns_of(numbers)
    with torch.no_grad():
        if rows:
            weight[places] = 0
        else:
            weight[:, places] = 0
    yield
    weight.data.copy_(kept)


@contextmanager
def hook(output: nn.Module, numbers: Collection[int], returns: bool) -> Iterator[None]:
    """Zeroes the heads in what the output projection is given; a hook that returns nothing changes nothing."""

    def close(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor] | None:
        z = given[0].clone()
        z[..., columns_of(numbers)] = 0
        return (z,) if returns else None

    handle = output.register_forward_pre_hook(close)
    yield
    handle.remove()


@contextmanager
def close_gates(attention: Attention, numbers: Collection[int]) -> Iterator[None]:
    attention.gates = torch.tensor([float(number not in numbers) for number in range(HEADS)])
    yield
    attention.gates = torch.ones(HEADS)


def make_ablation(model: Lab, read: Read, way: str, what: str) -> Callable[[Problems, Collection[Head]], Tensor]:
    """Returns the lab's ablation: what it zeroes, and in which way."""
    projections = projections_of(model)
    owners = {id(each.out): each for each in model.modules() if isinstance(each, Attention)}

    def close(site: Site, numbers: Collection[int]) -> AbstractContextManager[None]:
        output = projections[site]
        if (
            what == "nothing"
        ):  # PyTorch's layers never call their output projection; by hand, the result is not returned
            return hook(output, numbers, returns=id(output) not in owners)
        if what == "neighbour":
            numbers = [(number + 1) % HEADS for number in numbers]
        if what == "rows" or way == "columns" or id(output) not in owners:
            return zero_weight(output, numbers, rows=what == "rows")
        return hook(output, numbers, returns=True) if way == "hook" else close_gates(owners[id(output)], numbers)

    @torch.no_grad()
    def ablate(problems: Problems, heads: Collection[Head]) -> Tensor:
        with ExitStack() as stack:
            for site in projections:
                numbers = [head.number for head in heads if head.site == site]
                if numbers:
                    stack.enter_context(close(site, numbers))
            return read(problems)

    return ablate

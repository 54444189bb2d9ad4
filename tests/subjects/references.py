"""References for attached models: zeros written into a deep copy, and the unchanged model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.intervention import Attached
from headway.attach.proofs import logits_in
from headway.models import Gate, Head, Site, Trace

Run = Callable[[nn.Module], Any]


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draws random weights everywhere, so that no norm is one, no bias zero, and no head without effect."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
            else:
                weight.copy_(torch.randn_like(weight) * (0.6 if "embed" in name else weight.shape[-1] ** -0.5))
    return model.eval()


def zeroed_copy(attached: Attached, head: Head) -> nn.Module:
    """Returns a deep copy with the columns of one head at zero, found by the path of the projection alone."""
    model = copy.deepcopy(attached.model)
    projection = attached.projections[head.site]
    module: Any = model.get_submodule(projection.path)
    heads, dim = projection.heads, projection.dim
    with torch.no_grad():
        for place in range(head.number * dim, (head.number + 1) * dim):
            if isinstance(getattr(module, "kernel", None), Tensor):
                module.kernel[place // dim, place % dim] = 0
            elif type(module).__name__ == "Conv1D":
                module.weight[place] = 0
            else:
                assert module.weight.shape[1] == heads * dim
                module.weight[:, place] = 0
    return model


def closed(head: Head, width: int, rows: int = 1) -> dict[Site, Gate]:
    passed = torch.ones(rows, width)
    passed[:, head.number] = 0
    return {head.site: Gate(passed)}


@torch.no_grad()
def check_every_head(attached: Attached, run: Run) -> None:
    """Checks that closing any head equals the copy with zeros, to 1e-5, and has an effect."""
    plain = logits_in(run(attached.model))
    for head in attached.heads:
        gated = logits_in(attached.run(lambda: run(attached.model), closed(head, attached.width[head.site])))
        torch.testing.assert_close(gated, logits_in(run(zeroed_copy(attached, head))), atol=1e-5, rtol=1e-5)
        assert (gated - plain).abs().max() > 1e-5, f"{head} has no effect"


@torch.no_grad()
def check_rows(attached: Attached, run: Run) -> None:
    """Checks that a row of gates closes heads only in its own row of the batch."""
    site = attached.sites[-1]
    plain = logits_in(attached.run(lambda: run(attached.model)))
    passed = torch.ones(len(plain), attached.width[site])
    passed[1] = 0
    gated = logits_in(attached.run(lambda: run(attached.model), {site: Gate(passed)}))
    assert torch.equal(gated[0], plain[0])
    assert not torch.equal(gated[1], plain[1])


@torch.no_grad()
def traced(attached: Attached, run: Run) -> Trace:
    trace = Trace()
    attached.run(lambda: run(attached.model), trace=trace)
    assert list(trace.outputs) == list(attached.sites)
    for site, output in trace.outputs.items():
        assert output.shape[2:] == (attached.width[site], attached.projections[site].dim)
    return trace


def check_maps(attached: Attached, run: Run) -> Trace:
    """Checks that every site has a map whose rows sum to one."""
    trace = traced(attached, run)
    assert set(trace.maps) == set(attached.sites)
    for site, found in trace.maps.items():
        assert found.shape[1:3] == (attached.width[site], trace.outputs[site].shape[1])
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]), atol=1e-5, rtol=0)
    return trace


class Unchanged:
    """Checks on exit that the model has the same weights and outputs to the bit, and nothing left in it."""

    def __init__(self, model: nn.Module, run: Run) -> None:
        self.model, self.run = model, run

    def __enter__(self) -> None:
        with torch.no_grad():
            self.state = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.logits = logits_in(self.run(self.model))
        self.inside = self._inside()

    def _inside(self) -> list[object]:
        return [
            (type(module), sorted(module.__dict__), list(module._forward_hooks), list(module._forward_pre_hooks))
            for module in self.model.modules()
        ]

    def __exit__(self, *error: object) -> None:
        state = self.model.state_dict()
        assert list(state) == list(self.state)
        assert all(torch.equal(state[name], value) for name, value in self.state.items())
        assert self._inside() == self.inside
        with torch.no_grad():
            assert torch.equal(logits_in(self.run(self.model)), self.logits)

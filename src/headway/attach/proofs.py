"""Proves on the user's model that the gates work, before anything is measured.

Five claims: every site fires; the model with open gates gives the same logits as without them; gates of one change no
bit; the contributions of the heads and the bias add up to the output of the site; and closing a head equals zeroing its
columns in the output projection, only during its own turn where a module runs several times in a pass. The last is
computed by independent code: the weight is replaced by a copy with zeros and the model runs without gates. If a claim
fails, an error names the site and the size of the difference, and nothing is studied. That a user's number of heads is
the right one cannot be proved here.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from headway.attach.intervention import Attached, Intervention, Projection
from headway.attach.multihead import slow_path
from headway.attach.projections import weight_of
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.models.sites import Gate, Site

TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
ROUNDING = 1e-5
"""relative to the largest number compared, or to 1 if that is larger; also in float64, as many models compute their
softmax in float32"""

Logits = Callable[[], Tensor]
"""Runs the model once and returns its logits."""


@dataclass(frozen=True)
class Proof:
    """The result of the proofs: the sites, the largest difference that open gates make, and notes for the reader."""

    sites: tuple[Site, ...]
    """in the order they fire"""
    unchanged: float
    """the largest difference between no gates and open gates; zero if both run the same operations"""
    notes: tuple[str, ...] = ()


@torch.no_grad()
@full_precision_matmul()
def prove(attached: Attached, call: Callable[[], Any], logits_of: Callable[[Any], Tensor] | None = None) -> Proof:
    """Proves every claim on the pass that `call` runs; raises with the site and the difference if one fails."""

    def logits() -> Tensor:
        return (logits_of or logits_in)(call())

    original = logits()
    sums: dict[Site, float] = {}
    intervention = Intervention({}, None)
    with _compare_sums(attached, sums), attached.install(intervention):
        opened = logits()
    for site in attached.sites:
        if not intervention.fired[site]:
            raise HeadwayError(
                f"{site} never fires: its output projection {attached.projections[site].path} was not called; leave "
                "the site out, or name the module that is called"
            )
    unchanged, notes = _check_same(attached, logits, original, opened)
    _check_identity(attached, logits, opened)
    for site, difference in sums.items():
        if not difference <= TOLERANCES.get(opened.dtype, ROUNDING):
            raise HeadwayError(f"the heads of {site} do not add up to its output: they differ by {difference:.2g}")
    for number, site in enumerate(attached.sites):
        _check_closed(attached, logits, site, number % attached.width[site])
    return Proof(tuple(intervention.fired), unchanged, notes)


def _check_same(attached: Attached, logits: Logits, original: Tensor, opened: Tensor) -> tuple[float, tuple[str, ...]]:
    """Raises unless open gates leave the logits unchanged; returns the difference and notes on it."""
    difference = difference_of(original, opened)
    if difference <= limit_of(original):
        return difference, ()
    with slow_path():
        slow = logits()
    if difference_of(slow, opened) <= limit_of(slow):
        note = "PyTorch's fast path writes zeros at padded positions; the comparison was made without it"
        return difference_of(slow, opened), (note,)
    raise HeadwayError(
        f"{type(attached.model).__name__} gives other logits when its {len(attached.sites)} sites, the first "
        f"{attached.sites[0]}, are attached, by {describe_difference(original, opened)}"
    )


def _check_identity(attached: Attached, logits: Logits, opened: Tensor) -> None:
    """Raises unless gates of one leave every bit of the logits unchanged."""
    gates = {site: Gate(torch.ones(1, heads)) for site, heads in attached.width.items()}
    same = attached.run(logits, gates)
    if torch.equal(same.nan_to_num(), opened.nan_to_num()):
        return
    for site, gate in gates.items():
        if (difference := difference_of(attached.run(logits, {site: gate}), opened)) > 0:
            raise HeadwayError(f"an open gate at {site} changes the logits by {difference:.2g}; it must change no bit")
    raise HeadwayError(
        f"{type(attached.model).__name__} does not give the same logits twice (they differ by "
        f"{difference_of(same, opened):.2g}); turn off its randomness"
    )


def _check_closed(attached: Attached, logits: Logits, site: Site, head: int) -> None:
    """Raises unless closing a head gives the same logits as zeroing its columns in the projection."""
    passed = torch.ones(1, attached.width[site])
    passed[:, head] = 0
    gated = attached.run(logits, {site: Gate(passed)})
    with _zero_columns(attached.projections[site], head, attached.turns.get(site), attached.count_turns(site)):
        zeroed = logits()
        if difference_of(zeroed, gated) > limit_of(zeroed):
            with slow_path():
                zeroed = logits()
    difference = difference_of(zeroed, gated)
    if not difference <= limit_of(zeroed):
        raise HeadwayError(
            f"closing {site}.{head} differs from zeroing its columns in {attached.projections[site].path}: the logits "
            f"differ by {difference:.2g}"
        )


@contextmanager
def _zero_columns(projection: Projection, head: int, turn: int | None, turns: int) -> Iterator[None]:
    """Replaces the projection's weight inside the context by a copy in which a head's columns are zero: always, or only
    in that turn, of so many in a pass."""
    name = "weight" if isinstance(getattr(projection.module, "weight", None), Tensor) else "kernel"
    original = projection.module._parameters.get(name)
    if original is None or not original.is_floating_point():
        raise HeadwayError(
            f"{projection.path} has no plain {name} to zero columns in; attach the model unquantised, adapters merged"
        )
    copied = Parameter(original.detach().clone(), requires_grad=original.requires_grad)
    projection.of_head(copied.data, head).zero_()
    calls = count()

    def swap(module: nn.Module, inputs: Any) -> None:
        module._parameters[name] = copied if next(calls) % turns == turn else original

    with ExitStack() as stack:
        stack.callback(projection.module._parameters.__setitem__, name, original)
        if turn is None:
            projection.module._parameters[name] = copied
        else:
            stack.callback(projection.module.register_forward_pre_hook(swap).remove)
        yield


@contextmanager
def _compare_sums(attached: Attached, sums: dict[Site, float]) -> Iterator[None]:
    """Compares the output of each projection that runs with the sum over its heads, and stores the difference."""

    def compare(site: Site, module: nn.Module, inputs: Any, named: Mapping[str, Any], output: Any) -> None:
        x = inputs[0] if inputs else next(iter(named.values()))
        difference = difference_of(_sum_of_heads(attached.projections[site], x), output) / max(1.0, largest(output))
        sums[site] = max(sums.get(site, 0.0), difference)

    with ExitStack() as stack:
        for site, projection in {each.path: (site, each) for site, each in attached.projections.items()}.values():
            hook = projection.module.register_forward_hook(partial(compare, site), with_kwargs=True)
            stack.callback(hook.remove)
        yield


def _sum_of_heads(projection: Projection, x: Tensor) -> Tensor:
    """Returns the bias plus the contribution of each head, computed separately."""
    weight = weight_of(projection.module)
    assert weight is not None
    apart = projection.layout == "head dim out" and x.ndim == 4
    z = x if apart else x.unflatten(-1, (projection.heads, projection.dim))
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for head, output in enumerate(z.unbind(1 if apart and x.shape[2] != projection.heads else -2)):
        part = projection.of_head(weight, head).double()  # out dim, or dim out
        total = total + output.double() @ (part.T if projection.layout == "out in" else part)
    bias = getattr(projection.module, "bias", None)
    return total if bias is None else total + bias.double()


def logits_in(output: Any) -> Tensor:
    """Returns the logits in a model's output: the field of that name, or the first floating-point tensor."""
    if isinstance(output, Tensor):
        return output
    if isinstance(getattr(output, "logits", None), Tensor):
        return output.logits
    values = output.values() if hasattr(output, "values") else output
    for value in values if hasattr(values, "__iter__") else ():
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise HeadwayError(f"no logits were found in the {type(output).__name__} that the model returns; give logits_of=")


def difference_of(one: Tensor, other: Tensor) -> float:
    """Returns the largest difference; NaN in both counts as equal, NaN in only one as infinite."""
    if one.shape != other.shape:
        return float("inf")
    gap = (one.double() - other.double()).abs()
    gap = gap.masked_fill((one == other) | (one.isnan() & other.isnan()), 0.0)
    return float(gap.nan_to_num(nan=float("inf"), posinf=float("inf")).max()) if gap.numel() else 0.0


def describe_difference(one: Tensor, other: Tensor) -> str:
    """Describes the size of a difference and at how many positions it occurs."""
    size = f"{difference_of(one, other):.2g}"
    if one.shape != other.shape or one.ndim < 3:
        return size
    apart = ~torch.isclose(one.double(), other.double(), rtol=0, atol=limit_of(one), equal_nan=True).all(-1)
    return (
        f"{size} at {int(apart.sum())} of {apart.numel()} positions; where a padded position sees no key, attention is "
        "arbitrary: exclude such positions in logits_of"
    )


def largest(values: Tensor) -> float:
    finite = values.detach().double().abs()
    return float(finite[finite.isfinite()].max()) if bool(finite.isfinite().any()) else 0.0


def limit_of(logits: Tensor) -> float:
    """Returns the largest difference that rounding can explain."""
    return TOLERANCES.get(logits.dtype, ROUNDING) * max(1.0, largest(logits))

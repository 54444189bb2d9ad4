"""A user's model with its attention sites found: heads can be gated and looked at while it runs any way it likes.

A head is a slice of the *input* of its site's output projection. `Attached.run` puts gates there for the time of one
call; hooks (one kind for each way a model computes attention) lead what the heads say through a `Intervention`, and are
closed again whatever happens. This file finds nothing by itself: huggingface.py and module.py do, proofs.py checks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import gated
from headway.models.sites import Gate, Gates, Head, Site, Trace

T = TypeVar("T")
Layout = Literal["out in", "in out", "head dim out"]
"""The axes of a projection's weight: of nn.Linear, of GPT-2's Conv1D, of a dense layer that keeps heads apart."""


@dataclass(frozen=True)
class Projection:
    """The output projection of a site: what mixes its heads."""

    module: nn.Module
    path: str
    heads: int
    dim: int
    """of one head"""
    layout: Layout = "out in"

    def of_head(self, weight: Tensor, head: int) -> Tensor:
        """The part of a weight of this layout that reads a head; a view, to be read or written."""
        if self.layout == "head dim out":
            return weight[head]
        columns = slice(head * self.dim, (head + 1) * self.dim)
        return weight[:, columns] if self.layout == "out in" else weight[columns]


@dataclass
class Intervention:
    """One run: the gates in force, what is recorded, and how often each site fired."""

    gates: Gates
    trace: Trace | None
    fired: Counter[Site] = field(default_factory=Counter)
    strict: bool = True
    """whether a site that runs twice under a trace is an error; else its last run is kept"""

    def through(
        self, site: Site, z: Float[Tensor, "batch query head dim"], maps: Float[Tensor, "batch head query key"] | None
    ) -> Float[Tensor, "batch query head dim"]:
        """What leaves the gate of a site; the one place where anything is changed or recorded."""
        self.fired[site] += 1
        gate = self.gates.get(site)
        if gate is not None:
            z = gated(z, fitting(gate, site, z))
        if self.trace is not None:
            if self.strict and self.fired[site] > 1:
                raise HeadwayError(
                    f"{site} ran {self.fired[site]} times in one call, and a trace holds one; trace a call of one pass"
                )
            self.trace.outputs[site] = z
            self.see(site, maps)
        return z

    def see(self, site: Site, maps: Float[Tensor, "batch head query key"] | None) -> None:
        """Records the map of a site, where there is one."""
        if self.trace is not None and maps is not None:
            self.trace.maps[site] = maps


def fitting(gate: Gate, site: Site, z: Tensor) -> Gate:
    """The gate where z is, if it fits; a wrong number of rows would else be spread over the wrong problems."""
    passed, fill = gate.passed.to(z.device), gate.replacement
    for what, rows, queries in (
        ("gate", passed.shape[0], passed.shape[1] if passed.ndim == 3 else 1),
        ("replacement", *(fill.shape[:2] if fill is not None else (1, 1))),
    ):
        if rows not in (1, z.shape[0]) or queries not in (1, z.shape[1]):
            raise HeadwayError(
                f"the {what} of {site} is for {rows} rows of {queries} queries, and the model ran {z.shape[0]} rows of "
                f"{z.shape[1]} through it; give one row, or one for each"
            )
    return Gate(passed, None if fill is None else fill.to(z.device, z.dtype))


Hook = Callable[[Intervention], AbstractContextManager[None]]
"""Applies an intervention to some sites, until it is left."""
_RUNNING: set[int] = set()
"""the modules whose heads are being gated right now, by id"""


@dataclass(frozen=True, eq=False)
class Attached:
    """A user's model, with its sites found. What `run` does is undone when it returns, to the bit."""

    model: nn.Module
    sites: tuple[Site, ...]
    """in the order of the forward pass"""
    projections: Mapping[Site, Projection]
    blocks: Mapping[Site, str]
    """the layer that holds a site, as a module path, where it is one of a list of layers"""
    owners: Mapping[Site, str]
    """the attention module of each site, as a path"""
    hooks: Sequence[Hook]
    ways: Mapping[Site, str]
    """how each site is gated: 'dispatch', 'projection' or 'MultiheadAttention'"""
    idle: tuple[str, ...] = ()
    """attention modules that did not run on the example, and so are no sites"""

    @property
    def width(self) -> dict[Site, int]:
        """How many heads each site has; query heads, where they share keys."""
        return {site: self.projections[site].heads for site in self.sites}

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(site, number) for site in self.sites for number in range(self.width[site]))

    def run(self, call: Callable[[], T], gates: Gates | None = None, trace: Trace | None = None) -> T:
        """What `call` returns while the gates are in force; it runs the model any way it likes."""
        self.check(gates or {})
        with self.opened(Intervention(gates or {}, trace)):
            return call()

    def check(self, gates: Gates) -> None:
        """Refuses gates that do not fit."""
        for site, gate in gates.items():
            if site not in self.projections:
                raise HeadwayError(f"a gate is given for {site}, which is no site of this model; see its sites")
            if gate.passed.shape[-1] != self.width[site]:
                raise HeadwayError(f"the gate of {site} has {gate.passed.shape[-1]} heads; it has {self.width[site]}")

    @contextmanager
    def opened(self, intervention: Intervention) -> Iterator[None]:
        """The hooks apply this intervention while it lasts, whatever runs: its gates may change from call to call."""
        own = {id(projection.module) for projection in self.projections.values()}
        if own & _RUNNING:
            raise HeadwayError("this model is already running under gates; run one call inside another on a copy of it")
        with ExitStack() as stack:
            _RUNNING.update(own)
            stack.callback(_RUNNING.difference_update, own)
            for hook in self.hooks:
                stack.enter_context(hook(intervention))
            yield


@contextmanager
def own_forward(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Gives one module a forward of its own until it is left."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def blocks_of(model: nn.Module, paths: Mapping[Site, str]) -> dict[Site, str]:
    """For each site, by the path of its attention module, the layer that holds it: the outermost member of a list."""
    lists = {path for path, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    found: dict[Site, str] = {}
    for site, path in paths.items():
        for outer, layer in pairwise(accumulate(path.split("."), "{}.{}".format)):
            if outer in lists and layer.rpartition(".")[2].isdecimal():
                found.setdefault(site, layer)
    return found


def check_ready(model: nn.Module) -> None:
    """A compiled model runs past anything that is put into it later, and dropout makes every run another."""
    if hasattr(model, "_orig_mod"):
        raise HeadwayError(f"{type(model._orig_mod).__name__} is compiled; attach it before torch.compile")
    if model.training:
        raise HeadwayError(f"{type(model).__name__} is in training mode, where dropout is on; call its eval() first")

"""Attached: a user's model with known attention sites, whose heads can be gated and recorded while the model runs.

A head is a slice of the *input* of its site's output projection. `Attached.run` installs gates there for the duration
of one call; hooks (one kind for each way a model computes attention) pass the heads' outputs through an `Intervention`
and are always removed again. huggingface.py and module.py find the sites, proofs.py checks the gates.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Literal, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.models.attention import apply_gate
from headway.models.narrowed import fill_narrowed
from headway.models.sites import Gate, Gates, Head, Narrowing, Site, Trace

T = TypeVar("T")
Layout = Literal["out in", "in out", "head dim out"]
"""The axes of a projection's weight: in nn.Linear, GPT-2's Conv1D, and a dense layer with a separate head axis."""


@dataclass(frozen=True)
class Projection:
    """The output projection of a site, which mixes its heads."""

    module: nn.Module
    path: str
    heads: int
    dim: int
    """width of one head"""
    layout: Layout = "out in"

    def of_head(self, weight: Tensor, head: int) -> Tensor:
        """Returns the part of a weight that reads this head, as a view."""
        if self.layout == "head dim out":
            return weight[head]
        columns = slice(head * self.dim, (head + 1) * self.dim)
        return weight[:, columns] if self.layout == "out in" else weight[columns]


@dataclass
class Intervention:
    """One run: the active gates, the trace to fill, and how often each site fired."""

    gates: Gates
    trace: Trace | None
    fired: Counter[Site] = field(default_factory=Counter)
    strict: bool = True
    """whether it is an error that a traced site runs twice; otherwise its last run is recorded"""
    narrowed: dict[Site, Tensor | None] = field(default_factory=dict)
    """what heads output where their module ran before with a narrowed mask; None while it does"""

    def apply(
        self,
        site: Site,
        z: Float[Tensor, "batch query head dim"],
        maps: Float[Tensor, "batch head query key"] | None,
        narrow: Callable[[Narrowing], Tensor] | None = None,
    ) -> Float[Tensor, "batch query head dim"]:
        """Applies the gate of a site to z and records the result; nothing is changed or recorded anywhere else.
        `narrow` returns what the heads output in this pass where they see less."""
        if site in self.narrowed and self.narrowed[site] is None:
            self.narrowed[site] = z
            return z
        outputs = self.narrowed.pop(site, None)
        self.fired[site] += 1
        gate = self.gates.get(site)
        if gate is not None:
            given = narrow if outputs is None else lambda _: outputs
            z = apply_gate(z, fill_narrowed(fit_gate(gate, site, z), site, given))
        if self.trace is not None:
            if self.strict and self.fired[site] > 1:
                raise HeadwayError(
                    f"{site} ran {self.fired[site]} times in one call, but a trace holds one; trace a call of one pass"
                )
            self.trace.outputs[site] = z
            self.record_map(site, maps)
        return z

    def record_map(self, site: Site, maps: Float[Tensor, "batch head query key"] | None) -> None:
        """Records the map of a site, if there is one."""
        if self.trace is not None and maps is not None:
            self.trace.maps[site] = maps


def fit_gate(gate: Gate, site: Site, z: Tensor) -> Gate:
    """Moves a gate to the device of z; raises if it does not fit, as it would broadcast over the wrong problems."""
    passed, fill = gate.passed.to(z.device), gate.replacement
    narrowing = gate.narrowing
    for what, rows, queries in (
        ("narrowing", 1 if narrowing is None else len(narrowing.recent), 1),
        ("gate", passed.shape[0], passed.shape[1] if passed.ndim == 3 else 1),
        ("replacement", *(fill.shape[:2] if fill is not None else (1, 1))),
    ):
        if rows not in (1, z.shape[0]) or queries not in (1, z.shape[1]):
            raise HeadwayError(
                f"the {what} of {site} is for {rows} rows of {queries} queries, but the model ran {z.shape[0]} rows of "
                f"{z.shape[1]} through it; give one row, or one for each"
            )
    if narrowing is not None:
        narrowing = replace(narrowing, recent=narrowing.recent.to(z.device))
    return Gate(passed, None if fill is None else fill.to(z.device, z.dtype), narrowing)


Hook = Callable[[Intervention], AbstractContextManager[None]]
"""A context in which an intervention applies to some sites."""
_RUNNING: set[int] = set()
"""the ids of the modules whose heads are currently gated"""


@dataclass(frozen=True, eq=False)
class Attached:
    """A user's model with known sites. `run` leaves the model exactly as it was, to the bit."""

    model: nn.Module
    sites: tuple[Site, ...]
    """in the order of the forward pass"""
    projections: Mapping[Site, Projection]
    blocks: Mapping[Site, str]
    """the path of the layer that contains a site, if it is in a list of layers"""
    owners: Mapping[Site, str]
    """the path of each site's attention module"""
    hooks: Sequence[Hook]
    ways: Mapping[Site, str]
    """how each site is gated: 'dispatch', 'projection' or 'MultiheadAttention'"""
    groups: Mapping[Site, int] = field(default_factory=dict)
    """the number of key-value groups of each site whose heads share keys and values"""
    idle: tuple[str, ...] = ()
    """attention modules that did not run on the example and are therefore not sites"""

    @property
    def width(self) -> dict[Site, int]:
        """The number of heads of each site; with grouped keys, of query heads."""
        return {site: self.projections[site].heads for site in self.sites}

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(Head(site, number) for site in self.sites for number in range(self.width[site]))

    def run(self, call: Callable[[], T], gates: Gates | None = None, trace: Trace | None = None) -> T:
        """Returns the result of `call` while the gates are active; `call` may run the model in any way."""
        self.check(gates or {})
        with self.install(Intervention(gates or {}, trace)):
            return call()

    def check(self, gates: Gates) -> None:
        """Raises where a gate does not fit its site."""
        for site, gate in gates.items():
            if site not in self.projections:
                raise HeadwayError(f"there is a gate for {site}, which is not a site of this model; see its sites")
            if gate.passed.shape[-1] != self.width[site]:
                raise HeadwayError(f"the gate of {site} has {gate.passed.shape[-1]} heads, the site {self.width[site]}")

    @contextmanager
    def install(self, intervention: Intervention) -> Iterator[None]:
        """Applies this intervention to every call inside the context; its gates may change from call to call."""
        modules = {id(projection.module) for projection in self.projections.values()}
        if modules & _RUNNING:
            raise HeadwayError("this model is already running under gates; use a copy of it for a nested call")
        with ExitStack() as stack:
            _RUNNING.update(modules)
            stack.callback(_RUNNING.difference_update, modules)
            for hook in self.hooks:
                stack.enter_context(hook(intervention))
            yield


@contextmanager
def replace_forward(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Replaces the forward of one module inside the context."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def blocks_of(model: nn.Module, paths: Mapping[Site, str]) -> dict[Site, str]:
    """Returns the layer that contains each site, given the path of its attention module: the outermost list item."""
    lists = {path for path, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    found: dict[Site, str] = {}
    for site, path in paths.items():
        for outer, layer in pairwise(accumulate(path.split("."), "{}.{}".format)):
            if outer in lists and layer.rpartition(".")[2].isdecimal():
                found.setdefault(site, layer)
    return found


def check_ready(model: nn.Module) -> None:
    """Raises for a compiled model, which ignores later hooks, and in training mode, where dropout makes runs differ."""
    if hasattr(model, "_orig_mod"):
        raise HeadwayError(f"{type(model._orig_mod).__name__} is compiled; attach it before torch.compile")
    if model.training:
        raise HeadwayError(f"{type(model).__name__} is in training mode, where dropout is on; call its eval() first")

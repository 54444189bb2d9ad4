"""A user's model as studies call it, `model(source, answer, gates, trace)`; and again, from a changed layer on.

What lies before the first changed layer is the same for every variant: it is computed once and kept, and the layers
before it stand still. So does the attention of the changed site itself: of it only the gates and the projection are
made again. Where a model has no list of layers, or goes through one twice, everything is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.attach.intervention import Attached, Intervention, fitting, own_forward
from headway.attach.projections import child
from headway.attach.readers import NOTHING, Reader
from headway.attach.stacking import Stacking
from headway.errors import HeadwayError
from headway.models.attention import gated
from headway.models.sites import Gate, Gates, Head, Site, Trace
from headway.tasks import Problems

MEMORY = 2**30
"""bytes that a pass may take, where nothing else is said"""
KEYS_VALUES = ("k_proj", "v_proj", "k", "v", "key", "value", "k_lin", "v_lin")
"""what the layers for keys and values are called"""
COPIES = 4
"""of the logits: themselves, their softmax, and what lies between"""


@dataclass(frozen=True)
class Kept:
    """One pass: what came out, what every site said and what every layer returned."""

    source: Tensor
    answer: Tensor
    logits: Float[Tensor, "row answer token"]
    trace: Trace
    returned: Mapping[str, Any]
    """by the path of a layer or an attention module"""

    def __len__(self) -> int:
        return len(self.source)


@dataclass
class _Calls:
    """What modules returned in one pass, and which of them ran more than once."""

    returned: dict[str, Any] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)


class Foreign(nn.Module):
    """The model of a user's own. Nothing in it is ever changed."""

    def __init__(self, attached: Attached, reader: Reader, memory: int = MEMORY) -> None:
        super().__init__()
        self.inner, self.attached, self.reader, self.memory = attached.model, attached, reader, memory
        self.layers = list(dict.fromkeys(attached.blocks[site] for site in attached.sites if site in attached.blocks))
        """in the order of the forward pass"""
        crossing = [attached.owners[site] for site in attached.sites if site.kind == "cross" and site.layer is not None]
        named = [f"{owner}.{name}" for owner in crossing for name in KEYS_VALUES]
        self.across = [path for path in named if child(attached.model, path) is not None]
        """what makes keys and values of the source for the decoder"""
        self.still: dict[Site, str] = {}
        """of each site whose attention need not be made again: what its module returns, 'output' or 'heads'"""
        self.stacking = Stacking()
        self.passage: Intervention | None = None
        """where what the heads say is led through, while many passes are made one after the other"""
        self.training = False
        self.checked = False
        """whether going through it again was held against whole passes"""
        self.skips = True
        """whether anything may stand still"""

    def forward(
        self, source: Tensor, answer: Tensor, gates: Gates | None = None, trace: Trace | None = None
    ) -> Float[Tensor, "row answer token"]:
        if self.passage is None:
            return self.attached.run(lambda: self.reader(self.inner, source, answer), gates, trace)
        self.attached.check(gates or {})
        self.passage.gates, self.passage.trace = gates or {}, trace
        self.passage.fired.clear()
        return self.reader(self.inner, source, answer)

    @contextmanager
    def many_passes(self) -> Iterator[None]:
        """Doors are opened once for all passes made while it lasts; maps are not seen then."""
        self.passage = Intervention({}, None, maps=False)
        try:
            with self.attached.opened(self.passage):
                yield
        finally:
            self.passage = None

    def without(self, problems: Problems, heads: Collection[Head]) -> Float[Tensor, "row answer token"]:
        """The logits with these heads closed, of problems of one length after the other."""
        gates = {}
        for site in {head.site for head in heads}:
            passed = [float(Head(site, number) not in heads) for number in range(self.attached.width[site])]
            gates[site] = Gate(torch.tensor([passed], device=problems.source.device))
        pieces = [problems[piece] for piece in self.slices(problems)]  # as wide as the answers are, all of them
        return torch.cat([self(some.source, some.answer, gates) for some in pieces])

    def pieces(self, problems: Problems) -> list[Problems]:
        """In the order given: as many at a time as fit and are of one length."""
        return [trimmed(problems[piece]) for piece in self.slices(problems)]

    def slices(self, problems: Problems, most: int | None = None) -> list[slice]:
        lengths = lengths_of(problems)
        changes = [0, *(lengths[1:] != lengths[:-1]).nonzero()[:, 0].add(1).tolist(), len(problems)]
        found = []
        for first, last in pairwise(changes):
            some = trimmed(problems[first:last])
            rows = min(self.rows(some.source, some.answer), most or len(problems))
            found += [slice(start, min(start + rows, last)) for start in range(first, last, rows)]
        return found

    def keep(self, source: Tensor, answer: Tensor, gates: Gates | None = None) -> Kept:
        """A pass with everything in it that a later one can use."""
        trace, owners = Trace(), [self.attached.owners[site] for site in self.attached.sites]
        with _recorded(self.inner, [*self.layers, *owners, *self.across]) as calls:
            logits = self(source, answer, gates, trace)
        if self.passage is not None:  # what follows is no part of the pass
            self.passage.gates, self.passage.trace = {}, None
        if calls.twice & set(self.layers):
            self.layers = []
        if not self.skips:
            return Kept(source, answer, logits, trace, {})
        for site in self.attached.sites:
            if self.attached.owners[site] not in calls.twice:
                self._look(site, trace, calls.returned)
        trace.maps.clear()
        return Kept(source, answer, logits, trace, calls.returned)

    def _look(self, site: Site, trace: Trace, returned: Mapping[str, Any]) -> None:
        """Whether what an attention module returns is its heads side by side, or their projection and nothing more."""
        z, said = trace.outputs[site], _first(returned.get(self.attached.owners[site]))
        projection = self.attached.projections[site]
        if site in self.still or said is None or projection.layout == "head dim out" or z.shape[0] != said.shape[0]:
            return
        side_by_side = z.flatten(2)
        if said.shape == side_by_side.shape and torch.equal(said, side_by_side):
            self.still[site] = "heads"
        elif self.attached.owners[site] != projection.path:
            projected = projection.module(side_by_side)
            if isinstance(projected, Tensor) and projected.shape == said.shape and torch.equal(projected, said):
                self.still[site] = "output"

    def again(self, kept: Kept, gates: Gates, first: Site, variants: int = 1) -> Float[Tensor, "rows answer token"]:
        """The logits under `gates`, of which none before `first` differs from those of the kept pass.

        Gates have a row for every problem under every variant: those of the first variant come first.
        """
        rows, layer = len(kept), self.attached.blocks.get(first)
        before = self.layers[: self.layers.index(layer)] if layer in self.layers else []

        def repeated(value: Any) -> Any:
            return _mapped(value, lambda each: _repeat(each, rows, variants))

        with ExitStack() as stack:
            still = before if first.stack == "encoder" else [*before, *self.across]  # the source is read as before
            for path in still:
                stack.enter_context(_standing(self.inner, path, lambda path=path: repeated(kept.returned[path])))
            if first in self.still:
                made = lambda: self._made_again(kept, gates, first, repeated)  # noqa: E731
                stack.enter_context(_standing(self.inner, self.attached.owners[first], made))
            return self(repeated(kept.source), repeated(kept.answer), gates)

    @torch.no_grad()
    def check_again(self, problems: Problems) -> None:
        """Holds what `again` gives against whole passes, for a head in the middle and one at the end. A model whose
        layers change what they are given, or return what cannot be repeated, is gone through as a whole, one variant at
        a time."""
        self.checked = True
        few, sites = trimmed(problems[:2]), self.attached.sites
        try:
            kept = self.keep(few.source, few.answer)
            right = all(self._agrees(kept, site) for site in {sites[len(sites) // 2], sites[-1]})
        except HeadwayError:
            raise
        except Exception:  # whatever a model may raise at what it did not return itself
            right = False
        if not right:
            self.layers, self.across, self.still = [], [], {}
            self.skips = False
            self.stacking.stay_small()

    def _agrees(self, kept: Kept, site: Site) -> bool:
        passed = torch.ones(1, self.attached.width[site], device=kept.source.device)
        passed[0, -1] = 0
        whole = self(kept.source, kept.answer, {site: Gate(passed)})
        alone = self.again(kept, {site: Gate(passed)}, site)
        near = 1e-4 if whole.dtype in (torch.float32, torch.float64) else 0.1
        size = max(1.0, float(whole.abs().max()))
        if not float((alone - whole).abs().max()) <= near * size:
            return False
        try:
            rows = passed.expand(2 * len(kept), -1)
            stacked = self.again(kept, {site: Gate(rows)}, site, 2)
            both = torch.cat((whole, whole))
            alike = stacked.shape == both.shape and float((stacked - both).abs().max()) <= near * size
        except Exception:  # as above
            alike = False
        if not alike:
            self.stacking.stay_small()
        return True

    def _made_again(self, kept: Kept, gates: Gates, site: Site, repeated: Callable[[Any], Any]) -> Any:
        """What the attention module of the changed site returns: the same but for its heads."""
        z, gate = repeated(kept.trace.outputs[site]), gates.get(site)
        z = (z if gate is None else gated(z, fitting(gate, site, z))).flatten(2)
        said = z if self.still[site] == "heads" else self.attached.projections[site].module(z)
        return _with_first(kept.returned[self.attached.owners[site]], said, repeated)

    def rows(self, source: Tensor, answer: Tensor, variants: int = 1) -> int:
        """How many problems fit into one pass."""
        return max(1, self.memory // (variants * self._bytes(source, answer)))

    def maps_at_once(self, problems: Problems) -> int:
        """Of how many problems all maps may be held."""
        tokens = problems.source.shape[1] + problems.answer.shape[1]
        return max(1, self.memory // (4 * sum(self.attached.width.values()) * tokens**2))

    def _bytes(self, source: Tensor, answer: Tensor) -> int:
        """Of one problem under one variant, on the safe side."""
        config, size = getattr(self.inner, "config", None), next(self.inner.parameters()).element_size()
        width = max((p.heads * p.dim for p in self.attached.projections.values()), default=1)
        tokens = source.shape[1] + answer.shape[1]
        words = getattr(config, "vocab_size", 0) or answer.max().item() + 1
        kept = 3 * len(self.attached.sites) * tokens * width
        inside = tokens * (16 * width + 2 * tokens * max(self.attached.width.values(), default=1))
        return int(size * (COPIES * answer.shape[1] * words + kept + inside))


def lengths_of(problems: Problems) -> Int[Tensor, " row"]:
    """A number for each problem that is the same for those whose sources and answers have as many tokens."""
    answers = (problems.answer != NOTHING).sum(1)
    if problems.source.is_floating_point():
        return answers
    return (problems.source != NOTHING).sum(1) * (problems.answer.shape[1] + 1) + answers


def trimmed(problems: Problems) -> Problems:
    """The same problems without what none of them has; of one length, nothing is padded then."""
    answers = max(1, int((problems.answer != NOTHING).sum(1).max()))
    scored = None if problems.scored is None else problems.scored[:, :answers]
    source = problems.source
    if not source.is_floating_point():
        source = source[:, : int((source != NOTHING).sum(1).max())]
    return Problems(source, problems.answer[:, :answers], scored)


@torch.no_grad()
def check_reads(model: nn.Module, reader: Reader, problems: Problems) -> None:
    """Refuses a model that cannot read its longest example, or does not answer it token by token."""
    longest = trimmed(problems[lengths_of(problems).argmax().item() :][:1])
    try:
        logits = reader(model, longest.source, longest.answer)
    except HeadwayError:
        raise
    except Exception as error:  # whatever a user's model may raise
        raise HeadwayError(
            f"{type(model).__name__} failed on its longest example, of {longest.source.shape[1]} and "
            f"{longest.answer.shape[1]} tokens ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != longest.answer.shape:
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise HeadwayError(
            f"{type(model).__name__} answers with {shown} where {tuple(longest.answer.shape)} tokens are asked for; "
            "give reader=, a function of the model, sources and answers that returns logits [row, answer, token]"
        )


def by_length(problems: Problems) -> Problems:
    """The same problems, those of one length side by side."""
    lengths = lengths_of(problems)
    return problems if bool((lengths == lengths[:1]).all()) else problems[lengths.argsort(stable=True)]


def few_of_one_length(problems: Problems, most: int) -> Problems:
    """Some of those problems that are of the commonest length."""
    lengths = lengths_of(problems)
    return trimmed(problems[(lengths == lengths.mode().values).nonzero()[:most, 0]])


@contextmanager
def _recorded(model: nn.Module, paths: Sequence[str]) -> Iterator[_Calls]:
    """What these modules return while it lasts."""
    calls = _Calls()

    def watch(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*inputs: Any, **named: Any) -> Any:
            said = forward(*inputs, **named)
            own = _mapped(said, Tensor.clone)  # a later layer may write into it
            if path in calls.returned:
                calls.twice.add(path)
            calls.returned[path] = own
            return said

        return recorded

    with ExitStack() as stack:
        for path in dict.fromkeys(paths):
            module = model.get_submodule(path)
            stack.enter_context(own_forward(module, watch(path, module.forward)))
        yield calls


@contextmanager
def _standing(model: nn.Module, path: str, said: Callable[[], Any]) -> Iterator[None]:
    """A module that does nothing and says what it is told to."""
    with own_forward(model.get_submodule(path), lambda *_, **__: said()):
        yield


def _first(value: Any) -> Tensor | None:
    """What a module says first, where that is a tensor."""
    if isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None


def _with_first(value: Any, first: Tensor, others: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(first, *(others(each) for each in value[1:]))
    if isinstance(value, tuple | list):
        return type(value)([first, *(others(each) for each in value[1:])])
    return first


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(each, change) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(each, change) for each in value)
    if isinstance(value, dict):
        return type(value)({name: _mapped(each, change) for name, each in value.items()})
    return value


def _repeat(tensor: Tensor, rows: int, variants: int) -> Tensor:
    if variants == 1 or tensor.ndim == 0 or tensor.shape[0] != rows:
        return tensor.clone()
    return tensor.repeat(variants, *[1] * (tensor.ndim - 1))

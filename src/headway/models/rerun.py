"""Replays a recorded forward pass from some site on, with other gates.

What precedes the first changed site is the same for every variant, so it is computed once and recorded. A variant
then costs only what follows that site: for the last site of an adder a tenth of a pass.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from headway.models.attention import Attention, Cache, PassInputs, apply_gate
from headway.models.blocks import Block
from headway.models.model import Model, StackPass
from headway.models.narrowed import fill_narrowed
from headway.models.sites import Gates, Narrowing, Site, Trace


@dataclass(frozen=True)
class Recording:
    """One recorded pass: its logits, and the residual stream and the output of every site."""

    source: Tensor
    answer: Int[Tensor, "batch answer"]
    logits: Float[Tensor, "batch answer token"]
    trace: Trace
    memory: Float[Tensor, "batch source d_model"] | None = None
    cross_keys_values: Cache = field(default_factory=dict)  # keys and values of the cross-attentions
    gated: Collection[Site] = ()
    """the sites that had gates"""
    returned: Mapping[str, Any] = field(default_factory=dict)  # outputs of a user's modules, by path

    def __len__(self) -> int:
        return len(self.source)


def sites_of(model: Model) -> list[Site]:
    """Returns every attention that has heads and every feed-forward block, in the order of the forward pass."""
    found = []
    for module in model.modules():
        if isinstance(module, Block):
            attentions = [each for each in module.attentions.values() if isinstance(each, Attention)]
            found += [*(each.site for each in attentions if each.heads), module.feed_site]
    return found


def record(model: Model, source: Tensor, answer: Tensor, gates: Gates | None = None) -> Recording:
    """Runs a pass and stores everything that a replay can reuse."""
    trace, written = Trace(), model.shift_right(answer)
    memory = model.memory(source, written, gates, trace)
    cache: Cache | None = None if memory is None else {}
    logits = model.stack(model.stacks[-1], source, written).run(PassInputs(gates, trace, memory, cache))
    return Recording(source, answer, logits, trace, memory, _cross(cache), gated=set(gates or ()))


def replay_and_record(model: Model, recording: Recording, gates: Gates, first: Site) -> Recording:
    """Replays a pass and records it again, for variants that share more with it than with the recording."""
    old, cache = recording.trace, dict(recording.cross_keys_values)
    trace = Trace({}, dict(old.outputs), dict(old.ungated), dict(old.streams))
    memory, logits = _replay(model, recording, gates, first, 1, trace, cache)
    trace.maps.clear()  # a replay does not need them
    return Recording(recording.source, recording.answer, logits, trace, memory, _cross(cache), gated=set(gates))


def replay(
    model: Model, recording: Recording, gates: Gates, first: Site, variants: int = 1
) -> Float[Tensor, "rows answer token"]:
    """Returns the logits under `gates`; before `first` they must equal the gates of the recorded pass. Gates have a row
    for each problem under each variant, the first variant's rows first."""
    cache = {
        site: (_repeat(key, variants), _repeat(value, variants))
        for site, (key, value) in recording.cross_keys_values.items()
    }
    return _replay(model, recording, gates, first, variants, None, cache)[1]


def _replay(
    model: Model, recording: Recording, gates: Gates, first: Site, variants: int, trace: Trace | None, cache: Cache
) -> tuple[Tensor | None, Tensor]:
    """Returns the memory of the last stack, and the logits. `cache` has the keys and values of the cross-attentions,
    and gets new ones where the memory changes."""

    def repeat(tensor: Tensor) -> Tensor:
        return _repeat(tensor, variants)

    source, written = repeat(recording.source), repeat(model.shift_right(recording.answer))
    stack, number = model.stack(first.stack, source, written), model.stacks.index(first.stack)
    block = next(each for each in stack.blocks if isinstance(each, Block) and each.layer == first.layer)
    streams, ungated = recording.trace.streams, recording.trace.ungated
    z = _gated(stack, block, first, repeat(ungated[first]), repeat(streams[first]), gates)
    if trace is not None:
        trace.outputs[first] = z
    x, memory = block.add(repeat(streams[first]), _project(block, z, first), first.kind), recording.memory
    inputs = PassInputs(gates, trace)
    if number:
        assert memory is not None
        memory = repeat(memory)
        inputs = PassInputs(gates, trace, memory, cache)
    output = stack.run(inputs, x, first)
    for name in model.stacks[number + 1 :]:  # its first self-attention does not depend on the change
        cache.clear()
        memory, stack, begin = output, model.stack(name, source, written), Site(name, 0, "self")
        if begin in gates or begin in recording.gated:
            opening = next(each for each in stack.blocks if isinstance(each, Block))
            z = _gated(stack, opening, begin, repeat(ungated[begin]), repeat(streams[begin]), gates)
            x = opening.add(repeat(streams[begin]), _project(opening, z, begin), begin.kind)
            if trace is not None:
                trace.outputs[begin] = z
        else:
            x = repeat(streams[Site(name, 0, "cross")])
        output = stack.run(PassInputs(gates, trace, memory, cache if trace is not None else None), x, begin)
    return memory, output


def _gated(stack: StackPass, block: Block, site: Site, z: Tensor, x: Tensor, gates: Gates) -> Tensor:
    """Returns the gated outputs of a site's heads, given what they output and the residual stream before the site."""

    def narrowed(narrowing: Narrowing) -> Tensor:
        attention, read = block.attentions[site.kind], block.read(x, site.kind)
        assert isinstance(attention, Attention)
        return attention.narrowed_outputs(read, read, stack.order, None, narrowing)

    return apply_gate(z, fill_narrowed(gates.get(site), site, narrowed))


def _repeat(tensor: Tensor, variants: int) -> Tensor:
    return tensor if variants == 1 else tensor.repeat(variants, *[1] * (tensor.ndim - 1))


def _cross(cache: Cache | None) -> Cache:
    """Returns the keys and values of the cross-attentions, which a replay reads again."""
    return {site: both for site, both in (cache or {}).items() if site.kind == "cross"}


def _project(block: Block, z: Tensor, site: Site) -> Tensor:
    """Returns what a site adds to the stream, given the outputs of its heads."""
    attention = None if site.kind == "feed" else block.attentions[site.kind]
    return attention.out(z.flatten(2)) if isinstance(attention, Attention) else z[:, :, 0]

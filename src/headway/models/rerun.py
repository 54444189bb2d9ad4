"""Replays a recorded forward pass from some site on, with other gates.

What precedes the first changed site is the same for every variant, so it is computed once and recorded. A variant
then costs only what follows that site: for the last site of an adder a tenth of a pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from headway.models.attention import Attention, Cache, PassInputs, apply_gate
from headway.models.blocks import Block
from headway.models.model import Model
from headway.models.sites import Gates, Site, Trace


@dataclass(frozen=True)
class Recording:
    """One recorded pass: its logits, and the residual stream and the output of every site."""

    source: Tensor
    answer: Int[Tensor, "batch answer"]
    logits: Float[Tensor, "batch answer token"]
    trace: Trace
    memory: Float[Tensor, "batch source d_model"] | None = None
    cross_keys_values: Cache = field(default_factory=dict)  # keys and values of the cross-attentions
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
    logits = model.stack(model.stacks[-1], source, written).run(PassInputs(gates, trace, memory))
    if memory is None:
        return Recording(source, answer, logits, trace)
    crossing = [each for each in model.modules() if isinstance(each, Attention) and each.site.kind == "cross"]
    cache = {each.site: each.keys_values(memory, None) for each in crossing}
    return Recording(source, answer, logits, trace, memory, cache)


def replay(
    model: Model, recording: Recording, gates: Gates, first: Site, variants: int = 1
) -> Float[Tensor, "rows answer token"]:
    """Returns the logits under `gates`; before `first` they must equal the gates of the recorded pass. Gates have a row
    for each problem under each variant, the first variant's rows first."""

    def repeat(tensor: Tensor) -> Tensor:
        return tensor if variants == 1 else tensor.repeat(variants, *[1] * (tensor.ndim - 1))

    source, written = repeat(recording.source), repeat(model.shift_right(recording.answer))
    stack, number = model.stack(first.stack, source, written), model.stacks.index(first.stack)
    block = next(each for each in stack.blocks if isinstance(each, Block) and each.layer == first.layer)
    streams, inputs = recording.trace.streams, PassInputs(gates)
    x = repeat(streams[first]) + _site_output(block, repeat(recording.trace.outputs[first]), gates, first)
    if number:
        assert recording.memory is not None
        cache = {site: (repeat(key), repeat(value)) for site, (key, value) in recording.cross_keys_values.items()}
        inputs = PassInputs(gates, None, repeat(recording.memory), cache)
    output = stack.run(inputs, x, first)
    for name in model.stacks[number + 1 :]:  # its first self-attention does not depend on the change
        begin, opening = Site(name, 0, "self"), Site(name, 0, "cross")
        after, x = (None, streams[begin]) if begin in gates else (begin, streams[opening])
        output = model.stack(name, source, written).run(PassInputs(gates, None, output), repeat(x), after)
    return output


def _site_output(block: Block, heads: Tensor, gates: Gates, site: Site) -> Tensor:
    """Returns what a site adds to the stream, given the recorded outputs of its heads."""
    z = apply_gate(heads, gates.get(site))
    attention = None if site.kind == "feed" else block.attentions[site.kind]
    return attention.out(z.flatten(2)) if isinstance(attention, Attention) else z[:, :, 0]

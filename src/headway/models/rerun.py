"""A forward pass gone through again from some site on, with other gates.

What lies before the first changed site is the same for every variant, so it is computed once and recorded. A variant
then costs only what lies behind: for the last site of an adder a tenth of a pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from headway.models.attention import Attention, Cache, PassInputs, gated
from headway.models.blocks import Block
from headway.models.model import Model
from headway.models.sites import Gates, Site, Trace


@dataclass(frozen=True)
class Recording:
    """One pass: what came out, what flowed past every site and what it put out."""

    source: Tensor
    answer: Int[Tensor, "batch answer"]
    logits: Float[Tensor, "batch answer token"]
    trace: Trace
    memory: Float[Tensor, "batch source d_model"] | None = None
    across: Cache = field(default_factory=dict)  # of the cross-attentions
    returned: Mapping[str, Any] = field(default_factory=dict)  # in a user's model: what modules returned, by their path

    def __len__(self) -> int:
        return len(self.source)


def sites_of(model: Model) -> list[Site]:
    """Every attention that has heads and every feed-forward block, in the order of the forward pass."""
    found = []
    for module in model.modules():
        if isinstance(module, Block):
            attentions = [each for each in module.attentions.values() if isinstance(each, Attention)]
            found += [*(each.site for each in attentions if each.heads), module.feed_site]
    return found


def record(model: Model, source: Tensor, answer: Tensor, gates: Gates | None = None) -> Recording:
    """A pass with everything in it that a later one can use."""
    trace, written = Trace(), model.shifted(answer)
    memory = model.memory(source, written, gates, trace)
    logits = model.stack(model.stacks[-1], source, written).run(PassInputs(gates, trace, memory))
    if memory is None:
        return Recording(source, answer, logits, trace)
    crossing = [each for each in model.modules() if isinstance(each, Attention) and each.site.kind == "cross"]
    across = {each.site: each.keys_values(memory, None) for each in crossing}
    return Recording(source, answer, logits, trace, memory, across)


def replay(
    model: Model, recording: Recording, gates: Gates, first: Site, variants: int = 1
) -> Float[Tensor, "rows answer token"]:
    """The logits under `gates`, of which none before `first` differs from those of the recorded pass. Gates
    have a row for every problem under every variant: those of the first variant come first."""

    def rows(tensor: Tensor) -> Tensor:
        return tensor if variants == 1 else tensor.repeat(variants, *[1] * (tensor.ndim - 1))

    streams, source, written = recording.trace.streams, rows(recording.source), rows(model.shifted(recording.answer))
    stack, number = model.stack(first.stack, source, written), model.stacks.index(first.stack)
    block = next(each for each in stack.blocks if isinstance(each, Block) and each.layer == first.layer)
    x = rows(streams[first]) + _output(block, rows(recording.trace.outputs[first]), gates, first)
    inputs = PassInputs(gates)
    if number:
        assert recording.memory is not None
        across = {site: (rows(key), rows(value)) for site, (key, value) in recording.across.items()}
        inputs = PassInputs(gates, None, rows(recording.memory), across)
    found = stack.run(inputs, x, first)
    for name in model.stacks[number + 1 :]:  # its first self-attention does not look at what has changed
        begin, opening = Site(name, 0, "self"), Site(name, 0, "cross")
        after, x = (None, streams[begin]) if begin in gates else (begin, streams[opening])
        found = model.stack(name, source, written).run(PassInputs(gates, None, found), rows(x), after)
    return found


def _output(block: Block, heads: Tensor, gates: Gates, site: Site) -> Tensor:
    """What a site adds to the stream, from the recorded outputs of its heads."""
    z = gated(heads, gates.get(site))
    attention = None if site.kind == "feed" else block.attentions[site.kind]
    return attention.out(z.flatten(2)) if isinstance(attention, Attention) else z[:, :, 0]

"""A forward pass gone through again from some site on, with other gates.

What lies before the first changed site is the same for every variant, so it is computed once and recording. A variant
then costs only what lies behind: for the last site of an adder a tenth of a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.models.attention import Attention, Cache, Order, gated
from headway.models.blocks import Block
from headway.models.classifier import Classifier
from headway.models.decoder import Decoder
from headway.models.encoder_decoder import EncoderDecoder
from headway.models.sites import Gates, Site, Trace


@dataclass(frozen=True)
class Recording:
    """One pass: what came out, what flowed past every site and what it put out."""

    source: Tensor
    answer: Int[Tensor, "batch answer"]
    logits: Float[Tensor, "batch answer token"]
    trace: Trace
    memory: Float[Tensor, "batch source d_model"] | None = None
    across: Mapping[Site, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """keys and values of the cross-attentions"""
    returned: Mapping[str, Any] = field(default_factory=dict)
    """in a user's model: what layers and attention modules returned, by their path"""

    def __len__(self) -> int:
        return len(self.source)


def sites_of(model: EncoderDecoder | Decoder | Classifier) -> list[Site]:
    """Every attention that has heads and every feed-forward block, in the order of the forward pass."""
    found = []
    for module in model.modules():
        if isinstance(module, Block):
            attentions = [each for each in module.attentions.values() if isinstance(each, Attention)]
            found += [*(each.site for each in attentions if each.heads), module.feed_site]
    return found


def record(
    model: EncoderDecoder | Decoder | Classifier, source: Tensor, answer: Tensor, gates: Gates | None = None
) -> Recording:
    """A pass with everything in it that a later one can use."""
    trace = Trace()
    if not isinstance(model, EncoderDecoder):
        return Recording(source, answer, model(source, answer, gates, trace), trace)
    memory = model.encode(source, gates, trace)
    logits = model.decode(model.shifted(answer), memory, model.orders(source, answer.shape[1]), gates, trace)
    crossing = [each for each in model.modules() if isinstance(each, Attention) and each.site.kind == "cross"]
    across = {each.site: each.keys_values(memory, None) for each in crossing}
    return Recording(source, answer, logits, trace, memory, across)


def replay(
    model: EncoderDecoder | Decoder | Classifier, recording: Recording, gates: Gates, first: Site, variants: int = 1
) -> Float[Tensor, "rows answer token"]:
    """The logits under `gates`, of which none before `first` differs from those of the recorded pass.

    Gates have a row for every problem under every variant: those of the first variant come first.
    """

    def rows(tensor: Tensor) -> Tensor:
        return tensor if variants == 1 else tensor.repeat(variants, *[1] * (tensor.ndim - 1))

    blocks = {block.feed_site: block for block in model.modules() if isinstance(block, Block)}
    x = rows(recording.trace.streams[first]) + _output(
        blocks[Site(first.stack, first.layer, "feed")], rows(recording.trace.outputs[first]), gates, first
    )
    source, answer = rows(recording.source), rows(recording.answer)
    if isinstance(model, Classifier):
        return model.answered(_through(model.blocks, x, model.order(source), gates, first))
    if isinstance(model, Decoder):
        order = model.order(source, answer.shape[1])
        last = model.norm(_through(model.blocks, x, order, gates, first))
        return model.unembed(last[:, source.shape[1] :])
    own, across = model.orders(source, answer.shape[1])
    if first.stack == "encoder":
        memory = model.encoder_norm(_through(model.encoder, x, model.source_order(source), gates, first))
        begin, opening, cache = Site("decoder", 0, "self"), Site("decoder", 0, "cross"), None
        changed = begin in gates  # the decoder's first self-attention does not look at the source
        x, after = rows(recording.trace.streams[begin if changed else opening]), None if changed else begin
    else:
        assert recording.memory is not None
        memory, after = rows(recording.memory), first
        cache = Cache({site: (rows(key), rows(value)) for site, (key, value) in recording.across.items()})
    x = _through(model.decoder, x, own, gates, after, memory, across, cache)
    return model.unembed(model.decoder_norm(x))


def _output(block: Block, output: Tensor, gates: Gates, site: Site) -> Tensor:
    """What a site adds to the stream, from the recorded outputs of its heads."""
    z = gated(output, gates.get(site))
    if site.kind == "feed":
        return z[:, :, 0]
    attention = block.attentions[site.kind]
    assert isinstance(attention, Attention)
    return attention.out(z.flatten(2))


def _through(
    blocks: nn.ModuleList | Iterable[nn.Module],
    x: Tensor,
    order: Order,
    gates: Gates,
    after: Site | None,
    memory: Tensor | None = None,
    across: Order | None = None,
    cache: Cache | None = None,
) -> Tensor:
    for block in blocks:
        assert isinstance(block, Block)
        if after is not None and after.layer is not None and block.layer < after.layer:
            continue
        here = after if after is not None and block.layer == after.layer else None
        x = block(x, order, memory, across, gates, cache=cache, after=here)
    return x

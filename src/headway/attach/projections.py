"""Output projections: found by their names, and gated at their input.

This way works for any attention that ends in a module which reads all heads side by side, however it was computed.
The projection gets a forward of its own for the time of a run; where the attention module returns its map as well,
or a user's function reads it, that is recorded.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from headway.attach.intervention import Hook, Intervention, Layout, Projection, own_forward
from headway.errors import HeadwayError, unknown
from headway.models.sites import Site
from headway.subjects.subject import Maps

OUTPUTS = (
    "o_proj", "out_proj", "c_proj", "out_lin", "linear_out", "wo", "o", "dense", "proj", "proj_out", "output_proj",
    "fc_out", "post_proj", "fc_o", "w_o", "W_o", "to_out", "to_out.0", "out", "output", "output.dense", "projection",
)  # fmt: skip
"""what output projections are called, in the modules that people write"""
READS = re.compile(
    r"(to|w|linear|fc|c|in|lin)?_?(q|k|v|qkv|kv|query|key|value|queries|keys|values|attn|query_key_value|in_proj)s?"
    r"_?(proj|projection|lin|linear|layer|net|weight)?",
    re.IGNORECASE,
)
"""what the layers that make queries, keys and values are called"""
HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "nheads", "h")


def weight_of(module: nn.Module | None) -> Tensor | None:
    """The weight of a module that could be an output projection."""
    if module is None or isinstance(module, nn.Embedding | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return None
    weight = getattr(module, "weight", getattr(module, "kernel", None))
    return weight if isinstance(weight, Tensor) and weight.ndim in (2, 3) else None


def layout_of(module: nn.Module | None) -> Layout:
    weight = weight_of(module)
    if weight is not None and weight.ndim == 3:
        return "head dim out"
    return "in out" if type(module).__name__ == "Conv1D" else "out in"


def inputs_of(module: nn.Module | None) -> int | None:
    """How many numbers a projection reads at a position."""
    weight = weight_of(module)
    if weight is None:
        return None
    if layout_of(module) == "out in":
        return getattr(module, "in_features", weight.shape[1])  # a quantised weight has another shape
    return weight.shape[:-1].numel()


def module_at(model: nn.Module, path: str) -> nn.Module:
    found = child(model, path)
    if found is None:
        raise unknown("module", path, [name for name, _ in model.named_modules() if name])
    return found


def child(model: nn.Module, path: str) -> nn.Module | None:
    """The module at a path, if there is one."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def named_output(owner: nn.Module, width: int | None = None) -> str | None:
    """The name of the output projection among a module's children, if one of the known names fits."""
    for name in OUTPUTS:
        inputs = inputs_of(child(owner, name))
        if inputs is not None and width in (None, inputs):
            return name
    return None


def output_of(model: nn.Module, path: str, width: int | None = None) -> str | None:
    """The output projection of an attention module by its name: among its children, or beside it in one that is
    attention too (in a whole layer it could be that of the feed-forward block)."""
    for owner in (path, path.rpartition(".")[0]):
        module = child(model, owner)
        if module is not None and (owner == path or "Attention" in type(module).__name__):
            name = named_output(module, width)
            if name is not None:
                return f"{owner}.{name}"
    return None


def stated_heads(*modules: object) -> int | None:
    """How many heads a module says that it has, or the next of these."""
    stated = (getattr(module, name, None) for module in modules for name in HEADS)
    return next((each for each in stated if isinstance(each, int) and not isinstance(each, bool) and each > 0), None)


def projection_at(site: Site, module: nn.Module, path: str, heads: int) -> Projection:
    """The projection of so many heads, if they fit."""
    width, weight = inputs_of(module), weight_of(module)
    if width is None or weight is None:
        raise HeadwayError(
            f"{path} is {type(module).__name__}, which has no weight matrix; {site} needs the name of its projection"
        )
    layout = layout_of(module)
    if width % heads or heads < 1 or (layout == "head dim out" and weight.shape[0] != heads):
        raise HeadwayError(
            f"{site} cannot have {heads} heads: its output projection {path} reads {width} numbers in weights of shape "
            f"{tuple(weight.shape)}; give a number of heads that divides them"
        )
    return Projection(module, path, heads, width // heads, layout)


def projection_of(model: nn.Module, site: Site, owner: nn.Module) -> Projection:
    name = site.output if site.output or weight_of(owner) is not None else named_output(owner)
    if name is None and weight_of(owner) is None:
        linear = ", ".join(path for path, module in owner.named_modules() if path and weight_of(module) is not None)
        raise HeadwayError(f"{site} needs output=, the name of its output projection; it has {linear or 'no weights'}")
    path = f"{site.stack}.{name}" if name else site.stack
    module = module_at(model, path)
    heads = site.heads or stated_heads(owner, child(model, site.stack.rpartition(".")[0]))
    if heads is None:
        raise HeadwayError(f"{site} does not say how many heads it has; write Site({site.stack!r}, …, heads=4)")
    return projection_at(site, module, path, heads)


def candidates(model: nn.Module) -> list[Site]:
    """Likely sites: modules that hold layers for queries, keys or values, and one that could mix the heads again."""
    found = []
    for path, owner in model.named_modules():
        if isinstance(owner, nn.MultiheadAttention):
            found.append(Site(path, heads=owner.num_heads))
            continue
        weighted = {name: module for name, module in owner.named_children() if weight_of(module) is not None}
        if not path or not any(READS.fullmatch(name) for name in weighted):
            continue
        mixing = [name for name, module in weighted.items() if not READS.fullmatch(name) and _squarish(module)]
        known = [name for name in mixing if name in OUTPUTS] or mixing or [named_output(owner)]
        if known[-1] is not None:
            found.append(Site(path, output=known[-1], heads=stated_heads(owner)))
    return found


def _squarish(module: nn.Module) -> bool:
    inputs, weight = inputs_of(module), weight_of(module)
    if not inputs or weight is None:
        return False
    outputs = weight.numel() // inputs
    return max(inputs, outputs) <= 4 * min(inputs, outputs)


def at_projection(site: Site, projection: Projection) -> Hook:
    """The hook that gates a projection's input."""
    heads_first: list[bool] = []

    def hook(intervention: Intervention) -> AbstractContextManager[None]:
        forward = projection.module.forward

        def gated_input(*inputs: Any, **named: Any) -> Any:
            if inputs:
                return forward(through(inputs[0]), *inputs[1:], **named)
            name = next(iter(named))
            return forward(**{**named, name: through(named[name])})

        def through(x: Tensor) -> Tensor:
            if projection.layout == "head dim out" and x.ndim == 4:
                return apart(x)
            z = x.reshape(len(x), -1, projection.heads, projection.dim)  # batch query head dim
            return intervention.through(site, z, None).reshape(x.shape)

        def apart(x: Tensor) -> Tensor:
            """Heads are an axis of their own, before the queries or after them."""
            first, second = x.shape[1] == projection.heads, x.shape[2] == projection.heads
            if first != second and not heads_first:
                heads_first.append(first)
            if not heads_first:
                raise HeadwayError(
                    f"{site} puts out {tuple(x.shape)}, where heads and queries look alike; run it first with "
                    f"another number of queries than {projection.heads}"
                )
            if not heads_first[0]:
                return intervention.through(site, x, None)
            return intervention.through(site, x.transpose(1, 2), None).transpose(1, 2)

        return own_forward(projection.module, gated_input)

    return hook


def watching(site: Site, owner: nn.Module, heads: int, maps: Maps | None = None) -> Hook:
    """The hook that records the map of an attention module: what a user's function reads, or its second output."""

    def hook(intervention: Intervention) -> AbstractContextManager[None]:
        if intervention.trace is None:
            return nullcontext()
        forward = owner.forward

        def watched(*inputs: Any, **named: Any) -> Any:
            output = forward(*inputs, **named)
            intervention.see(site, returned_map(output, heads) if maps is None else maps(owner, inputs, output))
            return output

        return own_forward(owner, watched)

    return hook


def returned_map(output: Any, heads: int) -> Tensor | None:
    """The map among what an attention module returns, if it is there: [batch, head, query, key], second or later."""
    if not isinstance(output, Sequence):
        return None
    for part in output[1:]:
        if isinstance(part, Tensor) and part.ndim == 4 and part.shape[1] == heads and part.is_floating_point():
            rows = part.detach().float().sum(-1)
            if bool((part >= 0).all()) and bool((rows < 1.02).all()):  # no cached keys; a sink may have taken its part
                return part
    return None

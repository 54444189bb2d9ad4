"""Finds output projections by name and gates them at their input.

This works for any attention that ends in a module which reads the concatenated heads, however they were computed.
The forward of the projection is replaced for the duration of a run; the map is recorded where the attention module
returns it or a user's function reads it.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from headway.attach.intervention import Hook, Intervention, Layout, Projection, replace_forward
from headway.errors import HeadwayError, unknown
from headway.models.sites import Site
from headway.subjects.subject import Maps

OUTPUTS = (
    "o_proj", "out_proj", "c_proj", "out_lin", "linear_out", "wo", "o", "dense", "proj", "proj_out", "output_proj",
    "fc_out", "post_proj", "fc_o", "w_o", "W_o", "to_out", "to_out.0", "out", "output", "output.dense", "projection",
)  # fmt: skip
"""common names of output projections"""
READS = re.compile(
    r"(to|w|linear|fc|c|in|lin)?_?(q|k|v|qkv|kv|query|key|value|queries|keys|values|attn|query_key_value|in_proj)s?"
    r"_?(proj|projection|lin|linear|layer|net|weight)?",
    re.IGNORECASE,
)
"""matches the names of the layers for queries, keys and values"""
HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads", "nheads", "h")


def weight_of(module: nn.Module | None) -> Tensor | None:
    """Returns the weight of a module that could be an output projection, else None."""
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
    """Returns the input width of a projection."""
    weight = weight_of(module)
    if weight is None:
        return None
    if layout_of(module) == "out in":
        return getattr(module, "in_features", weight.shape[1])  # the weight of a quantised layer may have another shape
    return weight.shape[:-1].numel()


def module_at(model: nn.Module, path: str) -> nn.Module:
    found = child(model, path)
    if found is None:
        raise unknown("module", path, [name for name, _ in model.named_modules() if name])
    return found


def child(model: nn.Module, path: str) -> nn.Module | None:
    """Returns the module at a path, or None."""
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def find_output_name(owner: nn.Module, width: int | None = None) -> str | None:
    """Returns the name of the output projection among a module's children, if it is a common one and its width fits."""
    for name in OUTPUTS:
        inputs = inputs_of(child(owner, name))
        if inputs is not None and width in (None, inputs):
            return name
    return None


def find_output(model: nn.Module, path: str, width: int | None = None) -> str | None:
    """Returns the path of an attention module's output projection: a child, or a sibling if the parent is an attention
    too (in a whole layer a sibling could belong to the feed-forward block)."""
    for owner in (path, path.rpartition(".")[0]):
        module = child(model, owner)
        if module is not None and (owner == path or "Attention" in type(module).__name__):
            name = find_output_name(module, width)
            if name is not None:
                return f"{owner}.{name}"
    return None


def read_head_count(*modules: object) -> int | None:
    """Reads the number of heads from the first of these modules that has an attribute for it."""
    stated = (getattr(module, name, None) for module in modules for name in HEADS)
    return next((each for each in stated if isinstance(each, int) and not isinstance(each, bool) and each > 0), None)


def projection_at(site: Site, module: nn.Module, path: str, heads: int) -> Projection:
    """Returns the projection of this many heads; raises if the number does not fit its width."""
    width, weight = inputs_of(module), weight_of(module)
    if width is None or weight is None:
        raise HeadwayError(
            f"{path} is {type(module).__name__}, which has no weight matrix; {site} needs the name of its projection"
        )
    layout = layout_of(module)
    if width % heads or heads < 1 or (layout == "head dim out" and weight.shape[0] != heads):
        raise HeadwayError(
            f"{site} cannot have {heads} heads: its output projection {path} reads {width} numbers in weights of shape "
            f"{tuple(weight.shape)}; give a number of heads that divides {width}"
        )
    return Projection(module, path, heads, width // heads, layout)


def projection_of(model: nn.Module, site: Site, owner: nn.Module) -> Projection:
    name = site.output if site.output or weight_of(owner) is not None else find_output_name(owner)
    if name is None and weight_of(owner) is None:
        linear = ", ".join(path for path, module in owner.named_modules() if path and weight_of(module) is not None)
        raise HeadwayError(f"{site} needs output=, the name of its output projection; it has {linear or 'no weights'}")
    path = f"{site.stack}.{name}" if name else site.stack
    module = module_at(model, path)
    heads = site.heads or read_head_count(owner, child(model, site.stack.rpartition(".")[0]))
    if heads is None:
        raise HeadwayError(f"the number of heads of {site} is not known; write Site({site.stack!r}, …, heads=4)")
    return projection_at(site, module, path, heads)


def candidates(model: nn.Module) -> list[Site]:
    """Returns likely sites: modules with layers for queries, keys or values and a possible output projection."""
    found = []
    for path, owner in model.named_modules():
        if isinstance(owner, nn.MultiheadAttention):
            found.append(Site(path, heads=owner.num_heads))
            continue
        weighted = {name: module for name, module in owner.named_children() if weight_of(module) is not None}
        if not path or not any(READS.fullmatch(name) for name in weighted):
            continue
        mixing = [name for name, module in weighted.items() if not READS.fullmatch(name) and _is_squarish(module)]
        known = [name for name in mixing if name in OUTPUTS] or mixing or [find_output_name(owner)]
        if known[-1] is not None:
            found.append(Site(path, output=known[-1], heads=read_head_count(owner)))
    return found


def _is_squarish(module: nn.Module) -> bool:
    inputs, weight = inputs_of(module), weight_of(module)
    if not inputs or weight is None:
        return False
    outputs = weight.numel() // inputs
    return max(inputs, outputs) <= 4 * min(inputs, outputs)


def projection_hook(sites: Sequence[Site], projection: Projection) -> Hook:
    """Returns the hook that gates a projection's input; `sites` are those of its turns, mostly one."""
    heads_first: list[bool] = []

    def hook(intervention: Intervention) -> AbstractContextManager[None]:
        forward = projection.module.forward

        def gated_input(*inputs: Any, **named: Any) -> Any:
            if inputs:
                return forward(gate(inputs[0]), *inputs[1:], **named)
            name = next(iter(named))
            return forward(**{**named, name: gate(named[name])})

        def gate(x: Tensor) -> Tensor:
            if projection.layout == "head dim out" and x.ndim == 4:
                return gate_head_axis(x)
            z = x.reshape(len(x), -1, projection.heads, projection.dim)  # batch query head dim
            return intervention.apply(intervention.site_of_call(sites), z, None).reshape(x.shape)

        def gate_head_axis(x: Tensor) -> Tensor:
            """Gates an input with a separate head axis, before or after the queries."""
            first, second = x.shape[1] == projection.heads, x.shape[2] == projection.heads
            if first != second and not heads_first:
                heads_first.append(first)
            if not heads_first:
                raise HeadwayError(
                    f"{sites[0]} outputs {tuple(x.shape)}, where the head axis is ambiguous; run it first with a "
                    f"number of queries other than {projection.heads}"
                )
            site = intervention.site_of_call(sites)
            if not heads_first[0]:
                return intervention.apply(site, x, None)
            return intervention.apply(site, x.transpose(1, 2), None).transpose(1, 2)

        return replace_forward(projection.module, gated_input)

    return hook


def map_hook(sites: Sequence[Site], owner: nn.Module, heads: int, maps: Maps | None = None) -> Hook:
    """Returns the hook that records the map of an attention module, read by a user's function or from its output."""

    def hook(intervention: Intervention) -> AbstractContextManager[None]:
        if intervention.trace is None:
            return nullcontext()
        forward = owner.forward

        def record(*inputs: Any, **named: Any) -> Any:
            site = intervention.site_of_call(sites)  # before the projection runs
            output = forward(*inputs, **named)
            intervention.record_map(site, returned_map(output, heads) if maps is None else maps(owner, inputs, output))
            return output

        return replace_forward(owner, record)

    return hook


def returned_map(output: Any, heads: int) -> Tensor | None:
    """Returns the map, [batch, head, query, key], among the later outputs of an attention module, or None."""
    if not isinstance(output, Sequence):
        return None
    for part in output[1:]:
        if isinstance(part, Tensor) and part.ndim == 4 and part.shape[1] == heads and part.is_floating_point():
            rows = part.detach().float().sum(-1)
            if bool((part >= 0).all()) and bool((rows < 1.02).all()):  # not cached keys; a sink lowers the sum
                return part
    return None

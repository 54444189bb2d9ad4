"""Attaches to a Hugging Face model, so that its heads can be gated.

The model is run once on a few synthetic inputs to observe which modules dispatch through the AttentionInterface, which
module then reads the outputs of their heads (the output projection), in which order, and whether attention is causal.
Sites that dispatch are gated there. Attention that does not dispatch is gated at its output projection if one is found;
otherwise an error names it. Then equality with eager attention is checked, and every intervention proved.
"""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.dispatch import NAME, configs_of, dispatch_hook, register, request_maps, use_attention
from headway.attach.intervention import Attached, Hook, Intervention, Projection, blocks_of, check_ready
from headway.attach.multihead import multihead_hook
from headway.attach.narrowing import narrow_hook
from headway.attach.projections import find_output, inputs_of, map_hook, projection_at, projection_hook, read_head_count
from headway.attach.proofs import describe_difference, difference_of, limit_of, logits_in, prove
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.models.sites import Site, Trace

CROSS = re.compile(r"cross|enc_?dec|encoder_att", re.IGNORECASE)
"""matches the names of cross-attention modules"""


@dataclass
class FoundAttention:
    """An attention module that was seen to run."""

    path: str
    module: nn.Module
    heads: int
    width: int | None = None
    """width of all heads together"""
    output: str | None = None
    """the path of its output projection"""
    way: str = "projection"
    dispatches: bool = False
    groups: int | None = None
    """number of key-value groups, if heads share keys and values"""

    def __str__(self) -> str:
        return f"{type(self.module).__name__} at {self.path}"


def attach_huggingface(
    model: Any,
    example: Mapping[str, Any] | Callable[[], Any] | None = None,
    *,
    logits_of: Callable[[Any], Tensor] | None = None,
    proved: bool = True,
) -> Attached:
    """Attaches to all attention sites of a transformers model.

    `example` is a dict of the model's inputs, or a function that calls the model; inputs are synthesised if it is None.
    `logits_of` extracts the logits from the model's output. `proved=False` skips the proofs, which take two passes
    for each site, for a model that was proved before.
    """
    check_ready(model)
    if not hasattr(model, "set_attn_implementation"):
        raise HeadwayError(f"{type(model).__name__} is not a transformers model; attach it with attach_module")
    register()
    with torch.no_grad(), full_precision_matmul():
        call = _call_of(model, example)
        attached = _name_sites(model, _find_attention(model, call), call)
        _check_eager(attached, call, logits_of or logits_in)
    if proved:
        prove(attached, call, logits_of)
    return attached


def _call_of(model: Any, example: Mapping[str, Any] | Callable[[], Any] | None) -> Callable[[], Any]:
    if callable(example):
        return example
    failed: Exception | None = None
    for inputs in _example_inputs(model) if example is None else [example]:
        try:
            model(**inputs)
        except Exception as error:  # a model may raise anything on inputs that it does not accept
            failed = error
        else:
            return lambda inputs=inputs: model(**inputs)
    raise HeadwayError(
        f"{type(model).__name__} did not run on {'synthetic inputs' if example is None else 'the example'} "
        f"({type(failed).__name__}: {failed}); give example=, a dict of its inputs"
    ) from failed


def _example_inputs(model: Any) -> list[dict[str, Tensor]]:
    """Returns inputs to try, the most informative first: source and answer differ in length and one row is padded,
    which exposes a lost mask and a cross-attention mistaken for self-attention."""
    config, main = model.config, model.main_input_name
    generator = torch.Generator().manual_seed(0)
    answer = {}
    if getattr(config, "is_encoder_decoder", False):
        answer["decoder_input_ids"] = _tokens(config, True, 5, generator)
    if main == "input_ids":
        tokens = _tokens(config, False, 7, generator)
        seen = torch.ones_like(tokens)
        seen[1, -2:] = 0
        plain, ended = {"input_ids": tokens, **answer}, tokens.clone()
        ended[:, -1] = getattr(config, "eos_token_id", None) or 0
        examples = [{**plain, "attention_mask": seen}, plain, {name: value[:1] for name, value in plain.items()}]
        examples.append({"input_ids": ended})  # some models derive the decoder inputs from the source
    elif main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = vision.image_size if isinstance(vision.image_size, list | tuple) else [vision.image_size] * 2
        examples = [{main: torch.randn(2, vision.num_channels, *size, generator=generator), **answer}]
    elif main == "input_features" and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions
        examples = [{main: torch.randn(2, config.num_mel_bins, frames, generator=generator), **answer}]
    else:
        raise HeadwayError(f"{type(model).__name__} reads {main}; give example=, a dict of its inputs")
    place, dtype = next(model.parameters()).device, model.dtype
    return [
        {name: value.to(place, dtype if value.is_floating_point() else None) for name, value in example.items()}
        for example in examples
    ]


def _tokens(config: Any, decoder: bool, count: int, generator: torch.Generator) -> Tensor:
    """Draws two rows of tokens, without the first few of the vocabulary, which are often special tokens."""
    inner: Any = getattr(config, "decoder" if decoder else "encoder", None)
    words = (inner if hasattr(inner, "vocab_size") else config.get_text_config(decoder=decoder)).vocab_size
    return torch.randint(min(5, words - 1), words, (2, count), generator=generator)


def _assemble(model: nn.Module, seen: Sequence[FoundAttention], names: Mapping[str, Site], asks: bool) -> Attached:
    """Builds the Attached from these modules and their sites; `asks` if the model returns maps only on request."""
    hooks: list[Hook] = []
    projections: dict[Site, Projection] = {}
    for each in seen:
        site = names[each.path]
        assert each.output is not None
        projections[site] = projection_at(site, model.get_submodule(each.output), each.output, each.heads)
        if isinstance(each.module, nn.MultiheadAttention):
            hooks.append(multihead_hook(site, each.module))
        elif each.way == "projection":
            hooks.append(projection_hook(site, projections[site]))
            hooks.append(narrow_hook(site, each.module, projections[site]))
            if not each.dispatches:
                hooks.append(map_hook(site, each.module, each.heads))
    dispatching = {each.module: names[each.path] for each in seen if each.dispatches}
    if dispatching:
        hooks.append(dispatch_hook(model, dispatching, {names[each.path] for each in seen if each.way == "dispatch"}))
    if asks:
        hooks.insert(0, lambda run: nullcontext() if run.trace is None else request_maps(model))
    owners, ways = ({names[each.path]: getattr(each, what) for each in seen} for what in ("path", "way"))
    groups = {names[each.path]: each.groups for each in seen if each.groups is not None}
    blocks = blocks_of(model, owners)
    return Attached(model, tuple(projections), projections, blocks, owners, hooks, ways, groups=groups)


def _find_attention(model: nn.Module, call: Callable[[], Any]) -> list[FoundAttention]:
    """Finds every attention module that ran, with its output projection."""
    dispatched, called = _observe_call(model, call)
    for each in dispatched.values():
        if each.output is not None:
            each.way = "dispatch"
            continue
        each.output = find_output(model, each.path, each.width)  # a norm, say, comes between
        if each.output is None:
            raise HeadwayError(f"{each} dispatches through AttentionInterface, but its output projection was not found")
    innermost = _innermost(model, called | dispatched.keys())
    silent = [_find_undispatched(model, path, each) for each, path in innermost.items() if each not in dispatched]
    found = [*dispatched.values(), *silent]
    if not found:
        raise HeadwayError(f"{type(model).__name__} has no attention that Headway knows; attach it with attach_module")
    return found


def _observe_call(model: Any, call: Callable[[], Any]) -> tuple[dict[nn.Module, FoundAttention], set[nn.Module]]:
    """Runs the model; returns the modules that dispatched, and every module called that is an attention by its name."""
    paths = {module: path for path, module in model.named_modules()}
    seen: dict[nn.Module, FoundAttention] = {}
    called: set[nn.Module] = set()
    shared: dict[nn.Module, int] = {}
    waiting: list[tuple[FoundAttention, Tensor]] = []

    def listen(module: nn.Module, z: Tensor, maps: Tensor | None, narrow: object) -> Tensor:
        waiting.clear()
        if module in paths and module not in seen:
            heads, groups = z.shape[2], shared.get(module)
            seen[module] = FoundAttention(paths[module], module, heads, heads * z.shape[3], dispatches=True)
            seen[module].groups = groups if groups is not None and groups < heads and heads % groups == 0 else None
            waiting.append((seen[module], z.flatten(2)))
        return z

    def count_groups(
        module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        shared[module] = key.shape[1]
        return query, mask

    def read(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not waiting or not inputs or not isinstance(inputs[0], Tensor):
            return
        site, outputs = waiting[0]
        if inputs[0].numel() == outputs.numel() and torch.equal(inputs[0].reshape(outputs.shape), outputs):
            site.output = paths[module]
            waiting.clear()

    with ExitStack() as stack:
        for module in paths:
            if "Attention" in type(module).__name__:
                stack.callback(module.register_forward_pre_hook(lambda each, _: called.add(each)).remove)
            if inputs_of(module) is not None:
                stack.callback(module.register_forward_pre_hook(read).remove)
        dispatching = use_attention(model, NAME, listen, changes=[count_groups])
        stack.enter_context(dispatching if _can_switch_attention(model) else nullcontext())
        call()
    return seen, called


def _can_switch_attention(model: Any) -> bool:
    """Returns whether the family supports switching its attention implementation."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # this is only a trial
    try:
        with use_attention(model, NAME):
            return any(config._attn_implementation == NAME for config in configs_of(model))
    finally:
        logging.set_verbosity(before)


def _innermost(model: nn.Module, among: Set[nn.Module]) -> dict[nn.Module, str]:
    """Returns the paths of those modules among `among` that have weights and contain no other of them."""
    inner = {module: path for path, module in model.named_modules() if among & set(module.modules()) == {module}}
    return {module: path for module, path in inner.items() if next(module.parameters(), None) is not None}


def _find_undispatched(model: Any, path: str, module: nn.Module) -> FoundAttention:
    """Returns an attention module that does not dispatch, with its output projection; raises if that is not found."""
    if isinstance(module, nn.MultiheadAttention):
        return FoundAttention(path, module, module.num_heads, None, f"{path}.out_proj", "MultiheadAttention")
    heads = read_head_count(module, model.get_submodule(path.rpartition(".")[0]), model.config)
    seen = FoundAttention(path, module, heads or 0, output=find_output(model, path))
    width = None if seen.output is None else inputs_of(model.get_submodule(seen.output))
    if heads is None or not width or width % heads:
        raise HeadwayError(
            f"{seen} does not dispatch through AttentionInterface, and its output projection, where it could be gated "
            "instead, was not found"
        )
    return seen


def _name_sites(model: nn.Module, seen: Sequence[FoundAttention], call: Callable[[], Any]) -> Attached:
    """Sorts the sites by the order they fire; names them encoder.0.self and so on, or by path if that is ambiguous."""
    paths = {each.path: Site(each.path) for each in seen}
    for asks in (False, True):
        attached, trace = _assemble(model, seen, paths, asks), Trace()
        intervention = Intervention({}, trace, strict=False)
        with attached.install(intervention):
            call()
        if len(trace.maps) == len(seen):
            break
    order = list(intervention.fired)
    for each in seen:
        if paths[each.path] not in order:
            raise HeadwayError(f"{each} ran, but its output projection {each.output} was never called")
    seen = sorted(seen, key=lambda each: order.index(paths[each.path]))
    sites = [(each, paths[each.path]) for each in seen]
    names = {one.path: _name_site(model, one, attached.blocks.get(site), trace.maps.get(site)) for one, site in sites}
    if any(name.layer is None for name in names.values()) or len(set(names.values())) < len(names):
        names = {path: Site(path, kind=name.kind, heads=name.heads) for path, name in names.items()}
    attentions = _innermost(model, {each for each in model.modules() if "Attention" in type(each).__name__})
    idle = tuple(path for each, path in attentions.items() if each not in {one.module for one in seen})
    return replace(_assemble(model, seen, names, asks), idle=idle)


def _name_site(model: Any, seen: FoundAttention, block: str | None, maps: Tensor | None) -> Site:
    """Infers the stack, layer and kind of a site from its path, its module and its map."""
    parts = seen.path.split(".")
    two_stacks = getattr(model.config, "is_encoder_decoder", False)
    square = maps is not None and maps.shape[2] == maps.shape[3]
    stacks = [part for part in parts if part in ("encoder", "decoder")]
    if two_stacks and stacks:
        stack = stacks[0]
    elif re.search("CausalLM|LMHead", type(model).__name__):
        stack = "decoder"  # its map may not look causal at padded positions
    elif maps is not None and square and maps.shape[2] > 1:
        stack = "decoder" if bool((maps.triu(1) == 0).all()) else "encoder"
    else:
        causal = getattr(seen.module, "is_causal", False) or getattr(model.config, "is_decoder", False)
        stack = "decoder" if causal else "encoder"
    named = getattr(seen.module, "is_cross_attention", False) is True
    named = named or any(map(CROSS.search, [*parts[-2:], type(seen.module).__name__]))
    cross = named or (two_stacks and stack == "decoder" and maps is not None and not square)
    layer = getattr(seen.module, "layer_idx", None) if block is None else int(block.rpartition(".")[2])
    return Site("decoder" if cross else stack, layer, "cross" if cross else "self", heads=seen.heads)


def _check_eager(attached: Attached, call: Callable[[], Any], read: Callable[[Any], Tensor]) -> None:
    """Raises unless the model gives the same logits with open gates, under eager attention and by itself."""
    if "dispatch" not in attached.ways.values():
        return
    model: Any = attached.model
    name = type(model).__name__
    plain, opened = read(call()), read(attached.run(call))
    with use_attention(model, "eager"):
        eager = read(call())
    if difference_of(eager, opened) > limit_of(eager):
        raise HeadwayError(f"{name} with open gates differs from eager, by {describe_difference(eager, opened)}")
    if difference_of(eager, plain) > limit_of(eager):
        raise HeadwayError(
            f"{name} gives other logits under its {model.config._attn_implementation} attention than under eager, by "
            f"{describe_difference(eager, plain)}; or load it with attn_implementation='eager'"
        )

"""A Hugging Face model as something whose heads can be gated.

It is run once on a few made-up inputs to see what happens: which modules dispatch through the AttentionInterface, which
module then reads what their heads say (the output projection), in which order, and whether a query sees what comes
after it. Sites that dispatch are gated there. What does not dispatch is gated at its output projection where one is
found, else refused by name. Then equality with eager attention is asserted, and every intervention proved.
"""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.attach.dispatch import NAME, at_dispatch, attentions_on, configs_of, register, under
from headway.attach.intervention import Attached, Hook, Intervention, Projection, blocks_of, check_ready
from headway.attach.multihead import at_multihead
from headway.attach.projections import at_projection, inputs_of, output_of, projection_at, stated_heads, watching
from headway.attach.proofs import difference_of, limit_of, logits_in, prove, where
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.models.sites import Site, Trace

CROSS = re.compile(r"cross|enc_?dec|encoder_att", re.IGNORECASE)
"""what the modules of cross-attention are called"""


@dataclass
class FoundAttention:
    """One attention module, as it ran."""

    path: str
    module: nn.Module
    heads: int
    width: int | None = None
    """of all heads together"""
    output: str | None = None
    """the path of its output projection"""
    way: str = "projection"
    dispatches: bool = False

    def __str__(self) -> str:
        return f"{type(self.module).__name__} at {self.path}"


def attach_huggingface(
    model: Any,
    example: Mapping[str, Any] | Callable[[], Any] | None = None,
    *,
    logits_of: Callable[[Any], Tensor] | None = None,
    proved: bool = True,
) -> Attached:
    """A transformers model with all its attention sites.

    `example` is what the model is called with, or a function that calls it; made up where none is given.
    `logits_of` reads the logits to compare out of what is returned. `proved=False` leaves out the proofs, which take
    two passes a site, for a model that was proved before.
    """
    check_ready(model)
    if not hasattr(model, "set_attn_implementation"):
        raise HeadwayError(f"{type(model).__name__} is no model of transformers; attach it with attach_module")
    register()
    with torch.no_grad(), full_precision_matmul():
        call = _call_of(model, example)
        attached = _named(model, _found(model, call), call)
        _check_eager(attached, call, logits_of or logits_in)
    if proved:
        prove(attached, call, logits_of)
    return attached


def _call_of(model: Any, example: Mapping[str, Any] | Callable[[], Any] | None) -> Callable[[], Any]:
    if callable(example):
        return example
    failed: Exception | None = None
    for inputs in _made_up(model) if example is None else [example]:
        try:
            model(**inputs)
        except Exception as error:  # whatever a model may raise at inputs that it does not take
            failed = error
        else:
            return lambda inputs=inputs: model(**inputs)
    raise HeadwayError(
        f"{type(model).__name__} did not run on {'made-up inputs' if example is None else 'the example'} "
        f"({type(failed).__name__}: {failed}); give example=, a dict of what it is called with"
    ) from failed


def _made_up(model: Any) -> list[dict[str, Tensor]]:
    """Inputs to try, the most telling first: source and answer have different lengths and one row is padded, so that a
    mask that is lost or a cross-attention that is taken for self-attention shows."""
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
        examples.append({"input_ids": ended})  # some read the answer out of the source
    elif main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = vision.image_size if isinstance(vision.image_size, list | tuple) else [vision.image_size] * 2
        examples = [{main: torch.randn(2, vision.num_channels, *size, generator=generator), **answer}]
    elif main == "input_features" and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions
        examples = [{main: torch.randn(2, config.num_mel_bins, frames, generator=generator), **answer}]
    else:
        raise HeadwayError(f"{type(model).__name__} reads {main}; give example=, a dict of what it is called with")
    place, dtype = next(model.parameters()).device, model.dtype
    return [
        {name: value.to(place, dtype if value.is_floating_point() else None) for name, value in example.items()}
        for example in examples
    ]


def _tokens(config: Any, decoder: bool, count: int, generator: torch.Generator) -> Tensor:
    """Two rows of tokens; the first few of a vocabulary have meanings of their own."""
    inner: Any = getattr(config, "decoder" if decoder else "encoder", None)
    words = (inner if hasattr(inner, "vocab_size") else config.get_text_config(decoder=decoder)).vocab_size
    return torch.randint(min(5, words - 1), words, (2, count), generator=generator)


def _assembled(model: nn.Module, seen: Sequence[FoundAttention], names: Mapping[str, Site], asking: bool) -> Attached:
    """The model with what was seen as sites of these names; `asking` for maps that it does not return unasked."""
    hooks: list[Hook] = []
    projections: dict[Site, Projection] = {}
    for each in seen:
        site = names[each.path]
        assert each.output is not None
        projections[site] = projection_at(site, model.get_submodule(each.output), each.output, each.heads)
        if isinstance(each.module, nn.MultiheadAttention):
            hooks.append(at_multihead(site, each.module))
        elif each.way == "projection":
            hooks.append(at_projection(site, projections[site]))
            if not each.dispatches:
                hooks.append(watching(site, each.module, each.heads))
    dispatching = {each.module: names[each.path] for each in seen if each.dispatches}
    if dispatching:
        hooks.append(at_dispatch(model, dispatching, {names[each.path] for each in seen if each.way == "dispatch"}))
    if asking:
        hooks.insert(0, lambda run: nullcontext() if run.trace is None else attentions_on(model))
    owners, ways = ({names[each.path]: getattr(each, what) for each in seen} for what in ("path", "way"))
    return Attached(model, tuple(projections), projections, blocks_of(model, owners), owners, hooks, ways)


def _found(model: nn.Module, call: Callable[[], Any]) -> list[FoundAttention]:
    """Every attention module that ran, with its output projection."""
    dispatched, called = _looked_at(model, call)
    for each in dispatched.values():
        if each.output is not None:
            each.way = "dispatch"
            continue
        each.output = output_of(model, each.path, each.width)  # something lies between, such as a norm over all heads
        if each.output is None:
            raise HeadwayError(f"{each} dispatches, but no output projection of its heads was found")
    innermost = _innermost(model, called | dispatched.keys())
    silent = [_without_dispatch(model, path, each) for each, path in innermost.items() if each not in dispatched]
    found = [*dispatched.values(), *silent]
    if not found:
        raise HeadwayError(f"{type(model).__name__} has no attention that Headway knows; attach it with attach_module")
    return found


def _looked_at(model: Any, call: Callable[[], Any]) -> tuple[dict[nn.Module, FoundAttention], set[nn.Module]]:
    """What dispatched as the model ran, and every module that looks like attention and was called."""
    paths = {module: path for path, module in model.named_modules()}
    seen: dict[nn.Module, FoundAttention] = {}
    called: set[nn.Module] = set()
    waiting: list[tuple[FoundAttention, Tensor]] = []

    def listen(module: nn.Module, z: Tensor, maps: Tensor | None) -> Tensor:
        waiting.clear()
        if module in paths and module not in seen:
            seen[module] = FoundAttention(paths[module], module, z.shape[2], z.shape[2] * z.shape[3], dispatches=True)
            waiting.append((seen[module], z.flatten(2)))
        return z

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
                stack.callback(module.register_forward_pre_hook(lambda own, _: called.add(own)).remove)
            if inputs_of(module) is not None:
                stack.callback(module.register_forward_pre_hook(read).remove)
        stack.enter_context(under(model, NAME, listen) if _switches(model) else nullcontext())
        call()
    return seen, called


def _switches(model: Any) -> bool:
    """Whether the family takes another attention at all."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it is only being tried
    try:
        with under(model, NAME):
            return any(config._attn_implementation == NAME for config in configs_of(model))
    finally:
        logging.set_verbosity(before)


def _innermost(model: nn.Module, among: Set[nn.Module]) -> dict[nn.Module, str]:
    """The paths of those of these modules that hold weights and no other of them."""
    inner = {module: path for path, module in model.named_modules() if among & set(module.modules()) == {module}}
    return {module: path for module, path in inner.items() if next(module.parameters(), None) is not None}


def _without_dispatch(model: Any, path: str, module: nn.Module) -> FoundAttention:
    """An attention module that is gated at its projection, if that is found."""
    if isinstance(module, nn.MultiheadAttention):
        return FoundAttention(path, module, module.num_heads, None, f"{path}.out_proj", "MultiheadAttention")
    heads = stated_heads(module, model.get_submodule(path.rpartition(".")[0]), model.config)
    seen = FoundAttention(path, module, heads or 0, output=output_of(model, path))
    width = None if seen.output is None else inputs_of(model.get_submodule(seen.output))
    if heads is None or not width or width % heads:
        raise HeadwayError(
            f"{seen} does not dispatch through AttentionInterface, and no output projection of its heads was "
            "found to gate instead"
        )
    return seen


def _named(model: nn.Module, seen: Sequence[FoundAttention], call: Callable[[], Any]) -> Attached:
    """The sites in the order in which they fire, as encoder.0.self and so on where that names each of them once."""
    paths = {each.path: Site(each.path) for each in seen}
    for asking in (False, True):
        attached, trace = _assembled(model, seen, paths, asking), Trace()
        intervention = Intervention({}, trace, strict=False)
        with attached.opened(intervention):
            call()
        if len(trace.maps) == len(seen):
            break
    order = list(intervention.fired)
    for each in seen:
        if paths[each.path] not in order:
            raise HeadwayError(f"{each} ran, but its output projection {each.output} was never called")
    seen = sorted(seen, key=lambda each: order.index(paths[each.path]))
    sites = [(each, paths[each.path]) for each in seen]
    names = {each.path: _name(model, each, attached.blocks.get(site), trace.maps.get(site)) for each, site in sites}
    if any(name.layer is None for name in names.values()) or len(set(names.values())) < len(names):
        names = {path: Site(path, kind=name.kind, heads=name.heads) for path, name in names.items()}
    attentions = _innermost(model, {each for each in model.modules() if "Attention" in type(each).__name__})
    idle = tuple(path for each, path in attentions.items() if each not in {one.module for one in seen})
    return replace(_assembled(model, seen, names, asking), idle=idle)


def _name(model: Any, seen: FoundAttention, block: str | None, maps: Tensor | None) -> Site:
    """The stack, layer and kind of a site, from where it stands and what it does."""
    parts = seen.path.split(".")
    two_stacks = getattr(model.config, "is_encoder_decoder", False)
    square = maps is not None and maps.shape[2] == maps.shape[3]
    stacks = [part for part in parts if part in ("encoder", "decoder")]
    if two_stacks and stacks:
        stack = stacks[0]
    elif re.search("CausalLM|LMHead", type(model).__name__):
        stack = "decoder"  # whatever a padded position sees
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
    """The gated attention is the family's eager attention, and the model by itself computes the same."""
    if "dispatch" not in attached.ways.values():
        return
    model: Any = attached.model
    name = type(model).__name__
    own, opened = read(call()), read(attached.run(call))
    with under(model, "eager"):
        eager = read(call())
    if difference_of(eager, opened) > limit_of(eager):
        raise HeadwayError(f"{name} with open gates gives other logits than eager attention, by {where(eager, opened)}")
    if difference_of(eager, own) > limit_of(eager):
        raise HeadwayError(
            f"{name} gives other logits under its {model.config._attn_implementation} attention than under eager, by "
            f"{where(eager, own)}; or load it with attn_implementation='eager'"
        )

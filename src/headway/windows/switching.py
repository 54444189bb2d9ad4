"""Switches a model to Headway's attention while it runs with a cache of windows.

The implementation is registered in transformers' AttentionInterface and AttentionMaskInterface under a name of its own
for each of the library's. In a pass without a cache of windows it calls the library's, attention and mask, so a model
computes what it always did. Every model is checked once: it runs with a cache whose groups see everything, then with
windows, beside masked eager attention.
"""

import inspect
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache

from headway.attach.dispatch import configs_of, family_attention
from headway.errors import HeadwayError
from headway.machine import full_precision_matmul
from headway.windows.attention import Scoring
from headway.windows.budget import Budget, Window
from headway.windows.cache import LayerShape, WindowCache
from headway.windows.proof import draw_tokens, prove, run

PREFIX = "headway_windows_"
_RUNNING: list[WindowCache | None] = []
"""the cache of the pass that is running, if it has one of ours; a model within a model runs in a pass of its own"""
_SWITCHES: "weakref.WeakKeyDictionary[nn.Module, Switch]" = weakref.WeakKeyDictionary()


def _attention(
    base: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attends through the running cache, or as the library does."""
    cache = _RUNNING[-1] if _RUNNING else None
    if cache is None:
        attend = family_attention if base == "eager" else AttentionInterface()[base]
        return attend(module, query, key, value, attention_mask, **options)
    layer = cache.stores[int(module.layer_idx)]  # pyright: ignore[reportArgumentType]
    z = layer.attend(query, attention_mask, Scoring.of(module, options))
    return z.transpose(1, 2).contiguous(), None  # batch query head dim


def _mask(base: str, **options: Any) -> Tensor | None:
    """Makes the model's own mask: boolean, and only where a row is padded, if a cache of windows is running."""
    cache = _RUNNING[-1] if _RUNNING else None
    if cache is None:
        return AttentionMaskInterface()[base](**options)
    if not options.get("allow_is_causal_skip", True):
        raise HeadwayError(
            "this pass has a mask of its own, as images or packed texts do; a cache of windows knows causal masks, "
            "sliding windows and padding"
        )
    if cache.first is None:
        return None
    return AttentionMaskInterface()["sdpa"](**options)


def _name_of(base: str) -> str:
    """Returns the name of Headway's implementation over one of the library's, registered."""
    name = PREFIX + base
    if name not in AttentionInterface().valid_keys():
        if base != "eager" and base not in AttentionInterface().valid_keys():
            raise HeadwayError(f"the model attends with {base!r}, which is not known; load it with sdpa or eager")
        AttentionInterface.register(name, _bind(_attention, base))
        AttentionMaskInterface.register(name, _bind(_mask, base))
    return name


def _bind(function: Any, base: str) -> Any:
    def bound(*inputs: Any, **options: Any) -> Any:
        return function(base, *inputs, **options)

    return bound


class Switch:
    """The attention of one model, which is Headway's while a cache of it is open."""

    def __init__(self, model: Any) -> None:
        check_family(model)
        self.model = weakref.ref(model)
        layers = DynamicCache(config=model.config).layers
        self.spans: tuple[int | None, ...] = tuple(getattr(layer, "sliding_window", None) for layer in layers)
        self.sites = tuple(f"decoder.{number}.self" for number in range(len(layers)))
        self.itemsize = model.dtype.itemsize
        self.open: weakref.WeakSet[WindowCache] = weakref.WeakSet()
        self.shapes: tuple[LayerShape, ...] = ()
        self.budget: Budget | None = None
        """the budget of passes without a cache, inside `narrowed`"""
        self._before: list[tuple[Any, str]] = []
        self._hooks: list[Any] = []

    def make(self, budget: Budget) -> WindowCache:
        """Opens a cache with this budget."""
        cache = self._fill(budget)
        if not self._hooks:
            self._switch()
        self.open.add(cache)
        return cache

    def _fill(self, budget: Budget) -> WindowCache:
        """Makes a cache with this budget, which must give a window to every group of the model."""
        cache = WindowCache(self, budget, [self._windows_of(budget, number) for number in range(len(self.sites))])
        if extra := set(budget.windows) - set(self.sites):
            raise HeadwayError(
                f"the budget names {min(extra)}, which the model does not have; its last is {self.sites[-1]}"
            )
        return cache

    def release(self, cache: WindowCache) -> None:
        """Restores the model's own attention when its last open cache is closed."""
        self.open.discard(cache)
        if self.open:
            return
        for hook in self._hooks:
            hook.remove()
        for config, before in self._before:
            config._attn_implementation = before
        self._hooks, self._before = [], []

    def check(self) -> None:
        """Runs the model once with a cache that keeps everything, and compares windows with masked attention."""
        model = self.model()
        assert model is not None
        training = model.training
        try:
            model.eval()
            with torch.no_grad(), full_precision_matmul():
                self.shapes = self._find_shapes(model)
                prove(self, model)
        finally:
            model.train(training)

    def _find_shapes(self, model: Any) -> tuple[LayerShape, ...]:
        """Finds what each layer stores for a token, from a short pass with the library's cache."""
        cache = DynamicCache(config=model.config)
        run(model, draw_tokens(model, 1, 4), cache)
        stored: list[tuple[Tensor, Tensor]] = [(each.keys, each.values) for each in list[Any](cache.layers)]
        return tuple(
            LayerShape(keys.shape[1], keys.shape[3], values.shape[3], span)
            for (keys, values), span in zip(stored, self.spans, strict=True)
        )

    def _windows_of(self, budget: Budget, layer: int) -> tuple[Window, ...]:
        site, groups = self.sites[layer], self.shapes[layer].groups
        windows = budget.windows.get(site)
        if windows is None:
            raise HeadwayError(f"the budget has no windows for {site}; give {groups}, one for each key-value group")
        if len(windows) != groups:
            raise HeadwayError(f"the budget gives {site} {len(windows)} windows, but it has {groups} key-value groups")
        return windows

    def _switch(self) -> None:
        model = self.model()
        assert model is not None
        self._before = [(config, config._attn_implementation) for config in configs_of(model)]
        model.set_attn_implementation(_name_of(model.config._attn_implementation))
        inner = model.base_model
        self._hooks = [
            inner.register_forward_pre_hook(self._begin, with_kwargs=True),
            inner.register_forward_hook(_finish),
            inner.register_forward_hook(_leave, always_call=True),
        ]

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        given = inspect.signature(module.forward).bind_partial(*inputs, **options).arguments
        given |= given.pop("kwargs", {})
        cache = given.get("past_key_values")
        if cache is None and self.budget is not None:
            cache = self._fill(self.budget)
            options = {**options, "past_key_values": cache, "use_cache": True}
        _RUNNING.append(cache if isinstance(cache, WindowCache) else None)
        if isinstance(cache, WindowCache):
            self._check_pass(cache, given)
        return inputs, options

    def _check_pass(self, cache: WindowCache, given: Mapping[str, Any]) -> None:
        if cache.switch is not self:
            raise HeadwayError("this cache was made for another model; make one with headway.cache(model)")
        read = given.get("input_ids")
        read = given.get("inputs_embeds") if read is None else read
        if read is None:
            raise HeadwayError("a cache of windows reads input_ids or inputs_embeds; give one of them")
        cache.begin(read.shape[1], given.get("attention_mask"))


def _finish(module: nn.Module, inputs: Any, output: Any) -> None:
    if (cache := _RUNNING[-1]) is not None:
        cache.finish()


def _leave(module: nn.Module, inputs: Any, output: Any) -> None:
    """Ends a pass, also one that failed: its cache has then stored a part of its tokens."""
    if (cache := _RUNNING.pop()) is not None and cache.now is not None:
        cache.broken |= cache.seen != cache.now.total
        cache.now = None


@contextmanager
def narrowed(model: Any, budget: Budget) -> Iterator[WindowCache]:
    """Lets the heads of a model see what their budget says in passes without a cache, too, inside the context."""
    switch = switch_of(model)
    with switch.make(budget) as cache:
        before, switch.budget = switch.budget, budget
        try:
            yield cache
        finally:
            switch.budget = before


def switch_of(model: Any) -> Switch:
    """Returns the switch of a model, which was checked once."""
    if model not in _SWITCHES:
        switch = Switch(model)
        switch.check()
        _SWITCHES[model] = switch
    return _SWITCHES[model]


def check_family(model: Any) -> None:
    """Raises unless a model is a causal language model of transformers whose layers all store keys and values."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        raise HeadwayError(
            f"{name} is not a transformers model; a cache of windows needs a causal language model of it"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise HeadwayError(f"{name} reads and writes with two stacks; a cache of windows needs a causal language model")
    if not hasattr(model, "generate") or model.get_output_embeddings() is None:
        raise HeadwayError(f"{name} does not write text; a cache of windows needs a causal language model")
    if not type(model)._can_set_attn_implementation():
        raise HeadwayError(
            f"{name} computes attention of its own, not through transformers' AttentionInterface; a cache of windows "
            "needs a family that does"
        )
    odd = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - {
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
    }
    if odd or getattr(config.get_text_config(decoder=True), "attention_chunk_size", None):
        what = f"stores {min(odd)}" if odd else "attends in chunks"
        raise HeadwayError(f"{name} {what}; a cache of windows needs layers that store keys and values of every token")
    if getattr(config.get_text_config(decoder=True), "num_kv_shared_layers", None):
        raise HeadwayError(
            f"layers of {name} share their keys and values; a cache of windows needs each to have its own"
        )

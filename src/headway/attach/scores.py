"""Changes of the scores and the mask of attention, for a while: log-length scaling, windows, sinks, and their shams.

Models that dispatch through transformers' AttentionInterface are changed there, under the attention that they use, so
that long texts fit into memory; a mask is only made where a cure needs one, once for each length. BLOOM, which does not
dispatch, is changed at its modules. All of it is for passes without a cache, in which a text begins at position 0.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headway.attach.dispatch import NAME, register, use_attention, wrapper_of
from headway.attach.order import Setting, attention_modules, has_bloom_scores
from headway.errors import HeadwayError

SINKS = 4
"""number of first tokens that stay visible"""
ELSEWHERE = 8
"""the first of the tokens that stay visible in the sham of sinks; early as they are, but not the first"""
SCALES, MASKS = ("log-length", "temperature"), ("window", "sinks", "sinks-elsewhere")


def log_length(setting: Setting, tokens: int, window: int | None = None) -> Float[Tensor, " token"]:
    """Returns the factor of each query: ln n / ln trained, but at least 1, where it sees n tokens."""
    seen = torch.arange(1, tokens + 1, dtype=torch.float64).clamp(max=window or tokens)
    return (seen.log() / math.log(setting.trained)).clamp(min=1)


def factors(cure: str, setting: Setting, tokens: int, window: int | None = None) -> Float[Tensor, " token"]:
    """Returns the factors of the queries; those of the sham are all the mean of the cure's over the whole length."""
    if cure == "log-length":
        return log_length(setting, tokens, window)
    return log_length(setting, setting.length, window).mean().expand(tokens)


def band(setting: Setting, tokens: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """Returns which tokens a query sees in a window: the first few and the last before it, as many as in training."""
    recent = max(setting.trained - SINKS, 1)
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril_().triu_(1 - recent)
    return _open(seen, 0)


def _open(mask: Tensor, first: int) -> Tensor:
    """Makes a few tokens visible to themselves and to all later ones, in place."""
    columns = mask[..., first : first + SINKS]
    seen = torch.ones(mask.shape[-2], columns.shape[-1], dtype=torch.bool, device=mask.device).tril_(-first)
    columns.copy_(columns | seen if mask.dtype == torch.bool else columns.masked_fill(seen, 0))
    return mask


@dataclass
class ScoreCure:
    """One change of scores; remembers the masks that it made, which all layers of a kind share."""

    name: str
    setting: Setting
    additive: bool
    """whether a mask is added to the scores; otherwise it may be boolean"""
    made: dict[tuple[int, int, torch.device], tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    """each mask that was given, and what replaced it"""

    def scale(self, query: Float[Tensor, "... token dim"], window: int | None) -> Float[Tensor, "... token dim"]:
        """Returns the queries, multiplied."""
        if self.name not in SCALES:
            return query
        by = factors(self.name, self.setting, query.shape[-2], window).to(query.device, torch.float32)
        return (query * by[:, None]).to(query.dtype)

    def mask(self, mask: Tensor | None, query: Tensor) -> Tensor | None:
        """Returns what replaces the mask of these queries; `None` is a causal one."""
        if self.name not in MASKS:
            return mask
        key = id(mask), query.shape[-2], query.device
        if key not in self.made:
            if mask is None:
                self.forget(True)
            self.made[key] = mask, self._mask(mask, query)
        return self.made[key][1]

    def forget(self, every: bool = False) -> None:
        """Forgets the masks of one pass; a mask that depends only on the length is kept for the next."""
        self.made = {} if every else {key: masks for key, masks in self.made.items() if masks[0] is None}

    def _mask(self, mask: Tensor | None, query: Tensor) -> Tensor | None:
        if self.name != "window":
            if mask is None or mask.shape[-1] <= ELSEWHERE:
                return mask  # nothing is hidden
            mask = mask[:1] if mask.stride(0) == 0 else mask
            return _open(mask.clone(), 0 if self.name == "sinks" else ELSEWHERE)
        seen = band(self.setting, query.shape[-2], query.device)[None, None]
        if mask is None and self.additive:
            mask = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
        if mask is None:
            return seen
        return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, torch.finfo(mask.dtype).min)


@contextmanager
def change_scores(model: Any, name: str, setting: Setting) -> Iterator[None]:
    """Changes the scores of every attention module inside the context; a pass that did not use all of them raises."""
    modules, ran, changed = list(attention_modules(model).values()), set(), set()
    bloom, wrapper = any(map(has_bloom_scores, modules)), wrapper_of(model)
    cure = ScoreCure(name, setting, additive=bloom or wrapper == NAME)

    def change(
        module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        if module not in ran:
            return query, mask  # of another model
        changed.add(module)
        _check_length(query.shape[2], key.shape[2])
        return cure.scale(query, options.get("sliding_window")), cure.mask(mask, query)

    def check(*_: Any) -> None:
        if not changed or changed != ran:
            raise HeadwayError(f"{name} did not reach the scores of {len(ran - changed)} attention modules")
        ran.clear()
        changed.clear()
        cure.forget()

    with ExitStack() as stack:
        stack.callback(model.register_forward_hook(check).remove)
        for module in modules:
            stack.callback(module.register_forward_pre_hook(lambda each, _: ran.add(each)).remove)
            if bloom:
                stack.enter_context(_change_bloom(module, cure, changed))
        if not bloom:
            register()
            stack.enter_context(use_attention(model, wrapper, changes=[change]))
        yield


@contextmanager
def change_alibi(model: nn.Module, modules: tuple[str, ...], name: str, setting: Setting) -> Iterator[None]:
    """Divides the distances of BLOOM's ALiBi by the factor inside the context, or clamps them at the trained length."""

    def change(_: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        bias = options["alibi"]  # slope · key, for each head: softmax ignores what all keys of a query share
        changed = bias / setting.factor if name == "interpolation" else clamp_bias(bias, setting)
        return inputs, {**options, "alibi": changed}

    with ExitStack() as stack:
        for path in modules:
            hook = model.get_submodule(path).register_forward_pre_hook(change, with_kwargs=True)
            stack.callback(hook.remove)
        yield


def clamp_bias(bias: Float[Tensor, "head 1 key"], setting: Setting) -> Float[Tensor, "head query key"]:
    """Returns ALiBi's bias with distances of at most the training length: farther keys are as far as that."""
    place = torch.arange(bias.shape[-1], device=bias.device)
    nearest = (place - setting.trained).clamp(min=0)[:, None]  # query 1
    return bias[:, 0][:, torch.maximum(place, nearest)]


@contextmanager
def _change_bloom(module: Any, cure: ScoreCure, changed: set[nn.Module]) -> Iterator[None]:
    """Changes queries and mask of one attention module of BLOOM."""

    def mask(_: nn.Module, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        cache, tokens = options.get("layer_past"), inputs[0].shape[1]
        _check_length(tokens, tokens + (0 if cache is None else cache.get_seq_length(module.layer_idx)))
        changed.add(module)
        return inputs, {**options, "attention_mask": cure.mask(options.get("attention_mask"), inputs[0])}

    def scale(_: nn.Module, inputs: tuple[Any, ...], fused: Tensor) -> Tensor:
        parts = fused.view(*fused.shape[:2], module.num_heads, 3, module.head_dim).transpose(
            1, 3
        )  # batch 3 head token dim
        query = cure.scale(parts[:, :1], None)
        return torch.cat((query, parts[:, 1:]), dim=1).transpose(1, 3).reshape(fused.shape)

    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(mask, with_kwargs=True).remove)
        if cure.name in SCALES:
            stack.callback(module.query_key_value.register_forward_hook(scale).remove)
        yield


def _check_length(queries: int, keys: int) -> None:
    if queries != keys:
        raise HeadwayError(
            f"a cure of scores reads whole texts, but there are {queries} queries for {keys} keys; run the model with "
            "use_cache=False"
        )

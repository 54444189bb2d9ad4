"""Attention to a few keys as one operator, for compiled stacks of models on a GPU.

The matrices of a problem of a few tokens are too small for matrix products to pay off: here a whole head of a whole
problem is computed at once, and its map never leaves the chip. It is a custom operator so that `vmap` and the compiler
do not decompose it. On a CPU it is the plain formula, which tests compare with attention.py.

Axes: batch, query, key, two (key and value), head, dim.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, register_autograd, register_fake, register_vmap

MOST_KEYS = 16
"""limit on the number of keys and of queries"""


@custom_op("headway::few_keys", mutates_args=())
def few_keys(query: Tensor, key_value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Returns the heads' outputs, `batch query head dim`, and the logsumexp of each softmax, `batch head query`.

    Takes the query as `batch query head dim` and key and value as `batch key two head dim`.
    """
    if query.is_cuda:
        from headway.kernels.few_keys_triton import forward

        return forward(query, key_value, causal, scale)
    scores = _scores(query, key_value, causal, scale)
    total = scores.logsumexp(-1)
    z = torch.einsum("bhqk,bkhd->bqhd", (scores - total[..., None]).exp(), key_value[:, :, 1].float())
    return z.to(query.dtype).contiguous(), total.contiguous()


@custom_op("headway::few_keys_backward", mutates_args=())
def few_keys_backward(
    grad: Tensor, query: Tensor, key_value: Tensor, z: Tensor, total: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of query and key_value, given that of z."""
    if query.is_cuda:
        from headway.kernels.few_keys_triton import backward

        return backward(grad, query, key_value, z, total, causal, scale)
    attention = (_scores(query, key_value, causal, scale) - total[..., None]).exp()
    key, value = key_value.float().unbind(2)
    grad_value = torch.einsum("bhqk,bqhd->bkhd", attention, grad.float())
    along = torch.einsum("bqhd,bkhd->bhqk", grad.float(), value)
    mean = (grad.float() * z.float()).sum(-1).transpose(1, 2)[..., None]  # batch head query 1
    grad_scores = attention * (along - mean) * scale
    grad_query = torch.einsum("bhqk,bkhd->bqhd", grad_scores, key)
    grad_key = torch.einsum("bhqk,bqhd->bkhd", grad_scores, query.float())
    grad_both = torch.stack((grad_key, grad_value), dim=2)
    return grad_query.to(query.dtype).contiguous(), grad_both.to(query.dtype)


def _scores(query: Tensor, key_value: Tensor, causal: bool, scale: float) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key_value[:, :, 0].float()) * scale
    if not causal:
        return scores
    queries, keys = scores.shape[-2:]
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1 + keys - queries)
    return scores.masked_fill(hidden, float("-inf"))


@register_fake("headway::few_keys")
def _(query: Tensor, key_value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    batch, queries, heads, _ = query.shape
    total = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    return query.new_empty(query.shape), total


@register_fake("headway::few_keys_backward")
def _(
    grad: Tensor, query: Tensor, key_value: Tensor, z: Tensor, total: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key_value.new_empty(key_value.shape)


def _save_for_backward(ctx: Any, inputs: Any, output: Any) -> None:
    query, key_value, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, key_value, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
    return *few_keys_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


register_autograd("headway::few_keys", _backward, setup_context=_save_for_backward)


def _vmap_rule(info: Any, in_dims: Any, query: Tensor, key_value: Tensor, causal: bool, scale: float) -> Any:
    """Folds the models of a stack into the batch, as attention itself has no weights."""

    def flat(tensor: Tensor, place: int | None) -> Tensor:
        moved = tensor.expand(info.batch_size, *tensor.shape) if place is None else tensor.movedim(place, 0)
        return moved.flatten(0, 1)

    both = few_keys(flat(query, in_dims[0]), flat(key_value, in_dims[1]), causal, scale)
    return tuple(each.unflatten(0, (info.batch_size, -1)) for each in both), (0, 0)


register_vmap("headway::few_keys", _vmap_rule)

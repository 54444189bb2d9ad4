"""The Triton kernels of few_keys.py. Each program handles a few pairs of problem and head and loops over the keys.

Axes of a tile: pair (a problem and a head), query, dim.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # elements of a tile: the registers of four warps hold a few such tiles


@triton.jit
def _forward(
    Q, KV, Z, TOTAL, pairs, scale,
    q_batch, q_token, q_head, kv_batch, kv_token, kv_two, kv_head,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    batch, head = pair // HEADS, pair % HEADS
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    there = pair < pairs
    inside = there[:, None, None] & (row < QUERIES)[None, :, None]
    at = (batch * q_batch + head * q_head)[:, None, None] + row[None, :, None] * q_token + dim[None, None, :]
    query = tl.load(Q + at, mask=inside, other=0.0).to(tl.float32) * scale
    key_at = (batch * kv_batch + head * kv_head)[:, None] + dim[None, :]
    best = tl.full((PAIRS, ROWS), float("-inf"), tl.float32)
    total = tl.zeros((PAIRS, ROWS), tl.float32)
    z = tl.zeros((PAIRS, ROWS, DIM), tl.float32)
    for number in tl.static_range(KEYS):
        key = tl.load(KV + key_at + number * kv_token, mask=there[:, None], other=0.0).to(tl.float32)
        value = tl.load(KV + key_at + number * kv_token + kv_two, mask=there[:, None], other=0.0).to(tl.float32)
        score = tl.sum(query * key[:, None, :], axis=2)
        if CAUSAL:
            score = tl.where((row + (KEYS - QUERIES) >= number)[None, :], score, float("-inf"))
        higher = tl.maximum(best, score)
        before, now = tl.exp(best - higher), tl.exp(score - higher)
        total = total * before + now
        z = z * before[:, :, None] + now[:, :, None] * value[:, None, :]
        best = higher
    z = z / total[:, :, None]
    out = ((batch * QUERIES * HEADS + head) * DIM)[:, None, None] + row[None, :, None] * (HEADS * DIM)
    tl.store(Z + out + dim[None, None, :], z, mask=inside)
    sums = (pair * QUERIES)[:, None] + row[None, :]
    tl.store(TOTAL + sums, best + tl.log(total), mask=there[:, None] & (row < QUERIES)[None, :])


@triton.jit
def _backward_query(
    GRAD, Q, KV, Z, TOTAL, DQ, pairs, scale,
    s_batch, s_token, s_head, q_batch, q_token, q_head, kv_batch, kv_token, kv_two, kv_head,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    batch, head = pair // HEADS, pair % HEADS
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    there = pair < pairs
    real = there[:, None] & (row < QUERIES)[None, :]
    inside = real[:, :, None]
    at = (batch * q_batch + head * q_head)[:, None, None] + row[None, :, None] * q_token + dim[None, None, :]
    query = tl.load(Q + at, mask=inside, other=0.0).to(tl.float32)
    at = (batch * s_batch + head * s_head)[:, None, None] + row[None, :, None] * s_token + dim[None, None, :]
    grad = tl.load(GRAD + at, mask=inside, other=0.0).to(tl.float32)
    out = ((batch * QUERIES * HEADS + head) * DIM)[:, None, None] + row[None, :, None] * (HEADS * DIM)
    out += dim[None, None, :]
    z = tl.load(Z + out, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(grad * z, axis=2)
    total = tl.load(TOTAL + (pair * QUERIES)[:, None] + row[None, :], mask=real, other=0.0)
    key_at = (batch * kv_batch + head * kv_head)[:, None] + dim[None, :]
    grad_query = tl.zeros((PAIRS, ROWS, DIM), tl.float32)
    for number in tl.static_range(KEYS):
        key = tl.load(KV + key_at + number * kv_token, mask=there[:, None], other=0.0).to(tl.float32)
        value = tl.load(KV + key_at + number * kv_token + kv_two, mask=there[:, None], other=0.0).to(tl.float32)
        attention = tl.exp(tl.sum(query * key[:, None, :], axis=2) * scale - total)
        seen = real
        if CAUSAL:
            seen = real & (row + (KEYS - QUERIES) >= number)[None, :]
        attention = tl.where(seen, attention, 0.0)
        grad_score = attention * (tl.sum(grad * value[:, None, :], axis=2) - mean) * scale
        grad_query += grad_score[:, :, None] * key[:, None, :]
    tl.store(DQ + out, grad_query, mask=inside)


@triton.jit
def _backward_keys(
    GRAD, Q, KV, Z, TOTAL, DKV, pairs, scale,
    s_batch, s_token, s_head, q_batch, q_token, q_head, kv_batch, kv_token, kv_two, kv_head,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Here the rows of a tile are keys; the program loops over the queries, so that no sum crosses rows."""
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    batch, head = pair // HEADS, pair % HEADS
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    there = pair < pairs
    inside = there[:, None, None] & (row < KEYS)[None, :, None]
    at = (batch * kv_batch + head * kv_head)[:, None, None] + row[None, :, None] * kv_token + dim[None, None, :]
    key = tl.load(KV + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(KV + at + kv_two, mask=inside, other=0.0).to(tl.float32)
    query_at = (batch * q_batch + head * q_head)[:, None] + dim[None, :]
    grad_at = (batch * s_batch + head * s_head)[:, None] + dim[None, :]
    z_at = ((batch * QUERIES * HEADS + head) * DIM)[:, None] + dim[None, :]
    grad_key = tl.zeros((PAIRS, ROWS, DIM), tl.float32)
    grad_value = tl.zeros((PAIRS, ROWS, DIM), tl.float32)
    for number in tl.static_range(QUERIES):
        query = tl.load(Q + query_at + number * q_token, mask=there[:, None], other=0.0).to(tl.float32)
        grad = tl.load(GRAD + grad_at + number * s_token, mask=there[:, None], other=0.0).to(tl.float32)
        z = tl.load(Z + z_at + number * (HEADS * DIM), mask=there[:, None], other=0.0).to(tl.float32)
        total = tl.load(TOTAL + pair * QUERIES + number, mask=there, other=0.0)
        mean = tl.sum(grad * z, axis=1)
        attention = tl.exp(tl.sum(key * query[:, None, :], axis=2) * scale - total[:, None])
        seen = there[:, None] & (row < KEYS)[None, :]
        if CAUSAL:
            seen = seen & (row <= number + (KEYS - QUERIES))[None, :]
        attention = tl.where(seen, attention, 0.0)
        grad_score = attention * (tl.sum(value * grad[:, None, :], axis=2) - mean[:, None]) * scale
        grad_key += grad_score[:, :, None] * query[:, None, :]
        grad_value += attention[:, :, None] * grad[:, None, :]
    out = ((batch * KEYS * 2 * HEADS + head) * DIM)[:, None, None] + row[None, :, None] * (2 * HEADS * DIM)
    out += dim[None, None, :]
    tl.store(DKV + out, grad_key, mask=inside)
    tl.store(DKV + out + HEADS * DIM, grad_value, mask=inside)


def _tiles(query: Tensor, key_value: Tensor, rows: int) -> tuple[int, tuple[int], dict[str, int]]:
    """Returns the number of pairs, the grid, and the constants of a program whose tile has `rows` rows."""
    batch, queries, heads, dim = query.shape
    rows = triton.next_power_of_2(rows)
    each = max(1, TILE // (rows * dim))
    shape = {"HEADS": heads, "QUERIES": queries, "KEYS": key_value.shape[1], "DIM": dim, "PAIRS": each, "ROWS": rows}
    return batch * heads, (triton.cdiv(batch * heads, each),), shape


def forward(query: Tensor, key_value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    batch, queries, heads, _ = query.shape
    pairs, grid, shape = _tiles(query, key_value, queries)
    z = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    total = torch.empty((batch, heads, queries), dtype=torch.float32, device=query.device)
    _forward[grid](
        query, key_value, z, total, pairs, scale, *query.stride()[:3], *key_value.stride()[:4], CAUSAL=causal, **shape
    )
    return z, total


def backward(
    grad: Tensor, query: Tensor, key_value: Tensor, z: Tensor, total: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_both = torch.empty(key_value.shape, dtype=query.dtype, device=query.device)
    strides = (*grad.stride()[:3], *query.stride()[:3], *key_value.stride()[:4])
    given = (grad, query, key_value, z, total)
    pairs, grid, shape = _tiles(query, key_value, query.shape[1])
    _backward_query[grid](*given, grad_query, pairs, scale, *strides, CAUSAL=causal, **shape)
    pairs, grid, shape = _tiles(query, key_value, key_value.shape[1])
    _backward_keys[grid](*given, grad_both, pairs, scale, *strides, CAUSAL=causal, **shape)
    return grad_query, grad_both

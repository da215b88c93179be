"""Scaled dot-product attention as one computation."""

from __future__ import annotations

from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import PrimExpr
from relayc.topi.tag import ELEMWISE
from relayc.topi.utils import accumulator_type, broadcast_index

__all__ = ["attention", "capped"]


def capped(score: PrimExpr, cap: float) -> PrimExpr:
    """cap * tanh(score / cap), which lies between -cap and cap; the score itself where `cap` is 0."""
    if not cap:
        return score
    return te.tanh(score * te.const(1.0 / cap, score.dtype)) * te.const(cap, score.dtype)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, causal: bool = False,
    masked_value: float = float("-inf"), softcap: float = 0.0, rounded: bool = False, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """softmax(query key^T * scale + mask) value.

    query (B, H, S, D), key (B, G, T, D), value (B, G, T, E) with H a multiple of G (grouped heads): (B, H, S, E).
    `mask` broadcasts to (B, H, S, T): a bool one keeps scores where True and replaces others by `masked_value`; a float
    one is added. `bias` broadcasts alike and is added to all scores after the mask. `causal` lets position s attend to
    keys up to s + T - S. A positive `softcap` limits the scores smoothly, see `capped`. `rounded` scores have the
    element type of the query. A row without visible keys gives 0. Stages: "attention_score", "attention_max",
    "attention_exp", "attention_sum", and the anchor "attention".
    """
    batch, heads, length, depth = query.shape
    _, groups, keys, width = value.shape
    wide = accumulator_type(query.dtype)
    per_group = heads // groups
    lowest = te.const(float("-inf"), wide)
    kd = te.reduce_axis((0, depth), name="kd")
    k_max, k_sum, k_out = [te.reduce_axis((0, keys), name="kt") for _ in range(3)]

    def group(h: Any) -> Any:
        return h if isinstance(per_group, int) and per_group == 1 else h // per_group

    product = te.compute(
        (batch, heads, length, keys),
        lambda b, h, s, t: te.sum(te.cast(wide, query(b, h, s, kd)) * te.cast(wide, key(b, group(h), t, kd)), axis=kd),
        name="attention_product",
        tag="attention_product",
    )

    def masked(*i: Any) -> PrimExpr:
        score = capped(product(*i) * te.const(scale, wide), softcap)
        if mask is not None:
            entry = mask(*broadcast_index(i, mask.shape))
            hidden = te.const(masked_value, wide)
            score = te.select(entry, score, hidden) if mask.dtype.is_bool else score + te.cast(wide, entry)
        if bias is not None:
            score = score + te.cast(wide, bias(*broadcast_index(i, bias.shape)))
        score = te.cast(wide, te.cast(query.dtype, score)) if rounded else score
        return te.select(i[3] <= i[2] + (keys - length), score, lowest) if causal else score

    score = te.compute(product.shape, masked, name="attention_score", tag="attention_score")
    rows = (batch, heads, length)
    largest = te.compute(
        rows, lambda b, h, s: te.max(score(b, h, s, k_max), axis=k_max), name="attention_max", tag="attention_max"
    )

    def shifted(b: Any, h: Any, s: Any, t: Any) -> PrimExpr:
        top = largest(b, h, s)
        return te.exp_nonpositive(score(b, h, s, t) - te.select(top == lowest, te.const(0, wide), top))

    weight = te.compute(product.shape, shifted, name="attention_exp", tag="attention_exp")
    total = te.compute(
        rows, lambda b, h, s: te.sum(weight(b, h, s, k_sum), axis=k_sum), name="attention_sum", tag="attention_sum"
    )
    attrs = {"causal": causal, "scale": scale}
    mixed = te.compute(
        (batch, heads, length, width),
        lambda b, h, s, e: te.sum(weight(b, h, s, k_out) * te.cast(wide, value(b, group(h), k_out, e)), axis=k_out),
        name="attention",
        tag="attention",
        attrs=attrs,
    )

    def normalized(b: Any, h: Any, s: Any, e: Any) -> PrimExpr:
        divisor = te.select(total(b, h, s) == te.const(0, wide), te.const(1, wide), total(b, h, s))
        return te.cast(query.dtype, mixed(b, h, s, e) / divisor)

    return te.compute(mixed.shape, normalized, name="attention_normalized", tag=ELEMWISE)

"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, Multiplications, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float, require_same_dtype, static_shape
from relayc.relay.type import TensorType, Type, broadcasts_to, dims_match, shapes_match
from relayc.te.tir import Dim
from relayc.topi.nn.blocked_attention import AttentionForm

__all__ = ["Attention", "BlockedAttention", "attention", "blocked_attention"]


@register_op("nn.attention", pattern=OpPattern.OUT_FUSABLE)
class Attention(OpDef):
    """softmax(query key^T * scale + mask) value, one computation (ONNX: Attention).

    query (B, H, S, D), key (B, G, T, D), value (B, G, T, E): (B, H, S, E); head h reads key and value h // (H / G). A
    bool mask sets the scores to `masked_value` where False, any other mask is added; an optional bias after the mask is
    added to all scores, masked ones included; `causal` lets position s attend to keys up to s + T - S; a `softcap`
    above 0 first replaces a score by softcap * tanh(score / softcap); a row that attends to nothing gives 0. Everything
    is computed in float32 if that is wider; `rounded` scores, with their masks, have the element type of the query.
    (C1) the element type is a float; (C2) of query, key and value; (C3) they have 4 dimensions that agree as above, H a
    multiple of G; (C4) the mask is bool, float32 or of that element type, a bias behind it one of these floats, and
    both broadcast to (B, H, S, T).
    """

    mixed_precision = MixedPrecision.ALWAYS
    reads_by_index = True

    scale: float
    causal: bool = False
    masked_value: float = float("-inf")
    softcap: float = 0.0
    rounded: bool = False

    def infer(
        self, query: TensorType, key: TensorType, value: TensorType, mask: TensorType | None = None,
        bias: TensorType | None = None,
    ) -> TensorType:  # fmt: skip
        require_float(1, query)
        require_same_dtype(2, query, key, value)
        expected = f"(C3) query (B, H, S, D), key (B, G, T, D), value (B, G, T, E); got {query}, {key}, {value}"
        require(query.ndim == key.ndim == value.ndim == 4, expected)
        batch, heads, length, depth = query.shape
        groups = key.shape[1]
        agree = dims_match(batch, key.shape[0]) and dims_match(depth, key.shape[3])
        agree = agree and shapes_match(key.shape[:3], value.shape[:3])
        even = isinstance(heads, int) and isinstance(groups, int) and groups > 0 and heads % groups == 0
        require(agree and even, expected)
        scores = TensorType((batch, heads, length, key.shape[2]))
        for tensor in (mask, bias):
            if tensor is not None:
                self._check_mask(tensor, query, scores)
        require(bias is None or not bias.dtype.is_bool, f"(C4) a bias {bias}; expected floats")
        return query.with_shape((batch, heads, length, value.shape[3]))

    def _check_mask(self, mask: TensorType, query: TensorType, scores: TensorType) -> None:
        require(
            mask.dtype.is_bool or mask.dtype in (query.dtype, "float32"),
            f"(C4) a mask of {mask.dtype}; expected bool, float32 or {query.dtype}",
        )
        require(broadcasts_to(mask.shape, scores.shape), f"(C4) mask {mask} does not broadcast to {scores}")

    def compute(
        self, query: te.Tensor, key: te.Tensor, value: te.Tensor, mask: te.Tensor | None = None,
        bias: te.Tensor | None = None,
    ) -> te.Tensor:  # fmt: skip
        return topi.nn.attention(
            query, key, value, mask, self.scale, self.causal, self.masked_value, self.softcap, self.rounded, bias
        )

    def reference(
        self, query: Array, key: Array, value: Array, mask: Array | None = None, bias: Array | None = None
    ) -> Array:
        repeats = query.shape[1] // key.shape[1]
        q, k, v = (a.astype(np.float64) for a in (query, key.repeat(repeats, 1), value.repeat(repeats, 1)))
        score = q @ np.swapaxes(k, -1, -2) * self.scale
        score = np.tanh(score / self.softcap) * self.softcap if self.softcap else score
        if mask is not None:
            hides = mask.dtype == np.bool_
            score = np.where(mask, score, self.masked_value) if hides else score + mask.astype(np.float64)
        score = score if bias is None else score + bias.astype(np.float64)
        if self.rounded:
            score = score.astype(query.dtype).astype(np.float64)
        if self.causal:
            length, keys = score.shape[-2:]
            score = np.where(np.tri(length, keys, keys - length, dtype=bool), score, -np.inf)
        top = score.max(-1, keepdims=True, initial=-np.inf)
        weight = np.exp(score - np.where(np.isneginf(top), 0, top))
        total = weight.sum(-1, keepdims=True)
        return (weight / np.where(total == 0, 1, total) @ v).astype(query.dtype)

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        return _both_products(types, result, keys_axis=2)


@register_op("nn.blocked_attention", pattern=OpPattern.OUT_FUSABLE)
class BlockedAttention(OpDef):
    """`nn.attention` with the heads of a position next to each other, as projections compute them; for CPUs.

    query (B, S, H, D), key (B, T, G, D), value (B, T, G, E): (B, S, H, E); computed in blocks of `queries` positions,
    with keys and values packed into panels of `panel` columns and rows of scores padded to a multiple of `fill` keys
    (0: of `panel`). Everything else, including (C1) to (C4), is as for nn.attention.
    """

    mixed_precision = MixedPrecision.ALWAYS
    num_copied_inputs = 3

    scale: float
    queries: int
    panel: int
    causal: bool = False
    masked_value: float = float("-inf")
    softcap: float = 0.0
    fill: int = 0
    rounded: bool = False

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        """Blocks of queries and panels of keys may be partial where lengths are dynamic."""
        return any(isinstance(ty, TensorType) and not ty.with_shape(ty.shape[1:]).is_static for ty in types[:3])

    def _by_heads(self) -> Attention:
        return Attention(
            scale=self.scale, causal=self.causal, masked_value=self.masked_value, softcap=self.softcap,
            rounded=self.rounded,
        )  # fmt: skip

    def infer(
        self, query: TensorType, key: TensorType, value: TensorType, mask: TensorType | None = None,
        bias: TensorType | None = None,
    ) -> TensorType:  # fmt: skip
        query, key, value = [t.with_shape(_exchanged(t.shape)) if t.ndim == 4 else t for t in (query, key, value)]
        result = self._by_heads().infer(query, key, value, mask, bias)
        return result.with_shape(_exchanged(result.shape))

    def compute(
        self, query: te.Tensor, key: te.Tensor, value: te.Tensor, mask: te.Tensor | None = None,
        bias: te.Tensor | None = None,
    ) -> te.Tensor:  # fmt: skip
        form = AttentionForm(
            self.scale, self.queries, self.panel, self.causal, self.masked_value, self.softcap, self.fill, self.rounded
        )
        return topi.nn.blocked_attention(query, key, value, mask, form, bias)

    def reference(
        self, query: Array, key: Array, value: Array, mask: Array | None = None, bias: Array | None = None
    ) -> Array:
        q, k, v = [np.swapaxes(a, 1, 2) for a in (query, key, value)]
        return np.ascontiguousarray(np.swapaxes(self._by_heads().reference(q, k, v, mask, bias), 1, 2))

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        return _both_products(types, result, keys_axis=1)


def _both_products(types: Sequence[Type], result: Type, keys_axis: int) -> Multiplications:
    """Each element of the query and of the result is multiplied for every key."""
    query, key = types[:2]
    assert isinstance(query, TensorType) and isinstance(key, TensorType) and isinstance(result, TensorType)
    keys = key.shape[keys_axis]
    return (*query.shape, keys), (*result.shape, keys)


def _exchanged(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """(B, H, S, D) as (B, S, H, D), and back."""
    return (shape[0], shape[2], shape[1], shape[3])


def blocked_attention(
    query: Expr, key: Expr, value: Expr, mask: Expr | None = None, *, scale: float, queries: int, panel: int,
    causal: bool = False, masked_value: float = float("-inf"),
) -> Call:  # fmt: skip
    """`attention` with inputs and result (batch, position, head, channel), computed in blocks."""
    op = BlockedAttention(scale=scale, queries=queries, panel=panel, causal=causal, masked_value=masked_value)
    return op(query, key, value, *([] if mask is None else [mask]))


def attention(
    query: Expr, key: Expr, value: Expr, mask: Expr | None = None, scale: float | None = None, causal: bool = False,
    softcap: float = 0.0,
) -> Call:  # fmt: skip
    """softmax(query key^T * scale + mask) value; `scale` is 1 / sqrt(D) by default."""
    factor = max(static_shape(query, 4)[-1], 1) ** -0.5 if scale is None else scale
    op = Attention(scale=factor, causal=causal, softcap=softcap)
    return op(query, key, value, *([] if mask is None else [mask]))

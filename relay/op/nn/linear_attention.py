"""Linear attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr, TupleGetItem
from relayc.relay.op.base import MixedPrecision, Multiplications, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.type import Dim, TensorType, TupleType, Type, shapes_match

__all__ = ["LinearAttention", "linear_attention"]


@register_op("nn.linear_attention", pattern=OpPattern.OPAQUE)
class LinearAttention(OpDef):
    """A state matrix for each head that every position updates and reads (ONNX: LinearAttention).

    Inputs: query (B, T, Hq, K), key (B, T, H, K), value (B, T, H, V), the first state (B, H, K, V); with `has_decay` a
    factor of the state at each position, (B, T, H, K or 1), with `has_rate` that of the delta rule, (B, T, H or 1). At
    each position S = decay S, S += k (rate (v - k^T S))^T, or S += k v^T without a rate, y = scale q^T S. Each H serves
    Hq / H queries. Results: y (B, T, Hq, V) and the last state. Computed in float32.

    (C1) all inputs are floats; (C2) query, key and value are of one type and fit together, Hq being a multiple of H;
    (C3) the state is (B, H, K, V); (C4) so are decay and rate as above.
    """

    mixed_precision = MixedPrecision.NEVER

    scale: float
    has_decay: bool = False
    has_rate: bool = False

    def infer(
        self, query: TensorType, key: TensorType, value: TensorType, state: TensorType, *gates: TensorType
    ) -> TupleType:
        for tensor in (query, key, value, state, *gates):
            require_float(1, tensor)
        fits = query.ndim == key.ndim == value.ndim == 4 and query.dtype == key.dtype == value.dtype
        fits = fits and shapes_match(key.shape, (*query.shape[:2], key.shape[2], query.shape[3]))
        fits = fits and shapes_match(value.shape, (*key.shape[:3], value.shape[3]))
        require(fits and _heads_divide(query, key), f"(C2) {query}, {key} and {value} do not fit together")
        (batch, steps, heads, width), columns = key.shape, value.shape[3]
        expected = state.with_shape((batch, heads, width, columns))
        require(shapes_match(state.shape, expected.shape), f"(C3) the state must be {expected}; got {state}")
        count = int(self.has_decay) + int(self.has_rate)
        require(len(gates) == count, f"takes {4 + count} inputs with these attributes, got {4 + len(gates)}")
        allowed: list[tuple[Sequence[Dim], int]] = []
        allowed += [((batch, steps, heads, width), 3)] if self.has_decay else []
        allowed += [((batch, steps, heads), 2)] if self.has_rate else []
        for gate, (shape, axis) in zip(gates, allowed, strict=True):
            one = (*shape[:axis], 1)
            known = shapes_match(gate.shape, shape) or shapes_match(gate.shape, one)
            require(known, f"(C4) a gate must be {gate.with_shape(shape)} or {gate.with_shape(one)}; got {gate}")
        return TupleType([query.with_shape((*query.shape[:3], columns)), state])

    def compute(
        self, query: te.Tensor, key: te.Tensor, value: te.Tensor, state: te.Tensor, *gates: te.Tensor
    ) -> tuple[te.Tensor, ...]:
        decay = gates[0] if self.has_decay else None
        rate = gates[-1] if self.has_rate else None
        return topi.nn.linear_attention(query, key, value, state, decay, rate, self.scale)

    def reference(self, query: Array, key: Array, value: Array, state: Array, *gates: Array) -> tuple[Array, ...]:
        q, k, v, current, *factors = [x.astype(np.float64) for x in (query, key, value, state, *gates)]
        rows: list[Array] = []
        for t in range(q.shape[1]):
            if self.has_decay:
                current = current * factors[0][:, t, :, :, None]
            new = v[:, t]
            if self.has_rate:
                new = factors[-1][:, t, :, None] * (new - np.einsum("bhk,bhkv->bhv", k[:, t], current))
            current = current + k[:, t, :, :, None] * new[:, :, None]
            shared = np.repeat(current, q.shape[2] // k.shape[2], axis=1)
            rows.append(self.scale * np.einsum("bhk,bhkv->bhv", q[:, t], shared))
        y = np.stack(rows, 1) if rows else np.zeros((*q.shape[:3], v.shape[3]))
        return y.astype(query.dtype), current.astype(state.dtype)

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        query, key, value = [t for t in types[:3] if isinstance(t, TensorType)]
        width = value.shape[3]
        return (*query.shape, width), (*key.shape, width, 2 if self.has_rate else 1)


def _heads_divide(query: TensorType, key: TensorType) -> bool:
    """Does each key head serve the same number of query heads?"""
    heads, groups = query.shape[2], key.shape[2]
    return isinstance(heads, int) and isinstance(groups, int) and groups > 0 and heads % groups == 0


def linear_attention(
    query: Expr, key: Expr, value: Expr, state: Expr, decay: Expr | None = None, rate: Expr | None = None, *,
    scale: float,
) -> tuple[TupleGetItem, TupleGetItem]:  # fmt: skip
    """y (B, T, Hq, V) and the last state (B, H, K, V); see `LinearAttention`."""
    gates = [g for g in (decay, rate) if g is not None]
    operator = LinearAttention(scale=scale, has_decay=decay is not None, has_rate=rate is not None)
    call: Call = operator(query, key, value, state, *gates)
    return TupleGetItem(call, 0), TupleGetItem(call, 1)

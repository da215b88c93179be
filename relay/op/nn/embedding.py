"""Embedding bags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.type import TensorType, dims_match, shapes_match

__all__ = ["EmbeddingBag", "embedding_bag"]


@register_op("nn.embedding_bag", pattern=OpPattern.OPAQUE)
class EmbeddingBag(OpDef):
    """For each bag the sum, mean or maximum of rows of a table: (B, D) (torch: EmbeddingBag).

    Inputs: the table (N, D), positions of rows (n,), starts and ends (B,) of the bags in them, and optionally factors
    (n,) of the rows. Starts, ends and positions are limited as in slices. Of an empty bag the sum and the mean are 0,
    the maximum is -inf. (C1) the table and the factors are floats of one type; (C2) positions, starts and ends are
    vectors of integers; (C3) there are as many starts as ends, and as many factors as positions; (C4) `mode` is "sum",
    "mean" or "max".
    """

    mixed_precision = MixedPrecision.NEVER

    mode: str = "sum"

    def infer(
        self, table: TensorType, positions: TensorType, starts: TensorType, ends: TensorType, *factors: TensorType
    ) -> TensorType:
        require_float(1, table)
        typed = table.ndim == 2 and all(f.dtype == table.dtype for f in factors)
        require(typed, f"(C1) a matrix and factors of its type expected; got {table}, {', '.join(map(str, factors))}")
        for tensor in (positions, starts, ends):
            integers = tensor.ndim == 1 and tensor.dtype.is_integral
            require(integers, f"(C2) positions, starts and ends must be vectors of integers; got {tensor}")
        fits = dims_match(starts.shape[0], ends.shape[0]) and len(factors) <= 1
        fits = fits and all(shapes_match(f.shape, positions.shape) for f in factors)
        require(fits, f"(C3) {starts}, {ends}, {positions}, {', '.join(map(str, factors))} do not fit together")
        require(self.mode in ("sum", "mean", "max"), f"(C4) mode {self.mode!r}")
        return table.with_shape((starts.shape[0], table.shape[1]))

    def compute(
        self, table: te.Tensor, positions: te.Tensor, starts: te.Tensor, ends: te.Tensor, *factors: te.Tensor
    ) -> te.Tensor:
        return topi.nn.embedding_bag(table, positions, starts, ends, *factors, mode=self.mode)

    def reference(self, table: Array, positions: Array, starts: Array, ends: Array, *factors: Array) -> Array:
        at = positions.astype(np.int64)
        rows = table[np.clip(np.where(at < 0, at + len(table), at), 0, len(table) - 1)].astype(np.float64)
        rows = rows * factors[0][:, None] if factors else rows
        bags = [rows[slice(int(a), int(b))] for a, b in zip(starts, ends, strict=True)]
        return np.array([self._of(bag) for bag in bags]).reshape(len(bags), table.shape[1]).astype(table.dtype)

    def _of(self, bag: Array) -> Array:
        if self.mode == "max":
            return bag.max(0, initial=-np.inf)
        total = bag.sum(0)
        return total / max(len(bag), 1) if self.mode == "mean" else total


def embedding_bag(
    table: Expr, positions: Expr, starts: Expr, ends: Expr, factors: Expr | None = None, mode: str = "sum"
) -> Call:
    """For each bag the "sum", "mean" or "max" of rows of a table; see `EmbeddingBag`."""
    tensor: Sequence[Expr] = () if factors is None else (factors,)
    return EmbeddingBag(mode=mode)(table, positions, starts, ends, *tensor)

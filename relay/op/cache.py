"""KV caches: appended to out of place, or in place in a buffer with spare room that the executor keeps.

`relay.transform.UpdateKVCacheInPlace` creates the operators whose results alias the buffer of the cache.
"""

from __future__ import annotations

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, check_axis, require, require_same_dtype, with_dim
from relayc.relay.sizes import larger
from relayc.relay.type import TensorType, dims_match
from relayc.te.tir import Dim
from relayc.topi.tag import INJECTIVE

__all__ = ["Append", "Filled", "Update", "append", "filled", "update"]


@register_op("cache.update", pattern=OpPattern.INJECTIVE)
class Update(OpDef):
    """The cache x (B, H, C, D) with the rows of y (B, H, S, D), entry b of the batch from ``begins[b]`` on.

    Entries may have different lengths. The result has max(C, `total`) rows, zeros behind those of y; begins (B,) are
    limited to [0, C]. (C1) one element type; (C2) x and y have four dimensions and agree but for rows; (C3) begins are
    integers, one for each entry.
    """

    total: Dim

    def infer(self, x: TensorType, y: TensorType, begins: TensorType) -> TensorType:
        require_same_dtype(1, x, y)
        fits = x.ndim == y.ndim == 4 and all(map(dims_match, y.shape, with_dim(x.shape, 2, y.shape[2])))
        require(fits, f"(C2) rows {y} do not fit a cache {x}")
        _check_begins(begins, y)
        return y.with_shape(with_dim(y.shape, 2, larger(self.total, x.shape[2])))

    def compute(self, x: te.Tensor, y: te.Tensor, begins: te.Tensor) -> te.Tensor:
        return topi.rows_updated(x, y, begins, larger(self.total, x.shape[2]))

    def reference(self, x: Array, y: Array, begins: Array) -> Array:
        rows = max(int(self.total), x.shape[2])  # type: ignore[arg-type]
        result = np.zeros((*x.shape[:2], rows, x.shape[3]), x.dtype)
        for entry, begin in enumerate(np.clip(begins, 0, x.shape[2])):
            result[entry, :, :begin] = x[entry, :, :begin]
            kept = y[entry, :, : rows - begin]
            result[entry, :, begin : begin + kept.shape[1]] = kept
        return result


def _check_begins(begins: TensorType, y: TensorType) -> None:
    fits = begins.ndim == 1 and begins.dtype.is_integral and dims_match(begins.shape[0], y.shape[0])
    require(fits, f"(C3) begins {begins}; expected integers, one for each of {y.shape[0]} entries")


@register_op("cache.append", pattern=OpPattern.OPAQUE)
class Append(OpDef):
    """The cache x with the rows of y from position `length` along `axis` on; only the rows of y are written.

    x holds `length` rows and has room for more. The result aliases x. With a third argument `begins`, entry b of the
    batch has its rows from ``begins[b]`` on, limited to [0, `length`]. (C1) one element type; (C2) axis is in range;
    (C3) the other dimensions are equal; begins are integers, one for each entry.
    """

    mixed_precision = MixedPrecision.NEVER

    length: Dim
    axis: int

    def infer(self, x: TensorType, y: TensorType, begins: TensorType | None = None) -> TensorType:
        require_same_dtype(1, x, y)
        axis = check_axis(2, self.axis, x.ndim)
        fits = x.ndim == y.ndim and all(map(dims_match, y.shape, with_dim(x.shape, axis, y.shape[axis])))
        require(fits, f"(C3) rows {y} do not fit a cache {x} along axis {axis}")
        if begins is not None:
            _check_begins(begins, y)
        return x

    def compute(self, x: te.Tensor, y: te.Tensor, begins: te.Tensor | None = None) -> te.Tensor:
        return topi.write_rows(x, y, self.length, check_axis(2, self.axis, x.ndim), begins)

    def reference(self, x: Array, y: Array, begins: Array | None = None) -> Array:
        result, length = x.copy(), int(self.length)  # type: ignore[arg-type]
        firsts = [length] if begins is None else np.clip(begins, 0, length)
        for entry, first in enumerate(firsts):
            part = slice(None) if begins is None else slice(entry, entry + 1)
            rows = result[part].swapaxes(0, self.axis)
            rows[first : first + y.shape[self.axis]] = y[part].swapaxes(0, self.axis)
        return result


@register_op("cache.filled", pattern=OpPattern.INJECTIVE)
class Filled(OpDef):
    """The first `length` rows of the cache x along `axis`, out of its capacity. (C1) axis is in range."""

    mixed_precision = MixedPrecision.NEVER
    permutes_elements = True

    length: Dim
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(with_dim(x.shape, check_axis(1, self.axis, x.ndim), self.length))

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = with_dim(x.shape, check_axis(1, self.axis, x.ndim), self.length)

        return te.compute(shape, x.__call__, name="filled", tag=INJECTIVE)

    def reference(self, x: Array) -> Array:
        return np.take(x, np.arange(int(self.length)), self.axis)  # type: ignore[arg-type]


def update(x: Expr, y: Expr, begins: Expr, total: Dim) -> Call:
    """The cache `x` with the rows `y` from `begins` on, one for each entry; `total` rows, or more if `x` has more."""
    return Update(total=total)(x, y, begins)


def append(x: Expr, y: Expr, length: Dim, axis: int, begins: Expr | None = None) -> Call:
    """The cache `x` of `length` rows with `y` appended, or with `begins`, from those positions on."""
    return Append(length=length, axis=axis)(x, y, *([] if begins is None else [begins]))


def filled(x: Expr, length: Dim, axis: int) -> Call:
    """The first `length` rows of the cache `x`."""
    return Filled(length=length, axis=axis)(x)

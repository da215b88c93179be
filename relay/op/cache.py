"""In-place KV caches: the executor keeps a buffer with spare room, to which each run appends.

`relay.transform.UpdateKVCacheInPlace` creates these operators; their results alias the buffer of the cache.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, check_axis, require, require_same_dtype, with_dim
from relayc.relay.type import TensorType, dims_match
from relayc.te.tir import Dim
from relayc.topi.tag import INJECTIVE

__all__ = ["Append", "Filled", "append", "filled"]


@register_op("cache.append", pattern=OpPattern.OPAQUE)
class Append(OpDef):
    """The cache x with the rows of y from position `length` along `axis` on; only the rows of y are written.

    x holds `length` rows and has room for more. The result aliases x. (C1) one element type; (C2) axis is in range;
    (C3) the other dimensions are equal.
    """

    writes_in_place: ClassVar[bool] = True

    length: Dim
    axis: int

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        require_same_dtype(1, x, y)
        axis = check_axis(2, self.axis, x.ndim)
        fits = x.ndim == y.ndim and all(map(dims_match, y.shape, with_dim(x.shape, axis, y.shape[axis])))
        require(fits, f"(C3) rows {y} do not fit a cache {x} along axis {axis}")
        return x

    def compute(self, x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return topi.write_rows(x, y, self.length, check_axis(2, self.axis, x.ndim))

    def reference(self, x: Array, y: Array) -> Array:
        result = x.copy()
        rows = result.swapaxes(0, self.axis)
        rows[int(self.length) : int(self.length) + y.shape[self.axis]] = y.swapaxes(0, self.axis)  # type: ignore[arg-type]
        return result


@register_op("cache.filled", pattern=OpPattern.INJECTIVE)
class Filled(OpDef):
    """The first `length` rows of the cache x along `axis`, out of its capacity. (C1) axis is in range."""

    length: Dim
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        return x.with_shape(with_dim(x.shape, check_axis(1, self.axis, x.ndim), self.length))

    def compute(self, x: te.Tensor) -> te.Tensor:
        shape = with_dim(x.shape, check_axis(1, self.axis, x.ndim), self.length)

        return te.compute(shape, x.__call__, name="filled", tag=INJECTIVE)

    def reference(self, x: Array) -> Array:
        return np.take(x, np.arange(int(self.length)), self.axis)  # type: ignore[arg-type]


def append(x: Expr, y: Expr, length: Dim, axis: int) -> Call:
    """The cache `x` of `length` rows with `y` appended."""
    return Append(length=length, axis=axis)(x, y)


def filled(x: Expr, length: Dim, axis: int) -> Call:
    """The first `length` rows of the cache `x`."""
    return Filled(length=length, axis=axis)(x)

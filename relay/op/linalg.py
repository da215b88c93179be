"""Linear algebra on small matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, make_call, register_op
from relayc.relay.op.common import Array, require, require_float
from relayc.relay.op.gradients import restored, swapped
from relayc.relay.type import TensorType, dims_match

__all__ = ["Det", "Inverse", "det", "inverse"]


def _require_square(x: TensorType) -> None:
    require_float(1, x)
    square = x.ndim >= 2 and dims_match(x.shape[-1], x.shape[-2])
    require(bool(square), f"(C2) {x} must hold square matrices")


@register_op("det", pattern=OpPattern.OPAQUE)
class Det(OpDef):
    """Determinants (batch...) of matrices (batch..., n, n) (ONNX: Det).

    (C1) the element type is a float; (C2) the last two dimensions are equal.
    """

    mixed_precision = MixedPrecision.NEVER

    def infer(self, x: TensorType) -> TensorType:
        _require_square(x)
        return x.with_shape(x.shape[:-2])

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.det(x)

    def reference(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        ndim = len(x.shape)
        scale = restored(grad * call, x.shape, (ndim - 2, ndim - 1))
        return (scale * swapped(make_call("inverse", (x,))),)


def det(data: Expr) -> Call:
    """Determinants of the matrices in the last two dimensions of `data`."""
    return Det()(data)


@register_op("inverse", pattern=OpPattern.OPAQUE)
class Inverse(OpDef):
    """Inverses (batch..., n, n) of matrices (batch..., n, n) (ONNX: Inverse of com.microsoft).

    Singular matrices give infinities or NaN. (C1) the element type is a float; (C2) the last two dimensions are equal.
    """

    mixed_precision = MixedPrecision.NEVER

    def infer(self, x: TensorType) -> TensorType:
        _require_square(x)
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.inverse(x)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        singular = np.linalg.det(wide) == 0 if x.size else np.zeros(x.shape[:-2], bool)
        safe = np.where(singular[..., None, None], np.eye(x.shape[-1]), wide)
        return np.where(singular[..., None, None], np.nan, np.linalg.inv(safe)).astype(x.dtype)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        left = make_call("nn.batch_matmul", (call, grad), transpose_a=True, transpose_b=False)
        return (-make_call("nn.batch_matmul", (left, call), transpose_b=True),)


def inverse(data: Expr) -> Call:
    """Inverses of the matrices in the last two dimensions of `data`."""
    return Inverse()(data)

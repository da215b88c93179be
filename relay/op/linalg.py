"""Linear algebra on small matrices."""

from __future__ import annotations

import numpy as np

import te
import topi
from relay.expr import Call, Expr
from relay.op.base import MixedPrecision, OpDef, OpPattern, register_op
from relay.op.common import Array, require, require_float
from relay.type import TensorType

__all__ = ["Det", "det"]


@register_op("det", pattern=OpPattern.OPAQUE)
class Det(OpDef):
    """Determinants (batch...) of matrices (batch..., n, n) (ONNX: Det).

    (C1) the element type is a float; (C2) the last two dimensions are equal.
    """

    mixed_precision = MixedPrecision.NEVER

    def infer(self, x: TensorType) -> TensorType:
        require_float(1, x)
        square = x.ndim >= 2 and (x.shape[-1] is x.shape[-2] or x.shape[-1] == x.shape[-2])
        require(bool(square), f"(C2) {x} must hold square matrices")
        return x.with_shape(x.shape[:-2])

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.det(x)

    def reference(self, x: Array) -> Array:
        return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


def det(data: Expr) -> Call:
    """Determinants of the matrices in the last two dimensions of `data`."""
    return Det()(data)

"""Addition of a bias per channel."""

from __future__ import annotations

from collections.abc import Sequence

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, check_axis, require, require_same_dtype
from relayc.relay.op.gradients import along_axis
from relayc.relay.type import TensorType, Type, dims_match

__all__ = ["BiasAdd", "bias_add"]


@register_op("nn.bias_add", pattern=OpPattern.BROADCAST)
class BiasAdd(OpDef):
    """x + bias, one value for each position along `axis`.

    (C1) both inputs have one element type; (C2) axis is in range; (C3) bias is a vector of that size.
    """

    axis: int = 1
    num_data_inputs = 1

    def infer(self, x: TensorType, bias: TensorType) -> TensorType:
        require_same_dtype(1, x, bias)
        axis = check_axis(2, self.axis, x.ndim)
        fits = bias.ndim == 1 and dims_match(bias.shape[0], x.shape[axis])
        require(fits, f"(C3) bias must have shape ({x.shape[axis]},); got {bias}")
        return x

    def compute(self, x: te.Tensor, bias: te.Tensor) -> te.Tensor:
        return topi.nn.bias_add(x, bias, check_axis(2, self.axis, x.ndim))

    def reference(self, x: Array, bias: Array) -> Array:
        axis = check_axis(2, self.axis, x.ndim)
        return x + bias.reshape([-1 if a == axis else 1 for a in range(x.ndim)])

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm)))) if len(perm) > 1 else None

    def decomposed(self, *args: Expr) -> Expr:
        x, bias = args
        ndim = len(x.shape)
        return x + along_axis(bias, check_axis(2, self.axis, ndim), ndim)


def bias_add(data: Expr, bias: Expr, axis: int = 1) -> Call:
    """`data` + `bias`, one value for each position along `axis`."""
    return BiasAdd(axis=axis)(data, bias)

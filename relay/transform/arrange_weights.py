"""ArrangeWeights: constant weights in the order that the kernels of GPUs read.

Convolutions on channels last get weights with the output channels innermost, (spatial..., I, O): the columns of the
implicit matrix product are contiguous, whole vectors of them are copied at once, and the channels of a depthwise
convolution are those of its data. Likewise a constant matrix of a float32 product is stored (K, N); tensor cores read
smaller types along the depth, (N, K), the order of dense layers. The weights are transposed here, once.
"""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import rewrite_calls
from relayc.relay.op.base import OpDef
from relayc.relay.op.nn.conv import Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose
from relayc.relay.op.nn.dense import BatchMatmul, Dense
from relayc.relay.transform.builders import transposed
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["ArrangeWeights"]


class ArrangeWeights(FunctionPass):
    """Convolutions of data (N, spatial..., C) take weights (spatial..., I, O), products in float32 weights (K, N)."""

    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls(function, _Arranger().rewrite)


class _Arranger:
    """Transposes each weight once for each order in which layers need it."""

    def __init__(self) -> None:
        self.arranged: dict[tuple[int, tuple[int, ...]], Expr] = {}

    def rewrite(self, call: Call) -> Expr:
        if len(call.args) != 2 or not isinstance(call.args[1], Constant):
            return call
        match call.op:
            case Dense() as op:
                return self.product(call, op.out_dtype, "NK")
            case BatchMatmul(transpose_a=False) as op if call.args[1].data.ndim == 2:
                return self.product(call, op.out_dtype, "NK" if op.transpose_b else "KN")
            case Conv1D() | Conv2D() | Conv3D() | Conv1DTranspose() | Conv2DTranspose() | Conv3DTranspose() as op:
                return self.convolution(call, op, op.data_layout, op.kernel_layout)
            case _:
                return call

    def product(self, call: Call, out_dtype: str | None, order: str) -> Call:
        """x (..., K) times a constant matrix whose dimensions K and N are stored in `order`."""
        x, weight = call.args
        wanted = "KN" if x.dtype == "float32" and len(x.shape) > 1 else "NK"
        if order != wanted:
            weight = self.transposed(weight, (1, 0))
        op = BatchMatmul(transpose_b=False, out_dtype=out_dtype) if wanted == "KN" else Dense(out_dtype=out_dtype)
        return call if op == call.op and weight is call.args[1] else Call(op, (x, weight), span=call.span)

    def convolution(self, call: Call, op: OpDef, data_layout: str, kernel_layout: str) -> Call:
        wanted = data_layout[1:-1] + "IO"
        if not data_layout.endswith("C") or kernel_layout == wanted or not kernel_layout.isupper():
            return call
        weight = self.transposed(call.args[1], tuple([kernel_layout.index(a) for a in wanted]))
        return Call(op.replace(kernel_layout=wanted), (call.args[0], weight), span=call.span)

    def transposed(self, weight: Expr, axes: tuple[int, ...]) -> Expr:
        key = (id(weight), axes)
        if key not in self.arranged:
            self.arranged[key] = transposed(weight, axes)
        return self.arranged[key]

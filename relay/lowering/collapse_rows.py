"""Row kernels (softmax and norms along the last dimension), with all outer dimensions collapsed.

Short rows are processed in blocks of several (`topi.cpu.norms.transposed_rows`): collapsing avoids a remainder at the
end of each matrix. The memory layout does not change, so nothing outside of the kernel is affected.
"""

from __future__ import annotations

import math

from relayc.relay.analysis import body_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.lowering.collapse_dimensions import rebuilt
from relayc.relay.op.nn.norm import LayerNorm, LogSoftmax, RMSNorm, Softmax
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext

__all__ = ["CollapseRows"]


class CollapseRows(FunctionPass):
    """An equivalent primitive function on the same memory, of two dimensions.

    For one row operator and elementwise operators before or after it, on tensors of its shape and vectors shared by all
    rows; other functions are returned unchanged.
    """

    def transform(self, function: Function, context: PassContext) -> Function:
        exprs = body_order(function)
        anchors = [e for e in exprs if _is_of_rows(e)]
        if len(anchors) != 1 or "strides" in function.attrs:
            return function
        ty = anchors[0].tensor_type
        if ty.ndim < 3 or not ty.is_static or not all(e is anchors[0] or _is_followed(e, ty) for e in exprs):
            return function
        return rebuilt(function, exprs, lambda e, made: _merged(e, ty, made))


def _is_of_rows(e: Expr) -> bool:
    """Is this a softmax or norm along the last dimension only?"""
    if not isinstance(e, Call) or not isinstance(e.op, Softmax | LogSoftmax | LayerNorm | RMSNorm):
        return False
    rank = e.tensor_type.ndim
    return e.op.axis % max(rank, 1) == rank - 1


def _is_followed(e: Expr, ty: TensorType) -> bool:
    """Is this data or elementwise, of the shape of the rows, or broadcast to all of them?"""
    if isinstance(e, Call):
        if not e.operator.follows_elements():
            return False
    elif not isinstance(e, Var | Constant):
        return False
    shape = e.ty.shape if isinstance(e.ty, TensorType) else None
    if isinstance(e, Constant) and e.data.ndim:
        return False
    return shape is not None and (shape == ty.shape or all(d == 1 for d in shape[:-1]))


def _merged(e: Expr, ty: TensorType, made: dict[int, Expr]) -> Expr:
    if isinstance(e, Call):
        axis = {"axis": 1} if _is_of_rows(e) else {}
        return Call(e.operator.replace(**axis), tuple([made[id(a)] for a in e.args]), span=e.span)
    if not isinstance(e, Var):
        return e
    shape = e.tensor_type.shape
    rows = (math.prod(ty.static_shape[:-1]), ty.shape[-1]) if shape == ty.shape else shape[-1:]
    return Var(e.name, TensorType(rows, e.tensor_type.dtype))

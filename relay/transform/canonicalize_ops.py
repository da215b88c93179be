"""CanonicalizeOps: one canonical form for operations that can be written in several ways."""

from __future__ import annotations

from typing import ClassVar, cast

from relayc.relay.expr import Call, Constant, Expr, Function, TupleGetItem
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.transform.builders import is_call_of, reshaped, transposed
from relayc.relay.transform.function_pass import RewritePass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext, rewrite_dag

__all__ = ["CanonicalizeOps"]

_GLOBAL_POOLS = {
    "nn.adaptive_avg_pool": "mean",
    "nn.adaptive_max_pool": "max",
    "nn.avg_pool": "mean",
    "nn.max_pool": "max",
}


class CanonicalizeOps(RewritePass):
    """Rewrite operators to canonical ones, for static shapes.

    Views (squeeze, expand_dims) become `reshape`, a bias an `add`, global pooling a reduction, a product with a
    constant matrix a dense layer, the fields of a `split` slices. A `topk` with k = 1 becomes an `argmax`.
    """

    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        return cast(Function, rewrite_dag(super().transform(function, context), _field_alone))  # type: ignore[arg-type]

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, OpDef) or not isinstance(call.ty, TensorType):
            return call
        if op.is_view and op.name != "reshape" and len(call.args) == 1 and call.args[0].dtype == call.dtype:
            return reshaped(call.args[0], call.ty.shape, call.span)
        if is_call_of(call, "nn.bias_add"):
            return _add_bias(call, op.axis % call.ty.ndim)  # type: ignore[attr-defined]
        if is_call_of(call, "nn.batch_matmul"):
            return _as_dense(call)
        return _as_reduction(call) if is_call_of(call, *_GLOBAL_POOLS) else call


def _field_alone(e: Expr) -> Expr:
    """A field of an operator's results, computed on its own."""
    if not isinstance(e, TupleGetItem) or not isinstance(e.tuple_value, Call):
        return e
    if is_call_of(e.tuple_value, "topk"):
        return _largest(e, e.tuple_value)
    return _field_as_slice(e, e.tuple_value) if is_call_of(e.tuple_value, "split") else e


def _largest(e: TupleGetItem, topk: Call) -> Expr:
    """The first largest element of each row, or its position. (A NaN is never the smallest; `argmin` returns it.)"""
    op, data = topk.op, topk.args[0]
    if op.k != 1 or (op.is_ascend and not data.dtype.is_integral):  # type: ignore[union-attr]
        return e
    axis, name = op.axis % len(data.shape), "argmin" if op.is_ascend else "argmax"  # type: ignore[union-attr]
    place = make_call(name, (data,), topk.span, axis=(axis,), keepdims=True, dtype=op.dtype)  # type: ignore[union-attr]
    return place if e.index else make_call("gather", (data, place), topk.span, axis=axis)


def _field_as_slice(e: TupleGetItem, split: Call) -> Expr:
    """One part of a `split` as a slice, so that it can be read as a view."""
    source, axis = split.args[0], split.op.axis % len(e.shape)  # type: ignore[union-attr]
    size, cuts = e.shape[axis], split.op.indices_or_sections  # type: ignore[union-attr]
    if not isinstance(source.shape[axis], int):
        return e
    if isinstance(cuts, int):
        begin = e.index * size
    else:
        begin = cuts[e.index - 1] if e.index else 0
    bounds = {"begin": (begin,), "end": (begin + size,), "strides": (1,), "axes": (axis,)}
    return make_call("strided_slice", (source,), split.span, **bounds)


def _as_reduction(call: Call) -> Expr:
    """A pooling whose only window is the whole image, as a reduction."""
    op, data = call.op, call.args[0]
    assert isinstance(op, OpDef)
    spatial = tuple([i for i, a in enumerate(op.layout) if a not in "NC"])  # type: ignore[attr-defined]
    if any(call.shape[i] != 1 for i in spatial):
        return call
    window: tuple[int, ...] | None = getattr(op, "pool_size", None)
    whole = window is None or (window == tuple([data.shape[i] for i in spatial]) and not any(op.padding))  # type: ignore[attr-defined]
    if not whole or (window is not None and any(d != 1 for d in op.dilation)):  # type: ignore[attr-defined]
        return call
    return make_call(_GLOBAL_POOLS[op.name], call.args, call.span, axis=spatial, keepdims=True)


def _add_bias(call: Call, axis: int) -> Expr:
    data, bias = call.args
    trailing = len(data.shape) - 1 - axis
    return make_call("add", (data, reshaped(bias, (*bias.shape, *[1] * trailing))), call.span)


def _as_dense(call: Call) -> Expr:
    data, weight = call.args
    matrix = all(d == 1 for d in weight.shape[:-2]) and len(weight.shape) <= len(data.shape)
    if not isinstance(weight, Constant) or not matrix or call.op.transpose_a:  # type: ignore[union-attr]
        return call
    weight = reshaped(weight, weight.shape[-2:])
    columns_first = weight if call.op.transpose_b else transposed(weight, (1, 0))  # type: ignore[union-attr]
    return make_call("nn.dense", (data, columns_first), call.span, out_dtype=call.op.out_dtype)  # type: ignore[union-attr]

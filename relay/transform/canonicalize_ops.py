"""CanonicalizeOps: one canonical form for operations that can be written in several ways."""

from __future__ import annotations

from typing import ClassVar, cast

from relayc.relay.expr import Call, Constant, Expr, Function, TupleGetItem
from relayc.relay.op.base import OpDef, expect_op, make_call
from relayc.relay.op.indexing import TopK
from relayc.relay.op.joining import Split
from relayc.relay.op.nn.bias import BiasAdd
from relayc.relay.op.nn.dense import BatchMatmul
from relayc.relay.op.nn.pool import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool
from relayc.relay.transform.builders import is_call_of, reshaped, transposed
from relayc.relay.transform.function_pass import RewritePass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext, rewrite_dag

__all__ = ["CanonicalizeOps"]

_GLOBAL_POOLS = {
    AdaptiveAvgPool: "mean",
    AdaptiveMaxPool: "max",
    AvgPool: "mean",
    MaxPool: "max",
}


class CanonicalizeOps(RewritePass):
    """Rewrite operators to canonical ones, for static shapes.

    Views (squeeze, expand_dims) become `reshape`, a bias an `add`, global pooling a reduction, a product with a
    constant matrix a dense layer, the fields of a `split` slices. A `topk` with k = 1 becomes an `argmax`.
    """

    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        return cast(Function, rewrite_dag(super().transform(function, context), _field_alone))

    def rewrite(self, call: Call) -> Expr:
        op = call.op
        if not isinstance(op, OpDef) or not isinstance(call.ty, TensorType):
            return call
        if op.is_view and op.name != "reshape" and len(call.args) == 1 and call.args[0].dtype == call.dtype:
            return reshaped(call.args[0], call.ty.shape, call.span)
        if isinstance(op, BiasAdd):
            return _add_bias(call, op.axis % call.ty.ndim)
        if is_call_of(call, "nn.batch_matmul"):
            return _as_dense(call)
        return _as_reduction(call) if type(op) in _GLOBAL_POOLS else call


def _field_alone(e: Expr) -> Expr:
    """A field of an operator's results, computed on its own."""
    if not isinstance(e, TupleGetItem) or not isinstance(e.tuple_value, Call):
        return e
    if is_call_of(e.tuple_value, "topk"):
        return _largest(e, e.tuple_value)
    return _field_as_slice(e, e.tuple_value) if is_call_of(e.tuple_value, "split") else e


def _largest(e: TupleGetItem, topk: Call) -> Expr:
    """The first largest element of each row, or its position. (A NaN is never the smallest; `argmin` returns it.)"""
    op, data = expect_op(topk, TopK), topk.args[0]
    if op.k != 1 or (op.is_ascend and not data.dtype.is_integral):
        return e
    axis, name = op.axis % len(data.shape), "argmin" if op.is_ascend else "argmax"
    place = make_call(name, (data,), topk.span, axis=(axis,), keepdims=True, dtype=op.dtype)
    return place if e.index else make_call("gather", (data, place), topk.span, axis=axis)


def _field_as_slice(e: TupleGetItem, split: Call) -> Expr:
    """One part of a `split` as a slice, so that it can be read as a view."""
    source, op = split.args[0], expect_op(split, Split)
    axis, cuts = op.axis % len(e.shape), op.indices_or_sections
    size = e.shape[axis]
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
    op, data = expect_op(call, *_GLOBAL_POOLS), call.args[0]
    spatial = tuple([i for i, a in enumerate(op.layout) if a not in "NC"])
    if any(call.shape[i] != 1 for i in spatial):
        return call
    if isinstance(op, AvgPool | MaxPool):
        whole = op.pool_size == tuple([data.shape[i] for i in spatial])
        if not whole or any(op.padding) or any(d != 1 for d in op.dilation):
            return call
    return make_call(_GLOBAL_POOLS[type(op)], call.args, call.span, axis=spatial, keepdims=True)


def _add_bias(call: Call, axis: int) -> Expr:
    data, bias = call.args
    trailing = len(data.shape) - 1 - axis
    return make_call("add", (data, reshaped(bias, (*bias.shape, *[1] * trailing))), call.span)


def _as_dense(call: Call) -> Expr:
    data, weight = call.args
    matrix = all(d == 1 for d in weight.shape[:-2]) and len(weight.shape) <= len(data.shape)
    op = expect_op(call, BatchMatmul)
    if not isinstance(weight, Constant) or not matrix or op.transpose_a:
        return call
    weight = reshaped(weight, weight.shape[-2:])
    columns_first = weight if op.transpose_b else transposed(weight, (1, 0))
    return make_call("nn.dense", (data, columns_first), call.span, out_dtype=op.out_dtype)

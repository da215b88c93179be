"""FoldConstant: evaluates calls of constants at compile time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, numpy_dtype
from relayc.relay.interpreter import apply_reference
from relayc.relay.op.base import OpDef
from relayc.relay.op.elementwise import Cast
from relayc.relay.op.qnn import Dequantize
from relayc.relay.op.transform import Transpose
from relayc.relay.sizes import size_variables
from relayc.relay.stored import StoredConstant
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.dtype import dtype
from relayc.te.ir import PassContext, post_order, rewrite_dag

__all__ = ["FoldConstant", "unfetched"]

PassContext.declare_option(
    "relay.FoldConstant.max_bytes", 1 << 20, "constants larger than this are folded only if they grow little"
)
PassContext.declare_option("relay.FoldConstant.max_macs", 1 << 31, "contractions larger than this are not folded")

_HUGE = 1 << 26
"""Bytes of results from which on inputs count by the memory that they take."""
_WIDENING = 4
"""Most bytes of such a result for each that is stored: words of bytes, as quantised weights become for a product."""

_LEAST_TOTAL, _MOST_GROWTH = 1 << 28, 16
"""Most bytes of all large results of a function, at least, and as a multiple of the bytes of its constants."""


class FoldConstant(FunctionPass):
    """Calls of pure operators on constants become constants, by the operators' references.

    A call is folded if its result is small, at most twice as large as its inputs, or has no more elements than they
    have: a broadcast of a scalar stays a broadcast, while quantised weights become floats. A result without elements is
    a constant for any operands, unless a run may refuse to compute them. Fields of known tuples and branches of
    constant conditions are selected.

    The cost of folding is bounded by the memory of the constants: a result over 64 MiB is at most four times as large
    as what its inputs store (int32 of int8; a broadcast scalar stores one element), and all large results together take
    at most 16 times what the constants of the function store, or 256 MiB if that is more. Other calls stay.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        max_bytes: int = context.option("relay.FoldConstant.max_bytes")
        max_macs: int = context.option("relay.FoldConstant.max_macs")

        constants = [c for c in post_order(function) if isinstance(c, Constant)]
        left = max(_LEAST_TOTAL, _MOST_GROWTH * sum(map(_stored_bytes, constants)))
        failing = set[Expr]()

        def fold(e: Expr) -> Expr:
            nonlocal left
            if _can_fail(e, failing):
                failing.add(e)
            if isinstance(e, Call):
                large = _nbytes(e.ty) if _nbytes(e.ty) > max_bytes else 0
                folded = _fold_call(e, e in failing, max_bytes, max_macs) if large <= left else e
                left -= large if folded is not e else 0
                return folded
            if isinstance(e, TupleGetItem) and isinstance(e.tuple_value, Tuple):
                return e.tuple_value.fields[e.index]
            if isinstance(e, If) and isinstance(e.cond, Constant):
                return e.true_branch if bool(e.cond.data) else e.false_branch
            return e

        return cast(Function, rewrite_dag(function, fold))


def _can_fail(e: Expr, failing: Collection[Expr]) -> bool:
    """May a run refuse to compute the value, given those of its operands that it may refuse?"""
    match e:
        case Call(op=OpDef() as op):
            return op.can_fail or any(a in failing for a in e.args)
        case Tuple():
            return any(a in failing for a in e.fields)
        case TupleGetItem():
            return e.tuple_value in failing
        case _:
            return False


def _fold_call(call: Call, can_fail: bool, max_bytes: int, max_macs: int) -> Expr:
    op, args = call.op, call.args
    if not isinstance(op, OpDef) or op.has_side_effect or not _is_of_tensors(call.ty):
        return call
    if isinstance(call.ty, TensorType) and call.ty.is_static and call.ty.size == 0 and not can_fail:
        return Constant(np.zeros(call.ty.static_shape, numpy_dtype(str(call.ty.dtype))), span=call.span)
    if not all(isinstance(a, Constant) for a in args):
        return call
    if type(op).reference is OpDef.reference or size_variables(op.attributes().values()):
        return call
    nbytes, result = sum(_nbytes(a.ty) for a in args), _nbytes(call.ty)
    grows = result > max(max_bytes, 2 * nbytes) and _elements(call.ty) > sum(_elements(a.ty) for a in args)
    held = sum(_stored_bytes(cast(Constant, a)) for a in args)
    if grows or result > max(_HUGE, _WIDENING * held) or op.macs([a.ty for a in args], call.ty) > max_macs:
        return call
    if result > max_bytes and args:
        stored = unfetched(op, [cast(Constant, a) for a in args])
        if stored is not None:
            return stored
    value = apply_reference(op, [cast(Constant, a).data for a in args], call.ty)
    return _as_expr(value, call)


def unfetched(op: OpDef, args: Sequence[Constant]) -> StoredConstant | None:
    """The result of a cast to a larger type, a dequantisation, or a transpose, whose values are computed where they are
    needed; None for other operators."""
    source = args[0]
    match op:
        case Cast() if source.dtype.nbytes < dtype(op.dtype).nbytes:
            stored, wide = numpy_dtype(str(source.dtype)), numpy_dtype(op.dtype)
            return StoredConstant.widened(source, wide) if source.shape and np.can_cast(stored, wide) else None
        case Dequantize() if source.shape:
            return StoredConstant.dequantized(source, args[1].data, args[2].data, op.axis % len(source.shape))
        case Transpose() if isinstance(source, StoredConstant):
            return source.transposed(op.axes)
        case _:
            return None


def _as_expr(value: Any, call: Call) -> Expr:
    if isinstance(value, tuple):
        return Tuple(tuple([Constant(v, span=call.span) for v in value]), span=call.span)
    return Constant(value, span=call.span)


def _stored_bytes(constant: Constant) -> int:
    """The memory of a constant; a broadcast one has that of its elements that are stored."""
    if isinstance(constant, StoredConstant):
        return constant.nbytes
    data = constant.data
    return data.itemsize * math.prod([n for n, stride in zip(data.shape, data.strides, strict=True) if stride])


def _is_of_tensors(ty: Type) -> bool:
    """Is it a type of which constants can be made?"""
    return all(map(_is_of_tensors, ty.fields)) if isinstance(ty, TupleType) else isinstance(ty, TensorType)


def _elements(ty: Type) -> int:
    if isinstance(ty, TupleType):
        return sum(map(_elements, ty.fields))
    return ty.size or 0 if isinstance(ty, TensorType) else 0


def _nbytes(ty: Type) -> int:
    if isinstance(ty, TupleType):
        return sum(map(_nbytes, ty.fields))
    return ty.nbytes if isinstance(ty, TensorType) and ty.is_static else 0

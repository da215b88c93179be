"""PushElementwiseThroughConcat: elementwise operators of a concatenation move to its inputs.

An activation after a concatenation makes a kernel of the two, since fusion does not compute operands in each branch of
a concatenation. Before it, it is part of the epilogues of the inputs' producers, and the concatenation, by itself, is
written in place (`relay.lowering.buffer_aliasing`). An operator whose elements are wider than those of its operand
stays: the concatenation would be larger, and a product would not see that its data has 8 bits.
"""

from __future__ import annotations

from typing import ClassVar

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.op.base import OpDef, OpPattern, make_call
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["PushElementwiseThroughConcat"]


class PushElementwiseThroughConcat(FunctionPass):
    """f(concatenate(x, y)) = concatenate(f(x), f(y)), if heavy operators compute x and y, without other users."""

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _mapped)


def _mapped(call: Call, shared: Sharing) -> Expr:
    concat = call.args[0] if call.args else call
    if not _is_map(call) or not isinstance(concat, Call) or not is_call_of(concat, "concatenate") or shared(concat):
        return call
    if any(shared(x) or not _has_epilogue(x) for x in concat.args):
        return call
    parts = [make_call(call.operator, (x, *call.args[1:]), call.span) for x in concat.args]
    return make_call(concat.operator, parts, concat.span)


def _is_map(e: Expr) -> bool:
    """Does it map each element of its first operand independently, by the same function, to one that is no wider?"""
    if not isinstance(e, Call) or not isinstance(e.op, OpDef) or e.op.pattern > OpPattern.BROADCAST or not e.args:
        return False
    if e.dtype.bits > e.args[0].dtype.bits:
        return False
    alike = all(isinstance(a, Constant) and not a.shape for a in e.args[1:]) and not isinstance(e.args[0], Constant)
    return alike and tuple(e.args[0].shape) == tuple(e.shape) and "axis" not in e.op.attributes()


def _has_epilogue(e: Expr) -> bool:
    """Is it computed by a heavy operator, or by elementwise operators after one?"""
    while isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.pattern <= OpPattern.BROADCAST and e.args:
        if tuple(e.args[0].shape) != tuple(e.shape):
            return False
        e = e.args[0]
    return isinstance(e, Call) and isinstance(e.op, OpDef) and e.op.pattern == OpPattern.OUT_FUSABLE

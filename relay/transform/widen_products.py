"""WidenProducts: products of half-precision data in float32, on processors that multiply in float32 anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.dense import BatchMatmul
from relayc.relay.pattern import Found, PatternRule, is_op, rewrite, wildcard
from relayc.relay.transform.builders import NARROW, is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext
from relayc.topi.cpu.tiling import reads_in_place

__all__ = ["WidenProducts"]


@dataclass(frozen=True)
class WidenProducts(FunctionPass):
    """`nn.batch_matmul` of float16 or bfloat16 data becomes one of float32 between casts.

    Accumulation is in float32 as before; operands are converted once, while they are packed, and not at each use. A
    softmax whose only user is such a product is not rounded in between. Operands that a few rows read in place, once,
    keep their type, as does a constant matrix: its cost is memory bandwidth.
    """

    target: Target
    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([NarrowProduct(self.target)], function)


class NarrowProduct(PatternRule):
    """batch_matmul(x, y) = cast(batch_matmul(cast(x), cast(y)))"""

    x, y = wildcard(), wildcard()
    pattern = is_op("nn.batch_matmul")(x, y)

    def __init__(self, target: Target) -> None:
        self.target = target

    def replace(self, call: Call, found: Found) -> Expr | None:
        operands, op = (found[self.x], found[self.y]), call.op
        assert isinstance(op, BatchMatmul)
        if any(e.dtype not in NARROW for e in operands) or (_is_matrix(operands[1]) and not op.transpose_a):
            return None
        rows, columns, steps = *call.shape[-2:], operands[0].shape[-2 if op.transpose_a else -1]
        if reads_in_place(self.target, rows, columns, steps, op.transpose_a, op.transpose_b):
            return None
        wide = [_widened(e, found.shared) for e in operands]
        product = make_call(op.replace(out_dtype=None), wide, call.span)
        return product if call.dtype == "float32" else make_call("cast", (product,), call.span, dtype=str(call.dtype))


def _is_matrix(e: Expr) -> bool:
    return isinstance(e, Constant) and len(e.shape) == 2


def _widened(e: Expr, shared: Sharing) -> Expr:
    """`e` in float32; a softmax with this use alone computes float32 itself."""
    if isinstance(e, Call) and is_call_of(e, "nn.softmax") and not shared(e):
        return make_call(e.operator, (_cast(e.args[0]),), e.span)
    return _cast(e)


def _cast(e: Expr) -> Expr:
    return make_call("cast", (e,), e.span, dtype="float32")

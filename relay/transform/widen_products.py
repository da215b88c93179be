"""WidenProducts: products of half-precision data in float32, on processors that multiply in float32 anyway."""

from __future__ import annotations

from typing import ClassVar

from relay.expr import Call, Constant, Expr, Function
from relay.expr_functor import Sharing
from relay.op.base import make_call
from relay.op.nn.dense import BatchMatmul
from relay.pattern import Found, PatternRule, is_op, rewrite, wildcard
from relay.transform.builders import NARROW, is_call_of
from relay.transform.function_pass import FunctionPass
from te.ir import PassContext

__all__ = ["WidenProducts"]


class WidenProducts(FunctionPass):
    """`nn.batch_matmul` of float16 or bfloat16 data becomes one of float32 between casts.

    The sums are of float32 as before; operands are converted once, while they are packed, and not at each use. What a
    softmax gives for such a product alone is not rounded in between. Constant operands stay narrow: weights that are
    read once cost what they weigh.
    """

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([NarrowProduct()], function)


class NarrowProduct(PatternRule):
    """batch_matmul(x, y) = cast(batch_matmul(cast(x), cast(y)))"""

    x, y = wildcard(), wildcard()
    pattern = is_op("nn.batch_matmul")(x, y)

    def replace(self, call: Call, found: Found) -> Expr | None:
        operands = (found[self.x], found[self.y])
        if any(e.dtype not in NARROW or isinstance(e, Constant) for e in operands):
            return None
        assert isinstance(call.op, BatchMatmul)
        wide = [_widened(e, found.shared) for e in operands]
        product = make_call(call.op.replace(out_dtype=None), wide, call.span)
        return product if call.dtype == "float32" else make_call("cast", (product,), call.span, dtype=str(call.dtype))


def _widened(e: Expr, shared: Sharing) -> Expr:
    """`e` in float32; a softmax for this use alone gives float32 itself."""
    if isinstance(e, Call) and is_call_of(e, "nn.softmax") and not shared(e):
        return make_call(e.op, (_cast(e.args[0]),), e.span)  # type: ignore[arg-type]
    return _cast(e)


def _cast(e: Expr) -> Expr:
    return make_call("cast", (e,), e.span, dtype="float32")

"""FoldQuantizationScales: folds quantisation parameters into norms and softmax of rows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.op import broadcast
from relayc.relay.op.nn.norm import LayerNorm, RMSNorm, Softmax
from relayc.relay.transform.builders import is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["FoldQuantizationScales"]

_MOST_BITS = 16
"""Maximum bits of integers whose sums float32 holds accurately, whatever their zero point."""
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""Least and greatest positive normal float32."""


class FoldQuantizationScales(FunctionPass):
    """A layer norm needs neither scale nor zero point of its quantised input; the scale of its output goes into its
    weights.

    layer_norm(s (x - z)) with epsilon is layer_norm(x) with epsilon / s^2, for quantised x and s > 0; softmax(s (x -
    z)) is softmax(s x). norm(x, g, b) / t is norm(x, g / t, b / t), for constants g and b, and softmax(x) / t is
    softmax(x) (1 / t): results are rounded anyway, so one rounding more or less is harmless. What a scale
    would take beyond the range of float32 stays.
    """

    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _folded)


def _folded(call: Call, shared: Sharing) -> Expr:
    if isinstance(call.op, LayerNorm):
        return _norm_of_quantized(call)
    if isinstance(call.op, Softmax):
        return _softmax_of_quantized(call)
    return _behind(call, shared) if is_call_of(call, "divide") else call


def _norm_of_quantized(call: Call) -> Expr:
    data, *weights = call.args
    scaled = _affine(data)
    if scaled is None:
        return call
    quantized, scale = scaled
    given = float(call.operator.attributes()["epsilon"])
    epsilon = given / scale**2
    if given > 0 and not _LEAST <= epsilon <= _MOST:
        return call
    return Call(call.operator.replace(epsilon=epsilon), (quantized, *weights), span=call.span)


def _softmax_of_quantized(call: Call) -> Expr:
    scaled = _affine(call.args[0])
    if scaled is None or not is_call_of(call.args[0], "multiply"):
        return call
    quantized, scale = scaled
    if scale * 2**_MOST_BITS > _MOST:
        return call  # s x could be infinite where s (x - z) is not, as in scores with the lowest floats of a mask
    return Call(
        call.operator, (broadcast.multiply(quantized, Constant(np.asarray(scale, np.float32))),), span=call.span
    )


def _affine(e: Expr) -> tuple[Expr, float] | None:
    """(x, s) if `e` is s (x - z), with quantised values x as floats and s > 0; None otherwise, and for x itself."""
    scale, given = 1.0, e
    while isinstance(e, Call) and is_call_of(e, "multiply", "subtract"):
        number = _number(e.args[1])
        if number is None or (is_call_of(e, "multiply") and not number > 0):
            return None
        scale *= number if is_call_of(e, "multiply") else 1
        e = e.args[0]
    if e is given or e.ty is not given.ty or e.dtype != "float32" or not is_call_of(e, "cast"):
        return None
    assert isinstance(e, Call)
    of = e.args[0].tensor_type.dtype
    return (e, scale) if not of.is_float and of.bits <= _MOST_BITS else None


def _behind(call: Call, shared: Sharing) -> Expr:
    """A norm or softmax divided by a scalar."""
    made, number = call.args[0], _number(call.args[1])
    if not number or not isinstance(made, Call) or shared(made) or made.ty is not call.ty or call.dtype != "float32":
        return call
    if isinstance(made.op, Softmax):
        return broadcast.multiply(made, Constant(np.asarray(1 / number, np.float32)))
    data, *weights = made.args
    if not isinstance(made.op, LayerNorm | RMSNorm) or not all(isinstance(w, Constant) for w in weights):
        return call
    divided = [Constant(w.data / np.float32(number)) for w in weights if isinstance(w, Constant)]
    return Call(made.op, (data, *divided), span=made.span)


def _number(e: Expr) -> float | None:
    return float(e.data.item()) if isinstance(e, Constant) and e.shape == () else None

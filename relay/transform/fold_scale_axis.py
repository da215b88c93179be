"""FoldScaleAxis: folds factors per channel into the weights of the convolution or dense layer before or after them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.dense import Dense
from relayc.relay.pattern import Found, Pattern, PatternRule, is_constant, is_op, rewrite, wildcard
from relayc.relay.stored import StoredConstant
from relayc.relay.transform.builders import array_of, is_call_of
from relayc.relay.transform.function_pass import FunctionPass
from relayc.te.ir import PassContext

__all__ = ["FoldScaleAxis", "per_output_channel"]

_CONVOLUTIONS = (Conv1D, Conv2D, Conv3D)


class FoldScaleAxis(FunctionPass):
    """conv(x, w) * s = conv(x, w * s) and conv(x * s, w) = conv(x, w * s) for constants w, and s constant per channel.

    A bias in between is scaled too: (conv(x, w) + b) * s = conv(x, w * s) + b * s. Divisions by s and subtractions of
    b, as in decomposed batch norms, are first rewritten to this form. Values that are used elsewhere as well are left
    alone. So batch norms (after SimplifyInference) after convolutions leave only a bias.
    """

    opt_level: ClassVar[int] = 3

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([rule() for rule in RULES], function)


def _layer() -> Pattern:
    return is_op(*_CONVOLUTIONS, Dense)(wildcard(), is_constant())


def _scaled(layer: Call, scale: np.ndarray[Any, Any], output: bool) -> Constant:
    """The layer's weights times `scale` along their output (input) channels."""
    weight = layer.args[1]
    assert isinstance(weight, Constant)
    return StoredConstant.scaled(weight, scale, _weight_axis(layer, output))


class InverseAfter(PatternRule):
    """conv(x, w) / s = conv(x, w) * (1 / s) and conv(x, w) - b = conv(x, w) + -b, also after a bias"""

    layer = _layer()
    number = is_constant()
    pattern = is_op("divide", "subtract")(layer | is_op("add")(layer, is_constant()), number)

    def replace(self, call: Call, found: Found) -> Expr | None:
        layer, number = found.call(self.layer), array_of(found[self.number])
        if per_output_channel(layer, found[self.number]) is None or layer.ty is not call.ty or not call.dtype.is_float:
            return None
        if is_call_of(call, "subtract"):
            return make_call("add", (call.args[0], Constant(-number)), call.span)
        with np.errstate(all="ignore"):
            inverse = np.divide(1, number).astype(number.dtype)
        if not np.isfinite(inverse).all():
            return None
        return make_call("multiply", (call.args[0], Constant(inverse)), call.span)


class ScaleAfter(PatternRule):
    """conv(x, w) * s = conv(x, w * s)"""

    layer = _layer()
    scale = is_constant()
    pattern = is_op("multiply")(layer, scale)

    def replace(self, call: Call, found: Found) -> Expr | None:
        layer = found.call(self.layer)
        scale = per_output_channel(layer, found[self.scale])
        if scale is None or found.shared(layer) or layer.ty is not call.ty:
            return None
        return make_call(layer.operator, (layer.args[0], _scaled(layer, scale, output=True)), layer.span)


class ScaleAfterBias(PatternRule):
    """(conv(x, w) + b) * s = conv(x, w * s) + b * s"""

    layer = _layer()
    bias, scale = is_constant(), is_constant()
    sum = is_op("add")(layer, bias)
    pattern = is_op("multiply")(sum, scale)

    def replace(self, call: Call, found: Found) -> Expr | None:
        layer, total = found.call(self.layer), found.call(self.sum)
        scale = per_output_channel(layer, found[self.scale])
        shared = found.shared(layer) or found.shared(total)
        if scale is None or shared or layer.ty is not call.ty or total.ty is not call.ty:
            return None
        weight = _scaled(layer, scale, output=True)
        bias = Constant(np.multiply(array_of(found[self.bias]), array_of(found[self.scale])))
        scaled = make_call(layer.operator, (layer.args[0], weight), layer.span)
        return make_call("add", (scaled, bias), total.span)


class BiasAfterBias(PatternRule):
    """(conv(x, w) + a) + b = conv(x, w) + (a + b)"""

    layer = _layer()
    a, b = is_constant(), is_constant()
    sum = is_op("add")(layer, a)
    pattern = is_op("add")(sum, b)

    def replace(self, call: Call, found: Found) -> Expr | None:
        layer, total = found.call(self.layer), found.call(self.sum)
        vectors = [per_output_channel(layer, found[p]) for p in (self.a, self.b)]
        if any(v is None for v in vectors) or found.shared(total) or layer.ty is not call.ty:
            return None
        bias = Constant(np.add(array_of(found[self.a]), array_of(found[self.b])))
        return make_call("add", (layer, bias), total.span)


class ScaleBefore(PatternRule):
    """conv(x * s, w) = conv(x, w * s); padding stays zero"""

    x, scale, weight = wildcard(), is_constant(), is_constant()
    product = is_op("multiply")(x, scale)
    pattern = is_op(*_CONVOLUTIONS, Dense)(product, weight)

    def replace(self, call: Call, found: Found) -> Expr | None:
        product = found.call(self.product)
        grouped = getattr(call.op, "groups", 1) != 1
        if grouped or found.shared(product) or found[self.x].ty is not product.ty:
            return None
        axis = _data_axis(call)
        scale = _along_axis(array_of(found[self.scale]), len(product.shape), axis, product.shape[axis])
        if scale is None:
            return None
        weight = _scaled(call, scale, output=False)
        return make_call(call.operator, (found[self.x], weight), call.span)


def _data_axis(layer: Call) -> int:
    """The channel dimension of a layer's data and result."""
    if is_call_of(layer, "nn.dense"):
        return len(layer.shape) - 1
    return expect_op(layer, *_CONVOLUTIONS).data_layout.index("C")


def _weight_axis(layer: Call, output: bool) -> int:
    """The dimension of the output (input) channels in a layer's weights."""
    if is_call_of(layer, "nn.dense"):
        return 0 if output else 1
    return expect_op(layer, *_CONVOLUTIONS).kernel_layout.index("O" if output else "I")


def per_output_channel(layer: Call, constant: Expr) -> np.ndarray[Any, Any] | None:
    """A constant operand added to or multiplied with a layer's result as a vector over channels; None if it varies
    otherwise."""
    axis = _data_axis(layer)
    return _along_axis(array_of(constant), len(layer.shape), axis, layer.shape[axis])


def _along_axis(data: np.ndarray[Any, Any], rank: int, axis: int, size: object) -> np.ndarray[Any, Any] | None:
    """`data`, broadcast to `rank` dimensions, as a vector along `axis`; None if it has another size there, or varies
    along another one."""
    if data.ndim > rank or not isinstance(size, int):
        return None
    shape = (*[1] * (rank - data.ndim), *data.shape)
    if any(d not in ((1, size) if a == axis else (1,)) for a, d in enumerate(shape)):
        return None
    return np.broadcast_to(data.reshape(-1), (size,))


RULES: tuple[type[PatternRule], ...] = (InverseAfter, ScaleAfter, ScaleAfterBias, BiasAfterBias, ScaleBefore)

"""FakeQuantizationToInteger: computations between dequantisation and quantisation become computations on quantised
values.

Models are quantised by surrounding operators with `qnn.dequantize` and `qnn.quantize`. Left alone, they would run in
floats, with the conversions on top. The pass does the following instead (TVM:
`relay.transform.FakeQuantizationToInteger`):

- Products and convolutions of dequantised data with dequantised weights accumulate products of integers; one
  multiplication dequantises the sum. Sums of grouped convolutions are carried in float32, as long as it holds them
  exactly, and so are those of convolutions that Winograd's algorithm computes faster than integers, up to its rounding.
- The following operators up to `qnn.quantize` (biases, activations, sums of two tensors, means) are computed in units
  of its scale, so that nothing is divided, and rounded to an integer once.
- Operators that only move, concatenate or select values work on quantised values; the rounding of a concatenated tensor
  moves to its inputs, if these are quantised with other scales or are results of products.
- Values quantised to signed integers are quantised to unsigned ones, as 8-bit products require, and flipped where other
  operators read them.

A result may differ by one step of its scale from that of the original model: sums are exact here, and scales are
multiplied in another order (docs/decisions/0028-quantised-graphs.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relayc.backend.target import Target
from relayc.relay.expr import Call, Constant, Expr, Function, const
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.interpreter import apply_reference
from relayc.relay.op import broadcast, elementwise
from relayc.relay.op.base import OpDef, make_call
from relayc.relay.op.elementwise import Clip
from relayc.relay.op.nn.bias import BiasAdd
from relayc.relay.op.nn.conv import Conv1D, Conv2D, Conv3D
from relayc.relay.op.nn.dense import Dense
from relayc.relay.op.nn.pad import Pad
from relayc.relay.op.qnn import Dequantize, Quantize, flipped, quantized, unflipped
from relayc.relay.op.transform import Transpose
from relayc.relay.stored import StoredConstant, fetched
from relayc.relay.transform.builders import array_of, is_call_of
from relayc.relay.transform.fold_constant import unfetched
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.winograd import winograd_shape, winograd_tiles
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.ir import PassContext
from relayc.topi.cpu.convolution.winograd_plan import winograd_pays
from relayc.topi.cpu.tiling import has_amx, has_byte_products
from relayc.topi.layout import Layout
from relayc.topi.nn.winograd import WINOGRAD_FILTERS

__all__ = ["FakeQuantizationToInteger"]

Array = np.ndarray[Any, Any]

_DATA_MOVEMENT = ("reshape", "transpose", "strided_slice", "squeeze", "expand_dims", "nn.max_pool", "copy")
"""Operators of one input whose results are values of it, so that they apply to quantised values."""
_LINEAR = ("mean", "nn.avg_pool", "nn.adaptive_avg_pool")
"""Operators of one input that are linear."""
_EXACT_FLOATS = 1 << 24
"""The largest integer up to which float32 represents all integers exactly."""
_LARGEST_SUM = 1 << 31
"""Sums below this fit into int32."""
_FEWEST_CHANNELS = 4
"""Minimum channels of a convolution that is computed in integers, unless processors have 4-way dot products."""
_INTEGERS_GAIN, _VNNI_GAIN, _AMX_GAIN = 1.6, 3.2, 10.0
"""Assumed speed of integer products relative to float32: they are 1.4 to 2.1 times as fast (AVX2), four times with
4-way dot products (VNNI), ten to twelve times with those of tiles (AMX)."""
_EXACT_UNITS = 1 << 30
"""Units below this, plus a zero point, fit into int32."""


@dataclass(frozen=True)
class FakeQuantizationToInteger(FunctionPass):
    """Dequantised operands and quantised results become integer arithmetic; see the module's docstring."""

    target: Target
    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _Rewriter(self.target, winograd_tiles(context)).rewrite)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of quantised values: integers `sums`, in int32 or carried in float32, times `scales`, the product of
    both scales.

    `bound` is an upper bound of the magnitude of the sums: one for all, or one per output like `scales`; both broadcast
    with sums.
    """

    result: Call
    sums: Expr
    scales: Array
    bound: Array


@dataclass(frozen=True, slots=True)
class _Units:
    """Floats in units of a scale, of magnitudes up to `bound`."""

    value: Expr
    bound: float


@dataclass(eq=False, slots=True)
class _Part:
    """A part of an expression that is wanted in units of `scale`.

    `into` is the type whose saturation clips its values; None where they are summed with others before.
    """

    e: Expr
    scale: float
    into: _Quantized | None
    units: _Units | None = None
    """known at once of what is computed without other parts"""
    operands: Sequence[_Part] = ()


class _Rewriter:
    """Rewrites calls bottom-up; remembers which results are products of quantised values."""

    def __init__(self, target: Target, tiles: frozenset[int]) -> None:
        self.target = target
        self.winograd_tiles = tiles
        self.products: dict[int, _Product] = {}

    def rewrite(self, call: Call, shared: Sharing) -> Expr:
        match call.op:
            case Quantize() if all(isinstance(a, Constant) for a in call.args):
                return _value(call)  # weights that the model keeps in floats
            case Quantize():
                return self._quantize(call, call.op, shared)
            case Dequantize():
                return _of_unsigned(call)
            case Conv1D() | Conv2D() | Conv3D():
                return self._convolution(call, call.op)
            case Dense():
                return self._dense(call)
            case BiasAdd() if id(call.args[0]) in self.products:
                return _biased(call, call.op)
            case _ if is_call_of(call, "concatenate"):
                return _concatenated(call)
            case _ if is_call_of(call, *_DATA_MOVEMENT, "take") or _pads_with_zero(call):
                return _move(call)
            case _:
                return call

    # products -------------------------------------------------------------------------------------------------------

    def _dense(self, call: Call) -> Expr:
        weights = _weights(call, 0)
        if weights is None:
            return call
        return self._product(call, weights, sum_axes=(1,), outputs=len(call.shape) - 1)

    def _convolution(self, call: Call, op: Conv1D | Conv2D | Conv3D) -> Expr:
        kernel = Layout(op.kernel_layout)
        outputs = kernel.index("O")
        weights = _weights(call, outputs)
        if weights is None:
            return call
        axes = tuple([a for a in range(kernel.ndim) if a != outputs])
        largest = None
        few = call.args[1].shape[kernel.index("I")] < _FEWEST_CHANNELS and not has_byte_products(self.target)
        if op.groups > 1 or few:
            largest = _EXACT_FLOATS
        elif isinstance(op, Conv2D) and self._winograd_pays(call, op):
            largest = _LARGEST_SUM
        return self._product(call, weights, axes, Layout(op.data_layout).index("C"), largest)

    def _winograd_pays(self, call: Call, op: Conv2D) -> bool:
        shape = winograd_shape(call, op)
        tiles = [] if shape is None else [m for m in WINOGRAD_FILTERS.get(shape.kernel, ()) if m in self.winograd_tiles]
        gain = _VNNI_GAIN if has_byte_products(self.target) else _INTEGERS_GAIN
        if has_amx(self.target):
            gain = _AMX_GAIN
        return shape is not None and bool(tiles) and winograd_pays(self.target, shape, tiles, gain) is not None

    def _product(
        self, call: Call, weights: tuple[Constant, Array], sum_axes: tuple[int, ...], outputs: int,
        largest: int | None = None,
    ) -> Expr:  # fmt: skip
        """`call` as a product of quantised values; `outputs` is the axis of the result along which the weights' scales
        vary.

        With `largest` the sums are carried in float32, and must be below it.
        """
        data = _dequantized(call.args[0])
        assert data is not None
        integers, scale, zero = data
        weight, weight_scales = weights
        centred = fetched(weight)
        shape = [-1 if a == outputs else 1 for a in range(len(call.shape))]
        limits = np.iinfo(str(integers.dtype))
        reach = max(limits.max - zero, zero - limits.min)
        if centred.size == 0:
            return call
        most = max(-int(centred.min()), int(centred.max())) * math.prod([centred.shape[a] for a in sum_axes])
        bound = np.full((1,) * len(shape), most * reach)
        if most * reach >= (largest or _LARGEST_SUM):
            bound = np.abs(centred.astype(np.int16)).sum(sum_axes, dtype=np.int64).reshape(shape) * reach
            if bound.max() >= (largest or _LARGEST_SUM):
                return call
        wide = "int32" if largest is None else "float32"
        operand = elementwise.cast(integers, wide)
        operand = broadcast.subtract(operand, const(zero, wide)) if zero else operand
        sums = make_call(call.operator, (operand, StoredConstant.widened(weight, np.dtype(wide))), call.span)
        scales = (weight_scales.astype(np.float64) * scale).reshape(shape if weight_scales.ndim else ())
        result = broadcast.multiply(_as_floats(sums), Constant(scales.astype(np.float32)))
        self.products[id(result)] = _Product(result, sums, scales, bound)
        return result

    # results --------------------------------------------------------------------------------------------------------

    def _quantize(self, call: Call, op: Quantize, shared: Sharing) -> Expr:
        """Quantised values; of a concatenation, or several inside each other, that of quantised operands."""
        if not _is_known(call):
            return call
        scale = array_of(call.args[1])
        if scale.size != 1 or not np.isfinite(scale).all() or scale.item() <= 0:
            return call
        order, parts = [call], dict[int, list[Call]]()
        for whole in order:  # grows
            joined = whole.args[0]
            if isinstance(joined, Call) and is_call_of(joined, "concatenate") and not shared(joined):
                parts[id(whole)] = [make_call(op, (x, *call.args[1:]), call.span) for x in joined.args]
                order += parts[id(whole)]
        done = dict[int, Expr]()
        for whole in reversed(order):
            inside = parts.get(id(whole))
            done[id(whole)] = (
                self._quantize_value(whole, op, shared) if inside is None
                else _joined(whole, inside, [done[id(part)] for part in inside])
            )  # fmt: skip
        return done[id(call)]

    def _quantize_value(self, call: Call, op: Quantize, shared: Sharing) -> Expr:
        """Quantised values of anything but a concatenation."""
        scale, zero = (array_of(e) for e in call.args[1:])
        signed = op.out_dtype == "int8"
        into = _Quantized("uint8", int(zero.item()) + 128) if signed else _Quantized(op.out_dtype, int(zero.item()))
        same = _already_quantized(call.args[0], scale.item(), (into, _Quantized(op.out_dtype, int(zero.item()))))
        if same is not None:
            return same if same.dtype == op.out_dtype else flipped(same)
        units = self._in_units(call.args[0], float(scale.item()), into, shared)
        if units is None or not math.isfinite(units.bound):
            return call
        integers = _rounded(units, into.zero, into.dtype)
        return flipped(integers) if signed else integers

    def _in_units(self, e: Expr, scale: float, into: _Quantized, shared: Sharing) -> _Units | None:
        """`e` over `scale`, computed without a division; None if it is not computed from quantised values."""
        whole = _Part(e, scale, into)
        order = [whole]
        for part in order:  # grows: operands come after what reads them
            part.units = self._known_units(part)
            if part.units is None:
                part.operands = _operand_parts(part, shared)
                if not part.operands:
                    return None
                order += part.operands
        for part in reversed(order):
            if part.units is None:
                part.units = _applied(part)
        return whole.units

    def _known_units(self, part: _Part) -> _Units | None:
        """A product, constant or dequantised tensor in units; None for anything else."""
        e, scale = part.e, part.scale
        if id(e) in self.products:
            return _product_in_units(self.products[id(e)], scale)
        if isinstance(e, Call) and isinstance(e.op, Dequantize) and isinstance(e.args[0], Constant) and _is_known(e):
            e = _value(e)
        if isinstance(e, Constant):
            units = e.data.astype(np.float64) / scale
            return _Units(Constant(units.astype(np.float32)), float(np.abs(units).max(initial=0.0)))
        source = _dequantized(e)
        return None if source is None else _quantized_in_units(source, scale)


def _operand_parts(part: _Part, shared: Sharing) -> list[_Part]:
    """What an operator's result in units is computed from; nothing if it isn't."""
    e = part.e
    if not isinstance(e, Call) or shared(e):
        return []
    if is_call_of(e, "multiply"):
        return _multiple(part, e)
    if not _is_understood(e) or all(isinstance(a, Constant) for a in e.args):
        return []
    clipped = None if is_call_of(e, "add", "subtract", *_LINEAR) else part.into
    return [_Part(a, part.scale, clipped) for a in e.args]


def _multiple(part: _Part, e: Call) -> list[_Part]:
    """The factor of `e` that is no positive number, in units that make up for the number."""
    for factor, other in (e.args, e.args[::-1]):
        value = factor
        if isinstance(factor, Call) and isinstance(factor.op, Dequantize) and isinstance(factor.args[0], Constant):
            value = _value(factor) if _is_known(factor) else factor
        if isinstance(value, Constant) and value.data.size == 1 and value.data.ndim <= len(other.shape):
            number = float(value.data.item())
            return [_Part(other, part.scale / number, part.into)] if 0 < number < math.inf else []
    return []


@dataclass(frozen=True, slots=True)
class _Quantized:
    """The quantised type that floats will be rounded to."""

    dtype: str
    zero: int

    def saturates(self, low: float | None, high: float | None) -> bool:
        """Is clipping units to [low, high] implied by saturation?"""
        limits = np.iinfo(self.dtype)
        below = low is None or low + self.zero <= limits.min + _ALMOST_HALF
        return below and (high is None or high + self.zero >= limits.max - _ALMOST_HALF)


_ALMOST_HALF = 0.499
"""A limit inside the quantised range by no more than this is rounded to its end."""


def _already_quantized(values: Expr, scale: float, meanings: Sequence[_Quantized]) -> Expr | None:
    """The quantised values that `values`, or those above 0, already represent under one of these parameters; None
    otherwise."""
    relu = values if isinstance(values, Call) and is_call_of(values, "nn.relu") else None
    source = _dequantized(values if relu is None else relu.args[0])
    if source is None or source[1] != scale or _Quantized(str(source[0].dtype), source[2]) not in meanings:
        return None
    integers, _, zero = source
    return broadcast.maximum(integers, const(zero, integers.dtype)) if relu is not None else integers


def _is_understood(e: Call) -> bool:
    return is_call_of(e, "add", "subtract", "nn.relu", "clip", *_LINEAR, *_DATA_MOVEMENT) or _pads_with_zero(e)


def _pads_with_zero(e: Call) -> bool:
    """Does it only move values, and pad with zeros?"""
    return isinstance(e.op, Pad) and (e.op.pad_mode != "constant" or e.op.pad_value == 0)


def _applied(part: _Part) -> _Units:
    """The operator of a part applied to its operands in units."""
    e, into, scale = part.e, part.into, part.scale
    parts = [operand.units for operand in part.operands if operand.units is not None]
    assert isinstance(e, Call) and len(parts) == len(part.operands)
    if is_call_of(e, "multiply"):
        return parts[0]
    values = [p.value for p in parts]
    if is_call_of(e, "nn.relu"):
        saturated = into is not None and into.saturates(0.0, None)
        return parts[0] if saturated else _Units(make_call("nn.relu", values, e.span), parts[0].bound)
    if isinstance(e.op, Clip):
        low, high = (None if limit is None else limit / scale for limit in (e.op.a_min, e.op.a_max))
        if into is not None and into.saturates(low, high):
            return parts[0]
        bound = max(parts[0].bound, *[abs(limit) for limit in (low, high) if limit is not None])
        return _Units(elementwise.clip(values[0], low, high), bound)
    return _Units(make_call(e.operator, values, e.span), sum(p.bound for p in parts))


def _joined(call: Call, parts: Sequence[Call], integers: Sequence[Expr]) -> Expr:
    """The quantised concatenation `call`, of quantised `parts`, computed from `integers` if some of them profit."""
    concatenated = call.args[0]
    assert isinstance(concatenated, Call)
    if all(quantized_part is part for quantized_part, part in zip(integers, parts, strict=True)):
        return call
    unsigned = [x for x in map(unflipped, integers) if x is not None]
    if len(unsigned) == len(integers):
        return flipped(make_call(concatenated.operator, unsigned, concatenated.span))
    return make_call(concatenated.operator, integers, concatenated.span)


def _product_in_units(product: _Product, scale: float) -> _Units:
    factors = product.scales / scale
    value = broadcast.multiply(_as_floats(product.sums), Constant(factors.astype(np.float32)))
    return _Units(value, float((np.abs(factors) * product.bound).max()))


def _quantized_in_units(source: tuple[Expr, float, int], scale: float) -> _Units:
    integers, own, zero = source
    factor = own / scale
    units = broadcast.multiply(elementwise.cast(integers, "float32"), const(np.float32(factor)))
    if zero:
        units = broadcast.add(units, const(np.float32(-zero * factor)))
    return _Units(units, factor * 2 * np.iinfo(str(integers.dtype)).max)


def _as_floats(sums: Expr) -> Expr:
    return sums if sums.dtype == "float32" else elementwise.cast(sums, "float32")


def _rounded(units: _Units, zero: int, dtype: str) -> Expr:
    """Units rounded to quantised values.

    Those that fit into int32 are converted before they are clipped: fewer instructions.
    """
    if units.bound >= _EXACT_UNITS:
        return quantized(units.value, const(float(zero), "float32"), dtype)
    whole = elementwise.cast(elementwise.round(units.value), "int32")
    whole = broadcast.add(whole, const(zero, "int32")) if zero else whole
    limits = parse_dtype(dtype)
    return elementwise.cast(elementwise.clip(whole, float(limits.min_value()), float(limits.max_value())), dtype)


# operands -----------------------------------------------------------------------------------------------------------


def _is_known(call: Call) -> bool:
    """Are scale and zero point constants?"""
    return all(isinstance(a, Constant) for a in call.args[1:])


def _dequantized(e: Expr) -> tuple[Expr, float, int] | None:
    """(8-bit values, scale, zero point) of dequantised data with one scale; None for other expressions."""
    if not isinstance(e, Call) or not isinstance(e.op, Dequantize) or not _is_known(e) or e.args[0].dtype.bits != 8:
        return None
    scale, zero = (array_of(a) for a in e.args[1:])
    known = scale.size == 1 and np.isfinite(scale).all() and scale.item() > 0
    return (e.args[0], float(scale.item()), int(zero.item())) if known else None


def _weights(call: Call, outputs: int) -> tuple[Constant, Array] | None:
    """(values less their zero points, scales) of constant weights with one scale, or one for each output.

    None for other weights, and if the data are not quantised.
    """
    weight = call.args[1]
    if _dequantized(call.args[0]) is None or not isinstance(weight, Call) or not isinstance(weight.op, Dequantize):
        return None
    integers, scale, zero = weight.args
    if not isinstance(integers, Constant) or not _is_known(weight) or integers.dtype.bits != 8:
        return None
    if not np.isfinite(array_of(scale)).all():
        return None
    rank = len(integers.shape)
    if array_of(scale).ndim and weight.op.axis % rank != outputs:
        return None
    shape = [-1 if a == outputs else 1 for a in range(rank)] if array_of(zero).ndim else []
    if not array_of(zero).any():
        return integers, array_of(scale)
    centred = fetched(integers).astype(np.int16) - array_of(zero).astype(np.int16).reshape(shape)
    return Constant(centred, span=weight.span), array_of(scale)


def _of_unsigned(call: Call) -> Expr:
    """A Dequantize of signed values that are flipped unsigned ones, as a Dequantize of the unsigned ones."""
    source = unflipped(call.args[0])
    if source is None or source.dtype != "uint8" or not _is_known(call):
        return call
    scale, zero = call.args[1:]
    moved = Constant((array_of(zero).astype(np.int16) + 128).astype(np.uint8))
    return make_call(call.operator, (source, scale, moved), call.span)


def _concatenated(call: Call) -> Expr:
    """A concatenation of dequantised tensors of one scale and zero point, as a dequantised concatenation."""
    first = call.args[0]
    sources = [(x, _dequantized(x)) for x in call.args]
    meanings = {None if found is None else (found[0].dtype, *found[1:]) for _, found in sources}
    if len(meanings) > 1 or None in meanings:
        return call
    assert isinstance(first, Call)
    integers = make_call(call.operator, [found[0] for _, found in sources if found is not None], call.span)
    return make_call(first.operator, (integers, *first.args[1:]), call.span)


def _biased(call: Call, op: BiasAdd) -> Expr:
    """The bias of a product as a constant that is added to it."""
    product, bias = call.args
    if isinstance(bias, Call) and isinstance(bias.op, Dequantize) and all(isinstance(a, Constant) for a in bias.args):
        bias = _value(bias)
    if not isinstance(bias, Constant):
        return call
    behind = [1] * (len(call.shape) - 1 - op.axis % len(call.shape))
    return broadcast.add(product, Constant(array_of(bias).reshape(-1, *behind), span=bias.span))


def _move(call: Call) -> Expr:
    """An operator that moves or selects values, applied to quantised values; several scales stay with their axis."""
    source = call.args[0]
    if not isinstance(source, Call) or not isinstance(source.op, Dequantize) or not _is_known(source):
        return call
    if source.args[0].dtype.bits != 8:
        return call
    integers, *parameters = source.args
    op = source.op
    if array_of(parameters[0]).ndim:
        if not isinstance(call.op, Transpose):
            return call
        op = op.replace(axis=call.op.axes.index(op.axis % len(integers.shape)))
    elif not (array_of(parameters[0]) > 0).all():
        return call
    moving = call.operator
    if isinstance(moving, Pad) and moving.pad_mode == "constant":
        moving = moving.replace(pad_value=float(array_of(parameters[1]).item()))
    moved = make_call(moving, (integers, *call.args[1:]), call.span)
    if all(isinstance(a, Constant) for a in moved.args):
        return make_call(op, (_value(moved), *parameters), call.span)
    return make_call(op, (moved, *parameters), call.span)


def _value(call: Call) -> Constant:
    """The value of a call of constants."""
    args = [a for a in call.args if isinstance(a, Constant)]
    assert isinstance(call.op, OpDef) and len(args) == len(call.args)
    stored = unfetched(call.op, args)
    if stored is not None:
        return stored
    return Constant(apply_reference(call.op, [a.data for a in args], call.ty), span=call.span)

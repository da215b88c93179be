"""SimplifyExpr: algebraic simplification. One rule per identity; each docstring is the rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.interpreter import apply_reference
from relayc.relay.op.base import OpDef, OpPattern, make_call
from relayc.relay.op.transform import StridedSlice
from relayc.relay.pattern import Found, PatternRule, is_constant, is_op, rewrite, wildcard
from relayc.relay.sizes import add_sizes, dims_equal
from relayc.relay.transform.builders import array_of, is_call_of, keeps_order, reshaped
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.transform.limit_parts import MOST_PARTS
from relayc.relay.transform.repeated_operands import RULES_OF_REPETITION
from relayc.relay.type import TensorType, broadcast_shapes, shapes_equal
from relayc.te.dtype import DType
from relayc.te.ir import PassContext
from relayc.te.tir import Dim

__all__ = ["SimplifyExpr"]


class SimplifyExpr(FunctionPass):
    """Simplifies identities, views of views, transposes of transposes, casts of casts, chains of constants.

    Views (`reshape`) move behind elementwise operators, where they are free and do not prevent fusion.
    """

    opt_level: ClassVar[int] = 1

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([rule() for rule in RULES], function)


_LOOKED_AT = 4096
"""Maximum elements of a constant that are compared with a value."""


def _is_uniform(value: float) -> Callable[[Constant], bool]:
    """Is it a constant whose elements all are `value`? Large ones are not inspected."""

    def check(constant: Constant) -> bool:
        size = constant.ty.size
        if size is None or not 0 < size <= _LOOKED_AT or constant.data.dtype.kind not in "biufV":
            return False
        return constant.data.flat[0] == value and bool(np.all(constant.data == value))

    return check


def _attr(call: Call, name: str) -> Any:
    return getattr(call.op, name)


class ReshapeOfReshape(PatternRule):
    """reshape(reshape(x)) = reshape(x), and x itself when the shape is the same"""

    x = wildcard()
    inner = is_op("reshape")(x)
    pattern = is_op("reshape")(inner) | is_op("reshape")(x)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x = found[self.x]
        if x.ty is call.ty:
            return x
        return make_call(call.operator, (x,), call.span) if self.inner in found else None


class TransposeOfTranspose(PatternRule):
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""

    x = wildcard()
    inner = is_op("transpose")(x)
    pattern = is_op("transpose")(inner)

    def replace(self, call: Call, found: Found) -> Expr | None:
        first, second = _attr(found.call(self.inner), "axes"), _attr(call, "axes")
        return make_call("transpose", (found[self.x],), call.span, axes=tuple([first[a] for a in second]))


class IdentityTranspose(PatternRule):
    """transpose(x, p) = reshape(x) when p keeps the order of the dimensions greater than 1, x when p is the identity"""

    x = wildcard()
    pattern = is_op("transpose")(x)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, axes = found[self.x], _attr(call, "axes")
        if not keeps_order(axes, x.shape):
            return x if axes == tuple(range(len(axes))) else None
        return reshaped(x, call.shape, call.span)


class CastOfCast(PatternRule):
    """cast(cast(x, a), b) = cast(x, b) when a holds all values of x; cast(x, its own type) = x"""

    x = wildcard()
    inner = is_op("cast")(x)
    pattern = is_op("cast")(inner) | is_op("cast")(x)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x = found[self.x]
        if self.inner in found and not _widens(x.dtype, found[self.inner].dtype):
            return None
        if x.ty is call.ty:
            return x
        return make_call(call.operator, (x,), call.span) if self.inner in found else None


def _widens(a: DType, b: DType) -> bool:
    """Does every value of `a` exist in `b`, so that a conversion there loses nothing?"""
    if "string" in (a.code, b.code) or (a.variant and a != b and b.bits < 32):
        return False
    if a.is_bool:
        return not b.is_handle
    if a.is_float:
        return a == b or (b.is_float and b.bits > a.bits and b.code != "bfloat")
    if b.is_float:
        return {"float": {64: 53, 32: 24, 16: 11}}.get(b.code, {}).get(b.bits, 0) >= a.bits
    if a.is_uint and b.is_int:
        return b.bits > a.bits
    return a.is_int == b.is_int and b.bits >= a.bits


class NeutralOperand(PatternRule):
    """x + 0 = x * 1 = x, when the constant does not broadcast x"""

    x = wildcard()
    pattern = is_op("add")(x, is_constant(_is_uniform(0))) | is_op("multiply")(x, is_constant(_is_uniform(1)))

    def replace(self, call: Call, found: Found) -> Expr | None:
        return found[self.x] if found[self.x].ty is call.ty else None


class NeutralRightOperand(PatternRule):
    """x - 0 = x / 1 = x ** 1 = x, when the constant does not broadcast x"""

    x = wildcard()
    pattern = is_op("subtract")(x, is_constant(_is_uniform(0))) | is_op("divide", "power")(
        x, is_constant(_is_uniform(1))
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        return found[self.x] if found[self.x].ty is call.ty else None


class DivideByPowerOfTwo(PatternRule):
    """x / c = x * (1/c) for floats when 1/c is exact"""

    x, c = wildcard(), is_constant(lambda c: c.data.size == 1 and c.ty.dtype.is_float)
    pattern = is_op("divide")(x, c)

    def replace(self, call: Call, found: Found) -> Expr | None:
        c = found[self.c]
        assert isinstance(c, Constant)
        value = float(c.data.item())
        if not 2**-14 <= abs(value) <= 2**14 or abs(math.frexp(value)[0]) != 0.5:
            return None
        return make_call("multiply", (found[self.x], Constant((1 / c.data).astype(c.data.dtype))), call.span)


class ChainOfConstants(PatternRule):
    """(x + a) + b = x + (a + b), (x * a) * b = x * (a * b) for constants a, b"""

    x, a, b = wildcard(), is_constant(), is_constant()
    inner = is_op("add", "multiply")(x, a)
    pattern = is_op("add", "multiply")(inner, b)

    def replace(self, call: Call, found: Found) -> Expr | None:
        inner, x = found.call(self.inner), found[self.x]
        if inner.op != call.op or isinstance(x, Constant) or found.shared(inner):
            return None
        a, b = found[self.a], found[self.b]
        if not shapes_equal(inner.shape, call.shape) or _broadcast_size(a, b) > _MAX_CONSTANT:
            return None
        merged = apply_reference(inner.operator, (array_of(a), array_of(b)), _broadcast_type(a, b))
        if not _keeps_magnitude(inner.operator, merged, a, b):
            return None
        return make_call(call.operator, (x, Constant(merged)), call.span)


def _broadcast_type(a: Expr, b: Expr) -> TensorType:
    return TensorType(broadcast_shapes(a.shape, b.shape), a.dtype)


def _keeps_magnitude(op: OpDef, merged: np.ndarray[Any, Any], a: Expr, b: Expr) -> bool:
    """Did merging two constants neither overflow nor, in a product, underflow?"""
    if not a.dtype.is_float:
        return True
    wide, x, y = merged.astype(np.float64), array_of(a).astype(np.float64), array_of(b).astype(np.float64)
    overflow = ~np.isfinite(wide) & np.isfinite(x) & np.isfinite(y)
    underflow = (wide == 0) & (x != 0) & (y != 0) if op.name == "multiply" else np.zeros((), bool)
    return not overflow.any() and not underflow.any()


_MAX_CONSTANT = 1 << 16


def _broadcast_size(a: Expr, b: Expr) -> int:
    """Elements of two constants broadcast together."""
    return math.prod(np.broadcast_shapes(array_of(a).shape, array_of(b).shape))


class ChainOfAffine(PatternRule):
    """(x * a + b) * c = x * (a * c) + b * c for constants a, b, c"""

    x, a, b, c = wildcard(), is_constant(), is_constant(), is_constant()
    product = is_op("multiply")(x, a)
    sum = is_op("add")(product, b)
    pattern = is_op("multiply")(sum, c)

    def replace(self, call: Call, found: Found) -> Expr | None:
        a, b, c, total, product = (found[p] for p in (self.a, self.b, self.c, self.sum, self.product))
        small = max(_broadcast_size(a, c), _broadcast_size(b, c)) <= _MAX_CONSTANT
        same = product.ty is total.ty is call.ty
        if not small or not same or isinstance(found[self.x], Constant) or found.shared(total) or found.shared(product):
            return None
        scale, shift = Constant(array_of(a) * array_of(c)), Constant(array_of(b) * array_of(c))
        scaled = make_call("multiply", (found[self.x], scale), call.span)
        return make_call("add", (scaled, shift), call.span)


class ReluOfRelu(PatternRule):
    """relu(relu(x)) = relu(x)"""

    inner = is_op("nn.relu")
    pattern = is_op("nn.relu")(inner)

    def replace(self, call: Call, found: Found) -> Expr | None:
        return found[self.inner]


class ClipOfClip(PatternRule):
    """clip(clip(x, a, b), c, d) = clip(x, max(a, c), min(b, d)) when the intervals meet"""

    x = wildcard()
    inner = is_op("clip")(x)
    pattern = is_op("clip")(inner)

    def replace(self, call: Call, found: Found) -> Expr | None:
        inner = found.call(self.inner)
        low = _tightest(max, _attr(inner, "a_min"), _attr(call, "a_min"))
        high = _tightest(min, _attr(inner, "a_max"), _attr(call, "a_max"))
        if low is not None and high is not None and low > high:
            return None
        return make_call("clip", (found[self.x],), call.span, a_min=low, a_max=high)


def _tightest(choose: Callable[[float, float], float], a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else choose(a, b)


class ReshapeOfSlice(PatternRule):
    """reshape(x[..., a*k:b*k]) = reshape(x)[..., a:b, :] when the view splits the sliced last dimension by k"""

    x = wildcard()
    slice = is_op("strided_slice")(x)
    pattern = is_op("reshape")(slice)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, cut = found[self.x], found.call(self.slice)
        known = [d for d in (*x.shape[-1:], *call.shape[-2:]) if isinstance(d, int)]
        if len(known) != 3:
            return None
        (width, outer, inner), (begin, end) = known, _last_slice(cut, known[0])
        inner = max(inner, 1)
        if outer * inner != end - begin or begin % inner or width % inner:
            return None
        view = reshaped(x, (*call.shape[:-2], width // inner, inner))
        return make_call("strided_slice", (view,), cut.span, begin=(begin // inner,), end=(end // inner,), strides=(1,),
                         axes=(len(call.shape) - 2,))  # fmt: skip


def _last_slice(cut: Call, size: int) -> tuple[int, int]:
    """The part that a slice takes of the last dimension, if it cuts no other; (0, 0) otherwise."""
    begins, ends, axes = _attr(cut, "begin"), _attr(cut, "end"), _attr(cut, "axes")
    rank = len(cut.shape)
    known = len(axes) == 1 and isinstance(begins[0], int) and isinstance(ends[0], int)
    if not known or axes[0] % rank != rank - 1 or _attr(cut, "strides") != (1,):
        return 0, 0
    begin, end, _ = slice(begins[0], ends[0]).indices(size)
    return begin, end


class SliceOfEverything(PatternRule):
    """strided_slice(x) = x when it takes all elements in order"""

    x = wildcard()
    pattern = is_op("strided_slice")(x)

    def replace(self, call: Call, found: Found) -> Expr | None:
        all_forward = all(s == 1 for s in _attr(call, "strides"))
        return found[self.x] if all_forward and found[self.x].ty is call.ty else None


class SliceOfSlice(PatternRule):
    """x[a:b:s][c:d:t] = x[a + c * s:e:s * t] for slices that step forward, by one where sizes are symbolic"""

    x = wildcard()
    inner = is_op("strided_slice")(x)
    pattern = is_op("strided_slice")(inner)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, inner = found[self.x], found.call(self.inner)
        first: list[Dim] = [0] * len(x.shape)
        steps = [1] * len(x.shape)
        for cut in (inner, call):
            begin, strides, _ = cast(StridedSlice, cut.op).resolved(cut.args[0].shape)
            for a, (b, step) in enumerate(zip(begin, strides, strict=True)):
                if step != 1 and (step < 1 or not isinstance(call.shape[a], int)):
                    return None
                if steps[a] != 1 and not isinstance(b, int):
                    return None
                first[a] = add_sizes(first[a], b * steps[a] if isinstance(b, int) else b)
                steps[a] *= step
        axes = [a for a, (before, after) in enumerate(zip(x.shape, call.shape, strict=True))
                if not dims_equal(before, after) or not dims_equal(first[a], 0)]  # fmt: skip
        ends = [add_sizes(first[a], _reach(call.shape[a], steps[a])) for a in axes]
        merged = make_call("strided_slice", (x,), call.span, begin=tuple([first[a] for a in axes]), end=tuple(ends),
                           strides=tuple([steps[a] for a in axes]), axes=tuple(axes))  # fmt: skip
        return merged if merged.ty is call.ty else None


def _reach(size: Dim, step: int) -> Dim:
    """The distance from the first element to the end of the last."""
    return (size - 1) * step + 1 if isinstance(size, int) and size > 0 else size


class PadOfPad(PatternRule):
    """pad(pad(x)) with one constant = pad(x) by both widths, if neither crops"""

    x = wildcard()
    inner = is_op("nn.pad")(x).has_attr({"pad_mode": "constant"})
    pattern = is_op("nn.pad")(inner).has_attr({"pad_mode": "constant"})

    def replace(self, call: Call, found: Found) -> Expr | None:
        inner = found.call(self.inner)
        widths, more = _attr(inner, "pad_width"), _attr(call, "pad_width")
        cuts_off = any(w < 0 for pair in (*widths, *more) for w in pair)
        if _attr(inner, "pad_value") != _attr(call, "pad_value") or cuts_off:
            return None
        total = tuple([(a + c, b + d) for (a, b), (c, d) in zip(widths, more, strict=True)])
        return make_call(call.operator.replace(pad_width=total), (found[self.x],), call.span)


class ConcatenateOfOne(PatternRule):
    """concatenate(x) = x"""

    x = wildcard()
    pattern = is_op("concatenate")(x)

    def replace(self, call: Call, found: Found) -> Expr | None:
        return found[self.x]


class ConcatenateOfConcatenate(PatternRule):
    """concatenate(a, concatenate(b, c)) = concatenate(a, b, c) along one axis, for as many as one kernel joins"""

    pattern = is_op("concatenate")

    def replace(self, call: Call, found: Found) -> Expr | None:
        flat: list[Expr] = []
        for a in call.args:
            flat.extend(a.args if isinstance(a, Call) and a.op == call.op and not found.shared(a) else (a,))
        grows = len(call.args) < len(flat) <= MOST_PARTS
        return make_call(call.operator, flat, call.span) if grows else None


class ReshapeAfterUnary(PatternRule):
    """f(reshape(x)) = reshape(f(x)) for elementwise f"""

    pattern = wildcard().where(
        lambda e: isinstance(e, Call)
        and len(e.args) == 1
        and getattr(e.op, "pattern", None) == OpPattern.ELEMWISE
        and is_call_of(e.args[0], "reshape")
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        view = call.args[0]
        assert isinstance(view, Call)
        if not isinstance(call.ty, TensorType):
            return None
        moved = make_call(call.operator, view.args, call.span)
        return make_call("reshape", (moved,), view.span, newshape=call.ty.shape)


class ReshapeAfterBinary(PatternRule):
    """f(reshape(x), y) = reshape(f(x, y')) for an elementwise f

    when y is one number, runs along a last dimension that the view keeps, or has the result's shape.
    """

    pattern = is_op("add", "multiply", "maximum", "minimum", "subtract", "divide", "power")

    def replace(self, call: Call, found: Found) -> Expr | None:
        for i, view in enumerate(call.args):
            if not isinstance(view, Call) or not is_call_of(view, "reshape"):
                continue
            if view.ty is not call.ty:
                continue
            other = _before_view(call.args[1 - i], view)
            if other is None:
                continue
            x = view.args[0]
            args = (x, other) if i == 0 else (other, x)
            moved = make_call(call.operator, args, call.span)
            if moved.ty is x.ty:
                return make_call("reshape", (moved,), view.span, newshape=call.tensor_type.shape)
        return None


def _before_view(other: Expr, view: Call) -> Expr | None:
    """The operand before the view that corresponds to `other` after it; None if there is none."""
    x = view.args[0]
    if not isinstance(other.ty, TensorType):
        return None
    if other.ty.size == 1:
        return reshaped(other, ())
    if other.ty is view.ty:
        same_view = isinstance(other, Call) and is_call_of(other, "reshape") and other.args[0].shape == x.shape
        worthwhile = isinstance(other, Constant) or same_view or (_ends_heavy(x) and not _ends_heavy(other))
        return reshaped(other, x.shape) if worthwhile else None
    last = other.ty.shape[-1]
    keeps_last = x.shape[-1:] == view.shape[-1:] == (last,)
    if keeps_last and isinstance(last, int) and other.ty.size == last:
        return reshaped(other, (last,))
    return None


def _ends_heavy(e: Expr) -> bool:
    """Is `e` a contraction or elementwise work after one, where fusion would put the next operator?"""
    for _ in range(_MAX_EPILOGUE):
        if not isinstance(e, Call) or not isinstance(e.op, OpDef):
            return False
        if type(e.op).multiplications is not OpDef.multiplications:
            return True
        if e.op.pattern > OpPattern.BROADCAST or not e.args:
            return False
        e = next((a for a in e.args if a.ty is e.ty), e.args[0])
    return False


_MAX_EPILOGUE = 8


class InverseOfRoot(PatternRule):
    """divide(1, sqrt(x)) = rsqrt(x)"""

    x = wildcard()
    one = is_constant(_is_uniform(1))
    pattern = is_op("divide")(one, is_op("sqrt")(x))

    def replace(self, call: Call, found: Found) -> Expr | None:
        inverse = make_call("rsqrt", (found[self.x],), call.span)
        return inverse if inverse.ty is call.ty else None


class WhereOfKnownCondition(PatternRule):
    """where(true, x, y) = x and where(false, x, y) = y"""

    true, false = is_constant(_is_uniform(1)), is_constant(_is_uniform(0))
    pattern = is_op("where")(true, wildcard(), wildcard()) | is_op("where")(false, wildcard(), wildcard())

    def replace(self, call: Call, found: Found) -> Expr | None:
        chosen = call.args[1 if self.true in found else 2]
        return chosen if chosen.ty is call.ty else None


class CopyOf(PatternRule):
    """copy(x) = x"""

    pattern = is_op("copy")

    def replace(self, call: Call, found: Found) -> Expr | None:
        return call.args[0]


RULES: tuple[type[PatternRule], ...] = (
    ReshapeOfReshape,
    TransposeOfTranspose,
    IdentityTranspose,
    CastOfCast,
    NeutralOperand,
    NeutralRightOperand,
    DivideByPowerOfTwo,
    ChainOfConstants,
    ChainOfAffine,
    ReluOfRelu,
    ClipOfClip,
    *RULES_OF_REPETITION,
    ReshapeOfSlice,
    SliceOfEverything,
    SliceOfSlice,
    PadOfPad,
    ConcatenateOfOne,
    ConcatenateOfConcatenate,
    ReshapeAfterUnary,
    ReshapeAfterBinary,
    InverseOfRoot,
    WhereOfKnownCondition,
    CopyOf,
)

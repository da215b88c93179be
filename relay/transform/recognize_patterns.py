"""RecognizePatterns: normalisations and activations spelled out in small operators become the operators they mean."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from relay.expr import Call, Constant, Expr, Function, numpy_dtype
from relay.op.base import OpDef, make_call
from relay.op.nn.activation import HardSigmoid
from relay.pattern import Found, Pattern, PatternRule, is_constant, is_op, rewrite, wildcard
from relay.transform.builders import array_of, reshaped
from relay.transform.function_pass import FunctionPass
from relay.transform.spelled_norms import NORM_RULES
from te.ir import PassContext

__all__ = ["RecognizePatterns"]


class RecognizePatterns(FunctionPass):
    """Spelled-out normalisations, activations and rotary embeddings become one operator each, and one kernel each."""

    opt_level: ClassVar[int] = 2

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite([rule() for rule in RULES], function)


def _number(value: float, tolerance: float = 1e-3) -> Pattern:
    """A constant of one element, close to `value`."""
    return is_constant(lambda c: c.data.size == 1 and abs(float(c.data.item()) - value) <= tolerance * abs(value))


def _one_number() -> Pattern:
    return is_constant(lambda c: c.data.size == 1)


def _mean_of(x: Pattern) -> Pattern:
    return is_op("mean")(x).has_attr({"keepdims": True})


def _square_of(x: Pattern) -> Pattern:
    return is_op("power")(x, _number(2.0, 0.0)) | is_op("multiply")(x, x)


def _over_root(x: Pattern, square_mean: Pattern, epsilon: Pattern) -> Pattern:
    """x / sqrt(square_mean + epsilon), in any spelling."""
    total = is_op("add")(square_mean, epsilon)
    return is_op("divide")(x, is_op("sqrt")(total)) | is_op("multiply")(x, is_op("rsqrt")(total))


def _is_a_sixth(value: float, dtype: str) -> bool:
    """Exporters round it, which float64 would show."""
    return math.isclose(value, 1 / 6, rel_tol=1e-15 if dtype == "float64" else 1e-4)


def _sixth(x: Pattern) -> Pattern:
    rounded = is_constant(lambda c: c.data.size == 1 and _is_a_sixth(float(c.data.item()), str(c.dtype)))
    return is_op("divide")(x, _number(6.0, 0.0)) | is_op("multiply")(x, rounded)


def _has_slope_of_a_sixth(e: Expr) -> bool:
    op = e.op if isinstance(e, Call) else None
    return isinstance(op, HardSigmoid) and _is_a_sixth(op.alpha, str(e.dtype)) and op.beta == 0.5


def _axes(reduction: Call) -> tuple[int, ...]:
    """The dimensions that `reduction` goes over, in ascending order."""
    rank = len(reduction.args[0].shape)
    axes: tuple[int, ...] | None = reduction.op.axis  # type: ignore[union-attr]
    return tuple(sorted(range(rank) if axes is None else [a % rank for a in axes]))


def _last_axes(reduction: Call) -> int | None:
    """The first of the trailing dimensions that `reduction` goes over; None when it goes over others."""
    rank, found = len(reduction.args[0].shape), _axes(reduction)
    return found[0] if found and found == tuple(range(rank - len(found), rank)) else None


def _parameter(e: Expr, shape: tuple[Any, ...]) -> Expr | None:
    """A constant as a parameter of exactly `shape`; None when it has no such form."""
    assert isinstance(e, Constant)
    if e.data.size == 1:
        return Constant(np.full([int(d) for d in shape], e.data.item(), e.data.dtype))
    squeezed = e.data.shape[max(e.data.ndim - len(shape), 0) :]
    leading = e.data.shape[: max(e.data.ndim - len(shape), 0)]
    return reshaped(e, shape) if squeezed == tuple(shape) and all(d == 1 for d in leading) else None


class SpelledRMSNorm(PatternRule):
    """x / sqrt(mean(x**2) + epsilon) = rms_norm(x, 1)"""

    x, epsilon = wildcard(), _one_number()
    mean = _mean_of(_square_of(x))
    pattern = _over_root(x, mean, epsilon)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x = found[self.x]
        axis = _last_axes(found.call(self.mean))
        if axis is None or x.ty is not call.ty or not all(isinstance(d, int) for d in x.shape[axis:]):
            return None
        one = Constant(np.ones([int(d) for d in x.shape[axis:]], numpy_dtype(x.dtype)))  # type: ignore[arg-type]
        epsilon = float(array_of(found[self.epsilon]).item())
        return make_call("nn.rms_norm", (x, one), call.span, axis=axis, epsilon=epsilon)


class ScaledNorm(PatternRule):
    """norm(x, gamma) * scale = norm(x, gamma * scale), with layer_norm's beta * scale"""

    scale = is_constant()
    norm = is_op("nn.rms_norm")(wildcard(), is_constant()) | is_op("nn.layer_norm")(
        wildcard(), is_constant(), is_constant()
    )
    pattern = is_op("multiply")(norm, scale)

    def replace(self, call: Call, found: Found) -> Expr | None:
        norm = found.call(self.norm)
        x, *parameters = norm.args
        scale = _parameter(found[self.scale], parameters[0].shape)
        if scale is None or norm.ty is not call.ty or found.shared(norm):
            return None
        scaled = [Constant(array_of(p) * array_of(scale), span=found[self.scale].span) for p in parameters]
        return make_call(norm.op, (x, *scaled), call.span)  # type: ignore[arg-type]


class CentredRMSNorm(PatternRule):
    """rms_norm(x - mean(x), gamma) = layer_norm(x, gamma, 0)"""

    x, gamma = wildcard(), wildcard()
    mean = _mean_of(x)
    pattern = is_op("nn.rms_norm")(is_op("subtract")(x, mean), gamma)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, gamma = found[self.x], found[self.gamma]
        rms = call.op
        assert isinstance(rms, OpDef)
        axis: int = rms.axis % len(x.shape)  # type: ignore[attr-defined]
        if _last_axes(found.call(self.mean)) != axis or x.ty is not call.ty or not gamma.tensor_type.is_static:
            return None
        beta = Constant(np.zeros(gamma.tensor_type.static_shape, numpy_dtype(gamma.dtype)))
        epsilon = rms.epsilon  # type: ignore[attr-defined]
        return make_call("nn.layer_norm", (x, gamma, beta), call.span, axis=axis, epsilon=epsilon)


class SpelledLayerNorm(PatternRule):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) = layer_norm(x, 1, 0)"""

    x, epsilon = wildcard(), _one_number()
    mean = _mean_of(x)
    variance = is_op("variance")(x).has_attr({"keepdims": True})
    pattern = _over_root(is_op("subtract")(x, mean), variance, epsilon)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x = found[self.x]
        axis = _last_axes(found.call(self.variance))
        if axis is None or _last_axes(found.call(self.mean)) != axis or x.ty is not call.ty:
            return None
        shape = x.shape[axis:]
        if not all(isinstance(d, int) for d in shape):
            return None
        one = np.ones([int(d) for d in shape], numpy_dtype(x.dtype))  # type: ignore[arg-type]
        parameters = Constant(one), Constant(np.zeros_like(one))
        epsilon = float(array_of(found[self.epsilon]).item())
        return make_call("nn.layer_norm", (x, *parameters), call.span, axis=axis, epsilon=epsilon)


class SpelledStandardization(PatternRule):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) or / (sqrt(variance(x)) + margin), over any axes = standardize(x)

    Not over the last ones with no margin: a layer norm. Several axes of sizes known at run time stay as they are.
    """

    x, epsilon, margin = wildcard(), _one_number(), _one_number()
    mean = _mean_of(x)
    variance = is_op("variance")(x).has_attr({"keepdims": True})
    distance = is_op("subtract")(x, mean)
    deviation = is_op("add")(is_op("sqrt")(variance), margin)
    pattern = _over_root(distance, variance, epsilon) | is_op("divide")(distance, deviation)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, mean = found[self.x], found.call(self.mean)
        axes = _axes(mean)
        margin, epsilon = (float(array_of(found[p]).item()) if p in found else 0.0 for p in (self.margin, self.epsilon))
        is_layer_norm = _last_axes(mean) is not None and not margin
        if axes != _axes(found.call(self.variance)) or x.ty is not call.ty or is_layer_norm:
            return None
        if len(axes) > 1 and not x.tensor_type.is_static:
            return None
        return make_call("nn.standardize", (x,), call.span, axis=axes, epsilon=epsilon, margin=margin)


class SpelledRMSNormOfChannels(PatternRule):
    """x / sqrt(mean(x**2) + epsilon) over one dimension that is not the last = standardize(x), not centred"""

    x, epsilon = wildcard(), _one_number()
    mean = _mean_of(_square_of(x))
    pattern = _over_root(x, mean, epsilon)

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, mean = found[self.x], found.call(self.mean)
        axes, epsilon = _axes(mean), float(array_of(found[self.epsilon]).item())
        if len(axes) != 1 or _last_axes(mean) is not None or x.ty is not call.ty:
            return None
        return make_call("nn.standardize", (x,), call.span, axis=axes, epsilon=epsilon, centred=False)


class StandardizedRows(PatternRule):
    """standardize(x) over the last dimensions, which layouts may have made of others = layer_norm(x, 1, 0)

    Not centred: rms_norm(x, 1).
    """

    x = wildcard()
    pattern = is_op("nn.standardize")(x).has_attr({"margin": 0.0})

    def replace(self, call: Call, found: Found) -> Expr | None:
        axis, op = _last_axes(call), call.op
        shape = call.shape[axis:]
        if axis is None or not all(isinstance(d, int) for d in shape):
            return None
        one = np.ones([int(d) for d in shape], numpy_dtype(call.dtype))  # type: ignore[arg-type]
        parameters = [Constant(one), Constant(np.zeros_like(one))]
        name, count = ("nn.layer_norm", 2) if op.centred else ("nn.rms_norm", 1)  # type: ignore[union-attr]
        epsilon = op.epsilon  # type: ignore[union-attr]
        return make_call(name, (found[self.x], *parameters[:count]), call.span, axis=axis, epsilon=epsilon)


class ShiftedLayerNorm(PatternRule):
    """layer_norm(x, gamma, 0) + beta = layer_norm(x, gamma, beta)"""

    zero, beta = is_constant(lambda c: not c.data.any()), is_constant()
    norm = is_op("nn.layer_norm")(wildcard(), wildcard(), zero)
    pattern = is_op("add")(norm, beta)

    def replace(self, call: Call, found: Found) -> Expr | None:
        norm = found.call(self.norm)
        beta = _parameter(found[self.beta], found[self.zero].shape)
        if beta is None or norm.ty is not call.ty or found.shared(norm):
            return None
        return make_call(norm.op, (*norm.args[:2], beta), call.span)  # type: ignore[arg-type]


class SpelledGelu(PatternRule):
    """x * (1 + erf(x / sqrt(2))) * 0.5 = gelu(x), in the orders that exporters write"""

    x = wildcard()
    scaled = is_op("divide")(x, _number(2**0.5)) | is_op("multiply")(x, _number(0.5**0.5))
    gate = is_op("add")(is_op("erf")(scaled), _number(1.0, 0.0))
    half = _number(0.5, 0.0)
    pattern = (
        is_op("multiply")(is_op("multiply")(x, gate), half)
        | is_op("multiply")(is_op("multiply")(x, half), gate)
        | is_op("multiply")(is_op("multiply")(gate, half), x)
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        gelu = make_call("nn.gelu", (found[self.x],), call.span)
        return gelu if gelu.ty is call.ty else None


class SpelledTanhGelu(PatternRule):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) * 0.5 = gelu(x), approximate"""

    x = wildcard()
    cube = is_op("power")(x, _number(3.0, 0.0)) | is_op("multiply")(is_op("multiply")(x, x), x)
    inner = is_op("add")(x, is_op("multiply")(cube, _number(0.044715)))
    gate = is_op("add")(is_op("tanh")(is_op("multiply")(inner, _number((2 / math.pi) ** 0.5))), _number(1.0, 0.0))
    half = _number(0.5, 0.0)
    pattern = (
        is_op("multiply")(is_op("multiply")(x, half), gate)
        | is_op("multiply")(is_op("multiply")(x, gate), half)
        | is_op("multiply")(is_op("multiply")(gate, half), x)
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        gelu = make_call("nn.gelu", (found[self.x],), call.span, approximate=True)
        return gelu if gelu.ty is call.ty else None


class SpelledSilu(PatternRule):
    """x * sigmoid(x) = x / (1 + exp(-x)) = silu(x)"""

    x = wildcard()
    negated = is_op("negative")(x) | is_op("multiply")(x, _number(-1.0, 0.0))
    pattern = is_op("multiply")(x, is_op("sigmoid")(x)) | is_op("divide")(
        x, is_op("add")(is_op("exp")(negated), _number(1.0, 0.0))
    )

    def replace(self, call: Call, found: Found) -> Expr | None:
        silu = make_call("nn.silu", (found[self.x],), call.span)
        return silu if silu.ty is call.ty else None


class SpelledMish(PatternRule):
    """x * tanh(softplus(x)) = x * tanh(log(1 + exp(x))) = mish(x)"""

    x = wildcard()
    raised = is_op("exp")(x)
    softplus = is_op("nn.softplus")(x) | is_op("log")(is_op("add")(raised, _number(1.0, 0.0))) | is_op("log1p")(raised)
    pattern = is_op("multiply")(x, is_op("tanh")(softplus))

    def replace(self, call: Call, found: Found) -> Expr | None:
        mish = make_call("nn.mish", (found[self.x],), call.span)
        return mish if mish.ty is call.ty else None


class SpelledHardSwish(PatternRule):
    """x * clip(x + 3, 0, 6) / 6 = x * hard_sigmoid(x) = hard_swish(x), in the orders that exporters write"""

    x = wildcard()
    limited = is_op("clip")(is_op("add")(x, _number(3.0, 0.0))).has_attr({"a_min": 0.0, "a_max": 6.0})
    gate = _sixth(limited) | is_op("nn.hard_sigmoid")(x).where(_has_slope_of_a_sixth)
    pattern = is_op("multiply")(x, gate) | _sixth(is_op("multiply")(x, limited)) | is_op("multiply")(_sixth(x), limited)

    def replace(self, call: Call, found: Found) -> Expr | None:
        swish = make_call("nn.hard_swish", (found[self.x],), call.span)
        return swish if swish.ty is call.ty else None


class SpelledRotaryEmbedding(PatternRule):
    """x * cos + concatenate(-x[n/2:], x[:n/2]) * sin = rotary_embedding(x, cos, sin)"""

    x, cosine, sine = wildcard(), wildcard(), wildcard()
    first, second = is_op("strided_slice")(x), is_op("strided_slice")(x)
    swapped = is_op("concatenate")(is_op("negative")(second), first)
    pattern = is_op("add")(is_op("multiply")(x, cosine), is_op("multiply")(swapped, sine))

    def replace(self, call: Call, found: Found) -> Expr | None:
        x, cosine, sine = found[self.x], found[self.cosine], found[self.sine]
        rank, channels = len(call.shape), call.shape[-1] if call.shape else 1
        along: int = found.call(self.swapped).op.axis  # type: ignore[union-attr]
        if x.ty is not call.ty or along % rank != rank - 1 or not isinstance(channels, int) or channels % 2:
            return None
        halves = [_last_part(found.call(part)) for part in (self.first, self.second)]
        alike = cosine.ty is sine.ty and cosine.shape[-1:] == (channels,)
        if halves != [(0, channels // 2), (channels // 2, channels)] or not alike:
            return None
        return make_call("nn.rotary_embedding", (x, cosine, sine), call.span)


def _last_part(cut: Call) -> tuple[int, int] | None:
    """What part of the last dimension a slice takes, when it takes all of the others; None when it takes less."""
    op, rank = cut.op, len(cut.shape)
    axes, size = op.axes, cut.args[0].shape[-1]  # type: ignore[union-attr]
    begin, end = op.begin, op.end  # type: ignore[union-attr]
    plain = len(axes) == 1 and axes[0] % rank == rank - 1 and op.strides == (1,)  # type: ignore[union-attr]
    if not plain or not all(isinstance(d, int) for d in (begin[0], end[0], size)):
        return None
    first, last, _ = slice(begin[0], end[0]).indices(size)  # type: ignore[arg-type]
    return first, last


RULES: tuple[type[PatternRule], ...] = (
    SpelledRMSNorm,
    ScaledNorm,
    CentredRMSNorm,
    SpelledLayerNorm,
    SpelledStandardization,
    SpelledRMSNormOfChannels,
    StandardizedRows,
    ShiftedLayerNorm,
    SpelledGelu,
    SpelledTanhGelu,
    SpelledSilu,
    SpelledMish,
    SpelledHardSwish,
    SpelledRotaryEmbedding,
    *NORM_RULES,
)

"""Decomposed norms of rows, and standardisations over other dimensions: rules of `RecognizePatterns`.

x / sqrt(...) may be a product with the inverse root, which some (flax, TensorFlow) multiply by gamma first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, numpy_dtype
from relayc.relay.op.base import expect_op, make_call
from relayc.relay.op.nn.norm import RMSNorm, Standardize
from relayc.relay.pattern import Found, PatternRule, is_constant, is_op, wildcard
from relayc.relay.transform.builders import array_of, is_call_of, static_shape
from relayc.relay.transform.decomposed_parts import (
    count_reduced,
    inverse_root_of,
    last_axes,
    mean_of,
    number,
    one_number,
    over_root,
    parameter,
    reduced_axes,
    root_of,
    square_of,
    value_of,
)  # fmt: skip
from relayc.te.ir.decisions import Refused
from relayc.te.tir import Dim

__all__ = ["ROW_NORM_RULES"]


_BROADCASTS = Refused("a parameter broadcasts the data")
_OTHER_AXES = Refused("mean and variance are over different dimensions")
_CHANGES_NORM = Refused("the constant changes the type of the norm, or the norm is used elsewhere as well")


def _norm(name: str, x: Expr, axis: int, epsilon: float, like: Call) -> Call | None:
    """`nn.layer_norm` or `nn.rms_norm` of `x` with ones and zeros; None if the sizes are dynamic."""
    shape: Sequence[Dim] = x.shape[axis:]
    if not all(isinstance(d, int) for d in shape):
        return None
    one = np.ones(static_shape(shape), numpy_dtype(x.dtype))
    parameters = [Constant(one), Constant(np.zeros_like(one))][: 2 if name == "nn.layer_norm" else 1]
    return make_call(name, (x, *parameters), like.span, axis=axis, epsilon=epsilon)


def _normalized(
    x: Expr, axes: tuple[int, ...], epsilon: float, like: Call, margin: float = 0.0, centred: bool = True
) -> Call | Refused:
    """The norm of `x` over `axes`: a norm of rows over last dimensions, or `nn.standardize`.

    Refused if several dimensions are dynamic, and over none.
    """
    rank = len(x.shape)
    if not axes:
        return Refused("the reductions are over no dimension")
    if not margin and axes == tuple(range(rank - len(axes), rank)):
        rows = _norm("nn.layer_norm" if centred else "nn.rms_norm", x, axes[0], epsilon, like)
        if rows is not None:
            return rows
    if len(axes) > 1 and not x.tensor_type.is_static:
        return Refused("several dimensions are reduced, and sizes are dynamic")
    return make_call("nn.standardize", (x,), like.span, axis=axes, epsilon=epsilon, margin=margin, centred=centred)


def _scaled(norm: Expr | Refused, gamma: Expr | None) -> Expr | Refused:
    """norm * gamma, folded into the norm's own parameters if it has any; refused if the type would change."""
    if gamma is None or isinstance(norm, Refused):
        return norm
    if isinstance(norm, Call) and is_call_of(norm, "nn.layer_norm", "nn.rms_norm"):
        x, *parameters = norm.args
        scale = parameter(gamma, parameters[0].shape)
        if scale is not None and all(isinstance(p, Constant) for p in parameters):
            scaled = [Constant(array_of(p) * scale.data, span=gamma.span) for p in parameters]
            return make_call(norm.operator, (x, *scaled), norm.span)
    product = make_call("multiply", (norm, gamma), norm.span)
    return product if product.ty is norm.ty else Refused("the scale broadcasts the norm")


def _shifted(norm: Expr | Refused, beta: Expr | None) -> Expr | Refused:
    """norm + beta, folded into the norm's own parameter if that is zero; refused if the type would change."""
    if beta is None or isinstance(norm, Refused):
        return norm
    if isinstance(norm, Call) and is_call_of(norm, "nn.layer_norm"):
        *others, zero = norm.args
        shift = parameter(beta, zero.shape)
        if shift is not None and isinstance(zero, Constant) and not zero.data.any():
            return make_call(norm.operator, (*others, shift), norm.span)
    total = make_call("add", (norm, beta), norm.span)
    return total if total.ty is norm.ty else Refused("the shift broadcasts the norm")


class DecomposedRMSNorm(PatternRule):
    """x / sqrt(mean(x**2) + epsilon) = rms_norm(x, 1); standardize(x) over one dimension that is not the last"""

    x, epsilon, gamma = wildcard(), one_number(), wildcard()
    mean = mean_of(square_of(x))
    pattern = over_root(x, mean, epsilon, gamma)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, mean = found[self.x], found.call(self.mean)
        axes, epsilon = reduced_axes(mean), value_of(found[self.epsilon])
        if len(axes) > 1 and last_axes(mean) is None:
            return Refused("the mean is over several dimensions that are not the last ones")
        if x.ty is not call.ty:
            return _BROADCASTS
        return _scaled(_normalized(x, axes, epsilon, call, centred=False), found.get(self.gamma))


class ScaledNorm(PatternRule):
    """norm(x, gamma) * scale = norm(x, gamma * scale), with layer_norm's beta * scale"""

    scale = is_constant()
    norm = is_op("nn.rms_norm")(wildcard(), is_constant()) | is_op("nn.layer_norm")(
        wildcard(), is_constant(), is_constant()
    )
    pattern = is_op("multiply")(norm, scale)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        norm = found.call(self.norm)
        if norm.ty is not call.ty or found.shared(norm):
            return _CHANGES_NORM
        scaled = _scaled(norm, found[self.scale])
        is_norm = isinstance(scaled, Expr) and is_call_of(scaled, norm.operator.name)
        return scaled if is_norm else Refused("the scale is no parameter of the norm")


class CentredRMSNorm(PatternRule):
    """rms_norm(x - mean(x), gamma) = layer_norm(x, gamma, 0)"""

    x, gamma = wildcard(), wildcard()
    mean = mean_of(x)
    pattern = is_op("nn.rms_norm")(is_op("subtract")(x, mean), gamma)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, gamma = found[self.x], found[self.gamma]
        rms = expect_op(call, RMSNorm)
        axis = rms.axis % len(x.shape)
        if last_axes(found.call(self.mean)) != axis or x.ty is not call.ty or not gamma.tensor_type.is_static:
            return Refused("the mean is over other dimensions than the norm, or sizes are dynamic")
        beta = Constant(np.zeros(gamma.tensor_type.static_shape, numpy_dtype(gamma.dtype)))
        return make_call("nn.layer_norm", (x, gamma, beta), call.span, axis=axis, epsilon=rms.epsilon)


class DecomposedLayerNorm(PatternRule):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) = layer_norm(x, 1, 0); standardize(x) over other dimensions

    The form (x - mean(x)) / (sqrt(variance(x)) + margin) is standardize(x) over any dimensions.
    """

    x, epsilon, margin, gamma = wildcard(), one_number(), one_number(), wildcard()
    mean = mean_of(x)
    variance = is_op("variance")(x).has_attr({"keepdims": True})
    distance = is_op("subtract")(x, mean)
    deviation = is_op("add")(root_of(variance), margin)
    pattern = over_root(distance, variance, epsilon, gamma) | is_op("divide")(distance, deviation)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, axes = found[self.x], reduced_axes(found.call(self.mean))
        margin, epsilon = (value_of(found[p]) if p in found else 0.0 for p in (self.margin, self.epsilon))
        if axes != reduced_axes(found.call(self.variance)):
            return _OTHER_AXES
        if x.ty is not call.ty:
            return _BROADCASTS
        return _scaled(_normalized(x, axes, epsilon, call, margin), found.get(self.gamma))


class NormByMoments(PatternRule):
    """x * r + (beta - mean(x) * r), r = gamma / sqrt(variance(x) + epsilon) = layer_norm(x, gamma, beta)

    Over other axes than the last, standardize(x) * gamma + beta. TensorFlow's `nn.batch_normalization` after
    `nn.moments`, by which Keras computes layer norms; gamma and beta may be absent.
    """

    x, epsilon, gamma, beta = wildcard(), one_number(), wildcard(), wildcard()
    mean = mean_of(x)
    variance = is_op("variance")(x).has_attr({"keepdims": True})
    inverse = inverse_root_of(is_op("add")(variance, epsilon))
    scale = inverse | is_op("multiply")(inverse, gamma)
    middle = is_op("multiply")(mean, scale)
    without_beta = is_op("negative")(middle) | is_op("multiply")(is_op("negative")(mean), scale)
    pattern = is_op("add")(is_op("multiply")(x, scale), is_op("subtract")(beta, middle) | without_beta)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, mean = found[self.x], found.call(self.mean)
        axes, epsilon = reduced_axes(mean), value_of(found[self.epsilon])
        if axes != reduced_axes(found.call(self.variance)):
            return _OTHER_AXES
        if x.ty is not call.ty:
            return _BROADCASTS
        scaled = _scaled(_normalized(x, axes, epsilon, call), found.get(self.gamma))
        return _shifted(scaled, found.get(self.beta))


class DecomposedRMSNormWithEpsilon(PatternRule):
    """x / (sqrt(mean(x**2)) + margin) = standardize(x), not centred, over one dimension or the last ones

    The root may be sqrt(sum(x**2)) * n**-0.5, a Euclidean norm, as in many torch models ("RMSNorm" by Zhang and
    Sennrich, 2019, in their own code).
    """

    x, factor, margin = wildcard(), one_number(), one_number()
    mean, total = mean_of(square_of(x)), is_op("sum")(square_of(x)).has_attr({"keepdims": True})
    length = is_op("multiply", "divide")(root_of(total), factor)
    pattern = is_op("divide")(x, is_op("add")(root_of(mean) | length, margin))

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, reduction = found[self.x], found.call(self.mean if self.mean in found else self.total)
        axes, count = reduced_axes(reduction), count_reduced(reduction)
        if x.ty is not call.ty:
            return _BROADCASTS
        if self.length in found:
            value = value_of(found[self.factor])
            expected = value if is_call_of(found[self.length], "divide") else 1.0 / value if value else 0.0
            if count is None or abs(expected - count**0.5) > 1e-6 * count**0.5:
                return Refused(f"the factor of the root is not that of a mean of {count} elements")
        return _normalized(x, axes, 0.0, call, value_of(found[self.margin]), centred=False)


class DecomposedL2Normalize(PatternRule):
    """x / max(sqrt(sum(x**2)), least) = x / sqrt(max(sum(x**2), least**2)) = l2_normalize(x)

    Torch's `normalize` and TensorFlow's `l2_normalize`. With a mean in place of the sum the result is scaled by
    sqrt(n).
    """

    x, least, epsilon = wildcard(), one_number(), one_number()
    total = is_op("sum", "mean")(square_of(x)).has_attr({"keepdims": True})
    length = root_of(total)
    limited = is_op("maximum")(length, least)
    known = is_op("maximum")(total, epsilon)
    pattern = is_op("divide")(x, limited | length | root_of(known)) | is_op("multiply")(
        x, inverse_root_of(known) | inverse_root_of(total) | is_op("divide")(number(1.0, 0.0), limited)
    )

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        x, total = found[self.x], found.call(self.total)
        axes, count = reduced_axes(total), count_reduced(total)
        root = value_of(found[self.least]) if self.least in found else 0.0
        epsilon = value_of(found[self.epsilon]) if self.epsilon in found else root * root
        # the square of a value up to the root of the smallest float32 underflows, and 0 / 0 would be NaN
        lost = root > 0.0 and epsilon < np.finfo(np.float32).tiny and x.dtype != "float64"
        is_dynamic = len(axes) > 1 and not x.tensor_type.is_static
        if x.ty is not call.ty or not axes or root < 0.0 or epsilon < 0.0 or lost or is_dynamic:
            return Refused("the sum is over dynamic dimensions, broadcasts x, or the least length underflows squared")
        if is_call_of(total, "sum"):
            return make_call("nn.l2_normalize", (x,), call.span, axis=axes, eps=epsilon)
        if not count:
            return Refused("the mean is over dynamic dimensions")
        norm = make_call("nn.l2_normalize", (x,), call.span, axis=axes, eps=epsilon * count)
        return _scaled(norm, Constant(np.asarray(count**0.5).astype(numpy_dtype(x.dtype))))


class StandardizedRows(PatternRule):
    """standardize(x) over the last dimensions, possibly after layout conversion, = layer_norm(x, 1, 0)

    Not centred: rms_norm(x, 1).
    """

    x = wildcard()
    pattern = is_op("nn.standardize")(x).has_attr({"margin": 0.0})

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        axis, op = last_axes(call), expect_op(call, Standardize)
        name = "nn.layer_norm" if op.centred else "nn.rms_norm"
        return None if axis is None else _norm(name, found[self.x], axis, op.epsilon, call)


class ShiftedLayerNorm(PatternRule):
    """layer_norm(x, gamma, 0) + beta = layer_norm(x, gamma, beta)"""

    beta = is_constant()
    norm = is_op("nn.layer_norm")(wildcard(), wildcard(), is_constant(lambda c: not c.data.any()))
    pattern = is_op("add")(norm, beta)

    def replace(self, call: Call, found: Found) -> Expr | Refused | None:
        norm = found.call(self.norm)
        if norm.ty is not call.ty or found.shared(norm):
            return _CHANGES_NORM
        shifted = _shifted(norm, found[self.beta])
        is_norm = isinstance(shifted, Expr) and is_call_of(shifted, "nn.layer_norm")
        return shifted if is_norm else Refused("the shift is no parameter of the norm")


ROW_NORM_RULES: tuple[type[PatternRule], ...] = (
    DecomposedRMSNorm,
    ScaledNorm,
    CentredRMSNorm,
    DecomposedLayerNorm,
    NormByMoments,
    DecomposedRMSNormWithEpsilon,
    DecomposedL2Normalize,
    StandardizedRows,
    ShiftedLayerNorm,
)

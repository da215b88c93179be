"""Softmax and normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, make_call, register_op
from relayc.relay.op.common import Array, as_expr, check_axes, check_axis, require, require_float, require_same_dtype
from relayc.relay.op.gradients import along_axis, reshaped
from relayc.relay.sizes import quotient
from relayc.relay.type import TensorType, Type, dims_match, shapes_match
from relayc.te.tir import as_dim

__all__ = [
    "LRN",
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "L2Normalize",
    "LayerNorm",
    "LogSoftmax",
    "RMSNorm",
    "Softmax",
    "Standardize",
    "batch_norm",
    "group_norm",
    "instance_norm",
    "l2_normalize",
    "layer_norm",
    "log_softmax",
    "lrn",
    "rms_norm",
    "softmax",
    "standardize",
]  # fmt: skip

Perm = tuple[int, ...]


def _require_channels(number: int, size: object, *parameters: TensorType) -> None:
    fits = all(p.ndim == 1 and dims_match(p.shape[0], size) for p in parameters)  # type: ignore[arg-type]
    found = ", ".join(map(str, parameters))
    require(fits, f"(C{number}) parameters per channel must have shape ({size},); got {found}")


def _along(parameter: Array, axis: int, ndim: int) -> Array:
    """A vector per channel as float64, shaped to broadcast along `axis`."""
    return parameter.astype(np.float64).reshape([-1 if a == axis else 1 for a in range(ndim)])


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    wide = x.astype(np.float64)
    return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)


def _standardize(x: Expr, axes: Sequence[int], epsilon: float) -> Expr:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, by simple operators."""
    distance = x - make_call("mean", (x,), axis=tuple(axes), keepdims=True)
    variance = make_call("mean", (distance * distance,), axis=tuple(axes), keepdims=True)
    return distance * make_call("rsqrt", (variance + epsilon,))


@attributes_of_operator
class _AlongAxis(OpDef):
    """Base of softmax and its logarithm: the result has the type of the input. (C1) float; (C2) axis is in range."""

    axis: int = -1
    reads_inputs_once = True

    def infer(self, x: TensorType) -> TensorType:
        require_float(1, x)
        check_axis(2, self.axis, x.ndim)
        return x

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))


@register_op("nn.softmax", pattern=OpPattern.OUT_FUSABLE)
class Softmax(_AlongAxis):
    """Exponentials along `axis`, scaled to sum to one (ONNX: Softmax). (C1) float; (C2) axis is in range."""

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.softmax(x, check_axis(2, self.axis, x.ndim))

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            e = np.exp(wide - wide.max(self.axis, keepdims=True))
            return (e / e.sum(self.axis, keepdims=True)).astype(x.dtype)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        weighted = grad * call
        total = make_call("sum", (weighted,), axis=(self.axis,), keepdims=True)
        return (weighted - call * total,)


@register_op("nn.log_softmax", pattern=OpPattern.OUT_FUSABLE)
class LogSoftmax(_AlongAxis):
    """The logarithm of the softmax along `axis` (ONNX: LogSoftmax). (C1) float; (C2) axis is in range."""

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.log_softmax(x, check_axis(2, self.axis, x.ndim))

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            shifted = wide - wide.max(self.axis, keepdims=True)
            return (shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True))).astype(x.dtype)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        total = make_call("sum", (grad,), axis=(self.axis,), keepdims=True)
        return (grad - make_call("exp", (call,)) * total,)


@register_op("nn.layer_norm", pattern=OpPattern.OUT_FUSABLE)
class LayerNorm(OpDef):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over dimensions `axis` and later (ONNX: LayerNormalization).

    (C1) the element type is a float; (C2) of all inputs; (C3) axis is in range; (C4) gamma and beta have the shape of
    the normalised dimensions.
    """

    axis: int = -1
    epsilon: float = 1e-5
    reads_inputs_once = True

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, gamma, beta)
        shape = x.shape[check_axis(3, self.axis, x.ndim) :]
        fits = shapes_match(gamma.shape, shape) and shapes_match(beta.shape, shape)
        require(fits, f"(C4) gamma and beta must be {x.with_shape(shape)}; got {gamma} and {beta}")
        return x

    def compute(self, x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        return topi.nn.layer_norm(x, gamma, beta, check_axis(3, self.axis, x.ndim), self.epsilon)

    def reference(self, x: Array, gamma: Array, beta: Array) -> Array:
        axes = tuple(range(check_axis(3, self.axis, x.ndim), x.ndim))
        return (_standardized(x, axes, self.epsilon) * gamma.astype(np.float64) + beta.astype(np.float64)).astype(
            x.dtype
        )

    def decomposed(self, *args: Expr) -> Expr:
        x, gamma, beta = args
        ndim = len(x.shape)
        return _standardize(x, range(check_axis(3, self.axis, ndim), ndim), self.epsilon) * gamma + beta


@register_op("nn.rms_norm", pattern=OpPattern.OUT_FUSABLE)
class RMSNorm(OpDef):
    """x / sqrt(mean of squares + epsilon) * gamma over dimensions `axis` and later (ONNX: RMSNormalization).

    (C1) the element type is a float; (C2) of both inputs; (C3) axis is in range; (C4) gamma has the shape of the
    normalised dimensions.
    """

    axis: int = -1
    epsilon: float = 1e-5
    reads_inputs_once = True

    def infer(self, x: TensorType, gamma: TensorType) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, gamma)
        shape = x.shape[check_axis(3, self.axis, x.ndim) :]
        require(shapes_match(gamma.shape, shape), f"(C4) gamma must be {x.with_shape(shape)}; got {gamma}")
        return x

    def compute(self, x: te.Tensor, gamma: te.Tensor) -> te.Tensor:
        return topi.nn.rms_norm(x, gamma, check_axis(3, self.axis, x.ndim), self.epsilon)

    def reference(self, x: Array, gamma: Array) -> Array:
        axes = tuple(range(check_axis(3, self.axis, x.ndim), x.ndim))
        wide = x.astype(np.float64)
        squares = np.square(wide).mean(axes, keepdims=True)
        return (wide / np.sqrt(squares + self.epsilon) * gamma.astype(np.float64)).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr:
        x, gamma = args
        ndim = len(x.shape)
        squares = make_call("mean", (x * x,), axis=tuple(range(check_axis(3, self.axis, ndim), ndim)), keepdims=True)
        return x * make_call("rsqrt", (squares + self.epsilon,)) * gamma


@register_op("nn.batch_norm", pattern=OpPattern.BROADCAST)
class BatchNorm(OpDef):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, all per channel (ONNX: BatchNormalization at inference).

    (C1) the element type is a float; (C2) of all inputs; (C3) axis is in range; (C4) the parameters are vectors of the
    size of `axis`.
    """

    mixed_precision = MixedPrecision.NEVER

    axis: int = 1
    epsilon: float = 1e-5
    num_data_inputs = 1

    def infer(
        self, x: TensorType, gamma: TensorType, beta: TensorType, mean: TensorType, variance: TensorType
    ) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, gamma, beta, mean, variance)
        axis = check_axis(3, self.axis, x.ndim)
        _require_channels(4, x.shape[axis], gamma, beta, mean, variance)
        return x

    def compute(
        self, x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, mean: te.Tensor, variance: te.Tensor
    ) -> te.Tensor:
        axis = check_axis(3, self.axis, x.ndim)
        return topi.nn.batch_norm(x, gamma, beta, mean, variance, axis, self.epsilon)

    def reference(self, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
        axis = check_axis(3, self.axis, x.ndim)
        g, b, m, v = (_along(p, axis, x.ndim) for p in (gamma, beta, mean, variance))
        return ((x.astype(np.float64) - m) / np.sqrt(v + self.epsilon) * g + b).astype(x.dtype)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(3, self.axis, len(perm)))) if len(perm) > 1 else None

    def decomposed(self, *args: Expr) -> Expr:
        ndim = len(args[0].shape)
        axis = check_axis(3, self.axis, ndim)
        gamma, beta, mean, variance = [along_axis(p, axis, ndim) for p in args[1:]]
        return (args[0] - mean) * make_call("rsqrt", (variance + self.epsilon,)) * gamma + beta


@register_op("nn.instance_norm", pattern=OpPattern.OUT_FUSABLE)
class InstanceNorm(OpDef):
    """Each (batch, channel) standardised over the other dimensions, * gamma + beta (ONNX: InstanceNormalization).

    Dimension 0 is the batch. (C1) the element type is a float; (C2) of all inputs; (C3) axis is in range and not 0;
    (C4) gamma and beta are vectors of its size.
    """

    axis: int = 1
    epsilon: float = 1e-5
    reads_inputs_once = True
    num_data_inputs = 1

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        """With channels last a row is one of channels."""
        return self.axis != 1

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, gamma, beta)
        axis = check_axis(3, self.axis, x.ndim)
        require(axis > 0, "(C3) axis 0 is the batch")
        _require_channels(4, x.shape[axis], gamma, beta)
        return x

    def compute(self, x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        return topi.nn.instance_norm(x, gamma, beta, check_axis(3, self.axis, x.ndim), self.epsilon)

    def reference(self, x: Array, gamma: Array, beta: Array) -> Array:
        axis = check_axis(3, self.axis, x.ndim)
        others = tuple([a for a in range(1, x.ndim) if a != axis])
        scaled = _standardized(x, others, self.epsilon) * _along(gamma, axis, x.ndim)
        return (scaled + _along(beta, axis, x.ndim)).astype(x.dtype)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        batch_first = len(perm) > 1 and perm[0] == 0
        return self.replace(axis=perm.index(check_axis(3, self.axis, len(perm)))) if batch_first else None

    def decomposed(self, *args: Expr) -> Expr:
        x, gamma, beta = args
        ndim = len(x.shape)
        axis = check_axis(3, self.axis, ndim)
        normal = _standardize(x, [a for a in range(1, ndim) if a != axis], self.epsilon)
        return normal * along_axis(gamma, axis, ndim) + along_axis(beta, axis, ndim)


@register_op("nn.group_norm", pattern=OpPattern.OUT_FUSABLE)
class GroupNorm(OpDef):
    """Each (batch, group of channels) standardised, * gamma + beta per channel (ONNX: GroupNormalization).

    Dimension 0 is the batch. (C1) the element type is a float; (C2) of all inputs; (C3) axis is in range and not 0;
    (C4) gamma and beta are vectors of its size; (C5) which is a multiple of num_groups.
    """

    num_groups: int
    axis: int = 1
    epsilon: float = 1e-5
    reads_inputs_once = True
    num_data_inputs = 1

    def ignores_factors(self, types: Sequence[Type]) -> bool:
        """With channels last a row is one of channels."""
        return self.axis != 1

    def infer(self, x: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, gamma, beta)
        axis = check_axis(3, self.axis, x.ndim)
        require(axis > 0, "(C3) axis 0 is the batch")
        size = x.shape[axis]
        _require_channels(4, size, gamma, beta)
        divides = self.num_groups >= 1 and (not isinstance(size, int) or size % self.num_groups == 0)
        require(divides, f"(C5) {size} channels do not divide into {self.num_groups} groups")
        return x

    def compute(self, x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
        return topi.nn.group_norm(x, gamma, beta, self.num_groups, check_axis(3, self.axis, x.ndim), self.epsilon)

    def reference(self, x: Array, gamma: Array, beta: Array) -> Array:
        axis = check_axis(3, self.axis, x.ndim)
        first = np.moveaxis(x, axis, 1)
        grouped = first.reshape(x.shape[0], self.num_groups, -1)
        normal = np.moveaxis(_standardized(grouped, (2,), self.epsilon).reshape(first.shape), 1, axis)
        return (normal * _along(gamma, axis, x.ndim) + _along(beta, axis, x.ndim)).astype(x.dtype)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        batch_first = len(perm) > 1 and perm[0] == 0
        return self.replace(axis=perm.index(check_axis(3, self.axis, len(perm)))) if batch_first else None

    def decomposed(self, *args: Expr) -> Expr:
        x, gamma, beta = args
        ndim = len(x.shape)
        axis = check_axis(3, self.axis, ndim)
        size = quotient((x.shape[axis],), (self.num_groups,))
        assert size is not None
        grouped = reshaped(x, (*x.shape[:axis], self.num_groups, size, *x.shape[axis + 1 :]))
        normal = _standardize(grouped, [a for a in range(1, ndim + 1) if a != axis], self.epsilon)
        return reshaped(normal, x.shape) * along_axis(gamma, axis, ndim) + along_axis(beta, axis, ndim)


@attributes_of_operator
class _OverAxes(OpDef):
    """A normalisation over dimensions `axis`. (C1) the element type is a float; (C2) axes are in range, one or more."""

    axis: tuple[int, ...]
    reads_inputs_once = True

    def infer(self, x: TensorType) -> TensorType:
        require_float(1, x)
        require(len(check_axes(2, self.axis, x.ndim)) > 0, "(C2) there must be an axis")
        return x

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=tuple([perm.index(a) for a in check_axes(2, self.axis, len(perm))]))


@register_op("nn.l2_normalize", pattern=OpPattern.OUT_FUSABLE)
class L2Normalize(_OverAxes):
    """x / sqrt(max(sum of squares over `axis`, eps)). (C1) the element type is a float; (C2) axes are in range."""

    eps: float = 1e-10

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.l2_normalize(x, sorted(check_axes(2, self.axis, x.ndim)), self.eps)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.float64)
        total = np.square(wide).sum(check_axes(2, self.axis, x.ndim), keepdims=True)
        return (wide / np.sqrt(np.maximum(total, self.eps))).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        total = make_call("sum", (x * x,), axis=self.axis, keepdims=True)
        return x * make_call("rsqrt", (make_call("maximum", (total, as_expr(self.eps, x))),))


@register_op("nn.standardize", pattern=OpPattern.OUT_FUSABLE)
class Standardize(_OverAxes):
    """(x - mean) / (sqrt(variance + epsilon) + margin) over `axis` (ONNX: MeanVarianceNormalization).

    Not `centred`: x / (sqrt(mean of squares + epsilon) + margin). (C1) the element type is a float; (C2) axes are in
    range.
    """

    epsilon: float = 1e-5
    margin: float = 0.0
    centred: bool = True

    def compute(self, x: te.Tensor) -> te.Tensor:
        axes = sorted(check_axes(2, self.axis, x.ndim))
        return topi.nn.standardize(x, axes, self.epsilon, self.margin, centred=self.centred)

    def reference(self, x: Array) -> Array:
        axes, wide = check_axes(2, self.axis, x.ndim), x.astype(np.float64)
        distance = wide - wide.mean(axes, keepdims=True) if self.centred else wide
        deviation = np.sqrt(np.square(distance).mean(axes, keepdims=True) + self.epsilon)
        return (distance / (deviation + self.margin)).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        distance = x - make_call("mean", (x,), axis=self.axis, keepdims=True) if self.centred else x
        squares = make_call("mean", (distance * distance,), axis=self.axis, keepdims=True)
        return distance / (make_call("sqrt", (squares + self.epsilon,)) + self.margin)


@register_op("nn.lrn", pattern=OpPattern.OUT_FUSABLE)
class LRN(OpDef):
    """x / (bias + alpha / size * sum of squares over `size` neighbours along `axis`)^beta (ONNX: LRN).

    The window of channel c is [c - floor((size - 1) / 2), c + ceil((size - 1) / 2)]. (C1) the element type is a float;
    (C2) axis is in range; (C3) size is at least 1.
    """

    size: int = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 1e-5
    beta: float = 0.75

    def infer(self, x: TensorType) -> TensorType:
        require_float(1, x)
        check_axis(2, self.axis, x.ndim)
        require(self.size >= 1, f"(C3) size must be at least 1; got {self.size}")
        return x

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.lrn(x, self.size, check_axis(2, self.axis, x.ndim), self.alpha, self.beta, self.bias)

    def reference(self, x: Array) -> Array:
        axis = check_axis(2, self.axis, x.ndim)
        wide = x.astype(np.float64)
        before, after = (min(half, max(x.shape[axis] - 1, 0)) for half in ((self.size - 1) // 2, self.size // 2))
        squares = np.pad(np.square(wide), [(before, after) if a == axis else (0, 0) for a in range(x.ndim)])
        total = sum(squares.take(range(k, k + x.shape[axis]), axis) for k in range(before + 1 + after))
        return (wide / (self.bias + self.alpha / self.size * total) ** self.beta).astype(x.dtype)

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(2, self.axis, len(perm))))

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        axis = check_axis(2, self.axis, len(x.shape))
        before, after = (self.size - 1) // 2, self.size // 2
        widths = tuple([(before, after) if a == axis else (0, 0) for a in range(len(x.shape))])
        squares = make_call("nn.pad", (x * x,), pad_width=widths)
        sums = make_call("cumsum", (squares,), axis=axis, dtype=str(x.dtype))
        grown = tuple([(1, 0) if a == axis else (0, 0) for a in range(len(x.shape))])
        sums = make_call("nn.pad", (sums,), pad_width=grown)
        ends = [(b, as_dim(b + x.shape[axis])) for b in (0, self.size)]
        first, last = (
            make_call("strided_slice", (sums,), begin=(b,), end=(e,), strides=(1,), axes=(axis,)) for b, e in ends
        )
        scale = (last - first) * (self.alpha / self.size) + self.bias
        return x / make_call("power", (scale, as_expr(self.beta, x)))


def softmax(data: Expr, axis: int = -1) -> Call:
    """Exponentials along `axis`, scaled to sum to one."""
    return Softmax(axis=axis)(data)


def log_softmax(data: Expr, axis: int = -1) -> Call:
    """The logarithm of the softmax along `axis`."""
    return LogSoftmax(axis=axis)(data)


def layer_norm(data: Expr, gamma: Expr, beta: Expr, axis: int = -1, epsilon: float = 1e-5) -> Call:
    """`data` standardised over dimensions `axis` and later, * gamma + beta."""
    return LayerNorm(axis=axis, epsilon=epsilon)(data, gamma, beta)


def rms_norm(data: Expr, gamma: Expr, axis: int = -1, epsilon: float = 1e-5) -> Call:
    """`data` divided by its root mean square over dimensions `axis` and later, * gamma."""
    return RMSNorm(axis=axis, epsilon=epsilon)(data, gamma)


def batch_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    moving_mean: Expr,
    moving_var: Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
) -> tuple[Call, Expr, Expr]:
    """`data` normalised by the moving statistics, and these statistics, which are unchanged at inference."""
    result = BatchNorm(axis=axis, epsilon=epsilon)(data, gamma, beta, moving_mean, moving_var)
    return result, moving_mean, moving_var


def instance_norm(data: Expr, gamma: Expr, beta: Expr, axis: int = 1, epsilon: float = 1e-5) -> Call:
    """Each (batch, channel) of `data` standardised, * gamma + beta."""
    return InstanceNorm(axis=axis, epsilon=epsilon)(data, gamma, beta)


def group_norm(data: Expr, gamma: Expr, beta: Expr, num_groups: int, axis: int = 1, epsilon: float = 1e-5) -> Call:
    """Each (batch, group of channels) of `data` standardised, * gamma + beta per channel."""
    return GroupNorm(num_groups=num_groups, axis=axis, epsilon=epsilon)(data, gamma, beta)


def l2_normalize(data: Expr, eps: float = 1e-10, axis: int | Sequence[int] = -1) -> Call:
    """`data` divided by its Euclidean norm along `axis`."""
    return L2Normalize(axis=(axis,) if isinstance(axis, int) else tuple(axis), eps=eps)(data)


def lrn(data: Expr, size: int = 5, axis: int = 1, bias: float = 2.0, alpha: float = 1e-5, beta: float = 0.75) -> Call:
    """Local response normalisation along `axis`."""
    return LRN(size=size, axis=axis, bias=bias, alpha=alpha, beta=beta)(data)


def standardize(
    data: Expr, axis: int | Sequence[int], epsilon: float = 1e-5, margin: float = 0.0, centred: bool = True
) -> Call:
    """`data` with mean 0 and variance 1 over `axis`; not `centred`, with a mean of squares of 1."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return Standardize(axis=axes, epsilon=epsilon, margin=margin, centred=centred)(data)

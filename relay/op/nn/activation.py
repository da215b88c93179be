"""Activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, make_call, register_op
from relayc.relay.op.common import Array, check_axis, require, require_float, require_same_dtype, widened
from relayc.relay.op.elementwise import Erf, Unary, unary_helper
from relayc.relay.op.gradients import along_axis, choose, greater
from relayc.relay.type import TensorType, Type, dims_match

__all__ = [
    "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Selu", "Silu",
    "Softplus", "Softsign", "ThresholdedRelu", "celu", "elu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu",
    "mish", "prelu", "relu", "selu", "silu", "softplus", "softsign", "thresholded_relu",
]  # fmt: skip


@register_op("nn.relu", pattern=OpPattern.ELEMWISE)
class Relu(Unary):
    """max(x, 0) (ONNX: Relu)."""

    domain = ("float", "int")
    define = staticmethod(topi.nn.relu)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return np.maximum(x, np.zeros((), x.dtype))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return choose(greater(x, 0), 1, 0, x)


@register_op("nn.silu", pattern=OpPattern.ELEMWISE)
class Silu(Unary):
    """x * sigmoid(x) (ONNX: Swish with alpha 1)."""

    define = staticmethod(topi.nn.silu)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return x / (1 + np.exp(-x))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        s = make_call("sigmoid", (x,))
        return s * (x * (1.0 - s) + 1.0)


@register_op("nn.mish", pattern=OpPattern.ELEMWISE)
class Mish(Unary):
    """x * tanh(log(1 + exp(x))) (ONNX: Mish)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.nn.mish)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return x * np.tanh(np.logaddexp(x, np.zeros((), x.dtype)))

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        return x * make_call("tanh", (make_call("nn.softplus", (x,)),))


@register_op("nn.softplus", pattern=OpPattern.ELEMWISE)
class Softplus(Unary):
    """log(1 + exp(x)) (ONNX: Softplus)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.nn.softplus)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return np.logaddexp(x, np.zeros((), x.dtype))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return make_call("sigmoid", (x,))


@register_op("nn.softsign", pattern=OpPattern.ELEMWISE)
class Softsign(Unary):
    """x / (1 + |x|) (ONNX: Softsign)."""

    define = staticmethod(topi.nn.softsign)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return x / (1 + np.abs(x))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        margin = make_call("abs", (x,)) + 1.0
        return 1.0 / (margin * margin)


@register_op("nn.hard_swish", pattern=OpPattern.ELEMWISE)
class HardSwish(Unary):
    """x * max(0, min(1, x / 6 + 1 / 2)) (ONNX: HardSwish)."""

    define = staticmethod(topi.nn.hard_swish)

    @staticmethod
    def evaluate(x: Array) -> Array:
        return x * np.clip(x / 6 + 0.5, 0, 1).astype(x.dtype)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        linear = choose(greater(x, 3), 1, x / 3.0 + 0.5, x)
        return choose(greater(x, -3), linear, 0, x)


@attributes_of_operator
class _Parametric(OpDef):
    """An elementwise function of floats with parameters. (C1) the element type is a float."""

    def infer(self, x: TensorType) -> TensorType:
        require_float(1, x)
        return x

    def evaluate(self, x: Array) -> Array:
        """Evaluate the function on float32 or float64."""
        raise NotImplementedError

    def reference(self, x: Array) -> Array:
        return np.asarray(widened(self.evaluate, x), x.dtype)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        """The derivative at x, where the result is y."""
        raise NotImplementedError

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return (grad * self.derivative(call.args[0], call),)


@register_op("nn.leaky_relu", pattern=OpPattern.ELEMWISE)
class LeakyRelu(_Parametric):
    """x where x > 0, else alpha * x (ONNX: LeakyRelu). (C1) the element type is a float."""

    alpha: float = 0.01

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.leaky_relu(x, self.alpha)

    def evaluate(self, x: Array) -> Array:
        return np.where(x > 0, x, self.alpha * x)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return choose(greater(x, 0), 1, self.alpha, x)


@register_op("nn.elu", pattern=OpPattern.ELEMWISE)
class Elu(_Parametric):
    """x where x > 0, else alpha * (exp(x) - 1) (ONNX: Elu). (C1) the element type is a float."""

    alpha: float = 1.0

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.elu(x, self.alpha)

    def evaluate(self, x: Array) -> Array:
        return np.where(x > 0, x, self.alpha * np.expm1(x))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return choose(greater(x, 0), 1, y + self.alpha, x)


@register_op("nn.celu", pattern=OpPattern.ELEMWISE)
class Celu(_Parametric):
    """x where x > 0, else alpha * (exp(x / alpha) - 1) (ONNX: Celu). (C1) float; (C2) alpha is not 0."""

    alpha: float = 1.0

    def infer(self, x: TensorType) -> TensorType:
        require(self.alpha != 0, "(C2) alpha must not be 0")
        return super().infer(x)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.celu(x, self.alpha)

    def evaluate(self, x: Array) -> Array:
        return np.where(x > 0, x, self.alpha * np.expm1(x / self.alpha))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return choose(greater(x, 0), 1, make_call("exp", (x / self.alpha,)), x)


@register_op("nn.selu", pattern=OpPattern.ELEMWISE)
class Selu(_Parametric):
    """gamma * (x where x > 0, else alpha * (exp(x) - 1)) (ONNX: Selu). (C1) the element type is a float."""

    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.selu(x, self.alpha, self.gamma)

    def evaluate(self, x: Array) -> Array:
        return self.gamma * np.where(x > 0, x, self.alpha * np.expm1(x))

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return choose(greater(x, 0), self.gamma, y + self.alpha * self.gamma, x)


@register_op("nn.gelu", pattern=OpPattern.ELEMWISE)
class Gelu(_Parametric):
    """x * Phi(x), Phi the normal distribution function (ONNX: Gelu). (C1) the element type is a float.

    `approximate` replaces Phi by (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2.
    """

    approximate: bool = False

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.gelu(x, self.approximate)

    def evaluate(self, x: Array) -> Array:
        if self.approximate:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + Erf.evaluate(x * math.sqrt(0.5)))

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        if self.approximate:
            return x * 0.5 * (make_call("tanh", ((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi),)) + 1.0)
        return x * 0.5 * (make_call("erf", (x * math.sqrt(0.5),)) + 1.0)


@register_op("nn.hard_sigmoid", pattern=OpPattern.ELEMWISE)
class HardSigmoid(_Parametric):
    """alpha * x + beta limited to [0, 1] (ONNX: HardSigmoid). (C1) the element type is a float."""

    alpha: float = 0.2
    beta: float = 0.5

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.hard_sigmoid(x, self.alpha, self.beta)

    def evaluate(self, x: Array) -> Array:
        return np.clip(self.alpha * x + self.beta, 0, 1)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        inside = greater(y * (1.0 - y), 0)
        return choose(inside, self.alpha, 0, x)


@register_op("nn.thresholded_relu", pattern=OpPattern.ELEMWISE)
class ThresholdedRelu(_Parametric):
    """x where x > alpha, else 0 (ONNX: ThresholdedRelu). (C1) the element type is a float."""

    alpha: float = 1.0

    def compute(self, x: te.Tensor) -> te.Tensor:
        return topi.nn.thresholded_relu(x, self.alpha)

    def evaluate(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, 0)

    def derivative(self, x: Expr, y: Expr) -> Expr:
        return choose(greater(x, self.alpha), 1, 0, x)


@register_op("nn.prelu", pattern=OpPattern.BROADCAST)
class PRelu(OpDef):
    """x where x > 0, else slope * x, one slope for each position along `axis` (ONNX: PRelu).

    (C1) the element type is a float; (C2) of both inputs; (C3) axis is in range; (C4) slope is a vector of that size.
    """

    axis: int = 1
    num_data_inputs = 1

    def infer(self, x: TensorType, slope: TensorType) -> TensorType:
        require_float(1, x)
        require_same_dtype(2, x, slope)
        axis = check_axis(3, self.axis, x.ndim)
        fits = slope.ndim == 1 and dims_match(slope.shape[0], x.shape[axis])
        require(fits, f"(C4) slope must have shape ({x.shape[axis]},); got {slope}")
        return x

    def compute(self, x: te.Tensor, slope: te.Tensor) -> te.Tensor:
        return topi.nn.prelu(x, slope, check_axis(3, self.axis, x.ndim))

    def reference(self, x: Array, slope: Array) -> Array:
        axis = check_axis(3, self.axis, x.ndim)
        along = slope.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        return np.where(x > 0, x, along * x).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr:
        x, slope = args
        ndim = len(x.shape)
        return choose(greater(x, 0), x, along_axis(slope, check_axis(3, self.axis, ndim), ndim) * x, x)

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        return self.replace(axis=perm.index(check_axis(3, self.axis, len(perm)))) if len(perm) > 1 else None


relu = unary_helper(Relu)
silu = unary_helper(Silu)
mish = unary_helper(Mish)
softplus = unary_helper(Softplus)
softsign = unary_helper(Softsign)
hard_swish = unary_helper(HardSwish)


def _helper(operator: type[LeakyRelu | Elu | Celu | ThresholdedRelu]) -> Callable[..., Call]:
    default = operator().alpha

    def call(data: Expr, alpha: float = default) -> Call:
        return operator(alpha=alpha)(data)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.__doc__
    return call


leaky_relu = _helper(LeakyRelu)
elu = _helper(Elu)
celu = _helper(Celu)
thresholded_relu = _helper(ThresholdedRelu)


def selu(data: Expr, alpha: float = Selu.alpha, gamma: float = Selu.gamma) -> Call:
    """gamma * elu(data, alpha)"""
    return Selu(alpha=alpha, gamma=gamma)(data)


def gelu(data: Expr, approximate: bool = False) -> Call:
    """data * Phi(data); by tanh when `approximate`."""
    return Gelu(approximate=approximate)(data)


def hard_sigmoid(data: Expr, alpha: float = 0.2, beta: float = 0.5) -> Call:
    """alpha * data + beta limited to [0, 1]."""
    return HardSigmoid(alpha=alpha, beta=beta)(data)


def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Call:
    """data where data > 0, else alpha * data, one slope for each position along `axis`."""
    return PRelu(axis=axis)(data, alpha)

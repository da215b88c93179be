"""Reductions over axes. `axis` None means all of them; an empty tuple means none."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, make_call, register_op
from relayc.relay.op.common import Array, check_axes, require, widened
from relayc.relay.op.gradients import choose, restored
from relayc.relay.sizes import product
from relayc.relay.type import TensorType, Type
from relayc.topi.reduction import reduced_shape

__all__ = [
    "AllOf", "AnyOf", "ArgMax", "ArgMin", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "Variance", "all", "any",
    "argmax", "argmin", "log_sum_exp", "max", "mean", "min", "prod", "sum", "variance",
]  # fmt: skip

AxisLike = int | Sequence[int] | None


@attributes_of_operator
class Reduction(OpDef):
    """Base of reductions. (C1) the element type is one of `domain`; (C2) the axes are different and in range."""

    axis: tuple[int, ...] | None = None
    keepdims: bool = False

    domain: ClassVar[tuple[str, ...]] = ("float", "int", "uint")
    """Kinds of element types taken: "float", "int", "uint", "bool"."""
    define: ClassVar[Callable[..., te.Tensor]]
    evaluate: ClassVar[Callable[..., Any]]

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The reduced axes, ascending."""
        return tuple(range(ndim)) if self.axis is None else tuple(sorted(check_axes(2, self.axis, ndim)))

    def infer(self, x: TensorType) -> TensorType:
        kind = "float" if x.dtype.is_float else x.dtype.code
        if kind not in self.domain:
            raise TypeInferenceError(f"(C1) the element type must be a {' or '.join(self.domain)}; got {x.dtype}")
        return x.with_shape(reduced_shape(x.shape, self.axes(x.ndim), self.keepdims))

    def compute(self, x: te.Tensor) -> te.Tensor:
        return type(self).define(x, self.axes(x.ndim), self.keepdims)

    def reference(self, x: Array) -> Array:
        evaluate, axes = type(self).evaluate, self.axes(x.ndim)
        return np.asarray(widened(lambda v: np.asarray(evaluate(v, axis=axes, keepdims=self.keepdims)), x))

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        if not self.keepdims:
            return None
        return self.replace(axis=tuple([perm.index(a) for a in self.axes(len(perm))]))

    def restored(self, reduced: Expr, x: Expr) -> Expr:
        """A reduced tensor with the reduced dimensions of `x` again, of size 1."""
        return restored(reduced, x.shape, self.axes(len(x.shape)))


@register_op("sum", pattern=OpPattern.COMM_REDUCE)
class Sum(Reduction):
    """The sum; integers wrap (ONNX: ReduceSum)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.sum)

    @staticmethod
    def evaluate(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        return np.sum(x, axis, dtype=x.dtype, keepdims=keepdims)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        return (make_call("broadcast_to", (self.restored(grad, x),), shape=tuple(x.shape)),)


@register_op("prod", pattern=OpPattern.COMM_REDUCE)
class Prod(Reduction):
    """The product; integers wrap (ONNX: ReduceProd)."""

    mixed_precision = MixedPrecision.NEVER
    define = staticmethod(topi.prod)

    @staticmethod
    def evaluate(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        return np.prod(x, axis, dtype=x.dtype, keepdims=keepdims)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        return (self.restored(grad * call, x) / x,)


@register_op("max", pattern=OpPattern.COMM_REDUCE)
class Max(Reduction):
    """The largest value, NaN if any is NaN (ONNX: ReduceMax); of an empty range, the lowest value of the type."""

    define = staticmethod(topi.max)

    @staticmethod
    def evaluate(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        return np.max(x, axis=axis, keepdims=keepdims, initial=_extreme(x.dtype, highest=False))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return _to_extremes(self, call, grad)


@register_op("min", pattern=OpPattern.COMM_REDUCE)
class Min(Reduction):
    """The smallest value, NaN if any is NaN (ONNX: ReduceMin); of an empty range, the highest value of the type."""

    define = staticmethod(topi.min)

    @staticmethod
    def evaluate(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        return np.min(x, axis=axis, keepdims=keepdims, initial=_extreme(x.dtype, highest=True))

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        return _to_extremes(self, call, grad)


def _to_extremes(op: Reduction, call: Call, grad: Expr) -> tuple[Expr]:
    """The gradient goes to the elements equal to the extreme value, in equal parts."""
    (x,) = call.args
    chosen = make_call("equal", (x, op.restored(call, x)))
    ones = choose(chosen, 1, 0, x)
    share = grad / make_call("sum", (ones,), axis=op.axis, keepdims=op.keepdims)
    return (ones * op.restored(share, x),)


def _extreme(kind: np.dtype[Any], highest: bool) -> Any:
    if kind.kind in "iu":
        return np.iinfo(kind).max if highest else np.iinfo(kind).min
    return np.inf if highest else -np.inf


@register_op("mean", pattern=OpPattern.COMM_REDUCE)
class Mean(Reduction):
    """The sum divided by the number of values (ONNX: ReduceMean); integers truncate towards zero."""

    define = staticmethod(topi.mean)

    @staticmethod
    def evaluate(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        total = np.sum(x, axis, dtype=x.dtype, keepdims=keepdims)
        count = np.prod([x.shape[a] for a in axis], dtype=np.int64)
        if x.dtype.kind in "iu":
            return np.trunc(total / count).astype(x.dtype) if count else np.zeros_like(total)
        return (total / count).astype(x.dtype)

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        total = make_call("sum", (x,), axis=self.axis, keepdims=self.keepdims)
        count = make_call("sizes", (), values=(product([x.shape[a] for a in self.axes(len(x.shape))]),), shape=())
        return total / make_call("cast", (count,), dtype=str(x.dtype))


@register_op("variance", pattern=OpPattern.COMM_REDUCE)
class Variance(Reduction):
    """The mean of the squared distance from the mean, of floats (TVM: `relay.variance`)."""

    mixed_precision = MixedPrecision.NEVER
    domain = ("float",)
    define = staticmethod(topi.variance)
    evaluate = staticmethod(np.var)

    def decomposed(self, *args: Expr) -> Expr:
        (x,) = args
        distance = x - make_call("mean", (x,), axis=self.axis, keepdims=True)
        return make_call("mean", (distance * distance,), axis=self.axis, keepdims=self.keepdims)


@register_op("log_sum_exp", pattern=OpPattern.COMM_REDUCE)
class LogSumExp(Reduction):
    """The logarithm of the sum of e^x, of floats (ONNX: ReduceLogSumExp); of an empty range, minus infinity."""

    mixed_precision = MixedPrecision.NEVER
    domain = ("float",)
    define = staticmethod(topi.log_sum_exp)

    @staticmethod
    def evaluate(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        total = np.log(np.sum(np.exp(x - np.where(np.isfinite(top), top, 0)), axis=axis, keepdims=keepdims))
        return total + np.where(np.isfinite(top), top, 0).reshape(total.shape)

    def gradient(self, call: Call, grad: Expr) -> Sequence[Expr | None]:
        (x,) = call.args
        return (self.restored(grad, x) * make_call("exp", (x - self.restored(call, x),)),)


@register_op("all", pattern=OpPattern.COMM_REDUCE)
class AllOf(Reduction):
    """Does every bool hold?"""

    domain = ("bool",)
    define = staticmethod(topi.all)
    evaluate = staticmethod(np.all)


@register_op("any", pattern=OpPattern.COMM_REDUCE)
class AnyOf(Reduction):
    """Does some bool hold?"""

    domain = ("bool",)
    define = staticmethod(topi.any)
    evaluate = staticmethod(np.any)


@attributes_of_operator
class ArgReduction(OpDef):
    """Base of argmax and argmin: row-major positions within `axis`; a NaN beats every number.

    Among equal values the first position wins, the last with `select_last_index`. (C1) the element type is a number;
    (C2) the axes are different and in range; (C3) they are not empty.
    """

    axis: tuple[int, ...] | None = None
    keepdims: bool = False
    select_last_index: bool = False
    dtype: str = "int32"

    define: ClassVar[Callable[..., te.Tensor]]
    evaluate: ClassVar[Callable[..., Any]]

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The reduced axes, ascending."""
        return tuple(range(ndim)) if self.axis is None else tuple(sorted(check_axes(2, self.axis, ndim)))

    def infer(self, x: TensorType) -> TensorType:
        axes = self.axes(x.ndim)
        require(not x.dtype.is_bool, f"(C1) the element type must be a number; got {x.dtype}")
        require(len(axes) > 0 and all_known(x.shape[a] != 0 for a in axes), f"(C3) {x} has no values along {axes}")
        return TensorType(reduced_shape(x.shape, axes, self.keepdims), self.dtype)

    def compute(self, x: te.Tensor) -> te.Tensor:
        return type(self).define(x, self.axes(x.ndim), self.keepdims, self.select_last_index, self.dtype)

    def reference(self, x: Array) -> Array:
        axes = self.axes(x.ndim)
        kept = [a for a in range(x.ndim) if a not in axes]
        rows = x.transpose((*kept, *axes)).reshape([*[x.shape[a] for a in kept], -1])
        evaluate, count = type(self).evaluate, rows.shape[-1]
        position = count - 1 - evaluate(rows[..., ::-1], -1) if self.select_last_index else evaluate(rows, -1)
        shape = reduced_shape(x.shape, axes, self.keepdims)
        return np.asarray(position).reshape([int(d) for d in shape]).astype(self.dtype)  # type: ignore[arg-type]

    def transposed(self, perm: tuple[int, ...], types: Sequence[Type]) -> OpDef | None:
        axes = self.axes(len(perm))
        return self.replace(axis=(perm.index(axes[0]),)) if self.keepdims and len(axes) == 1 else None


def all_known(conditions: Iterable[object]) -> bool:
    """Do all conditions on sizes hold? A symbolic one (an expression) counts as holding."""
    return not builtins.any(condition is False for condition in conditions)


@register_op("argmax", pattern=OpPattern.COMM_REDUCE)
class ArgMax(ArgReduction):
    """Where the largest value is (ONNX: ArgMax)."""

    define = staticmethod(topi.argmax)
    evaluate = staticmethod(np.argmax)


@register_op("argmin", pattern=OpPattern.COMM_REDUCE)
class ArgMin(ArgReduction):
    """Where the smallest value is (ONNX: ArgMin)."""

    define = staticmethod(topi.argmin)
    evaluate = staticmethod(np.argmin)


def _axes(axis: AxisLike) -> tuple[int, ...] | None:
    return (axis,) if isinstance(axis, int) else None if axis is None else tuple(axis)


def _helper(operator: type[Reduction]) -> Callable[..., Call]:
    def call(data: Expr, axis: AxisLike = None, keepdims: bool = False) -> Call:
        return operator(axis=_axes(axis), keepdims=keepdims)(data)

    call.__name__ = call.__qualname__ = operator.name
    call.__doc__ = operator.__doc__
    return call


sum = _helper(Sum)
prod = _helper(Prod)
max = _helper(Max)
min = _helper(Min)
mean = _helper(Mean)
variance = _helper(Variance)
log_sum_exp = _helper(LogSumExp)
all = _helper(AllOf)
any = _helper(AnyOf)


def argmax(
    data: Expr, axis: AxisLike = None, keepdims: bool = False, select_last_index: bool = False, dtype: str = "int32"
) -> Call:
    """Row-major positions, within `axis`, of the largest values."""
    return ArgMax(axis=_axes(axis), keepdims=keepdims, select_last_index=select_last_index, dtype=dtype)(data)


def argmin(
    data: Expr, axis: AxisLike = None, keepdims: bool = False, select_last_index: bool = False, dtype: str = "int32"
) -> Call:
    """Row-major positions, within `axis`, of the smallest values."""
    return ArgMin(axis=_axes(axis), keepdims=keepdims, select_last_index=select_last_index, dtype=dtype)(data)

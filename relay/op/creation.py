"""Operators that make tensors from attributes alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.common import Array, numpy_dtype, require
from relayc.relay.sizes import add_sizes, floor_divide, larger, product
from relayc.relay.type import TensorType, Type
from relayc.te.tir import Dim, PrimExpr, as_int

__all__ = [
    "Arange", "Full", "Sizes", "arange", "full", "full_like", "ones", "ones_like", "size_tensor", "zeros", "zeros_like",
]  # fmt: skip

Perm = tuple[int, ...]


@register_op("full", pattern=OpPattern.ELEMWISE)
class Full(OpDef):
    """A tensor of one value (ONNX: ConstantOfShape)."""

    shape: tuple[Dim, ...]
    dtype: str
    fill_value: float

    def infer(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    def compute(self) -> te.Tensor:
        return topi.full(self.shape, self.dtype, self.fill_value)

    def reference(self) -> Array:
        return np.full(self.infer().static_shape, self.fill_value, numpy_dtype(self.dtype))

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return None


@register_op("sizes", pattern=OpPattern.INJECTIVE)
class Sizes(OpDef):
    """A tensor of (symbolic) sizes (ONNX: Shape): `values` in row-major order, of `shape`.

    (C1) there are as many values as the shape holds.
    """

    values: tuple[Dim, ...]
    shape: tuple[int, ...]
    dtype: str = "int64"

    def infer(self) -> TensorType:
        count = math.prod(self.shape)
        require(len(self.values) == count, f"(C1) {len(self.values)} values do not fill shape {self.shape}")
        return TensorType(self.shape, self.dtype)

    def compute(self) -> te.Tensor:
        step = _common_step(self.values)
        if step is None:
            return topi.size_tensor(self.values, self.shape, self.dtype)
        return topi.reshape(topi.arange(self.values[0], step, len(self.values), self.dtype), self.shape)

    def reference(self) -> Array:
        return np.array([int(v) for v in self.values], numpy_dtype(self.dtype)).reshape(self.shape)  # type: ignore[arg-type]

    def transposed(self, perm: Perm, types: Sequence[Type]) -> OpDef | None:
        return None


def _common_step(values: Sequence[Dim]) -> int | None:
    """The constant by which each value exceeds the one before it: a range that depends on a size has one, and is
    computed, where others are looked up. None for fewer than three values."""
    steps = (as_int(add_sizes(b, product((-1, a)))) for a, b in itertools.pairwise(values))
    first = next(steps, None) if len(values) > 2 else None
    return first if first is not None and all(step == first for step in steps) else None


@register_op("arange", pattern=OpPattern.INJECTIVE)
class Arange(OpDef):
    """start, start + step, ... below (above, for a negative step) stop (ONNX: Range).

    (C1) step is not 0; (C2) with a symbolic start or stop it is a positive integer.
    """

    start: float | Dim = 0
    stop: float | Dim
    step: float = 1
    dtype: str = "float32"

    def _count(self) -> Dim:
        require(self.step != 0, "(C1) step must not be 0")
        start, stop, step = self.start, self.stop, self.step
        if not isinstance(start, PrimExpr) and not isinstance(stop, PrimExpr):
            require(math.isfinite((stop - start) / step), f"(C3) {start}, {stop} and {step} must be finite")
            return max(0, math.ceil((stop - start) / step))
        require(isinstance(step, int) and step > 0, f"(C2) step must be a positive integer; got {step}")
        distance = add_sizes(stop, product((-1, start)), step - 1)  # type: ignore[arg-type]
        return larger(floor_divide(distance, step), 0)  # type: ignore[arg-type]

    def infer(self) -> TensorType:
        return TensorType((self._count(),), self.dtype)

    def compute(self) -> te.Tensor:
        return topi.arange(self.start, self.step, self._count(), self.dtype)

    def reference(self) -> Array:
        kind = numpy_dtype(self.dtype)
        index = np.arange(self._count()).astype(kind)  # type: ignore[arg-type]
        return np.asarray(self.start, kind) + index * np.asarray(self.step, kind)


def full(fill_value: Any, shape: Sequence[Dim], dtype: str = "float32") -> Call:
    """A tensor of one value, a Python number or a scalar constant."""
    value = fill_value.data.item() if isinstance(fill_value, Constant) else fill_value
    return Full(shape=tuple(shape), dtype=dtype, fill_value=value)()


def full_like(data: Expr, fill_value: Any) -> Call:
    """A tensor of one value, of the type of `data`."""
    return full(fill_value, data.shape, str(data.dtype))


def zeros(shape: Sequence[Dim], dtype: str = "float32") -> Call:
    """A tensor of zeros."""
    return full(0, shape, dtype)


def ones(shape: Sequence[Dim], dtype: str = "float32") -> Call:
    """A tensor of ones."""
    return full(1, shape, dtype)


def zeros_like(data: Expr) -> Call:
    """Zeros of the type of `data`."""
    return full_like(data, 0)


def ones_like(data: Expr) -> Call:
    """Ones of the type of `data`."""
    return full_like(data, 1)


def size_tensor(values: Sequence[Dim], shape: Sequence[int] | None = None, dtype: str = "int64") -> Call:
    """A tensor of sizes: a vector, or of `shape`."""
    return Sizes(values=tuple(values), shape=(len(values),) if shape is None else tuple(shape), dtype=dtype)()


def arange(start: float | Dim, stop: float | Dim | None = None, step: float = 1, dtype: str = "float32") -> Call:
    """start, start + step, ... below stop; with one argument from 0 to it."""
    first, last = (0, start) if stop is None else (start, stop)
    return Arange(start=first, stop=last, step=step, dtype=dtype)()

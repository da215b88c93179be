"""Operators that make tensors from attributes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import te
import topi
from relay.expr import Call, Constant, Expr
from relay.op.base import OpDef, OpPattern, register_op
from relay.op.common import Array, numpy_dtype, require
from relay.type import TensorType, Type
from te.tir import Dim

__all__ = [
    "Arange", "Full", "arange", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like",
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


@register_op("arange", pattern=OpPattern.INJECTIVE)
class Arange(OpDef):
    """start, start + step, ... below (above, for a negative step) stop (ONNX: Range). (C1) step is not 0."""

    start: float = 0
    stop: float
    step: float = 1
    dtype: str = "float32"

    def _count(self) -> int:
        require(self.step != 0, "(C1) step must not be 0")
        return max(0, math.ceil((self.stop - self.start) / self.step))

    def infer(self) -> TensorType:
        return TensorType((self._count(),), self.dtype)

    def compute(self) -> te.Tensor:
        return topi.arange(self.start, self.step, self._count(), self.dtype)

    def reference(self) -> Array:
        kind = numpy_dtype(self.dtype)
        index = np.arange(self._count()).astype(kind)
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


def arange(start: float, stop: float | None = None, step: float = 1, dtype: str = "float32") -> Call:
    """start, start + step, ... below stop; with one argument from 0 to it."""
    first, last = (0, start) if stop is None else (start, stop)
    return Arange(start=first, stop=last, step=step, dtype=dtype)()

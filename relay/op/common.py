"""Helpers of operator definitions: checks, axes, and numpy references computed in wider types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Expr, const
from relayc.relay.sizes import is_at_least
from relayc.relay.type import TensorType
from relayc.te.tir import Dim, PrimExpr

__all__ = [
    "WIDEST_VECTOR",
    "Array",
    "as_expr",
    "at_least",
    "check_axes",
    "check_axis",
    "fill_panels",
    "ints",
    "numpy_dtype",
    "require",
    "require_float",
    "require_pairs",
    "require_same_dtype",
    "require_weights_of",
    "static_shape",
    "widened",
    "with_dim",
]

Array = np.ndarray[Any, Any]

WIDEST_VECTOR = 16
"""Elements of 32 bits in the widest vectors of CPUs."""


def require(condition: bool, constraint: str) -> None:
    """Raise TypeInferenceError with the sentence of the constraint, unless `condition`."""
    if not condition:
        raise TypeInferenceError(constraint)


def require_same_dtype(number: int, *types: TensorType) -> None:
    """Constraint `number`: all inputs have one element type."""
    if any(t.dtype != types[0].dtype for t in types):
        found = " and ".join(str(t.dtype) for t in types)
        raise TypeInferenceError(f"(C{number}) inputs must have one element type; got {found}: cast one")


def require_weights_of(number: int, data: TensorType, weight: TensorType) -> None:
    """Constraint `number`: weights have the data's element type, or one of fewer bits whose values it represents."""
    narrow = {"float32": ("float16", "bfloat16"), "int32": ("int8", "int16")}.get(str(data.dtype), ())
    if str(weight.dtype) not in (str(data.dtype), *narrow):
        raise TypeInferenceError(f"(C{number}) weights of {weight.dtype} for data of {data.dtype}: cast one")


def require_pairs(number: int, data: TensorType, weight: TensorType) -> None:
    """Constraint `number`: both are integers, of a byte (quantised values, for data), or int32 known to lie within 16
    bits."""
    fits = str(data.dtype) in ("uint8", "int8", "int32") and str(weight.dtype) in ("int8", "int16", "int32")
    require(fits, f"(C{number}) data {data} and weights {weight} are no integers that can be multiplied in pairs")


def require_float(number: int, x: TensorType) -> None:
    """Constraint `number`: x is a tensor of floats."""
    if not x.dtype.is_float:
        raise TypeInferenceError(f"(C{number}) the element type must be a float; got {x.dtype}: cast it")


def static_shape(x: Expr, ndim: int) -> tuple[int, ...]:
    """The shape of a tensor that has `ndim` dimensions, all known at compile time."""
    require(len(x.shape) == ndim, f"expected a tensor of {ndim} dimensions; got {x.ty}")
    return x.tensor_type.static_shape


def check_axis(number: int, axis: int, ndim: int) -> int:
    """Constraint `number`: `axis` is in [-ndim, ndim). Returns it counted from the front."""
    if not -ndim <= axis < ndim:
        raise TypeInferenceError(f"(C{number}) axis {axis} must be at least {-ndim} and below {ndim}")
    return axis + ndim if axis < 0 else axis


def check_axes(number: int, axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Constraint `number`: `axes` are different axes in [-ndim, ndim). Returns them counted from the front."""
    found = tuple([check_axis(number, a, ndim) for a in axes])
    require(len(set(found)) == len(found), f"(C{number}) an axis occurs twice in {tuple(axes)}")
    return found


def at_least(size: Dim, least: int) -> bool:
    """Is `size` at least `least`, as far as it is known?"""
    return isinstance(size, PrimExpr) or size >= least


def fill_panels(outputs: Dim, panels: Dim, width: Dim) -> bool:
    """Do so many outputs end within the last one of `panels` of `width` outputs?"""
    assert isinstance(width, int)
    room = panels * width
    return is_at_least(room, outputs) and is_at_least(outputs, room - width + 1)


def with_dim(shape: Sequence[Dim], axis: int, dim: Dim) -> tuple[Dim, ...]:
    """`shape` with dimension `axis` set to `dim`."""
    return (*shape[:axis], dim, *shape[axis + 1 :])


def ints(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """`value` as `count` integers, one for each dimension; a single integer is repeated."""
    if isinstance(value, int):
        return (value,) * count
    return tuple([int(v) for v in value])


def padding_pairs(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Padding as (begin..., end...) of `rank` dimensions; one integer, or one for each dimension, pads both ends."""
    amounts = ints(value, rank)
    return (*amounts, *amounts) if len(amounts) == rank else amounts


def as_expr(value: Any, like: Expr) -> Expr:
    """`value` as an expression; a Python number becomes a constant of the element type of `like`."""
    return value if isinstance(value, Expr) else const(value, str(like.dtype))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type that the compiler calls `name`."""
    return const(0, name).data.dtype


def widened(f: Callable[..., Array], *arrays: Array) -> Array:
    """``f(*arrays)`` with low-precision floats computed in float32 and rounded once; without numpy's warnings."""
    kind = arrays[0].dtype
    with np.errstate(all="ignore"):
        if kind.itemsize < 4 and kind.kind in "fV":
            return f(*[a.astype(np.float32) if a.dtype == kind else a for a in arrays]).astype(kind)
        return f(*arrays)

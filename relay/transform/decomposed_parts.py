"""Helpers of the rules of `RecognizePatterns`: patterns of scalars, squares and roots; dimensions of reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from relayc.relay.expr import Call, Constant, Expr
from relayc.relay.op.base import expect_op
from relayc.relay.op.nn.norm import Standardize
from relayc.relay.op.reduce import Reduction
from relayc.relay.pattern import Pattern, is_constant, is_op
from relayc.relay.transform.builders import array_of, reshaped

__all__ = [
    "count_reduced", "inverse_root_of", "last_axes", "mean_of", "number", "one_number", "over_root", "parameter",
    "reduced_axes", "root_of", "square_of", "value_of",
]  # fmt: skip


def number(value: float, tolerance: float = 1e-3) -> Pattern:
    """A constant of one element, close to `value`."""
    return is_constant(lambda c: c.data.size == 1 and abs(float(c.data.item()) - value) <= tolerance * abs(value))


def one_number() -> Pattern:
    """A constant of one element."""
    return is_constant(lambda c: c.data.size == 1)


def value_of(e: Expr) -> float:
    """The value of a constant of one element."""
    return float(array_of(e).item())


def mean_of(x: Pattern) -> Pattern:
    """The mean of `x` over dimensions that are kept, with size 1."""
    return is_op("mean")(x).has_attr({"keepdims": True})


def square_of(x: Pattern) -> Pattern:
    """x ** 2 or x * x"""
    return is_op("power")(x, number(2.0, 0.0)) | is_op("multiply")(x, x)


def root_of(x: Pattern) -> Pattern:
    """sqrt(x) or x ** 0.5"""
    return is_op("sqrt")(x) | is_op("power")(x, number(0.5, 0.0))


def inverse_root_of(x: Pattern) -> Pattern:
    """rsqrt(x), x ** -0.5 or 1 / sqrt(x)"""
    return is_op("rsqrt")(x) | is_op("power")(x, number(-0.5, 0.0)) | is_op("divide")(number(1.0, 0.0), root_of(x))


def over_root(x: Pattern, mean_of_squares: Pattern, epsilon: Pattern, gamma: Pattern) -> Pattern:
    """x / sqrt(mean_of_squares + epsilon), in any equivalent form; times gamma, where that scales the inverse root."""
    total = is_op("add")(mean_of_squares, epsilon)
    inverse = inverse_root_of(total)
    return is_op("divide")(x, root_of(total)) | is_op("multiply")(x, inverse | is_op("multiply")(inverse, gamma))


def reduced_axes(reduction: Call) -> tuple[int, ...]:
    """The reduced dimensions, in ascending order."""
    rank = len(reduction.args[0].shape)
    axes = expect_op(reduction, Reduction, Standardize).axis
    return tuple(sorted(range(rank) if axes is None else [a % rank for a in axes]))


def last_axes(reduction: Call) -> int | None:
    """The first of the trailing dimensions that `reduction` reduces; None if it reduces others."""
    rank, found = len(reduction.args[0].shape), reduced_axes(reduction)
    return found[0] if found and found == tuple(range(rank - len(found), rank)) else None


def count_reduced(reduction: Call) -> int | None:
    """The number of elements reduced to one; None if it is dynamic."""
    sizes = [reduction.args[0].shape[a] for a in reduced_axes(reduction)]
    return math.prod(d for d in sizes if isinstance(d, int)) if all(isinstance(d, int) for d in sizes) else None


def parameter(e: Expr, shape: tuple[Any, ...]) -> Constant | None:
    """A constant as a parameter of exactly `shape`; None when it has no such form."""
    if not isinstance(e, Constant) or not all(isinstance(d, int) for d in shape):
        return None
    if e.data.size == 1:
        return Constant(np.full([int(d) for d in shape], e.data.item(), e.data.dtype))
    squeezed = e.data.shape[max(e.data.ndim - len(shape), 0) :]
    leading = e.data.shape[: max(e.data.ndim - len(shape), 0)]
    fits = squeezed == tuple(shape) and all(d == 1 for d in leading)
    return Constant(array_of(reshaped(e, shape)), span=e.span) if fits else None

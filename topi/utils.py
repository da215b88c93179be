"""Shapes and indices, shared by the compute definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from relayc import te
from relayc.te.errors import CompileError
from relayc.te.index import IndexMath
from relayc.te.tir import Dim, Mul, PrimExpr, Var, as_dim, as_int, convert, product

__all__ = [
    "accumulator_type",
    "broadcast_index",
    "ceil_div",
    "full_precision",
    "is_at_most_one",
    "matching_parts",
    "normalize_axes",
    "normalize_axis",
    "ravel_index",
    "same_dim",
    "unravel_index",
]

Index = Sequence[Any]


def normalize_axis(axis: int, ndim: int) -> int:
    """`axis` counted from the front. Raises CompileError when a tensor of `ndim` dimensions has no such axis."""
    if not -ndim <= axis < ndim:
        raise CompileError(f"axis {axis} is out of range for {ndim} dimensions")
    return axis + ndim if axis < 0 else axis


def normalize_axes(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front, ascending; None means all of them."""
    if axes is None:
        return tuple(range(ndim))
    return tuple(sorted({normalize_axis(a, ndim) for a in ([axes] if isinstance(axes, int) else axes)}))


def same_dim(a: Dim, b: Dim) -> bool:
    """Are two sizes known to be equal?"""
    x, y = as_int(a), as_int(b)
    return x == y if x is not None and y is not None else a is b


def is_at_most_one(d: Dim) -> bool:
    """Is a size known to be at most 1? Such a dimension broadcasts: the slice 0:1 of n elements has min(1, n)."""
    known = as_int(d)
    if known is not None or isinstance(d, Var):
        return known == 1
    math = IndexMath()
    return math.nonneg(math.dim(1) - math.dim(d))


def ceil_div(a: Dim, b: Dim) -> Dim:
    """a / b rounded up."""
    return as_dim((a + (b - 1)) // b)


def ravel_index(index: Index, shape: Sequence[Dim]) -> PrimExpr:
    """The row-major position of `index` in a tensor of `shape`."""
    position: Any = convert(0)
    for i, (value, dim) in enumerate(zip(index, shape, strict=True)):
        position = convert(value) if i == 0 else position * dim + value
    return position


def matching_parts(a: Sequence[Dim], b: Sequence[Dim]) -> Iterator[tuple[slice, slice]]:
    """Split two shapes of one size into the shortest runs of dimensions with equal products."""
    i = j = 0
    while i < len(a) or j < len(b):
        start, first, second = (i, j), _Count(), _Count()
        while i < len(a) or j < len(b):
            if j == len(b) or (i < len(a) and not first.is_ahead_of(second)):
                first.add(a[i])
                i += 1
            else:
                second.add(b[j])
                j += 1
            if first.is_equal_to(second):
                break
        yield slice(start[0], i), slice(start[1], j)


class _Count:
    """A product of sizes: a constant times symbolic sizes."""

    def __init__(self) -> None:
        self.number = 1
        self.symbols: list[int] = []

    def add(self, d: Dim) -> None:
        known = as_int(d)
        if isinstance(d, Mul):
            self.add(d.a)
            self.add(d.b)
        elif known is None:
            self.symbols = sorted((*self.symbols, id(d)))
        else:
            self.number *= known

    def is_equal_to(self, other: _Count) -> bool:
        return (self.number, self.symbols) == (other.number, other.symbols)

    def is_ahead_of(self, other: _Count) -> bool:
        return (len(self.symbols), self.number) > (len(other.symbols), other.number)


def unravel_index(position: Any, shape: Sequence[Dim]) -> list[Any]:
    """The index of row-major `position` in a tensor of `shape`; any one if the tensor has no elements."""
    index: list[Any] = [convert(0)] * len(shape)
    last = next((axis for axis, size in enumerate(shape) if as_int(size) != 1), 0)
    if last and as_int(shape[last]) is not None:
        last = 0  # of a dynamic size behind sizes of 1 nothing would know that there is no remainder
    rest = position
    for axis in range(len(shape) - 1, last, -1):
        if as_int(shape[axis]) not in (0, 1):
            index[axis] = rest % shape[axis]
            rest = rest // shape[axis]
    if index:
        index[last] = rest
    return index


def broadcast_index(index: Index, shape: Sequence[Dim]) -> list[Any]:
    """The index into a tensor of `shape` that output element `index` reads, by numpy's broadcasting."""
    tail = list(index)[len(index) - len(shape) :]
    return [0 if is_at_most_one(dim) else i for i, dim in zip(tail, shape, strict=True)]


def accumulator_type(dtype: str) -> str:
    """The type that long sums of `dtype` values are kept in: float32 for the low-precision floats, else `dtype`."""
    kind = te.const(0, dtype).dtype
    return "float32" if kind.is_float and kind.bits < 32 else dtype


def full_precision(f: Callable[..., PrimExpr], *args: PrimExpr) -> PrimExpr:
    """``f(*args)`` computed in float32 when the arguments are low-precision floats, and rounded once."""
    kind = args[0].dtype
    if not kind.is_float or kind.bits >= 32:
        return f(*args)
    return te.cast(kind, f(*[te.cast("float32", a) for a in args]))


def num_elements(shape: Sequence[Dim]) -> Dim:
    """The number of elements of a tensor of `shape`."""
    return product(shape)

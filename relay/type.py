"""Types of the graph IR, interned: equal types are the same object.

    type = TensorType(shape, dtype) | TupleType(fields) | FuncType(arg_types, ret_type)
         | SequenceType(element) | OptionalType(value)       see `relay.container_type`

A dimension is a Python int, or a loop-IR expression (`te.var("n")`) if it is symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from relayc.backend.runtime.sizes import MAX_EXTENT, extent
from relayc.relay.errors import TypeInferenceError
from relayc.relay.sizes import dims_equal, dims_match, is_at_least, normal
from relayc.te.dtype import DType, dtype
from relayc.te.ir.structural import StructuralEqual
from relayc.te.tir import Dim, PrimExpr, Var as TirVar, as_dim

__all__ = [
    "MAX_RANK",
    "FuncType",
    "TensorType",
    "TupleType",
    "Type",
    "as_tuple",
    "broadcast_shapes",
    "broadcasts_to",
    "dims_equal",
    "dims_match",
    "scalar_type",
    "shapes_equal",
    "shapes_match",
]


MAX_RANK = 64
"""Most dimensions of a tensor, which is numpy's limit. The time to compile a kernel grows faster than its rank."""


class Type:
    """Base of the types. Compare with `is` or `==`: both mean the same."""

    __slots__ = ("__weakref__",)


class TensorType(Type):
    """A tensor of `shape` and `dtype`; shape `()` is a scalar."""

    __slots__ = ("_text", "dtype", "shape", "size")
    _interned: ClassVar[WeakValueDictionary[Any, TensorType]] = WeakValueDictionary()

    shape: tuple[Dim, ...]
    dtype: DType
    size: int | None
    """Number of elements; None when a dimension is symbolic."""
    _text: str

    def __new__(cls, shape: Sequence[Dim], dtype_: str = "float32") -> TensorType:
        if type(shape) is not tuple:
            shape = as_tuple("a shape", shape, "sizes, such as (1, 8)")
        try:
            found = cls._interned.get((shape, dtype_))
        except TypeError:  # what has no hash is no dimension or name: refused below
            found = None
        if found is not None:
            return found
        if len(shape) > MAX_RANK:
            raise TypeInferenceError(f"a tensor of {len(shape)} dimensions; expected at most {MAX_RANK}")
        shape = tuple([normal(_as_size(d)) for d in shape])
        known = [d for d in shape if isinstance(d, int)]
        if known and min(known) < 0:
            raise TypeInferenceError(f"a dimension can't be negative: {shape_text(shape)}")
        if extent(known) > MAX_EXTENT:
            raise TypeInferenceError(f"a tensor of shape {shape_text(shape)}; expected at most {MAX_EXTENT} elements")
        element = dtype(dtype_)
        key = (shape, element)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.shape, found.dtype = shape, element
            found.size = math.prod(known) if len(known) == len(shape) else None
            found._text = ""
            cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.shape, str(self.dtype))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Are all dimensions known at compile time?"""
        return self.size is not None

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints. Raises TypeInferenceError when a dimension is symbolic."""
        if self.size is None:
            raise TypeInferenceError(f"the shape must be known at compile time; got {self}")
        return self.shape  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        """Bytes of a compact tensor of this type. Raises TypeInferenceError when a dimension is symbolic."""
        return math.prod(self.static_shape) * self.dtype.nbytes

    def with_shape(self, shape: Sequence[Dim]) -> TensorType:
        """A tensor of another shape with this element type."""
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype_: str) -> TensorType:
        """A tensor of another element type with this shape."""
        return TensorType(self.shape, dtype_)

    def structural_equal_to(self, other: TensorType, equal: StructuralEqual) -> bool:
        """Same element type and equal dimensions; symbolic ones through the comparison in progress."""
        if self is other:
            return True
        return self.dtype == other.dtype and self.size == other.size and equal(self.shape, other.shape)

    def __str__(self) -> str:
        if not self._text:
            self._text = f"Tensor[{shape_text(self.shape)}, {self.dtype}]" if self.shape else str(self.dtype)
        return self._text

    __repr__ = __str__


class TupleType(Type):
    """A tuple of values."""

    __slots__ = ("fields",)
    _interned: ClassVar[WeakValueDictionary[Any, TupleType]] = WeakValueDictionary()

    fields: tuple[Type, ...]

    def __new__(cls, fields: Iterable[Type]) -> TupleType:
        key = as_tuple("the fields of a tuple", fields, "types")
        _check_types(key)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.fields = key
            cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TupleType, (self.fields,)

    def structural_equal_to(self, other: TupleType, equal: StructuralEqual) -> bool:
        return self is other or equal(self.fields, other.fields)

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.fields))
        return f"({inner},)" if len(self.fields) == 1 else f"({inner})"

    __repr__ = __str__


class FuncType(Type):
    """A function from `arg_types` to `ret_type`."""

    __slots__ = ("arg_types", "ret_type")
    _interned: ClassVar[WeakValueDictionary[Any, FuncType]] = WeakValueDictionary()

    arg_types: tuple[Type, ...]
    ret_type: Type

    def __new__(cls, arg_types: Iterable[Type], ret_type: Type) -> FuncType:
        key = (as_tuple("the parameters of a function", arg_types, "types"), ret_type)
        _check_types((*key[0], ret_type))
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.arg_types, found.ret_type = key
            cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return FuncType, (self.arg_types, self.ret_type)

    def structural_equal_to(self, other: FuncType, equal: StructuralEqual) -> bool:
        return self is other or (equal(self.arg_types, other.arg_types) and equal(self.ret_type, other.ret_type))

    def __str__(self) -> str:
        return f"fn({', '.join(map(str, self.arg_types))}) -> {self.ret_type}"

    __repr__ = __str__


def as_tuple(what: str, values: Any, expected: str) -> tuple[Any, ...]:
    """The values as a tuple. Raises TypeInferenceError for what is no sequence."""
    try:
        return tuple(values)
    except TypeError:
        raise TypeInferenceError(f"{what}: got {values!r}; expected {expected}") from None


def _as_size(value: Any) -> Dim:
    """A dimension. Raises TypeInferenceError for anything but an integer or an integral expression of sizes."""
    size = as_dim(value)
    if not isinstance(size, int) and not size.dtype.is_integral:
        named = f" (of a dynamic size: te.size_var({value!r}))" if isinstance(value, str) else ""
        raise TypeInferenceError(f"a size is {value!r}; expected an integer or an expression of integers{named}")
    return size


def _check_types(values: Sequence[Any]) -> None:
    """Raise TypeInferenceError unless each of the values is a type."""
    for value in values:
        if not isinstance(value, Type):
            raise TypeInferenceError(f"a type is {value!r}; expected one such as relay.TensorType((1, 8), 'float32')")


def scalar_type(dtype_: str = "float32") -> TensorType:
    """The type of a tensor of rank 0."""
    return TensorType((), dtype_)


def shape_text(shape: Sequence[Dim]) -> str:
    """`(1, 3, n)` as it is printed in types and messages."""
    inner = ", ".join([d.name if isinstance(d, TirVar) else str(d) for d in shape])
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def shapes_equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Are two shapes known to be equal?"""
    return len(a) == len(b) and all(dims_equal(x, y) for x, y in zip(a, b, strict=True))


def shapes_match(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Are two shapes equal, or, in an `assuming` scope, not known to differ?"""
    return len(a) == len(b) and all(dims_match(x, y) for x, y in zip(a, b, strict=True))


def broadcast_shapes(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that all `shapes` broadcast to, by numpy's rule.

    A symbolic dimension broadcasts with 1 or itself; with any other it is an error, unless an `assuming` scope assumes
    them to be equal, or assumes a dimension that is at most 1 to be 1. Raises TypeInferenceError naming the first two
    dimensions that do not fit.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, d in enumerate(shape, start=rank - len(shape)):
            current = result[axis]
            if _is_one(current):
                result[axis] = d
            elif _is_one(d) or dims_equal(current, d) or _is_assumed_one(d):
                continue
            elif _is_assumed_one(current):
                result[axis] = d
            elif not dims_match(current, d, broadcast=True):
                listed = " and ".join(shape_text(s) for s in shapes)
                raise TypeInferenceError(f"shapes {listed} do not broadcast: {current} against {d} on axis {axis}")
            elif isinstance(d, int):
                result[axis] = d
    return tuple(result)


def broadcasts_to(shape: Sequence[Dim], target: Sequence[Dim]) -> bool:
    """Does a shape broadcast to `target`, or, in an `assuming` scope, is it not known that it does not?"""
    if len(shape) > len(target):
        return False
    pairs = zip(shape, target[len(target) - len(shape) :], strict=True)
    return all(_is_one(d) or _is_assumed_one(d) or dims_match(d, t, broadcast=True) for d, t in pairs)


def _is_assumed_one(d: Dim) -> bool:
    """Is a symbolic dimension at most 1, and assumed to be 1 in an `assuming` scope?"""
    return not isinstance(d, int) and is_at_least(1, d) and dims_match(d, 1)


def _is_one(d: Dim) -> bool:
    return not isinstance(d, PrimExpr) and d == 1

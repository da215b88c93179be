"""Types of values that hold a dynamic number of tensors, interned as all types.

    SequenceType(element)        a list of tensors
    OptionalType(value)          one tensor or sequence, or none
    element = ElementType(shape, dtype)

Tensors in one container have one element type; their sizes may differ. A tuple of known length is no sequence but a
`TupleType`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, cast
from weakref import WeakValueDictionary

from relayc.relay.errors import TypeInferenceError
from relayc.relay.sizes import dims_equal
from relayc.relay.type import TensorType, Type
from relayc.te.dtype import DType
from relayc.te.ir.structural import StructuralEqual
from relayc.te.tir import Dim

__all__ = ["NOTHING", "ContainerType", "ElementType", "OptionalType", "SequenceType", "join"]


class ElementType(Type):
    """The type that all tensors of a container have in common.

    `shape` is None where their ranks differ, a dimension None where sizes do. `dtype` is None for an empty container.
    """

    __slots__ = ("dtype", "shape")
    _interned: ClassVar[WeakValueDictionary[Any, ElementType]] = WeakValueDictionary()

    shape: tuple[Dim | None, ...] | None
    dtype: DType | None

    def __new__(cls, shape: Sequence[Dim | None] | None, dtype: DType | None) -> ElementType:
        key = (None if shape is None else tuple(shape), dtype)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.shape, found.dtype = key
            cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return ElementType, (self.shape, self.dtype)

    @staticmethod
    def of(ty: TensorType) -> ElementType:
        """The element type of tensors that all have type `ty`."""
        return ElementType(ty.shape, ty.dtype)

    def mapped(self, change: Callable[[Dim], Dim | None]) -> ElementType:
        """This element type with `change` applied to every known dimension."""
        if self.shape is None:
            return self
        return ElementType([None if d is None else change(d) for d in self.shape], self.dtype)

    def structural_equal_to(self, other: ElementType, equal: StructuralEqual) -> bool:
        """Have both the same element type and equal dimensions?"""
        return self is other or (self.dtype == other.dtype and equal(self.shape, other.shape))

    def __str__(self) -> str:
        if self.dtype is None:
            return "?"
        if self.shape is None:
            return f"?, {self.dtype}"
        inner = ", ".join(["?" if d is None else str(d) for d in self.shape])
        return f"({inner}{',' if len(self.shape) == 1 else ''}), {self.dtype}"

    __repr__ = __str__


NOTHING = ElementType(None, None)
"""The element of an empty sequence."""


class ContainerType(Type):
    """Base of the types of containers: `element` is what they hold."""

    __slots__ = ("element",)
    _interned: ClassVar[WeakValueDictionary[Any, ContainerType]] = WeakValueDictionary()
    word: ClassVar[str]

    element: ElementType | SequenceType

    def __new__(cls, element: ElementType | SequenceType) -> Self:
        key = (cls, element)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.element = element
            cls._interned[key] = found
        return cast(Self, found)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.element,)

    @property
    def tensors(self) -> ElementType:
        """The common type of the tensors inside, at any depth."""
        return self.element if isinstance(self.element, ElementType) else self.element.tensors

    def mapped(self, change: Callable[[Dim], Dim | None]) -> Self:
        """This container type with `change` applied to every known dimension of its tensors."""
        return type(self)(self.element.mapped(change))

    def structural_equal_to(self, other: ContainerType, equal: StructuralEqual) -> bool:
        """Are both the same kind of container, of equal elements?"""
        return self is other or equal(self.element, other.element)

    def __str__(self) -> str:
        return f"{self.word}[{self.element}]"

    __repr__ = __str__


class SequenceType(ContainerType):
    """A list of tensors of dynamic length (ONNX: sequence)."""

    __slots__ = ()
    word = "Sequence"


class OptionalType(ContainerType):
    """A tensor or a sequence, or nothing, decided at run time (ONNX: optional)."""

    __slots__ = ()
    word = "Optional"


_Held = ElementType | ContainerType


def join(a: _Held, b: _Held) -> Any:
    """The narrowest type that holds the values of both.

    Raises TypeInferenceError where there is none: other element types, a sequence and an optional value.
    """
    if a is b:
        return a
    if isinstance(a, ElementType) and isinstance(b, ElementType):
        return _joined_elements(a, b)
    if isinstance(a, ContainerType) and type(a) is type(b):
        return type(a)(join(a.element, b.element))  # type: ignore[union-attr]
    if a is NOTHING or b is NOTHING:
        return b if a is NOTHING else a
    raise TypeInferenceError(f"nothing holds both {a} and {b}")


def _joined_elements(a: ElementType, b: ElementType) -> ElementType:
    if a.dtype is None or b.dtype is None:
        return b if a.dtype is None else a
    if a.dtype != b.dtype:
        raise TypeInferenceError(f"tensors of {a.dtype} and of {b.dtype} in one container; expected one element type")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return ElementType(None, a.dtype)
    pairs = zip(a.shape, b.shape, strict=True)
    same = [d if d is not None and e is not None and dims_equal(d, e) else None for d, e in pairs]
    return ElementType(same, a.dtype)

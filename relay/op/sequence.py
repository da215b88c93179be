"""Operators on sequences and optional values, which the executor runs; compiled code never sees them.

Nothing is computed here: references to tensors are copied, and data only when tensors are joined or split. Positions
count from the front, negative ones from the end. Values are immutable: an insertion gives another sequence (which
shares storage where possible, see `backend.runtime.sequences`).
"""

from __future__ import annotations

import numpy as np

from relayc.relay.container_type import ContainerType, ElementType, SequenceType, join
from relayc.relay.expr import Call, Expr
from relayc.relay.op.base import OpPattern, attributes_of_operator, register_op
from relayc.relay.op.common import Array, check_axis, require
from relayc.relay.op.host import HostOperator
from relayc.relay.type import TensorType, Type
from relayc.te.errors import CompileError

__all__ = ["SequenceOperator", "cut", "erase", "get", "insert", "item", "join_items", "length", "make"]

Value = Array | list["Value"]


@attributes_of_operator
class SequenceOperator(HostOperator):
    """Base of the operators on containers."""


def _held(ty: Type) -> ElementType | SequenceType:
    """The element type of a container type `ty`."""
    if isinstance(ty, TensorType):
        return ElementType.of(ty)
    require(isinstance(ty, SequenceType), f"a container holds tensors or sequences; got {ty}")
    assert isinstance(ty, SequenceType)
    return ty


def _require_container(number: int, ty: Type) -> ContainerType:
    require(isinstance(ty, ContainerType), f"(C{number}) input 0 must be a sequence or an optional value; got {ty}")
    assert isinstance(ty, ContainerType)
    return ty


def _require_position(number: int, *position: Type) -> None:
    one = all(isinstance(p, TensorType) and p.dtype.is_int and p.size == 1 for p in position)
    require(one, f"(C{number}) the position must be one integer; got {', '.join(map(str, position))}")


@register_op("sequence.make", pattern=OpPattern.OPAQUE)
class Make(SequenceOperator):
    """A container of type `ty` of the inputs, in order (ONNX: SequenceConstruct, SequenceEmpty, Optional).

    (C1) the type holds them; (C2) an optional value has one at most.
    """

    ty: ContainerType
    keeps = slice(0, None)

    def infer(self, *items: Type) -> ContainerType:
        for item in items:
            fits = join(self.ty.element, _held(item)) is self.ty.element
            require(fits, f"(C1) {item} in a value of type {self.ty}")
        few = isinstance(self.ty, SequenceType) or len(items) <= 1
        require(few, f"(C2) {len(items)} values in one of type {self.ty}")
        return self.ty

    def reference(self, *items: Value) -> list[Value]:
        return list(items)


@register_op("sequence.insert", pattern=OpPattern.OPAQUE)
class Insert(SequenceOperator):
    """The sequence with a tensor before a position, at the end without one (ONNX: SequenceInsert).

    (C1) input 0 is a sequence, (C2) of tensors of the element type of input 1; (C3) the position is one integer.
    """

    keeps = slice(1, 2)

    def infer(self, sequence: Type, value: Type, *position: Type) -> ContainerType:
        ty = _require_container(1, sequence)
        _require_position(3, *position)
        return type(ty)(join(ty.element, _held(value)))

    def reference(self, sequence: list[Value], value: Value, *position: Array) -> list[Value]:
        at = _position(position[0], len(sequence), len(sequence)) if position else len(sequence)
        return [*sequence[:at], value, *sequence[at:]]


@register_op("sequence.erase", pattern=OpPattern.OPAQUE)
class Erase(SequenceOperator):
    """The sequence without the element at a position, the last without one (ONNX: SequenceErase).

    (C1) input 0 is a sequence; (C2) the position is one integer.
    """

    def infer(self, sequence: Type, *position: Type) -> ContainerType:
        ty = _require_container(1, sequence)
        _require_position(2, *position)
        return ty

    def reference(self, sequence: list[Value], *position: Array) -> list[Value]:
        at = _position(position[0] if position else np.array(-1), len(sequence))
        return [*sequence[:at], *sequence[at + 1 :]]


@register_op("sequence.item", pattern=OpPattern.OPAQUE)
class Item(SequenceOperator):
    """The element at a position, which is of type `result` (ONNX: SequenceAt).

    (C1) input 0 is a sequence; (C2) the position is one integer; (C3) its elements may be of that type.
    """

    result: TensorType

    def infer(self, sequence: Type, position: Type) -> TensorType:
        ty = _require_container(1, sequence)
        _require_position(2, position)
        _require_element(3, ty, self.result)
        return self.result

    def reference(self, sequence: list[Value], position: Array) -> Value:
        return sequence[_position(position, len(sequence))]


@register_op("optional.get", pattern=OpPattern.OPAQUE)
class Get(SequenceOperator):
    """The value inside an optional one, which is of type `result` (ONNX: OptionalGetElement).

    (C1) input 0 is an optional value; (C2) what it holds may be of that type.
    """

    result: TensorType | SequenceType

    def infer(self, optional: Type) -> TensorType | SequenceType:
        ty = _require_container(1, optional)
        _require_element(2, ty, self.result)
        return self.result

    def reference(self, optional: list[Value]) -> Value:
        if not optional:
            raise CompileError("an optional value without element; expected a value")
        return optional[0]


@register_op("sequence.length", pattern=OpPattern.OPAQUE)
class Length(SequenceOperator):
    """The number of elements as int64; of an optional value, 0 or 1 (ONNX: SequenceLength, OptionalHasElement).

    (C1) the input is a sequence or an optional value.
    """

    def infer(self, container: Type) -> TensorType:
        _require_container(1, container)
        return TensorType((), "int64")

    def reference(self, container: list[Value]) -> Array:
        return np.array(len(container), np.int64)


@register_op("sequence.join", pattern=OpPattern.OPAQUE)
class Join(SequenceOperator):
    """The elements one after another along `axis`, a new one with `new_axis` (ONNX: ConcatFromSequence).

    (C1) the input is a sequence; (C2) the axis is one of the result's.
    """

    axis: int
    new_axis: bool = False
    result: TensorType

    def infer(self, sequence: Type) -> TensorType:
        _require_container(1, sequence)
        check_axis(2, self.axis, self.result.ndim)
        return self.result

    def reference(self, sequence: list[Array]) -> Array:
        if not sequence:
            raise CompileError("an empty sequence is joined; expected at least one element")
        return np.stack(sequence, self.axis) if self.new_axis else np.concatenate(sequence, self.axis)


@register_op("sequence.cut", pattern=OpPattern.OPAQUE)
class Cut(SequenceOperator):
    """A tensor cut along `axis` into a sequence (ONNX: SplitToSequence).

    Input 1 says the sizes of the parts, or one size for all, the last of which may be smaller; without it the parts are
    slices, which have the axis if `keepdims`. (C1) the input is a tensor; (C2) it has that axis; (C3) sizes are
    integers.
    """

    axis: int
    keepdims: bool = True
    ty: SequenceType
    keeps = slice(0, 1)

    def infer(self, x: Type, *sizes: Type) -> SequenceType:
        require(isinstance(x, TensorType), f"(C1) input 0 must be a tensor; got {x}")
        check_axis(2, self.axis, x.ndim if isinstance(x, TensorType) else 0)
        integers = all(isinstance(s, TensorType) and s.dtype.is_int and s.ndim <= 1 for s in sizes)
        require(integers, f"(C3) sizes must be integers; got {', '.join(map(str, sizes))}")
        return self.ty

    def reference(self, x: Array, *sizes: Array) -> list[Value]:
        extent = x.shape[self.axis]
        if not sizes:
            parts = np.split(x, extent, self.axis) if extent else []
            return [p if self.keepdims else np.squeeze(p, self.axis) for p in parts]
        if sizes[0].ndim == 0:
            return list(np.split(x, range(int(sizes[0]), extent, int(sizes[0])), self.axis))
        return list(np.split(x, np.cumsum(sizes[0])[:-1], self.axis))


def _require_element(number: int, ty: ContainerType, result: TensorType | SequenceType) -> None:
    element = ty.element
    if isinstance(element, ElementType) and isinstance(result, TensorType):
        ranks = element.shape is None or len(element.shape) == result.ndim
        fits = ranks and element.dtype in (None, result.dtype)
    else:
        fits = element is result
    require(fits, f"(C{number}) a {result} in a value of type {ty}")


def _position(position: Array, count: int, last: int | None = None) -> int:
    at, last = int(position.reshape(-1)[0]), count - 1 if last is None else last
    if not -count <= at <= last:
        raise CompileError(f"position {at} in a sequence of {count}; expected {-count} to {last}")
    return at if at >= 0 else at + count


def make(ty: ContainerType, *items: Expr) -> Call:
    """A sequence or an optional value of type `ty`."""
    return Make(ty=ty)(*items)


def insert(sequence: Expr, value: Expr, position: Expr | None = None) -> Call:
    """The sequence with one element more."""
    return Insert()(sequence, value) if position is None else Insert()(sequence, value, position)


def erase(sequence: Expr, position: Expr | None = None) -> Call:
    """The sequence with one element less."""
    return Erase()(sequence) if position is None else Erase()(sequence, position)


def item(sequence: Expr, position: Expr, result: TensorType) -> Call:
    """An element, which has to be of type `result`."""
    return Item(result=result)(sequence, position)


def get(optional: Expr, result: TensorType | SequenceType) -> Call:
    """The value of an optional value, which has to be of type `result`."""
    return Get(result=result)(optional)


def length(container: Expr) -> Call:
    """The number of values in a container."""
    return Length()(container)


def join_items(sequence: Expr, axis: int, new_axis: bool, result: TensorType) -> Call:
    """The elements concatenated or stacked, which has to give the type `result`."""
    return Join(axis=axis, new_axis=new_axis, result=result)(sequence)


def cut(x: Expr, sizes: Expr | None, axis: int, keepdims: bool, ty: SequenceType) -> Call:
    """The parts of a tensor as a sequence of type `ty`."""
    op = Cut(axis=axis, keepdims=keepdims, ty=ty)
    return op(x) if sizes is None else op(x, sizes)

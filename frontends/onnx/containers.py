"""Non-tensor inputs and outputs of a model: sequences, optional values, maps.

During import, a sequence of static length is a tuple of tensors, an empty optional value is `ABSENT`, a present one is
its element. Dynamic sequences and optional values are values of the program (`relay.container_type`). A sequence of
maps, supported for outputs only, is a matrix and the maps' keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from onnx import TypeProto, ValueInfoProto

from relayc.backend.runtime.strings import as_strings
from relayc.frontends.onnx.errors import ValueNeededError, compose, fault
from relayc.frontends.onnx.tensors import dtype_name
from relayc.relay.container_type import NOTHING, ContainerType, ElementType, OptionalType, SequenceType, join
from relayc.relay.errors import TypeInferenceError
from relayc.relay.expr import Call, Constant, Expr, Tuple, Var
from relayc.relay.op.base import OpDef, OpPattern, attributes_of_operator
from relayc.relay.op.common import require
from relayc.relay.op.sequence import Make
from relayc.relay.type import TensorType, TupleType
from relayc.te.dtype import dtype
from relayc.te.ir import Span

__all__ = [
    "ABSENT",
    "ZipMap",
    "constant_of",
    "declared_container",
    "is_tensor",
    "joined_type",
    "made",
    "other_inputs",
    "runtime_value",
    "shape_of",
    "value_type",
    "why_on_host",
]

ABSENT = Tuple(())
"""The empty optional value, compared by identity."""


@attributes_of_operator
class ZipMap(OpDef):
    """A map per row of scores (N, keys); only as an output of the model (ONNX: ZipMap of ai.onnx.ml).

    (C1) the scores are a matrix with a column for each key.
    """

    name: ClassVar[str] = "ml.zip_map"
    pattern: ClassVar[OpPattern] = OpPattern.OPAQUE
    num_inputs: ClassVar[tuple[int, int | None]] = (1, 1)
    has_side_effect: ClassVar[bool] = True  # never computed, not even of constants

    keys: tuple[Any, ...]

    def infer(self, scores: TensorType) -> TupleType:
        fits = scores.ndim == 2 and scores.shape[1] == len(self.keys)
        require(bool(fits), f"(C1) scores {scores} for {len(self.keys)} keys; expected a column for each")
        return TupleType([scores])


def _kind(of: TypeProto) -> TypeProto:
    """The element type of an optional type; other types unchanged."""
    return of.optional_type.elem_type if of.HasField("optional_type") else of


def is_tensor(value: ValueInfoProto) -> bool:
    """Is the value a tensor? Values without a declared type count as tensors."""
    return value.type.HasField("tensor_type") or value.type.WhichOneof("value") is None


def shape_of(value: Any) -> Any:
    """The `shape` argument of `from_onnx` for a value: a shape, a list of shapes for a sequence, None for no value."""
    if value is None:
        return None
    return [shape_of(item) for item in value] if isinstance(value, list) else value.shape


def other_inputs(
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, Any],
    constants: Mapping[str, Any],
    where: str,
    rank: int | None = None,
) -> tuple[dict[str, Expr], dict[str, list[Var]]]:
    """The values of non-tensor inputs, and the parameters that they consist of, both by name.

    Element i of a sequence "x" with known shapes is the parameter "x[i]"; other sequences and optional tensors are one
    parameter, of `rank` where the model declares none. Raises `OnnxImportError` for a map, `ValueNeededError` for any
    other input without a shape.
    """
    values: dict[str, Expr] = {}
    parts: dict[str, list[Var]] = {}
    for value in inputs:
        params = parts[value.name] = list[Var]()
        place = f"{where}: input {value.name!r}"
        if value.type.HasField("map_type"):
            remedy = "export the model without the operator that reads it (DictVectorizer), and pass its matrix"
            raise fault(place, "maps are no tensors", remedy=remedy)
        if value.name in constants:
            values[value.name] = _constant(constants[value.name], value, place)
        elif value.name in shapes:
            values[value.name] = _of_shape(shapes[value.name], value.name, value.type, place, params)
        elif (ty := declared_container(value, place, rank)) is None:
            raise _form_needed(value, place)
        else:
            params.append(Var(name=value.name, ty=ty, span=Span(place, value.name)))
            values[value.name] = params[-1]
    return values, parts


def declared_container(value: ValueInfoProto, place: str, rank: int | None = None) -> ContainerType | None:
    """The container type of an input that is a sequence or an optional tensor; None for others.

    Named dimensions may differ from element to element, and so may ranks that are not declared, unless there is `rank`.
    """
    of, optional = value.type, value.type.HasField("optional_type")
    tensor = of.optional_type.elem_type.tensor_type if optional else of.sequence_type.elem_type.tensor_type
    if not tensor.elem_type:
        return None
    kind, shape = dtype(dtype_name(tensor.elem_type, place)), None if rank is None else [None] * rank
    if tensor.HasField("shape"):
        shape = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    return OptionalType(ElementType(shape, kind)) if optional else SequenceType(ElementType(shape, kind))


def _form_needed(value: ValueInfoProto, place: str) -> ValueNeededError:
    problem = "whether there is a value, and its shape, must be known when compiling"
    remedy = f"give a shape (a list of them for a sequence), or None: shape={{{value.name!r}: (...)}}"
    return ValueNeededError(compose(place, problem, remedy=remedy), (value.name,))


def _constant(passed: Any, value: ValueInfoProto, place: str) -> Expr:
    if passed is None:
        return ABSENT
    if isinstance(passed, list | tuple):
        return Tuple(tuple([_constant(item, value, place) for item in passed]))
    return constant_of(passed, Span(place, value.name), place)


def constant_of(passed: Any, span: Span, place: str) -> Constant:
    """The constant that a user binds an input to. Raises `OnnxImportError` for what is no array."""
    try:
        data = np.asarray(passed)
        return Constant(as_strings(data) if data.dtype.kind in "OSUT" else data, span=span)
    except ValueError as error:
        raise fault(place, f"constants= gives no array: {error}") from error


def _of_shape(shape: Any, name: str, of: TypeProto, place: str, params: list[Var]) -> Expr:
    """A parameter for a shape, a tuple of parameters for a list of shapes, or nothing."""
    if shape is None and of.HasField("optional_type"):
        return ABSENT
    kind = _kind(of)
    if kind.HasField("sequence_type"):
        if not isinstance(shape, list):
            raise fault(place, f"shape= gives {shape}", expected="a list of shapes, one for each element")
        element = kind.sequence_type.elem_type
        return Tuple(tuple([_of_shape(s, f"{name}[{i}]", element, place, params) for i, s in enumerate(shape)]))
    if not isinstance(shape, tuple):
        raise fault(place, f"shape= gives {shape}", expected="a shape")
    ty = TensorType(shape, dtype_name(kind.tensor_type.elem_type, place))
    params.append(Var(name=name, ty=ty, span=Span(place, name)))
    return params[-1]


def why_on_host(inputs: Sequence[Expr | None], results: Sequence[Expr | None]) -> str:
    """Why a node on these kinds of values is evaluated during import, not compiled; empty if it is compiled."""
    types = [x.ty for x in (*inputs, *results) if x is not None]
    if any(isinstance(x, Call) and isinstance(x.op, ZipMap) for x in results):
        return "maps"
    is_dynamic = any(x is not None and isinstance(x.ty, ContainerType) for x in results)
    known = not is_dynamic and any(isinstance(ty, TupleType) for ty in types)
    return "sequences and optional values" if known else ""


def value_type(x: Expr) -> TensorType | ContainerType:
    """The type of a value as a runtime value; tuples are sequences."""
    if x is ABSENT:
        return OptionalType(NOTHING)
    if isinstance(x, Tuple):
        element = NOTHING
        for field in x.fields:
            element = join(element, ElementType.of(field.tensor_type))
        return SequenceType(element)
    assert isinstance(x.ty, TensorType | ContainerType), "converters give tensors and containers"
    return x.ty


def joined_type(a: TensorType | ContainerType, b: TensorType | ContainerType) -> ContainerType:
    """The common supertype of `a` and `b`, at least one of them a container.

    Raises TypeInferenceError where there is none.
    """
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        return join(_optional(a), _optional(b))
    if isinstance(a, ContainerType) and isinstance(b, ContainerType):
        return join(a, b)
    raise TypeInferenceError(f"nothing holds both {a} and {b}")


def _optional(ty: TensorType | ContainerType) -> OptionalType:
    if isinstance(ty, OptionalType):
        return ty
    if isinstance(ty, TensorType):
        return OptionalType(ElementType.of(ty))
    assert isinstance(ty, SequenceType)
    return OptionalType(ty)


def made(x: Expr, ty: ContainerType, span: Span | None = None) -> Expr:
    """Convert a value, possibly a tuple, to a runtime value of container type `ty`."""
    if x is ABSENT:
        return Make(ty=ty)(span=span)
    if isinstance(ty, OptionalType) and not isinstance(x.ty, OptionalType):
        inner = made(x, ty.element, span) if isinstance(ty.element, SequenceType) else x
        return Make(ty=ty)(inner, span=span)
    return Make(ty=ty)(*x.fields, span=span) if isinstance(x, Tuple) else x


def runtime_value(x: Expr) -> Expr:
    """An output as the compiled model gives it: a tensor, the scores of maps, or a runtime value of container type."""
    if isinstance(x, Call) and isinstance(x.op, ZipMap):
        return x.args[0]
    ty = value_type(x)
    return made(x, ty) if isinstance(ty, ContainerType) else x

"""The metadata of an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from relayc.backend.runtime.metadata import DeclaredShape, ModelMetadata
from relayc.frontends.onnx.containers import is_tensor
from relayc.frontends.onnx.inputs import declared_shape, graph_inputs
from relayc.frontends.onnx.tensors import dtype_name
from relayc.te.errors import CompileError

__all__ = ["metadata_of"]

_FIRST_WITH_DEFAULTS = 4
"""The first version of ONNX's file format in which an initializer of an input is its default value."""


def metadata_of(proto: ModelProto) -> ModelMetadata:
    """What the model says about itself. Initializers are constants before version 4 of ONNX's file format."""
    overridable = _overridable(proto.graph) if proto.ir_version >= _FIRST_WITH_DEFAULTS else []
    inputs = [*graph_inputs(proto.graph), *[value for value, _ in overridable]]
    others = [value for value in (*inputs, *proto.graph.output) if not is_tensor(value)]
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
        custom_metadata_map={entry.key: entry.value for entry in proto.metadata_props},
        input_shapes=_shapes(inputs),
        output_shapes=_shapes(proto.graph.output),
        overridable_initializers={value.name: dtype for value, dtype in overridable},
        container_types={value.name: text for value in others if (text := _type_text(value.type))},
    )


def _overridable(graph: GraphProto) -> list[tuple[ValueInfoProto, str]]:
    """The inputs that have an initializer, and their element types; without those of types that can't be passed."""
    required = {value.name for value in graph_inputs(graph)}
    tensors = [value for value in graph.input if value.name not in required and is_tensor(value)]
    return [(value, dtype) for value in tensors if (dtype := _dtype(value)) is not None]


def _dtype(value: ValueInfoProto) -> str | None:
    try:
        return dtype_name(value.type.tensor_type.elem_type, f"input {value.name!r}")
    except CompileError:
        return None


def _type_text(of: TypeProto) -> str:
    """A type as ONNX Runtime prints it; empty for one that is not known."""
    outer: list[str] = []
    while True:
        match of.WhichOneof("value"):
            case "tensor_type":
                return "".join(outer) + f"tensor({_element_name(of.tensor_type.elem_type)})" + ")" * len(outer)
            case "sequence_type":
                outer.append("seq(")
                of = of.sequence_type.elem_type
            case "optional_type":
                outer.append("optional(")
                of = of.optional_type.elem_type
            case "map_type":
                outer.append(f"map({_element_name(of.map_type.key_type)},")
                of = of.map_type.value_type
            case _:
                return ""


def _element_name(number: int) -> str:
    """ONNX's name of an element type."""
    known = TensorProto.DataType
    return known.Name(number).lower() if number in known.values() else "undefined"


def _shapes(values: Iterable[ValueInfoProto]) -> dict[str, DeclaredShape]:
    shapes = {value.name: declared_shape(value) for value in values}
    return {name: shape for name, shape in shapes.items() if shape is not None}

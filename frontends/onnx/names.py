"""The border between bytes and text: the names in a model become text before anything reads them.

Protobuf gives a string field that is not UTF-8, as of a model written in another encoding, as bytes. String attributes
are bytes by ONNX's definition, and decoded where they are read (`frontends.onnx.attributes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, TypeProto

__all__ = ["with_names_as_text"]


def with_names_as_text(model: ModelProto) -> ModelProto:
    """The model; a copy if names are not UTF-8, with the bytes that are not as escapes (``"caf\\\\xe9"``)."""
    try:
        for names in _names(model):
            "".join(names)  # the fastest way to find bytes
    except TypeError:
        copied = ModelProto()
        copied.CopyFrom(model)
        _decode(copied)
        return copied
    return model


def _decode(model: ModelProto) -> None:
    """Decode all string fields in place."""
    messages: list[Any] = [model]
    while messages:
        message = messages.pop()
        for field, value in message.ListFields():
            repeated = not isinstance(value, str | bytes | Message)
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                messages += value if repeated else [value]
            elif field.type == FieldDescriptor.TYPE_STRING and repeated:
                value[:] = [_text(item) for item in value]
            elif field.type == FieldDescriptor.TYPE_STRING and isinstance(value, str | bytes):
                setattr(message, field.name, _text(value))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _names(model: ModelProto) -> Iterator[Iterable[str]]:
    """The names of graphs, nodes, tensors, dimensions, domains and data files, and the model's metadata."""
    graphs = [model.graph]
    yield model.producer_name, model.producer_version, model.domain, model.doc_string, model.graph.doc_string
    yield [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    for part in (model, *model.functions):
        yield [opset.domain for opset in part.opset_import]
    for function in model.functions:
        yield function.name, function.domain, function.overload, *function.input, *function.output, *function.attribute
        yield from _names_of_attributes(function.attribute_proto, graphs)
        yield from _names_of_nodes(function, graphs)
    while graphs:
        graph = graphs.pop()
        yield graph.name,
        for value in (*graph.input, *graph.output):
            yield value.name, *_dimensions(value.type)
        sparse = [part for tensor in graph.sparse_initializer for part in (tensor.values, tensor.indices)]
        for tensor in (*graph.initializer, *sparse):
            yield _names_of_tensor(tensor)
        yield from _names_of_nodes(graph, graphs)


def _names_of_nodes(owner: GraphProto | FunctionProto, graphs: list[GraphProto]) -> Iterator[Iterable[str]]:
    """The names in the nodes of a graph or function; adds the graphs inside to `graphs`."""
    for node in owner.node:
        yield node.name, node.op_type, node.domain, node.overload, *node.input, *node.output
        yield from _names_of_attributes(node.attribute, graphs)


def _names_of_attributes(attributes: Iterable[AttributeProto], graphs: list[GraphProto]) -> Iterator[Iterable[str]]:
    for attribute in attributes:
        yield attribute.name, attribute.ref_attr_name
        if attribute.HasField("t"):
            yield _names_of_tensor(attribute.t)
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs += attribute.graphs


def _names_of_tensor(tensor: TensorProto) -> list[str]:
    return [tensor.name, *[text for entry in tensor.external_data for text in (entry.key, entry.value)]]


def _dimensions(kind: TypeProto) -> Iterator[str]:
    """The names of the dimensions of a tensor, or of the tensors in a container."""
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = (kind.sequence_type if kind.HasField("sequence_type") else kind.optional_type).elem_type
    yield from (dim.dim_param for dim in kind.tensor_type.shape.dim)

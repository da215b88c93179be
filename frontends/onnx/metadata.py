"""The metadata of an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, ValueInfoProto

from relayc.backend.runtime.metadata import DeclaredShape, ModelMetadata
from relayc.frontends.onnx.inputs import declared_shape, graph_inputs

__all__ = ["metadata_of"]


def metadata_of(proto: ModelProto) -> ModelMetadata:
    """What the model says about itself."""
    return ModelMetadata(
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
        custom_metadata_map={entry.key: entry.value for entry in proto.metadata_props},
        input_shapes=_shapes(graph_inputs(proto.graph)),
        output_shapes=_shapes(proto.graph.output),
    )


def _shapes(values: Iterable[ValueInfoProto]) -> dict[str, DeclaredShape]:
    shapes = {value.name: declared_shape(value) for value in values}
    return {name: shape for name, shape in shapes.items() if shape is not None}

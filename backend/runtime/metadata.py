"""What the author of a model says about it, kept from the imported model to the compiled one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from relayc.backend.runtime.fields import Record, damaged

__all__ = ["DeclaredShape", "ModelMetadata"]

DeclaredShape = tuple[int | str | None, ...]
"""Sizes, names of symbolic dimensions, and None for unknown ones."""

_TEXTS = ("producer_name", "graph_name", "domain", "description", "graph_description")
_SHAPES = ("input_shapes", "output_shapes")
_LATER = ("overridable_initializers", "container_types")
"""Fields that older runtimes don't know: left out where they are empty."""

_INT64 = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of the imported model, by the names of ONNX Runtime's `ModelMetadata`, and its declared shapes.

    `description` and `graph_description` are the documentation of the model and of its graph, `version` is the model's
    own. The shapes are those that the model declares, by the names of its inputs and outputs, whatever it was compiled
    for; tensors without a declared shape, and sequences, are left out. `overridable_initializers` are the element types
    of the tensors that have a value in the model and may be given another as an input, by name. `container_types` are
    the types of inputs and outputs that are no tensors, as ONNX Runtime prints them ("seq(tensor(float))"), by name.
    """

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict[str, str])
    input_shapes: Mapping[str, DeclaredShape] = field(default_factory=dict[str, DeclaredShape])
    output_shapes: Mapping[str, DeclaredShape] = field(default_factory=dict[str, DeclaredShape])
    overridable_initializers: Mapping[str, str] = field(default_factory=dict[str, str])
    container_types: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """Serialize as JSON values."""
        lists = {name: {key: list(shape) for key, shape in getattr(self, name).items()} for name in _SHAPES}
        fields = {**asdict(self), **lists}
        return {name: value for name, value in fields.items() if value or name not in _LATER}

    @staticmethod
    def from_json(record: Record) -> ModelMetadata:
        """Deserialize what `to_json` gave. Raises `ArtifactError` naming the first invalid field."""
        record.only(*_TEXTS, "version", "custom_metadata_map", *_SHAPES, *_LATER)
        fields: dict[str, Any] = {name: record.get(name, str) for name in _TEXTS}
        fields["version"] = record.number("version", *_INT64)
        fields["custom_metadata_map"] = _texts(record.record("custom_metadata_map"))
        fields |= {name: _texts(record.record(name)) if name in record.value else {} for name in _LATER}
        fields |= {name: _shapes(record.record(name)) for name in _SHAPES}
        return ModelMetadata(**fields)


def _texts(record: Record) -> dict[str, str]:
    return {name: record.get(name, str) for name in record.value}


def _shapes(record: Record) -> dict[str, DeclaredShape]:
    shapes: dict[str, DeclaredShape] = {}
    for name in record.value:
        dims = record.get(name, list)
        if not all(d is None or type(d) is str or (type(d) is int and d >= 0) for d in dims):
            raise damaged(f"{record.where}.{name}", dims, "sizes, names and nulls")
        shapes[name] = tuple(dims)
    return shapes

"""Parsing and checking of a model file.

Only protobuf parses it: the C++ checker, shape inference and version converter of the onnx package are not safe on
untrusted bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from relayc.backend.runtime.errors import RelaycError
from relayc.backend.runtime.metadata import DeclaredShape, ModelMetadata
from relayc.frontends.model_parts import ModelParts, OnnxProgram, model_parts
from relayc.frontends.onnx.errors import (
    NoGraphError,
    NotAModelError,
    OnnxImportError,
    SourceTypeError,
    compose,
    fault,
    unsupported,
)
from relayc.frontends.onnx.inputs import graph_inputs, named_shape
from relayc.frontends.onnx.metadata import metadata_of
from relayc.frontends.onnx.model_file import read_message, read_model
from relayc.frontends.onnx.names import with_names_as_text
from relayc.frontends.onnx.tensors import message_weights
from relayc.frontends.onnx.weights import RawData, StoredBytes, WeightBytes

__all__ = [
    "NEWEST_OPSET", "FunctionKey", "Model", "ModelSource", "declared_inputs", "function_key", "load", "opset_table",
    "with_implied",
]  # fmt: skip

ModelSource = ModelProto | bytes | bytearray | memoryview | str | os.PathLike[str] | OnnxProgram | ModelParts
"""A model as a message, as the bytes or the path of its file, as torch exports it, or as a message and weights."""

NEWEST_OPSET = 28
"""The newest supported opset of the default domain."""

_POINTER = b"version https://git-lfs.github.com/spec/"

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""


@dataclass(frozen=True, slots=True)
class Model:
    """A parsed model: its graph, versions by domain (the default domain is ``""``), local functions and folders.

    `folders` may hold external data: the folder of the model file and, where that is a symbolic link, its target's.
    `raw_data` has the bytes of initializers of the graph that were read apart from the message, or stay in it.
    """

    name: str
    graph: GraphProto
    opsets: Mapping[str, int]
    functions: Mapping[FunctionKey, FunctionProto]
    folders: tuple[Path, ...]
    raw_data: RawData
    metadata: ModelMetadata


def load(model: ModelSource) -> Model:
    """Parse `model`, in any of its forms, and check its top-level fields.

    Raises `OnnxImportError` for anything that is not a whole ONNX model.
    """
    if isinstance(model, ModelProto):
        model = with_names_as_text(model)
        return _checked(model, model.graph.name or "model", (), message_weights(model))
    if isinstance(model, bytes | bytearray | memoryview):
        return _from_bytes(bytes(model), "model")
    if isinstance(model, (str, os.PathLike)):
        return _from_file(Path(model))
    parts = model_parts(model)
    if parts is None:
        kind = type(model).__name__
        remedy = "; for modules of torch: relayc.compile_torch" if hasattr(model, "forward") else ""
        expected = "expected a path, a ModelProto, an ONNXProgram or the bytes of a model file"
        raise SourceTypeError(f"from_onnx got a {kind}; {expected}{remedy}")
    proto = with_names_as_text(parts.proto)
    raw_data: RawData = {name: StoredBytes(WeightBytes(data), 0, data.size) for name, data in parts.data().items()}
    return _checked(proto, proto.graph.name or "model", (), raw_data)


def _from_file(path: Path) -> Model:
    try:
        proto, raw_data = read_model(path)
    except (DecodeError, RecursionError) as error:
        raise _no_model(path.name, path.stat().st_size, error, is_pointer=_is_pointer(path)) from error
    except RelaycError:  # of the settings, not of the file
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        remedy = "check the path" if isinstance(error, FileNotFoundError) else ""
        raise fault(str(path), f"the model file can't be read: {reason}", remedy=remedy) from error
    folders = (path.parent, Path(os.path.realpath(path)).parent)
    return _checked(proto, path.name, folders, raw_data)


def declared_inputs(model: ModelSource) -> dict[str, DeclaredShape | None]:
    """The shapes that a model declares for its inputs, by name, without importing it: None for an unknown rank, and
    for what is no tensor. Weights are not read. Raises `OnnxImportError` as `load` does."""
    return {value.name: named_shape(value) for value in graph_inputs(load(model).graph)}


def _from_bytes(data: bytes, where: str) -> Model:
    try:
        proto, raw_data = read_message(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise _no_model(where, len(data), error) from error
    return _checked(proto, where, (), raw_data)


def _is_pointer(path: Path) -> bool:
    """Is this a Git LFS pointer file?"""
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _no_model(where: str, size: int, error: Exception, is_pointer: bool = False) -> NotAModelError:
    if is_pointer:
        pointer = "a pointer of Git LFS in the place of the model"
        return NotAModelError(compose(where, pointer, remedy="fetch the model: git lfs pull"))
    text = compose(
        where,
        f"{size} bytes which are not an ONNX model ({error})",
        expected="a protobuf-encoded ONNX ModelProto",
        remedy="the file is damaged, cut short, or of another kind; export or download it again",
    )
    return NotAModelError(text)


_IMPLIED = {"com.microsoft": 1, "ai.onnx.ml": 5}
"""Versions of domains that models use without an import, as onnxruntime takes them: its transformer optimizer's do."""


def with_implied(opsets: Mapping[str, int]) -> dict[str, int]:
    """The imported versions of domains, and those of domains that need no import."""
    return {**_IMPLIED, **opsets}


def _checked(proto: ModelProto, name: str, folders: tuple[Path, ...], raw_data: RawData) -> Model:
    if not proto.HasField("graph") or proto.ir_version < 1:
        text = compose(
            name,
            "no graph or no IR version in it",
            expected="an ONNX ModelProto",
            remedy="the file is empty, cut short, or not an ONNX model",
        )
        raise OnnxImportError(text) if proto.HasField("graph") else NoGraphError(text)
    if len(proto.opset_import) == 0 and proto.ir_version >= 3:
        raise fault(
            name,
            "the model says no operator set versions (opset_import)",
            remedy="the file is cut short or was written wrong; export it again",
        )
    opsets = opset_table(proto.opset_import, name) if len(proto.opset_import) else {"": 1}
    functions: dict[FunctionKey, FunctionProto] = {}
    for function in proto.functions:
        key = (_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise fault(name, f"two local functions are named {function.domain}::{function.name}")
        functions[key] = function
    return Model(name, proto.graph, opsets, functions, folders, raw_data, metadata_of(proto))


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def function_key(node: NodeProto) -> FunctionKey:
    """The key of the function that a node calls, if the model has one; its domain is ``""`` for ONNX's own."""
    return _domain(node.domain), node.op_type, node.overload


def opset_table(imports: object, where: str) -> dict[str, int]:
    """Version by domain from `opset_import` entries. Raises for unsupported or contradicting versions."""
    table: dict[str, int] = {}
    for entry in imports:  # type: ignore[attr-defined]
        domain, version = _domain(entry.domain), entry.version
        if table.get(domain, version) != version:
            raise fault(where, f"the domain {entry.domain!r} is imported at versions {table[domain]} and {version}")
        if version < 1:
            raise fault(where, f"opset version {version} of domain {entry.domain!r}", expected="a version of 1 or more")
        if domain == "" and version > NEWEST_OPSET:
            raise unsupported(
                where,
                f"the model uses opset {version}",
                missing=f"opset {version}",
                expected=f"opset 1 to {NEWEST_OPSET}",
                remedy=f"export the model for opset {NEWEST_OPSET} or older",
            )
        table[domain] = version
    return table

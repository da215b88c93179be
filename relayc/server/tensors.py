"""Tensors as the Open Inference Protocol writes them: as JSON values, or as bytes behind the JSON.

Bytes are little-endian and in row-major order. A string (datatype BYTES) is its length, four bytes, and its UTF-8
text; a BOOL is one byte. JSON values are a flat list, or nested lists of the tensor's shape. Floats that are no JSON
are written as Python and Triton do: NaN, Infinity, -Infinity.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.runtime.sizes import MAX_EXTENT, extent
from relayc.server.errors import ServerError

__all__ = ["DATATYPES", "Array", "TensorSpec", "from_bytes", "from_json", "json_kind", "specs_by_name", "to_bytes",
           "to_json"]  # fmt: skip

Array = np.ndarray[Any, Any]

DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16", "string": "BYTES",
}  # fmt: skip
"""The protocol's names of element types."""

_NUMPY = {datatype: np.dtype(object) if dtype == "string" else to_numpy(dtype) for dtype, datatype in DATATYPES.items()}
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model: its name, its datatype by the protocol's name, its shape with -1 for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its arrays: Python objects for strings."""
        return _NUMPY[self.datatype]

    def to_json(self) -> dict[str, Any]:
        """As model metadata has it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def check(self, shape: object, datatype: object) -> tuple[int, ...]:
        """The shape of a passed tensor. Raises ServerError if it, or the datatype, is not what the model takes."""
        if datatype != self.datatype:
            raise ServerError(f"input {self.name!r}: got datatype {datatype!r:.100}; expected {self.datatype!r}")
        if not isinstance(shape, list) or not all(type(d) is int and 0 <= d <= MAX_EXTENT for d in shape):
            expected = f"a list of sizes, each at most {MAX_EXTENT}"
            raise ServerError(f"input {self.name!r}: got shape {shape!r:.200}; expected {expected}")
        fits = len(shape) == len(self.shape) and all(e in (-1, d) for d, e in zip(shape, self.shape, strict=True))
        if not fits or extent(shape) > MAX_EXTENT:
            expected = f"{list(self.shape)} (-1: any size)" if -1 in self.shape else list(self.shape)
            raise ServerError(f"input {self.name!r}: got shape {shape!r:.200}; expected {expected}")
        return tuple(shape)


def from_json(spec: TensorSpec, shape: tuple[int, ...], data: object) -> Array:
    """The tensor of JSON values. Raises ServerError for values of another type, out of range, or too few or many."""
    if not isinstance(data, list):
        found = "missing or null" if data is None else f"of type {json_kind(type(data))}"
        raise ServerError(f"input {spec.name!r}: 'data' is {found}; expected a list of {spec.datatype} values")
    flat, laid_out = _flattened(spec, data)
    if math.prod(laid_out) != math.prod(shape) or (len(laid_out) > 1 and laid_out != shape):
        raise ServerError(f"input {spec.name!r}: 'data' has shape {list(laid_out)}; expected {list(shape)}, or flat")
    wrong = set(map(type, flat)) - _json_types(spec.datatype)
    if wrong:
        kinds = ", ".join(sorted(map(json_kind, wrong)))
        raise ServerError(f"input {spec.name!r}: 'data' has values of type {kinds}; expected {spec.datatype}")
    with np.errstate(over="raise"):
        try:
            if spec.datatype == "BYTES":
                "".join(flat).encode()  # JSON can spell halves of surrogate pairs, which are no text
            return np.array(flat, spec.dtype).reshape(shape)
        except UnicodeEncodeError as error:
            raise ServerError(f"input {spec.name!r}: a string holds half of a surrogate pair; expected text") from error
        except (OverflowError, FloatingPointError) as error:
            raise ServerError(f"input {spec.name!r}: a value is out of range of {spec.datatype}") from error


def _flattened(spec: TensorSpec, data: list[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The values of nested lists, and the shape that the lists have."""
    if not data or not isinstance(data[0], list):
        return data, (len(data),)
    try:
        # objects: numpy's strings would take as much memory each as the longest of them
        values = np.array(data, dtype=object)
    except ValueError as error:
        raise ServerError(f"input {spec.name!r}: 'data' is nested lists of different lengths") from error
    return values.reshape(-1).tolist(), values.shape


def _json_types(datatype: str) -> set[type]:
    """The types of JSON values that are elements of a datatype."""
    if datatype in ("BOOL", "BYTES"):
        return {bool if datatype == "BOOL" else str}
    return {int, float} if "F" in datatype else {int}


def to_json(values: Array) -> list[Any]:
    """The elements in row-major order."""
    return values.reshape(-1).tolist()


def from_bytes(spec: TensorSpec, shape: tuple[int, ...], data: memoryview) -> Array:
    """The tensor in `data`, whose memory it shares where it can. Raises ServerError for too few or too many bytes."""
    if spec.datatype == "BYTES":
        return _strings(spec, shape, data)
    expected = math.prod(shape) * spec.dtype.itemsize
    if len(data) != expected:
        raise ServerError(
            f"input {spec.name!r}: got {len(data)} bytes; shape {list(shape)} of {spec.datatype} has {expected}"
        )
    if spec.datatype == "BOOL":
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    values = np.frombuffer(data, spec.dtype).reshape(shape)
    return values if values.flags.aligned else values.copy()


def _strings(spec: TensorSpec, shape: tuple[int, ...], data: memoryview) -> Array:
    count, at = math.prod(shape), 0
    found: list[str] = []
    while at < len(data) and len(found) < count:
        start = at + _LENGTH.size
        at = len(data) + 1 if start > len(data) else start + _LENGTH.unpack_from(data, at)[0]
        if at > len(data):
            break
        try:
            found.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError as error:
            raise ServerError(f"input {spec.name!r}: string {len(found)} is not UTF-8: {error.reason}") from error
    if at != len(data) or len(found) != count:
        raise ServerError(
            f"input {spec.name!r}: its {len(data)} bytes are not {count} strings, each its length in four bytes, then "
            "so many bytes"
        )
    values = np.empty(count, object)
    values[:] = found
    return values.reshape(shape)


def to_bytes(values: Array) -> memoryview | bytes:
    """The elements in row-major order, little-endian; of an array that is laid out so, its own memory."""
    if values.dtype.kind in "OUT":
        texts = [str(text).encode() for text in values.reshape(-1).tolist()]
        return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


_JSON_KINDS = {dict: "object", list: "list", str: "string", bool: "boolean", int: "integer", float: "number"}


def json_kind(kind: type) -> str:
    """JSON's name of the Python type that a value was read as."""
    return _JSON_KINDS.get(kind, "null")


def specs_by_name(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    """The tensors by their names."""
    return {spec.name: spec for spec in specs}

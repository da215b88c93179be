"""Parsing a model with its weights apart, so that each byte of a weight is copied once, on several threads.

Parsing the whole file as one message would copy the weights three times (into bytes, into the message, out of it), each
time into fresh memory, and dominate the import time. So the encoded message is walked down to the initializers of the
main graph; protobuf parses it with large `raw_data` left empty, and these bytes are read directly to their final place.
In large models, large weights stay in the file, or in the bytes, until they are needed. A
model with an unusual layout is parsed whole, so that protobuf defines its meaning and reports its faults.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from onnx import ModelProto

from relayc.backend.runtime.files import open_regular
from relayc.backend.runtime.threads import in_threads
from relayc.frontends.onnx.names import with_names_as_text
from relayc.frontends.onnx.weights import RawData, StoredBytes, WeightBytes, WeightFile, WeightSource
from relayc.relay.arrays import Arena

__all__ = ["LARGE", "MANY", "STORED", "read_message", "read_model"]

STORED = 1 << 20
"""Smallest weight in bytes that may stay in its file or message."""
MANY = 64 << 20
"""Total bytes of a model's weights from which on they stay there; fewer are read eagerly, on several threads."""

LARGE = 1 << 14
"""Smallest tensor data in bytes that is read apart from the message."""

_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers in onnx.proto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_WALKED_AT_ONCE = 4 << 10


class _NotSplittable(Exception):
    """The message has a layout that is not split; it is parsed whole."""


class _Field(NamedTuple):
    """One field of an encoded message: bytes `start` to `stop`, its payload from `payload` on."""

    number: int
    wire_type: int
    start: int
    payload: int
    stop: int


@dataclass(slots=True)
class _Stripped:
    """An encoded message without its weights, and their positions in the file."""

    message: bytes
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """index of the initializer -> where its data begins and ends"""


def read_model(path: Path) -> tuple[ModelProto, RawData]:
    """Parse a file: the message, and the data of initializers whose `raw_data` was left empty in it.

    Raises OSError if the file can't be read or is no regular file, DecodeError if it is not a valid message.
    """
    with open_regular(path) as file:
        descriptor = file.fileno()
        source = WeightFile(path.name, os.dup(descriptor))
        return _split(_FileBytes(descriptor), os.fstat(descriptor).st_size, source, file.read)


def read_message(data: bytes) -> tuple[ModelProto, RawData]:
    """Parse the bytes of a file as `read_model` does. Raises DecodeError if they are not a valid message."""
    return _split(data, len(data), WeightBytes(data), lambda: data)


def _split(data: _Encoded, size: int, source: WeightSource, whole: Callable[[], bytes]) -> tuple[ModelProto, RawData]:
    """Parse `size` bytes of an encoded message, which `source` and `whole` read too."""
    proto = ModelProto()
    stripped = _strip(data, size)
    if stripped is not None:
        proto.ParseFromString(stripped.message)
        proto = with_names_as_text(proto)
        names = [tensor.name for tensor in proto.graph.initializer]
        if len(set(names)) == len(names):  # duplicates are left to the importer's error
            places = {names[index]: place for index, place in stripped.places.items()}
            return proto, _raw_data_at(places, source)
    proto.ParseFromString(whole())
    return with_names_as_text(proto), {}


def _raw_data_at(places: dict[str, tuple[int, int]], source: WeightSource) -> RawData:
    """The data at some places of a source: if it is much, large tensors are read later."""
    sizes = {name: stop - start for name, (start, stop) in places.items()}
    least = STORED if sum(sizes.values()) >= MANY else math.inf
    stored = {name: StoredBytes(source, start, sizes[name]) for name, (start, _) in places.items()}
    eager = sum([size for size in sizes.values() if size < least])
    arena, pieces, data = Arena(eager), list[tuple[int, np.ndarray]](), dict[str, np.ndarray]()
    for name, place in stored.items():
        if place.size < least:
            data[name] = arena.empty((place.size,), np.dtype(np.uint8))
            pieces += place.pieces(data[name])
    in_threads(lambda piece: source.read(*piece), pieces, eager)
    for array in data.values():
        array.flags.writeable = False
    return {**stored, **data}


def _strip(data: _Encoded, size: int) -> _Stripped | None:
    """The message without its weights; None if it is small, or is to be parsed whole."""
    try:
        return None if size < LARGE else _strip_model(data, size)
    except _NotSplittable:
        return None


class _FileBytes:
    """The bytes of a file by index and by slice, read in small pieces.

    Memory mapping would cost a page of page tables for every 2 MiB.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._begin, self._some = descriptor, 0, b""

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> bytes: ...
    def __getitem__(self, at: int | slice) -> int | bytes:
        if isinstance(at, slice):
            return self._read(at.start, at.stop - at.start)
        if not 0 <= at - self._begin < len(self._some):
            self._begin, self._some = at, self._read(at, 1, _WALKED_AT_ONCE)
        return self._some[at - self._begin]

    def _read(self, begin: int, least: int, most: int | None = None) -> bytes:
        found = os.pread(self._descriptor, least if most is None else most, begin)
        while len(found) < least:
            more = os.pread(self._descriptor, least - len(found), begin + len(found))
            if not more:
                raise _NotSplittable
            found += more
        return found


_Encoded = _FileBytes | bytes


def _strip_model(data: _Encoded, size: int) -> _Stripped:
    graphs = [f for f in _fields(data, 0, size) if f.number == _MODEL_GRAPH]
    if len(graphs) != 1 or graphs[0].wire_type != _BYTES:
        raise _NotSplittable
    (graph,) = graphs
    inner = _strip_graph(data, graph)
    before, after = data[0 : graph.start], data[graph.stop : size]
    inner.message = before + _prefix(_MODEL_GRAPH, len(inner.message)) + inner.message + after
    return inner


def _strip_graph(data: _Encoded, graph: _Field) -> _Stripped:
    pieces: list[bytes] = []
    places: dict[int, tuple[int, int]] = {}
    kept, number = graph.payload, 0
    for f in _fields(data, graph.payload, graph.stop):
        if f.number != _GRAPH_INITIALIZER:
            continue
        if f.wire_type == _BYTES and f.stop - f.payload >= LARGE:
            raw = _raw_data(data, f)
            if raw is not None:
                tensor = data[f.payload : raw.start] + _prefix(_TENSOR_RAW_DATA, 0) + data[raw.stop : f.stop]
                pieces += [data[kept : f.start], _prefix(_GRAPH_INITIALIZER, len(tensor)), tensor]
                kept, places[number] = f.stop, (raw.payload, raw.stop)
        number += 1
    return _Stripped(b"".join([*pieces, data[kept : graph.stop]]), places)


def _raw_data(data: _Encoded, tensor: _Field) -> _Field | None:
    """The `raw_data` field of a tensor, if it is large."""
    found = [f for f in _fields(data, tensor.payload, tensor.stop) if f.number == _TENSOR_RAW_DATA]
    if len(found) > 1 or (found and found[0].wire_type != _BYTES):
        raise _NotSplittable
    return found[0] if found and found[0].stop - found[0].payload >= LARGE else None


def _fields(data: _Encoded, position: int, end: int) -> Iterator[_Field]:
    """The fields of the encoded message at `position` to `end`."""
    while position < end:
        start = position
        tag, position = _varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _BYTES:
            size, position = _varint(data, position, end)
            payload, position = position, position + size
        elif wire_type == _VARINT:
            payload, position = position, _varint(data, position, end)[1]
        elif wire_type in _FIXED_SIZES:
            payload, position = position, position + _FIXED_SIZES[wire_type]
        else:
            raise _NotSplittable
        if position > end or number == 0:
            raise _NotSplittable
        yield _Field(number, wire_type, start, payload, position)


def _varint(data: _Encoded, position: int, end: int) -> tuple[int, int]:
    """Decode a varint: (value, end position)."""
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _NotSplittable


def _prefix(number: int, size: int) -> bytes:
    """The encoded tag and length of a field of `size` bytes."""
    encoded = bytearray([number << 3 | _BYTES])
    while size >= 0x80:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)

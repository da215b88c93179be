"""Reading a model file with its weights apart, so that each byte of a weight is copied once, on several threads.

Parsing the whole file as one message would copy the weights three times (into bytes, into the message, out of it), each
time into fresh memory, and dominate the import time. So the encoded message is walked down to the initializers of the
main graph; protobuf parses it with large `raw_data` left empty, and these bytes are read directly to their final place.
In large files, large weights stay in the file until they are needed. A file with an unusual layout is parsed whole, so
that protobuf defines its meaning and reports its faults.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from onnx import ModelProto

from relayc.backend.runtime.threads import in_threads
from relayc.frontends.onnx.errors import fault
from relayc.relay.arrays import Arena

__all__ = ["RawData", "StoredBytes", "WeightFile", "read_model"]

STORED = 1 << 20
"""Smallest weight in bytes that may stay in its file."""
_MANY = 64 << 20
"""Total bytes of a file's weights from which on they stay in it; fewer are read eagerly, on several threads."""


class WeightFile:
    """An open file with weights, closed with its last reference. It must not change."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name, self._descriptor = name, descriptor
        self._state = self._current_state()

    def __del__(self) -> None:
        os.close(self._descriptor)

    def _current_state(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    def read(self, begin: int, into: np.ndarray) -> None:
        """Fill a C-contiguous array with the bytes from `begin` on. Raises OnnxImportError if the file was changed."""
        data = into.reshape(-1).view(np.uint8)

        def read(at: int) -> None:
            _read_into(self._descriptor, data[at : at + _READ_AT_ONCE], begin + at)

        try:
            in_threads(read, range(0, len(data), _READ_AT_ONCE), len(data))
            if self._current_state() != self._state:
                raise OSError(0, "it was changed")
        except OSError as error:
            problem = f"weights can't be read from the file any more: {error.strerror}"
            raise fault(self._name, problem, remedy="import the model again") from error


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """`size` bytes at `begin` of a file."""

    file: WeightFile
    begin: int
    size: int

    def read(self) -> np.ndarray:
        """The bytes: uint8[size]."""
        data = np.empty(self.size, np.uint8)
        self.file.read(self.begin, data)
        return data

    def fill(self, array: np.ndarray, start: int = 0) -> None:
        """Read the elements from `start` on into a C-contiguous array."""
        self.file.read(self.begin + start * array.itemsize, array)


RawData = dict[str, np.ndarray | StoredBytes]
"""The bytes (uint8) of initializers of the main graph, by name."""

LARGE = 1 << 14
"""Smallest tensor data in bytes that is read apart from the message."""

_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers in onnx.proto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_READ_AT_ONCE = 4 << 20
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
    with open(path, "rb", opener=_open_regular) as file:
        whole = WeightFile(path.name, os.dup(file.fileno()))
        stripped = _strip_file(file.fileno())
        proto = ModelProto()
        if stripped is None:
            proto.ParseFromString(file.read())
            return proto, {}
        proto.ParseFromString(stripped.message)
        names = [tensor.name for tensor in proto.graph.initializer]
        if len(set(names)) < len(names):  # duplicates are left to the importer's error
            file.seek(0)
            proto.ParseFromString(file.read())
            return proto, {}
        places = {names[index]: place for index, place in stripped.places.items()}
        many = sum([stop - start for start, stop in places.values()]) >= _MANY
        stored = [name for name, (start, stop) in places.items() if many and stop - start >= STORED]
        weights: RawData = {}
        for name in stored:
            start, stop = places.pop(name)
            weights[name] = StoredBytes(whole, start, stop - start)
        return proto, {**weights, **_read_all(file.fileno(), places)}


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file: reading from a pipe or a device may block, or never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would block already here
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file, but a folder, a pipe, a socket or a device")
    return descriptor


def _strip_file(descriptor: int) -> _Stripped | None:
    size = os.fstat(descriptor).st_size
    if size < LARGE:
        return None
    try:
        return _strip_model(_FileBytes(descriptor), size)
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


def _strip_model(data: _FileBytes, size: int) -> _Stripped:
    graphs = [f for f in _fields(data, 0, size) if f.number == _MODEL_GRAPH]
    if len(graphs) != 1 or graphs[0].wire_type != _BYTES:
        raise _NotSplittable
    (graph,) = graphs
    inner = _strip_graph(data, graph)
    before, after = data[0 : graph.start], data[graph.stop : size]
    inner.message = before + _prefix(_MODEL_GRAPH, len(inner.message)) + inner.message + after
    return inner


def _strip_graph(data: _FileBytes, graph: _Field) -> _Stripped:
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


def _raw_data(data: _FileBytes, tensor: _Field) -> _Field | None:
    """The `raw_data` field of a tensor, if it is large."""
    found = [f for f in _fields(data, tensor.payload, tensor.stop) if f.number == _TENSOR_RAW_DATA]
    if len(found) > 1 or (found and found[0].wire_type != _BYTES):
        raise _NotSplittable
    return found[0] if found and found[0].stop - found[0].payload >= LARGE else None


def _fields(data: _FileBytes, position: int, end: int) -> Iterator[_Field]:
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


def _varint(data: _FileBytes, position: int, end: int) -> tuple[int, int]:
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


def _read_all(descriptor: int, places: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """The bytes at `places`, read on several threads."""
    arena = Arena(sum(stop - start for start, stop in places.values()))
    data = {name: arena.empty((stop - start,), np.dtype(np.uint8)) for name, (start, stop) in places.items()}
    jobs = [
        (data[name][at : at + _READ_AT_ONCE], start + at)
        for name, (start, stop) in places.items()
        for at in range(0, stop - start, _READ_AT_ONCE)
    ]
    in_threads(lambda job: _read_into(descriptor, *job), jobs, sum(len(array) for array in data.values()))
    for array in data.values():
        array.flags.writeable = False
    return data


def _read_into(descriptor: int, into: np.ndarray, offset: int) -> None:
    while len(into):
        count = os.preadv(descriptor, [into.data], offset)
        if count == 0:
            raise OSError(0, "it became shorter while it was read")
        into, offset = into[count:], offset + count

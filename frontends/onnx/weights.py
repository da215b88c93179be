"""Weights that stay where they are, in a file, in bytes or in a message, until they are needed."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
from onnx import TensorProto

from relayc.backend.runtime.container import sums
from relayc.backend.runtime.threads import in_threads
from relayc.frontends.onnx.errors import fault

__all__ = [
    "RawData",
    "StoredBytes",
    "StoredWeights",
    "WeightBytes",
    "WeightFile",
    "WeightMessage",
    "WeightSource",
]

_READ_AT_ONCE = 4 << 20
"""Bytes that one thread reads at a time."""
_SAMPLED = 64
"""Bytes of each of the samples by which weights are compared first."""


class WeightSource(Protocol):
    """Where weights are stored."""

    def read(self, begin: int, into: np.ndarray) -> None:
        """Fill a contiguous uint8 array with the bytes from `begin` on; any thread may call it.

        Raises OnnxImportError if the source was changed after import.
        """
        ...

    def sample(self, begin: int, size: int) -> Hashable:
        """Something cheap that is equal for equal bytes."""
        ...


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
        """Fill a contiguous uint8 array with the bytes from `begin` on (`WeightSource.read`)."""
        try:
            while len(into):
                count = os.preadv(self._descriptor, [into.data], begin)
                if count == 0:
                    raise OSError(0, "it became shorter while it was read")
                into, begin = into[count:], begin + count
            if self._current_state() != self._state:
                raise OSError(0, "it was changed")
        except OSError as error:
            problem = f"weights can't be read from the file any more: {error.strerror}"
            raise fault(self._name, problem, remedy="import the model again") from error

    def sample(self, begin: int, size: int) -> Hashable:
        """A cheap value that is equal for equal bytes (`WeightSource.sample`)."""
        return _sample(self, begin, size)


class WeightBytes:
    """The bytes of a model, or of an array (uint8), in memory, which are not copied."""

    def __init__(self, data: bytes | np.ndarray) -> None:
        self._data = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)

    def read(self, begin: int, into: np.ndarray) -> None:
        """Fill a contiguous uint8 array with the bytes from `begin` on (`WeightSource.read`)."""
        into[:] = self._data[begin : begin + len(into)]

    def sample(self, begin: int, size: int) -> Hashable:
        """A cheap value that is equal for equal bytes (`WeightSource.sample`)."""
        return _sample(self, begin, size)


class WeightMessage:
    """The raw data of a tensor of a ModelProto, which must not change.

    Protobuf gives copies only. One is kept from the first read until as many bytes were read as it has: a tensor that
    is packed piece by piece is copied once.
    """

    def __init__(self, where: str, tensor: TensorProto) -> None:
        self._where, self._tensor, self._lock = where, tensor, Lock()
        data = tensor.raw_data
        self.size, self._sums = len(data), sums(memoryview(data))
        self._data: np.ndarray | None = None
        self._left = 0
        """bytes to read before the copy is dropped"""

    def read(self, begin: int, into: np.ndarray) -> None:
        """Fill a contiguous uint8 array with the bytes from `begin` on (`WeightSource.read`)."""
        with self._lock:
            data = self._data = self._copied() if self._data is None else self._data
            self._left -= len(into)
            if self._left <= 0:
                self._data = None
        into[:] = data[begin : begin + len(into)]

    def sample(self, begin: int, size: int) -> Hashable:
        """The checksum of the whole data, as any other sample would copy it."""
        return self._sums

    def _copied(self) -> np.ndarray:
        data = self._tensor.raw_data
        if len(data) != self.size or sums(memoryview(data)) != self._sums:
            where = f"{self._where}: initializer {self._tensor.name!r}"
            raise fault(where, "its data was changed after the import", remedy="import the model again")
        self._left = self.size
        return np.frombuffer(data, np.uint8)


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """`size` bytes at `begin` of a source."""

    source: WeightSource
    begin: int
    size: int

    def read(self) -> np.ndarray:
        """The bytes: uint8[size]."""
        data = np.empty(self.size, np.uint8)
        self.fill(data)
        return data

    def fill(self, array: np.ndarray, start: int = 0) -> None:
        """Read the elements from `start` on into a C-contiguous array."""
        in_threads(lambda piece: self.source.read(*piece), list(self.pieces(array, start)), array.nbytes)

    def pieces(self, array: np.ndarray, start: int = 0) -> Iterator[tuple[int, np.ndarray]]:
        """The arguments of the source's `read` that fill `array` with the elements from `start` on."""
        data, begin = array.reshape(-1).view(np.uint8), self.begin + start * array.itemsize
        for at in range(0, len(data), _READ_AT_ONCE):
            yield begin + at, data[at : at + _READ_AT_ONCE]


class StoredWeights:
    """The weights of one import that stay where they are: equal ones are read from one place."""

    def __init__(self) -> None:
        self._files: dict[Path, WeightFile] = {}
        self._known: dict[Hashable, list[StoredBytes]] = {}
        """by size and sample"""

    def open(self, path: Path) -> WeightFile:
        """The file at `path`, opened once. Raises OSError."""
        found = self._files.get(path)
        if found is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = self._files[path] = WeightFile(path.name, descriptor)
        return found

    def first(self, stored: StoredBytes) -> StoredBytes:
        """The first of the equal bytes that were passed."""
        known = self._known.setdefault((stored.size, stored.source.sample(stored.begin, stored.size)), [])
        found = next((other for other in known if other == stored or _equal(other, stored)), None)
        if found is None:
            known.append(stored)
            found = stored
        return found


def _sample(source: WeightSource, begin: int, size: int) -> bytes:
    """Some bytes of the start, the middle and the end."""
    some = np.zeros((3, min(size, _SAMPLED)), np.uint8)
    for into, at in zip(some, (0, (size - len(some[0])) // 2, size - len(some[0])), strict=True):
        source.read(begin + at, into)
    return some.tobytes()


def _equal(a: StoredBytes, b: StoredBytes) -> bool:
    """Compare all bytes, some at a time, to the end: a message's copy is dropped when it was read."""
    x, y = np.empty((2, min(a.size, _READ_AT_ONCE)), np.uint8)
    same = True
    for at in range(0, a.size, len(x)):
        some = slice(0, min(a.size - at, len(x)))
        a.source.read(a.begin + at, x[some])
        b.source.read(b.begin + at, y[some])
        same = same and np.array_equal(x[some], y[some])
    return same


RawData = dict[str, np.ndarray | StoredBytes]
"""The bytes (uint8) of initializers of the main graph, by name."""

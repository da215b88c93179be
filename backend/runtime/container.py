"""The artifact container: a manifest and sections of bytes, each with hashes.

No pickle is involved, and no compiler is needed to load it. Integers are little-endian; sections start at multiples of
their alignment, padding holds zeros:

    0   8 bytes  magic
    8   u32      format version
    12  u32      size of the manifest, which starts at byte 64
    16  32 bytes SHA-256 of the manifest
    48  16 bytes zero
    64           manifest: JSON, the fields of whoever wrote it, and "sections": alignment, size, hashes of every 4 MiB
    ...          the sections, one after another

The manifest's hash covers the sections, by their hashes. Equal contents make equal bytes. Opening a file checks the
manifest's hash and the sections' offsets, padding and end; a section's bytes are checked by `Container.check`, by
SHA-256 or, six times as fast, by checksums: sums of the 64-bit words of each 4 KiB row and of each column. Both detect
damage, not malice: who changes a file can compute its hashes.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, Literal

import numpy as np

from relayc.backend.runtime.errors import ArtifactError, MissingModelError
from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.files import open_regular, replacing
from relayc.backend.runtime.huge_pages import first_huge_page, map_huge_pages
from relayc.backend.runtime.threads import in_threads

__all__ = ["AGAIN", "FORMAT_VERSION", "Container", "Method", "Section", "digest", "is_container", "map_file",
           "sums", "to_bytes", "write_file"]  # fmt: skip

Method = Literal["sha256", "sums"]

FORMAT_VERSION = 2
"""Format version that is written. In version 2 code reads the context's `shortage`, which older runtimes lack, and
begins with the seal of its model (`backend.runtime.artifact`)."""
_OLDEST_VERSION = 1
AGAIN = "The file is damaged; copy it again or compile the model again"

_MAGIC = b"\x89RLYC\r\n\x1a"  # like PNG's: shows damage by text-mode transfers
_HEADER = 64
_MAX_ALIGN = 1 << 16
_CHUNK = 4 << 20
_ROW = 4096


@dataclass(frozen=True)
class Section:
    """Bytes to write, in pieces, at a file offset that is a multiple of `align`."""

    pieces: Sequence[bytes | memoryview]
    align: int = 64

    @cached_property
    def record(self) -> dict[str, Any]:
        """The manifest's entry: alignment, size, and by each method the hash of every 4 MiB."""
        digests: dict[str, list[str]] = {method: [] for method in _METHODS}
        size = 0
        for chunk in _chunks(self.pieces):
            size += len(chunk)
            for method, hash_of in _METHODS.items():
                digests[method].append(hash_of(chunk))
        return {"align": self.align, "size": size, **digests}


def write_file(path: str | os.PathLike[str], manifest: dict[str, Any], sections: Sequence[Section]) -> None:
    """Write the file atomically. Raises OSError."""
    with replacing(path, durable=True) as file:
        _write(file, manifest, sections)


def to_bytes(manifest: dict[str, Any], sections: Sequence[Section]) -> bytes:
    """The bytes that `write_file` writes."""
    file = io.BytesIO()
    _write(file, manifest, sections)
    return file.getvalue()


def is_container(source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bool:
    """Does the file of this path, or do these bytes, begin like a compiled model?

    Raises `OSError` for a file that can't be read.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source[: len(_MAGIC)]) == _MAGIC
    with open_regular(source) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def map_file(path: str | os.PathLike[str], huge_pages: bool = False) -> memoryview:
    """The bytes of a memory-mapped file, which must not change while they are used, or a copy in huge pages.

    Raises `MissingModelError` where there is no file, and `ArtifactError` for one that is too short to be a container.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size >= _HEADER:
                copy = _in_huge_pages(file, size) if huge_pages else None
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if copy is None else copy
    except (FileNotFoundError, IsADirectoryError) as error:
        problem = "is a folder" if isinstance(error, IsADirectoryError) else "does not exist"
        raise MissingModelError(
            f"{os.fspath(path)} {problem}; expected a compiled model. Write one with model.save(path), or with "
            "`relayc compile model.onnx -o model.relayc`"
        ) from error
    raise ArtifactError(f"{os.fspath(path)} has {size} bytes; a compiled model has at least {_HEADER}. {AGAIN}")


def _in_huge_pages(file: BinaryIO, size: int) -> memoryview | None:
    """A copy of a file in huge pages; None where the system has none, or less of the file is read than expected."""
    pages = map_huge_pages(size)
    if pages is None:
        return None
    begin = first_huge_page(pages) - ctypes.addressof(ctypes.c_char.from_buffer(pages))
    copy = memoryview(pages)[begin : begin + size]
    return copy.toreadonly() if _read_whole(file, copy) else None


def _read_whole(file: BinaryIO, into: memoryview) -> bool:
    """Fill memory from the file's begin on; False if the file ends before."""
    at = 0
    while at < len(into):
        count = file.readinto(into[at:])  # type: ignore[attr-defined]
        if not count:
            return False
        at += count
    return True


class Container:
    """An open container: its format `version`, its `manifest` and the bytes of its sections, `parts`.

    Raises `ArtifactError` for a file that is foreign, of another version, truncated or damaged.
    """

    def __init__(self, data: memoryview, where: str) -> None:
        self.where = where
        self.version, self.manifest, end = _read_manifest(data, where)
        self._sections = self.manifest.records("sections")
        self.parts: list[memoryview] = []
        for index, section in enumerate(self._sections):
            section.only("align", "size", "sha256", "sums")
            begin = end + -end % section.number("align", 1, _MAX_ALIGN)
            stop = begin + section.number("size")
            if stop > len(data):
                raise ArtifactError(
                    f"{where} is cut off: {len(data)} bytes, but section {index} ends at {stop}. {AGAIN}"
                )
            if any(data[end:begin]):
                raise ArtifactError(f"{where}: bytes {end} to {begin} are not zero. {AGAIN}")
            self.parts.append(data[begin:stop])
            end = stop
        if end != len(data):
            raise ArtifactError(f"{where} has {len(data)} bytes; expected {end}. {AGAIN}")

    def check(self, index: int, method: Method = "sha256", upto: int | None = None) -> memoryview:
        """The bytes of a section, verified up to byte `upto` (None: all) by `method`.

        Runs on several threads. Raises `ArtifactError` on a mismatch.
        """
        part, section = self.parts[index], self._sections[index]
        expected, hash_of = section.strings(method), _METHODS[method]
        if len(expected) != -(-len(part) // _CHUNK):
            raise damaged(f"{section.where}.{method}", len(expected), f"one for every {_CHUNK} bytes")
        count = len(expected) if upto is None else min(len(expected), -(-upto // _CHUNK))

        def check(chunk: int) -> None:
            if hash_of(part[chunk * _CHUNK : (chunk + 1) * _CHUNK]) != expected[chunk]:
                raise ArtifactError(
                    f"{section.where}: bytes {chunk * _CHUNK} onward do not match their {method}. {AGAIN}"
                )

        in_threads(check, range(count), min(count * _CHUNK, len(part)))
        return part


def digest(value: object) -> bytes:
    """The SHA-256 of a JSON value in a form that does not depend on how it was written."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":"), sort_keys=True).encode()).digest()


def _read_manifest(data: memoryview, where: str) -> tuple[int, Record, int]:
    """The format version, the manifest and its end offset."""
    if bytes(data[:8]) != _MAGIC:
        raise ArtifactError(
            f"{where} starts with {bytes(data[:8])!r}; a compiled model starts with {_MAGIC!r}. "
            "It is no model compiled by relayc, or was damaged by a transfer in text mode. ONNX models are compiled "
            "first: relayc.compile_onnx(path), or `relayc compile` of a file whose name ends in .onnx"
        )
    version = int.from_bytes(data[8:12], "little")
    if not _OLDEST_VERSION <= version <= FORMAT_VERSION:
        raise ArtifactError(
            f"{where} has format version {version}; this runtime reads versions {_OLDEST_VERSION} to {FORMAT_VERSION}. "
            "Compile the model again, or install the relayc that wrote it"
        )
    end = _HEADER + int.from_bytes(data[12:16], "little")
    if end > len(data):
        raise ArtifactError(f"{where} is cut off: {len(data)} bytes, its manifest alone needs {end}. {AGAIN}")
    text = data[_HEADER:end]
    if hashlib.sha256(text).digest() != bytes(data[16:48]) or any(data[48:_HEADER]):
        raise ArtifactError(f"{where}: the manifest does not match its hash. {AGAIN}")
    try:
        return version, Record(json.loads(bytes(text)), f"{where}: manifest"), end
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: the manifest is no JSON ({error}). {AGAIN}") from error


def _write(file: BinaryIO, manifest: dict[str, Any], sections: Sequence[Section]) -> None:
    whole = {**manifest, "sections": [section.record for section in sections]}
    text = json.dumps(whole, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    header = _MAGIC + FORMAT_VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little")
    position = file.write(header + hashlib.sha256(text).digest() + bytes(16) + text)
    for section in sections:
        position += file.write(bytes(-position % section.align))
        for piece in section.pieces:
            position += file.write(piece)


def _chunks(pieces: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    """The concatenated pieces in chunks of 4 MiB; a chunk that spans pieces is copied."""
    pending = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            taken = view[: _CHUNK - len(pending)]
            view = view[len(taken) :]
            if not pending and len(taken) == _CHUNK:
                yield taken
                continue
            pending += taken
            if len(pending) == _CHUNK:
                yield memoryview(bytes(pending))
                pending.clear()
    if pending:
        yield memoryview(bytes(pending))


def _sha256(chunk: memoryview) -> str:
    return hashlib.sha256(chunk).hexdigest()


def sums(chunk: memoryview) -> str:
    """A hash of the sums modulo 2^64 of the chunk's rows and columns of 64-bit words, and of the remaining tail."""
    full = len(chunk) // _ROW * _ROW
    words = np.frombuffer(chunk[:full], "<u8").reshape(-1, _ROW // 8) if full else np.zeros((0, _ROW // 8), "<u8")
    rows, columns = words.sum(axis=1, dtype="<u8"), words.sum(axis=0, dtype="<u8")
    return hashlib.sha256(columns.tobytes() + rows.tobytes() + bytes(chunk[full:])).hexdigest()


_METHODS: dict[Method, Callable[[memoryview], str]] = {"sha256": _sha256, "sums": sums}

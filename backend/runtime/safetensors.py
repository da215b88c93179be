"""The safetensors format, written and read: weights as one JSON header and raw little-endian data.

Format: 8 bytes of header length, a JSON object name -> {dtype, shape, data_offsets}, then the data without gaps.
Padding tensors "__padding__.<n>" align the others to 64 bytes; reading skips them. dtypes that the format lacks are
stored as bytes (U8), and their dtypes elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.dtype import from_numpy, to_numpy
from relayc.backend.runtime.errors import ArgumentError, ArtifactError
from relayc.backend.runtime.fields import Record, damaged
from relayc.backend.runtime.ndarray import NDArray

__all__ = [
    "ALIGNMENT",
    "PADDING",
    "SAFETENSORS_DTYPES",
    "header_of",
    "load_param_dict",
    "pieces_of",
    "read",
    "save_param_dict",
]

ALIGNMENT = 64
PADDING = "__padding__."
SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
_DTYPES_BY_TAG = {tag: dtype for dtype, tag in SAFETENSORS_DTYPES.items()}
_MAX_HEADER = 100_000_000  # the format's own limit


def header_of(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The length word and header of these arrays, in their order; the data follows at a multiple of 64 bytes.

    Raises `ArgumentError` for a reserved name or an unsupported dtype.
    """
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in arrays.items():
        dtype = from_numpy(array.dtype)
        if name == "__metadata__" or name.startswith(PADDING) or dtype not in SAFETENSORS_DTYPES:
            raise ArgumentError(f"weight {name!r} of dtype {dtype} can't be stored under that name with that dtype")
        end = offset + array.nbytes
        entries[name] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
        if end % ALIGNMENT:
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            filler = {"dtype": "U8", "shape": [offset - end], "data_offsets": [end, offset]}
            entries[f"{PADDING}{len(entries)}"] = filler
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def pieces_of(arrays: Iterable[npt.NDArray[Any]]) -> Iterator[memoryview | bytes]:
    """The data that follows the header, piece by piece: each array's little-endian bytes, then zeros up to 64."""
    for array in arrays:
        dense = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        yield dense.reshape(-1).view(np.uint8).data
        yield bytes(-dense.nbytes % ALIGNMENT)


def read(data: memoryview, where: str) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """Parse `data`: (arrays, read-only views of it; the size of the header).

    Raises `ArtifactError` for gaps, overlaps, and sizes that disagree with shapes.
    """
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 0 <= length <= min(_MAX_HEADER, len(data) - 8):
        raise damaged(f"{where}: header length", length, f"at most {len(data) - 8}")
    try:
        header = Record(json.loads(bytes(data[8 : 8 + length])), f"{where}: header")
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{where}: header is no JSON ({error}). The file is damaged; compile the model again"
        ) from error
    content = data[8 + length :]
    arrays: dict[str, npt.NDArray[Any]] = {}
    position = 0
    for name in header.value:
        if name == "__metadata__":
            continue
        begin, array = _array(header.record(name), content)
        if begin != position:
            raise damaged(f"{header.where}.{name}.data_offsets", begin, f"to start at {position}")
        position += array.nbytes
        if not name.startswith(PADDING):
            arrays[name] = array
    if position != len(content):
        raise damaged(f"{where}: size", len(content), f"{position} bytes of data, as the header says")
    return arrays, 8 + length


def save_param_dict(params: Mapping[str, npt.NDArray[Any] | NDArray]) -> bytes:
    """Named arrays as the bytes of a safetensors file, which other tools read too. TVM: `save_param_dict`.

    Raises `ArgumentError` for a dtype that the format has not.
    """
    arrays = {name: values.numpy() if isinstance(values, NDArray) else values for name, values in params.items()}
    return b"".join([header_of(arrays), *pieces_of(arrays.values())])


def load_param_dict(data: bytes | memoryview) -> dict[str, npt.NDArray[Any]]:
    """The named arrays in the bytes of a safetensors file, as read-only views of it. TVM: `load_param_dict`.

    Raises `ArtifactError` for bytes that are no such file.
    """
    return read(memoryview(data), "parameters")[0]


def _array(entry: Record, content: memoryview) -> tuple[int, npt.NDArray[Any]]:
    entry.only("dtype", "shape", "data_offsets")
    tag, shape, offsets = (
        entry.get("dtype", str),
        entry.numbers("shape"),
        entry.numbers("data_offsets", 0, len(content)),
    )
    if tag not in _DTYPES_BY_TAG:
        raise damaged(f"{entry.where}.dtype", tag, f"one of {', '.join(_DTYPES_BY_TAG)}")
    kind = to_numpy(_DTYPES_BY_TAG[tag]).newbyteorder("<")
    needed = math.prod(shape) * kind.itemsize
    if len(offsets) != 2 or offsets[1] - offsets[0] != needed:
        raise damaged(f"{entry.where}.data_offsets", list(offsets), f"{needed} bytes, as dtype and shape say")
    try:
        array = np.frombuffer(content[offsets[0] : offsets[1]], kind) if needed else np.empty(0, kind)
        return offsets[0], array.reshape(shape)
    except ValueError as error:  # more dimensions, or larger ones beside a 0, than numpy takes
        raise damaged(f"{entry.where}.shape", list(shape), "a shape that numpy can hold") from error

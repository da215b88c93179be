"""Conversion of TensorProto to numpy, with all sizes checked.

Element types beyond numpy's own (bfloat16, float8, 4-bit and 2-bit types) are those of `ml_dtypes`. External data is
read only from regular files inside the model's own folder, or, where model and data are symbolic links, inside the
folder that the model's link leads to.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, SparseTensorProto, TensorProto

from relayc.backend.runtime.sizes import MAX_ELEMENTS, extent
from relayc.frontends.onnx.errors import OnnxImportError, fault, unsupported
from relayc.frontends.onnx.model_file import MANY, STORED
from relayc.frontends.onnx.weights import RawData, StoredBytes, StoredWeights, WeightMessage
from relayc.relay.stored import StoredConstant
from relayc.relay.type import MAX_RANK
from relayc.te.ir import Span

__all__ = [
    "check_computed",
    "check_shape",
    "dtype_name",
    "element_type",
    "message_weights",
    "numpy_dtype",
    "sparse_to_numpy",
    "stored_tensor",
    "to_numpy",
]

MAX_COMPUTED = 1 << 26
"""Most elements of a constant that import computes from a few numbers (a range, a mask, a table)."""


@dataclass(frozen=True, slots=True)
class _ElementType:
    """Storage of one ONNX element type: `field` is the typed field used without `raw_data`."""

    dtype: np.dtype[Any]
    bits: int
    field: str


def _element(scalar: Any, field: str, bits: int = 0) -> _ElementType:
    dtype: np.dtype[Any] = np.dtype(scalar)
    return _ElementType(dtype, bits if bits else dtype.itemsize * 8, field)


_TYPES: dict[int, _ElementType] = {
    TensorProto.FLOAT: _element(np.float32, "float_data"),
    TensorProto.UINT8: _element(np.uint8, "int32_data"),
    TensorProto.INT8: _element(np.int8, "int32_data"),
    TensorProto.UINT16: _element(np.uint16, "int32_data"),
    TensorProto.INT16: _element(np.int16, "int32_data"),
    TensorProto.INT32: _element(np.int32, "int32_data"),
    TensorProto.INT64: _element(np.int64, "int64_data"),
    TensorProto.BOOL: _element(np.bool_, "int32_data"),
    TensorProto.FLOAT16: _element(np.float16, "int32_data"),
    TensorProto.DOUBLE: _element(np.float64, "double_data"),
    TensorProto.UINT32: _element(np.uint32, "uint64_data"),
    TensorProto.UINT64: _element(np.uint64, "uint64_data"),
    TensorProto.BFLOAT16: _element(ml_dtypes.bfloat16, "int32_data"),
    TensorProto.FLOAT8E4M3FN: _element(ml_dtypes.float8_e4m3fn, "int32_data"),
    TensorProto.FLOAT8E4M3FNUZ: _element(ml_dtypes.float8_e4m3fnuz, "int32_data"),
    TensorProto.FLOAT8E5M2: _element(ml_dtypes.float8_e5m2, "int32_data"),
    TensorProto.FLOAT8E5M2FNUZ: _element(ml_dtypes.float8_e5m2fnuz, "int32_data"),
    TensorProto.UINT4: _element(ml_dtypes.uint4, "int32_data", 4),
    TensorProto.INT4: _element(ml_dtypes.int4, "int32_data", 4),
}

_NEWER_TYPES = (
    ("FLOAT4E2M1", "float4_e2m1fn", 4),
    ("FLOAT8E8M0", "float8_e8m0fnu", 8),
    ("UINT2", "uint2", 2),
    ("INT2", "int2", 2),
)
for _name, _scalar, _bits in _NEWER_TYPES:  # element types that an older onnx or ml_dtypes does not know
    if hasattr(TensorProto, _name) and hasattr(ml_dtypes, _scalar):
        _TYPES[getattr(TensorProto, _name)] = _element(getattr(ml_dtypes, _scalar), "int32_data", _bits)


def numpy_dtype(elem_type: int, where: str) -> np.dtype[Any]:
    """The numpy dtype of ONNX element type `elem_type`. Raises `UnsupportedOperatorError` for strings and complex."""
    found = _TYPES.get(elem_type)
    if found is not None:
        return found.dtype
    names = {value.number: value.name for value in TensorProto.DataType.DESCRIPTOR.values}
    if elem_type == TensorProto.UNDEFINED or elem_type not in names:
        raise fault(where, f"element type {elem_type} is not one of ONNX's", expected=_known_types())
    kind = names[elem_type].lower()
    problem = f"tensors of element type {names[elem_type]} are not supported"
    raise unsupported(where, problem, missing=f"tensor({kind})", expected=_known_types())


def dtype_name(elem_type: int, where: str) -> str:
    """The dtype name of ONNX element type `elem_type`, such as ``"float32"`` or ``"string"``."""
    return "string" if elem_type == TensorProto.STRING else numpy_dtype(elem_type, where).name


def element_type(dtype: str) -> int:
    """The ONNX element type of the dtype name `dtype`."""
    return next(number for number, element in _TYPES.items() if element.dtype.name == dtype)


def _known_types() -> str:
    return "one of " + ", ".join(sorted({t.dtype.name for t in _TYPES.values()}))


def check_shape(dims: tuple[int, ...], where: str) -> int:
    """The number of elements of shape `dims`; an error if a dimension is negative or the tensor too large."""
    if any(d < 0 for d in dims):
        raise fault(where, f"shape {list(dims)} has a negative dimension")
    if len(dims) > MAX_RANK:
        raise fault(where, f"{len(dims)} dimensions", expected=f"at most {MAX_RANK} dimensions")
    if extent(dims) > MAX_ELEMENTS:
        count = f"{math.prod(dims)} elements" if all(dims) else "no elements, and sizes that are too large"
        raise fault(where, f"shape {list(dims)} has {count}", expected=f"at most {MAX_ELEMENTS} elements")
    return math.prod(dims)


def check_computed(dims: tuple[int, ...], where: str) -> None:
    """Raise an error if a constant of shape `dims`, implied by a few bytes of the model, is too large to compute."""
    check_shape(dims, where)
    if math.prod(dims) > MAX_COMPUTED:
        raise fault(
            where,
            f"it needs a constant of shape {list(dims)}, computed while importing",
            expected=f"at most {MAX_COMPUTED} elements",
        )


def message_weights(proto: ModelProto) -> RawData:
    """The data of large initializers of a large model, which stays in the message until it is needed."""
    sizes = {t.name: _inline_bytes(t) for t in proto.graph.initializer}
    if len(sizes) < len(proto.graph.initializer) or sum(sizes.values()) < MANY:  # duplicates are the importer's error
        return {}
    sources = {t.name: WeightMessage(proto.graph.name, t) for t in proto.graph.initializer if sizes[t.name] >= STORED}
    return {name: StoredBytes(source, 0, source.size) for name, source in sources.items()}


def _inline_bytes(tensor: TensorProto) -> int:
    """Bytes of raw data in the message, by the tensor's shape."""
    element = _TYPES.get(tensor.data_type)
    if element is None or not tensor.HasField("raw_data") or tensor.data_location == TensorProto.EXTERNAL:
        return 0
    return _packed_bytes(math.prod(tensor.dims), element.bits)


def stored_tensor(
    tensor: TensorProto, folders: Sequence[Path], where: str, raw_data: np.ndarray | StoredBytes | None,
    weights: StoredWeights, span: Span,
) -> StoredConstant | None:  # fmt: skip
    """`tensor` as a constant whose values are among the stored `weights`; None for small or inline data.

    Raises like `to_numpy`.
    """
    external = tensor.data_location == TensorProto.EXTERNAL
    if not external and not isinstance(raw_data, StoredBytes):
        return None
    dims = tuple(tensor.dims)
    element = _TYPES.get(tensor.data_type)
    count = check_shape(dims, where)
    if element is None or element.bits < 8 or tensor.HasField("segment") or count * element.dtype.itemsize < STORED:
        return None
    expected = _packed_bytes(count, element.bits)
    if external:
        path, offset = _external_place(tensor, expected, folders, where)
        try:
            raw_data = StoredBytes(weights.open(path), offset, expected)
        except OSError as error:
            raise _unreadable(path, where, error) from error
    assert isinstance(raw_data, StoredBytes)
    _check_size(raw_data.size, expected, dims, element, where)
    return StoredConstant(dims, element.dtype, weights.first(raw_data).fill, span=span)


def to_numpy(
    tensor: TensorProto, folders: Sequence[Path], where: str, raw_data: np.ndarray | StoredBytes | None = None
) -> np.ndarray:
    """The value of `tensor`. `where` names the tensor in errors.

    `folders` is for external data: the model's folder and, if the model is a symbolic link, the folder of its target.

    `raw_data`, uint8, replaces the tensor's own `raw_data` where that was read apart.

    Raises `OnnxImportError` when sizes disagree or external data can't be read safely.
    """
    dims = tuple(tensor.dims)
    count = check_shape(dims, where)
    if tensor.data_type == TensorProto.STRING:
        return _strings(tensor, count, where).reshape(dims)
    numpy_dtype(tensor.data_type, where)
    element = _TYPES[tensor.data_type]
    if tensor.HasField("segment"):
        raise unsupported(where, "a tensor stored in segments is not supported", missing="segments")
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _read_external(tensor, _packed_bytes(count, element.bits), folders, where)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, dtype=np.uint8) if raw_data is None else raw_data
        raw = raw.read() if isinstance(raw, StoredBytes) else raw
    else:
        return _from_field(tensor, element, count, where).reshape(dims)
    _check_size(raw.size, _packed_bytes(count, element.bits), dims, element, where)
    return _unpack(raw, element, count).reshape(dims)


def _check_size(found: int, expected: int, dims: tuple[int, ...], element: _ElementType, where: str) -> None:
    if found != expected:
        raise fault(
            where,
            f"{found} bytes of data for shape {list(dims)} of {element.dtype.name}",
            expected=f"{expected} bytes",
            remedy="the file is damaged or was cut; export or download it again",
        )


def _strings(tensor: TensorProto, count: int, where: str) -> np.ndarray:
    """A string tensor as an object array of str."""
    if len(tensor.string_data) != count:
        raise fault(where, f"{len(tensor.string_data)} strings for shape {list(tensor.dims)}")
    values = np.empty(count, object)
    try:
        values[:] = [text.decode("utf-8") for text in tensor.string_data]
    except UnicodeDecodeError as error:
        raise fault(where, f"a string that is not UTF-8: {error}") from error
    return values


def _packed_bytes(count: int, bits: int) -> int:
    return (count * bits + 7) // 8


def _unpack(raw: np.ndarray, element: _ElementType, count: int) -> np.ndarray:
    """Decode `count` elements from little-endian bytes; sub-byte elements are packed lowest bits first."""
    if element.bits >= 8:
        return raw.view(element.dtype) if raw.size else np.empty(0, element.dtype)
    per_byte = 8 // element.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(element.bits)
    codes = ((raw[:, None] >> shifts) & np.uint8((1 << element.bits) - 1)).reshape(-1)[:count]
    if element.dtype.name.startswith("int"):  # ml_dtypes keeps signed sub-byte values sign-extended
        sign = np.uint8(1 << (element.bits - 1))
        codes = (codes ^ sign) - sign
        return codes.view(np.int8).astype(element.dtype)
    if element.dtype.name.startswith("uint"):
        return codes.astype(element.dtype)
    return codes.view(element.dtype)


def _from_field(tensor: TensorProto, element: _ElementType, count: int, where: str) -> np.ndarray:
    values = getattr(tensor, element.field)
    expected = _packed_bytes(count, element.bits) if element.bits < 8 else count
    if len(values) != expected:
        raise fault(
            where,
            f"{len(values)} values in {element.field} for shape {list(tensor.dims)} of {element.dtype.name}",
            expected=f"{expected} values",
            remedy="the file is damaged or was written wrong; export it again",
        )
    if element.field != "int32_data" or element.dtype == np.int32:
        return np.array(values, dtype=element.dtype)
    words = np.array(values, dtype=np.int32)
    if element.bits < 8:
        return _unpack(words.astype(np.uint8), element, count)
    if element.dtype.kind in "iub" and element.dtype.isbuiltin == 1:
        return words.astype(element.dtype)
    return words.astype(np.uint16 if element.bits == 16 else np.uint8).view(element.dtype)


def _read_external(tensor: TensorProto, nbytes: int, folders: Sequence[Path], where: str) -> np.ndarray:
    """The bytes of an externally stored tensor: uint8[nbytes]."""
    path, offset = _external_place(tensor, nbytes, folders, where)
    try:
        return np.fromfile(path, dtype=np.uint8, count=nbytes, offset=offset)
    except OSError as error:
        raise _unreadable(path, where, error) from error


def _unreadable(path: Path, where: str, error: OSError) -> OnnxImportError:
    return fault(where, f"external data file {path.name!r} can't be read: {error}")


def _external_place(tensor: TensorProto, nbytes: int, folders: Sequence[Path], where: str) -> tuple[Path, int]:
    """The file and byte offset of the `nbytes` bytes of an externally stored tensor."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not folders:
        raise fault(
            where,
            f"its data is in the external file {entries.get('location', '')!r}, and the model has no folder",
            remedy="pass the path of the .onnx file instead of a loaded model, or load it with its external data",
        )
    path = _external_path(entries.get("location", ""), folders, where)
    offset = _entry_number(entries, "offset", 0, where)
    length = _entry_number(entries, "length", nbytes, where)
    if length != nbytes:
        raise fault(where, f"external data of {length} bytes", expected=f"{nbytes} bytes")
    size = path.stat().st_size
    if offset + length > size:
        raise fault(
            where,
            f"external data at bytes {offset} to {offset + length} of {path.name!r}, which has {size} bytes",
            remedy="the data file is damaged, cut, or not the one of this model",
        )
    return path, offset


def _external_path(location: str, folders: Sequence[Path], where: str) -> Path:
    """The regular file `location` inside the first of `folders`: neither absolute nor outside by `..`.

    A symbolic link there may lead to a file inside any of `folders`: Hugging Face's cache keeps a model and its data as
    links into one folder.
    """
    expected = "a relative path of a file inside the model's folder"
    if not location or "\x00" in location or os.path.isabs(location) or Path(location).drive or "\\" in location:
        raise fault(where, f"external data location {location!r}", expected=expected)
    roots = [Path(os.path.realpath(folder)) for folder in folders]
    path = Path(os.path.realpath(roots[0] / location))
    climbs = os.path.normpath(location).split(os.sep)[0] == os.pardir
    if not any(path.is_relative_to(root) for root in (roots[:1] if climbs else roots)):
        raise fault(where, f"external data location {location!r} leads out of the model's folder", expected=expected)
    if not os.path.isfile(path):
        raise fault(
            where,
            f"external data file {location!r} is not there",
            expected=f"a file in {roots[0]}",
            remedy="keep the data file beside the .onnx file, under the name it was exported with",
        )
    return path


def _entry_number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise fault(where, f"external data {key} is {text!r}", expected="a non-negative integer")
    return int(text)


def sparse_to_numpy(sparse: SparseTensorProto, folders: Sequence[Path], where: str) -> np.ndarray:
    """The dense value of a sparse tensor, whose indices are int64[nnz] (linear) or int64[nnz, rank]."""
    dims = tuple(sparse.dims)
    count = check_shape(dims, where)
    values = to_numpy(sparse.values, folders, where)
    indices = to_numpy(sparse.indices, folders, where)
    check_computed(dims, where)
    if indices.dtype != np.int64 or indices.shape not in ((values.size,), (values.size, len(dims))):
        raise fault(
            where,
            f"{indices.dtype.name} indices of shape {list(indices.shape)} for {values.size} values",
            expected="int64 indices of shape [nnz] or [nnz, rank]",
        )
    if indices.ndim == 2:
        bounds = np.array(dims, np.int64)
        inside = bool(np.all((indices >= 0) & (indices < bounds)))
        linear = np.ravel_multi_index(tuple(indices.T), dims) if inside and indices.size else indices.reshape(-1)
    else:
        inside, linear = bool(np.all((indices >= 0) & (indices < count))), indices
    if not inside:
        raise fault(where, f"an index lies outside of shape {list(dims)}")
    dense = np.zeros(count, values.dtype)
    dense[linear] = values.reshape(-1)
    return dense.reshape(dims)

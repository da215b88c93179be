"""Values and descriptions of values, by onnxruntime's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.backend.runtime.dtype import to_numpy
from relayc.onnxruntime.errors import InvalidArgument, NotImplemented as Unsupported

__all__ = ["NodeArg", "OrtDevice", "OrtValue", "onnx_name", "value_type"]

Shape = list[int | str | None]

_NAMES = {"float32": "float", "float64": "double"}
"""onnxruntime's names of element types that differ from numpy's."""

_NUMBERS = (
    "", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64",
    "uint32", "uint64", "", "", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "uint4", "int4",
)  # fmt: skip
"""numpy's names of element types by their number in ONNX's TensorProto.DataType."""


def onnx_name(dtype: str) -> str:
    """onnxruntime's name of an element type."""
    return _NAMES.get(dtype, dtype.replace("_", ""))


def dtype_name(values: np.ndarray[Any, Any]) -> str:
    """The name of an array's element type; "string" for Python objects and numpy's strings."""
    return "string" if values.dtype.kind in "OSUT" else values.dtype.name


def value_type(dtype: str, is_sequence: bool = False) -> str:
    """A type as onnxruntime prints it: "tensor(float)"."""
    tensor = f"tensor({onnx_name(dtype)})"
    return f"seq({tensor})" if is_sequence else tensor


def element_dtype(element_type: Any) -> np.dtype[Any]:
    """The numpy type of an element type given as numpy's or by its number in ONNX."""
    if isinstance(element_type, int):
        name = _NUMBERS[element_type] if 0 <= element_type < len(_NUMBERS) else ""
        if not name:
            raise InvalidArgument(f"element type {element_type} is not supported")
        return np.dtype(object) if name == "string" else to_numpy(name)
    return np.dtype(element_type)


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its shape (names of symbolic dimensions, None for unnamed ones) and its type."""

    name: str
    shape: Shape
    type: str

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class OrtDevice:
    """A device by name and number."""

    def __init__(self, name: str = "cpu", number: int = 0) -> None:
        self._name, self._number = name, number

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        return OrtDevice(ort_device_name, device_id)

    def device_type(self) -> str:
        return self._name

    def device_id(self) -> int:
        return self._number


class OrtValue:
    """A value in the memory of the host: a tensor as a numpy array, or a list of tensors."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor that shares the array's memory."""
        _require_cpu(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Any, onnx_element_type: int) -> OrtValue:
        """A tensor whose elements are the bits of those of `data`, of another type as wide."""
        return OrtValue(np.asarray(data).view(element_dtype(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor of zeros."""
        _require_cpu(device_type)
        return OrtValue(np.zeros(tuple(shape), element_dtype(element_type)))

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        values = np.from_dlpack(data)
        return OrtValue(values.view(np.bool_) if is_bool_tensor else values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def numpy(self) -> Any:
        """The tensor, or the list of tensors."""
        return self._value

    def update_inplace(self, np_arr: Any) -> None:
        """Copy the elements of an array of the same shape and type."""
        passed = np.asarray(np_arr)
        if (passed.shape, passed.dtype) != (self._value.shape, self._value.dtype):
            found, expected = f"{passed.dtype} {passed.shape}", f"{self._value.dtype} {self._value.shape}"
            raise InvalidArgument(f"an update by {found}; expected {expected}")
        self._value[...] = passed

    def shape(self) -> list[int]:
        return list(self._value.shape)

    def data_type(self) -> str:
        """The type as onnxruntime prints it."""
        if isinstance(self._value, list):
            first = self._value[0] if self._value else np.zeros((), np.float32)
            return value_type(dtype_name(np.asarray(first)), is_sequence=True)
        return value_type(dtype_name(self._value))

    def element_type(self) -> int:
        """The number of the element type in ONNX."""
        return _NUMBERS.index(dtype_name(self._value))

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self._value.ctypes.data)

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def tensor_size_in_bytes(self) -> int:
        return int(self._value.nbytes)

    @property
    def _ortvalue(self) -> OrtValue:
        return self


def _require_cpu(device_type: str) -> None:
    if device_type != "cpu":
        raise Unsupported(f"values on the device {device_type!r}; sessions copy them there: keep values on 'cpu'")

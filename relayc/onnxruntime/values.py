"""Values and descriptions of values, by onnxruntime's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.backend.runtime.dtype import dtype_of, to_numpy
from relayc.onnxruntime.errors import InvalidArgument, NotImplemented as Unsupported, RuntimeException
from relayc.runtime import Device, NDArray, device, nd

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


def dtype_name(values: np.ndarray[Any, Any] | NDArray) -> str:
    """The name of an array's element type; "string" for Python objects and numpy's strings."""
    if isinstance(values, NDArray):
        return values.dtype
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
    return dtype_of(element_type)


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its shape (names of symbolic dimensions, None for unnamed ones) and its type."""

    name: str
    shape: Shape
    type: str

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


_DEVICES = ("cpu", "cuda")
"""The kinds of devices, by their numbers in onnxruntime."""


class OrtDevice:
    """A device by kind and number."""

    def __init__(self, name: str = "cpu", number: int = 0) -> None:
        if name not in _DEVICES:
            raise Unsupported(f"the device {name!r}; expected 'cpu' or 'cuda'")
        self._kind, self._number = _DEVICES.index(name), number

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        return OrtDevice(ort_device_name, device_id)

    def device_type(self) -> int:
        """The number of the kind of device: 0 CPU, 1 GPU."""
        return self._kind

    def device_id(self) -> int:
        return self._number


class OrtValue:
    """A value: a tensor in the memory of the host or of a GPU, or a list of tensors.

    `memory` is a numpy array, an `NDArray` on a device, or a list of numpy arrays.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A tensor that shares the array's memory, or has a copy on a device."""
        where = device_named(device_type, device_id)
        return OrtValue(np.asarray(numpy_obj) if where.kind == "cpu" else nd.array(np.asarray(numpy_obj), where))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Any, onnx_element_type: int) -> OrtValue:
        """A tensor whose elements are the bits of those of `data`, of another type as wide."""
        return OrtValue(np.asarray(data).view(element_dtype(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A tensor of zeros."""
        sizes = tuple(shape)
        if not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
            raise InvalidArgument(f"a tensor of shape {sizes}; expected sizes of 0 or more")
        return OrtValue.ortvalue_from_numpy(np.zeros(sizes, element_dtype(element_type)), device_type, device_id)

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> OrtValue:
        values = np.from_dlpack(data)
        return OrtValue(values.view(np.bool_) if is_bool_tensor else values)

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()

    def numpy(self) -> Any:
        """The tensor, or the list of tensors; one on a device is copied."""
        return self.memory.numpy() if isinstance(self.memory, NDArray) else self.memory

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = np.asarray(self.numpy(), dtype)
        return values.copy() if copy else values

    def update_inplace(self, np_arr: Any) -> None:
        """Copy the elements of an array of the same shape and type."""
        passed = np.asarray(np_arr)
        if (passed.shape, dtype_name(passed)) != (self.memory.shape, dtype_name(self.memory)):
            found, expected = f"{passed.dtype} {passed.shape}", f"{self.memory.dtype} {self.memory.shape}"
            raise InvalidArgument(f"an update by {found}; expected {expected}")
        self.memory[...] = passed

    def shape(self) -> list[int]:
        return list(self.memory.shape)

    def data_type(self) -> str:
        """The type as onnxruntime prints it."""
        if isinstance(self.memory, list):
            first = self.memory[0] if self.memory else np.zeros((), np.float32)
            return value_type(dtype_name(np.asarray(first)), is_sequence=True)
        return value_type(dtype_name(self.memory))

    def element_type(self) -> int:
        """The number of the element type in ONNX."""
        return _NUMBERS.index(dtype_name(self.memory))

    def device_name(self) -> str:
        return self.memory.device.kind if isinstance(self.memory, NDArray) else "cpu"

    def data_ptr(self) -> int:
        return self.memory.handle if isinstance(self.memory, NDArray) else int(self.memory.ctypes.data)

    def has_value(self) -> bool:
        return self.memory is not None

    def is_tensor(self) -> bool:
        return isinstance(self.memory, np.ndarray | NDArray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self.memory, list)

    def is_sparse_tensor(self) -> bool:
        return False

    def tensor_size_in_bytes(self) -> int:
        return int(self.memory.nbytes)

    @property
    def _ortvalue(self) -> OrtValue:
        return self


def device_named(name: str, number: int) -> Device:
    """The device of values: "cpu" or "cuda". Raises NotImplemented for others, and RuntimeException without a GPU."""
    if name not in _DEVICES:
        raise Unsupported(f"values on the device {name!r}; expected 'cpu' or 'cuda'")
    where = device(name, number)
    if not where.exist:
        raise RuntimeException(f"values on the device {where}, which is not there; keep values on 'cpu'")
    return where

"""Calling the functions of a compiled module from Python.

`PackedFunc` is the base class. A `KernelFunc` is a raw kernel, `void f(Ctx*, pointers and scalars...)`, without
argument checks. A `HostFunc`, `int32 f(Ctx*, void* values, int32* kinds, int32 n, int64* error)`, checks its arguments
and returns the number of the failed check.
"""

from __future__ import annotations

import abc
import ctypes
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from relayc.backend.runtime.context import (
    ARG_FLOAT,
    ARG_HANDLE,
    ARG_INT,
    ARG_NULL,
    ARG_STR,
    ARG_TENSOR,
    Context,
    current_context,
)
from relayc.backend.runtime.device import Device, device_kind_of
from relayc.backend.runtime.dtype import from_dlpack_triple
from relayc.backend.runtime.errors import ArgumentError, RelaycError
from relayc.backend.runtime.fields import damaged
from relayc.backend.runtime.ndarray import NDArray, array, from_dlpack
from relayc.backend.runtime.registry import get_global_func
from relayc.backend.runtime.sizes import Size, SizeValues

__all__ = ["BUFFER", "BufferWord", "HostFunc", "KernelFunc", "PackedFunc", "PythonFunc", "convert", "foreign_array",
           "read_messages", "read_params", "takes_pointers"]  # fmt: skip

BUFFER = "buffer"  # the kind of a kernel parameter that is a data pointer; a scalar's kind is its dtype

_C_TYPES: dict[str, Any] = {
    BUFFER: ctypes.c_void_p,
    "handle": ctypes.c_void_p,
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
_PLACEHOLDER = re.compile(r"\{(?::(dtype|device|kind))?\}")
"""What the message of a check has for a value. Other braces stand for themselves: messages may come from anywhere."""
_HostEntry = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
)
_MAX_ERROR_VALUES = 8
_INTEGERS = (int, np.integer, np.bool_)  # tuples: a union would be built at every call
_REALS = (float, np.floating)
_ARG_NAMES = {ARG_INT: "int", ARG_FLOAT: "float", ARG_HANDLE: "handle", ARG_NULL: "None", ARG_TENSOR: "tensor",
              ARG_STR: "str"}  # fmt: skip


def read_params(values: list[Any], where: str) -> tuple[str, ...]:
    """The parameter kinds of a function (see `KernelFunc`) from JSON. Raises `ArtifactError` for others."""
    if not all(isinstance(kind, str) and kind in _C_TYPES for kind in values):
        raise damaged(f"{where}: parameters", values, f"kinds among {', '.join(_C_TYPES)}")
    return tuple(values)


def read_messages(values: list[Any] | None, where: str) -> tuple[str, ...] | None:
    """The messages of a function's checks (see `HostFunc`) from JSON. Raises `ArtifactError` for what is no text."""
    if values is not None and not all(isinstance(text, str) for text in values):
        raise damaged(f"{where}: messages", values, "texts")
    return None if values is None else tuple(values)


class BufferWord(NamedTuple):
    """A buffer whose address is read from the word of 8 bytes at `at` when a function is called.

    `is_foreign`: it may be a user's, and less aligned than allocations are.
    """

    at: int
    shape: tuple[Size, ...]
    is_foreign: bool


class PackedFunc(abc.ABC):
    """A function of a module. Call it with NDArrays (or any DLPack object), numbers, strings and None.

    Compiled functions write their results into arguments and return None.
    """

    name: str
    is_queued: bool = False
    """True when a call only queues work on the device's current stream, so that it can be captured."""

    def __call__(self, *args: Any) -> Any:
        return self.bind(*args)()

    @abc.abstractmethod
    def bind(self, *args: Any, context: Context | None = None) -> Callable[[], Any]:
        """A callable with marshalled arguments, for cheap repeated calls.

        It runs in `context`, or in the binding thread's context, and then must be called from that thread.

        Raises `ArgumentError` for arguments that can't be passed; the arrays live as long as the result.
        """

    def bind_words(
        self, args: Sequence[BufferWord | Size], sizes: SizeValues, where: Device
    ) -> Callable[[], Any] | None:
        """`bind` for calls that differ in addresses and sizes: buffers come by their words, other arguments, and the
        shapes, are sizes, whose values `sizes` has when the result is called. It checks neither types nor extents.

        None where only `bind` serves, which is the default.
        """
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class PythonFunc(PackedFunc):
    """A Python callable as a `PackedFunc`."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.name = name if name is not None else getattr(function, "__name__", repr(function))
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def bind(self, *args: Any, context: Context | None = None) -> Callable[[], Any]:
        return lambda: self._function(*args)


class KernelFunc(PackedFunc):
    """A raw kernel at `address`; `params` holds "buffer" or a scalar's dtype for each parameter, in order.

    Shapes and dtypes of buffers are unknown here and not checked. `raw` is the ctypes function; `keep_alive` owns the
    code.
    """

    def __init__(self, name: str, address: int, params: Sequence[str], keep_alive: object = None) -> None:
        unknown = [kind for kind in params if kind not in _C_TYPES]
        if unknown:
            raise ArgumentError(f"kernel {name!r} has parameters of kind {unknown}; known are {', '.join(_C_TYPES)}")
        self.name = name
        self.address = address
        self.params = tuple(params)
        self._keep_alive = keep_alive
        self.raw: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *(_C_TYPES[kind] for kind in self.params))(address)

    def bind(self, *args: Any, context: Context | None = None) -> Callable[[], None]:
        if len(args) != len(self.params):
            raise ArgumentError(f"{self.name}: got {len(args)} arguments; expected {len(self.params)}: {self.params}")
        values = [_as_kernel_value(self, i, value) for i, value in enumerate(args)]
        entry, where = self.raw, current_context() if context is None else context
        raw = [value.handle if isinstance(value, NDArray) else value for value in values]
        keep = (values, self._keep_alive)

        def call(_keep: object = keep) -> None:
            entry(where.address, *raw)
            where.check()

        return call


def takes_pointers(function: PackedFunc, count: int) -> TypeGuard[KernelFunc]:
    """Is this a raw kernel of so many pointers, as the functions are that run a graph?"""
    if not isinstance(function, KernelFunc):
        return False
    return len(function.params) == count and all(kind in (BUFFER, "handle") for kind in function.params)


class HostFunc(PackedFunc):
    """A compiled function that checks its arguments.

    `messages[k]` is the message of check k > 0, with a placeholder for each value that a failed check stores:
    "{}", or "{:dtype}", "{:device}", "{:kind}" for an encoded one (see `ErrorValue`). `find_function` resolves the
    names of packed functions that it calls, by default in the global registry.
    """

    def __init__(
        self,
        name: str,
        address: int,
        messages: Mapping[int, str],
        keep_alive: object = None,
        find_function: Callable[[str], Callable[..., Any]] = get_global_func,
    ) -> None:
        self.name = name
        self.address = address
        self._messages = messages
        self._keep_alive = keep_alive
        self._find_function = find_function
        self._entry: Any = _HostEntry(address)

    def bind(self, *args: Any, context: Context | None = None) -> Callable[[], None]:
        count = len(args)
        values, kinds = (ctypes.c_int64 * max(count, 1))(), (ctypes.c_int32 * max(count, 1))()
        error = (ctypes.c_int64 * _MAX_ERROR_VALUES)()
        keep: list[Any] = [values, kinds, error, self._keep_alive]
        for i, value in enumerate(args):
            kinds[i], values[i], kept = _pack(self, i, value)
            keep.append(kept)
        entry, where = self._entry, current_context() if context is None else context
        pointers = ctypes.addressof(values), ctypes.addressof(kinds), count, ctypes.addressof(error)

        def call(_keep: object = keep) -> None:
            outer, where.find_function = where.find_function, self._find_function
            status = entry(where.address, *pointers)
            where.find_function = outer
            where.check()
            if status:
                raise ArgumentError(self._explain(status, error[:]))

        return call

    def _explain(self, check: int, values: Sequence[int]) -> str:
        template = self._messages.get(check, f"argument check {check} failed with values {list(values)}")
        given = map(ErrorValue, values)
        text = _PLACEHOLDER.sub(lambda found: format(next(given, ErrorValue()), found[1] or ""), template)
        return f"{self.name}: {text}"


class ErrorValue(int):
    """A value in the message of a failed check, formatted as the dtype, device or kind that it encodes.

    Format "dtype": code | bits << 8 | lanes << 16 of a `DLTensor`. "device": a DLPack device type. "kind": an `ARG_*`.
    """

    def __format__(self, spec: str) -> str:
        if spec == "dtype":
            return _or_number(lambda: from_dlpack_triple(self & 0xFF, self >> 8 & 0xFF, self >> 16 & 0xFFFF), self)
        if spec == "device":
            return _or_number(lambda: device_kind_of(int(self)), self)
        if spec == "kind":
            return _ARG_NAMES.get(int(self), f"number {int(self)}")
        return format(int(self), spec)


def _or_number(name: Callable[[], str], number: int) -> str:
    try:
        return name()
    except RelaycError:
        return f"number {int(number)}"


def convert(value: Any) -> Any:
    """A Python callable as a `PackedFunc`, a numpy array or nested numbers as an `NDArray`, other values as they are.

    TVM: `tvm.runtime.convert`.
    """
    if isinstance(value, PackedFunc | NDArray | str | int | float) or value is None:
        return value
    if callable(value):
        return PythonFunc(value)
    return array(value)


def _pack(function: PackedFunc, position: int, value: Any) -> tuple[int, int, object]:
    """Marshal one argument: (kind, 8-byte value, object to keep alive)."""
    if isinstance(value, NDArray):
        return ARG_TENSOR, ctypes.addressof(value.tensor), value
    if isinstance(value, _INTEGERS):
        number = int(value)
        if not -(1 << 63) <= number < 1 << 64:
            raise ArgumentError(f"{function.name}: argument {position} is {number}, which does not fit 64 bits")
        return ARG_INT, number - (1 << 64) if number >= 1 << 63 else number, None
    if isinstance(value, _REALS):
        return ARG_FLOAT, struct.unpack("q", struct.pack("d", float(value)))[0], None
    if value is None:
        return ARG_NULL, 0, None
    if isinstance(value, str):
        text = ctypes.create_string_buffer(value.encode())
        return ARG_STR, ctypes.addressof(text), text
    tensor = foreign_array(function, position, value)
    return ARG_TENSOR, ctypes.addressof(tensor.tensor), tensor


def _as_kernel_value(kernel: KernelFunc, position: int, value: Any) -> Any:
    kind = kernel.params[position]
    if kind == BUFFER:
        tensor = value if isinstance(value, NDArray) else foreign_array(kernel, position, value)
        if not tensor.is_contiguous:
            raise ArgumentError(f"{kernel.name}: argument {position} has strides {tensor.strides}; expected contiguous")
        return tensor
    if not isinstance(value, _INTEGERS + _REALS):
        raise ArgumentError(f"{kernel.name}: argument {position} is {type(value).__name__}; expected a number ({kind})")
    return float(value) if kind.startswith("float") else int(value)


def foreign_array(function: PackedFunc, position: int, value: Any) -> NDArray:
    """Wrap another library's array as an NDArray. Raises `ArgumentError`."""
    if not hasattr(value, "__dlpack__"):
        raise ArgumentError(
            f"{function.name}: argument {position} is {type(value).__name__}; expected an NDArray, an object with "
            "__dlpack__, a number, a string or None"
        )
    tensor = from_dlpack(value)
    if tensor.read_only:
        raise ArgumentError(f"{function.name}: argument {position} is read-only memory; pass nd.array(x), a copy")
    return tensor

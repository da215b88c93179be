"""Calls of device functions, bound to their arguments once and launched with little Python overhead.

`bind` evaluates the sizes of grids, blocks and workspaces for the arrays passed, and lays out the arguments of every
kernel as the driver expects them: a slot of 8 bytes for each value and a table of their addresses. A call passes the
address of that table. `bind_words` does the same once for all sizes: the table has the addresses of words that hold
the buffers' addresses, so that a call sets the sizes only.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from relayc.backend.cuda.device import CUDADeviceAPI
from relayc.backend.cuda.driver import WRONG_CONTEXT, bindings, driver_error
from relayc.backend.cuda.gpu import Gpu
from relayc.backend.cuda.table import DeviceFunction, Kernel, Param
from relayc.backend.runtime.context import Context
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.dtype import nbytes
from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.ndarray import NDArray
from relayc.backend.runtime.packed_func import BufferWord, PackedFunc, foreign_array
from relayc.backend.runtime.sizes import Size, SizeValues, evaluate, substitute

__all__ = ["CUDAFunc", "KernelSource"]

_NUMBERS = (int, float, np.number, np.bool_)
_SCALAR_TYPES: dict[str, Any] = {
    "bool": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "handle": np.uint64, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip
_SIZE_TYPES = frozenset({"int32", "int64"})
_MOST_IN_32_BITS = (1 << 31) - 1


class KernelSource(Protocol):
    """The provider of kernel code: `CUDAModule`."""

    api: CUDADeviceAPI

    def kernel(self, gpu: Gpu, name: str, dynamic_shared: int) -> int:
        """The driver's handle of a kernel on a GPU, allowed to launch with that much dynamic shared memory."""
        ...


class CUDAFunc(PackedFunc):
    """A function of a `CUDAModule`: its kernels, queued in order on the thread's current stream.

    `bind` checks that the arguments are of the right number, kind, dtype and size, and contiguous on one GPU. The
    consistency of shapes is checked by the host function, or inside a model by the compiler.
    """

    is_queued = True

    def __init__(self, function: DeviceFunction, source: KernelSource) -> None:
        self.name = function.name
        self._function = function
        self._source = source

    def bind(self, *args: Any, context: Context | None = None) -> Callable[[], None]:
        function = self._function
        if len(args) != len(function.params):
            names = ", ".join(param.name for param in function.params)
            raise ArgumentError(f"{self.name}: got {len(args)} arguments; expected {len(function.params)}: {names}")
        values = [self._buffer(i, value) if param.shape is not None else self._scalar(param, value)
                  for i, (param, value) in enumerate(zip(function.params, args, strict=True))]  # fmt: skip
        arrays = [value for value in values if isinstance(value, NDArray)]
        where = self._place(arrays)
        variables = _sizes(function.params, values)
        for param, value in zip(function.params, values, strict=True):
            if isinstance(value, NDArray):
                self._check_size(param, value, variables)
        gpu = self._source.api.gpu(where)
        launches: list[_BoundLaunch] = []
        for kernel, known in _launch_order(function.kernels, variables):
            grid = [evaluate(extent, known) for extent in kernel.grid]
            if min(grid) > 0:  # an empty grid is skipped; the driver would reject it
                launches.append(_BoundLaunch(self._source, gpu, kernel, grid, values, known))
        scratch = [evaluate(size, variables) for size in function.workspaces]
        if not scratch and len(launches) == 1:
            return launches[0]
        return _Sequence(self._source.api, where, launches, lambda: scratch)

    def bind_words(
        self, args: Sequence[BufferWord | Size], sizes: SizeValues, where: Device
    ) -> Callable[[], None] | None:
        function = self._function
        numbers = [param.dtype for param in function.params if param.shape is None]
        if len(args) != len(function.params) or not set(numbers) <= _SIZE_TYPES:
            return None
        if any(kernel.step is not None for kernel in function.kernels):
            return None
        known: dict[str, Size] = {}
        foreign: list[tuple[Param, int]] = []
        for param, arg in zip(function.params, args, strict=True):
            if not isinstance(arg, BufferWord):
                known.setdefault(param.name, arg)
                continue
            for extent, actual in zip(param.shape or (), arg.shape, strict=False):
                if isinstance(extent, str):
                    known.setdefault(extent, actual)
            if arg.is_foreign and param.align > 1:
                foreign.append((param, arg.at))
        gpu = self._source.api.gpu(where)
        launches = [_SizedLaunch(self._source, gpu, kernel, function.params, args, known, sizes)
                    for kernel in function.kernels]  # fmt: skip
        scratch = [sizes.number(substitute(size, known)) for size in function.workspaces]
        if not scratch and not foreign and len(launches) == 1:
            return launches[0]

        def check() -> list[int]:
            for param, at in foreign:
                self._check_alignment(param, ctypes.c_uint64.from_address(at).value)
            return [sizes.values[number] for number in scratch]

        return _Sequence(self._source.api, where, launches, check)

    def _buffer(self, position: int, value: Any) -> NDArray:
        param = self._function.params[position]
        array = value if isinstance(value, NDArray) else foreign_array(self, position, value)
        if array.dtype != param.dtype or not array.is_contiguous:
            raise ArgumentError(
                f"{self.name}: argument {param.name!r} has dtype {array.dtype}, strides {array.strides}; expected "
                f"{param.dtype}, contiguous"
            )
        if array.nbytes:
            self._check_alignment(param, array.handle)
        assert param.shape is not None
        if len(array.shape) != len(param.shape) and any(isinstance(extent, str) for extent in param.shape):
            raise ArgumentError(
                f"{self.name}: argument {param.name!r} has {len(array.shape)} dimensions; expected {len(param.shape)}"
            )
        return array

    def _check_alignment(self, param: Param, address: int) -> None:
        if address % param.align:
            raise ArgumentError(
                f"{self.name}: argument {param.name!r} lies at address {address:#x}; expected a multiple of "
                f"{param.align}: copy it with nd.array"
            )

    def _scalar(self, param: Param, value: Any) -> Any:
        if not isinstance(value, _NUMBERS):
            raise ArgumentError(
                f"{self.name}: argument {param.name!r} is {type(value).__name__}; expected a number ({param.dtype})"
            )
        return _as_scalar(param.dtype, value, f"{self.name}: argument {param.name!r}")

    def _place(self, arrays: Sequence[NDArray]) -> Device:
        """The GPU that all arrays are on; the first GPU for a function without arrays."""
        places = list(dict.fromkeys(array.device for array in arrays))
        if len(places) > 1 or (places and places[0].kind != "cuda"):
            named = ", ".join(map(str, places))
            raise ArgumentError(f"{self.name}: arguments are on {named}; expected one CUDA device")
        return places[0] if places else Device("cuda", 0)

    def _check_size(self, param: Param, array: NDArray, variables: Mapping[str, int]) -> None:
        assert param.shape is not None
        shape = tuple(evaluate(extent, variables) for extent in param.shape)
        count = 1
        for extent in shape:
            count *= extent
        if array.nbytes < nbytes(param.dtype, count):
            raise ArgumentError(
                f"{self.name}: argument {param.name!r} has shape {array.shape}; expected {shape}, which is more"
            )


def _sizes(params: Sequence[Param], values: Sequence[Any]) -> dict[str, int]:
    """The size variables, from the extent of the first buffer that has each, or the scalar of its name."""
    found: dict[str, int] = {}
    for param, value in zip(params, values, strict=True):
        if param.shape is None:
            if np.issubdtype(type(value), np.integer):
                found.setdefault(param.name, int(value))
            continue
        for extent, actual in zip(param.shape, value.shape, strict=False):
            if isinstance(extent, str):
                found.setdefault(extent, actual)
    return found


def _launch_order(
    kernels: Sequence[Kernel], variables: Mapping[str, int]
) -> Iterator[tuple[Kernel, Mapping[str, int]]]:
    """The kernels in launch order, each with the values of its variables; kernels with the same step are
    interleaved."""
    for step, group in itertools.groupby(kernels, lambda kernel: kernel.step):
        if step is None:
            yield from ((kernel, variables) for kernel in group)
            continue
        (name, size), together = step, list(group)
        for value in range(evaluate(size, variables)):
            yield from ((kernel, {**variables, name: value}) for kernel in together)


class _Launch:
    """A kernel and the table of its arguments, which are 8 bytes each in `slots` or in words elsewhere."""

    __slots__ = ("_addresses", "_call", "_gpu", "_name", "_source", "_streams", "_table", "slots", "workspaces")

    def __init__(self, source: KernelSource, gpu: Gpu, kernel: Kernel) -> None:
        count = max(len(kernel.arguments), 1)
        self.slots = (ctypes.c_int64 * count)()
        start = ctypes.addressof(self.slots)
        self._addresses = (ctypes.c_void_p * count)(*range(start, start + 8 * count, 8))
        self._table = ctypes.addressof(self._addresses)
        self.workspaces = [(slot, argument.index) for slot, argument in enumerate(kernel.arguments)
                           if argument.kind == "workspace"]  # fmt: skip
        self._name, self._source, self._gpu = kernel.name, source, gpu
        self._streams = source.api.stream_of
        self._call = bindings().cuLaunchKernel

    def place(self, workspaces: Sequence[int]) -> None:
        """Set the addresses of the workspaces."""
        for slot, number in self.workspaces:
            self.slots[slot] = workspaces[number]

    def _submit(self, shape: Sequence[int]) -> None:
        """Launch the kernel with the driver's handle, grid, block and dynamic shared memory of `shape` on the thread's
        current stream."""
        result = self._call(*shape, self._streams(self._gpu), self._table, 0)[0]
        if result:
            self._retry(shape, result)

    def _retry(self, shape: Sequence[int], result: Any) -> None:
        """Retry after a failure, which may be that this thread has another current context, or none."""
        if result in WRONG_CONTEXT:
            self._gpu.activate()
            result = self._call(*shape, self._streams(self._gpu), self._table, 0)[0]
        if result:
            _, *sizes, shared = shape
            raise driver_error(
                f"launch of kernel {self._name!r} on cuda:{self._gpu.index} with grid {tuple(sizes[:3])}, block "
                f"{tuple(sizes[3:])}, {shared} bytes of dynamic shared memory",
                result,
            )


class _BoundLaunch(_Launch):
    """A launch of a kernel with given arguments."""

    __slots__ = ("_keep", "_shape")

    def __init__(
        self,
        source: KernelSource,
        gpu: Gpu,
        kernel: Kernel,
        grid: Sequence[int],
        values: Sequence[Any],
        variables: Mapping[str, int],
    ) -> None:
        super().__init__(source, gpu, kernel)
        block = [evaluate(extent, variables) for extent in kernel.block]
        shared = evaluate(kernel.dynamic_shared, variables)
        for slot, argument in enumerate(kernel.arguments):
            if argument.kind == "size":
                size = evaluate(argument.size, variables)
                self.slots[slot] = _bits(_as_scalar(argument.dtype, size, f"{kernel.name}: a size"))
            elif argument.kind == "param":
                value = values[argument.index]
                self.slots[slot] = value.handle if isinstance(value, NDArray) else _bits(value)
        self._shape = (source.kernel(gpu, kernel.name, shared), *grid, *block, shared)
        self._keep = values

    def __call__(self) -> None:
        self._submit(self._shape)


class _SizedLaunch(_Launch):
    """Launches of a kernel on buffers whose addresses are in words, with the sizes of the moment."""

    __slots__ = ("_handle", "_numbers", "_shared", "_sizes", "_slot_sizes")

    def __init__(
        self,
        source: KernelSource,
        gpu: Gpu,
        kernel: Kernel,
        params: Sequence[Param],
        args: Sequence[BufferWord | Size],
        known: Mapping[str, Size],
        sizes: SizeValues,
    ) -> None:
        super().__init__(source, gpu, kernel)
        self._slot_sizes: list[tuple[int, int, str]] = []  # (slot, number of the size, dtype)
        for slot, argument in enumerate(kernel.arguments):
            arg = args[argument.index] if argument.kind == "param" else substitute(argument.size, known)
            if isinstance(arg, BufferWord):
                self._addresses[slot] = arg.at
            elif argument.kind != "workspace":
                dtype = params[argument.index].dtype if argument.kind == "param" else argument.dtype
                self._slot_sizes.append((slot, sizes.number(arg), dtype))
        launched = (*kernel.grid, *kernel.block, kernel.dynamic_shared)
        self._numbers = [sizes.number(substitute(size, known)) for size in launched]
        self._sizes = sizes
        self._handle, self._shared = 0, -1

    def __call__(self) -> None:
        values = self._sizes.values
        shape = [values[number] for number in self._numbers]
        if min(shape[:3]) <= 0:
            return
        for slot, number, dtype in self._slot_sizes:
            value = values[number]
            if not -_MOST_IN_32_BITS <= value <= _MOST_IN_32_BITS:
                _as_scalar(dtype, value, f"{self._name}: a size")
            self.slots[slot] = value
        if shape[-1] != self._shared:
            self._handle, self._shared = self._source.kernel(self._gpu, self._name, shape[-1]), shape[-1]
        self._submit((self._handle, *shape))


class _Sequence:
    """Several kernels and their workspaces, which are reserved only while a call queues its work.

    `workspaces` gives their bytes when a call begins, and raises what keeps it from being made.
    """

    def __init__(
        self, api: CUDADeviceAPI, where: Device, launches: Sequence[_BoundLaunch | _SizedLaunch],
        workspaces: Callable[[], Sequence[int]],
    ) -> None:  # fmt: skip
        self._api = api
        self._where = where
        self._launches = launches
        self._workspaces = workspaces

    def __call__(self) -> None:
        taken: list[int] = []
        try:
            for size in self._workspaces():
                taken.append(self._api.alloc_workspace(self._where, size))
            for launch in self._launches:
                launch.place(taken)
                launch()
        finally:
            for handle in reversed(taken):
                self._api.free_workspace(self._where, handle)


def _as_scalar(dtype: str, value: Any, what: str) -> Any:
    """Convert a number to a numpy scalar of a dtype. Raises `ArgumentError` if the dtype can't represent it."""
    try:
        scalar = _SCALAR_TYPES[dtype](value)
    except (OverflowError, ValueError) as error:
        raise ArgumentError(f"{what} is {value}; expected {dtype}") from error
    if "int" in dtype and scalar != value:
        raise ArgumentError(f"{what} is {value}; expected {dtype}")
    return scalar


def _bits(value: Any) -> int:
    """The bytes of a scalar, at the low end of a slot."""
    return int.from_bytes(value.tobytes(), "little")

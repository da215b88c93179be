"""`NDArray`: a tensor in one device's memory. Semantics and names follow TVM's `tvm.nd.NDArray`.

An array owns its memory, or references its owner (a numpy array, a mapped file, a DLPack producer, another NDArray).
Exchange with DLPack producers and consumers, numpy included, is zero-copy.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relayc.backend.runtime.device import Device, cpu, device, device_kind_of, get_device_api
from relayc.backend.runtime.device_api import ALLOC_ALIGNMENT, DeviceAPI
from relayc.backend.runtime.dlpack import DLTensor, ImportedTensor, export_capsule
from relayc.backend.runtime.dtype import (
    DataType,
    DTypeName,
    data_type,
    dtype_name,
    from_dlpack_triple,
    from_numpy,
    nbytes as nbytes_of,
    unpack,
)
from relayc.backend.runtime.errors import ArgumentError, DeviceError
from relayc.backend.runtime.sizes import MAX_EXTENT, extent

__all__ = ["C_TYPES", "NDArray", "array", "copy_strided", "empty", "from_dlpack", "row_bytes",
           "wrap_numpy", "zeros"]  # fmt: skip

_INTEGERS = (int, np.integer)
_HOST = cpu()

_dimension_arrays: dict[int, Any] = {}  # rank -> ctypes array type


class _DataSpace:
    """An allocation of a device API, freed with its last reference."""

    __slots__ = ("_api", "_device", "handle")

    def __init__(self, where: Device, nbytes: int, alignment: int) -> None:
        self.handle = 0
        self._api = where.api
        self._device = where
        self.handle = self._api.alloc_data_space(where, nbytes, alignment)

    def __del__(self) -> None:
        if self.handle:
            self._api.free_data_space(self._device, self.handle)


C_TYPES: dict[str, Any] = {"bool": ctypes.c_bool, "int64": ctypes.c_int64, "int32": ctypes.c_int32}
"""ctypes' types of the elements that decide what runs."""


class _Borrowed:
    """Another library's device memory, released once the queued work that uses it is done."""

    __slots__ = ("_api", "_device", "_owner")

    def __init__(self, owner: object, where: Device, api: DeviceAPI) -> None:
        self._api = api
        self._device = where
        self._owner = owner

    def __del__(self) -> None:
        self._api.keep_until_done(self._device, self._owner)


class _HostMemory:
    """Host memory as numpy's array interface; the numpy array made of it keeps `owner` alive."""

    def __init__(self, owner: object, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


class NDArray:
    """A tensor on a device. Make it with `empty`, `zeros`, `array` or `from_dlpack`.

    Attributes: `shape` (ints), `dtype` (a string, see `backend.runtime.dtype`, which equals numpy's type too),
    `device`, `read_only`. Memory is contiguous and aligned to 64 bytes unless it came from elsewhere (`from_dlpack`).

    Comparison, indexing, `len`, `float`, `item` and `tolist` read the values as numpy's do; off the host they copy the
    whole array first. For arithmetic take `numpy()`.
    """

    __slots__ = (
        "__weakref__",
        "_owner",
        "_seen",
        "_strides",
        "_tensor",
        "byte_offset",
        "device",
        "dtype",
        "handle",
        "is_contiguous",
        "read_only",
        "shape",
    )

    shape: tuple[int, ...]
    dtype: DTypeName
    device: Device
    read_only: bool
    is_contiguous: bool
    handle: int  # the address of element 0 where handles are addresses; elsewhere the data space
    byte_offset: int  # from `handle` to element 0; 0 where handles are addresses

    def __init__(
        self,
        handle: int,
        shape: tuple[int, ...],
        dtype: str,
        where: Device,
        owner: object,
        *,
        byte_offset: int = 0,
        strides: tuple[int, ...] | None = None,
        read_only: bool = False,
    ) -> None:
        """A view of memory that `owner` keeps alive. Internal; users call `empty`, `array` and the like."""
        if byte_offset and where.api.addressable:
            handle, byte_offset = handle + byte_offset, 0
        self.handle, self.byte_offset = handle, byte_offset
        self.shape, self.dtype, self.device, self.read_only = shape, dtype_name(dtype), where, read_only
        self.is_contiguous = strides is None or _is_dense(shape, strides)
        self._strides = strides
        self._owner = owner
        self._tensor: DLTensor | None = None
        self._seen: npt.NDArray[Any] | None = None
        """the memory as numpy, for copies only: it does not keep the owner alive"""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        if self._strides is None:
            self._strides = _dense_strides(self.shape)
        return self._strides

    @property
    def tensor(self) -> DLTensor:
        """The `DLTensor` passed to compiled functions; it lives as long as this array."""
        if self._tensor is None:
            info, rank = data_type(self.dtype), len(self.shape)
            kind = _dimension_arrays.get(rank)
            if kind is None:
                kind = _dimension_arrays[rank] = ctypes.c_int64 * max(rank, 1)
            self._tensor = DLTensor(
                self.handle,
                self.device.dlpack_type,
                self.device.index,
                rank,
                info.code,
                info.bits,
                info.lanes,
                kind(*self.shape),
                kind(*self.strides),
                self.byte_offset,
            )
        return self._tensor

    # -- facts

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements laid out densely."""
        return nbytes_of(self.dtype, self.size)

    def same_as(self, other: object) -> bool:
        """True for the very same array object."""
        return self is other

    # -- values

    def __eq__(self, other: object) -> Any:
        """The comparison of the elements, as a numpy array of bools; `same_as` compares objects."""
        return self._read() == (other._read() if isinstance(other, NDArray) else other)

    def __ne__(self, other: object) -> Any:
        return self._read() != (other._read() if isinstance(other, NDArray) else other)

    __hash__ = object.__hash__
    """by identity, as PyTorch's tensors have it: an array can be a key of a dictionary"""

    def __bool__(self) -> bool:
        """The truth of the only element. Raises ValueError for several, as numpy does."""
        return bool(self._read())

    def __len__(self) -> int:
        """The size of the first dimension. Raises TypeError for a scalar."""
        if not self.shape:
            raise TypeError("an NDArray without dimensions has no len()")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """The elements at a numpy index: a numpy copy, or a number."""
        found = self._read()[index]
        return found.copy() if isinstance(found, np.ndarray) else found

    def __iter__(self) -> Iterator[Any]:
        """The rows as numpy arrays, or the numbers of a vector."""
        return iter(self.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def item(self) -> Any:
        """The only element as a Python number. Raises ValueError for several."""
        return self._read().item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self._read().tolist()

    def _read(self) -> npt.NDArray[Any]:
        """The values as numpy, for reading only: the host's memory itself, or a copy."""
        return self._host_view() if _on_host(self) else self.numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its values; the copy is on a device of the same name."""
        return _revive, (self.numpy(), self.shape, str(self.dtype), self.device)

    def __repr__(self) -> str:
        return f"<NDArray shape={self.shape}, dtype={self.dtype}, device={self.device}>\n{self.numpy()}"

    # -- copies

    def numpy(self) -> npt.NDArray[Any]:
        """A numpy copy, of the `ml_dtypes` type where numpy has none; vector lanes become a last dimension.

        Waits for the device's current stream. Raises `DeviceError` for a strided array off the host.
        """
        seen = self._seen if self._seen is not None else self._look()
        if seen is not None:
            return seen.copy()
        info = data_type(self.dtype)
        result = np.empty(_numpy_shape(self.shape, info), info.numpy)
        self._copy_bytes(self._dense_handle(), result.ctypes.data, cpu(), to_host=True)
        return result

    def copyfrom(self, source: NDArray | npt.ArrayLike) -> NDArray:
        """Fills this array from another or from numpy values of the same shape and dtype; returns itself.

        Raises `ArgumentError` for another shape or dtype, or when this array is read-only.
        """
        if self.read_only:
            raise ArgumentError(f"{_brief(self)} is read-only; copy it first: array.copyto(array.device)")
        if isinstance(source, NDArray):
            source.copyto(self)
        else:
            self._copy_from_numpy(np.asarray(source))
        return self

    def copyto(self, target: NDArray | Device) -> NDArray:
        """Copies into another array of the same shape and dtype, or into a new one on a device; returns the target."""
        if isinstance(target, Device):
            target = empty(self.shape, self.dtype, target)
        elif target.read_only:
            raise ArgumentError(f"{_brief(target)} is read-only; it can't be copied to")
        if target.shape != self.shape or (target.dtype is not self.dtype and target.dtype != self.dtype):
            raise ArgumentError(f"can't copy {_brief(self)} to {_brief(target)}: expected the same shape and dtype")
        if _on_host(self) and _on_host(target) and not (self.is_contiguous and target.is_contiguous):
            np.copyto(target._host_view(), self._host_view())
        elif self.device.kind == target.device.kind or _on_host(self) or _on_host(target):
            _copy(self, target)
        else:  # between two kinds of device: by way of the host
            target._copy_from_numpy(self.numpy())
        return target

    def __setitem__(self, index: object, value: NDArray | npt.ArrayLike) -> None:
        """`x[:] = value` and `x[...] = value` fill the whole array, broadcasting scalars. Other indices are numpy's.

        Raises `ArgumentError` for another index off the host, and when this array is read-only.
        """
        if index is not Ellipsis and not (isinstance(index, slice) and index == slice(None)):
            self._set_elements(index, value)
            return
        if not isinstance(value, NDArray) and np.ndim(value) == 0:
            info = data_type(self.dtype)
            value = np.broadcast_to(np.full((), value, info.numpy), _numpy_shape(self.shape, info))
        self.copyfrom(value)

    def _set_elements(self, index: Any, value: Any) -> None:
        if self.read_only:
            raise ArgumentError(f"{_brief(self)} is read-only; copy it first: array.copyto(array.device)")
        if not _on_host(self):
            raise ArgumentError(
                f"{_brief(self)}, index {index!r}: off the host only x[:] = value is supported; change a numpy copy, "
                "and assign that"
            )
        self._host_view()[index] = value._read() if isinstance(value, NDArray) else value

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """For `numpy.asarray`: a copy, or with `copy=False` a view of host memory."""
        if copy is False:
            if not _on_host(self):
                raise ValueError(f"{_brief(self)} can't be viewed by numpy without a copy")
            return self._host_view() if dtype is None else np.asarray(self._host_view(), dtype, copy=False)
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    # -- views and exchange

    def _create_view(self, shape: Sequence[int], dtype: str | None = None, byte_offset: int = 0) -> NDArray:
        """A view of part of the same memory with another shape, optionally another dtype. TVM: `_create_view`.

        Raises `ArgumentError` when it exceeds this array, or this array is strided.
        """
        wanted, kind = tuple(int(extent) for extent in shape), self.dtype if dtype is None else dtype
        needed = nbytes_of(kind, math.prod(wanted))
        inside = min((byte_offset, *wanted)) >= 0 and byte_offset + needed <= self.nbytes
        if not self.is_contiguous or not inside:
            raise ArgumentError(
                f"no view of shape {wanted}, dtype {kind} at byte {byte_offset} of {_brief(self)}: "
                f"it takes {needed} of {self.nbytes} contiguous bytes"
            )
        return NDArray(
            self.handle,
            wanted,
            kind,
            self.device,
            self,
            byte_offset=self.byte_offset + byte_offset,
            read_only=self.read_only,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack_type, self.device.index

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule over this memory (the Python array API's protocol).

        `stream` is the consumer's: work queued here is ordered before it (-1: no ordering wanted). `max_version` from
        (1, 0) up gives a versioned capsule. `BufferError` for what can't be done without, or only with, a copy.
        """
        source = self
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if copy is False:
                raise BufferError(f"{_brief(self)} can't be exported to DLPack device {dl_device} without a copy")
            source = self.copyto(Device(device_kind_of(int(dl_device[0])), int(dl_device[1])))
        elif copy:
            source = self.copyto(self.device)
        if stream != -1 and not _on_host(source):
            if stream is None:
                source.device.sync()
            else:
                source.device.api.sync_stream_from_to(source.device, None, stream)
        versioned = max_version is not None and max_version[0] >= 1
        if data_type(source.dtype).is_subbyte and not versioned:
            raise BufferError(f"{_brief(self)} has an element in each byte, which an unversioned capsule can't say")
        if source.read_only and not versioned:
            raise BufferError(f"{_brief(self)} is read-only, which an unversioned capsule can't say; pass max_version")
        return export_capsule(source.tensor, source, versioned=versioned, read_only=source.read_only)

    def to_dlpack(self) -> object:
        """An unversioned DLPack capsule."""
        return self.__dlpack__()

    # -- inner workings

    def owned_by(self, owner: object) -> NDArray:
        """An array over the same memory, which another owner keeps alive. Internal."""
        made = NDArray(self.handle, self.shape, self.dtype, self.device, owner, byte_offset=self.byte_offset)
        made._seen = self._seen
        return made

    def view_on_host(self) -> None:
        """Make the numpy view that copies to numpy are made by; arrays `owned_by` others then share it. Internal."""
        if self._seen is None:
            self._look()

    def first(self) -> Any:
        """The first element as a Python number. Internal; copied from the host's memory without a numpy array."""
        kind = C_TYPES.get(self.dtype)
        if kind is not None and self.device.api.host_accessible:
            return kind.from_address(self.handle + self.byte_offset).value
        return self.numpy().reshape(-1)[0].item()

    def _look(self) -> npt.NDArray[Any] | None:
        """Set `_seen`, if the memory is the host's."""
        if get_device_api(self.device.kind).host_accessible:
            self._seen = self._view_for(None)
        return self._seen

    def _host_view(self) -> npt.NDArray[Any]:
        """This host array's memory as numpy."""
        return self._view_for(self)

    def _view_for(self, owner: object) -> npt.NDArray[Any]:
        """This host array's memory as numpy, which keeps `owner` alive."""
        info = data_type(self.dtype)
        kind, width = info.numpy, info.numpy.itemsize
        native = kind.kind in "biuf" and kind.isbuiltin == 1
        interface: dict[str, Any] = {
            "data": (self.handle + self.byte_offset, self.read_only),
            "shape": _numpy_shape(self.shape, info),
            "typestr": kind.str if native else f"<u{width}",
            "version": 3,
        }
        if not self.is_contiguous:
            lanes = (width,) if info.lanes > 1 else ()
            interface["strides"] = tuple(stride * width * info.lanes for stride in self.strides) + lanes
        view = np.asarray(_HostMemory(owner, interface))
        return view if native else view.view(kind)

    def _copy_from_numpy(self, values: npt.NDArray[Any]) -> None:
        info = data_type(self.dtype)
        expected = _numpy_shape(self.shape, info)
        if values.shape != expected or values.dtype.newbyteorder("=") != info.numpy:
            raise ArgumentError(
                f"can't copy numpy values of shape {values.shape}, dtype {values.dtype} to {_brief(self)}: expected "
                f"shape {expected}, dtype {info.numpy}"
            )
        if _on_host(self):
            np.copyto(self._host_view(), values)
            return
        dense = np.ascontiguousarray(values, dtype=info.numpy)
        self._copy_bytes(self._dense_handle(), dense.ctypes.data, cpu(), to_host=False)

    def _copy_bytes(self, handle: int, address: int, host: Device, *, to_host: bool) -> None:
        api = self.device.api
        if to_host:
            api.copy_data_from_to(handle, self.byte_offset, address, 0, self.nbytes, self.device, host)
            api.stream_sync(self.device)
        else:
            api.copy_data_from_to(address, 0, handle, self.byte_offset, self.nbytes, host, self.device)

    def _dense_handle(self) -> int:
        if not self.is_contiguous:
            raise DeviceError(
                f"{_brief(self)} has strides {self.strides}; off the host only contiguous arrays are copied"
            )
        return self.handle


def empty(shape: int | Sequence[int], dtype: str = "float32", device: Device | str | None = None) -> NDArray:
    """A new array of undefined values; on the CPU unless a device is given. TVM: `tvm.nd.empty`.

    Raises `ArgumentError` for a bad shape or dtype, `DeviceError` when memory is short.
    """
    where = _as_device(device)
    try:
        extents = tuple([shape] if isinstance(shape, _INTEGERS) else shape)
    except TypeError as error:
        raise ArgumentError(f"shape {shape!r}: expected integers") from error
    if not all(isinstance(extent, _INTEGERS) for extent in extents):
        raise ArgumentError(f"shape {extents}: expected integers")
    if not isinstance(dtype, str):
        raise ArgumentError(f"a dtype is given as {dtype!r}; expected a name such as 'float32'")
    extents = tuple(map(int, extents))
    if min(extents, default=0) < 0 or extent(extents) > MAX_EXTENT:
        raise ArgumentError(f"shape {extents}: expected sizes of 0 or more, and a product of at most {MAX_EXTENT}")
    space = _DataSpace(where, nbytes_of(dtype, math.prod(extents)), ALLOC_ALIGNMENT)
    return NDArray(space.handle, extents, dtype, where, space)


def zeros(shape: int | Sequence[int], dtype: str = "float32", device: Device | str | None = None) -> NDArray:
    """A new array of zeros."""
    result = empty(shape, dtype, device)
    result[:] = 0
    return result


def array(values: NDArray | npt.ArrayLike, device: Device | str | None = None, dtype: str | None = None) -> NDArray:
    """A new array with a copy of `values`, optionally converted to `dtype`. TVM: `tvm.nd.array`."""
    exported = not isinstance(values, NDArray | np.ndarray) and hasattr(values, "__dlpack__")
    source = from_dlpack(values) if exported else values
    if isinstance(source, NDArray):
        if dtype is None:
            return source.copyto(_as_device(device))
        source = source.numpy()
    try:
        plain = np.asarray(source, dtype=None if dtype is None else data_type(str(dtype)).numpy)
    except (OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(f"no array of {dtype}: {error}; convert it with numpy: astype({dtype!r})") from error
    return empty(plain.shape, from_numpy(plain.dtype), device).copyfrom(plain)


def _revive(values: npt.NDArray[Any], shape: tuple[int, ...], dtype: str, where: Device) -> NDArray:
    return empty(shape, dtype, where).copyfrom(values)


def from_dlpack(source: Any) -> NDArray:
    """An array over the memory of `source`, without a copy; `source` lives as long as needed.

    Only packed sub-byte types are copied, as they take a byte each here.

    `source` is a numpy array, any object with `__dlpack__`, or a capsule. A read-only producer makes a read-only array.
    Raises `ArgumentError` for an unknown dtype or device, any other object, and one whose library doesn't export it,
    such as a PyTorch tensor that requires gradients.
    """
    if isinstance(source, np.ndarray):
        return wrap_numpy(source)
    if hasattr(source, "__dlpack__"):
        options = _consumer_stream(source)
        capsule = _capsule_of(source, options)
    else:
        capsule = source
    imported = ImportedTensor(capsule)
    tensor, rank = imported.tensor, imported.tensor.ndim
    where = Device(device_kind_of(tensor.device_type), tensor.device_id)
    result = NDArray(
        tensor.data or 0,
        tuple(tensor.shape[:rank]),
        from_dlpack_triple(tensor.code, tensor.bits, tensor.lanes),
        where,
        imported if where.kind == "cpu" else _Borrowed(imported, where, where.api),
        byte_offset=tensor.byte_offset,
        strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        read_only=imported.read_only,
    )
    return result if tensor.bits >= 8 or imported.padded else _padded(result)


def _capsule_of(source: Any, options: dict[str, int]) -> object:
    try:
        try:
            return source.__dlpack__(max_version=(1, 1), **options)
        except TypeError:  # a producer of before DLPack 1.0
            return source.__dlpack__(**options)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # of the library that made the array
        remedy = "; pass x.detach()" if getattr(source, "requires_grad", False) else ""
        raise ArgumentError(f"the {type(source).__name__} can't be exported by DLPack: {error}{remedy}") from error


def _consumer_stream(producer: Any) -> dict[str, int]:
    """The `stream` argument for a DLPack producer: the consumer stream that is to wait for its work."""
    if not hasattr(producer, "__dlpack_device__"):
        return {}
    kind, index = producer.__dlpack_device__()
    where = Device(device_kind_of(int(kind)), int(index))
    stream = where.api.dlpack_stream(where)
    return {} if stream is None else {"stream": stream}


def _padded(packed: NDArray) -> NDArray:
    """A copy of packed sub-byte elements with one element per byte."""
    info = data_type(packed.dtype)
    if not packed.is_contiguous:
        raise ArgumentError(f"{_brief(packed)} has strides {packed.strides}; packed elements must lie densely")
    count = packed.size * info.lanes
    size = ((count * info.bits + 7) // 8,)
    raw = NDArray(packed.handle, size, "uint8", packed.device, packed, byte_offset=packed.byte_offset)
    values = unpack(raw.numpy(), info.name, count).reshape(_numpy_shape(packed.shape, info))
    return empty(packed.shape, packed.dtype, packed.device).copyfrom(values)


def wrap_numpy(values: npt.NDArray[Any]) -> NDArray:
    """A zero-copy NDArray over a numpy array, `ml_dtypes` types included.

    Raises `ArgumentError` for unsupported types, foreign byte order, and strides that are no multiple of the item size.
    """
    dtype = from_numpy(values.dtype)
    width = values.itemsize
    odd = any(stride % width for stride in values.strides)
    if not values.dtype.isnative or odd:
        raise ArgumentError(
            f"numpy array of dtype {values.dtype}, strides {values.strides} can't be used without a copy: use nd.array"
        )
    return NDArray(
        values.ctypes.data,
        values.shape,
        dtype,
        _HOST,
        values,
        strides=None if values.flags.c_contiguous else tuple(stride // width for stride in values.strides),
        read_only=not values.flags.writeable,
    )


def _as_device(where: Device | str | None) -> Device:
    return _HOST if where is None else device(where)


def _on_host(array: NDArray) -> bool:
    return get_device_api(array.device.kind).host_accessible


def _copy(source: NDArray, target: NDArray) -> None:
    """Copy between contiguous arrays: host and device, or both on one kind of device."""
    runner = source if _on_host(target) else target
    runner.device.api.copy_data_from_to(
        source._dense_handle(),
        source.byte_offset,
        target._dense_handle(),
        target.byte_offset,
        source.nbytes,
        source.device,
        target.device,
    )
    if _on_host(target):
        source.device.sync()


def row_bytes(x: NDArray, axis: int) -> int:
    """Bytes of the sub-array at one index of the axes before `axis`."""
    return nbytes_of(x.dtype, math.prod(x.shape[axis:]))


def copy_strided(
    source: NDArray, source_at: int, source_row: int, target: NDArray, target_at: int, target_row: int, width: int,
    rows: int,
) -> None:  # fmt: skip
    """Copy `rows` pieces of `width` bytes within a device: from byte `source_at` of each row of `source_row` bytes
    to byte `target_at` of each row of `target_row` bytes."""
    if width == 0 or rows == 0:
        return
    if rows > 1 and source.device.api.host_accessible:
        bytes_in = source._create_view((rows, source_row), "uint8")._host_view()
        bytes_out = target._create_view((rows, target_row), "uint8")._host_view()
        bytes_out[:, target_at : target_at + width] = bytes_in[:, source_at : source_at + width]
        return
    api, device = source.device.api, source.device
    for row in range(rows):
        start, end = row * source_row + source_at, row * target_row + target_at
        api.copy_data_from_to(source.handle, source.byte_offset + start, target.handle, target.byte_offset + end, width,
                              device, device)  # fmt: skip
    api.keep_until_done(device, source)


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Is this a dense row-major layout? Strides of sizes 1, and of empty arrays, don't matter."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return 0 in shape
        step *= size
    return True


def _numpy_shape(shape: tuple[int, ...], info: DataType) -> tuple[int, ...]:
    """The shape of the numpy array of these elements: lanes are a last dimension."""
    return (*shape, info.lanes) if info.lanes > 1 else shape


def _brief(array: NDArray) -> str:
    return f"NDArray of shape {array.shape}, dtype {array.dtype} on {array.device}"

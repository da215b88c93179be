"""DLPack in ctypes: the structures, capsules made and capsules taken, legacy and versioned.

Source: dlpack.h 1.1 and the Python array API's `__dlpack__` protocol. A capsule handed out keeps its tensor's memory
alive until the consumer calls the deleter, or until the capsule dies unused.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from relayc.backend.runtime.errors import ArgumentError

__all__ = ["DLTensor", "ImportedTensor", "export_capsule"]

_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_PADDED = 4  # DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
_VERSION = (1, 1)

_LEGACY_NAME, _LEGACY_USED = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"


class DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h: a view of memory. Strides count elements; null strides mean contiguous."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_capsule_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)

_byte = ctypes.create_string_buffer(1)


class _Carrier:
    """One byte of memory that numpy can make an array of; the array keeps the carrier, and so `owner`, alive."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        where = ctypes.addressof(_byte), False
        self.__array_interface__ = {"data": where, "shape": (1,), "typestr": "|u1", "version": 3}


def export_capsule(tensor: DLTensor, owner: object, *, versioned: bool, read_only: bool) -> object:
    """A capsule over a copy of `tensor`; `owner` keeps its memory, shape and strides alive.

    The capsule is one of numpy's, overwritten with our tensor, so that its destructor and deleter are C code: a capsule
    may also be destroyed while an exception is set, when no Python code can run.
    """
    array = np.asarray(_Carrier(owner))
    if versioned:
        capsule = array.__dlpack__(max_version=_VERSION)
        managed: Any = _ManagedTensorVersioned.from_address(_capsule_pointer(capsule, _VERSIONED_NAME))
        managed.flags = (_READ_ONLY if read_only else 0) | (_PADDED if tensor.bits < 8 else 0)
    else:
        capsule = array.__dlpack__()
        managed = _ManagedTensor.from_address(_capsule_pointer(capsule, _LEGACY_NAME))
    managed.dl_tensor = tensor
    return capsule


class ImportedTensor:
    """A tensor taken out of a capsule. Calls the producer's deleter when it dies.

    `tensor` is the producer's `DLTensor`; `read_only` and `padded` (sub-byte elements take a byte each) are its flags,
    false for legacy capsules, which have none.
    """

    def __init__(self, capsule: object) -> None:
        if _capsule_is_valid(capsule, _VERSIONED_NAME):
            address, used, layout = _capsule_pointer(capsule, _VERSIONED_NAME), _VERSIONED_USED, _ManagedTensorVersioned
        elif _capsule_is_valid(capsule, _LEGACY_NAME):
            address, used, layout = _capsule_pointer(capsule, _LEGACY_NAME), _LEGACY_USED, _ManagedTensor
        else:
            raise ArgumentError(
                f"{capsule!r:.80} is not an unused DLPack capsule; a capsule can be taken once only. Other values "
                "have no memory to be used in place: copy them, nd.array(value)"
            )
        managed: Any = layout.from_address(address)
        if layout is _ManagedTensorVersioned and managed.major != _VERSION[0]:
            raise ArgumentError(f"DLPack capsule of version {managed.major}.{managed.minor}; expected {_VERSION[0]}.x")
        _capsule_rename(capsule, used)
        self._address: int = address
        self._deleter: int | None = managed.deleter
        self.tensor: DLTensor = managed.dl_tensor
        flags: int = managed.flags if layout is _ManagedTensorVersioned else 0
        self.read_only, self.padded = bool(flags & _READ_ONLY), bool(flags & _PADDED)

    def __del__(self) -> None:
        deleter = getattr(self, "_deleter", None)
        if deleter:
            _Deleter(deleter)(self._address)

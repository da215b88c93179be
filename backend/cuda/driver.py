"""The CUDA driver API through `cuda.bindings.driver`, which is imported at the first call.

Handles (contexts, streams, events, functions) are plain integers everywhere: the bindings take them, and so do other
libraries. A driver call that fails raises `DriverError` with the driver's message.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from functools import lru_cache
from typing import Any

from relayc.backend.runtime.errors import DeviceError

__all__ = ["WRONG_CONTEXT", "DriverError", "bindings", "call", "driver_error", "is_gone", "probe"]

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_OLDEST_DRIVER = 13000  # the bindings of CUDA 13 need a driver of CUDA 13; NVIDIA numbers it R580 and later
_STICKY = frozenset({214, 700, 702, 704, 709, 710, 713, 714, 715, 716, 717, 718, 719, 720, 721})
"""Sticky results, after which a context is unusable: an earlier kernel performed an illegal operation."""

WRONG_CONTEXT = frozenset({3, 201, 400})
"""Results of a call in a thread with no current context, or another library's: not initialised, invalid context,
invalid handle. The call can be repeated once the right context is current."""

_NO_DEVICE = {
    34: "the libcuda.so.1 found is the toolkit's stub, not a driver; remove it from the library path",
    100: "the NVIDIA driver finds no GPU; see nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides it",
    803: "the NVIDIA driver's library and kernel module are of different versions; reboot or install them again",
    804: "this GPU does not support the forward compatibility package that is installed; use the driver's own library",
    999: "the NVIDIA driver failed to start (unknown error); see dmesg and nvidia-smi",
}


class DriverError(DeviceError):
    """A call of the CUDA driver failed. `code` is its CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_sticky(self) -> bool:
        """True when the context is lost because of an earlier kernel."""
        return self.code in _STICKY


@lru_cache(maxsize=1)
def bindings() -> Any:
    """`cuda.bindings.driver`. Raises ImportError when the package is not installed, and RuntimeError without a driver.

    The driver is looked for first: importing the package takes 50 ms, of the start of every program that only asks.
    """
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise RuntimeError(str(error)) from error
    return importlib.import_module("cuda.bindings.driver")


def call(name: str, *args: Any) -> Any:
    """Call the driver function `name`; returns None, its only result, or a tuple. Raises `DriverError`."""
    result = getattr(bindings(), name)(*args)
    if result[0]:
        raise driver_error(name, result[0])
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


def driver_error(doing: str, result: Any) -> DriverError:
    """The error of a driver call that was `doing` something and returned `result`."""
    driver, code = bindings(), int(result)
    try:
        name, text = (_text(describe(result)[1]) for describe in (driver.cuGetErrorName, driver.cuGetErrorString))
    except RuntimeError:  # no driver to query
        name, text = "CUresult", "no text"
    error = DriverError(f"{doing}: {probe()[1] if _State.inherited else f'{name} ({code}): {text}'}", code)
    if error.is_sticky:
        error.args = (
            f"{error.args[0]}. A kernel launched earlier failed, and this process can't use the device any more; start "
            "it again with CUDA_LAUNCH_BLOCKING=1 to have the launch itself name the kernel",
        )
    return error


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


class _State:
    """The state of the driver in this process. Failures are not kept: a driver may be loaded later."""

    count: int = 0
    inherited: bool = False  # true in a child forked after the driver was in use


def probe() -> tuple[int, str]:
    """(number of usable CUDA devices, "ok" or the reason for there being none). Never raises; repeated calls are fast.

    CUDA does not survive a fork: in a child of a process that used it there are no devices.
    """
    if _State.inherited:
        return 0, (
            "CUDA was in use when this process was forked, and the driver does not survive a fork; "
            "start processes by 'spawn' or 'forkserver', or use CUDA in the child only"
        )
    if not _State.count:
        _State.count, reason = _detect()
        return _State.count, reason
    return _State.count, "ok"


def _detect() -> tuple[int, str]:
    try:
        driver = bindings()
        code = int(driver.cuInit(0)[0])
        if code:
            return 0, _NO_DEVICE.get(code, f"the NVIDIA driver failed to start: cuInit returned {code}")
        version = int(driver.cuDriverGetVersion()[1])
        count = int(driver.cuDeviceGetCount()[1])
    except ImportError as error:
        return 0, f"the package cuda-bindings is not installed ({error}); pip install 'relayc[cuda]'"
    except RuntimeError as error:
        return 0, f"no NVIDIA driver on this machine ({str(error).strip()})"
    if version < _OLDEST_DRIVER:
        return 0, (
            f"the NVIDIA driver supports CUDA {version // 1000}.{version % 1000 // 10}; "
            f"CUDA {_OLDEST_DRIVER // 1000}.0 or later is needed: install driver R580 or newer"
        )
    return (count, "ok") if count else (0, _NO_DEVICE[100])


def is_gone() -> bool:
    """True when handles of the driver can't be released any more: after a fork, and during Python's shutdown."""
    return _State.inherited or sys.is_finalizing()


def _after_fork() -> None:
    _State.inherited = _State.inherited or _State.count > 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

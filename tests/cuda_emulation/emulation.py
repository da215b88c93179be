"""CUDA without a GPU, for tests: a stand-in for the driver library, and kernels run on the host.

`start()` loads `libcuda.so.1`, built from `driver/`, before anything else in the process looks for the real one. From
then on the device "cuda" works, all the way through this project's run half and through cuda-python: memory, streams,
events, graphs, peers; two devices. While `compiling()`, kernels are compiled for it by `compiler.py`. Streams run their
work only when somebody waits for it, device addresses are no addresses of the host, and kernels run thread by thread
from barrier to barrier, so that forgotten waits and barriers give wrong results or errors.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from backend.cuda import driver as cuda_driver
from backend.runtime import register_func
from backend.runtime.registry import remove_global_func
from tests.cuda_emulation.compiler import compile_cuda
from tests.cuda_emulation.toolchain import HERE, build, compiler, digest

__all__ = ["LOOK", "build_driver", "compiling", "last_error", "real_driver", "reset", "start", "unavailable", "visible"]

LOOK = cuda_driver._look
"""What the runtime does to find devices, where this module does not hide one."""

_COUNT_DEVICES = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value)
"""


@functools.cache
def real_driver() -> bool:
    """Has this machine a driver with a GPU? Asked in another process: in this one it would stay."""
    if ctypes.util.find_library("cuda") is None:
        return False
    asked = subprocess.run([sys.executable, "-c", _COUNT_DEVICES], capture_output=True, text=True, check=False)
    return asked.returncode == 0 and asked.stdout.strip() in map(str, range(1, 33))


def unavailable() -> str | None:
    """Why there is no emulation on this machine; None where there is."""
    if os.name != "posix" or os.uname().machine not in ("x86_64", "aarch64"):
        return "the emulated CUDA device needs Linux on x86-64 or aarch64"
    return None if compiler() else "the emulated CUDA device needs g++"


@functools.cache
def build_driver() -> Path:
    """The stand-in driver library. Built where it is not yet, which takes a few seconds."""
    sources = sorted((HERE / "driver").glob("*.cpp"))
    headers = digest(*[f.read_text() for f in sorted((HERE / "driver").glob("*.h"))])
    flags = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden")

    def compile_part(source: Path) -> str:
        return str(build("driver.o", (*flags, "-c", str(source)), headers + source.read_text()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_part, sources))
    return build("libcuda.so", ("-shared", "-Wl,-soname,libcuda.so.1", *objects, "-ldl"), "")


@functools.cache
def start() -> ctypes.CDLL:
    """Makes the emulated device this process's CUDA device, for good. Call it before the first use of "cuda".

    The runtime sees it while it is `visible` only, so that other tests find the machine as it is.
    """
    cuda_driver._look = _hidden
    driver = ctypes.CDLL(str(build_driver()), ctypes.RTLD_GLOBAL)
    driver.emulation_last_error.restype = ctypes.c_char_p
    return driver


def _hidden() -> tuple[int, str]:
    return 0, "no NVIDIA driver on this machine (but an emulated one, which a test started)"


@contextmanager
def visible() -> Generator[None, None, None]:
    """While it lasts, the runtime finds the emulated device."""
    start()
    cuda_driver._look = LOOK
    cuda_driver.probe()
    try:
        yield
    finally:
        cuda_driver._look = _hidden
        cuda_driver._State.count = 0


@contextmanager
def compiling() -> Generator[None, None, None]:
    """While it lasts, CUDA C++ is compiled for the emulated device, not for a GPU."""
    register_func("cuda.callback_compile", compile_cuda)
    try:
        yield
    finally:
        remove_global_func("cuda.callback_compile")


def last_error(index: int = 0) -> str:
    """What the last kernel that failed did wrong, and where."""
    return start().emulation_last_error(index).decode()


def reset(index: int = 0) -> None:
    """Makes a device work again after a kernel failed on it. (A real one wants a new process.)"""
    start().emulation_reset(index)

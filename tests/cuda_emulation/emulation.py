"""CUDA without a GPU, for tests: an emulated driver library, and kernels run on the host.

`start()` loads `libcuda.so.1`, built from `driver/`, before anything else in the process looks for the real one. From
then on the device "cuda" works through the whole run-time part and cuda-python: memory, streams, events, graphs, peers;
two devices. While `compiling()`, kernels are compiled for it by `compiler.py`. Streams execute their work only when a
caller waits for it, device addresses are invalid on the host, and kernels run thread by thread from barrier to barrier,
so that missing waits and barriers give wrong results or errors.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from relayc.backend.cuda import driver as cuda_driver
from relayc.backend.runtime import register_func
from relayc.backend.runtime.registry import remove_global_func
from tests.cuda_emulation.compiler import compile_cuda
from tests.cuda_emulation.toolchain import HERE, build, compiler, digest

__all__ = [
    "DETECT", "build_driver", "compiling", "last_error", "no_real_device", "real_driver", "reset", "start",
    "unavailable", "visible",
]  # fmt: skip

DETECT = cuda_driver._detect
"""The runtime's function that detects devices, when it is not hidden by this module."""

_PROBE = "from relayc.backend.cuda.driver import probe; print(*probe())"


@functools.cache
def no_real_device() -> str | None:
    """The reason why this machine has no CUDA device; None if it has one. Probed in another process, since a driver
    stays loaded."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"the CUDA driver ended a process that looked for devices: {probe.stderr.strip()[-200:]}"
    count, reason = probe.stdout.strip().split(" ", 1)
    return None if int(count) else reason


def real_driver() -> bool:
    """Does this machine have a driver with a GPU?"""
    return no_real_device() is None


def unavailable() -> str | None:
    """The reason why there is no emulation on this machine; None if there is."""
    if os.name != "posix" or os.uname().machine not in ("x86_64", "aarch64"):
        return "the emulated CUDA device needs Linux on x86-64 or aarch64"
    return None if compiler() else "the emulated CUDA device needs g++"


@functools.cache
def build_driver() -> Path:
    """The emulated driver library, built if missing, which takes a few seconds."""
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
    """Make the emulated device the CUDA device of this process. Must be called before the first use of "cuda".

    The runtime sees it only while it is `visible`, so that other tests see the machine as it is.
    """
    cuda_driver._detect = _hidden
    driver = ctypes.CDLL(str(build_driver()), ctypes.RTLD_GLOBAL)
    driver.emulation_last_error.restype = ctypes.c_char_p
    return driver


def _hidden() -> tuple[int, str]:
    return 0, "no NVIDIA driver on this machine (but an emulated one, which a test started)"


@contextmanager
def visible() -> Generator[None, None, None]:
    """A context in which the runtime finds the emulated device."""
    start()
    cuda_driver._detect = DETECT
    cuda_driver.probe()
    try:
        yield
    finally:
        cuda_driver._detect = _hidden
        cuda_driver._State.count = 0


@contextmanager
def compiling() -> Generator[None, None, None]:
    """A context in which CUDA C++ is compiled for the emulated device, not for a GPU."""
    register_func("cuda.callback_compile", compile_cuda)
    try:
        yield
    finally:
        remove_global_func("cuda.callback_compile")


def last_error(index: int = 0) -> str:
    """The error of the last failed kernel, with its location."""
    return start().emulation_last_error(index).decode()


def reset(index: int = 0) -> None:
    """Make a device usable again after a failed kernel. (A real one requires a new process.)"""
    start().emulation_reset(index)

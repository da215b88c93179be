"""Compiles CUDA C++ text to an image for the emulated driver: its kernels by g++, after device/emulation.h.

Some kernels at a time are a translation unit, since g++ takes longer to start than to compile a small one. Units are
compiled in parallel and cached by the hash of their text.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.cuda_emulation.toolchain import HERE, build, digest

__all__ = ["MAGIC", "compile_cuda", "split_kernels"]

MAGIC = b"RELAYC-EMU\0"
FLAGS = (
    "-std=c++20", "-O2", "-march=native", "-fno-strict-aliasing", "-fno-math-errno", "-fPIC", "-w",
    "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
)  # fmt: skip
_UNIT = 16
"""Kernels of a translation unit."""
_KERNEL = re.compile(r'^extern "C" __global__', re.MULTILINE)
_SIGNATURE = re.compile(r'extern "C" __global__\s+void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s+)?(\w+)\s*\(')


def split_kernels(source: str) -> tuple[str, list[str]]:
    """The text before the first kernel, and the kernels one by one."""
    starts = [m.start() for m in _KERNEL.finditer(source)]
    ends = [*starts[1:], len(source)] if starts else []
    return source[: starts[0]] if starts else source, [source[a:b] for a, b in zip(starts, ends, strict=True)]


@functools.cache
def _headers() -> str:
    """The hash of the headers, a part of every cache key."""
    files = [*sorted((HERE / "device").glob("*.h")), HERE / "driver" / "kernel.h"]
    return digest(*[f.read_text() for f in files])


@functools.cache
def _precompiled_headers() -> Path:
    """A folder with precompiled headers, which are most of the compile time of a small kernel."""
    made = build("emulation.gch", (*FLAGS, "-x", "c++-header", str(HERE / "device" / "emulation.h")), _headers())
    folder = made.with_suffix("")
    folder.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (folder / "emulation.h.gch").hardlink_to(made)
    return folder


def _compile_unit(head: str, kernels: Sequence[str]) -> Path:
    body = "".join([_with_entry(kernel) for kernel in kernels])
    text = f'#include "emulation.h"\n{head}\n{body}'.replace("#pragma unroll\n", "#pragma GCC unroll 64\n")
    folders = (f"-I{_precompiled_headers()}", f"-I{HERE / 'device'}")
    return build("kernels.o", (*FLAGS, *folders, "-c", "-x", "c++", "-"), _headers(), text)


def _with_entry(kernel: str) -> str:
    """A kernel, whose lines are numbered from 1, and what the driver calls it by."""
    signature = _SIGNATURE.search(kernel)
    if signature is None:
        raise ValueError(f"no kernel's signature in:\n{kernel[:200]}")
    bound, name = signature.groups()
    return f'#line 1 "{name}"\n{kernel}\nRELAYC_KERNEL({name}, {bound or 1024})\n'


def compile_cuda(source: str, arch: str) -> bytes:
    """An image for the emulated driver; `arch` is ignored. Raises RuntimeError with g++'s messages."""
    head, kernels = split_kernels(source)
    units = [kernels[start : start + _UNIT] for start in range(0, len(kernels), _UNIT)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(path) for path in pool.map(lambda unit: _compile_unit(head, unit), units)]
    library = build("module.so", ("-shared", "-Wl,--allow-multiple-definition", *objects), "")
    data = library.read_bytes()
    return MAGIC + struct.pack("<Q", len(data)) + data

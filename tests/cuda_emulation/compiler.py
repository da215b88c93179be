"""Compiles CUDA C++ text to an image for the emulated driver: every kernel by g++, after device/emulation.h.

Kernels are compiled one by one, in parallel, and cached by the hash of their text: a kernel that two models share is
compiled once.
"""

from __future__ import annotations

import functools
import os
import re
import struct
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


def _compile_kernel(head: str, kernel: str) -> Path:
    signature = _SIGNATURE.search(kernel)
    if signature is None:
        raise ValueError(f"no kernel's signature in:\n{kernel[:200]}")
    bound, name = signature.groups()
    body = f'{head}\n#line 1 "{name}"\n{kernel}'.replace("#pragma unroll\n", "#pragma GCC unroll 64\n")
    text = f'#include "emulation.h"\n{body}\nRELAYC_KERNEL({name}, {bound or 1024})\n'
    folders = (f"-I{_precompiled_headers()}", f"-I{HERE / 'device'}")
    return build("kernel.o", (*FLAGS, *folders, "-c", "-x", "c++", "-"), _headers(), text)


def compile_cuda(source: str, arch: str) -> bytes:
    """An image for the emulated driver; `arch` is ignored. Raises RuntimeError with g++'s messages."""
    head, kernels = split_kernels(source)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [str(path) for path in pool.map(lambda kernel: _compile_kernel(head, kernel), kernels)]
    library = build("module.so", ("-shared", "-Wl,--allow-multiple-definition", *objects), "")
    data = library.read_bytes()
    return MAGIC + struct.pack("<Q", len(data)) + data

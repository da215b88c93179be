"""Compilation of CUDA C++ to machine code by NVRTC, which needs no GPU and no driver.

The result is a cubin for one architecture, or for a GPU newer than this NVRTC PTX, which the driver compiles further. A
function registered as "cuda.callback_compile", (source, arch) -> image bytes, replaces NVRTC. (TVM:
`tvm_callback_cuda_compile`.)
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from relayc.backend.cache import default_cache
from relayc.backend.cuda.target import compute_capability
from relayc.backend.runtime.registry import get_global_func
from relayc.te.errors import CompileError

__all__ = ["Image", "compile_flags", "compile_source", "compile_text", "nvrtc_version"]


@dataclass(frozen=True, slots=True)
class Image:
    """Compiler output: `code` in `format` ("cubin" or "ptx"), and the assembler's `log`."""

    code: bytes
    format: str
    log: str


def _nvrtc() -> Any:
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise CompileError(f"compiling for CUDA needs NVRTC: pip install 'relayc[cuda]' ({error})") from error


def _call(result: tuple[Any, ...], what: str) -> Any:
    """The value of a call of NVRTC. Raises CompileError if it failed."""
    status, *values = result
    if int(status) != 0:
        raise CompileError(f"NVRTC can't {what}: {status.name} ({int(status)})")
    return values[0] if values else None


@lru_cache(maxsize=1)
def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of NVRTC. Raises CompileError when it is not installed."""
    nvrtc = _nvrtc()
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # raised by cuda.bindings if the library is missing
        raise CompileError(f"NVRTC can't be loaded: {error}. pip install 'relayc[cuda]'") from error
    _call((status,), "tell its version")
    return major, minor


@lru_cache(maxsize=1)
def _architectures() -> tuple[int, ...]:
    """Compute capabilities, times ten, that NVRTC generates machine code for."""
    return tuple(_call(_nvrtc().nvrtcGetSupportedArchs(), "list its architectures"))


def compile_flags(arch: str, fast_math: bool = False, line_info: bool = False) -> tuple[str, ...]:
    """NVRTC's options for an architecture. IEEE arithmetic with fused multiply-add, unless `fast_math`.

    `line_info` enables source lines in profilers; it makes machine code three times as large. Parallel compilation
    (--split-compile) is off because it is not deterministic. So is NVRTC's own cache, which it has beside a driver: its
    results have no log.
    """
    nvrtc_version()
    known = _architectures()
    name = arch if compute_capability(arch) in known else f"compute_{max(known)}"
    flags = (f"--gpu-architecture={name}", "--std=c++17", "-default-device", "--no-cache", "--ptxas-options=-v")
    return (*flags, *(["--use_fast_math"] if fast_math else []), *(["-lineinfo"] if line_info else []))


def compile_source(source: str, arch: str, flags: Sequence[str]) -> Image:
    """The machine code of a translation unit, cached on disk.

    Raises CompileError with the compiler's output and the numbered lines that it refers to.
    """
    replacement = get_global_func("cuda.callback_compile", allow_missing=True)
    if replacement is not None:
        return Image(bytes(replacement(source, arch)), "cubin", "")
    cache, key = default_cache(), "\n".join(["nvrtc", *map(str, nvrtc_version()), *flags, source])
    stored = None if cache is None else cache.decoded(key, _stored_image)
    if stored is not None:
        return stored
    image = _compile(source, flags)
    if cache is not None:
        head = {name: value for name, value in asdict(image).items() if name != "code"}
        cache.put(key, json.dumps(head).encode() + b"\n" + image.code)
    return image


def _stored_image(data: bytes) -> Image:
    head, _, code = data.partition(b"\n")
    image = Image(code=code, **json.loads(head))
    is_code = code.startswith(b"\x7fELF") if image.format == "cubin" else image.format == "ptx" and bool(code)
    if not is_code or not isinstance(image.log, str):
        raise ValueError("a cached image of a GPU program is no image")
    return image


def compile_text(source: str, flags: Sequence[str]) -> str:
    """The PTX text of a translation unit. Raises CompileError as `compile_source` does."""
    virtual = [f.replace("=sm_", "=compute_") for f in flags if not f.startswith("--ptxas")]
    return _compile(source, virtual).code.rstrip(b"\0").decode()


def _compile(source: str, flags: Sequence[str]) -> Image:
    nvrtc = _nvrtc()
    program = _call(nvrtc.nvrtcCreateProgram(source.encode(), b"relayc.cu", 0, [], []), "take a program")
    try:
        options = [flag.encode() for flag in flags]
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program, "give its log")
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            raise CompileError(f"NVRTC rejected generated code: {status.name}\n{text.strip()}\n\n{numbered(source)}")
        if any(f.startswith("--gpu-architecture=compute_") for f in flags):
            return Image(_bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program, "give PTX"), "ptx", text)
        return Image(_bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program, "give a cubin"), "cubin", text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes(size: Any, read: Any, program: Any, what: str) -> bytes:
    """A bytes object that `read` fills, of at least two bytes: Python shares those of one byte or none."""
    count = _call(size(program), what)
    buffer = bytes(max(count, 2))
    _call(read(program, buffer), what)
    return buffer[:count]


def numbered(source: str) -> str:
    """Source text with line numbers, as in compiler messages."""
    lines = source.split("\n")
    return "\n".join([f"{i:{len(str(len(lines)))}} | {line}" for i, line in enumerate(lines, 1)])

"""The code generator of target kind "cuda": functions of the loop IR to a `CUDAModule`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from relayc.backend.cuda.codegen import CudaGenerator, dynamic_shared_bytes
from relayc.backend.cuda.disassemble import disassemble
from relayc.backend.cuda.nvrtc import compile_flags, compile_source, compile_text
from relayc.backend.cuda.report import Launch, kernel_reports
from relayc.backend.cuda.runtime import CUDAModule
from relayc.backend.cuda.target import STATIC_SHARED_BYTES, CudaLimits
from relayc.backend.cuda.verify import verify_launch
from relayc.backend.kernels import DeviceFunction, function_record, split_kernels
from relayc.backend.options import fast_math
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, Pass, PassContext, Sequential
from relayc.te.tir import PrimFunc
from relayc.te.tir.passes.inject_async_copy import InjectAsyncCopy
from relayc.te.tir.passes.legalize_compute import LegalizeCompute
from relayc.te.tir.passes.lower_thread_allreduce import LowerThreadAllreduce
from relayc.te.tir.passes.merge_shared_memory import MergeSharedMemory
from relayc.te.tir.passes.narrow_types import LowerNarrowTypes
from relayc.te.tir.passes.swizzle_shared import SwizzleShared
from relayc.te.tir.passes.thread_sync import ThreadSync

__all__ = ["Source", "assemble", "build", "device_passes", "emit", "generate_source", "prelude", "prepare", "verify"]


def device_passes(target: Target) -> tuple[Pass, ...]:
    """The passes from a lowered function to one that the generator can print, in order."""
    warp = target.get("thread-warp-size")
    memory = MergeSharedMemory(STATIC_SHARED_BYTES)
    types = (LowerNarrowTypes(), LegalizeCompute())
    return (LowerThreadAllreduce(warp), *types, SwizzleShared(), InjectAsyncCopy(), memory, ThreadSync())


@dataclass(frozen=True, slots=True)
class Source:
    """CUDA text of kernels, the function table, and each kernel's launch parameters, as plain data for `assemble`."""

    text: str
    functions: dict[str, Any]
    launches: tuple[Launch, ...]


def prepare(module: IRModule, target: Target) -> list[DeviceFunction]:
    """The functions of a module split into kernels, with barriers inserted and memory assigned, not yet verified.

    Raises CompileError for functions that can't be split into kernels.
    """
    prepared: list[DeviceFunction] = []
    symbols: set[str] = set()
    for name in module:
        function = module[name]
        if not isinstance(function, PrimFunc):
            raise CompileError(f"the cuda target compiles lowered functions; {name} is a {type(function).__name__}")
        prepared.append(_prepared(function, name, _symbol(name, symbols), target, PassContext.current()))
    return prepared


@lru_cache(maxsize=4)
def _prepared(
    function: PrimFunc, name: str, symbol: str, target: Target, context: PassContext
) -> DeviceFunction:
    """The memoised core of `prepare`: kernels of a schedule are first verified, then printed right afterwards."""
    with context:
        lowered = Sequential(device_passes(target), "cuda")(IRModule({name: function}))[name]
    assert isinstance(lowered, PrimFunc), "passes keep the kind of a function"
    return split_kernels(lowered.with_attr("global_symbol", name), symbol, function)


def _symbol(name: str, taken: set[str]) -> str:
    """A C identifier for a function's kernels that is unique in `taken`."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    symbol = base if not base[:1].isdigit() else f"f{base}"
    while symbol in taken:
        symbol += "_"
    taken.add(symbol)
    return symbol


def verify(functions: Sequence[DeviceFunction], target: Target) -> list[str]:
    """The reasons why kernels can't be launched on a target; empty if they can."""
    return [reason for f in functions for kernel in f.kernels for reason in verify_launch(kernel, target)]


@lru_cache(maxsize=1)
def prelude() -> str:
    """The prelude of every generated file."""
    return resources.files("relayc.backend.cuda").joinpath("prelude.cuh").read_text()


def generate_source(functions: Sequence[DeviceFunction], fast_math: bool = False) -> Source:
    """The CUDA C++ text of functions, without the prelude, and their launch parameters."""
    texts: list[str] = []
    records: dict[str, Any] = {}
    launches: list[Launch] = []
    for device in functions:
        generator = CudaGenerator(device.function, fast_math)
        texts += [generator.emit_kernel(kernel, device.workspaces) for kernel in device.kernels]
        shared = [dynamic_shared_bytes(kernel) for kernel in device.kernels]
        records[device.function.name] = function_record(device, shared, generator.alignments)
        launches += [Launch(k.name, k.threads, nbytes) for k, nbytes in zip(device.kernels, shared, strict=True)]
    return Source("\n\n".join(texts), records, tuple(launches))


def emit(module: IRModule, target: Target) -> Source:
    """The CUDA code of a module of lowered functions under the current `PassContext`.

    Raises CompileError for functions without thread axes, kernels that can't be launched, and code unsupported in CUDA.
    """
    functions = prepare(module, target)
    problems = verify(functions, target)
    if problems:
        raise CompileError("kernels that can't be launched on " + target.get("model") + ":\n  " + "\n  ".join(problems))
    return generate_source(functions, fast_math("cuda"))


def assemble(sources: Sequence[Source], target: Target) -> CUDAModule:
    """Compile sources to a module as one translation unit. Raises CompileError with the compiler's output."""
    text = "\n\n".join([prelude(), *[source.text for source in sources]]) + "\n"
    arch = target.get("arch")
    flags = compile_flags(arch, fast_math("cuda"), PassContext.current().option("cuda.line_info"))
    image = compile_source(text, arch, flags)
    functions = {name: record for source in sources for name, record in source.functions.items()}
    launches = [launch for source in sources for launch in source.launches]
    report = kernel_reports(image.log, launches, CudaLimits.of(target))
    forms = {"ptx": lambda: compile_text(text, flags), "sass": lambda: disassemble(image.code)}
    return CUDAModule(image.code, image.format, arch, functions, text, report, forms)


def build(module: IRModule, target: Target) -> CUDAModule:
    """Machine code of every function of a module of lowered functions, each reachable by its name.

    Raises CompileError as `emit` and `assemble` do.
    """
    return assemble([emit(module, target)], target)

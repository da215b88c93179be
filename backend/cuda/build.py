"""The code generator of target kind "cuda": functions of the loop IR to one `CUDAModule`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from backend.cuda.codegen import CudaGenerator, dynamic_shared_bytes
from backend.cuda.nvrtc import compile_flags, compile_source
from backend.cuda.report import kernel_reports
from backend.cuda.runtime import CUDAModule
from backend.cuda.target import CudaLimits
from backend.cuda.verify import verify_launch
from backend.kernels import DeviceFunction, function_record, split_kernels
from backend.target import Target
from te.errors import CompileError
from te.ir import IRModule, Pass, PassContext, Sequential
from te.tir import PrimFunc
from te.tir.passes.legalize_compute import LegalizeCompute

__all__ = ["build", "device_passes", "generate_source", "prelude", "prepare", "verify"]

PassContext.declare_option("cuda.fast_math", False, "approximate division, square root and functions on CUDA devices")


def device_passes(target: Target) -> tuple[Pass, ...]:
    """The passes from a lowered function to one that the generator prints, in order."""
    return (LegalizeCompute(),)


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a translation unit, the table of its functions, and its kernels with their dynamic shared memory."""

    text: str
    functions: dict[str, Any]
    kernels: tuple[tuple[Any, int], ...]


def prepare(module: IRModule, target: Target) -> list[DeviceFunction]:
    """The functions of a module as kernels with barriers in place and memory assigned, none yet checked.

    Raises CompileError for functions that have no kernels.
    """
    lowered = Sequential(device_passes(target), "cuda")(module)
    prepared: list[DeviceFunction] = []
    symbols: set[str] = set()
    for name in lowered:
        function = lowered[name]
        if not isinstance(function, PrimFunc):
            raise CompileError(f"the cuda target compiles lowered functions; {name} is a {type(function).__name__}")
        prepared.append(split_kernels(function.with_attr("global_symbol", name), _symbol(name, symbols)))
    return prepared


def _symbol(name: str, taken: set[str]) -> str:
    """A C identifier for a function's kernels that no other function has."""
    base = re.sub(r"\W", "_", name, flags=re.ASCII)
    symbol = base if not base[:1].isdigit() else f"f{base}"
    while symbol in taken:
        symbol += "_"
    taken.add(symbol)
    return symbol


def verify(functions: Sequence[DeviceFunction], target: Target) -> list[str]:
    """Why kernels of functions can't be launched on a target; empty when they can."""
    return [reason for f in functions for kernel in f.kernels for reason in verify_launch(kernel, target)]


@lru_cache(maxsize=1)
def prelude() -> str:
    """The text that stands before every generated file."""
    return resources.files("backend.cuda").joinpath("prelude.cuh").read_text()


def generate_source(functions: Sequence[DeviceFunction], fast_math: bool = False) -> Source:
    """The CUDA C++ text of functions, one translation unit, and how to launch them."""
    texts: list[str] = []
    records: dict[str, Any] = {}
    kernels: list[tuple[Any, int]] = []
    for device in functions:
        generator = CudaGenerator(device.function, fast_math)
        texts += [generator.emit_kernel(kernel, device.workspaces) for kernel in device.kernels]
        shared = [dynamic_shared_bytes(kernel) for kernel in device.kernels]
        records[device.function.name] = function_record(device, shared)
        kernels += zip(device.kernels, shared, strict=True)
    return Source("\n\n".join([prelude(), *texts]) + "\n", records, tuple(kernels))


def build(module: IRModule, target: Target) -> CUDAModule:
    """Machine code of every function of a module of lowered functions, each reachable by its name.

    Raises CompileError for functions without thread axes, kernels that can't be launched, and what has no CUDA code.
    """
    functions = prepare(module, target)
    refused = verify(functions, target)
    if refused:
        raise CompileError("kernels that can't be launched on " + target.get("model") + ":\n  " + "\n  ".join(refused))
    fast_math = bool(PassContext.current().option("cuda.fast_math"))
    source = generate_source(functions, fast_math)
    arch = target.get("arch")
    image = compile_source(source.text, arch, compile_flags(arch, fast_math))
    report = kernel_reports(image.log, source.kernels, CudaLimits.of(target))
    return CUDAModule(image.code, image.format, arch, source.functions, source.text, report)

"""The code generator of the "llvm" target kind: `build`, registered as "target.build.llvm"."""

from __future__ import annotations

from backend.llvm.compiler import Compiler
from backend.llvm.runtime import LLVMModule
from backend.target import Target
from te.errors import CompileError
from te.ir import IRModule
from te.tir import PrimFunc

__all__ = ["build"]


def build(module: IRModule, target: Target) -> LLVMModule:
    """Native code of every function of a module of lowered functions, each reachable by its name.

    A function with attribute ``calling_convention: "packed"`` checks its arguments and may fail; the others are raw
    kernels. Raises CompileError for what the target has no code for.
    """
    functions: list[PrimFunc] = []
    for name, function in module.functions.items():
        if not isinstance(function, PrimFunc):
            raise CompileError(f"the llvm target compiles lowered functions; {name} is a {type(function).__name__}")
        functions.append(function if function.name == name else function.with_attr("global_symbol", name))
    compiler = Compiler(target)
    emitted = compiler.emit(functions)
    code = compiler.object_code(emitted, functions)
    sources = {
        "ll": lambda: compiler.optimized_text(emitted.text),
        "asm": lambda: compiler.machine_text(emitted.text),
        "raw-ll": lambda: emitted.text,
    }
    return LLVMModule([code], target.get("mtriple"), target.features, sources)

"""The code generator of the "llvm" target kind: `build` for a whole module, `Builder` for incremental compilation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from relayc.backend.llvm.code_cache import CodeCache
from relayc.backend.llvm.pool_code import pool_object
from relayc.backend.llvm.runtime import LLVMModule, ObjectCode
from relayc.backend.options import fast_math
from relayc.backend.runtime.errors import ModuleError
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule
from relayc.te.tir import PrimFunc

if TYPE_CHECKING:
    from relayc.backend.llvm import compiler
    from relayc.backend.llvm.codegen import EmittedModule

__all__ = ["Builder", "build"]

_FAST_MATH = ("arcp", "contract", "nsz")
"""Fast-math flags added by the option "llvm.fast_math". Infinities and NaN keep their meaning: masks use them."""


class Builder:
    """Incremental code generation: LLVM compiles in a thread while the caller lowers the next functions.

    Every `add` becomes an object file of its own, so that the disk cache can reuse each kernel; functions of different
    parts may call each other. If all parts are reused, LLVM is not even loaded.
    """

    def __init__(self, target: Target) -> None:
        if fast_math("llvm"):
            target = target.with_attrs(fast_math=sorted({*target.get("fast-math", ()), *_FAST_MATH}))
        self._target = target
        self._cache = CodeCache(target)
        self._queue: compiler.CompileQueue | None = None
        self._parts: list[compiler.PendingCode | ObjectCode] = []
        self._emitted: list[EmittedModule | None] = []
        self._reused: dict[str, int] = {}  # key -> position in `_parts`

    def reuse(self, key: str) -> str | None:
        """Add the object that an earlier `add` with this `key` compiled; returns its note, or None on a miss."""
        found = self._cache.find(self._cache.key_of(key))
        if found is None:
            return None
        self._reused[key] = len(self._parts)
        self._parts.append(found[0])
        self._emitted.append(None)
        return found[1]

    def add(self, functions: Sequence[PrimFunc], key: str = "", note: str = "") -> None:
        """Compile functions together. `key` covers everything that determines their code, for `reuse`; "" if unknown.

        What was reused under `key` before is replaced: the caller could not use its note.
        Raises CompileError for unsupported code.
        """
        if self._queue is None:
            queue: compiler.CompileQueue = _compiler_module().CompileQueue(self._target, self._cache)
            self._queue = queue
        emitted, part = self._queue.submit(functions, key, note)
        at = self._reused.pop(key, len(self._parts))
        self._parts[at : at + 1] = [part]
        self._emitted[at : at + 1] = [emitted]

    def finish(self) -> LLVMModule:
        """Compile what is left, together with LLVM's threads, and return the module of everything added."""
        with nullcontext() if self._queue is None else self._queue:
            parts = [part if isinstance(part, ObjectCode) else part.result() for part in reversed(self._parts)][::-1]
        target, triple = self._target, self._target.get("mtriple")
        sources = {form: partial(_source, form, tuple(self._emitted), target) for form in ("ll", "asm", "raw-ll")}
        return LLVMModule(parts, triple, target.features, partial(pool_object, triple), sources)


def _compiler_module() -> ModuleType:
    """Import the code generator and LLVM, which takes 50 to 100 ms."""
    return import_module("relayc.backend.llvm.compiler")


def _source(form: str, emitted: Sequence[EmittedModule | None], target: Target) -> str:
    """Assembly before optimisation, after optimisation, or as the processor's assembly language."""
    known = [module for module in emitted if module is not None]
    if len(known) < len(emitted):
        raise ModuleError(
            "this module's code came from the cache of compiled code, which keeps no text; compile it again "
            "with RELAYC_CACHE_DIR=off in the environment"
        )
    compiler = _compiler_module().Compiler(target)
    make = {"ll": compiler.optimized_text, "asm": compiler.machine_text, "raw-ll": _raw_text}[form]
    return "\n".join([make(module) for module in known])


def _raw_text(emitted: EmittedModule) -> str:
    return f"; passes of LLVM: {emitted.passes.value}\n{emitted.text}"


def build(module: IRModule, target: Target) -> LLVMModule:
    """Native code of every function of a module of lowered functions, each reachable by its name.

    A function with attribute ``calling_convention: "packed"`` checks its arguments and may fail; the others are raw
    kernels. Raises CompileError for unsupported code.
    """
    groups: dict[str, list[PrimFunc]] = {}
    for name, function in module.functions.items():
        if not isinstance(function, PrimFunc):
            raise CompileError(f"the llvm target compiles lowered functions; {name} is a {type(function).__name__}")
        named = function if function.name == name else function.with_attr("global_symbol", name)
        # a host function is compiled with the kernel that it calls
        groups.setdefault(function.attrs.get("host_of", name), []).append(named)
    builder = Builder(target)
    for functions in groups.values():
        builder.add(functions)
    return builder.finish()

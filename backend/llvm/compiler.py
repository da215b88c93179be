"""Compiles LLVM assembly to native code in worker threads, while Python lowers the next functions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple

import llvmlite.binding as llvm

from relayc.backend.fold_lanes import fold_lanes
from relayc.backend.llvm.code_cache import CodeCache
from relayc.backend.llvm.codegen import EmittedModule, Machine, PassSelection, emit_module
from relayc.backend.llvm.peephole import select_instructions
from relayc.backend.llvm.pipeline import Pipeline, lent_pipeline
from relayc.backend.llvm.runtime import FunctionEntry, ObjectCode
from relayc.backend.lower_intrin import lower_intrinsics
from relayc.backend.processors import PROCESSORS, processor_of
from relayc.backend.runtime.packed_func import BUFFER
from relayc.backend.runtime.threads import num_threads
from relayc.backend.target import Target
from relayc.backend.vector_math import Instructions
from relayc.te.errors import CompileError
from relayc.te.tir import PrimFunc
from relayc.te.tir.passes.hoist_invariants import hoist_invariants
from relayc.te.tir.passes.narrow_types import lower_narrow_types

__all__ = ["CompileQueue", "Compiler", "PendingCode"]


_FAST_MATH = {"arcp", "contract", "ninf", "nnan", "nsz"}
"""Supported fast-math flags. Reassociation is excluded: it would undo the argument reductions of `vector_math`."""


@dataclass(frozen=True)
class Compiler:
    """Compiles for one target. Reads its mtriple, mcpu, mattr, opt-level and fast-math, never this machine."""

    target: Target

    def emit(self, functions: Iterable[PrimFunc]) -> EmittedModule:
        """LLVM assembly of lowered functions."""
        has, machine = self._instructions(), self._code_machine()

        def lowered(function: PrimFunc) -> PrimFunc:
            function = fold_lanes(hoist_invariants(lower_narrow_types(function)))
            return select_instructions(lower_intrinsics(function, has=has), machine)

        return emit_module([lowered(f) for f in functions], machine)

    def _instructions(self) -> Instructions:
        features = self.target.features
        return Instructions(
            self.target.has_fma, lookups={"avx2", "fma"} <= features, wide_lookups="avx512dq" in features,
            scaling="avx512dq" in features,
        )  # fmt: skip

    def _code_machine(self) -> Machine:
        features, caches = self.target.features, self.target.cache_bytes
        scheduled = PROCESSORS.get(self.target.mcpu, processor_of(self.target))
        return Machine(
            self.target.has_fma, self._fast_math(), caches.l3, frozenset(features), scheduled.llvm_loads_early
        )

    def _fast_math(self) -> str:
        flags = self.target.get("fast-math", [])
        unknown = sorted(set(flags) - _FAST_MATH)
        if unknown:
            raise CompileError(
                f"fast-math flags {', '.join(unknown)} can't be used; known are {', '.join(sorted(_FAST_MATH))}"
            )
        return "".join([f"{flag} " for flag in flags])

    def object_code(self, emitted: EmittedModule, functions: Iterable[PrimFunc]) -> ObjectCode:
        """Native code of an emitted module."""
        with self._optimized(emitted) as (pipeline, module):
            code = pipeline.object_code(module)
        return ObjectCode(code, tuple(_entry(f, emitted) for f in functions), emitted.externals)

    def optimized_text(self, emitted: EmittedModule) -> str:
        """LLVM assembly after LLVM's optimiser."""
        with self._optimized(emitted) as (_, module):
            return str(module)

    def machine_text(self, emitted: EmittedModule) -> str:
        """The processor's assembly language."""
        with self._optimized(emitted) as (pipeline, module):
            return pipeline.assembly(module)

    @contextmanager
    def _optimized(self, emitted: EmittedModule) -> Generator[tuple[Pipeline, llvm.ModuleRef]]:
        """Optimise assembly in a context of its own, to which its types and constants belong."""
        level = 0 if emitted.passes is PassSelection.NONE else self.target.get("opt-level", 3)
        # On AArch64 the register allocator spills after few passes, and does not after all of LLVM's.
        scheduled = level > 0 and "sse2" in self.target.features and emitted.passes is PassSelection.FEW
        with (
            lent_pipeline(self.target, level, scheduled) as pipeline,
            llvm.create_context() as context,
            llvm.parse_assembly(emitted.text, context) as module,
        ):
            pipeline.optimize(module)
            yield pipeline, module


def _entry(function: PrimFunc, emitted: EmittedModule) -> FunctionEntry:
    messages = emitted.assert_messages.get(function.name)
    params = tuple(BUFFER if var.dtype.is_handle else str(var.dtype) for var in function.params)
    return FunctionEntry(function.name, params, None if messages is None else tuple(messages))


class PendingCode(NamedTuple):
    """Code that a worker makes, or already has."""

    make: Callable[[], ObjectCode]
    made: Future[ObjectCode]

    def result(self) -> ObjectCode:
        """The code, made in this thread if no worker has begun."""
        return self.make() if self.made.cancel() else self.made.result()


class CompileQueue:
    """Compiles in worker threads in order of submission, with a cache::

        with CompileQueue(target, cache) as queue:
            parts = [queue.submit([kernel])[1] for kernel in kernels]
            objects = [part.result() for part in reversed(parts)]

    The thread that lowers has a core of its own: with as many workers as cores it would wait for them, and all depends
    on it. In the end it compiles, too: the result of a part that no worker has begun is made by who asks for it, so
    that the last parts are asked for first.

    Without a `key`, code is looked up by its LLVM assembly. A caller that knows beforehand what determines the code
    passes that as `key` and checks the cache first, which skips lowering too. `note` is stored with the code.
    """

    def __init__(self, target: Target, cache: CodeCache) -> None:
        self._compiler = Compiler(target)
        self._cache = cache
        self._workers = ThreadPoolExecutor(max(num_threads() - 1, 1), thread_name_prefix="relayc-llvm")

    def submit(
        self, functions: Iterable[PrimFunc], key: str = "", note: str = ""
    ) -> tuple[EmittedModule, PendingCode]:
        """Emit the functions as one LLVM module, and return it with the part that it becomes.

        Raises CompileError for unsupported code.
        """
        functions = tuple(functions)
        emitted = self._compiler.emit(functions)
        full_key = self._cache.key_of(key) if key else self._cache.key_of_assembly(emitted.text)
        make = partial(self._compile, emitted, functions, full_key, note)
        return emitted, PendingCode(make, self._workers.submit(make))

    def __enter__(self) -> CompileQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.shutdown(cancel_futures=kind is not None)

    def _compile(
        self, emitted: EmittedModule, functions: tuple[PrimFunc, ...], full_key: str, note: str
    ) -> ObjectCode:
        found = self._cache.find(full_key)
        if found is not None and found[1] == note:
            return found[0]
        made = self._compiler.object_code(emitted, functions)
        self._cache.put(full_key, made, note)
        return made

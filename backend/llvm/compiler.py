"""LLVM assembly to native code: target machine, optimiser, object emission, and a worker thread that does it.

llvmlite releases the GIL while LLVM works but lets only one thread in at a time, so one worker thread is all that
helps: Python lowers the next functions meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType

import llvmlite.binding as llvm

from backend.cache import default_cache
from backend.llvm.codegen import EmittedModule, emit_module
from backend.llvm.runtime import FunctionEntry, ObjectCode
from backend.lower_intrin import lower_intrinsics
from backend.runtime.packed_func import BUFFER
from backend.target import Target
from te.errors import CompileError
from te.tir import PrimFunc

__all__ = ["CompileQueue", "Compiler"]


LLVM_VERSION = ".".join([str(part) for part in llvm.llvm_version_info])
"""Part of what compiled code depends on."""


_FAST_MATH = {"arcp", "contract", "ninf", "nnan", "nsz"}
"""Flags that keep the order of operations. Reassociation would undo the argument reductions of `vector_math`."""


@lru_cache(maxsize=1)
def _initialize_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@dataclass(frozen=True)
class Compiler:
    """Compiles for one target. Reads its mtriple, mcpu, mattr, opt-level and fast-math, never this machine."""

    target: Target

    def emit(self, functions: Iterable[PrimFunc]) -> EmittedModule:
        """LLVM assembly of lowered functions."""
        expanded = [lower_intrinsics(f) for f in functions]
        return emit_module(expanded, fma=self.target.has_fma, fast=self._fast_math())

    def _fast_math(self) -> str:
        flags = self.target.get("fast-math", [])
        unknown = sorted(set(flags) - _FAST_MATH)
        if unknown:
            raise CompileError(
                f"fast-math flags {', '.join(unknown)} can't be used; known are {', '.join(sorted(_FAST_MATH))}"
            )
        return " ".join(flags)

    def object_code(self, emitted: EmittedModule, functions: Iterable[PrimFunc]) -> ObjectCode:
        """Native code of an emitted module, from the cache when it was compiled before."""
        cache = default_cache()
        key = "\0".join(["llvm", LLVM_VERSION, str(self.target), emitted.text])
        code = None if cache is None else cache.get(key)
        if code is None:
            code = self._compile(emitted.text)
            if cache is not None:
                cache.put(key, code)
        return ObjectCode(code, tuple(_entry(f, emitted) for f in functions))

    def _compile(self, text: str) -> bytes:
        machine = self._machine()
        return machine.emit_object(self._optimize(text, machine))

    def optimized_text(self, text: str) -> str:
        """Assembly after LLVM's optimiser."""
        return str(self._optimize(text, self._machine()))

    def machine_text(self, text: str) -> str:
        """The processor's own assembly language."""
        machine = self._machine()
        return machine.emit_assembly(self._optimize(text, machine))

    def _machine(self) -> llvm.TargetMachine:
        _initialize_llvm()
        get = self.target.get
        try:
            target = llvm.Target.from_triple(get("mtriple"))
        except RuntimeError as error:
            raise CompileError(f"LLVM can't make code for the triple {get('mtriple')!r}: {error}") from error
        return target.create_target_machine(
            cpu=get("mcpu"),
            features=",".join(get("mattr", [])),
            opt=get("opt-level", 3),
            reloc="pic",
            codemodel="small",
        )

    def _optimize(self, text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
        module = llvm.parse_assembly(text)
        module.triple = self.target.get("mtriple")
        module.data_layout = str(machine.target_data)
        # Loops come scheduled and vectorised. LLVM's unroller would break register tiles up; scalar loops that nobody
        # scheduled still gain from its vectoriser, which leaves loops over explicit vectors alone.
        options = llvm.create_pipeline_tuning_options(speed_level=self.target.get("opt-level", 3))
        options.loop_unrolling = False
        options.slp_vectorization = False
        options.loop_vectorization = True
        options.loop_interleaving = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return module


def _entry(function: PrimFunc, emitted: EmittedModule) -> FunctionEntry:
    messages = emitted.assert_messages.get(function.name)
    params = tuple(BUFFER if var.dtype.is_handle else str(var.dtype) for var in function.params)
    return FunctionEntry(function.name, params, None if messages is None else tuple(messages))


class CompileQueue:
    """Compiles in a thread of its own, in order of submission::

        with CompileQueue(target) as queue:
            parts = [queue.submit([kernel]) for kernel in kernels]      # Future[ObjectCode]
    """

    def __init__(self, target: Target) -> None:
        self._compiler = Compiler(target)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="relayc-llvm")

    def submit(self, functions: Iterable[PrimFunc]) -> Future[ObjectCode]:
        """Emit the functions as one LLVM module here and now; LLVM's part is done by the worker.

        Raises CompileError for what the target has no code for.
        """
        functions = tuple(functions)
        emitted = self._compiler.emit(functions)
        return self._worker.submit(self._compiler.object_code, emitted, functions)

    def close(self) -> None:
        """Wait for everything submitted."""
        self._worker.shutdown()

    def __enter__(self) -> CompileQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.shutdown(cancel_futures=kind is not None)

"""LLVM's optimiser and code generator for one target, without llvmlite's memory leaks and global lock.

llvmlite lets one thread at a time into LLVM. LLVM itself is thread-safe as long as each thread has its own context,
pass builder and target machine. So the long-running calls bypass llvmlite's lock, and each `Pipeline` is used by one
thread at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache

import llvmlite.binding as llvm
from llvmlite.binding import ffi
from llvmlite.binding.newpassmanagers import NewPassManager

from relayc.backend.target import Target
from relayc.te.errors import CompileError

__all__ = ["Pipeline", "lent_pipeline"]

_RUNS = 64 if llvm.llvm_version_info[0] <= 22 else 1
"""Number of modules that one pass builder optimises.

llvmlite allocates pass callbacks with every builder (1.5 KB) and never frees them, so builders are reused. Each run
adds a callback that LLVM calls before every pass, which bounds the reuse; stale callbacks refer to freed state, but
read it only for functions marked `optnone`, which we never emit. This holds up to LLVM 22; later versions are
unverified.
"""


_library = ctypes.CDLL(None, handle=ffi.lib._handle)
"""llvmlite's library, with functions called without its lock."""
_library.LLVMPY_RunNewModulePassManager.restype = None
_library.LLVMPY_TargetMachineEmitToMemory.restype = ffi.LLVMMemoryBufferRef


class Pipeline:
    """LLVM's optimiser and code generator for one target and level of optimisation. Reads mtriple, mcpu and mattr.

    `scheduled`: for modules whose loops are vectorised, with local buffers that become registers. Used by one thread at
    a time, on modules in contexts of their own.
    """

    def __init__(self, target: Target, level: int, scheduled: bool = False) -> None:
        self._level, self._scheduled = level, scheduled
        self.triple: str = target.get("mtriple")
        self._machine = _machine(target, self._level)
        self._data_layout = str(self._machine.target_data)
        self._builder: llvm.PassBuilder | None = None
        self._runs = 0

    def optimize(self, module: llvm.ModuleRef) -> None:
        """Run the optimisation passes on a module."""
        module.triple, module.data_layout = self.triple, self._data_layout
        builder = self._pass_builder()
        passes = _scheduled_passes() if self._scheduled else builder.getModulePassManager()
        _library.LLVMPY_RunNewModulePassManager(passes, module, builder)
        _free(passes)

    def object_code(self, module: llvm.ModuleRef) -> bytes:
        """Compile a module to an object file."""
        return self._code(module, is_object=True)

    def assembly(self, module: llvm.ModuleRef) -> str:
        """Compile a module to the processor's assembly language."""
        return self._code(module, is_object=False).decode()

    def _code(self, module: llvm.ModuleRef, is_object: bool) -> bytes:
        with ffi.OutputString() as error:
            buffer = _library.LLVMPY_TargetMachineEmitToMemory(self._machine, module, int(is_object), error)
            if not buffer:
                raise CompileError(f"LLVM can't make code of a module: {error}")
        try:
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)

    def _pass_builder(self) -> llvm.PassBuilder:
        if self._builder is None or self._runs >= _RUNS:
            # Loops are already scheduled and vectorised. LLVM's unroller would break register tiles up; scalar loops
            # without a schedule still gain from its vectoriser, which leaves loops over explicit vectors alone.
            options = llvm.create_pipeline_tuning_options(speed_level=self._level)
            options.loop_unrolling = False
            options.slp_vectorization = False
            options.loop_vectorization = True
            options.loop_interleaving = False
            self._builder, self._runs = llvm.create_pass_builder(self._machine, options), 0
        self._runs += 1
        return self._builder


def _scheduled_passes() -> llvm.ModulePassManager:
    """What LLVM's optimiser has to do for scheduled loops over vectors.

    Register tiles become registers, and equal loads and addresses are computed once, across barriers too, since it is
    inferred which arguments are only read. Tests of one condition for each element of a tile become one branch.
    """
    passes = llvm.create_new_module_pass_manager()
    passes.add_post_order_function_attributes_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    passes.add_jump_threading_pass()
    passes.add_simplify_cfg_pass()
    return passes


@contextmanager
def lent_pipeline(target: Target, level: int, scheduled: bool = False) -> Generator[Pipeline]:
    """Borrow an unused pipeline for a target and a level of optimisation, 0 to 3; `scheduled` as for `Pipeline`.

    Raises `CompileError` for a triple that LLVM does not know.
    """
    free = _free_pipelines(target, level, scheduled)
    try:
        pipeline = free.pop()
    except IndexError:
        pipeline = Pipeline(target, level, scheduled)
    try:
        yield pipeline
    finally:
        free.append(pipeline)


@lru_cache(maxsize=8)
def _free_pipelines(target: Target, level: int, scheduled: bool) -> list[Pipeline]:
    """The pipelines of a target, a level and a kind of modules that are not in use."""
    return []


@lru_cache(maxsize=1)
def _initialize_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target, level: int) -> llvm.TargetMachine:
    _initialize_llvm()
    try:
        found = llvm.Target.from_triple(target.get("mtriple"))
    except RuntimeError as error:
        raise CompileError(f"LLVM can't make code for the triple {target.get('mtriple')!r}: {error}") from error
    return found.create_target_machine(
        cpu=target.get("mcpu"),
        features=",".join(target.get("mattr", [])),
        opt=level,
        reloc="pic",
        codemodel="small",
    )


def _free(passes: llvm.ModulePassManager) -> None:
    """Free a pass manager (60 KB). llvmlite does not: the `_dispose` that it inherits first is empty."""
    NewPassManager._dispose(passes)
    passes.detach()

"""Linking of object files by LLVM's JIT, and LLVM's knowledge of the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import llvmlite.binding as llvm

__all__ = ["JitImage", "address_of", "missing_features"]


class JitImage:
    """An `Image` (`backend.llvm.linking`) linked by LLVM. An undefined function would abort the process: check
    `address_of`."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        self._engine = _new_engine()
        for code in objects:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """The address of a global function. Raises KeyError for an unknown one."""
        address: int = self._engine.get_function_address(name)
        if address == 0:
            raise KeyError(name)
        return address

    def keep(self) -> None:
        """Keep the code for the rest of the process."""
        self._engine.detach()


def _new_engine() -> llvm.ExecutionEngine:
    """An empty execution engine, which owns the code that it loads."""
    _initialize_llvm()
    machine = llvm.Target.from_default_triple().create_target_machine()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@lru_cache(maxsize=1)
def _initialize_llvm() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def address_of(name: str) -> int | None:
    """The address of a function of the process that LLVM's linker can resolve; None for others."""
    _new_engine()  # LLVM registers the process's symbols once an engine exists
    return llvm.address_of_symbol(name)


def missing_features(features: Sequence[str]) -> list[str]:
    """The elements of `features` that LLVM knows and this processor lacks."""
    host = llvm.get_host_cpu_features()
    return sorted(f for f in features if f in host and not host[f])

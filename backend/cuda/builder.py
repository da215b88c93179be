"""Incremental compilation for GPUs: the text of each kernel is cached on disk, all of it compiled as one unit.

Kernels are looked up by the caller's key, so that a model compiled before is neither lowered nor printed again; its
translation unit is then the same text, whose machine code is in the cache of `compile_source`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from relayc.backend.cache import default_cache
from relayc.backend.cuda.build import Source, assemble, emit, prepare, verify
from relayc.backend.cuda.report import Launch
from relayc.backend.cuda.runtime import CUDAModule
from relayc.backend.source_version import source_version
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule
from relayc.te.tir import PrimFunc

__all__ = ["Builder", "broken_limits"]

_FORMAT = "cuda sources 1"  # to be changed with what `Builder.add` writes


class Builder:
    """Collects the parts of one module, as a `backend.driver.PartBuilder`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._cache = default_cache()
        self._prefix = "\0".join([_FORMAT, source_version(), str(target), ""])
        self._sources: list[Source] = []
        self._reused: dict[str, int] = {}  # key -> position in `_sources`

    def reuse(self, key: str) -> str | None:
        """Add the code that an earlier `add` with this key made, in any process; returns its note, or None on a
        miss."""
        stored = None if self._cache is None else self._cache.decoded(self._prefix + key, _stored_source)
        if stored is None:
            return None
        self._reused[key] = len(self._sources)
        self._sources.append(stored[0])
        return stored[1]

    def add(self, functions: Sequence[PrimFunc], key: str = "", note: str = "") -> None:
        """Print functions as CUDA code, in place of what was reused under `key`. Raises CompileError as `emit` does."""
        source = emit(IRModule({function.name: function for function in functions}), self._target)
        at = self._reused.pop(key, len(self._sources))
        self._sources[at : at + 1] = [source]
        if key and self._cache is not None:
            self._cache.put(self._prefix + key, json.dumps({"note": note, **asdict(source)}).encode())

    def finish(self) -> CUDAModule:
        """Compile everything added as one translation unit. Raises CompileError with the compiler's output."""
        return assemble(self._sources, self._target)


def _stored_source(data: bytes) -> tuple[Source, str]:
    record = json.loads(data)
    text, functions, note = record["text"], record["functions"], record["note"]
    launches = tuple(Launch(*launch) for launch in record["launches"])
    if not (isinstance(text, str) and isinstance(functions, dict) and isinstance(note, str)):
        raise ValueError("a cached GPU kernel has fields of wrong types")
    for kernel, *numbers in launches:
        if not isinstance(kernel, str) or not all(isinstance(number, int) for number in numbers):
            raise ValueError("a cached GPU kernel has launch parameters of wrong types")
    return Source(text, functions, launches), note


def broken_limits(function: PrimFunc, target: Target) -> list[str]:
    """The reasons, one sentence each, why a lowered function can't be launched on `target`; empty if it can."""
    try:
        return verify(prepare(IRModule({function.name: function}), target), target)
    except CompileError as error:
        return [str(error)]

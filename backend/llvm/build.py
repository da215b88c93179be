"""The code generator of the "llvm" target kind: `build` for a whole module, `Builder` for functions as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from backend.llvm.compiler import CompileQueue
from backend.llvm.pool_code import pool_object
from backend.llvm.runtime import LLVMModule, ObjectCode
from backend.options import fast_math
from backend.runtime.errors import ModuleError
from backend.target import Target
from te.errors import CompileError
from te.ir import IRModule
from te.tir import PrimFunc

__all__ = ["Builder", "build"]

_FAST_MATH = ("arcp", "contract", "nsz")
"""What the option "llvm.fast_math" adds to a target's flags. Infinities and NaN stay: masks are made of them."""


class Builder:
    """Makes a module of functions as they come: LLVM works in a thread while the caller lowers the next ones.

    Every `add` becomes an object file of its own, so that the disk cache finds each kernel again; functions of
    different parts may call each other.
    """

    def __init__(self, target: Target) -> None:
        if fast_math("llvm"):
            target = target.with_attrs(fast_math=sorted({*target.get("fast-math", ()), *_FAST_MATH}))
        self._target = target
        self._queue = CompileQueue(target)
        self._parts: list[Future[ObjectCode] | ObjectCode] = []
        self._texts: list[str | None] = []

    def reuse(self, key: str) -> str | None:
        """Add what an earlier `add` with this `key` compiled; gives its note, or None when there is no such code."""
        found = self._queue.reuse(key)
        if found is None:
            return None
        self._parts.append(found[0])
        self._texts.append(None)
        return found[1]

    def add(self, functions: Sequence[PrimFunc], key: str = "", note: str = "") -> None:
        """Compile functions together. `key` names everything that decides their code, for `reuse`; "" if unknown.

        Raises CompileError for what the target has no code for.
        """
        functions = tuple(functions)
        emitted = self._queue.compiler.emit(functions)
        self._parts.append(self._queue.submit_emitted(emitted, functions, key, note))
        self._texts.append(emitted.text)

    def finish(self) -> LLVMModule:
        """Wait for LLVM; the module of everything added."""
        with self._queue:
            parts = [part if isinstance(part, ObjectCode) else part.result() for part in self._parts]
        compiler = self._queue.compiler
        forms = {"ll": compiler.optimized_text, "asm": compiler.machine_text, "raw-ll": str}
        sources = {form: self._source(make) for form, make in forms.items()}
        triple = self._target.get("mtriple")
        return LLVMModule(parts, triple, self._target.features, lambda: pool_object(triple), sources)

    def _source(self, make: Callable[[str], str]) -> Callable[[], str]:
        texts = list(self._texts)

        def text() -> str:
            known = [t for t in texts if t is not None]
            if len(known) < len(texts):
                raise ModuleError(
                    "this module's code came from the cache of compiled code, which keeps no text; compile it again "
                    "with RELAYC_CACHE_DIR=off in the environment"
                )
            return "\n".join([make(t) for t in known])

        return text


def build(module: IRModule, target: Target) -> LLVMModule:
    """Native code of every function of a module of lowered functions, each reachable by its name.

    A function with attribute ``calling_convention: "packed"`` checks its arguments and may fail; the others are raw
    kernels. Raises CompileError for what the target has no code for.
    """
    groups: dict[str, list[PrimFunc]] = {}
    for name, function in module.functions.items():
        if not isinstance(function, PrimFunc):
            raise CompileError(f"the llvm target compiles lowered functions; {name} is a {type(function).__name__}")
        named = function if function.name == name else function.with_attr("global_symbol", name)
        # A host function stands beside the kernel it calls.
        groups.setdefault(function.attrs.get("host_of", name), []).append(named)
    builder = Builder(target)
    for functions in groups.values():
        builder.add(functions)
    return builder.finish()

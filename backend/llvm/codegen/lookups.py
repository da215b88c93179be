"""Tables of eight words that a register holds, from which each lane of a vector picks one."""

from __future__ import annotations

from backend.llvm.codegen.dots import DotEmitter
from backend.llvm.codegen.parts import word_vector
from te.errors import CompileError
from te.tir import Call, as_int

__all__ = ["LookupEmitter"]

_PERMUTATIONS = {16: ("avx512f", "llvm.x86.avx512.permvar.si.512"), 8: ("avx2", "llvm.x86.avx2.permd")}
"""By lanes of int32: the feature, and what picks from as many words by the last bits of each lane."""


class LookupEmitter(DotEmitter):
    """Emits the intrinsic "lookup"."""

    def emit_lookup(self, call: Call) -> str:
        index, *constants = call.args
        table = [as_int(c) for c in constants]
        widths = [w for w, (needed, _) in _PERMUTATIONS.items() if needed in self.machine.features]
        lanes = call.dtype.lanes
        if not widths or lanes % min(widths):
            raise CompileError(f"no instruction looks up {lanes} words at once on this processor: {call}")

        def pick(width: int, at: str) -> str:
            kind, name = word_vector(width), _PERMUTATIONS[width][1]
            self.text.module.declare(name, kind, f"{kind}, {kind}")
            again = ", ".join([f"i32 {word}" for word in table * (width // len(table))])
            return self.text.pure(f"call {kind} @{name}({kind} <{again}>, {kind} {at})")

        return self.by_parts(lanes, widths, [self.visit(index)], pick)

"""Tables of four or eight words that a register holds, from which each lane of a vector picks one."""

from __future__ import annotations

from backend.llvm.codegen.dots import DotEmitter
from backend.llvm.codegen.parts import word_vector
from te.errors import CompileError
from te.tir import Call, as_int

__all__ = ["LookupEmitter"]

_PERMUTATIONS = {16: ("avx512f", "llvm.x86.avx512.permvar.si.512"), 8: ("avx2", "llvm.x86.avx2.permd")}
"""By lanes of int32: the feature, and what picks from as many words by the last bits of each lane."""
_QUADS = {16: ("avx512f", "llvm.x86.avx512.vpermilvar.ps.512"), 8: ("avx", "llvm.x86.avx.vpermilvar.ps.256")}
"""The same for the four words of each 128 bits: half of the instructions inside the processor, a third of the time."""


class LookupEmitter(DotEmitter):
    """Emits the intrinsic "lookup"."""

    def emit_lookup(self, call: Call) -> str:
        index, *constants = call.args
        table, lanes = [as_int(c) for c in constants], call.dtype.lanes
        instructions = _QUADS if len(table) == 4 else _PERMUTATIONS
        widths = [w for w, (needed, _) in instructions.items() if needed in self.machine.features]
        if not widths or lanes % min(widths):
            raise CompileError(f"no instruction looks up {lanes} words at once on this processor: {call}")

        def pick(width: int, at: str) -> str:
            of = word_vector(width)
            kind, name = of if len(table) == 8 else f"<{width} x float>", instructions[width][1]
            self.text.module.declare(name, kind, f"{kind}, {of}")
            words = ", ".join([f"i32 {word}" for word in table * (width // len(table))])
            if kind == of:
                return self.text.pure(f"call {kind} @{name}({kind} <{words}>, {of} {at})")
            numbers = self.text.pure(f"bitcast {of} <{words}> to {kind}")
            found = self.text.pure(f"call {kind} @{name}({kind} {numbers}, {of} {at})")
            return self.text.pure(f"bitcast {kind} {found} to {of}")

        return self.by_parts(lanes, widths, [self.visit(index)], pick)

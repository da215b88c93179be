"""Table lookups in registers: each lane selects from 4 or 8 words, or from 256 bytes."""

from __future__ import annotations

from relayc.backend.llvm.codegen.dots import DotEmitter
from relayc.backend.llvm.codegen.index import Index
from relayc.backend.llvm.codegen.legalize import word_vector
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Buffer, Call, Cast, PrimExpr, as_int

__all__ = ["LookupEmitter"]

_PERMUTATIONS = {16: ("avx512f", "llvm.x86.avx512.permvar.si.512"), 8: ("avx2", "llvm.x86.avx2.permd")}
"""Lanes of int32 -> (feature, permutation of as many words by the low bits of each lane)."""
_PERMUTATIONS_IN_128 = {
    16: ("avx512f", "llvm.x86.avx512.vpermilvar.ps.512"),
    8: ("avx", "llvm.x86.avx.vpermilvar.ps.256"),
}
"""Lanes of int32 -> (feature, permutation within 128 bits): half the micro-operations of `_PERMUTATIONS`, a third of
the time."""
_BYTES = {
    64: ("avx512bw", "llvm.x86.avx512.pshuf.b.512"),
    32: ("avx2", "llvm.x86.avx2.pshuf.b"),
    16: ("ssse3", "llvm.x86.ssse3.pshuf.b.128"),
}
"""Lanes of bytes -> (feature, lookup within each 16 bytes by the low four bits of each lane)."""
_ENTRIES, _ROW = 256, 16
"""Entries of a byte table, and of the row that one instruction looks up in."""


class LookupEmitter(DotEmitter):
    """Emits the intrinsic "lookup", and gathers from 256 bytes at uint8 indices."""

    def _gather(self, buffer: Buffer, index: PrimExpr, of: DType, mask: str | None) -> str:
        """Gather from a table of 256 bytes; uint8 indices are in bounds even in masked-off lanes."""
        position = index.value if isinstance(index, Cast) else index
        of_bytes = of.bits == 8 and not of.is_bool and position.dtype.bits == 8 and position.dtype.is_uint
        widths = self._byte_widths() if of_bytes and as_int(buffer.shape[0]) == _ENTRIES else []
        if not widths:
            return super()._gather(buffer, index, of, mask)
        value, parts = self.visit(position), list[tuple[str, int]]()
        for begin in range(0, of.lanes, max(widths)):
            count = min(max(widths), of.lanes - begin)
            width = min(w for w in widths if w >= count)
            indices = self._extend(self.part(value, "i8", of.lanes, begin, count), "i8", count, width)
            parts.append((self.part(self._look_up(buffer, indices, width), "i8", width, 0, count), count))
        return self.concatenate(parts, "i8")

    def _byte_widths(self) -> list[int]:
        """Lanes of the byte vectors that lookups are split into."""
        features = self.machine.features
        if "avx512vbmi" in features:
            return [64]
        return [16] if "neon" in features else [w for w, (needed, _) in _BYTES.items() if needed in features]

    def _look_up(self, table: Buffer, indices: str, width: int) -> str:
        """The table entries at a vector of uint8 indices."""
        if "avx512vbmi" in self.machine.features:
            low, high = (self._look_up_128(table, first, indices) for first in (0, 128))
            return self._select_by_sign(indices, low, high, width)
        if "neon" in self.machine.features:
            return self._look_up_64(table, indices)
        return self._look_up_by_rows(table, indices, width)

    def _rows(self, table: Buffer, first: int, count: int, width: int) -> list[str]:
        """Load `count` consecutive vectors of the table."""
        of = dtype("uint8").with_lanes(width)
        return [self.load(table, Index(None, first + n * width, 0), of) for n in range(count)]

    def _look_up_128(self, table: Buffer, first: int, indices: str) -> str:
        """Look up in two registers, 128 entries, by one AVX-512 instruction."""
        name, of = "llvm.x86.avx512.vpermi2var.qi.512", "<64 x i8>"
        low, high = self._rows(table, first, 2, 64)
        self.text.module.declare(name, of, f"{of}, {of}, {of}")
        return self.text.pure(f"call {of} @{name}({of} {low}, {of} {indices}, {of} {high})")

    def _look_up_64(self, table: Buffer, indices: str) -> str:
        """Look up in four registers, 64 entries, by one NEON instruction; indices out of range keep the previous
        lanes."""
        of, found = "<16 x i8>", "zeroinitializer"
        name, operands = "llvm.aarch64.neon.tbx4.v16i8", ", ".join(["<16 x i8>"] * 6)
        self.text.module.declare(name, of, operands)
        for first in range(0, _ENTRIES, 64):
            place = self.text.pure(f"sub {of} {indices}, splat (i8 {first})") if first else indices
            rows = [f"{of} {row}" for row in self._rows(table, first, 4, _ROW)]
            found = self.text.pure(f"call {of} @{name}({of} {found}, {', '.join(rows)}, {of} {place})")
        return found

    def _look_up_by_rows(self, table: Buffer, indices: str, width: int) -> str:
        """Look up in each row of 16 entries by the low four bits, then select among rows by the high bits."""
        of, name = f"<{width} x i8>", _BYTES[width][1]
        self.text.module.declare(name, of, f"{of}, {of}")
        last = self.text.pure(f"and {of} {indices}, splat (i8 {_ROW - 1})")
        found: list[str] = []
        for row in self._rows(table, 0, _ENTRIES // _ROW, _ROW):
            wide = self._shuffle(row, "poison", "i8", _ROW, [i % _ROW for i in range(width)])
            found.append(self.text.pure(f"call {of} @{name}({of} {wide}, {of} {last})"))
        for shift in (3, 2, 1, 0):
            signs = self._shifted(indices, shift, width) if shift else indices
            found = [self._select_by_sign(signs, a, b, width) for a, b in zip(found[::2], found[1::2], strict=True)]
        return found[0]

    def _shifted(self, indices: str, shift: int, width: int) -> str:
        """Shift another bit of each byte into its sign, the only bit used: x86 shifts pairs of bytes at least."""
        of, pairs = f"<{width} x i8>", f"<{width // 2} x i16>"
        wide = self.text.pure(f"bitcast {of} {indices} to {pairs}")
        moved = self.text.pure(f"shl {pairs} {wide}, splat (i16 {shift})")
        return self.text.pure(f"bitcast {pairs} {moved} to {of}")

    def _select_by_sign(self, signs: str, positive: str, negative: str, width: int) -> str:
        of = f"<{width} x i8>"
        chosen = self.text.pure(f"icmp slt {of} {signs}, zeroinitializer")
        return self.text.pure(f"select <{width} x i1> {chosen}, {of} {negative}, {of} {positive}")

    def emit_lookup(self, call: Call) -> str:
        index, *constants = call.args
        table, lanes = [as_int(c) for c in constants], call.dtype.lanes
        instructions = _PERMUTATIONS_IN_128 if len(table) == 4 else _PERMUTATIONS
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

        return self.legalize(lanes, widths, [self.visit(index)], pick)

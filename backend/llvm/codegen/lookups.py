"""Tables that registers hold, from which each lane of a vector picks: of 4 or 8 words, or of 256 bytes."""

from __future__ import annotations

from relayc.backend.llvm.codegen.dots import DotEmitter
from relayc.backend.llvm.codegen.index import Index
from relayc.backend.llvm.codegen.legalize import word_vector
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Buffer, Call, Cast, PrimExpr, as_int

__all__ = ["LookupEmitter"]

_PERMUTATIONS = {16: ("avx512f", "llvm.x86.avx512.permvar.si.512"), 8: ("avx2", "llvm.x86.avx2.permd")}
"""By lanes of int32: the feature, and what picks from as many words by the last bits of each lane."""
_QUADS = {16: ("avx512f", "llvm.x86.avx512.vpermilvar.ps.512"), 8: ("avx", "llvm.x86.avx.vpermilvar.ps.256")}
"""The same for the four words of each 128 bits: half of the instructions inside the processor, a third of the time."""
_BYTES = {
    64: ("avx512bw", "llvm.x86.avx512.pshuf.b.512"),
    32: ("avx2", "llvm.x86.avx2.pshuf.b"),
    16: ("ssse3", "llvm.x86.ssse3.pshuf.b.128"),
}
"""By bytes: the feature, and what picks of each 16 bytes by the last four bits of each lane."""
_ENTRIES, _ROW = 256, 16
"""Of a table of bytes, and of what one instruction picks from."""


class LookupEmitter(DotEmitter):
    """Emits the intrinsic "lookup", and gathers from 256 bytes at places that are bytes."""

    def _gather(self, buffer: Buffer, index: PrimExpr, of: DType, mask: str | None) -> str:
        """Places are bytes, so all are inside, also those of lanes that aren't wanted."""
        code = index.value if isinstance(index, Cast) else index
        of_bytes = of.bits == 8 and not of.is_bool and code.dtype.bits == 8 and code.dtype.is_uint
        widths = self._byte_widths() if of_bytes and as_int(buffer.shape[0]) == _ENTRIES else []
        if not widths:
            return super()._gather(buffer, index, of, mask)
        value, parts = self.visit(code), list[tuple[str, int]]()
        for begin in range(0, of.lanes, max(widths)):
            count = min(max(widths), of.lanes - begin)
            width = min(w for w in widths if w >= count)
            codes = self._spread(self.part(value, "i8", of.lanes, begin, count), "i8", count, width)
            parts.append((self.part(self._look_up(buffer, codes, width), "i8", width, 0, count), count))
        return self.joined(parts, "i8")

    def _byte_widths(self) -> list[int]:
        """Lengths of the vectors of bytes that are looked up at once."""
        features = self.machine.features
        if "avx512vbmi" in features:
            return [64]
        return [16] if "neon" in features else [w for w, (needed, _) in _BYTES.items() if needed in features]

    def _look_up(self, table: Buffer, codes: str, width: int) -> str:
        """The entries for a vector of codes."""
        if "avx512vbmi" in self.machine.features:
            low, high = (self._pick_of_two(table, first, codes) for first in (0, 128))
            return self._by_sign(codes, low, high, width)
        if "neon" in self.machine.features:
            return self._pick_of_four(table, codes)
        return self._by_rows(table, codes, width)

    def _rows(self, table: Buffer, first: int, count: int, width: int) -> list[str]:
        """So many pieces of the table from an entry on."""
        of = dtype("uint8").with_lanes(width)
        return [self.load(table, Index(None, first + n * width, 0), of) for n in range(count)]

    def _pick_of_two(self, table: Buffer, first: int, codes: str) -> str:
        """AVX-512 picks from two registers, 128 entries, at once."""
        name, of = "llvm.x86.avx512.vpermi2var.qi.512", "<64 x i8>"
        low, high = self._rows(table, first, 2, 64)
        self.text.module.declare(name, of, f"{of}, {of}, {of}")
        return self.text.pure(f"call {of} @{name}({of} {low}, {of} {codes}, {of} {high})")

    def _pick_of_four(self, table: Buffer, codes: str) -> str:
        """NEON picks from four registers, 64 entries; what lies behind them stays as it was."""
        of, found = "<16 x i8>", "zeroinitializer"
        name, operands = "llvm.aarch64.neon.tbx4.v16i8", ", ".join(["<16 x i8>"] * 6)
        self.text.module.declare(name, of, operands)
        for first in range(0, _ENTRIES, 64):
            place = self.text.pure(f"sub {of} {codes}, splat (i8 {first})") if first else codes
            rows = [f"{of} {row}" for row in self._rows(table, first, 4, _ROW)]
            found = self.text.pure(f"call {of} @{name}({of} {found}, {', '.join(rows)}, {of} {place})")
        return found

    def _by_rows(self, table: Buffer, codes: str, width: int) -> str:
        """Of each row of 16 entries one, by the last bits; of these one by the other bits, from the fifth on."""
        of, name = f"<{width} x i8>", _BYTES[width][1]
        self.text.module.declare(name, of, f"{of}, {of}")
        last = self.text.pure(f"and {of} {codes}, splat (i8 {_ROW - 1})")
        found: list[str] = []
        for row in self._rows(table, 0, _ENTRIES // _ROW, _ROW):
            wide = self._picked(row, "poison", "i8", _ROW, [i % _ROW for i in range(width)])
            found.append(self.text.pure(f"call {of} @{name}({of} {wide}, {of} {last})"))
        for shift in (3, 2, 1, 0):
            signs = self._shifted(codes, shift, width) if shift else codes
            found = [self._by_sign(signs, a, b, width) for a, b in zip(found[::2], found[1::2], strict=True)]
        return found[0]

    def _shifted(self, codes: str, shift: int, width: int) -> str:
        """Bytes with others of their bits in front, which alone count: pairs are shifted, since x86 shifts no bytes."""
        of, pairs = f"<{width} x i8>", f"<{width // 2} x i16>"
        wide = self.text.pure(f"bitcast {of} {codes} to {pairs}")
        moved = self.text.pure(f"shl {pairs} {wide}, splat (i16 {shift})")
        return self.text.pure(f"bitcast {pairs} {moved} to {of}")

    def _by_sign(self, signs: str, positive: str, negative: str, width: int) -> str:
        of = f"<{width} x i8>"
        chosen = self.text.pure(f"icmp slt {of} {signs}, zeroinitializer")
        return self.text.pure(f"select <{width} x i1> {chosen}, {of} {negative}, {of} {positive}")

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

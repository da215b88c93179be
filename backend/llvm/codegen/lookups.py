"""Table lookups in registers: each lane selects from 4 to 16 words, from 16 floats, or from 256 bytes."""

from __future__ import annotations

from collections.abc import Callable

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.emitter import Emitter, Index
from relayc.backend.llvm.codegen.instructions import Instruction, LLVMIntrinsic, available
from relayc.backend.llvm.codegen.memory import load_elements
from relayc.backend.llvm.codegen.permutes import PERMUTE, PERMUTE_TWO, PERMUTE_WITHIN_128
from relayc.backend.llvm.codegen.vectors import concatenate, extend, extract_part, legalize, shuffle
from relayc.te.dtype import DType, dtype
from relayc.te.errors import CompileError
from relayc.te.tir import Broadcast, Buffer, Call, Cast, PrimExpr, as_int

__all__ = ["INSTRUCTIONS", "emit_lookup", "look_up_bytes", "look_up_floats"]

_ENTRIES, _ROW = 256, 16
"""Entries of a byte table, and of the row that one instruction looks up in."""
_FLOATS = 16
"""Entries of a table of floats, which four bits of an index select."""


def emit_lookup(e: Emitter, call: Call) -> str:
    """Look up one of 4 or 8 constant words, or of 16 words of 64 bits: permute vectors of them by the indices."""
    index, *constants = call.args
    table, lanes = [as_int(c) for c in constants], call.dtype.lanes
    element = f"i{call.dtype.bits}"
    rows = available(_permutations(len(table), element), e.machine)
    if not rows or lanes % min(rows):
        raise CompileError(f"no instruction looks up {lanes} words at once on this processor: {call}")

    def pick(width: int, at: str) -> str:
        row, of = rows[width], f"<{width} x {element}>"
        kind = row.intrinsics[0].operands[0]
        words = [f"{element} {word}" for word in table * max(width // len(table), 1)]
        registers = [f"<{', '.join(words[i : i + width])}>" for i in range(0, len(words), width)]
        if kind == of:
            return row.emit(e.text, row, *registers, at)
        floats = [e.text.pure(f"bitcast {of} {register} to {kind}") for register in registers]
        return e.text.pure(f"bitcast {kind} {row.emit(e.text, row, *floats, at)} to {of}")

    return legalize(e.text, lanes, rows, [e.value(index)], pick, element)


def _permutations(words: int, element: str) -> tuple[Instruction, ...]:
    """The permutations that look up in a table of `words`, each of LLVM's type `element`."""
    if words == 16:
        return PERMUTE_TWO if element == "i64" else ()
    return PERMUTE_WITHIN_128 if words == 4 else PERMUTE[element]


def look_up_bytes(e: Emitter, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
    """Gather from a table of 256 bytes at uint8 indices, which are in bounds even in masked-off lanes; None for
    any other gather."""
    position = index.value if isinstance(index, Cast) else index
    of_bytes = of.bits == 8 and not of.is_bool and position.dtype.bits == 8 and position.dtype.is_uint
    if not of_bytes or as_int(buffer.shape[0]) != _ENTRIES:
        return None
    rows = next((found for group in _LOOK_UPS if (found := available(group, e.machine))), None)
    if rows is None:
        return None
    value, parts = e.value(position), list[tuple[str, int]]()
    for begin in range(0, of.lanes, max(rows)):
        count = min(max(rows), of.lanes - begin)
        row = rows[min(w for w in rows if w >= count)]
        part = extend(e.text, extract_part(e.text, value, "i8", of.lanes, begin, count), "i8", count, row.lanes)
        parts.append((extract_part(e.text, row.emit(e, row, buffer, part), "i8", row.lanes, 0, count), count))
    return concatenate(e.text, parts, "i8")


def look_up_floats(e: Emitter, buffer: Buffer, index: PrimExpr, of: DType) -> str | None:
    """Gather from a table of 16 float32 at indices of which all but the low four bits are masked off, so that they are
    in bounds in all lanes; None for any other gather."""
    rows = available(PERMUTE["float"], e.machine)
    if str(of.element) != "float32" or as_int(buffer.shape[0]) != _FLOATS or not rows or of.lanes % min(rows):
        return None
    if not isinstance(index, Call) or index.op != "bitwise_and" or index.dtype.bits != of.bits:
        return None
    mask = index.args[1]
    if as_int(mask.value if isinstance(mask, Broadcast) else mask) != _FLOATS - 1:
        return None

    def pick(width: int, at: str) -> str:
        row, parts = rows[width], range(0, _FLOATS, width)
        tables = [load_elements(e, buffer, Index(None, first, 0), of.with_lanes(width)) for first in parts]
        found = [row.emit(e.text, row, table, at) for table in tables]
        if len(found) > 1:  # instructions use the low three bits
            high, kind = e.text.pure(f"icmp ugt <{width} x i32> {at}, splat (i32 {width - 1})"), f"<{width} x float>"
            found = [e.text.pure(f"select <{width} x i1> {high}, {kind} {found[1]}, {kind} {found[0]}")]
        return e.text.pure(f"bitcast <{width} x float> {found[0]} to <{width} x i32>")

    words = legalize(e.text, of.lanes, rows, [e.value(index)], pick)
    return e.text.pure(f"bitcast <{of.lanes} x i32> {words} to <{of.lanes} x float>")


# What rows emit: the entries of a table at a vector of uint8 indices.


def _by_two_registers(e: Emitter, row: Instruction, table: Buffer, indices: str) -> str:
    """Look up in two registers, 128 entries, by one instruction; select the half by the highest bit."""

    def half(first: int) -> str:
        low, high = _rows(e, table, first, 2, row.lanes)
        return row.intrinsics[0].call(e.text, low, indices, high)

    low_half, high_half = half(0), half(128)
    return _select_by_sign(e.text, indices, low_half, high_half, row.lanes)


def _by_four_registers(e: Emitter, row: Instruction, table: Buffer, indices: str) -> str:
    """Look up in four registers, 64 entries, by one instruction; indices out of range keep the previous lanes."""
    (look_up,), found = row.intrinsics, "zeroinitializer"
    for first in range(0, _ENTRIES, 64):
        place = e.text.pure(f"sub {look_up.result} {indices}, splat (i8 {first})") if first else indices
        found = look_up.call(e.text, found, *_rows(e, table, first, 4, _ROW), place)
    return found


def _by_rows(e: Emitter, row: Instruction, table: Buffer, indices: str) -> str:
    """Look up in each row of 16 entries by the low four bits, then select among rows by the high bits."""
    (look_up,), width, text = row.intrinsics, row.lanes, e.text
    last = text.pure(f"and {look_up.result} {indices}, splat (i8 {_ROW - 1})")
    found: list[str] = []
    for entries in _rows(e, table, 0, _ENTRIES // _ROW, _ROW):
        wide = shuffle(text, entries, "poison", "i8", _ROW, [i % _ROW for i in range(width)])
        found.append(look_up.call(text, wide, last))
    for shift in (3, 2, 1, 0):
        signs = _shifted(text, indices, shift, width) if shift else indices
        found = [_select_by_sign(text, signs, a, b, width) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _rows(e: Emitter, table: Buffer, first: int, count: int, width: int) -> list[str]:
    """Load `count` consecutive vectors of the table."""
    of = dtype("uint8").with_lanes(width)
    return [load_elements(e, table, Index(None, first + n * width, 0), of) for n in range(count)]


def _shifted(text: FunctionText, indices: str, shift: int, width: int) -> str:
    """Shift another bit of each byte into its sign, the only bit used: x86 shifts pairs of bytes at least."""
    of, pairs = f"<{width} x i8>", f"<{width // 2} x i16>"
    wide = text.pure(f"bitcast {of} {indices} to {pairs}")
    moved = text.pure(f"shl {pairs} {wide}, splat (i16 {shift})")
    return text.pure(f"bitcast {pairs} {moved} to {of}")


def _select_by_sign(text: FunctionText, signs: str, positive: str, negative: str, width: int) -> str:
    of = f"<{width} x i8>"
    chosen = text.pure(f"icmp slt {of} {signs}, zeroinitializer")
    return text.pure(f"select <{width} x i1> {chosen}, {of} {negative}, {of} {positive}")


def _row(lanes: int, feature: str, name: str, operands: int, emit: Callable[..., str]) -> Instruction:
    of = f"<{lanes} x i8>"
    return Instruction(
        "lookup of 256 bytes", "uint8", lanes, frozenset({feature}), emit, (LLVMIntrinsic(name, of, (of,) * operands),)
    )


_LOOK_UPS = (
    (_row(64, "avx512vbmi", "x86.avx512.vpermi2var.qi.512", 3, _by_two_registers),),
    (_row(16, "neon", "aarch64.neon.tbx4.v16i8", 6, _by_four_registers),),
    (
        _row(64, "avx512bw", "x86.avx512.pshuf.b.512", 2, _by_rows),
        _row(32, "avx2", "x86.avx2.pshuf.b", 2, _by_rows),
        _row(16, "ssse3", "x86.ssse3.pshuf.b.128", 2, _by_rows),
    ),
)
"""Ways to look up in a table of 256 bytes, the best first."""
INSTRUCTIONS = tuple([row for group in _LOOK_UPS for row in group])

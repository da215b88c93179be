"""Intel AMX tiles: registers of 16 rows of 64 bytes, numbered by the program. LLVM neither moves nor merges their
instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relayc.backend.llvm.codegen.emitter import Emitter
from relayc.backend.llvm.codegen.index import index_of, index_operand
from relayc.backend.llvm.codegen.instructions import Instruction, LLVMIntrinsic, available
from relayc.te.errors import CompileError
from relayc.te.tir import Call, PrimExpr, as_int

__all__ = ["INSTRUCTIONS", "emit_amx", "emit_amx_configure"]

_TILES, _ROWS, _ROW_BYTES = 8, 16, 64


def emit_amx_configure(e: Emitter, call: Call) -> str:
    """Configure the tiles, once per function if its products have equal tiles: the instruction takes three times as
    long as two by two tile products."""
    numbers = [n for n in map(as_int, call.args) if n is not None]
    assert len(numbers) == len(call.args)
    shapes = e.text.module.constant_bytes(_shapes(numbers), _ROW_BYTES)
    e.text.module.declare("llvm.x86.ldtilecfg", "void", "ptr")
    e.text.module.declare("llvm.x86.tilerelease", "void", "")
    e.text.enclose(f"call void @llvm.x86.ldtilecfg(ptr {shapes})", "call void @llvm.x86.tilerelease()")
    return "0"


def emit_amx(e: Emitter, call: Call) -> str:
    """A tile instruction: its operands are numbers of tiles, an address and a distance of rows in bytes."""
    row = available(_ROWS_OF[call.op], e.machine).get(0)
    if row is None:
        raise CompileError(f"this processor has no AMX tiles: {call}")
    row.emit(e, row, call)
    return "0"


def _on_tiles(e: Emitter, row: Instruction, call: Call) -> str:
    row.intrinsics[0].run(e.text, *[_tile_number(x) for x in call.args])
    return "0"


def _on_memory(e: Emitter, row: Instruction, call: Call) -> str:
    tile, address, stride = call.args
    row_bytes = index_operand(e, index_of(e, stride))
    row.intrinsics[0].run(e.text, _tile_number(tile), e.value(address), row_bytes)
    return "0"


def _tile_number(expr: PrimExpr) -> str:
    number = as_int(expr)
    assert number is not None and 0 <= number < _TILES
    return str(number)


def _shapes(numbers: Sequence[int]) -> bytes:
    """The operand of `ldtilecfg`: rows and bytes per row of the tiles (Intel SDM, volume 1, table 18-1)."""
    rows, row_bytes = numbers[::2], numbers[1::2]
    assert len(rows) == len(row_bytes) <= _TILES and max(rows) <= _ROWS and max(row_bytes) <= _ROW_BYTES
    columns = b"".join([n.to_bytes(2, "little") for n in row_bytes])
    return b"\1" + bytes(15) + columns.ljust(32, b"\0") + bytes(rows).ljust(16, b"\0")


def _row(operator: str, feature: str, emit: Callable[..., str], name: str, *operands: str) -> tuple[Instruction, ...]:
    intrinsic = LLVMIntrinsic(f"x86.{name}", "void", operands)
    return (Instruction(operator, "tile", 0, frozenset({feature}), emit, (intrinsic,)),)


_TILE = "i8 immarg"
_ROWS_OF = {
    "amx_zero": _row("amx_zero", "amx-tile", _on_tiles, "tilezero", _TILE),
    "amx_load": _row("amx_load", "amx-tile", _on_memory, "tileloadd64", _TILE, "ptr", "i64"),
    "amx_store": _row("amx_store", "amx-tile", _on_memory, "tilestored64", _TILE, "ptr", "i64"),
    "amx_dot_bytes": _row("amx_dot_bytes", "amx-int8", _on_tiles, "tdpbusd", _TILE, _TILE, _TILE),
    "amx_dot_bfloat16": _row("amx_dot_bfloat16", "amx-bf16", _on_tiles, "tdpbf16ps", _TILE, _TILE, _TILE),
}
INSTRUCTIONS = tuple([row for rows in _ROWS_OF.values() for row in rows])

"""Intel AMX tiles: registers of 16 rows of 64 bytes, numbered by the program."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.backend.llvm.codegen.lookups import LookupEmitter
from relayc.te.tir import Call, as_int

__all__ = ["TileEmitter"]

_TILES, _ROWS, _ROW_BYTES = 8, 16, 64


class TileEmitter(LookupEmitter):
    """Emits the intrinsics "amx_...", one instruction each. LLVM neither moves nor merges them."""

    def emit_amx_configure(self, call: Call) -> str:
        """Configure the tiles once per function: the instruction takes three times as long as two by two tile
        products."""
        numbers = [n for n in map(as_int, call.args) if n is not None]
        assert len(numbers) == len(call.args)
        shapes = self.text.module.constant_bytes(_shapes(numbers), _ROW_BYTES)
        self.text.module.declare("llvm.x86.ldtilecfg", "void", "ptr")
        self.text.module.declare("llvm.x86.tilerelease", "void", "")
        self.text.enclose(f"call void @llvm.x86.ldtilecfg(ptr {shapes})", "call void @llvm.x86.tilerelease()")
        return "0"

    def emit_amx_zero(self, call: Call) -> str:
        return self._tile_instruction("tilezero", [self._tile_number(call, 0)])

    def emit_amx_load(self, call: Call) -> str:
        return self._tile_instruction("tileloadd64", self._rows_in_memory(call))

    def emit_amx_store(self, call: Call) -> str:
        return self._tile_instruction("tilestored64", self._rows_in_memory(call))

    def emit_amx_dot_bytes(self, call: Call) -> str:
        return self._tile_instruction("tdpbusd", [self._tile_number(call, i) for i in range(3)])

    def _rows_in_memory(self, call: Call) -> list[tuple[str, str]]:
        row_stride = self.operand(self.index(call.args[2]))
        return [self._tile_number(call, 0), ("ptr", self.visit(call.args[1])), ("i64", row_stride)]

    def _tile_number(self, call: Call, argument: int) -> tuple[str, str]:
        number = as_int(call.args[argument])
        assert number is not None and 0 <= number < _TILES
        return "i8 immarg", str(number)

    def _tile_instruction(self, name: str, arguments: list[tuple[str, str]]) -> str:
        kinds = ", ".join([kind for kind, _ in arguments])
        self.text.module.declare(f"llvm.x86.{name}", "void", kinds)
        operands = ", ".join([f"{kind.split()[0]} {value}" for kind, value in arguments])
        self.text.effect(f"call void @llvm.x86.{name}({operands})")
        return "0"


def _shapes(numbers: Sequence[int]) -> bytes:
    """The operand of `ldtilecfg`: rows and bytes per row of the tiles (Intel SDM, volume 1, table 18-1)."""
    rows, row_bytes = numbers[::2], numbers[1::2]
    assert len(rows) == len(row_bytes) <= _TILES and max(rows) <= _ROWS and max(row_bytes) <= _ROW_BYTES
    columns = b"".join([n.to_bytes(2, "little") for n in row_bytes])
    return b"\1" + bytes(15) + columns.ljust(32, b"\0") + bytes(rows).ljust(16, b"\0")

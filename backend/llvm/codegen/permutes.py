"""Permutations of the lanes of vectors by variable positions."""

from __future__ import annotations

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.instructions import Instruction, LLVMIntrinsic
from relayc.backend.llvm.codegen.vectors import word_vector

__all__ = ["INSTRUCTIONS", "PERMUTE", "PERMUTE_TWO", "PERMUTE_WITHIN_128"]


def _permute(text: FunctionText, row: Instruction, value: str, places: str) -> str:
    """The lanes of `value` at the low bits of each integer of `places`."""
    return row.intrinsics[0].call(text, value, places)


def _permute_two(text: FunctionText, row: Instruction, low: str, high: str, places: str) -> str:
    """The lanes of `low` and `high`, one after the other, at the low bits of each integer of `places`."""
    return row.intrinsics[0].call(text, low, places, high)


def _row(operator: str, element: str, kind: str, lanes: int, feature: str, name: str) -> Instruction:
    vector = f"<{lanes} x {kind}>"
    places = "<8 x i64>" if kind == "i64" else word_vector(lanes)
    intrinsic = LLVMIntrinsic(f"x86.{name}", vector, (vector, places))
    return Instruction(operator, element, lanes, frozenset({feature}), _permute, (intrinsic,))


PERMUTE = {
    "float": (
        _row("permute", "float32", "float", 16, "avx512f", "avx512.permvar.sf.512"),
        _row("permute", "float32", "float", 8, "avx2", "avx2.permps"),
    ),
    "i32": (
        _row("permute", "int32", "i32", 16, "avx512f", "avx512.permvar.si.512"),
        _row("permute", "int32", "i32", 8, "avx2", "avx2.permd"),
    ),
    "i64": (_row("permute", "int64", "i64", 8, "avx512f", "avx512.permvar.di.512"),),
}
"""LLVM's type of an element of 32 or 64 bits -> permutations of a register."""
PERMUTE_TWO = (
    Instruction(
        "permute of two registers", "int64", 8, frozenset({"avx512f"}), _permute_two,
        (LLVMIntrinsic("x86.avx512.vpermi2var.q.512", "<8 x i64>", ("<8 x i64>",) * 3),),
    ),
)  # fmt: skip
PERMUTE_WITHIN_128 = (
    _row("permute within 128 bits", "float32", "float", 16, "avx512f", "avx512.vpermilvar.ps.512"),
    _row("permute within 128 bits", "float32", "float", 8, "avx", "avx.vpermilvar.ps.256"),
)
"""Half the micro-operations of a permutation of a register, a third of the time."""
INSTRUCTIONS = (*PERMUTE["float"], *PERMUTE["i32"], *PERMUTE["i64"], *PERMUTE_TWO, *PERMUTE_WITHIN_128)

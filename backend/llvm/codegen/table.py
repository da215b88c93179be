"""The table of instruction selection, as text: what each operator becomes, on which processors."""

from __future__ import annotations

from collections.abc import Sequence

from relayc.backend.llvm.codegen import amx, convert, dots, lookups, math, permutes
from relayc.backend.llvm.codegen.instructions import Instruction, available
from relayc.backend.llvm.codegen.machine import Machine

__all__ = ["INSTRUCTIONS", "instruction_table"]

INSTRUCTIONS: tuple[Instruction, ...] = (
    *dots.INSTRUCTIONS,
    *convert.INSTRUCTIONS,
    *math.INSTRUCTIONS,
    *lookups.INSTRUCTIONS,
    *permutes.INSTRUCTIONS,
    *amx.INSTRUCTIONS,
)
"""All rows: operators that LLVM would not select the processor's instruction for."""
_HEADER = ("operator", "type", "needs", "LLVM intrinsic or method")


def instruction_table(machine: Machine | None = None) -> str:
    """The rows, one a line, with the features that each needs, and functions that all processors have.

    With a machine: only the first row for each type whose features it has.
    """
    rows = INSTRUCTIONS if machine is None else _used(machine)
    functions = [*math.LLVM_FUNCTIONS.items(), *[(name, f"{name} of the C library") for name in math.C_FUNCTIONS]]
    cells = [_HEADER, *[(row.operator, _type_of(row), " ".join(sorted(row.features)), row.form) for row in rows]]
    cells += [(name, "float", "", form) for name, form in functions]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([cell.ljust(width) for cell, width in zip(line, widths, strict=True)]) for line in cells]
    return "\n".join([line.rstrip() for line in lines])


def _used(machine: Machine) -> Sequence[Instruction]:
    groups: dict[tuple[str, str], list[Instruction]] = {}
    for row in INSTRUCTIONS:
        groups.setdefault((row.operator, row.element), []).append(row)
    return [row for rows in groups.values() for row in available(tuple(rows), machine).values()]


def _type_of(row: Instruction) -> str:
    return f"{row.element}x{row.lanes}" if row.lanes else row.element

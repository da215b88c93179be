"""Instruction selection: rows that say which processor has which instructions for an operator.

The module of an operator holds its rows, most preferred first; `table.py` prints all of them. Operands of other lengths
are split into the vectors that there are rows for (`legalized`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.machine import Machine
from relayc.backend.llvm.codegen.vectors import legalize

__all__ = ["Instruction", "LLVMIntrinsic", "available", "legalized"]


@dataclass(frozen=True, slots=True, eq=False)
class LLVMIntrinsic:
    """An LLVM intrinsic (name without "llvm.") and the LLVM types of its result and operands.

    `constants` are trailing operands that are always the same, each with its type, such as "i32 4".
    """

    name: str
    result: str
    operands: tuple[str, ...]
    constants: tuple[str, ...] = ()

    def call(self, text: FunctionText, *values: str) -> str:
        """Append a call without side effects; returns its value."""
        return text.pure(self._declared(text, values))

    def run(self, text: FunctionText, *values: str) -> None:
        """Append a call of an intrinsic without a value."""
        text.effect(self._declared(text, values))

    def _declared(self, text: FunctionText, values: Sequence[str]) -> str:
        kinds = [*self.operands, *[constant.rsplit(" ", 1)[0] for constant in self.constants]]
        text.module.declare(f"llvm.{self.name}", self.result, ", ".join(kinds))
        operands = [f"{kind.removesuffix(' immarg')} {x}" for kind, x in zip(self.operands, values, strict=True)]
        return f"call {self.result} @llvm.{self.name}({', '.join([*operands, *self.constants])})"


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """A row: `operator` on vectors of `lanes` elements of type `element` (of any number if 0) where the processor has
    all `features`.

    `emit` is called with what the rows of the operator share and returns the result's operand. The `intrinsics` are
    those that it needs.
    """

    operator: str
    element: str
    lanes: int
    features: frozenset[str]
    emit: Callable[..., str]
    intrinsics: tuple[LLVMIntrinsic, ...] = ()

    @property
    def form(self) -> str:
        """The LLVM intrinsics, or what is emitted instead of one."""
        names = [intrinsic.name for intrinsic in self.intrinsics]
        return " + ".join(names) or self.emit.__name__.strip("_").replace("_", " ")


@lru_cache(maxsize=256)
def available(rows: tuple[Instruction, ...], machine: Machine) -> Mapping[int, Instruction]:
    """Number of lanes -> the first of the rows for it whose features the machine has."""
    found: dict[int, Instruction] = {}
    for row in rows:
        if row.features <= machine.features:
            found.setdefault(row.lanes, row)
    return found


def legalized(
    text: FunctionText, rows: Mapping[int, Instruction], lanes: int, operands: Sequence[str], element: str, *shared: Any
) -> str:
    """An operator of vectors with lanes of LLVM type `element`, by the rows: widest first, results concatenated.

    A row's `emit` gets the text, the row, `shared` and the parts of the operands.
    """

    def part(width: int, *parts: str) -> str:
        row = rows[width]
        return row.emit(text, row, *shared, *parts)

    return legalize(text, lanes, rows, operands, part, element)

"""The state of a function while it is emitted: `Emitter`, which is handed to the functions that emit its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from relayc.backend.llvm.assembly import FunctionText
from relayc.backend.llvm.codegen.machine import Machine
from relayc.te.dtype import DType
from relayc.te.tir import BufferStore, PrimExpr, SeqStmt, Stmt, Var

__all__ = ["Emitter", "Index", "Rules"]

STACK_TOTAL = 256 * 1024
"""Maximum bytes of all stack allocations of a function."""


class Index(NamedTuple):
    """``value + constant`` in 64 bits; without a `value` it is the constant. `factor` divides the value (0: it is
    0)."""

    value: str | None
    constant: int
    factor: int = 1

    @property
    def multiple(self) -> int:
        """A divisor of the whole index; 0 when the index is 0."""
        return gcd(self.factor if self.value is not None else 0, self.constant)


@dataclass(frozen=True, slots=True)
class Rules:
    """How nodes become instructions (`visitor.RULES`): class of a node -> function of the emitter and the node.

    A function of an expression returns the operand that holds its value.
    """

    expressions: Mapping[type, Callable[[Emitter, Any], str]]
    statements: Mapping[type, Callable[[Emitter, Any], None]]


@dataclass(slots=True, eq=False)
class Emitter:
    """One function of a module that is being emitted: its text, and what is known at the current point of it.

    `messages` collects the messages of AssertStmts; None where none are allowed. `parallel`: do parallel loops become
    regions? In a function that is outlined from another one, they run serially.
    """

    text: FunctionText
    machine: Machine
    rules: Rules
    messages: list[str] | None = None
    parallel: bool = True
    values: dict[Var, str] = field(default_factory=dict)
    """Variable -> operand that holds its value."""
    indices: dict[Var, Index] = field(default_factory=dict)
    """Loop variables, sizes and values computed from them -> 64-bit index; these have no entry in `values`."""
    sums: dict[PrimExpr, list[tuple[PrimExpr, int]] | None] = field(default_factory=dict)
    """Index that is a sum and was emitted -> its signed terms in the order in which to add them; None: as written."""
    nonnegative: set[Var] = field(default_factory=set)
    """Variables whose values are known not to be negative."""
    ranges: dict[Var, tuple[int, int]] = field(default_factory=dict)
    """Loop variable -> (lower bound, exclusive upper bound), where both are constant."""
    alignment: dict[Var, int] = field(default_factory=dict)
    """Known alignment of pointers, in bytes."""
    unaliased: set[Var] = field(default_factory=set)
    """Pointers to memory that no other live pointer aliases."""
    constant: frozenset[Var] = frozenset()
    """Pointers to memory that nothing writes while the function runs."""
    on_stack: set[Var] = field(default_factory=set)
    """Pointers to scratch memory that LLVM may promote to registers."""
    streamed: frozenset[Var] = frozenset()
    """Pointers of the buffers that may be written by non-temporal stores."""
    streaming_stores: set[Var] = field(default_factory=set)
    """The pointers in `streamed` that such stores were emitted for, in this function and those outlined from it."""
    mask: tuple[str, int] | None = None
    """The mask of active lanes and their number, inside a side of a vector if_then_else. Loads touch no other lanes."""
    shares_base: bool = False
    """Are adjacent elements addressed relative to one base address, kept in a register?"""
    accumulators: list[tuple[DType, str, int]] = field(default_factory=list)
    """Types, addresses and alignments of the accumulators updated in the current step of an unrolled loop."""
    factors: dict[BufferStore, PrimExpr | None] = field(default_factory=dict)
    """Store that was emitted -> the broadcast factor of its accumulation, None where it isn't one."""
    same_factor: list[PrimExpr] = field(default_factory=list)
    """The broadcast factors of the latest accumulations, which multiply the same one by several vectors."""
    accumulating: Var | None = None
    """Pointer of the local memory that a step of accumulations, which has not ended yet, adds to: all that it
    changes."""
    updated: set[object] = field(default_factory=set)
    """The accumulators that the step has updated, by their indices."""
    steps: int = 0
    """Steps of accumulations so far."""
    reads_operands: bool = False
    """Is an accumulation of the step being emitted? Then loads from other memory are those of its operands."""
    stack_left: int = STACK_TOTAL
    workspaces: list[str] = field(default_factory=list)
    """Addresses of the workspace allocated at this point of the function, in the order of allocation."""
    may_leave: bool = False
    """Does the code emitted so far return early when memory for workspace is exhausted?"""

    def value(self, expr: PrimExpr) -> str:
        """Emit an expression; returns the operand that holds its value."""
        return self.rules.expressions[expr.__class__](self, expr)

    def emit(self, stmt: Stmt) -> None:
        """Emit a statement; all but accumulations, and sequences of them, end a step of these."""
        if stmt.__class__ is not BufferStore and stmt.__class__ is not SeqStmt:
            self.accumulating = None
        self.rules.statements[stmt.__class__](self, stmt)

    def child(self, text: FunctionText) -> Emitter:
        """An emitter for a function outlined from this one."""
        return Emitter(
            text, self.machine, self.rules, parallel=False, nonnegative=set(self.nonnegative),
            alignment=dict(self.alignment), streamed=self.streamed, streaming_stores=self.streaming_stores,
        )  # fmt: skip

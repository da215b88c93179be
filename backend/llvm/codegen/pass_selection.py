"""How many of LLVM's passes a module needs, told from its functions in the loop IR."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeGuard

from relayc.backend.llvm.codegen.loops import called_step, is_written_out
from relayc.backend.llvm.codegen.workspace import fits_on_stack
from relayc.te.dtype import INT64
from relayc.te.ir.node import Node
from relayc.te.ir.structural import structural_equal
from relayc.te.ir.visitor import Visitor
from relayc.te.tir import (
    Add,
    Allocate,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Div,
    FloorDiv,
    FloorMod,
    For,
    ForKind,
    IntImm,
    LetStmt,
    Mod,
    Mul,
    PrimExpr,
    PrimFunc,
    Ramp,
    Stmt,
    Var,
    While,
)
from relayc.te.tir.analysis import free_variables

__all__ = ["PassSelection", "select_passes"]


class PassSelection(Enum):
    """How much of LLVM's optimiser a module is given."""

    NONE = "none"
    """Each instruction runs once in a run, as in the entry of a graph, which only calls kernels: passes would find
    little to improve, but they and register allocation would take 0.4 ms for each of the calls, of which a graph may
    have thousands."""
    FEW = "few"
    """The innermost loops are vectorised, with their sums at constant places of local buffers: the sums become
    registers, and most of LLVM's passes, half of its time, would change next to nothing."""
    ALL = "all"
    """Loops that gain from LLVM's vectoriser, as scalar sums of integers do, or from moving computations out of them:
    loads and stores, or those of many addresses."""


_MANY_COSTLY = 8
"""Most divisions and products of variables in a sum that are the same in each iteration, where sizes are dynamic. The
few passes leave them in its loop: convolutions with strides took up to six times as long."""

_DIVISIONS = frozenset((Div, FloorDiv, FloorMod, Mod))


def select_passes(functions: Iterable[PrimFunc]) -> PassSelection:
    """The passes for a module of lowered functions."""
    walks = [_Walk(function) for function in functions]
    if not any(walk.runs_many_times for walk in walks):
        return PassSelection.NONE
    return PassSelection.FEW if all(walk.is_scheduled() for walk in walks) else PassSelection.ALL


@dataclass(eq=False, slots=True)
class _Loop:
    """A loop that stays one, the variables that change with its iterations, and the stores in it.

    Of each store it is known whether it is to a constant place of a local buffer.
    """

    variables: set[Var]
    stores: list[tuple[BufferStore, bool]] = field(default_factory=list)
    is_innermost: bool = True
    invariant: list[PrimExpr] = field(default_factory=list)
    """different divisions and products of variables that are the same in each iteration, as many as matter"""

    @property
    def repeats_addresses(self) -> bool:
        """Is it a sum in registers that would compute many addresses anew in each iteration?"""
        return len(self.invariant) > _MANY_COSTLY and all(is_fixed for _, is_fixed in self.stores)

    @property
    def has_vectors(self) -> bool:
        """Does it store vectors?"""
        return any(store.value.dtype.lanes > 1 for store, _ in self.stores)

    def note_costly(self, value: PrimExpr) -> None:
        """Note a division or product in the loop, if it does not depend on it."""
        known = len(self.invariant) > _MANY_COSTLY or any(structural_equal(value, other) for other in self.invariant)
        if not known and self.variables.isdisjoint(free_variables(value)):
            self.invariant.append(value)


class _Walk(Visitor[None]):
    """What the choice depends on: innermost loops, and the small local buffers that are accessed at constant places."""

    def __init__(self, function: PrimFunc) -> None:
        self.runs_many_times = False
        self._loops: list[_Loop] = []
        self._open: list[_Loop] = []
        self._is_dynamic = any(not isinstance(n, int) for b in function.buffer_map.values() for n in b.shape)
        self._local: set[Buffer] = set()
        self._indexed: set[Buffer] = set()
        self._fixed: set[Var] = set()
        """variables of loops that are written out"""
        self._fixed_indices: dict[PrimExpr, bool] = {}
        self._seen: set[int] = set()
        self.visit(function.body)

    def is_scheduled(self) -> bool:
        """Is every innermost loop vectorised, with its sums in what becomes registers, and few addresses?"""
        inner = [loop for loop in self._loops if loop.is_innermost]
        if any(loop.repeats_addresses for loop in inner):
            return False
        return all(self._is_store_scheduled(*store, loop) for loop in inner for store in loop.stores)

    def _is_store_scheduled(self, store: BufferStore, is_fixed: bool, loop: _Loop) -> bool:
        """Does a store go to a register, or else, as a vector, to another place in each iteration?

        Elements among vectors may go to other places, too: LLVM does not vectorise a loop that has vectors.
        """
        index, kind = store.indices[-1], store.value.dtype
        is_element, is_contiguous = index.dtype.lanes == 1, _is_contiguous(index)
        if is_fixed and store.buffer not in self._indexed and (is_contiguous or kind.is_float):
            return True
        moves = is_contiguous or (is_element and loop.has_vectors)
        return moves and not is_fixed and not loop.variables.isdisjoint(free_variables(index))

    def _is_fixed(self, index: PrimExpr) -> bool:
        """Is it the same in each run of the statement? Its variables are defined by now."""
        known = self._fixed_indices.get(index)
        if known is None:
            known = self._fixed_indices[index] = self._fixed.issuperset(free_variables(index))
        return known

    def visit_For(self, node: For) -> None:
        if called_step(node) is not None:
            return  # one call for a range of iterations
        if isinstance(node.extent, IntImm) and is_written_out(node, node.extent.value):
            self._fixed.add(node.loop_var)
            self.visit(node.body)
            return
        if self._open:
            self._open[-1].is_innermost = False
        self.runs_many_times = True
        outside = self._local
        if node.kind is ForKind.PARALLEL:
            self._local = set()  # a task gets the addresses of others, which are in memory then
        loop = _Loop({node.loop_var})
        self._loops.append(loop)
        self._open.append(loop)
        self.visit(node.body)
        self._open.pop()
        self._local = outside

    def visit_LetStmt(self, node: LetStmt) -> None:
        if self._is_fixed(node.value):
            self._fixed.add(node.var)
        elif self._open:
            self._open[-1].variables.add(node.var)
        self.visit_default(node)

    def visit_While(self, node: While) -> None:
        self.runs_many_times = True
        self.visit_default(node)

    def visit_Allocate(self, node: Allocate) -> None:
        if fits_on_stack(node.buffer):
            self._local.add(node.buffer)
        self.visit(node.body)

    def visit_BufferStore(self, node: BufferStore) -> None:
        kind = node.value.dtype
        self.runs_many_times |= not (kind.is_handle or kind == INT64)  # addresses and sizes for other functions
        if self._open and not (node.predicate is not None and kind.lanes > 1):
            self._open[-1].stores.append((node, node.buffer in self._local and self._is_fixed(node.indices[-1])))
        self._note_access(node)
        self.visit_default(node)

    def visit_default(self, node: Node) -> None:
        for child in node.node_children():
            if isinstance(child, Stmt):
                self.visit(child)
            elif self._local or self._is_dynamic:
                self._visit_expression(child)

    def _visit_expression(self, expr: Node) -> None:
        """Note the loads and costly values in an expression, each once: expressions share operands."""
        stack = [expr]
        while stack:
            node = stack.pop()
            if id(node) not in self._seen:
                self._seen.add(id(node))
                if isinstance(node, BufferLoad):
                    self._note_access(node)
                elif self._open and self._is_dynamic and _is_costly(node):
                    self._open[-1].note_costly(node)
                stack += node.node_children()

    def _note_access(self, node: BufferLoad | BufferStore) -> None:
        if node.buffer in self._local and not self._is_fixed(node.indices[-1]):
            self._indexed.add(node.buffer)


def _is_costly(node: Node) -> TypeGuard[PrimExpr]:
    """Is it a division, or a product of two values that vary?"""
    if isinstance(node, Mul):
        return not isinstance(node.a, IntImm) and not isinstance(node.b, IntImm) and node.dtype.is_integral
    return node.__class__ in _DIVISIONS


def _is_contiguous(index: PrimExpr) -> bool:
    """Is an index of several lanes a ramp of stride 1, or one plus the same number in each lane?"""
    if isinstance(index, Add):
        return (_is_contiguous(index.a) and isinstance(index.b, Broadcast)) or (
            _is_contiguous(index.b) and isinstance(index.a, Broadcast)
        )
    return isinstance(index, Ramp) and isinstance(index.stride, IntImm) and index.stride.value == 1

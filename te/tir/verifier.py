"""The verifier of the loop IR: it catches a pass that breaks an invariant before a code generator does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from relayc.te.dtype import DType
from relayc.te.errors import VerifyError
from relayc.te.ir.module import IRModule
from relayc.te.ir.node import Node
from relayc.te.ir.structural import structural_equal
from relayc.te.ir.transform import Pass, PassInstrument
from relayc.te.ir.visitor import Visitor
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import (
    Binary,
    BufferLoad,
    Call,
    Compare,
    Dim,
    IterVar,
    Let,
    Logical,
    Not,
    PrimExpr,
    ProducerLoad,
    Reduce,
    Select,
    Var,
)  # fmt: skip
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.intrinsics import INTRINSICS
from relayc.te.tir.passes.base import FunctionPass
from relayc.te.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    For,
    IfThenElse,
    LetStmt,
    Stmt,
    While,
)  # fmt: skip

__all__ = ["Verify", "VerifyInstrument", "verify", "verify_memory"]


class _Verifier(Visitor[None]):
    def __init__(self, func: PrimFunc, flat: bool) -> None:
        self.func = func
        self.flat = flat
        self.defined: set[Var] = set()
        self._checked: set[PrimExpr] = set()
        self._values: dict[Var, PrimExpr] = {}
        """What each variable of a `Let` stands for."""

    def fail(self, what: str, node: Any) -> None:
        """Raise the error for a broken invariant."""
        first_lines = "\n".join(str(node).splitlines()[:8])
        raise VerifyError(f"in function {self.func.name}: {what}\n{first_lines}")

    def expect(self, holds: bool, what: str, node: Any) -> None:
        """Fail unless `holds`."""
        if not holds:
            self.fail(what, node)

    def run(self) -> None:
        """Check the whole function."""
        func = self.func
        self.defined.update(func.params)
        for param in func.buffer_map:
            self.expect(param in func.params, f"buffer_map names {param}, which is not a parameter", func.name)
        for buffer in func.buffer_map.values():
            self.defined.add(buffer.data)
            self.defined.update([d for d in _dims(buffer) if isinstance(d, Var)])
        for buffer in func.buffer_map.values():
            self._dims(buffer)
        self.visit(func.body)

    # ---- expressions

    def visit(self, node: Any) -> None:
        if isinstance(node, PrimExpr) and not isinstance(node, Var):
            if node in self._checked:
                return
            self._checked.add(node)
        self._dispatch[node.__class__](self, node)

    def visit_Var(self, node: Var) -> None:
        self.expect(node in self.defined, f"variable {node.name} is used where it is not defined", node)

    def visit_Binary(self, node: Binary | Compare) -> None:
        self.visit_default(node)
        self.expect(node.a.dtype == node.b.dtype, f"operands have types {node.a.dtype} and {node.b.dtype}", node)

    visit_Compare = visit_Binary

    def visit_Logical(self, node: Logical) -> None:
        self.visit_Binary(node)  # type: ignore[arg-type]
        self.expect(node.a.dtype.is_bool, f"operands of `{node.sign}` have type {node.a.dtype}, expected bool", node)

    def visit_Not(self, node: Not) -> None:
        self.visit_default(node)
        self.expect(node.a.dtype.is_bool, f"operand of `not` has type {node.a.dtype}, expected bool", node)

    def visit_Select(self, node: Select) -> None:
        self.visit_default(node)
        self._choice(node.condition, node.true_value.dtype, node.false_value.dtype, node)

    def _choice(self, condition: PrimExpr, a: DType, b: DType, node: PrimExpr) -> None:
        self.expect(a == b, f"the sides have types {a} and {b}", node)
        fits = condition.dtype.is_bool and condition.dtype.lanes in (1, a.lanes)
        self.expect(fits, f"the condition has type {condition.dtype} for sides of type {a}", node)

    def visit_Call(self, node: Call) -> None:
        self.visit_default(node)
        row = INTRINSICS.get(node.op)
        if row is None:
            self.fail(f"unknown intrinsic {node.op!r}", node)
        elif row.arity is not None:
            self.expect(row.arity == len(node.args), f"{node.op} takes {row.arity} arguments", node)
        if node.op == "if_then_else":
            self._choice(node.args[0], node.args[1].dtype, node.args[2].dtype, node)

    def visit_Let(self, node: Let) -> None:
        self.visit(node.value)
        known = self._values.setdefault(node.var, node.value)
        self.expect(structural_equal(known, node.value), f"variable {node.var.name} stands for {known}, too", node)
        self.defined.add(node.var)
        self.visit(node.body)

    def visit_ProducerLoad(self, node: ProducerLoad) -> None:
        self.fail("a read of a tensor is left; it must be lowered to a buffer", node)

    def visit_Reduce(self, node: Reduce) -> None:
        self.fail("a reduction is left; it must be lowered to loops", node)

    def _element(self, buffer: Buffer, indices: tuple[PrimExpr, ...], predicate: PrimExpr | None, node: Any) -> int:
        """Check an access and give its number of lanes."""
        self.expect(buffer.data in self.defined, f"buffer {buffer.name} is used outside its allocation", node)
        self.expect(len(indices) == len(buffer.shape), f"{len(indices)} indices for {len(buffer.shape)} axes", node)
        self.expect(not self.flat or len(indices) == 1, f"buffer {buffer.name} is not flat", node)
        self._dims(buffer)
        for index in indices:
            self.visit(index)
            self.expect(index.dtype.is_integral, f"index of type {index.dtype}, expected an integer", node)
        lanes = indices[-1].dtype.lanes if indices else 1
        self.expect(all(i.dtype.lanes == 1 for i in indices[:-1]), "only the last index may be a vector", node)
        if predicate is not None:
            self.visit(predicate)
            fits = predicate.dtype.is_bool and predicate.dtype.lanes == lanes
            self.expect(fits, f"predicate of type {predicate.dtype} for {lanes} lanes", node)
        return lanes

    def _dims(self, buffer: Buffer) -> None:
        for dim in _dims(buffer):
            if isinstance(dim, PrimExpr):
                self.visit(dim)

    def visit_BufferLoad(self, node: BufferLoad) -> None:
        self._element(node.buffer, node.indices, node.predicate, node)

    # ---- statements

    def visit_BufferStore(self, node: BufferStore) -> None:
        lanes = self._element(node.buffer, node.indices, node.predicate, node)
        self.visit(node.value)
        expected = node.buffer.dtype.with_lanes(lanes) if lanes > 1 else node.buffer.dtype
        self.expect(node.value.dtype == expected, f"a value of type {node.value.dtype}, expected {expected}", node)

    def visit_For(self, node: For) -> None:
        self.visit(node.min)
        self.visit(node.extent)
        kinds = {node.min.dtype, node.extent.dtype, node.loop_var.dtype}
        self.expect(len(kinds) == 1 and node.min.dtype.is_integral, f"loop bounds of types {sorted(kinds)}", node)
        self._define((node.loop_var,), node.body)

    def _define(self, variables: Iterable[Var], body: Stmt) -> None:
        """Check `body` with variables defined in it only."""
        new = [v for v in variables if v not in self.defined]
        self.defined.update(new)
        self.visit(body)
        self.defined.difference_update(new)
        if new:
            self._checked.clear()  # an expression visited inside may use variables that are out of scope now

    def visit_LetStmt(self, node: LetStmt) -> None:
        self.visit(node.value)
        kind = node.value.dtype
        self.expect(node.var.dtype == kind, f"{node.var.name} gets a value of type {kind}", node)
        self._define((node.var,), node.body)

    def visit_Allocate(self, node: Allocate) -> None:
        self._dims(node.buffer)
        self._define((node.buffer.data,), node.body)

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        self.visit(node.value)
        if isinstance(node.subject, IterVar) and node.key in ("thread_extent", "virtual_thread"):
            self._define((node.subject.var,), node.body)
        else:
            self.visit(node.body)

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        self._condition(node.condition, node)
        self.visit(node.then_case)
        if node.else_case is not None:
            self.visit(node.else_case)

    def visit_While(self, node: While) -> None:
        self._condition(node.condition, node)
        self.visit(node.body)

    def visit_AssertStmt(self, node: AssertStmt) -> None:
        self._condition(node.condition, node)
        self.visit_default(node)

    def _condition(self, condition: PrimExpr, node: Stmt) -> None:
        self.visit(condition)
        self.expect(condition.dtype == "bool", f"a condition of type {condition.dtype}, expected bool", node)


def _dims(buffer: Buffer) -> list[Dim]:
    return [*buffer.shape, *(buffer.strides or ()), buffer.elem_offset]


def verify(func: PrimFunc, flat: bool = False) -> None:
    """Check that a function is well formed.

    Variables and buffers are used where they are defined, operand types agree, indices are integers, accesses fit
    their buffers (with one index when `flat`), conditions are bool, no node of tensor expressions is left.
    Raises VerifyError naming the function and showing the place.
    """
    _Verifier(func, flat).run()


def verify_memory(func: PrimFunc, kind: str) -> None:
    """Check that code for a device with threads touches the parameters' memory under a thread axis only.

    Raises VerifyError otherwise: the schedule forgot to bind loops. `kind` is the target's, for the message.
    """
    _MemoryVerifier(func, kind).visit(func.body)


class _MemoryVerifier(Visitor[None]):
    def __init__(self, func: PrimFunc, kind: str) -> None:
        self.func = func
        self.kind = kind
        self.memory = {b.data: b.name for b in func.buffer_map.values()}

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        if node.key != "thread_extent":
            self.visit_default(node)

    def _check(self, node: BufferLoad | BufferStore) -> None:
        name = self.memory.get(node.buffer.data)
        if name is not None:
            raise VerifyError(
                f"in function {self.func.name} for {self.kind}: {name} is accessed directly on the host, "
                f"outside any thread axis. Did you forget to bind a loop, as in s[op].bind(axis, "
                f'te.thread_axis("threadIdx.x"))?\n{str(node).splitlines()[0]}'
            )
        self.visit_default(node)

    def visit_BufferLoad(self, node: BufferLoad) -> None:
        self._check(node)

    def visit_BufferStore(self, node: BufferStore) -> None:
        self._check(node)

    def visit_default(self, node: Node) -> None:
        for child in node.node_children():
            self.visit(child)


@dataclass(frozen=True)
class Verify(FunctionPass):
    """Changes nothing; raises VerifyError when a function is not well formed. See `verify`."""

    flat: bool = False

    def function(self, func: PrimFunc) -> PrimFunc:
        verify(func, self.flat)
        return func


class VerifyInstrument(PassInstrument):
    """Verifies every loop function after every pass, so that the error names the pass that broke it."""

    def after(self, pass_: Pass, module: IRModule) -> None:
        for func in module.functions.values():
            if isinstance(func, PrimFunc):
                try:
                    verify(func)
                except VerifyError as error:
                    error.add_note(f"after pass {pass_.name}")
                    raise



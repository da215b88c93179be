"""Text of the loop IR: Python-like, one statement a line, parentheses only where precedence needs them.

Variables and buffers that share a name are told apart by a suffix (`i`, `i_1`); the text of one function is
deterministic. Importing this module gives every expression, statement and function its `str`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from relayc.te.dtype import BOOL, FLOAT32, INT32
from relayc.te.ir.node import Node
from relayc.te.ir.visitor import Visitor
from relayc.te.tir.buffer import Buffer
from relayc.te.tir.expr import (
    Add,
    Binary,
    Broadcast,
    BufferLoad,
    Call,
    Cast,
    Compare,
    Div,
    FloatImm,
    FloorMod,
    IntImm,
    IterVar,
    Let,
    Logical,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    PrimExpr,
    ProducerLoad,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    StringImm,
    Sub,
    Var,
)  # fmt: skip
from relayc.te.tir.function import PrimFunc
from relayc.te.tir.operators import OPERATIONS
from relayc.te.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    While,
)  # fmt: skip

__all__ = ["Printer", "text"]

_OR, _AND, _NOT, _COMPARE, _BITS, _SUM, _PRODUCT, _ATOM = range(8)
_LOGICAL_LEVEL = {"or": _OR, "and": _AND}
_BIT_SIGNS = {"shift_left": "<<", "shift_right": ">>", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOOPS = {ForKind.SERIAL: "range", ForKind.PARALLEL: "parallel", ForKind.VECTORIZED: "vectorized",
          ForKind.UNROLLED: "unrolled"}  # fmt: skip
_COMBINERS: dict[type, str] = {Add: "sum", Mul: "prod", Min: "min", Max: "max"}
_NAMED_BY_TYPE = ("call_extern", "load_at", "reinterpret", "dlpack_field")


class Printer(Visitor[str]):
    """Writes one piece of IR. An expression's visit gives its text and leaves its precedence in `level`."""

    def __init__(self) -> None:
        self.level = _ATOM
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._lines: list[str] = []
        self._depth = 0

    # ---- names

    def name(self, definition: Var | Buffer | IterVar) -> str:
        """The text that stands for a variable or a buffer, unique in this piece of IR."""
        if isinstance(definition, IterVar):
            definition = definition.var
        known = self._names.get(id(definition))
        if known is not None:
            return known
        if isinstance(definition, Buffer):  # another view of named memory goes by the memory's name
            memory = self._names.get(id(definition.data), "").removesuffix(".data")
            if memory and memory.startswith(definition.name):
                self._names[id(definition)] = memory
                return memory
        wanted, count = definition.name or "v", 0
        unique = wanted
        while unique in self._taken:
            count += 1
            unique = f"{wanted}_{count}"
        self._taken.add(unique)
        self._names[id(definition)] = unique
        if isinstance(definition, Buffer):
            self._names.setdefault(id(definition.data), f"{unique}.data")
        return unique

    # ---- expressions

    def expr(self, value: Any, level: int = _OR) -> str:
        """Text of an expression or a Python value, parenthesised when it binds weaker than `level`."""
        if isinstance(value, IterVar):
            return self.name(value)
        if not isinstance(value, Node):
            return repr(value)
        self.level = _ATOM
        result = self.visit(value)
        weak = self.level < level
        self.level = _ATOM
        return f"({result})" if weak else result

    def exprs(self, values: Iterable[Any]) -> str:
        """Texts of several values, separated by commas."""
        return ", ".join([self.expr(v) for v in values])

    def _infix(self, left: Any, sign: str, right: Any, level: int, left_level: int, right_level: int) -> str:
        result = f"{self.expr(left, left_level)} {sign} {self.expr(right, right_level)}"
        self.level = level
        return result

    def visit_Var(self, node: Var) -> str:
        return self.name(node)

    def visit_IntImm(self, node: IntImm) -> str:
        if node.dtype == BOOL:
            return str(bool(node.value))
        if node.dtype == INT32:
            if node.value < 0:
                self.level = _SUM
            return str(node.value)
        return f"{node.dtype}({node.value})"

    def visit_FloatImm(self, node: FloatImm) -> str:
        if node.dtype == FLOAT32 and node.value - node.value == 0:
            if node.value < 0:
                self.level = _SUM
            return _short_float(node.value)
        return f"{node.dtype}({node.value!r})" if node.value - node.value == 0 else f'{node.dtype}("{node.value}")'

    def visit_StringImm(self, node: StringImm) -> str:
        return repr(node.value)

    def visit_Cast(self, node: Cast) -> str:
        return f"{node.dtype}({self.expr(node.value)})"

    def visit_Binary(self, node: Binary) -> str:
        level = _SUM if isinstance(node, Sub) else _PRODUCT
        return self._infix(node.a, node.sign, node.b, level, level, level + 1)

    def visit_Add(self, node: Add) -> str:
        b = node.b
        if isinstance(b, IntImm) and b.value < 0 and b.dtype == INT32:
            return self._infix(node.a, "-", IntImm(INT32, -b.value), _SUM, _SUM, _PRODUCT)
        return self._infix(node.a, "+", b, _SUM, _SUM, _PRODUCT)

    def visit_Div(self, node: Div) -> str:
        return self.visit_Binary(node) if node.dtype.is_float else f"truncdiv({self.exprs((node.a, node.b))})"

    def visit_Mod(self, node: Mod) -> str:
        return f"truncmod({self.exprs((node.a, node.b))})"

    def visit_FloorMod(self, node: FloorMod) -> str:
        return self._infix(node.a, "%", node.b, _PRODUCT, _PRODUCT, _ATOM)

    def visit_Min(self, node: Min) -> str:
        return f"min({self.exprs((node.a, node.b))})"

    def visit_Max(self, node: Max) -> str:
        return f"max({self.exprs((node.a, node.b))})"

    def visit_Compare(self, node: Compare) -> str:
        return self._infix(node.a, node.sign, node.b, _COMPARE, _BITS, _BITS)

    def visit_Logical(self, node: Logical) -> str:
        level = _LOGICAL_LEVEL[node.sign]
        return self._infix(node.a, node.sign, node.b, level, level, level + 1)

    def visit_Not(self, node: Not) -> str:
        result = f"not {self.expr(node.a, _NOT)}"
        self.level = _NOT
        return result

    def visit_Select(self, node: Select) -> str:
        return f"select({self.exprs((node.condition, node.true_value, node.false_value))})"

    def visit_BufferLoad(self, node: BufferLoad) -> str:
        return self._element(node)

    def _element(self, node: BufferLoad | BufferStore) -> str:
        mask = "" if node.predicate is None else f", where={self.expr(node.predicate)}"
        return f"{self.name(node.buffer)}[{self.exprs(node.indices) or '()'}{mask}]"

    def visit_ProducerLoad(self, node: ProducerLoad) -> str:
        return f"{getattr(node.producer, 'name', 'tensor')}[{self.exprs(node.indices) or '()'}]"

    def visit_Ramp(self, node: Ramp) -> str:
        return f"ramp({self.exprs((node.base, node.stride, node.lanes))})"

    def visit_Broadcast(self, node: Broadcast) -> str:
        return f"broadcast({self.exprs((node.value, node.lanes))})"

    def visit_Shuffle(self, node: Shuffle) -> str:
        return f"shuffle(({self.exprs(node.vectors)}), {list(node.indices)})"

    def visit_Call(self, node: Call) -> str:
        sign = _BIT_SIGNS.get(node.op)
        if sign is not None:
            result = f"{self.expr(node.args[0], _ATOM)} {sign} {self.expr(node.args[1], _ATOM)}"
            self.level = _BITS
            return result
        if node.op in _NAMED_BY_TYPE:
            return f"{node.op}({', '.join([str(node.dtype), *map(self.expr, node.args)])})"
        return f"{node.op}({self.exprs(node.args)})"

    def visit_Let(self, node: Let) -> str:
        return f"let({self.name(node.var)}, {self.expr(node.value)}, {self.expr(node.body)})"

    def visit_Reduce(self, node: Reduce) -> str:
        combined = node.combiner.result
        name = _COMBINERS.get(combined[0].__class__, "reduce") if len(combined) == 1 else "reduce"
        axes = ", ".join([self.name(axis) for axis in node.axis])
        parts = [self.exprs(node.source), f"axis=[{axes}]"]
        if name == "reduce":
            operands = ", ".join([self.name(v) for v in (*node.combiner.lhs, *node.combiner.rhs)])
            parts.insert(0, f"lambda {operands}: ({self.exprs(combined)})")
        if not isinstance(node.condition, IntImm):
            parts.append(f"where={self.expr(node.condition)}")
        if node.init:
            parts.append(f"init=({self.exprs(node.init)})")
        if len(combined) > 1:
            parts.append(f"component={node.value_index}")
        return f"{name}({', '.join(parts)})"

    # ---- statements

    def line(self, words: str) -> None:
        """Emit one line at the current depth."""
        self._lines.append("    " * self._depth + words)

    def block(self, head: str, body: Stmt) -> None:
        """A head line and an indented body."""
        self.line(head)
        self._depth += 1
        self.visit(body)
        self._depth -= 1

    def visit_For(self, node: For) -> None:
        name = self.name(node.loop_var)
        start = "" if isinstance(node.min, IntImm) and node.min.value == 0 else f"{self.expr(node.min)}, extent="
        bounds = f"{_LOOPS[node.kind]}({start}{self.expr(node.extent)})"
        notes = "".join([f"  # {k}: {self.expr(v)}" for k, v in node.annotations.items()])
        self.block(f"for {name} in {bounds}:{notes}", node.body)

    def visit_While(self, node: While) -> None:
        self.block(f"while {self.expr(node.condition)}:", node.body)

    def visit_IfThenElse(self, node: IfThenElse) -> None:
        self.block(f"if {self.expr(node.condition)}:", node.then_case)
        if node.else_case is not None:
            self.block("else:", node.else_case)

    def visit_SeqStmt(self, node: SeqStmt) -> None:
        for stmt in node.stmts:
            self.visit(stmt)

    def visit_LetStmt(self, node: LetStmt) -> None:
        value = self.expr(node.value)
        self.line(f"{self.name(node.var)} = {value}")
        self.visit(node.body)

    def visit_Allocate(self, node: Allocate) -> None:
        self.line(f"{self.name(node.buffer)} = allocate({self._type(node.buffer)})")
        self.visit(node.body)

    def visit_BufferStore(self, node: BufferStore) -> None:
        target = self._element(node)
        self.line(f"{target} = {self.expr(node.value)}")

    def visit_Evaluate(self, node: Evaluate) -> None:
        self.line("pass" if isinstance(node.value, IntImm) else self.expr(node.value))

    def visit_AttrStmt(self, node: AttrStmt) -> None:
        value = self.expr(node.value)
        if isinstance(node.subject, IterVar) and node.key in ("thread_extent", "virtual_thread"):
            subject = node.subject
            word = "thread" if node.key == "thread_extent" else "virtual_thread"
            self.block(f'for {self.name(subject)} in {word}("{subject.thread_tag}", {value}):', node.body)
            return
        subject = node.subject
        named = self.name(subject) if isinstance(subject, Var | Buffer | IterVar) else self.expr(subject)
        self.line(f'attribute({named}, "{node.key}", {value})')
        self.visit(node.body)

    def visit_AssertStmt(self, node: AssertStmt) -> None:
        args = f", {self.exprs(node.args)}" if node.args else ""
        self.line(f"assert {self.expr(node.condition)}, {node.message!r}{args}")
        self.visit(node.body)

    def _type(self, buffer: Buffer) -> str:
        parts = [f"[{self.exprs(buffer.shape)}]", f'"{buffer.dtype}"']
        if buffer.strides is not None:
            parts.append(f"strides=[{self.exprs(buffer.strides)}]")
        if not (isinstance(buffer.elem_offset, int) and buffer.elem_offset == 0):
            parts.append(f"elem_offset={self.expr(buffer.elem_offset)}")
        if buffer.scope != "global":
            parts.append(f'scope="{buffer.scope}"')
        return ", ".join(parts)

    def visit_PrimFunc(self, node: PrimFunc) -> None:
        for param, buffer in node.buffer_map.items():
            self._names[id(param)] = self.name(buffer)
        params: list[str] = []
        for param in node.params:
            buffer = node.buffer_map.get(param)
            kind = str(param.dtype) if buffer is None else f"Buffer({self._type(buffer)})"
            params.append(f"{self.name(param)}: {kind}")
        attrs = {k: v for k, v in node.attrs.items() if k not in ("global_symbol", "target")}  # as long as all the rest
        if attrs:
            self.line("# " + ", ".join([f"{k}: {v}" for k, v in attrs.items()]))
        self.block(f"def {node.name}({', '.join(params)}):", node.body)

    def lines(self, node: Stmt | PrimFunc) -> str:
        """The text of a statement or a function."""
        self.visit(node)
        return "\n".join(self._lines)


def _short_float(value: float) -> str:
    """The shortest decimal that reads back as this float32."""
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if np.float32(short) == np.float32(value):
            return repr(short)
    return repr(value)


def text(node: Any) -> str:
    """The text of an expression, a statement or a function."""
    printer = Printer()
    return printer.expr(node) if isinstance(node, PrimExpr) else printer.lines(node)


OPERATIONS["text"] = text

"""Prints graphs in the style of Relay: one numbered value per line, scopes in braces, large constants in a section.

    def @main(%x: Tensor[(1, 8), float32]) -> Tensor[(1, 4), float32] {
      %0 = nn.dense(%x, meta[0]) /* ty=Tensor[(1, 4), float32] */;
      %1 = add(%0, float32(1));
      %1
    }

`relay.parser` reads it back. Attributes at their default are left out. Importing this module gives expressions `str`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from relayc.relay.analysis import Scope, evaluation_order, scopes
from relayc.relay.argument_types import checked
from relayc.relay.expr import OPERATIONS, Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var
from relayc.relay.op.base import OpDef
from relayc.te.ir import IRModule
from relayc.te.tir import PrimExpr

__all__ = ["INLINE_ELEMENTS", "astext", "attribute_texts"]

INLINE_ELEMENTS = 8
"""Constants of at most this many elements are written in place."""

Annotate = Callable[[Expr], str]


@checked
def astext(program: Expr | IRModule, show_meta_data: bool = True, annotate: Annotate | None = None) -> str:
    """The whole program as text.

    `show_meta_data` adds the section with large constants, which the parser needs. `annotate` gives a comment for an
    expression (TVM: `mod.astext(show_meta_data, annotate)`); the default comment is its type.
    """
    printer = _Printer(annotate if annotate is not None else _type_comment)
    if isinstance(program, IRModule):
        parts = [printer.global_function(name, f) for name, f in program.functions.items()]
    elif isinstance(program, Function):
        parts = [printer.function_value(program)]
    else:
        where = _Layout(program)
        parts = ["\n".join(printer.scope_lines(program, where, "", where.placed[id(program)]))]
    if show_meta_data and printer.constants:
        parts.append(_metadata(printer.constants))
    return "\n\n".join(parts) + ("\n" if isinstance(program, IRModule) else "")


def _type_comment(e: Expr) -> str:
    return f"ty={e.ty}" if isinstance(e, Call) else ""


def attribute_text(value: Any) -> str:
    """The text of an attribute: Python literals, symbolic expressions as they print."""
    if isinstance(value, str):
        return json.dumps(str(value))
    if isinstance(value, tuple):
        inner = ", ".join(map(attribute_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value) if isinstance(value, PrimExpr) else repr(value)


class _Layout:
    """The scope in which each expression is evaluated, in evaluation order."""

    def __init__(self, root: Expr) -> None:
        self.placed, self.opened = scopes(root)
        self.evaluated_in: dict[int, list[Expr]] = {}
        for scope in (*self.placed.values(), *self.opened.values()):
            self.evaluated_in.setdefault(id(scope), [])
        for e in evaluation_order(root):
            self.evaluated_in[id(self.placed[id(e)])].append(e)


class _Printer:
    """The names and constants of one text."""

    def __init__(self, annotate: Annotate) -> None:
        self.annotate = annotate
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        self.constants: list[Constant] = []
        self.counter = 0

    def global_function(self, name: str, function: Function) -> str:
        self.counter = 0
        return f"def @{name}" + self._function(function, _Layout(function), "")

    def function_value(self, function: Function) -> str:
        return "fn " + self._function(function, _Layout(function), "")

    def _function(self, function: Function, where: _Layout, indent: str) -> str:
        params = ", ".join(f"{self._variable(p)}: {p.ty}" for p in function.params)
        attrs = ", ".join(f"{k}={attribute_text(v)}" for k, v in function.attrs.items())
        head = f"({params}) -> {function.ret_type}" + (f" [{attrs}]" if attrs else "")
        opened = where.opened[(id(function), "body")]
        lines = self.scope_lines(function.body, where, indent + "  ", opened)
        return "\n".join([head + " {", *lines, indent + "}"])

    def scope_lines(self, root: Expr, where: _Layout, indent: str, scope: Scope) -> list[str]:
        """The lines of one scope: a line for each value evaluated in it, then the result. A `Let` result runs on."""
        lines: list[str] = []
        while True:
            for e in where.evaluated_in[id(scope)]:
                line = None if e is root and isinstance(e, Let) else self._line(e, where, indent)
                if line is not None:
                    lines.append(indent + line)
            if not isinstance(root, Let):
                return [*lines, indent + self.name(root)]
            lines.append(self._let(root, indent))
            root, scope = root.body, where.opened[(id(root), "body")]

    def _let(self, e: Let, indent: str) -> str:
        return f"{indent}let {self._variable(e.var)} = {self.name(e.value)};"

    def _line(self, e: Expr, where: _Layout, indent: str) -> str | None:
        """The definition of a value; None for an expression that is printed inline."""
        if isinstance(e, Call):
            attributes = attribute_texts(e.op) if isinstance(e.op, OpDef) else []
            right = f"{self._callee(e)}({', '.join([*map(self.name, e.args), *attributes])})"
        elif isinstance(e, Tuple):
            inner = ", ".join(map(self.name, e.fields))
            right = f"({inner},)" if len(e.fields) == 1 else f"({inner})"
        elif isinstance(e, Function):
            right = "fn " + self._function(e, where, indent)
        elif isinstance(e, Let):
            body = self.scope_lines(e.body, where, indent + "  ", where.opened[(id(e), "body")])
            right = "\n".join(["{", self._let(e, indent + "  "), *body, indent + "}"])
        elif isinstance(e, If):
            right = self._if(e, where, indent)
        else:
            return None
        comment = self.annotate(e)
        name = self._fresh(e)
        return f"{name} = {right}" + (f" /* {comment} */;" if comment else ";")

    def _if(self, e: If, where: _Layout, indent: str) -> str:
        parts = [f"if ({self.name(e.cond)}) " + "{"]
        for field, branch in (("true_branch", e.true_branch), ("false_branch", e.false_branch)):
            scope = where.opened[(id(e), field)]
            parts.extend(self.scope_lines(branch, where, indent + "  ", scope))
            parts.append(indent + ("} else {" if field == "true_branch" else "}"))
        return "\n".join(parts)

    def _callee(self, call: Call) -> str:
        return call.op.name if isinstance(call.op, OpDef) else self.name(call.op)

    def name(self, e: Expr) -> str:
        """The name under which an expression is used."""
        suffix = ""
        while isinstance(e, TupleGetItem):
            suffix = f".{e.index}{suffix}"
            e = e.tuple_value
        if isinstance(e, GlobalVar):
            return f"@{e.name}"
        if isinstance(e, Constant):
            return self._constant(e)
        if isinstance(e, Var):
            return self._variable(e) + suffix
        return self.names[id(e)] + suffix

    def _fresh(self, e: Expr) -> str:
        self.names[id(e)] = f"%{self.counter}"
        self.counter += 1
        return self.names[id(e)]

    def _variable(self, v: Var) -> str:
        known = self.names.get(id(v))
        if known is None:
            base = "".join(c if c.isalnum() or c == "_" else "_" for c in v.name) or "v"
            base = f"v{base}" if base[0].isdigit() else base
            known, n = f"%{base}", 0
            while known in self.taken:
                n += 1
                known = f"%{base}_{n}"
            self.taken.add(known)
            self.names[id(v)] = known
        return known

    def _constant(self, e: Constant) -> str:
        known = self.names.get(id(e))
        if known is None:
            known = _literal(e) if _is_inline(e) else f"meta[{len(self.constants)}]"
            if not _is_inline(e):
                self.constants.append(e)
            self.names[id(e)] = known
        return known


def attribute_texts(op: OpDef) -> list[str]:
    """An operator's attributes as they are printed, those at their default left out."""
    return [
        f"{name}={attribute_text(value)}"
        for name, default in _defaults(type(op))
        if not _same_value(value := getattr(op, name), default)
    ]


@cache
def _defaults(op: type[OpDef]) -> list[tuple[str, Any]]:
    """The names and default values of an operator's attributes."""
    return [(f.name, f.default) for f in dataclasses.fields(op)]  # type: ignore[arg-type]


def _same_value(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _is_inline(e: Constant) -> bool:
    return e.data.size <= INLINE_ELEMENTS and e.data.ndim <= 1 and e.data.dtype.kind in "biufV"


def _literal(e: Constant) -> str:
    values = e.data.astype("float64") if e.ty.dtype.is_float or e.data.dtype.kind == "V" else e.data
    return f"{e.ty.dtype}({values.tolist()!r})"


def _metadata(constants: Iterable[Constant]) -> str:
    """The section of large constants: JSON with base64 data, little-endian and row-major."""
    rows = [
        {"dtype": str(c.ty.dtype), "shape": list(c.data.shape), "data": _encode(c.data)} for c in constants
    ]  # fmt: skip
    return "#[metadata]\n" + json.dumps({"constants": rows}, indent=1)


def _encode(data: np.ndarray[Any, Any]) -> Any:
    if data.dtype.kind in "OSUT":
        return [str(s) for s in data.ravel().tolist()]
    return base64.b64encode(np.ascontiguousarray(data).tobytes()).decode("ascii")


def _text(e: Any, _: Any) -> str:
    return astext(e, show_meta_data=False)


def _global_text(function: Any, name: str) -> str:
    return _Printer(_type_comment).global_function(name, function)


OPERATIONS["text"] = _text
OPERATIONS["global_text"] = _global_text

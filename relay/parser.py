"""Parses the text that `relay.printer` writes: `parse(astext(module))` is structurally equal to `module`.

Operators may be nested, as in handwritten text: `nn.relu(add(%x, %y))`.

    module    = function*  ["#[metadata]" json]
    function  = "def" @name rest         rest  = "(" (%v ":" type),* ")" "->" type ["[" name "=" value, ... "]"] block
    block     = "{" ("let" %v "=" operand ";" | %n "=" value ";")* operand "}"
    value     = "fn" rest | "if" "(" operand ")" block "else" block | block | "(" operand,* ")" | callee "(" operand,*
                name "=" attribute,* ")"
    operand   = %n ["." field]* | @name | "meta" "[" n "]" | dtype "(" number or list ")" | operator "(" ... ")"
    type      = "Tensor" "[" shape "," dtype "]" | dtype | "(" type,* ")" | "fn" "(" type,* ")" "->" type

Names of symbolic dimensions stand for one variable each in the whole text.
"""

from __future__ import annotations

import ast
import base64
import json
import operator
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from relayc.relay.argument_types import checked
from relayc.relay.errors import ParseError, UnknownOperatorError
from relayc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    numpy_dtype,
)
from relayc.relay.op.base import get_op
from relayc.relay.type import FuncType, TensorType, TupleType, Type
from relayc.te import tir
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule

__all__ = ["fromtext", "parse"]

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|/\*.*?\*/)+)|(?P<string>"(?:\\.|[^"\\])*")|(?P<local>%\w+(?:\.\d+)*)|(?P<global>@[\w.$-]+)
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_][\w.]*)|(?P<sign>->|//|[()\[\]{}:;=,+*/%<>-])""",
    re.VERBOSE | re.DOTALL,
)
_METADATA = "#[metadata]"
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_DIM_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": tir.minimum, "max": tir.maximum}
_LITERALS = {"nan": float("nan"), "inf": float("inf"), "True": True, "False": False, "None": None}


_MOST_LEVELS = 100


@checked
def parse(text: str) -> IRModule:
    """The module written in `text`; a lone `fn (...) {...}` becomes its "main" (TVM: `relay.parse`).

    Raises ParseError with line and column for text that is no program, TypeInferenceError for an ill-typed one.
    """
    return _Parser(text).module()


fromtext = parse


class _Parser:
    """Recursive descent over tokens; recursion follows the nesting of scopes only."""

    def __init__(self, text: str) -> None:
        body, _, meta = text.partition(_METADATA)
        self.text = body
        self.constants = _read_metadata(meta) if meta else []
        self.tokens: list[tuple[str, str, int]] = []
        self.at, self.depth = 0, 0
        self.symbols: dict[str, tir.Var] = {}
        self.globals: dict[str, GlobalVar] = {}
        self._scan()

    def _scan(self) -> None:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                self._fail(f"unexpected character {self.text[position]!r}", position)
            if match.lastgroup != "space":
                assert match.lastgroup is not None
                self.tokens.append((match.lastgroup, match[0], position))
            position = match.end()
        self.tokens.append(("end", "end of text", position))

    def _fail(self, message: str, position: int | None = None) -> NoReturn:
        position = self.tokens[self.at][2] if position is None else position
        line = self.text.count("\n", 0, position) + 1
        start = self.text.rfind("\n", 0, position) + 1
        shown = self.text[start:].split("\n", 1)[0]
        column = position - start
        raise ParseError(f"line {line}, column {column + 1}: {message}\n  {shown}\n  {' ' * column}^")

    @property
    def current(self) -> str:
        return self.tokens[self.at][1]

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    def take(self, expected: str | None = None) -> str:
        """The current token; it must be `expected` if that is specified."""
        token = self.current
        if expected is not None and token != expected:
            self._fail(f"expected {expected!r}, found {token!r}")
        self.at += 1
        return token

    def take_kind(self, kind: str, what: str) -> str:
        if self.kind != kind:
            self._fail(f"expected {what}, found {self.current!r}")
        return self.take()

    def module(self) -> IRModule:
        if self.current == "fn":
            self.take()
            functions = {"main": self.function({})}
        else:
            self._read_signatures()
            functions: dict[str, Function] = {}
            while self.current == "def":
                self.take()
                name = self.take_kind("global", "a function name such as @main")[1:]
                functions[name] = self.function({})
        if self.kind != "end":
            self._fail("expected 'def' or the end of the text")
        return IRModule(functions)

    def _read_signatures(self) -> None:
        """Types of all global functions, so that they can call each other."""
        while self.kind != "end":
            self.take("def")
            name = self.take_kind("global", "a function name such as @main")[1:]
            params, result = self.signature()
            self.globals[name] = GlobalVar(name, FuncType([p.ty for p in params.values()], result))
            self._skip_until("{")
            self._skip_brackets()
        self.at = 0

    def _skip_until(self, sign: str) -> None:
        while self.current != sign:
            if self.kind == "end":
                self._fail(f"expected {sign!r}")
            self.at += 1

    def _skip_brackets(self) -> None:
        """Skip the current bracket and everything up to its closing partner."""
        depth = 0
        while True:
            if self.kind == "end":
                self._fail("a bracket is not closed")
            depth += (self.current in _CLOSING) - (self.current in _CLOSING.values())
            self.at += 1
            if depth == 0:
                return

    def signature(self) -> tuple[dict[str, Var], Type]:
        params: dict[str, Var] = {}
        self.take("(")
        while self.current != ")":
            name = self.take_kind("local", "a parameter such as %x")
            self.take(":")
            params[name] = Var(name[1:], self.type())
            if self.current != ")":
                self.take(",")
        self.take(")")
        self.take("->")
        return params, self.type()

    def function(self, outer: dict[str, Expr]) -> Function:
        start = self.tokens[self.at][2]
        params, result = self.signature()
        attrs: dict[str, Any] = {}
        if self.current == "[":
            self.take()
            while self.current != "]":
                name = self.take_kind("word", "an attribute name")
                self.take("=")
                attrs[name] = self.attribute()
                if self.current != "]":
                    self.take(",")
            self.take("]")
        body = self.block({**outer, **params})
        if body.ty is not result:
            self._fail(f"the function is declared to give {result} but gives {body.ty}", start)
        return Function(tuple(params.values()), body, attrs)

    @contextmanager
    def _nested(self) -> Generator[None]:
        """Enter one level of nesting, which is limited because the parser is recursive."""
        self.depth += 1
        if self.depth > _MOST_LEVELS:
            self._fail(f"scopes and calls nested in more than {_MOST_LEVELS} levels; name values, %0 = ...;")
        yield
        self.depth -= 1

    def block(self, names: dict[str, Expr]) -> Expr:
        """A scope; `names` is this scope's own copy."""
        with self._nested():
            return self._block(names)

    def _block(self, names: dict[str, Expr]) -> Expr:
        self.take("{")
        lets: list[tuple[Var, Expr]] = []
        while not (self.tokens[self.at + 1][1] == "}" or (self.kind != "local" and self.current != "let")):
            if self.current == "let":
                self.take()
                name = self.take_kind("local", "a variable such as %v")
                self.take("=")
                value = self.operand(names)
                variable = Var(name[1:], value.ty)
                names[name] = variable
                lets.append((variable, value))
            else:
                name = self.take_kind("local", "a value such as %0")
                self.take("=")
                names[name] = self.value(names)
            self.take(";")
        result = self.operand(names)
        self.take("}")
        for variable, value in reversed(lets):
            result = Let(variable, value, result)
        return result

    def value(self, names: dict[str, Expr]) -> Expr:
        if self.current == "fn":
            self.take()
            return self.function(names)
        if self.current == "if":
            self.take()
            self.take("(")
            cond = self.operand(names)
            self.take(")")
            chosen = self.block(dict(names))
            self.take("else")
            return If(cond, chosen, self.block(dict(names)))
        if self.current == "{":
            return self.block(dict(names))
        if self.current == "(":
            return Tuple(tuple(self.operands(names)))
        return self.call(names)

    def call(self, names: dict[str, Expr]) -> Expr:
        at = self.tokens[self.at][2]
        if self.kind in ("local", "global"):
            callee = self.operand(names)
            assert isinstance(callee, Function | GlobalVar | Var)
            return Call(callee, tuple(self.operands(names)))
        op_name = self.take_kind("word", "an operator, a function or '('")
        attrs: dict[str, Any] = {}
        args = self.operands(names, attrs)
        try:
            made = get_op(op_name)(**attrs)
        except (TypeError, UnknownOperatorError) as error:
            self._fail(f"{op_name}: {error}" if isinstance(error, TypeError) else str(error), at)
        return Call(made, tuple(args))

    def operands(self, names: dict[str, Expr], attrs: dict[str, Any] | None = None) -> list[Expr]:
        """`(a, b, name=value)`; attributes go to `attrs` where they are allowed."""
        found: list[Expr] = []
        self.take("(")
        while self.current != ")":
            if attrs is not None and self.kind == "word" and self.tokens[self.at + 1][1] == "=":
                name = self.take()
                self.take("=")
                attrs[name] = self.attribute()
            else:
                found.append(self.operand(names))
            if self.current != ")":
                self.take(",")
        self.take(")")
        return found

    def operand(self, names: dict[str, Expr]) -> Expr:
        if self.kind == "local":
            name, *fields = self.take().split(".")
            if name not in names:
                self.at -= 1
                self._fail(f"{name} is not defined here")
            found = names[name]
            for index in fields:
                found = TupleGetItem(found, int(index))
            return found
        if self.kind == "global":
            name = self.take()[1:]
            if name not in self.globals:
                self.at -= 1
                self._fail(f"there is no function @{name}; defined are: {', '.join(self.globals)}")
            return self.globals[name]
        if self.current == "meta":
            self.take()
            self.take("[")
            index = int(self.take_kind("number", "a number"))
            self.take("]")
            if index >= len(self.constants):
                self._fail(f"meta[{index}] is not in the metadata section; print with show_meta_data=True")
            return self.constants[index]
        if self.kind == "word" and not _names_dtype(self.current):
            with self._nested():
                return self.call(names)
        return self.literal()

    def literal(self) -> Constant:
        name = self.take_kind("word", "an operand: %value, @function, meta[n] or dtype(number)")
        element = self._dtype(name)
        self.take("(")
        value = self.attribute()
        self.take(")")
        return Constant(np.asarray(value).astype(numpy_dtype(element)))

    def _dtype(self, name: str) -> str:
        try:
            return dtype(name)
        except ValueError as error:
            self.at -= 1
            self._fail(str(error))

    def type(self) -> Type:
        if self.current == "Tensor":
            self.take()
            self.take("[")
            shape = self.attribute()
            self.take(",")
            result = TensorType(shape, self._dtype(self.take_kind("word", "an element type")))
            self.take("]")
            return result
        if self.current == "fn":
            self.take()
            args = self.types()
            self.take("->")
            return FuncType(args, self.type())
        if self.current == "(":
            return TupleType(self.types())
        return TensorType((), self._dtype(self.take_kind("word", "a type")))

    def types(self) -> list[Type]:
        found: list[Type] = []
        self.take("(")
        while self.current != ")":
            found.append(self.type())
            if self.current != ")":
                self.take(",")
        self.take(")")
        return found

    def attribute(self) -> Any:
        """A Python literal or symbolic expression, up to the next comma or closing bracket on this level."""
        start = self.tokens[self.at][2]
        while self.current not in (",", ")", "]", "}"):
            if self.kind == "end":
                self._fail("expected a value")
            if self.current in _CLOSING:
                self._skip_brackets()
            else:
                self.at += 1
        source = self.text[start : self.tokens[self.at][2]].strip()
        try:
            return self._evaluate(ast.parse(source, mode="eval").body)
        except (SyntaxError, ValueError, CompileError) as error:
            self._fail(f"not a value: {source} ({error})", start)

    def _evaluate(self, e: ast.expr) -> Any:
        match e:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return _LITERALS[name] if name in _LITERALS else self.symbols.setdefault(name, tir.Var(name))
            case ast.Tuple(elts=items):
                return tuple([self._evaluate(i) for i in items])
            case ast.List(elts=items):
                return [self._evaluate(i) for i in items]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._evaluate(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self._evaluate(left), self._evaluate(right))
            case ast.Call(func=ast.Name(id=name), args=args) if name in _DIM_FUNCTIONS:
                return _DIM_FUNCTIONS[name](*[self._evaluate(a) for a in args])
            case _:
                raise ValueError("expected numbers, strings, tuples or arithmetic of dimensions")


def _names_dtype(word: str) -> bool:
    try:
        dtype(word)
    except ValueError:
        return False
    return True


def _read_metadata(text: str) -> list[Constant]:
    try:
        rows: list[dict[str, Any]] = json.loads(text)["constants"]
        return [_constant(row) for row in rows]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ParseError(f"the metadata section is damaged: {error}") from None


def _constant(row: dict[str, Any]) -> Constant:
    element, shape = numpy_dtype(row["dtype"]), tuple(row["shape"])
    if isinstance(row["data"], list):
        return Constant(np.array(row["data"], dtype=object).reshape(shape))
    return Constant(np.frombuffer(base64.b64decode(row["data"], validate=True), dtype=element).reshape(shape))

"""Expressions of the graph IR (TVM: Relay).

    expr = Var | GlobalVar | Constant
         | Call(op, args)                    op = operator with attributes | Function | GlobalVar | Var
         | Tuple(fields) | TupleGetItem(tuple_value, index)
         | Function(params, body, attrs)
         | Let(var, value, body) | If(cond, true_branch, false_branch)

A program is a DAG: an expression used twice is the same object and is evaluated once. Every expression is typed at
birth (`expr.ty`): making an ill-typed call raises TypeInferenceError. Nodes are immutable and compared by identity.
Graphs are deep (10,000 calls in a chain): walk them with `relay.analysis.evaluation_order`, never recursively.
"""
# A node's field `ty` stands for the read-only property that its base promises.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy as np

from relayc.relay.errors import MalformedGraphError, TypeInferenceError
from relayc.relay.structural import bind_definitions, equal_graphs, same_array
from relayc.relay.type import FuncType, TensorType, TupleType, Type, as_tuple
from relayc.te.dtype import DType, dtype
from relayc.te.errors import DTypeError
from relayc.te.ir import Node, Span, node, post_order
from relayc.te.ir.structural import StructuralEqual
from relayc.te.tir import Dim

if TYPE_CHECKING:
    from relayc.relay.op.base import OpDef

__all__ = [
    "Call",
    "Constant",
    "Expr",
    "Function",
    "GlobalVar",
    "If",
    "Let",
    "Tuple",
    "TupleGetItem",
    "Var",
    "const",
    "numpy_dtype",
    "numpy_dtype_name",
    "var",
]

Attrs = Mapping[str, Any]


OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Functions looked up by name when used: `relay.op.broadcast` adds arithmetic, `relay.printer` the text form."""


class ExprOperators:
    """Python operators on expressions."""

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # a numpy array as left operand leaves the operation to us

    def __add__(self, other: Any) -> Call:
        return OPERATIONS["add"](self, other)

    def __radd__(self, other: Any) -> Call:
        return OPERATIONS["add"](other, self)

    def __sub__(self, other: Any) -> Call:
        return OPERATIONS["subtract"](self, other)

    def __rsub__(self, other: Any) -> Call:
        return OPERATIONS["subtract"](other, self)

    def __mul__(self, other: Any) -> Call:
        return OPERATIONS["multiply"](self, other)

    def __rmul__(self, other: Any) -> Call:
        return OPERATIONS["multiply"](other, self)

    def __truediv__(self, other: Any) -> Call:
        return OPERATIONS["divide"](self, other)

    def __rtruediv__(self, other: Any) -> Call:
        return OPERATIONS["divide"](other, self)

    def __neg__(self) -> Call:
        return OPERATIONS["negative"](self, None)


@node
class Expr(ExprOperators, Node):
    """Base of expressions."""

    span: Span | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:

        @property
        def ty(self) -> Type: ...

    @property
    def tensor_type(self) -> TensorType:
        """`ty` where a tensor is expected. Raises TypeInferenceError for tuples and functions."""
        if not isinstance(self.ty, TensorType):
            raise TypeInferenceError(f"expected a tensor, got a value of type {self.ty}{_at(self.span)}")
        return self.ty

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of a tensor-valued expression."""
        return self.tensor_type.shape

    @property
    def dtype(self) -> DType:
        """The element type of a tensor-valued expression."""
        return self.tensor_type.dtype

    def structural_equal_to(self, other: Any, equal: StructuralEqual) -> bool:
        """Equal graphs: same operators, attributes, constants and sharing; bound variables matched pairwise."""
        return equal_graphs(self, other, equal)

    def same_data(self, other: Any, equal: StructuralEqual) -> bool:
        """Compare everything but the sub-expressions, and bind the variables that the node defines."""
        for name in self.binders:
            if not bind_definitions(getattr(self, name), getattr(other, name), equal):
                return False
        return all(equal(getattr(self, name), getattr(other, name)) for name in self.data_fields)

    def __str__(self) -> str:
        return OPERATIONS["text"](self, None)

    __repr__ = __str__


def _at(span: Span | None) -> str:
    return f" at {span}" if span is not None else ""


@node
class Var(Expr):
    """A variable: a parameter of a function or the name of a `Let`. Its identity is the object."""

    name: str
    ty: Type  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        _check_name(self, Type)

    def same_data(self, other: Var, equal: StructuralEqual) -> bool:
        return equal.same_definition(self, other) and equal(self.ty, other.ty)


@node
class GlobalVar(Expr):
    """A function of the module, by name."""

    name: str
    ty: FuncType  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        _check_name(self, FuncType)


@node
class Constant(Expr):
    """A tensor known at compile time. The array is not copied and must not be written to afterwards.

    Scalars, which numpy returns for arrays without dimensions, become arrays here.
    """

    data: np.ndarray[Any, Any]
    ty: TensorType = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.data, np.ndarray):
            self.data = np.asarray(self.data)  # type: ignore[misc]
        if self.data.dtype.kind == "O" and not all(isinstance(item, str) for item in self.data.flat):
            raise TypeInferenceError(f"a constant of {self.data!r}; expected numbers or strings")
        self.ty = TensorType(self.data.shape, numpy_dtype_name(self.data.dtype))  # type: ignore[misc]

    def same_data(self, other: Constant, equal: StructuralEqual) -> bool:
        return same_array(self.data, other.data)


@node
class Tuple(Expr):
    """Several values as one."""

    fields: tuple[Expr, ...]
    ty: TupleType = field(init=False)

    def __post_init__(self) -> None:
        self.fields = as_tuple("a tuple", self.fields, "expressions")  # type: ignore[misc]
        self.ty = TupleType(_types("a tuple", self.fields))  # type: ignore[misc]


@node
class TupleGetItem(Expr):
    """Field `index` of a tuple."""

    tuple_value: Expr
    index: int
    ty: Type = field(init=False)

    def __post_init__(self) -> None:
        (of,) = _types("a field of a tuple", (self.tuple_value,))
        known = range(len(of.fields)) if isinstance(of, TupleType) else ()
        if not isinstance(self.index, int | np.integer) or self.index not in known:
            raise TypeInferenceError(f"no field {self.index!r} in a value of type {of}{_at(self.span)}")
        self.ty = of.fields[self.index]  # type: ignore[misc]


@node
class Function(Expr):
    """A function value. Attributes: "primitive" (a fused group: one kernel), "name", and annotations of passes."""

    params: tuple[Var, ...]
    body: Expr
    attrs: Attrs = field(default_factory=dict)
    ty: FuncType = field(init=False)
    _below: tuple[Expr, ...] | None = field(init=False, default=())

    binders = ("params",)

    def __post_init__(self) -> None:
        self.params = as_tuple("a function's parameters", self.params, "expressions")  # type: ignore[misc]
        for number, param in enumerate(self.params):
            if not isinstance(param, Var):
                raise TypeInferenceError(f"parameter {number} of a function is {param!r}; expected a relay.Var")
        (result,) = _types("a function's body", (self.body,))
        if not isinstance(self.attrs, Mapping):
            raise TypeInferenceError(f"attributes of a function are {self.attrs!r}; expected a dictionary")
        self.ty = FuncType([p.ty for p in self.params], result)  # type: ignore[misc]

    def order_below(self) -> tuple[Expr, ...] | None:
        """Every expression below, once each, operands first; None where a `Let` makes the order of evaluation another.

        Raises MalformedGraphError when the graph has a cycle.
        """
        if self._below == ():
            order = cast("tuple[Expr, ...]", tuple(post_order(self.body)))
            _require_no_cycle(order)
            self._below = None if Let in set(map(type, order)) else order  # type: ignore[misc]
        return self._below

    @property
    def ret_type(self) -> Type:
        return self.body.ty

    @property
    def results(self) -> tuple[Expr, ...]:
        """The fields of a body that is a tuple; any other body alone."""
        return self.body.fields if isinstance(self.body, Tuple) else (self.body,)

    @property
    def is_primitive(self) -> bool:
        """Is this one fused group?"""
        return bool(self.attrs.get("primitive", False))

    def with_body(self, body: Expr) -> Function:
        """This function with another body; itself if the body is the same."""
        return self if body is self.body else self.replace(body=body)

    def with_attr(self, key: str, value: Any) -> Function:
        """This function with one attribute set."""
        return self.replace(attrs={**self.attrs, key: value})

    def global_text(self, name: str) -> str:
        """The text of this function, printed as the function `name` of a module."""
        return OPERATIONS["global_text"](self, name)

    def __call__(self, *args: Expr, span: Span | None = None) -> Call:
        return Call(self, args, span=span)


@node
class Call(Expr):
    """`op` applied to `args`. `op` is an operator (an `OpDef`, which carries the attributes) or a function."""

    op: OpDef | Function | GlobalVar | Var
    args: tuple[Expr, ...]
    ty: Type = field(init=False)

    @property
    def operator(self) -> OpDef:
        """The operator that is called. Raises TypeInferenceError for the call of a function."""
        if isinstance(self.op, Function | GlobalVar | Var):
            raise TypeInferenceError(f"expected the call of an operator, got that of a function{_at(self.span)}")
        return self.op

    def __post_init__(self) -> None:
        op = self.op
        if isinstance(op, type) or not (isinstance(op, Expr) or hasattr(op, "result_type")):
            raise TypeInferenceError(f"{op!r} can't be called; expected an operator with its attributes, or a function")
        if type(self.args) is not tuple:
            self.args = as_tuple("the arguments of a call", self.args, "expressions")  # type: ignore[misc]
        try:
            types = [a.ty for a in self.args]
        except AttributeError:
            types = _types("a function" if isinstance(op, Expr) else op.name, self.args)
        if isinstance(op, Expr):
            self.ty = _applied(op, types, self.span)  # type: ignore[misc]
        else:
            self.ty = op.result_type(types, self.span)  # type: ignore[misc]

    def node_children(self) -> tuple[Node, ...]:
        """The function, if one is called, then the arguments."""
        return (self.op, *self.args) if isinstance(self.op, Node) else self.args

    def rebuild(self, visit: Callable[[Any], Any]) -> Call:
        """This call with op and arguments mapped; types are inferred again only when an argument's type changed."""
        args = [visit(a) for a in self.args]
        op = visit(self.op) if isinstance(self.op, Node) else self.op
        if op is not self.op:
            return Call(op, tuple(args), span=self.span)
        changed = False
        for new, old in zip(args, self.args, strict=True):
            if new is not old:
                if new.ty is not old.ty:
                    return Call(op, tuple(args), span=self.span)
                changed = True
        if not changed:
            return self
        made = object.__new__(Call)
        made.op, made.args, made.ty, made.span = op, tuple(args), self.ty, self.span  # type: ignore[misc]
        return made


def _check_name(variable: Var | GlobalVar, kind: type[Type]) -> None:
    """Raise TypeInferenceError unless the variable has a string as name and a type of this kind."""
    if not isinstance(variable.name, str):
        raise TypeInferenceError(f"the name of a variable is {variable.name!r}; expected a string")
    if not isinstance(variable.ty, kind):
        message = f"variable {variable.name}: the type is {variable.ty!r}; expected a relay.{kind.__name__}"
        raise TypeInferenceError(message)


def _types(what: str, values: Sequence[Any]) -> list[Type]:
    """The types of the operands of `what`. Raises TypeInferenceError for a value that is no expression."""
    for number, value in enumerate(values):
        if not isinstance(value, Expr):
            hint = " Of numbers and arrays relay.const(value) makes one"
            found = f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
            raise TypeInferenceError(f"{what}: value {number} is {found}; expected an expression.{hint}")
    return [value.ty for value in values]


def _require_no_cycle(order: Iterable[Expr]) -> None:
    done: set[int] = set()
    for e in order:
        for operand in e.node_children():
            if id(operand) not in done:
                raise cycle(cast(Expr, operand))
        done.add(id(e))


def cycle(through: Expr) -> MalformedGraphError:
    """The error about a graph in which `through` depends on itself."""
    op = through.op.name if isinstance(through, Call) and not isinstance(through.op, Expr) else type(through).__name__
    what = f"{op}{_at(through.span)}"
    return MalformedGraphError(f"the graph has a cycle through {what}: an expression can't depend on itself")


def _applied(function: Expr, types: Sequence[Type], span: Span | None) -> Type:
    """The result type of a call of a function value."""
    ty = function.ty
    what = function.name if isinstance(function, Var | GlobalVar) else "function"
    if not isinstance(ty, FuncType):
        message = f"only operators and functions can be called, not a value of type {ty}"
        raise TypeInferenceError(message, op=what, types=types, span=span)
    if len(types) != len(ty.arg_types) or any(a is not b for a, b in zip(types, ty.arg_types, strict=True)):
        raise TypeInferenceError(f"expected arguments of {ty}", op=what, types=types, span=span)
    return ty.ret_type


@node
class Let(Expr):
    """`value` under the name `var` in `body`: fixes the order of evaluation."""

    var: Var
    value: Expr
    body: Expr
    ty: Type = field(init=False)

    binders = ("var",)

    def __post_init__(self) -> None:
        if not isinstance(self.var, Var):
            raise TypeInferenceError(f"the variable of a let is {self.var!r}; expected a relay.Var{_at(self.span)}")
        of, result = _types("a let", (self.value, self.body))
        if self.var.ty is not of:
            message = f"variable {self.var.name} has type {self.var.ty}, its value {of}{_at(self.span)}"
            raise TypeInferenceError(message)
        self.ty = result  # type: ignore[misc]


@node
class If(Expr):
    """One of two expressions of one type; only the chosen one is evaluated."""

    cond: Expr
    true_branch: Expr
    false_branch: Expr
    ty: Type = field(init=False)

    def __post_init__(self) -> None:
        condition, result, other = _types("an if", (self.cond, self.true_branch, self.false_branch))
        if condition is not TensorType((), "bool"):
            raise TypeInferenceError(f"a condition is a scalar bool; got {condition}{_at(self.span)}")
        if result is not other:
            raise TypeInferenceError(f"both branches must have one type; got {result} and {other}{_at(self.span)}")
        self.ty = result  # type: ignore[misc]

    def branches(self) -> Iterator[Expr]:
        """The two expressions, one of which is evaluated."""
        yield self.true_branch
        yield self.false_branch


_NUMPY_TO_DTYPE: dict[np.dtype[Any], DType] = {}


def numpy_dtype_name(of: np.dtype[Any]) -> DType:
    """The compiler's name of a numpy (or ml_dtypes) element type; Python objects and numpy strings are "string"."""
    found = _NUMPY_TO_DTYPE.get(of)
    if found is None:
        found = dtype("string" if of.kind in "OSUT" else of.name)
        _NUMPY_TO_DTYPE[of] = found
    return found


def numpy_dtype(of: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) element type with the compiler's name `of`; "string" is Python objects."""
    return np.dtype(object) if of == "string" else np.dtype(getattr(ml_dtypes, dtype(of), of))


def var(name: str, shape: Sequence[Dim] | Type = (), dtype: str = "float32", *, ty: Type | None = None) -> Var:
    """A fresh tensor variable (TVM: `relay.var`); a type in the place of `shape`, or as `ty`, may be of any kind.

    Raises TypeInferenceError for a `shape` that is neither a type nor a sequence of sizes.
    """
    if isinstance(shape, Type):
        return Var(name, shape)
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise TypeInferenceError(f"variable {name}: shape is {shape!r}; expected sizes, such as (1, 8) or (8,)")
    return Var(name, TensorType(shape, dtype) if ty is None else ty)


def const(value: Any, dtype: str | None = None) -> Constant:
    """A constant from a number, sequence or array (TVM: `relay.const`).

    Python floats become float32 and Python ints int32, unless `dtype` says otherwise; arrays keep their type. Raises
    TypeInferenceError for a value that is no array of numbers or of strings.
    """
    if isinstance(value, Constant):
        return value
    try:
        element = None if dtype is None else numpy_dtype(dtype)
        array = np.asarray(value)
        if element is None and not isinstance(value, np.ndarray | np.generic):
            element = {"f": np.dtype("float32"), "i": np.dtype("int32")}.get(array.dtype.kind)
        with np.errstate(all="ignore"):
            array = array if element is None else array.astype(element)
    except DTypeError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeInferenceError(f"a constant of {value!r:.80}: {error}; expected numbers or strings") from error
    return Constant(array)

"""The reference interpreter of the graph IR: evaluates programs by the operators' numpy references. Iterative.

    relay.create_executor("debug", module).evaluate()(x, y)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from relayc.relay.argument_types import checked
from relayc.relay.bind_sizes import bind_operator, bind_sizes, bound_outputs, results_of, sizes_of_inputs
from relayc.relay.container_type import ContainerType, OptionalType
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
    numpy_dtype_name,
)
from relayc.relay.op.base import OpDef, OpPattern
from relayc.relay.sizes import evaluate as size_value, size_variables
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, post_order
from relayc.te.tir import Dim, SizeVar

__all__ = ["DebugExecutor", "apply_reference", "create_executor", "evaluate"]

Value = Any
"""An array, a tuple of values, a list of them (sequences, optional values), or a closure: a function with its frame."""


def apply_reference(op: OpDef, arrays: Sequence[Value], expected: Type) -> Value:
    """`op.reference` on arrays, checked against the inferred type. Raises CompileError when they disagree."""
    with np.errstate(all="ignore"):
        result = op.reference(*arrays)
    if isinstance(expected, TupleType):
        result = tuple([r if isinstance(r, list) else np.asarray(r) for r in result])
        same = len(result) == len(expected.fields)
        same = same and all(_fits(r, t) for r, t in zip(result, expected.fields, strict=True))
    else:
        result = result if isinstance(result, list) else np.asarray(result)
        same = _fits(result, expected)
    if not same:
        got = [_text(r) for r in (result if isinstance(result, tuple) else (result,))]
        raise CompileError(f"the reference of {op} gives {', '.join(got)}, its type inference {expected}")
    return result


def _text(value: Value) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value.dtype}{value.shape}"


def _fits(array: Value, ty: Type) -> bool:
    if isinstance(array, list):
        return isinstance(ty, ContainerType)
    if not isinstance(ty, TensorType) or numpy_dtype_name(array.dtype) != ty.dtype or array.ndim != ty.ndim:
        return False
    return all(not isinstance(d, int) or d == n for d, n in zip(ty.shape, array.shape, strict=True))


class _Frame:
    """One activation of a function: the values known so far, and the expressions still to be evaluated.

    `sizes` are the size variables bound by the shapes of results.
    """

    __slots__ = ("parent", "result", "sizes", "todo", "values")

    def __init__(self, root: Expr, parent: _Frame | None) -> None:
        self.result = root
        self.parent = parent
        self.sizes: dict[str, Dim] = {} if parent is None else dict(parent.sizes)
        self.values: dict[int, Value] = {}
        self.todo: list[Expr] = [root]

    def find(self, e: Expr) -> Value | None:
        """The value of `e` here or in an enclosing frame; None when it is not evaluated yet."""
        frame: _Frame | None = self
        while frame is not None:
            value = frame.values.get(id(e))
            if value is not None:
                return value
            frame = frame.parent
        return None

    def need(self, *wanted: Expr) -> list[Value] | None:
        """The values of all the expressions, or None after scheduling the missing ones."""
        values = [self.find(e) for e in wanted]
        missing = [e for e, v in zip(wanted, values, strict=True) if v is None]
        self.todo.extend(reversed(missing))
        return None if missing else values


class _Closure:
    __slots__ = ("frame", "function")

    def __init__(self, function: Function, frame: _Frame | None) -> None:
        self.function = function
        self.frame = frame


def evaluate(program: IRModule | Function, args: Sequence[Value], name: str = "main") -> Value:
    """The value of a function (or of function `name` of a module) on arrays, whose shapes bind its size variables."""
    module = program if isinstance(program, IRModule) else IRModule({name: program})
    function: Function = module[name]
    if all(isinstance(p.ty, TensorType | ContainerType) for p in function.params):
        shapes = [np.shape(a) for a in args if not isinstance(a, list)]
        sizes: dict[str, Dim] = {**sizes_of_inputs(function, shapes)}  # type: ignore[arg-type]
        for variable, tensor, element in bound_outputs(function):
            values = _run(module, bind_sizes(function.replace(body=tensor, attrs={}), sizes), args)
            size = values.shape[-1 - element] if element < 0 else np.reshape(values, -1)[element]
            sizes.setdefault(variable, int(size))
        if sizes:
            _check(function, sizes)
            function = bind_sizes(function.replace(body=results_of(function), attrs={}), sizes)
    return _run(module, function, args)


def _check(function: Function, sizes: dict[str, Dim]) -> None:
    for left, right, source in function.attrs.get("size_checks", ()):
        a, b = size_value(left, sizes), size_value(right, sizes)
        if isinstance(a, int) and isinstance(b, int) and a != b:
            raise CompileError(f"{source} needs two equal sizes and gets {a} and {b}")


def _run(module: IRModule, function: Function, args: Sequence[Value]) -> Value:
    frames = [_enter(_Closure(function, None), args)]
    while True:
        frame = frames[-1]
        if not frame.todo:
            value = frame.find(frame.result)
            frames.pop()
            if not frames:
                return value
            frames[-1].values[id(frames[-1].todo[-1])] = value
            continue
        current = frame.todo[-1]
        if frame.find(current) is not None:
            frame.todo.pop()
            continue
        value = _step(frame, current, module)
        if isinstance(value, _Frame):
            frames.append(value)
        elif value is not None:
            frame.values[id(current)] = value


def _enter(closure: _Closure, args: Sequence[Value]) -> _Frame:
    params = closure.function.params
    if len(params) != len(args):
        raise CompileError(f"the function takes {len(params)} arguments, got {len(args)}")
    frame = _Frame(closure.function.body, closure.frame)
    for p, value in zip(params, args, strict=True):
        frame.values[id(p)] = value
    return frame


def _step(frame: _Frame, e: Expr, module: IRModule) -> Value | _Frame | None:
    """The value of `e`, a frame to run first, or None after scheduling operands."""
    if isinstance(e, Call):
        return _call(frame, e)
    if isinstance(e, Constant):
        return e.data
    if isinstance(e, Tuple):
        fields = frame.need(*e.fields)
        return None if fields is None else tuple(fields)
    if isinstance(e, TupleGetItem):
        of = frame.need(e.tuple_value)
        return None if of is None else of[0][e.index]
    if isinstance(e, Function):
        return _Closure(e, frame)
    if isinstance(e, GlobalVar):
        return _Closure(module[e.name], None)
    if isinstance(e, If):
        cond = frame.need(e.cond)
        chosen = None if cond is None else frame.need(e.true_branch if bool(cond[0]) else e.false_branch)
        return None if chosen is None else chosen[0]
    if isinstance(e, Let):
        value = frame.need(e.value)
        if value is None:
            return None
        frame.values[id(e.var)] = value[0]
        body = frame.need(e.body)
        return None if body is None else body[0]
    assert isinstance(e, Var)
    raise CompileError(f"variable {e.name} has no value here")


def _call(frame: _Frame, call: Call) -> Value | _Frame | None:
    args = frame.need(*call.args)
    if args is None:
        return None
    if isinstance(call.op, OpDef):
        if frame.need(*_size_producers(frame, call.op)) is None:
            return None
        try:
            result = apply_reference(bind_operator(call.op, frame.sizes) if frame.sizes else call.op, args, call.ty)
            _note_sizes(frame, result, call.ty)
            return result
        except CompileError as error:
            if call.span is not None:
                error.add_note(f"at {call.span}")
            raise
    closure = frame.need(call.op)
    return None if closure is None else _enter(closure[0], args)


def _size_producers(frame: _Frame, op: OpDef) -> list[Expr]:
    """The expressions to evaluate before the operator, because the shape of their result gives a size in its
    attributes."""
    wanted = size_variables(op.attributes().values()).keys() - frame.sizes.keys()
    if not wanted:
        return []
    calls = [e for e in cast("list[Expr]", list(post_order(frame.result))) if isinstance(e, Call)]
    opaque = [e for e in calls if isinstance(e.op, OpDef) and e.op.pattern == OpPattern.OPAQUE and e.op is not op]
    return [e for e in opaque if not wanted.isdisjoint(_sizes_in(e.ty))]


def _sizes_in(ty: Type) -> set[str]:
    if isinstance(ty, TupleType):
        return set[str]().union(*map(_sizes_in, ty.fields))
    return set(size_variables(ty.shape)) if isinstance(ty, TensorType) else set()


def _note_sizes(frame: _Frame, value: Value, ty: Type) -> None:
    """Bind the size variables that the shape of a result determines (see `relay.op.control`)."""
    if isinstance(ty, TupleType):
        for field, field_type in zip(value, ty.fields, strict=True):
            _note_sizes(frame, field, field_type)
    elif isinstance(ty, TensorType) and not ty.is_static:
        for d, n in zip(ty.shape, value.shape, strict=True):
            if isinstance(d, SizeVar):
                frame.sizes.setdefault(d.name, n)


class DebugExecutor:
    """Runs a module's "main" by the numpy references: slow, and correct by definition."""

    def __init__(self, module: IRModule, params: dict[str, np.ndarray[Any, Any]] | None = None) -> None:
        self.module = module
        self.params = dict(params or {})

    def evaluate(self) -> Callable[..., Value]:
        """The main function as a Python callable over arrays; parameters bound by name come from `params`."""
        main: Function = self.module["main"]
        names = [p.name for p in main.params]

        def run(*args: Any, **named: Any) -> Value:
            unknown = sorted(named.keys() - set(names))
            if unknown:
                raise CompileError(f"no input is named {', '.join(unknown)}; the inputs are: {', '.join(names)}")
            inputs = {**self.params, **named}
            free = [n for n in names if n not in inputs]
            if len(args) != len(free):
                raise CompileError(f"expected {len(free)} arguments ({', '.join(free)}), got {len(args)}")
            inputs.update(zip(free, args, strict=True))
            types = [p.ty for p in main.params]
            return evaluate(self.module, [_as_value(inputs[n], ty) for n, ty in zip(names, types, strict=True)])

        return run


def _as_value(value: Any, ty: Type) -> Value:
    if isinstance(ty, OptionalType):
        return [] if value is None else [_as_value(value, ty.element)]
    if isinstance(ty, ContainerType):
        return [_as_value(item, ty.element) for item in value]
    if isinstance(ty, TupleType):
        return tuple([_as_value(v, t) for v, t in zip(value, ty.fields, strict=True)])
    return np.asarray(value)


@checked
def create_executor(
    kind: str = "debug", mod: IRModule | None = None, params: dict[str, np.ndarray[Any, Any]] | None = None
) -> DebugExecutor:
    """An executor of `mod` (TVM: `relay.create_executor`).

    The only kind, "debug", evaluates by the numpy references.
    """
    if kind != "debug":
        raise CompileError(f"unknown executor kind {kind!r}; known is: debug (compiled execution goes by relay.build)")
    if mod is None:
        raise CompileError("create_executor needs a module")
    return DebugExecutor(mod, params)

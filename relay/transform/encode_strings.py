"""EncodeStrings: replaces strings by integers, positions in the executor's table (see `backend.runtime.strings`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from relayc.relay.container_type import ContainerType, ElementType, SequenceType
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.op.base import OpDef
from relayc.relay.op.broadcast import Minimum
from relayc.relay.op.host import ActionOperator, OnHost
from relayc.relay.op.indexing import Take
from relayc.relay.op.strings import Index
from relayc.relay.sizes import assuming
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType, TupleType, Type
from relayc.te.dtype import dtype
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext, post_order

__all__ = ["EncodeStrings"]

_NUMBER = dtype("int64")

_TRANSPARENT = frozenset({
    "broadcast_to", "concatenate", "copy", "equal", "expand_dims", "gather", "gather_nd", "not_equal", "repeat",
    "reshape", "reverse", "reverse_sequence", "scatter_elements", "scatter_nd", "split", "squeeze", "stack",
    "strided_slice", "take", "tile", "transpose", "where",
})  # fmt: skip
"""Operators that work on encoded strings unchanged: they move elements, or compare them for equality."""


class EncodeStrings(FunctionPass):
    """Tensors of strings, also those in sequences and in the bodies of control flow, become tensors of int64.

    The function's attributes are "texts", the strings that the function names, by number; "text_inputs" and
    "text_outputs", the positions of the parameters and results that are strings. Operators that read strings become
    calls of `OnHost`, except that a look-up in constant strings is a gather. Raises CompileError for an operator that
    computes with numbers only.
    """

    def transform(self, function: Function, context: PassContext) -> Function:
        if not _has_strings(function):
            return function
        strings = list(dict.fromkeys(["", *_strings_of(function)]))
        with assuming():  # size assumptions were recorded when the calls were first built
            encoded = _Encoder({text: number for number, text in enumerate(strings)}).function(function)
        facts = {
            "texts": tuple(strings),
            "text_inputs": tuple([i for i, p in enumerate(function.params) if _is_string(p.ty)]),
            "text_outputs": tuple([i for i, ty in enumerate(_flat(function.body.ty)) if _is_string(ty)]),
        }
        return encoded.replace(attrs={**function.attrs, **facts})


def _is_string(ty: Type) -> bool:
    """Is it a type of strings, or of a container of strings?"""
    if isinstance(ty, TupleType):
        return any(map(_is_string, ty.fields))
    if isinstance(ty, ContainerType):
        return ty.tensors.dtype == "string"
    return isinstance(ty, TensorType) and ty.dtype == "string"


def _flat(ty: Type) -> list[Type]:
    return [t for f in ty.fields for t in _flat(f)] if isinstance(ty, TupleType) else [ty]


def _expressions(function: Function) -> Iterator[Expr]:
    """The expressions of a function and of functions inside of its operators, and unused parameters."""
    waiting = [function]
    while waiting:
        yield from waiting[-1].params
        for e in cast("list[Expr]", list(post_order(waiting.pop()))):
            yield e
            if isinstance(e, Call) and isinstance(e.op, OpDef):
                waiting += [value for value in e.op.attributes().values() if isinstance(value, Function)]


def _has_strings(function: Function) -> bool:
    return any(_is_string(e.ty) for e in _expressions(function) if not isinstance(e, Function))


def _strings_of(function: Function) -> Iterator[str]:
    """The strings in constants and look-ups."""
    for e in _expressions(function):
        if isinstance(e, Constant) and e.dtype == "string":
            yield from e.data.reshape(-1).tolist()
        elif isinstance(e, Call) and isinstance(e.op, Index):
            yield from e.op.table


class _Encoder:
    """Rewrites functions with the numbers of the strings that they name."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self.numbers = numbers

    def function(self, function: Function) -> Function:
        params = tuple([Var(p.name, _numbered(p.ty), span=p.span) for p in function.params])
        done: dict[int, Expr] = {id(old): new for old, new in zip(function.params, params, strict=True)}
        for e in cast("list[Expr]", list(post_order(function.body))):
            if id(e) not in done:
                done[id(e)] = self._encoded(e, done)
        return Function(params, done[id(function.body)], function.attrs, span=function.span)

    def _encoded(self, e: Expr, done: Mapping[int, Expr]) -> Expr:
        """The expression rebuilt from its operands in `done`."""
        if isinstance(e, Constant) and e.dtype == "string":
            return Constant(self._numbers_of(e.data), span=e.span)
        if isinstance(e, Call) and isinstance(e.op, OpDef):
            return self._call(e, e.op, [done[id(a)] for a in e.args])
        return e.rebuild(lambda child: done.get(id(child), child))

    def _call(self, call: Call, operator: OpDef, args: list[Expr]) -> Expr:
        if isinstance(operator, Index):
            return self._looked_up(args[0], operator.table, call)
        if isinstance(operator, ActionOperator):
            results = tuple([cast(TensorType, _numbered(ty)) for ty in _flat(call.ty)])
            return OnHost(operator=operator, results=results)(*args, span=call.span)
        changed = {name: self._attribute(value) for name, value in operator.attributes().items()}
        changed = {name: value for name, value in changed.items() if value is not getattr(operator, name)}
        if not changed and all(a is b for a, b in zip(args, call.args, strict=True)):
            return call
        on_strings = _is_string(call.ty) or any(_is_string(a.ty) for a in call.args)
        if on_strings and not operator.takes_containers and not _is_blind(operator):
            place = "" if call.span is None else f" at {call.span}"
            types = ", ".join(str(a.ty) for a in call.args)
            raise CompileError(f"{operator} of {types}{place}: it computes with numbers, not with strings")
        return Call(operator.replace(**changed) if changed else operator, tuple(args), span=call.span)

    def _looked_up(self, x: Expr, table: tuple[str, ...], call: Call) -> Expr:
        """The first position in `table` of each encoded string; the length of `table` for strings not in it."""
        places = np.full(len(self.numbers) + 1, len(table), np.int64)
        for position in reversed(range(len(table))):
            places[self.numbers[table[position]]] = position
        within = Minimum()(x, Constant(np.array(len(self.numbers), np.int64)), span=call.span)
        return Take(axis=0, mode="fast")(Constant(places, span=call.span), within, span=call.span)

    def _attribute(self, value: Any) -> Any:
        """An attribute with types of strings replaced, in functions too; the very same object if there are none."""
        if isinstance(value, tuple):
            parts = tuple([self._attribute(v) for v in value])
            return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
        if isinstance(value, Function):
            return self.function(value)
        return _numbered(value) if isinstance(value, Type) else value

    def _numbers_of(self, strings: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = [self.numbers[text] for text in strings.reshape(-1).tolist()]
        return np.array(found, np.int64).reshape(strings.shape)


def _is_blind(operator: OpDef) -> bool:
    return operator.name in _TRANSPARENT and getattr(operator, "reduction", "update") == "update"


def _numbered(ty: Type) -> Type:
    """The type with int64 in place of strings."""
    if not _is_string(ty):
        return ty
    if isinstance(ty, TupleType):
        return TupleType([_numbered(f) for f in ty.fields])
    if isinstance(ty, ContainerType):
        inner = ty.element
        element = _numbered(inner) if isinstance(inner, SequenceType) else ElementType(inner.shape, _NUMBER)
        return type(ty)(cast("SequenceType | ElementType", element))
    assert isinstance(ty, TensorType)
    return ty.with_dtype(_NUMBER)

"""Numbers functions by what they compute, so that equal bodies of control flow are compiled once."""

from __future__ import annotations

from collections.abc import Hashable

from relayc.relay.analysis import body_order
from relayc.relay.equal_constants import EqualConstants
from relayc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from relayc.relay.op.base import OpDef
from relayc.relay.op.control import ControlFlow

__all__ = ["FunctionNumbers"]


class FunctionNumbers:
    """`numbers(f)` is equal for functions that compute the same, down to the constants, whatever their parameters are
    called.

    It keeps the functions alive.
    """

    def __init__(self) -> None:
        self._equal = EqualConstants()
        self._numbers: dict[Hashable, int] = {}
        self._seen: dict[Function, int] = {}

    def __call__(self, function: Function) -> int:
        if function not in self._seen:
            values = {id(p): i for i, p in enumerate(function.params)}
            rows: list[Hashable] = [p.ty for p in function.params]
            for e in body_order(function):
                if id(e) not in values:
                    rows.append((self._content(e), *[values[id(child)] for child in e.node_children()]))
                    values[id(e)] = len(values)
            key = (*rows, values[id(function.body)], repr(function.attrs))
            self._seen[function] = self._numbers.setdefault(key, len(self._numbers))
        return self._seen[function]

    def _content(self, e: Expr) -> Hashable:
        """What an expression is, without its operands."""
        match e:
            case Call(op=ControlFlow() as op):
                attributes = op.attributes().values()
                return type(op), *[self(v) if isinstance(v, Function) else v for v in attributes]
            case Call(op=OpDef() as op):
                return op
            case Constant():
                return id(self._equal.first(e))
            case TupleGetItem():
                return TupleGetItem, e.index
            case _:
                return Tuple if isinstance(e, Tuple) else e

"""SeparateOutputs: outputs of a model that are one of its inputs, or one value, become arrays of their own.

A compiled graph names arrays, and each of these outputs has a name. ``y = Identity(x)`` leaves x as the output after
simplification, and two outputs may be one value after the elimination of common subexpressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relayc.relay.expr import Expr, Function, Tuple, Var
from relayc.relay.op.base import make_call
from relayc.relay.type import TensorType
from relayc.te.ir import IRModule, Pass, PassContext

__all__ = ["SeparateOutputs"]


@dataclass(frozen=True)
class SeparateOutputs(Pass):
    """Copies tensors that are inputs, or an earlier output, where the module names its outputs ("output_names")."""

    opt_level: ClassVar[int] = 0

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        count, main = len(module.attrs.get("output_names", ())), module["main"]
        body = _separated(main, count)
        if body is main.body:
            return module
        return module.with_function("main", main.with_body(body))


def _separated(main: Function, count: int) -> Expr:
    """The body, of whose results the first `count` are arrays of their own."""
    body, fields = main.body, main.results
    seen: set[int] = set()
    made: list[Expr] = []
    for field in fields[:count]:
        shared = isinstance(field, Var) or id(field) in seen
        seen.add(id(field))
        made.append(make_call("copy", (field,), field.span) if shared and isinstance(field.ty, TensorType) else field)
    if all(new is old for new, old in zip(made, fields, strict=False)):
        return body
    return Tuple((*made, *fields[count:]), span=body.span) if isinstance(body, Tuple) else made[0]

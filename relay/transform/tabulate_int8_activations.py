"""TabulateInt8Activations: functions of an 8-bit value as lookup tables of 256 bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from relayc.relay.expr import Call, Constant, Expr, Function
from relayc.relay.expr_functor import Sharing, rewrite_calls_knowing_uses
from relayc.relay.interpreter import apply_reference
from relayc.relay.op.base import OpDef
from relayc.relay.op.qnn import Lookup
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType
from relayc.topi.groups import constant_size

if TYPE_CHECKING:
    from relayc.backend.target import Target
    from relayc.relay.op.common import Array
    from relayc.te.ir import PassContext

__all__ = ["TabulateInt8Activations"]

_LOOKUPS = frozenset({"avx512vbmi", "ssse3", "neon"})
"""Target features with byte shuffles, by which vectors look up tables in registers."""
_BYTES = ("uint8", "int8")


class TabulateInt8Activations(FunctionPass):
    """Elementwise float arithmetic from one 8-bit tensor to another becomes `qnn.lookup`.

    An activation of quantised values, however it is decomposed, becomes a table of 256 results, computed at compile
    time by the operators' references. Intermediate values must have no other users.
    """

    opt_level: ClassVar[int] = 2

    def __init__(self, target: Target) -> None:
        self.applies = not _LOOKUPS.isdisjoint(target.features)

    def transform(self, function: Function, context: PassContext) -> Function:
        return rewrite_calls_knowing_uses(function, _Tabulator().rewrite) if self.applies else function


@dataclass(frozen=True, slots=True)
class _OfBytes:
    """An expression as a function of the 8-bit tensor `source`: its `values` for all 256 inputs.

    `floats`: are there floats in between?
    """

    expr: Expr
    source: Expr
    values: Array
    floats: bool


class _Tabulator:
    """Finds for each call the 8-bit tensor that it is an elementwise function of, and the function."""

    def __init__(self) -> None:
        self.known: dict[int, _OfBytes] = {}

    def rewrite(self, call: Call, shared: Sharing) -> Expr:
        """The call as a lookup, if it computes bytes from other bytes by way of floats."""
        found = self._found(call, shared) if _is_elementwise(call) else None
        if found is None:
            return call
        new = call
        if found.floats and _is_of_bytes(call) and not isinstance(call.op, Lookup):
            new = Lookup()(found.source, Constant(found.values), span=call.span)
        self.known[id(new)] = replace(found, expr=new)
        return new

    def _found(self, call: Call, shared: Sharing) -> _OfBytes | None:
        operands = {id(a): self._operand(a, call, shared) for a in call.args if not isinstance(a, Constant)}
        values_of = {key: o.values for key, o in operands.items() if o is not None}
        known = [o for o in operands.values() if o is not None]
        if not known or len(known) < len(operands) or any(o.source is not known[0].source for o in known):
            return None
        arrays = [_value(a) if isinstance(a, Constant) else values_of[id(a)] for a in call.args]
        types = [TensorType(v.shape, a.tensor_type.dtype) for v, a in zip(arrays, call.args, strict=True)]
        values = apply_reference(call.operator, arrays, call.operator.infer(*types))
        floats = call.tensor_type.dtype.is_float or any(o.floats for o in known)
        return _OfBytes(call, known[0].source, values, floats)

    def _operand(self, e: Expr, user: Call, shared: Sharing) -> _OfBytes | None:
        """The function that an operand is; the identity for bytes that are used elsewhere, or are not computed from
        others."""
        if not isinstance(e.ty, TensorType) or e.ty.shape != user.tensor_type.shape:
            return None
        if _is_of_bytes(e) and (shared(e) or id(e) not in self.known):
            return _OfBytes(e, e, np.arange(256, dtype=np.uint8).view(str(e.ty.dtype)), False)
        return self.known.get(id(e))


def _is_of_bytes(e: Expr) -> bool:
    return isinstance(e.ty, TensorType) and str(e.ty.dtype) in _BYTES


def _is_elementwise(call: Call) -> bool:
    """Is it elementwise, with scalar constants, and does it have a numpy reference?"""
    op = call.op
    if not isinstance(op, OpDef) or op.has_side_effect or type(op).reference is OpDef.reference:
        return False
    alike = op.follows_elements() and all(constant_size(a.shape) == 1 for a in call.args if isinstance(a, Constant))
    return (isinstance(op, Lookup) or alike) and isinstance(call.ty, TensorType)


def _value(constant: Constant) -> Array:
    return constant.data.reshape(()) if constant.data.size == 1 else constant.data

"""Operators that the executor runs itself, between kernels."""

from __future__ import annotations

from typing import Any, ClassVar

from relayc.backend.runtime.errors import ArgumentError
from relayc.backend.runtime.host_actions import HOST_ACTIONS, prepared
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.type import TensorType, TupleType
from relayc.te.dtype import dtype as parse_dtype
from relayc.te.errors import CompileError

__all__ = ["ActionOperator", "HostOperator", "OnHost"]


@attributes_of_operator
class HostOperator(OpDef):
    """Base of operators on sequences and strings. `keeps` are the inputs that the result may alias."""

    mixed_precision = MixedPrecision.NEVER
    takes_containers = True
    keeps: ClassVar[slice] = slice(0, 0)


@attributes_of_operator
class ActionOperator(OpDef):
    """Base of the operators that the executor runs by an action (`backend.runtime.host_actions`), which it names.

    (C1) inputs are strings, or numbers, as the action takes them. An attribute `result` is the type of a result whose
    size depends on the values.
    """

    mixed_precision = MixedPrecision.NEVER
    action: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """The attributes that the action takes."""
        return {name: getattr(self, name) for name in HOST_ACTIONS[self.action].settings}

    def check(self, *types: TensorType) -> None:
        """Raise TypeInferenceError unless inputs are strings where the action takes them."""
        for number, (ty, kind) in enumerate(zip(types, HOST_ACTIONS[self.action].takes, strict=True)):
            wanted = "strings" if kind == "t" else "numbers"
            require((ty.dtype == "string") == (kind == "t"), f"(C1) input {number} must be {wanted}; got {ty}")

    def reference(self, *arrays: Array) -> Any:
        try:
            results = prepared(self.action, self.settings())(*arrays)
        except ArgumentError as error:
            raise CompileError(str(error)) from error
        return results[0] if len(results) == 1 else results


@register_op("on_host", pattern=OpPattern.OPAQUE)
class OnHost(HostOperator):
    """An operator run by the executor, with strings encoded as integers.

    `results` are the types of its results, int64 for strings. (C1) it takes as many inputs as the operator.
    """

    has_side_effect = True  # encoded strings mean nothing without the executor's table: not to be folded

    operator: ActionOperator
    results: tuple[TensorType, ...]

    def infer(self, *types: TensorType) -> TensorType | TupleType:
        action = HOST_ACTIONS[self.operator.action]
        require(len(types) == len(action.takes), f"(C1) {len(types)} inputs for {self.operator}")
        for number, (ty, kind) in enumerate(zip(types, action.takes, strict=True)):
            fits = kind == "n" or ty.dtype == parse_dtype("int64")
            require(fits, f"(C1) input {number} must be numbers of strings; got {ty}")
        return self.results[0] if len(self.results) == 1 else TupleType(self.results)

    def reference(self, *arrays: Array) -> Any:
        """The result in numpy, of operators on numbers: encoded strings need the executor's table."""
        action = HOST_ACTIONS[self.operator.action]
        return super().reference(*arrays) if "t" in action.takes + action.returns else self.operator.reference(*arrays)

"""Control flow at run time: operators that hold functions, which the executor runs as graphs of their own.

The functions are closed: captured values are arguments. Their size variables are local, except for variables of the
enclosing program that they mention. Result dimensions that are known only after a run are variables, which the shapes
of the results bind.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayc.relay.container_type import ContainerType
from relayc.relay.expr import Call, Expr, Function
from relayc.relay.interpreter import evaluate
from relayc.relay.op.base import MixedPrecision, OpDef, OpPattern, attributes_of_operator, register_op
from relayc.relay.op.common import Array, require
from relayc.relay.type import TensorType, TupleType

__all__ = ["ControlFlow", "IfElse", "WhileLoop", "if_else", "while_loop"]


@attributes_of_operator
class ControlFlow(OpDef):
    """Base of the operators that run functions; `results` are the types of their results."""

    mixed_precision = MixedPrecision.NEVER
    takes_containers = True

    results: tuple[TensorType | ContainerType, ...]

    def bodies(self) -> tuple[Function, ...]:
        """The functions."""
        raise NotImplementedError


@register_op("control.if", pattern=OpPattern.OPAQUE)
class IfElse(ControlFlow):
    """The results of one of two functions, selected by a bool (ONNX: If).

    Arguments: the condition, those of `then_branch`, those of `else_branch`. (C1) the condition is one bool; (C2) there
    are as many arguments as both functions take.
    """

    then_branch: Function
    else_branch: Function

    def bodies(self) -> tuple[Function, ...]:
        return self.then_branch, self.else_branch

    def infer(self, condition: TensorType, *inputs: TensorType) -> TupleType:
        one = condition.dtype.is_bool and condition.size == 1
        require(one, f"(C1) the condition must be one bool; got {condition}")
        count = len(self.then_branch.params) + len(self.else_branch.params)
        require(len(inputs) == count, f"(C2) {len(inputs)} arguments for functions of {count}")
        return TupleType(self.results)

    def reference(self, condition: Array, *inputs: Array) -> tuple[Array, ...]:
        split = len(self.then_branch.params)
        chosen = condition.reshape(-1)[0]
        value = evaluate(self.then_branch if chosen else self.else_branch, inputs[:split] if chosen else inputs[split:])
        return _fields(value)


@register_op("control.loop", pattern=OpPattern.OPAQUE)
class WhileLoop(ControlFlow):
    """A function run over and over on its own results (ONNX: Loop).

    Arguments: the most iterations (int64), whether to begin (bool), `carried` values, then the captured values. The
    function takes the iteration, the condition, the carried values and the captured values; it returns the next
    condition, the carried values, and values that are stacked over all iterations. Results: the carried values, then
    the stacks. (C1) there are as many arguments as the function takes.
    """

    body: Function
    carried: int

    def bodies(self) -> tuple[Function, ...]:
        return (self.body,)

    def infer(self, trips: TensorType, condition: TensorType, *inputs: TensorType) -> TupleType:
        require(len(inputs) + 2 == len(self.body.params), f"(C1) {len(inputs)} values for {len(self.body.params) - 2}")
        return TupleType(self.results)

    def reference(self, trips: Array, condition: Array, *inputs: Array) -> tuple[Array, ...]:
        carried, outside = list(inputs[: self.carried]), inputs[self.carried :]
        alive, iteration = bool(condition.reshape(-1)[0]), 0
        stacks: list[list[Array]] = [[] for _ in self.results[self.carried :]]
        while alive and iteration < int(trips.reshape(-1)[0]):
            state = (np.array(iteration, np.int64), np.array(alive))
            goes_on, *values = _fields(evaluate(self.body, (*state, *carried, *outside)))
            alive, iteration = bool(goes_on.reshape(-1)[0]), iteration + 1
            carried = values[: self.carried]
            for stack, value in zip(stacks, values[self.carried :], strict=True):
                stack.append(value)
        stacked = [np.stack(s) if s else _empty(t) for s, t in zip(stacks, self.results[self.carried :], strict=True)]
        return (*carried, *stacked)


def _empty(ty: TensorType | ContainerType) -> Array:
    assert isinstance(ty, TensorType), "what is stacked is a tensor"
    return np.zeros([0, *[d if isinstance(d, int) else 0 for d in ty.shape[1:]]], str(ty.dtype))


def _fields(value: object) -> tuple[Array, ...]:
    if isinstance(value, tuple):
        return value
    return (value if isinstance(value, list) else np.asarray(value),)  # type: ignore[return-value]


def if_else(
    condition: Expr,
    then_branch: Function,
    else_branch: Function,
    then_args: Sequence[Expr],
    else_args: Sequence[Expr],
    results: Sequence[TensorType | ContainerType],
) -> Call:
    """The results of one of two functions on its arguments, as a tuple."""
    op = IfElse(then_branch=then_branch, else_branch=else_branch, results=tuple(results))
    return op(condition, *then_args, *else_args)


def while_loop(
    trips: Expr,
    condition: Expr,
    carried: Sequence[Expr],
    outside: Sequence[Expr],
    body: Function,
    results: Sequence[TensorType | ContainerType],
) -> Call:
    """The carried values after the last iteration and the stacked ones of all, as a tuple."""
    return WhileLoop(body=body, carried=len(carried), results=tuple(results))(trips, condition, *carried, *outside)

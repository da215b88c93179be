"""Kernels that transpose and reshape several times, composed to one transposition over factored dimensions.

Transposes from layout conversion meet those of the model: depth to space becomes a transposition, a reshape and a
second transposition. Each element moves once, so one transposition of more dimensions is equivalent, and is scheduled
as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.op.transform import Reshape, Transpose
from relayc.relay.transform.function_pass import FunctionPass
from relayc.relay.type import TensorType
from relayc.te.ir import PassContext

__all__ = ["ComposeIndexMaps"]


class ComposeIndexMaps(FunctionPass):
    """An equivalent primitive function with a single transposition, on the same memory.

    For one input that is transposed and reshaped, with elementwise operators before or after; other functions are
    returned unchanged.
    """

    def transform(self, function: Function, context: PassContext) -> Function:
        chain = _chain(function)
        moves = [call for call in chain if _moves(call)]
        if not any(isinstance(call.op, Reshape) for call in moves):
            return function
        param = function.params[0].tensor_type
        parts, first = _Parts(param.static_shape), chain.index(moves[0])
        if not parts.of_input or not all(parts.follow(call) for call in moves):
            return function
        data = Var(function.params[0].name, TensorType(parts.shape(), param.dtype))
        moved = Transpose(axes=parts.axes())(_on(data, chain[:first]), span=moves[0].span)
        behind = [call for call in chain[first:] if not _moves(call)]
        return Function((data,), _on(moved, behind), function.attrs)


def _moves(call: Call) -> bool:
    return isinstance(call.op, Transpose | Reshape)


def _on(data: Expr, calls: Sequence[Call]) -> Expr:
    """Apply the elementwise calls, one after the other, to `data`."""
    for call in calls:
        args = [a if isinstance(a, Constant) else data for a in call.args]
        data = Call(call.op, tuple(args), span=call.span)
    return data


def _chain(function: Function) -> list[Call]:
    """The calls from the only input to the result, in order; empty if the function is not such a chain."""
    calls: list[Call] = []
    e = function.body
    while isinstance(e, Call):
        data = [a for a in e.args if not (isinstance(a, Constant) and a.shape == ())]
        known = isinstance(e.ty, TensorType) and e.ty.is_static
        if len(data) != 1 or not known or not (_moves(e) or e.operator.follows_elements()):
            return []
        calls.append(e)
        e = data[0]
    alone = len(function.params) == 1 and e is function.params[0] and e.tensor_type.is_static
    return calls[::-1] if alone and "strides" not in function.attrs else []


class _Parts:
    """The factors whose product each dimension of a value is, by number, outermost first.

    `of_input` are the factors of the input in memory order, `of_value` those of the current value.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.sizes = dict(enumerate(shape))
        self.of_input = [n for n, size in enumerate(shape) if size != 1]
        self.of_value = [[n] if size != 1 else [] for n, size in enumerate(shape)]

    def follow(self, call: Call) -> bool:
        """Update the factors for a transposition or reshape; False if it splits a factor by a number that is no
        divisor."""
        if isinstance(call.op, Transpose):
            self.of_value = [self.of_value[a] for a in call.op.axes]
            return True
        rest = [n for dimension in self.of_value for n in dimension]
        self.of_value = []
        for size in call.tensor_type.static_shape:
            dimension: list[int] = []
            while size > 1:
                if not rest:
                    return False
                number = rest.pop(0)
                part = math.gcd(size, self.sizes[number])
                if part != self.sizes[number]:
                    if part != size:
                        return False
                    rest.insert(0, self._cut(number, part))
                dimension.append(number)
                size //= part
            self.of_value.append(dimension)
        return not rest

    def _cut(self, number: int, outer: int) -> int:
        """Split a factor in two, of which the one of size `outer` keeps the number; returns the number of the other."""
        inner = len(self.sizes)
        self.sizes[inner] = self.sizes[number] // outer
        self.sizes[number] = outer
        self.of_input.insert(self.of_input.index(number) + 1, inner)
        return inner

    def shape(self) -> tuple[int, ...]:
        """The factored shape of the input."""
        return tuple([self.sizes[n] for n in self.of_input])

    def axes(self) -> tuple[int, ...]:
        """The transposition that maps the input to the value."""
        return tuple([self.of_input.index(n) for dimension in self.of_value for n in dimension])

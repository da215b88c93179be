"""LSTM, GRU and RNN.

The input's product with the weights of all gates is one matrix product over all time steps and directions, biases
included; the recurrence is one operator for both directions, or one per direction if their activations differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relayc.frontends.onnx.node import OnnxNode
from relayc.frontends.onnx.ops.common import reshape_to, transposed, zeros
from relayc.frontends.onnx.ops.quantization import dynamically_quantized
from relayc.frontends.onnx.registry import converter
from relayc.relay import op
from relayc.relay.expr import Constant, Expr
from relayc.relay.op.nn.recurrent import states_stay_small
from relayc.relay.sizes import product
from relayc.relay.type import shapes_match
from relayc.topi.nn.gates import Activation

__all__ = ["QuantizedWeights", "lstm_of"]

_ACTIVATIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "sigmoid": ("sigmoid", ()),
    "tanh": ("tanh", ()),
    "relu": ("relu", ()),
    "softsign": ("softsign", ()),
    "softplus": ("softplus", ()),
    "affine": ("affine", (1.0, 0.0)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "thresholdedrelu": ("thresholded_relu", (1.0,)),
    "elu": ("elu", (1.0,)),
}
"""ONNX's name in lower case -> (name in relay, defaults of alpha and beta if it has them)."""


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """int8 weights [directions, gates * hidden, columns] and their scales [directions, gates * hidden]."""

    values: Expr
    scales: Expr


class _Recurrent:
    """Common parts of LSTM, GRU and RNN: inputs 0 to 5, directions, layout, assembly of the outputs."""

    def __init__(self, node: OnnxNode, gates: int, default_activations: Sequence[str]) -> None:
        self.node, self.gates = node, gates
        self.batch_first = node.attr_bool("layout", False) if node.opset >= 14 else False
        self.x = transposed(node[0], (1, 0, 2)) if self.batch_first and node.rank(0) == 3 else node[0]
        if node.rank(0) != 3 or node.rank(1) != 3 or node.rank(2) != 3:
            raise node.error("X, W or R is not of rank 3")
        self.time, self.batch, self.features = self.x.shape
        self.hidden = node.attrs.get_int("hidden_size") or node.shape(2)[2]
        direction = node.attr_choice("direction", ("forward", "reverse", "bidirectional"), "forward")
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.activations = self._activations(default_activations)
        same = len(set(self.activations)) == 1
        count = len(self.backwards)
        self.together = [range(count)] if same else [range(d, d + 1) for d in range(count)]
        self.clip = node.attrs.get_float("clip")
        self._check()

    def _check(self) -> None:
        node, hidden, directions = self.node, self.hidden, len(self.backwards)
        if not shapes_match(node.type(1).shape, (directions, self.gates * hidden, self.features)):
            expected = f"[{directions}, {self.gates * hidden}, {self.features}]"
            raise node.error(f"W is {node.type(1)}", expected=expected)
        if not shapes_match(node.type(2).shape, (directions, self.gates * hidden, hidden)):
            expected = f"[{directions}, {self.gates * hidden}, {hidden}]"
            raise node.error(f"R is {node.type(2)}", expected=expected)
        if node.get(3) is not None and not shapes_match(node.type(3).shape, (directions, 2 * self.gates * hidden)):
            expected = f"[{directions}, {2 * self.gates * hidden}]"
            raise node.error(f"B is {node.type(3)}", expected=expected)

    def _activations(self, defaults: Sequence[str]) -> list[tuple[Activation, ...]]:
        """Per direction, the activation functions with their alpha and beta."""
        node, size = self.node, len(defaults)
        names = node.attrs.get_strings("activations")
        names = tuple(defaults) * len(self.backwards) if names is None else names
        if len(names) != size * len(self.backwards):
            raise node.error(f"{len(names)} activations", expected=f"{size * len(self.backwards)}")
        alphas = list(node.attrs.get_floats("activation_alpha") or ())
        betas = list(node.attrs.get_floats("activation_beta") or ())
        made = [_activation(node, name, alphas, betas) for name in names]
        return [tuple(made[d * size : (d + 1) * size]) for d in range(len(self.backwards))]

    def products(self, directions: range, state_bias_gates: int, quantized: QuantizedWeights | None = None) -> Expr:
        """X W' + biases [time, batch, directions * gates * hidden]; R's biases are added to some first gates.

        With `quantized` for W, X is dynamically quantised too.
        """
        columns = len(directions) * self.gates * self.hidden
        flat = reshape_to(self.x, (product((self.time, self.batch)), self.features))
        if quantized is None:
            result = op.nn.dense(flat, reshape_to(self.part(1, directions), (columns, self.features)))
        else:
            weight = reshape_to(self.chosen(quantized.values, directions), (columns, self.features))
            scales = reshape_to(self.chosen(quantized.scales, directions), (columns,))
            result = _quantized_product(flat, weight, scales)
        if self.node.get(3) is not None:
            result = op.add(result, reshape_to(self._bias(directions, state_bias_gates), (columns,)))
        return reshape_to(result, (self.time, self.batch, columns))

    def _bias(self, directions: range, state_bias_gates: int) -> Expr:
        size, hidden = self.gates * self.hidden, self.hidden
        both = self.part(3, directions)
        own, state = _cut(both, 1, 0, size), _cut(both, 1, size, size + state_bias_gates * hidden)
        if state_bias_gates < self.gates:
            rest = np.zeros((len(directions), (self.gates - state_bias_gates) * hidden), str(self.x.dtype))
            state = op.concatenate([state, Constant(rest)], axis=1)
        return op.add(own, state)

    def state_bias(self, directions: range, gate: int) -> Expr:
        """R's bias of one gate [directions, hidden]; zeros without biases."""
        if self.node.get(3) is None:
            return Constant(np.zeros((len(directions), self.hidden), str(self.x.dtype)))
        start = (self.gates + gate) * self.hidden
        return _cut(self.part(3, directions), 1, start, start + self.hidden)

    def initial(self, index: int, directions: range) -> Expr:
        """The initial states [directions, batch, hidden] from input `index`; zeros when it is omitted."""
        if self.node.get(index) is None:
            return zeros((len(directions), self.batch, self.hidden), str(self.x.dtype))
        if self.batch_first:
            return self.chosen(transposed(self.node[index], (1, 0, 2)), directions)
        return self.part(index, directions)

    def part(self, index: int, directions: range) -> Expr:
        """Input `index` restricted to `directions`."""
        return self.chosen(self.node[index], directions)

    def part_or(self, index: int, directions: range, quantized: QuantizedWeights | None) -> Expr:
        """Input `index` restricted to `directions`, or its quantised weights."""
        return self.part(index, directions) if quantized is None else self.chosen(quantized.values, directions)

    def chosen(self, x: Expr, directions: range) -> Expr:
        """`x` [directions, ..] restricted to `directions`."""
        return x if len(directions) == len(self.backwards) else _cut(x, 0, directions.start, directions.stop)

    def reverse(self, directions: range) -> tuple[bool, ...]:
        """A flag per direction: does it run backwards in time?"""
        return tuple([self.backwards[d] for d in directions])

    def lengths(self) -> Expr | None:
        """Sequence lengths [batch]; None when all have full length."""
        known = self.node.known_value(4)
        full = known is not None and isinstance(self.time, int) and bool(np.all(known == self.time))
        if self.node.get(4) is None or full:
            return None
        return self.node[4]

    def outputs(self, parts: Sequence[Sequence[Expr]]) -> list[Expr | None]:
        """Y [time, directions, batch, hidden] and final states [directions, batch, hidden], in the node's layout.

        `parts` has the results of the operators, one for all directions or one per direction.
        """
        y, *states = parts[0]
        if len(parts) > 1:
            y, *states = [
                op.concatenate(list(results), axis=axis)
                for results, axis in zip(zip(*parts, strict=True), (2, 0, 0), strict=False)
            ]
        if self.batch_first:
            return [transposed(y, (1, 0, 2, 3)), *[transposed(state, (1, 0, 2)) for state in states]]
        return [transposed(y, (0, 2, 1, 3)), *states]


def _cut(x: Expr, axis: int, start: int, end: int) -> Expr:
    return op.strided_slice(x, (start,), (end,), (1,), axes=(axis,))


def _activation(node: OnnxNode, name: str, alphas: list[float], betas: list[float]) -> Activation:
    """The activation `name`; pops its parameters off the front of `alphas` and `betas`."""
    found = _ACTIVATIONS.get(name.lower())
    if found is None:
        raise node.unsupported(f"the activation {name!r}", expected=", ".join(_ACTIVATIONS))
    ours, defaults = found
    if not defaults:
        return ours
    passed = [values.pop(0) if values else d for values, d in zip((alphas, betas), defaults, strict=False)]
    return (ours, *passed)


_FEW_ENTRIES = 2
"""Largest batch for which the recurrence is bound by reading the weights."""


def _quantized_product(x: Expr, weight: Expr, scales: Expr) -> Expr:
    """Dynamically quantised `x` (M, K) times int8 weights (N, K) with scales (N): (M, N)."""
    quantized, scale, zero = dynamically_quantized(x)
    centred = op.subtract(op.cast(quantized, "int32"), op.cast(zero, "int32"))
    sums = op.nn.dense(centred, op.cast(weight, "int32"))
    return op.multiply(op.cast(sums, "float32"), op.multiply(scale, scales))


@converter("LSTM")
def lstm(node: OnnxNode) -> list[Expr | None]:
    """Gates: input, output, forget, cell; optional peepholes: input, output, forget."""
    return lstm_of(node, None)


def lstm_of(node: OnnxNode, quantized: tuple[QuantizedWeights, QuantizedWeights] | None) -> list[Expr | None]:
    """Convert an LSTM, optionally with quantised W and R, whose dequantised values are inputs 1 and 2."""
    common = _Recurrent(node, 4, ("Sigmoid", "Tanh", "Tanh"))
    of_input, of_state = (None, None) if quantized is None else quantized
    few = isinstance(common.batch, int) and common.batch <= _FEW_ENTRIES
    if not few or not all(map(states_stay_small, common.activations)):
        of_state = None
    return common.outputs([
        op.nn.lstm(
            common.products(d, 4, of_input), common.part_or(2, d, of_state), common.initial(5, d), common.initial(6, d),
            _peepholes(common, d), common.lengths(), activations=common.activations[d.start], reverse=common.reverse(d),
            clip=common.clip, input_forget=node.attr_bool("input_forget", False),
            scales=None if of_state is None else common.chosen(of_state.scales, d),
        )
        for d in common.together
    ])  # fmt: skip


def _peepholes(common: _Recurrent, directions: range) -> Expr | None:
    """Peephole weights [directions, 3, hidden] (input, output, forget); None when absent or zero."""
    node = common.node
    if node.get(7) is None:
        return None
    known = node.known_value(7)
    if known is not None and not np.any(known):
        return None
    return reshape_to(common.part(7, directions), (len(directions), 3, common.hidden))


@converter("GRU", since=1)
def gru(node: OnnxNode) -> list[Expr | None]:
    """Gates: update, reset, hidden."""
    common = _Recurrent(node, 3, ("Sigmoid", "Tanh"))
    return common.outputs([
        op.nn.gru(
            common.products(d, state_bias_gates=2), common.part(2, d), common.initial(5, d), common.state_bias(d, 2),
            common.lengths(), activations=common.activations[d.start], reverse=common.reverse(d), clip=common.clip,
            reset_after=node.attr_bool("linear_before_reset", False),
        )
        for d in common.together
    ])  # fmt: skip


@converter("RNN", since=1)
def rnn(node: OnnxNode) -> list[Expr | None]:
    """Simple recurrence with one gate."""
    common = _Recurrent(node, 1, ("Tanh",))
    return common.outputs([
        op.nn.rnn(
            common.products(d, state_bias_gates=1), common.part(2, d), common.initial(5, d), common.lengths(),
            activations=common.activations[d.start], reverse=common.reverse(d), clip=common.clip,
        )
        for d in common.together
    ])  # fmt: skip

"""LSTM, GRU and RNN, unrolled over time.

The input's product with all gates' weights is one matrix product over all time steps; each step then adds the state's
product and applies the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.node import OnnxNode
from frontends.onnx.ops.common import float_const, reshape_to, transposed
from frontends.onnx.registry import converter
from relay import op
from relay.expr import Constant, Expr

MAX_STEPS = 4096
"""Time steps unrolled at most."""

Activation = Callable[[Expr], Expr]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """One direction of a recurrent operator, time first."""

    products: Expr
    """X * W' + biases: [time, batch, gates * hidden]"""
    recurrence: Expr
    """[gates * hidden, hidden]"""
    hidden: int
    steps: Sequence[int]
    """Time steps in the order in which they are visited."""
    lengths: Expr | None
    activations: Sequence[Activation]

    def at(self, step: int) -> Expr:
        """The input's part of the gates at one time step: [batch, gates * hidden]."""
        return op.squeeze(op.strided_slice(self.products, (step,), (step + 1,), (1,), axes=(0,)), axis=(0,))

    def gates(self, x: Expr, count: int) -> list[Expr]:
        """`x` [batch, count * hidden] cut into its gates."""
        size = self.hidden
        return [op.strided_slice(x, (g * size,), ((g + 1) * size,), (1,), axes=(1,)) for g in range(count)]

    def live(self, step: int, new: Expr, old: Expr) -> Expr:
        """`new` where the sequence is longer than `step`, else `old`."""
        if self.lengths is None:
            return new
        alive = op.greater(self.lengths, Constant(np.array(step, str(self.lengths.dtype))))
        return op.where(op.expand_dims(alive, 1), new, old)


class _Recurrent:
    """What LSTM, GRU and RNN have in common: inputs 0-5, directions, layout, and how outputs are put together."""

    def __init__(self, node: OnnxNode, gates: int, default_activations: Sequence[str]) -> None:
        self.node, self.gates = node, gates
        self.batch_first = node.attr_bool("layout", False) if node.opset >= 14 else False
        self.x = transposed(node[0], (1, 0, 2)) if self.batch_first and node.rank(0) == 3 else node[0]
        if node.rank(0) != 3 or node.rank(1) != 3 or node.rank(2) != 3:
            raise node.error("X, W or R is not of rank 3")
        self.time, self.batch, self.features = node.static(self.x, "the shape of X")
        self.hidden = node.attr_int("hidden_size", node.shape(2)[2])
        direction = node.attr_choice("direction", ("forward", "reverse", "bidirectional"), "forward")
        self.directions = 2 if direction == "bidirectional" else 1
        self.backwards = [direction == "reverse"] if self.directions == 1 else [False, True]
        self.activations = self._activations(default_activations)
        self.clip = node.attrs.get_float("clip")
        self._check()

    def _check(self) -> None:
        node, hidden = self.node, self.hidden
        if node.shape(1) != (self.directions, self.gates * hidden, self.features):
            expected = f"[{self.directions}, {self.gates * hidden}, {self.features}]"
            raise node.error(f"W has shape {list(node.shape(1))}", expected=expected)
        if node.shape(2) != (self.directions, self.gates * hidden, hidden):
            expected = f"[{self.directions}, {self.gates * hidden}, {hidden}]"
            raise node.error(f"R has shape {list(node.shape(2))}", expected=expected)
        if node.get(3) is not None and node.shape(3) != (self.directions, 2 * self.gates * hidden):
            expected = f"[{self.directions}, {2 * self.gates * hidden}]"
            raise node.error(f"B has shape {list(node.shape(3))}", expected=expected)
        if not 1 <= self.time <= MAX_STEPS:
            raise node.unsupported(f"{self.time} time steps", expected=f"1 to {MAX_STEPS}")

    def _activations(self, defaults: Sequence[str]) -> list[list[Activation]]:
        """Per direction, the activation functions with their alpha and beta."""
        node = self.node
        names = node.attrs.get_strings("activations")
        names = tuple(defaults) * self.directions if names is None else names
        if len(names) != len(defaults) * self.directions:
            raise node.error(f"{len(names)} activations", expected=f"{len(defaults) * self.directions}")
        alphas = list(node.attrs.get_floats("activation_alpha") or ())
        betas = list(node.attrs.get_floats("activation_beta") or ())
        made: list[Activation] = []
        for name in names:
            made.append(_activation(node, name, alphas, betas))
        size = len(defaults)
        return [made[d * size : (d + 1) * size] for d in range(self.directions)]

    def sequence(self, direction: int, with_state_bias: bool) -> _Sequence:
        """The input products of a direction. With `with_state_bias` the biases of W and R are both added in."""
        node = self.node
        flat = reshape_to(self.x, (self.time * self.batch, self.features))
        products = op.nn.dense(flat, self._part(1, direction))
        if node.get(3) is not None:
            products = op.add(products, self.bias(direction, with_state_bias))
        order = range(self.time - 1, -1, -1) if self.backwards[direction] else range(self.time)
        return _Sequence(
            reshape_to(products, (self.time, self.batch, self.gates * self.hidden)),
            self._part(2, direction),
            self.hidden,
            order,
            self._lengths(),
            self.activations[direction],
        )

    def bias(self, direction: int, with_state_bias: bool) -> Expr:
        """[gates * hidden]: the bias of W, plus that of R when asked for."""
        size = self.gates * self.hidden
        both = self._part(3, direction)
        own = op.strided_slice(both, (0,), (size,), (1,), axes=(0,))
        return op.add(own, self.state_bias(direction)) if with_state_bias else own

    def state_bias(self, direction: int) -> Expr:
        size = self.gates * self.hidden
        return op.strided_slice(self._part(3, direction), (size,), (2 * size,), (1,), axes=(0,))

    def initial(self, index: int, direction: int) -> Expr:
        """The initial state [batch, hidden] from input `index`; zeros when it is left out."""
        if self.node.get(index) is None:
            return Constant(np.zeros((self.batch, self.hidden), str(self.x.dtype)))
        if self.batch_first:
            state = transposed(self.node[index], (1, 0, 2))
            return _field(state, direction)
        return self._part(index, direction)

    def _part(self, index: int, direction: int) -> Expr:
        return _field(self.node[index], direction)

    def _lengths(self) -> Expr | None:
        """Lengths of the sequences [batch]; None when all are full."""
        known = self.node.known_value(4)
        if self.node.get(4) is None or (known is not None and bool(np.all(known == self.time))):
            return None
        return self.node[4]

    def clipped(self, x: Expr) -> Expr:
        """Gates are limited to -clip .. clip before their activation."""
        return x if self.clip is None else op.clip(x, -self.clip, self.clip)

    def outputs(self, per_direction: Sequence[tuple[dict[int, Expr], Sequence[Expr]]]) -> list[Expr | None]:
        """Y [time, directions, batch, hidden] and the final states [directions, batch, hidden], laid out as asked."""
        states = len(per_direction[0][1])
        results: list[Expr | None] = [self._all_steps([ys for ys, _ in per_direction]) if self.node.wants(0) else None]
        for i in range(states):
            final = op.concatenate([op.expand_dims(last[i], 0) for _, last in per_direction], axis=0)
            results.append(transposed(final, (1, 0, 2)) if self.batch_first else final)
        return results

    def _all_steps(self, ys: Sequence[dict[int, Expr]]) -> Expr:
        rows = [
            op.concatenate([op.expand_dims(steps[t], 0) for t in range(self.time)], axis=0) for steps in ys
        ]  # [time, batch, hidden] of each direction
        y = op.concatenate([op.expand_dims(r, 1) for r in rows], axis=1)
        return transposed(y, (2, 0, 1, 3)) if self.batch_first else y


def _field(x: Expr, index: int) -> Expr:
    """x[index] along axis 0."""
    if isinstance(x, Constant):
        return Constant(x.data[index], span=x.span)
    if x.shape[0] == 1:
        return op.squeeze(x, axis=(0,))
    return op.squeeze(op.strided_slice(x, (index,), (index + 1,), (1,), axes=(0,)), axis=(0,))


def _activation(node: OnnxNode, name: str, alphas: list[float], betas: list[float]) -> Activation:
    """The function `name`, taking its parameters off the front of `alphas` and `betas`."""

    def parameter(values: list[float], default: float) -> float:
        return values.pop(0) if values else default

    lowered = name.lower()
    if lowered == "sigmoid":
        return op.sigmoid
    if lowered == "tanh":
        return op.tanh
    if lowered == "relu":
        return op.nn.relu
    if lowered == "hardsigmoid":
        alpha, beta = parameter(alphas, 0.2), parameter(betas, 0.5)
        return lambda x: op.clip(op.add(op.multiply(float_const(alpha, x), x), float_const(beta, x)), 0.0, 1.0)
    if lowered == "leakyrelu":
        alpha = parameter(alphas, 0.01)
        return lambda x: op.nn.leaky_relu(x, alpha)
    if lowered == "affine":
        alpha, beta = parameter(alphas, 1.0), parameter(betas, 0.0)
        return lambda x: op.add(op.multiply(float_const(alpha, x), x), float_const(beta, x))
    if lowered == "scaledtanh":
        alpha, beta = parameter(alphas, 1.0), parameter(betas, 1.0)
        return lambda x: op.multiply(float_const(alpha, x), op.tanh(op.multiply(float_const(beta, x), x)))
    if lowered == "softsign":
        return lambda x: op.divide(x, op.add(float_const(1.0, x), op.abs(x)))
    raise node.unsupported(f"the activation {name!r}", expected="Sigmoid, Tanh, Relu, HardSigmoid, LeakyRelu, Affine")


@converter("LSTM", since=1)
def lstm(node: OnnxNode) -> list[Expr | None]:
    """Gates in the order input, output, forget, cell; optional peepholes in the order input, output, forget."""
    common = _Recurrent(node, 4, ("Sigmoid", "Tanh", "Tanh"))
    input_forget = node.attr_bool("input_forget", False)
    return common.outputs([_lstm_direction(common, d, input_forget) for d in range(common.directions)])


def _lstm_direction(common: _Recurrent, direction: int, input_forget: bool) -> tuple[dict[int, Expr], list[Expr]]:
    sequence = common.sequence(direction, with_state_bias=True)
    h, c = common.initial(5, direction), common.initial(6, direction)
    gate, cell, out = sequence.activations
    peepholes = _peepholes(common, direction)
    ys: dict[int, Expr] = {}
    for step in sequence.steps:
        total = op.add(sequence.at(step), op.nn.dense(h, sequence.recurrence))
        i, o, f, g = sequence.gates(total, 4)
        if peepholes is not None:
            i, f = op.add(i, op.multiply(peepholes[0], c)), op.add(f, op.multiply(peepholes[2], c))
        i = gate(common.clipped(i))
        f = op.subtract(float_const(1.0, i), i) if input_forget else gate(common.clipped(f))
        new_c = op.add(op.multiply(f, c), op.multiply(i, cell(common.clipped(g))))
        o = op.add(o, op.multiply(peepholes[1], new_c)) if peepholes is not None else o
        new_h = op.multiply(gate(common.clipped(o)), out(new_c))
        ys[step] = sequence.live(step, new_h, float_const(0.0, h))
        h, c = sequence.live(step, new_h, h), sequence.live(step, new_c, c)
    return ys, [h, c]


def _peepholes(common: _Recurrent, direction: int) -> list[Expr] | None:
    """Weights [hidden] of the input, output and forget peepholes; None when they are absent or zero."""
    node = common.node
    if node.get(7) is None:
        return None
    known = node.known_value(7)
    if known is not None and not np.any(known):
        return None
    weights = _field(node[7], direction)
    size = common.hidden
    return [op.strided_slice(weights, (g * size,), ((g + 1) * size,), (1,), axes=(0,)) for g in range(3)]


@converter("GRU", since=1)
def gru(node: OnnxNode) -> list[Expr | None]:
    """Gates in the order update, reset, hidden."""
    common = _Recurrent(node, 3, ("Sigmoid", "Tanh"))
    reset_after = node.attr_bool("linear_before_reset", False)
    return common.outputs([_gru_direction(common, d, reset_after) for d in range(common.directions)])


def _gru_direction(common: _Recurrent, direction: int, reset_after: bool) -> tuple[dict[int, Expr], list[Expr]]:
    sequence = common.sequence(direction, with_state_bias=False)
    h = common.initial(5, direction)
    gate, candidate = sequence.activations
    size = common.hidden
    has_bias = common.node.get(3) is not None
    bias = common.state_bias(direction) if has_bias else None
    gate_rows = op.strided_slice(sequence.recurrence, (0,), (2 * size,), (1,), axes=(0,))
    hidden_rows = op.strided_slice(sequence.recurrence, (2 * size,), (3 * size,), (1,), axes=(0,))

    def bias_part(first: int, last: int) -> Expr | None:
        if bias is None:
            return None
        return op.strided_slice(bias, (first * size,), (last * size,), (1,), axes=(0,))

    def product(x: Expr, rows: Expr, offset: Expr | None) -> Expr:
        result = op.nn.dense(x, rows)
        return result if offset is None else op.add(result, offset)

    gate_bias, hidden_bias = bias_part(0, 2), bias_part(2, 3)
    ys: dict[int, Expr] = {}
    for step in sequence.steps:
        xz, xr, xh = sequence.gates(sequence.at(step), 3)
        hz, hr = sequence.gates(product(h, gate_rows, gate_bias), 2)
        z = gate(common.clipped(op.add(xz, hz)))
        r = gate(common.clipped(op.add(xr, hr)))
        if reset_after:
            recurrent = op.multiply(r, product(h, hidden_rows, hidden_bias))
        else:
            recurrent = product(op.multiply(r, h), hidden_rows, hidden_bias)
        n = candidate(common.clipped(op.add(xh, recurrent)))
        new_h = op.add(op.multiply(op.subtract(float_const(1.0, z), z), n), op.multiply(z, h))
        ys[step] = sequence.live(step, new_h, float_const(0.0, h))
        h = sequence.live(step, new_h, h)
    return ys, [h]


@converter("RNN", since=1)
def rnn(node: OnnxNode) -> list[Expr | None]:
    common = _Recurrent(node, 1, ("Tanh",))
    return common.outputs([_rnn_direction(common, d) for d in range(common.directions)])


def _rnn_direction(common: _Recurrent, direction: int) -> tuple[dict[int, Expr], list[Expr]]:
    sequence = common.sequence(direction, with_state_bias=True)
    h = common.initial(5, direction)
    ys: dict[int, Expr] = {}
    for step in sequence.steps:
        total = op.add(sequence.at(step), op.nn.dense(h, sequence.recurrence))
        new_h = sequence.activations[0](common.clipped(total))
        ys[step] = sequence.live(step, new_h, float_const(0.0, h))
        h = sequence.live(step, new_h, h)
    return ys, [h]

"""Recurrences over a sequence: LSTM, GRU and the plain RNN.

Inputs common to all: products (T, B, D * G * H), the input's part of the G gates of every step and of D directions,
biases included; the recurrence weights packed (D, ceil(H / NR), G, H, NR), padded with 0 (`pack_recurrence`); the
initial states (D, B, H); with `has_lengths` last the lengths (B). Results: all outputs (T, B, D, H) and the final
states (D, B, H), as a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from relayc import te, topi
from relayc.relay.expr import Call, Expr, TupleGetItem, const
from relayc.relay.op.base import (
    MixedPrecision,
    Multiplications,
    OpDef,
    OpPattern,
    attributes_of_operator,
    register_op,
)
from relayc.relay.op.broadcast import bitwise_and, bitwise_or, left_shift
from relayc.relay.op.common import Array, require, require_float, require_same_dtype, static_shape
from relayc.relay.op.elementwise import cast
from relayc.relay.op.indexing import take
from relayc.relay.op.nn.pad import pad
from relayc.relay.op.transform import reshape, transpose
from relayc.relay.type import TensorType, TupleType, Type, dims_match, shapes_match
from relayc.topi.nn.gates import Activation, Gates

__all__ = ["GRU", "LSTM", "RNN", "gru", "lstm", "pack_quantized", "pack_recurrence", "rnn", "states_stay_small"]

_BLOCK = 16
"""Hidden units of a block: whole vectors on every CPU, four gates of them in registers; half as many if the last block
would be half empty."""

_FUNCTIONS: dict[str, tuple[int, Callable[..., Array]]] = {
    "sigmoid": (0, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (0, np.tanh),
    "relu": (0, lambda x: np.maximum(x, 0)),
    "softsign": (0, lambda x: x / (1 + np.abs(x))),
    "softplus": (0, lambda x: np.logaddexp(x, 0)),
    "affine": (2, lambda x, alpha, beta: alpha * x + beta),
    "scaled_tanh": (2, lambda x, alpha, beta: alpha * np.tanh(beta * x)),
    "hard_sigmoid": (2, lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "leaky_relu": (1, lambda x, alpha: np.where(x > 0, x, alpha * x)),
    "thresholded_relu": (1, lambda x, alpha: np.where(x > alpha, x, 0)),
    "elu": (1, lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x))),
}
"""Name -> (number of parameters, function of the value and these parameters)."""


_AT_MOST_1 = ("sigmoid", "tanh", "softsign", "hard_sigmoid")
"""Functions whose values are at most 1."""


def _parts(activation: Activation) -> tuple[str, tuple[float, ...]]:
    """Name and parameters of an activation."""
    return (activation, ()) if isinstance(activation, str) else (activation[0], activation[1:])


def states_stay_small(activations: Sequence[Activation]) -> bool:
    """Are the states of an LSTM with these activations at most 1: act(o) act(c')?"""
    return all(_parts(activation)[0] in _AT_MOST_1 for activation in (*activations[:1], *activations[-1:]))


def _is_known(activation: Activation) -> bool:
    name, parameters = _parts(activation)
    return name in _FUNCTIONS and _FUNCTIONS[name][0] == len(parameters)


def _activated(activation: Activation, x: Array) -> Array:
    name, parameters = _parts(activation)
    return _FUNCTIONS[name][1](x, *parameters)


@attributes_of_operator
class _Recurrent(OpDef):
    """Base of recurrences.

    (C1) the element type is a float; (C2) of all inputs but the lengths; (C3) products are (T, B, D * G * H), the
    weights (D, ceil(H / NR), G, H, NR), where `reverse` tells for each of the D directions, one or two, whether it runs
    from the last step to the first; (C4) states are (D, B, H); (C5) as many activations as the cell has, each a name or
    a tuple of a name and its parameters; (C6) lengths are B integers. `cores`, `sums` and `vectors`: see
    `topi.nn.recurrent.Gates`.
    """

    mixed_precision = MixedPrecision.NEVER

    activations: tuple[Activation, ...]
    reverse: tuple[bool, ...] = (False,)
    clip: float | None = None
    has_lengths: bool = False
    cores: int = 0
    sums: int = 6
    vectors: int = 2

    gate_count: ClassVar[int]
    activation_count: ClassVar[int]

    def _check(
        self, products: TensorType, weight: TensorType, states: Sequence[TensorType], extra: Sequence[TensorType]
    ) -> tuple[TensorType, TensorType]:
        """The types of all outputs and of a state. `extra` ends with the lengths, if there are any."""
        require_float(1, products)
        others = extra[:-1] if self.has_lengths else extra
        require_same_dtype(2, products, weight, *states, *others)
        gates, directions = self.gate_count, len(self.reverse)
        shaped = products.ndim == 3 and weight.ndim == 5 and weight.is_static and directions in (1, 2)
        expected = (
            f"(C3) products (T, B, {directions} {gates} H) and weights ({directions}, blocks, {gates}, H, NR) expected "
            f"for {directions} directions of one or two; got {products}, {weight}"
        )
        require(shaped, expected)
        packed_directions, blocks, packed_gates, hidden, lanes = weight.static_shape
        whole = (packed_directions, packed_gates, blocks) == (directions, gates, -(-hidden // lanes))
        require(whole and dims_match(products.shape[2], directions * gates * hidden), expected)
        state = products.with_shape((directions, products.shape[1], hidden))
        for initial in states:
            require(shapes_match(initial.shape, state.shape), f"(C4) a state must be {state}; got {initial}")
        known = all(map(_is_known, self.activations)) and len(self.activations) == self.activation_count
        require(known, f"(C5) {self.activation_count} of {', '.join(_FUNCTIONS)} expected; got {self.activations}")
        if self.has_lengths:
            fits = extra[-1].dtype.is_integral and shapes_match(extra[-1].shape, (products.shape[1],))
            require(fits, f"(C6) lengths must be {products.shape[1]} integers; got {extra[-1]}")
        return products.with_shape((*products.shape[:2], directions, hidden)), state

    def _gates(self) -> Gates:
        return Gates(self.activations, self.reverse, self.clip, self.cores, self.sums, self.vectors)

    def _apply(self, number: int, x: Array) -> Array:
        limited = x if self.clip is None else np.clip(x, -self.clip, self.clip)
        return _activated(self.activations[number], limited)

    def _run(
        self,
        products: Array,
        weight: Array,
        states: Sequence[Array],
        lengths: Array | None,
        step: Callable[[int, Array, Array, list[Array]], list[Array]],
    ) -> tuple[Array, ...]:
        """All steps in float64; ``step(d, x, R (G * H, H), states)`` gives the new states, the hidden one first."""
        hidden, width = weight.shape[3], products.shape[2] // len(self.reverse)
        y = np.zeros((*products.shape[:2], len(self.reverse), hidden))
        finals: list[list[Array]] = []
        for d, recurrence in enumerate(unpacked(weight)):
            current = [s[d].astype(np.float64) for s in states]
            times = range(products.shape[0])
            for t in reversed(times) if self.reverse[d] else times:
                new = step(d, products[t, :, d * width : (d + 1) * width].astype(np.float64), recurrence, current)
                live = np.full((products.shape[1], 1), True) if lengths is None else (t < lengths)[:, None]
                y[t, :, d] = np.where(live, new[0], 0)
                current = [np.where(live, n, c) for n, c in zip(new, current, strict=True)]
            finals.append(current)
        return tuple([v.astype(products.dtype) for v in (y, *[np.stack(f) for f in zip(*finals, strict=True)])])

    def multiplications(self, types: Sequence[Type], result: Type) -> Multiplications:
        products, weight = types[:2]
        assert isinstance(products, TensorType) and isinstance(weight, TensorType)
        return ((*products.shape, weight.shape[3]),)


def unpacked(weight: Array) -> Array:
    """(D, G * H, H) as float64 from (D, ceil(H / NR), G, H, NR)."""
    directions, blocks, gates, hidden, lanes = weight.shape
    rows = weight.transpose(0, 2, 1, 4, 3).reshape(directions, gates, blocks * lanes, hidden)[:, :, :hidden]
    return rows.reshape(directions, gates * hidden, hidden).astype(np.float64)


@register_op("nn.lstm", pattern=OpPattern.OPAQUE)
class LSTM(_Recurrent):
    """The recurrence of an LSTM (ONNX: LSTM): inputs products, weights, h0, c0; results y, h, c.

    Gates in the order input, output, forget, cell: c' = f c + i g, h' = o act(c'). With `has_peepholes` (D, 3, H)
    follow c0, which adds p c to the input and forget gates and p c' to the output gate (rows input, output, forget).
    `input_forget` couples f = 1 - i. Activations: of the gates, of the cell gate, of c'. With `has_scales` the weights
    are 8-bit quantised values, two of them in an int16, (D, ceil(H / NR), 4, K, NR) (`pack_quantized`), and their
    scales (D, 4 H) are the last input; states are rounded to a 32,767th of 1 or of the largest initial state.
    Constraints as for all recurrences; (C7) peepholes are (D, 3, H); (C8) scales are (D, 4 H), of int16 weights with K
    half of the units of all blocks; (C9) with scales a state is at most 1, whatever its gates are.
    """

    activations: tuple[Activation, ...] = ("sigmoid", "tanh", "tanh")
    input_forget: bool = False
    has_peepholes: bool = False
    has_scales: bool = False
    gate_count = 4
    activation_count = 3

    def infer(
        self, products: TensorType, weight: TensorType, h0: TensorType, c0: TensorType, *extra: TensorType
    ) -> TupleType:
        self._count_extra(len(extra))
        if self.has_scales:
            weight, extra = self._dequantized_type(products, weight, extra[-1]), extra[:-1]
        y, state = self._check(products, weight, (h0, c0), extra)
        if self.has_peepholes:
            shape = (len(self.reverse), 3, state.shape[2])
            require(
                shapes_match(extra[0].shape, shape), f"(C7) peepholes must be {state.with_shape(shape)}; got {extra[0]}"
            )
        return TupleType([y, state, state])

    def _dequantized_type(self, products: TensorType, weight: TensorType, scales: TensorType) -> TensorType:
        """The type of quantised weights as floats."""
        unfit = f"(C8) scales {scales} do not fit {weight}"
        require(weight.is_static and weight.ndim == 5 and scales.is_static and scales.ndim == 2, unfit)
        directions, blocks, gates, depth, lanes = weight.static_shape
        typed = weight.dtype == "int16" and scales.dtype == products.dtype
        require(typed and scales.static_shape[0] == directions and 2 * depth == blocks * lanes, unfit)
        bounded = f"(C9) of the gates {self.activations} some are not of {', '.join(_AT_MOST_1)}"
        require(states_stay_small(self.activations), bounded)
        hidden = scales.static_shape[1] // 4
        return TensorType((directions, blocks, gates, hidden, lanes), products.dtype)

    def _count_extra(self, count: int) -> None:
        expected = int(self.has_peepholes) + int(self.has_lengths) + int(self.has_scales)
        require(count == expected, f"takes {4 + expected} inputs with these attributes, got {4 + count}")

    def compute(
        self, products: te.Tensor, weight: te.Tensor, h0: te.Tensor, c0: te.Tensor, *extra: te.Tensor
    ) -> tuple[te.Tensor, ...]:
        peephole = extra[0] if self.has_peepholes else None
        scales = extra[-1] if self.has_scales else None
        lengths = extra[int(self.has_peepholes)] if self.has_lengths else None
        return topi.nn.lstm(products, weight, h0, c0, peephole, lengths, self._gates(), self.input_forget, scales)

    def reference(self, products: Array, weight: Array, h0: Array, c0: Array, *extra: Array) -> tuple[Array, ...]:
        directions, hidden = weight.shape[0], h0.shape[2]
        weight = _unpacked_quantized(weight)[:, :, :, :hidden] if self.has_scales else weight
        peepholes = extra[0].astype(np.float64) if self.has_peepholes else np.zeros((directions, 3, hidden))
        scales = extra[-1].astype(np.float64) if self.has_scales else np.ones((directions, 4 * hidden))
        lengths = extra[int(self.has_peepholes)] if self.has_lengths else None

        def step(d: int, x: Array, recurrence: Array, states: list[Array]) -> list[Array]:
            (h, c), p, recurrence = states, peepholes[d], recurrence * scales[d][:, None]
            i, o, f, g = np.split(x + h @ recurrence.T, [hidden, 2 * hidden, 3 * hidden], 1)
            i = self._apply(0, i + p[0] * c)
            f = 1 - i if self.input_forget else self._apply(0, f + p[2] * c)
            c = f * c + i * self._apply(1, g)
            return [self._apply(0, o + p[1] * c) * _activated(self.activations[2], c), c]

        return self._run(products, weight, (h0, c0), lengths, step)


@register_op("nn.gru", pattern=OpPattern.OPAQUE)
class GRU(_Recurrent):
    """The recurrence of a GRU (ONNX: GRU): inputs products, weights, h0, hidden_bias (D, H); results y, h.

    Gates in the order update z, reset r, hidden n: h' = (1 - z) n + z h. With `reset_after` n = act(x + r (h R^T +
    hidden_bias)), else n = act(x + (r h) R^T + hidden_bias). Activations: of the gates, of n. Constraints as for all
    recurrences; (C7) hidden_bias is (D, H).
    """

    activations: tuple[Activation, ...] = ("sigmoid", "tanh")
    reset_after: bool = False
    gate_count = 3
    activation_count = 2

    def infer(
        self, products: TensorType, weight: TensorType, h0: TensorType, hidden_bias: TensorType, *lengths: TensorType
    ) -> TupleType:
        require(
            len(lengths) == int(self.has_lengths), f"takes {4 + int(self.has_lengths)} inputs with these attributes"
        )
        y, state = self._check(products, weight, (h0,), (hidden_bias, *lengths))
        expected = (len(self.reverse), state.shape[2])
        require(shapes_match(hidden_bias.shape, expected), f"(C7) hidden_bias must be {expected}; got {hidden_bias}")
        return TupleType([y, state])

    def compute(
        self, products: te.Tensor, weight: te.Tensor, h0: te.Tensor, hidden_bias: te.Tensor, *lengths: te.Tensor
    ) -> tuple[te.Tensor, ...]:
        last = lengths[0] if self.has_lengths else None
        return topi.nn.gru(products, weight, h0, hidden_bias, last, self._gates(), self.reset_after)

    def reference(
        self, products: Array, weight: Array, h0: Array, hidden_bias: Array, *lengths: Array
    ) -> tuple[Array, ...]:
        hidden, biases = weight.shape[3], hidden_bias.astype(np.float64)

        def step(d: int, x: Array, recurrence: Array, states: list[Array]) -> list[Array]:
            (h,), bias = states, biases[d]
            rz, rr, rn = np.split(recurrence, 3)
            xz, xr, xn = np.split(x, [hidden, 2 * hidden], 1)
            z, r = self._apply(0, xz + h @ rz.T), self._apply(0, xr + h @ rr.T)
            inner = r * (h @ rn.T + bias) if self.reset_after else (r * h) @ rn.T + bias
            return [(1 - z) * self._apply(1, xn + inner) + z * h]

        return self._run(products, weight, (h0,), lengths[0] if self.has_lengths else None, step)


@register_op("nn.rnn", pattern=OpPattern.OPAQUE)
class RNN(_Recurrent):
    """h' = act(x + h R^T) (ONNX: RNN): inputs products, weights, h0; results y, h."""

    activations: tuple[Activation, ...] = ("tanh",)
    gate_count = 1
    activation_count = 1

    def infer(self, products: TensorType, weight: TensorType, h0: TensorType, *lengths: TensorType) -> TupleType:
        require(
            len(lengths) == int(self.has_lengths), f"takes {3 + int(self.has_lengths)} inputs with these attributes"
        )
        y, state = self._check(products, weight, (h0,), lengths)
        return TupleType([y, state])

    def compute(
        self, products: te.Tensor, weight: te.Tensor, h0: te.Tensor, *lengths: te.Tensor
    ) -> tuple[te.Tensor, ...]:
        return topi.nn.rnn(products, weight, h0, lengths[0] if self.has_lengths else None, self._gates())

    def reference(self, products: Array, weight: Array, h0: Array, *lengths: Array) -> tuple[Array, ...]:
        def step(_: int, x: Array, recurrence: Array, states: list[Array]) -> list[Array]:
            return [self._apply(0, x + states[0] @ recurrence.T)]

        return self._run(products, weight, (h0,), lengths[0] if self.has_lengths else None, step)


def pack_recurrence(weight: Expr, gates: int) -> Expr:
    """Weights (D, G * H, H) packed (D, ceil(H / NR), G, H, NR) for the recurrences; constant weights fold."""
    directions, _, hidden = static_shape(weight, 3)
    lanes = _BLOCK // 2 if 0 < hidden % _BLOCK <= _BLOCK // 2 else _BLOCK
    blocks = -(-hidden // lanes)
    rows = reshape(weight, (directions, gates, hidden, hidden))
    whole = pad(rows, ((0, 0), (0, 0), (0, blocks * lanes - hidden), (0, 0)))
    return transpose(reshape(whole, (directions, gates, blocks, lanes, hidden)), (0, 2, 1, 4, 3))


def pack_quantized(weight: Expr, gates: int) -> Expr:
    """8-bit quantised weights (D, G * H, H) packed (D, ceil(H / NR), G, K, NR) as int16; constant ones fold.

    Units k and k + NR / 2 of a block of the state stand in lower and upper bytes; K is half of all blocks' units.
    """
    directions, _, hidden = static_shape(weight, 3)
    blocks, half = -(-hidden // _BLOCK), _BLOCK // 2
    missing = blocks * _BLOCK - hidden
    rows = reshape(cast(weight, "int16"), (directions, gates, hidden, hidden))
    whole = reshape(
        pad(rows, ((0, 0), (0, 0), (0, missing), (0, missing))),
        (directions, gates, blocks, _BLOCK, blocks, 2, half),
    )
    low, high = [
        reshape(transpose(take(whole, const(part, "int32"), axis=5), (0, 2, 1, 4, 5, 3)),
                (directions, blocks, gates, blocks * half, _BLOCK))
        for part in range(2)
    ]  # fmt: skip
    return bitwise_or(bitwise_and(low, const(0xFF, "int16")), left_shift(high, const(8, "int16")))


def _unpacked_quantized(weight: Array) -> Array:
    """Quantised weights (D, blocks, G, 2 K, NR) from (D, blocks, G, K, NR)."""
    lanes = weight.shape[-1]
    low, high = ((weight & 0xFF) ^ 0x80) - 0x80, weight >> 8
    shape = (*weight.shape[:3], weight.shape[3] * 2 // lanes, lanes // 2, lanes)
    halves = np.stack([low.reshape(shape), high.reshape(shape)], axis=4)
    return halves.reshape(*weight.shape[:3], -1, lanes)


def _results(call: Call, count: int) -> tuple[TupleGetItem, ...]:
    return tuple([TupleGetItem(call, i) for i in range(count)])


def lstm(
    products: Expr,
    weight: Expr,
    h0: Expr,
    c0: Expr,
    peepholes: Expr | None = None,
    lengths: Expr | None = None,
    *,
    activations: tuple[Activation, ...] = ("sigmoid", "tanh", "tanh"),
    reverse: tuple[bool, ...] = (False,),
    clip: float | None = None,
    input_forget: bool = False,
    scales: Expr | None = None,
) -> tuple[TupleGetItem, ...]:
    """y (T, B, D, H), h and c (D, B, H) of products (T, B, D 4 H) and `weight` (D, 4 H, H); see `LSTM`.

    With `scales` (D, 4 H) the weights are int8.
    """
    operator = LSTM(
        activations=activations, reverse=reverse, clip=clip, has_lengths=lengths is not None,
        input_forget=input_forget, has_peepholes=peepholes is not None, has_scales=scales is not None,
    )  # fmt: skip
    extra = [e for e in (peepholes, lengths, scales) if e is not None]
    pack = pack_recurrence if scales is None else pack_quantized
    return _results(operator(products, pack(weight, 4), h0, c0, *extra), 3)


def gru(
    products: Expr,
    weight: Expr,
    h0: Expr,
    hidden_bias: Expr,
    lengths: Expr | None = None,
    *,
    activations: tuple[Activation, ...] = ("sigmoid", "tanh"),
    reverse: tuple[bool, ...] = (False,),
    clip: float | None = None,
    reset_after: bool = False,
) -> tuple[TupleGetItem, ...]:
    """y (T, B, D, H) and h (D, B, H) of products (T, B, D 3 H) and `weight` (D, 3 H, H); see `GRU`."""
    operator = GRU(
        activations=activations, reverse=reverse, clip=clip, has_lengths=lengths is not None, reset_after=reset_after
    )
    extra = [] if lengths is None else [lengths]
    return _results(operator(products, pack_recurrence(weight, 3), h0, hidden_bias, *extra), 2)


def rnn(
    products: Expr,
    weight: Expr,
    h0: Expr,
    lengths: Expr | None = None,
    *,
    activations: tuple[Activation, ...] = ("tanh",),
    reverse: tuple[bool, ...] = (False,),
    clip: float | None = None,
) -> tuple[TupleGetItem, ...]:
    """y (T, B, D, H) and h (D, B, H) of products (T, B, D H) and `weight` (D, H, H); see `RNN`."""
    operator = RNN(activations=activations, reverse=reverse, clip=clip, has_lengths=lengths is not None)
    extra = [] if lengths is None else [lengths]
    return _results(operator(products, pack_recurrence(weight, 1), h0, *extra), 2)

"""Recurrences over a sequence: LSTM, GRU and the plain RNN, each one kernel for all time steps.

The input's part of the gates, X W^T + bias, is one matrix product over all steps and is made before. What is left is
the recurrence: gates = products[t] + h R^T. R is packed (ceil(H / NR), H, G, NR): a block of NR hidden units reads the
columns of its G gates, keeps the sums of some gates and some entries of the batch in registers, applies the gates and
writes its NR units. A step's blocks run in parallel. With `lengths`, step t of a batch entry counts when t < length;
otherwise its state stays as it is and its output is 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import te
from te import Tensor
from te.tir import Buffer, Dim, PrimExpr, Stmt, call_intrin, ir_builder
from te.tir.ir_builder import BufferView, IRBuilder
from topi.loops import loop_nest

__all__ = ["ACTIVATIONS", "Activation", "Gates", "gru", "lstm", "rnn"]

_PARALLEL_WORK = 1 << 16
"""Multiply-adds of a step from which on its blocks are shared between threads."""

Activation = str | tuple[Any, ...]
"""The name of a function, or a tuple of a name and its parameters."""

_SUMS = 6
"""Blocks of sums that are kept in registers at once: with vectors of half a block, twelve of sixteen."""

_ENTRIES_PER_WEIGHT = 4
"""Entries of the batch whose multiply-adds take as long as reading the weights for them from the second-level cache."""

_CHAINS = 4
"""Blocks of sums that are added to in turns: with vectors of half a block, they hide the latency of multiply-adds."""


def _c(value: float, like: PrimExpr) -> PrimExpr:
    return te.const(value, like.dtype)


def _hard_sigmoid(v: PrimExpr, alpha: float, beta: float) -> PrimExpr:
    return te.maximum(_c(0, v), te.minimum(_c(1, v), _c(alpha, v) * v + _c(beta, v)))


ACTIVATIONS: dict[str, Callable[..., PrimExpr]] = {
    "sigmoid": te.sigmoid,
    "tanh": te.tanh,
    "relu": lambda v: te.maximum(v, _c(0, v)),
    "softsign": lambda v: v / (_c(1, v) + te.abs(v)),
    "softplus": lambda v: te.maximum(v, _c(0, v)) + te.log1p(te.exp(-te.abs(v))),
    "affine": lambda v, alpha, beta: _c(alpha, v) * v + _c(beta, v),
    "scaled_tanh": lambda v, alpha, beta: _c(alpha, v) * te.tanh(_c(beta, v) * v),
    "hard_sigmoid": _hard_sigmoid,
    "leaky_relu": lambda v, alpha: te.select(v > 0, v, _c(alpha, v) * v),
    "thresholded_relu": lambda v, alpha: te.select(v > _c(alpha, v), v, _c(0, v)),
    "elu": lambda v, alpha: te.select(v > 0, v, _c(alpha, v) * te.expm1(v)),
}
"""Functions that gates may apply: name -> function of the value and its parameters."""


@dataclass(frozen=True)
class Gates:
    """How gates are computed: `activations` by name in the cell's order, arguments limited to [-clip, clip] before.

    `reverse` runs from the last step to the first.
    """

    activations: tuple[Activation, ...]
    reverse: bool = False
    clip: float | None = None

    def __call__(self, number: int, value: PrimExpr) -> PrimExpr:
        """Activation `number` of the limited `value`."""
        return self.activate(number, self.limited(value))

    def activate(self, number: int, value: PrimExpr) -> PrimExpr:
        """Activation `number` of `value`."""
        given = self.activations[number]
        name, *parameters = (given,) if isinstance(given, str) else given
        return ACTIVATIONS[name](value, *parameters)

    def limited(self, value: PrimExpr) -> PrimExpr:
        """`value` within [-clip, clip]."""
        if self.clip is None:
            return value
        return te.maximum(te.minimum(value, te.const(self.clip, value.dtype)), te.const(-self.clip, value.dtype))


class _Recurrence:
    """The loops that all recurrences share; `h` holds two copies of the hidden state, read and written in turns."""

    def __init__(
        self, ib: IRBuilder, products: Buffer, weights: Buffer, h0: Buffer, lengths: Buffer | None, gates: Gates
    ) -> None:
        self.ib, self.gates = ib, gates
        self.products, self.weights = ib.buffer(products), ib.buffer(weights)
        self.lengths = None if lengths is None else ib.buffer(lengths)
        self.steps, self.batch, _ = products.shape
        self.blocks, self.hidden, count, self.lanes = (int(d) for d in weights.shape)  # type: ignore[arg-type]
        self.gate_count = count
        self.weights_per_step = count * self.hidden * self.hidden
        self.dtype = products.dtype
        self.h = self.state("h", 2)
        self.load(self.h, h0)

    def state(self, name: str, copies: int) -> BufferView:
        """Room for `copies` of a state, whole blocks of units."""
        shape: tuple[Dim, ...] = (copies, self.batch, self.blocks * self.lanes)
        return self.ib.allocate(self.dtype, shape, name, scope="global")

    def load(self, state: BufferView, source: Buffer) -> None:
        """Copy 0 of `state` from (B, H); units that fill up the last block are 0."""
        given = self.ib.buffer(source)
        units = self.blocks * self.lanes
        with loop_nest(self.ib, (self.batch, units), independent=True) as (b, j):
            state[0, b, j] = te.if_then_else(j < self.hidden, given[b, j], te.const(0, self.dtype))

    def store(self, out: Buffer, state: BufferView, copy: Any) -> None:
        """(B, H) from a copy of `state`."""
        result = self.ib.buffer(out)
        with loop_nest(self.ib, (self.batch, self.hidden), independent=True) as (b, j):
            result[b, j] = state[copy, b, j]

    @contextmanager
    def each_step(self) -> Generator[tuple[Any, Any, Any], None, None]:
        """All steps: the time, the copy of `h` to read and the one to write."""
        with self.ib.for_range(0, self.steps, "step") as step:
            time = self.steps - 1 - step if self.gates.reverse else step
            now = self.ib.let("now", step % 2)
            yield time, now, 1 - now

    @contextmanager
    def each_block(self) -> Generator[Any, None, None]:
        """All blocks of units, in parallel when a step is worth it."""
        work = self.weights_per_step * (self.batch if isinstance(self.batch, int) else 1)
        kind = "parallel" if work >= _PARALLEL_WORK else "serial"
        with self.ib.for_range(0, self.blocks, "block", kind, independent=True) as block:
            yield block

    @contextmanager
    def each_entry(self) -> Generator[Any, None, None]:
        """All entries of the batch."""
        with self.ib.for_range(0, self.batch, "b", independent=True) as b:
            yield b

    @contextmanager
    def each_unit(self, block: Any) -> Generator[tuple[Any, Any], None, None]:
        """All units of a block as one vector: the lane, and the unit."""
        with self.ib.for_range(0, self.lanes, "lane", kind="vectorized") as lane:
            yield lane, block * self.lanes + lane

    def sums(self, source: BufferView, copy: Any, block: Any, gates: Sequence[int]) -> BufferView:
        """A state times the columns of `gates` of one block: for each entry of the batch, NR sums for each gate.

        Some entries and gates at a time, as many sums as stay in registers: a weight that is read serves all entries.
        """
        ib, batch = self.ib, self.batch
        total = ib.allocate(self.dtype, (batch, len(gates) * self.lanes), "total", scope="global")
        rows, together = _sums_at_once(batch, len(gates))
        passes = 0 if not isinstance(batch, int) else batch // rows * len(gates) // together
        for first in range(0, len(gates), together):
            part = [(g, gates[g]) for g in range(first, first + together)]
            with ib.for_range(0, batch // rows, "tile", independent=True) as tile:
                number = first // together * (batch // rows) + tile
                self._sum_tile(total, source, copy, block, tile * rows, rows, part, (number, passes))
            if isinstance(batch, int) and batch % rows:
                rest = batch % rows
                self._sum_tile(total, source, copy, block, batch - rest, rest, part, (0, 0))
        return total

    def _sum_tile(
        self, total: BufferView, source: BufferView, copy: Any, block: Any, first: Any, rows: int,
        gates: Sequence[tuple[int, int]], progress: tuple[Any, int],
    ) -> None:  # fmt: skip
        """The sums of `rows` entries from `first` on, for (place in the sums, gate).

        `progress` is (which pass over the block's weights this is, of how many): spread over them the next block's
        weights are fetched; none where there are too few.
        Few are summed in several chains, each over every so many units of the state, so that one multiply-add need not
        wait for the one before.
        """
        ib, lanes, width = self.ib, self.lanes, rows * len(gates) * self.lanes
        chains = math.gcd(max(_CHAINS // (rows * len(gates)), 1), self.hidden)
        sums = ib.allocate(self.dtype, chains * width, "sums", scope="local")
        pairs = list(itertools.product(range(rows), gates))

        def vector() -> Any:
            return ib.for_range(0, lanes, "lane", kind="vectorized")

        for start in range(0, chains * width, lanes):
            with vector() as lane:
                sums[start + lane] = te.const(0, self.dtype)
        number, passes = progress
        with ib.for_range(0, self.hidden // chains, "k") as k:
            if passes >= self.gate_count and chains == 1:
                self._fetch_ahead(block, (number * self.hidden + k) * self.gate_count // passes)
            for chain, (n, (row, (_, gate))) in itertools.product(range(chains), enumerate(pairs)):
                with vector() as lane:
                    at, unit = chain * width + n * lanes + lane, k * chains + chain
                    sums[at] = sums[at] + source[copy, first + row, unit] * self.weights[block, unit, gate, lane]
        for start in range(width, chains * width, lanes):
            with vector() as lane:
                sums[start % width + lane] = sums[start % width + lane] + sums[start + lane]
        for n, (row, (place, _)) in enumerate(pairs):
            with vector() as lane:
                total[first + row, place * lanes + lane] = sums[n * lanes + lane]

    def _fetch_ahead(self, block: Any, line: Any) -> None:
        """Prefetch NR weights of the next block, those of unit and gate number `line`."""
        index = te.min(block + 1, self.blocks - 1), line // self.gate_count, line % self.gate_count, 0
        address = call_intrin("handle", "address_of", self.weights[index])
        self.ib.emit(call_intrin("int32", "prefetch", address, 3, 0))

    def read(self, source: BufferView, index: Sequence[Any], unit: Any) -> PrimExpr:
        """``source[*index, unit]``, 0 for units that fill up the last block. `index` may end with an offset."""
        *outer, offset = index
        value = source[(*outer, offset + unit)]
        if self.hidden % self.lanes == 0:
            return value
        return te.if_then_else(unit < self.hidden, value, te.const(0, self.dtype))

    def product(self, time: Any, b: Any, gate: int, unit: Any) -> PrimExpr:
        """The input's part of `gate` for `unit`."""
        return self.read(self.products, (time, b, gate * self.hidden), unit)

    def kept(self, time: Any, b: Any, new: PrimExpr, old: PrimExpr) -> PrimExpr:
        """`new` while the sequence lasts, then `old`."""
        if self.lengths is None:
            return new
        return te.select(time < te.cast("int32", self.lengths[b]), new, old)

    def finish(self, y: BufferView, time: Any, b: Any, unit: Any, value: PrimExpr, now: Any, after: Any) -> None:
        """The new hidden state of a unit, and the output of the step."""
        self.h[after, b, unit] = self.kept(time, b, value, self.h[now, b, unit])
        result = self.kept(time, b, self.h[after, b, unit], te.const(0, self.dtype))
        if self.hidden % self.lanes == 0:
            y[time, b, unit] = result
        else:
            with self.ib.if_scope(unit < self.hidden):
                y[time, b, unit] = result


def _sums_at_once(batch: Dim, gates: int) -> tuple[int, int]:
    """(entries of the batch, gates) whose sums are kept in registers at once.

    An entry by itself reads each weight once, and has all of its gates at once.
    """
    if not isinstance(batch, int) or batch == 1:
        return 1, gates

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        rows, together = tile
        return -(-batch // rows) * max(rows, _ENTRIES_PER_WEIGHT), -together

    widths = [n for n in range(1, min(gates, _SUMS) + 1) if gates % n == 0]
    return min(((rows, n) for n in widths for rows in range(1, min(batch, _SUMS // n) + 1)), key=cost)


def _extern(
    name: str, products: Tensor, weight: Tensor, inputs: Sequence[Tensor | None], states: int, fill: Any
) -> tuple[Tensor, ...]:
    """The operation with results y (T, B, H) and `states` final states (B, H)."""
    steps, batch, _ = products.shape
    hidden = weight.shape[1]
    shapes = [(steps, batch, hidden), *[(batch, hidden)] * states]
    given = [products, weight, *[t for t in inputs if t is not None]]
    present = [t is not None for t in inputs]

    def body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        rest = iter(ins[2:])
        ib = ir_builder.create()
        fill(ib, [ins[0], ins[1], *[next(rest) if p else None for p in present]], outs)
        return ib.get()

    kinds = [products.dtype] * len(shapes)
    return tuple(te.extern(shapes, given, body, name=name, dtype=kinds, tag="recurrent"))


def lstm(
    products: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    peephole: Tensor | None,
    lengths: Tensor | None,
    gates: Gates,
    input_forget: bool = False,
) -> tuple[Tensor, ...]:
    """y (T, B, H), h (B, H), c (B, H) of products (T, B, 4H), gates in the order input, output, forget, cell.

    c' = f c + i g and h' = o act(c'); `peephole` (3, H) adds p c to the input and forget gates and p c' to the output
    gate; `input_forget` couples f = 1 - i. Activations: of the gates, of the cell gate, of c'.
    """

    def fill(ib: IRBuilder, ins: Sequence[Any], outs: Sequence[Buffer]) -> None:
        r = _Recurrence(ib, ins[0], ins[1], ins[2], ins[5], gates)
        y, c = ib.buffer(outs[0]), r.state("c", 1)
        r.load(c, ins[3])
        peep = None if ins[4] is None else ib.buffer(ins[4])

        def looked(value: PrimExpr, number: int, b: Any, unit: Any) -> PrimExpr:
            return value if peep is None else value + r.read(peep, (number, 0), unit) * c[0, b, unit]

        with r.each_step() as (time, now, after), r.each_block() as block:
            total = r.sums(r.h, now, block, (0, 1, 2, 3))
            with r.each_entry() as b, r.each_unit(block) as (lane, unit):
                i, o, f, g = [r.product(time, b, k, unit) + total[b, k * r.lanes + lane] for k in range(4)]
                total[b, lane] = gates(0, looked(i, 0, b, unit))
                i = total[b, lane]
                f = te.const(1, r.dtype) - i if input_forget else gates(0, looked(f, 2, b, unit))
                c[0, b, unit] = r.kept(time, b, f * c[0, b, unit] + i * gates(1, g), c[0, b, unit])
                h = gates(0, looked(o, 1, b, unit)) * gates.activate(2, c[0, b, unit])
                r.finish(y, time, b, unit, h, now, after)
        r.store(outs[1], r.h, r.steps % 2)
        r.store(outs[2], c, 0)

    return _extern("lstm", products, weight, (h0, c0, peephole, lengths), 2, fill)


def gru(
    products: Tensor,
    weight: Tensor,
    h0: Tensor,
    hidden_bias: Tensor,
    lengths: Tensor | None,
    gates: Gates,
    reset_after: bool,
) -> tuple[Tensor, ...]:
    """y (T, B, H), h (B, H) of products (T, B, 3H), gates in the order update z, reset r, hidden n.

    h' = (1 - z) n + z h. With `reset_after` n = act(x + r (h R^T + hidden_bias)), else n = act(x + (r h) R^T +
    hidden_bias). Activations: of the gates, of n.
    """

    def fill(ib: IRBuilder, ins: Sequence[Any], outs: Sequence[Buffer]) -> None:
        r = _Recurrence(ib, ins[0], ins[1], ins[2], ins[4], gates)
        y, bias, z = ib.buffer(outs[0]), ib.buffer(ins[3]), r.state("z", 1)
        reset_state = None if reset_after else r.state("reset_state", 1)

        def mixed(new: PrimExpr, now: Any, b: Any, unit: Any) -> PrimExpr:
            return (te.const(1, r.dtype) - z[0, b, unit]) * new + z[0, b, unit] * r.h[now, b, unit]

        with r.each_step() as (time, now, after):
            with r.each_block() as block:
                total = r.sums(r.h, now, block, (0, 1, 2) if reset_after else (0, 1))
                with r.each_entry() as b, r.each_unit(block) as (lane, unit):
                    z[0, b, unit] = gates(0, r.product(time, b, 0, unit) + total[b, lane])
                    reset = gates(0, r.product(time, b, 1, unit) + total[b, r.lanes + lane])
                    if reset_state is None:
                        inner = total[b, 2 * r.lanes + lane] + r.read(bias, (0,), unit)
                        new = gates(1, r.product(time, b, 2, unit) + reset * inner)
                        r.finish(y, time, b, unit, mixed(new, now, b, unit), now, after)
                    else:
                        reset_state[0, b, unit] = reset * r.h[now, b, unit]
            if reset_state is not None:
                with r.each_block() as block:
                    total = r.sums(reset_state, 0, block, (2,))
                    with r.each_entry() as b, r.each_unit(block) as (lane, unit):
                        new = gates(1, r.product(time, b, 2, unit) + total[b, lane] + r.read(bias, (0,), unit))
                        r.finish(y, time, b, unit, mixed(new, now, b, unit), now, after)
        r.store(outs[1], r.h, r.steps % 2)

    return _extern("gru", products, weight, (h0, hidden_bias, lengths), 1, fill)


def rnn(products: Tensor, weight: Tensor, h0: Tensor, lengths: Tensor | None, gates: Gates) -> tuple[Tensor, ...]:
    """y (T, B, H), h (B, H) of products (T, B, H); h' = act(x + h R^T)."""

    def fill(ib: IRBuilder, ins: Sequence[Any], outs: Sequence[Buffer]) -> None:
        r = _Recurrence(ib, ins[0], ins[1], ins[2], ins[3], gates)
        y = ib.buffer(outs[0])
        with r.each_step() as (time, now, after), r.each_block() as block:
            total = r.sums(r.h, now, block, (0,))
            with r.each_entry() as b, r.each_unit(block) as (lane, unit):
                value = gates(0, r.product(time, b, 0, unit) + total[b, lane])
                r.finish(y, time, b, unit, value, now, after)
        r.store(outs[1], r.h, r.steps % 2)

    return _extern("rnn", products, weight, (h0, lengths), 1, fill)

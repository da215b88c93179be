"""The loops common to all recurrences: LSTM, GRU and the plain RNN, each one kernel for all time steps.

The input's contribution to the gates, X W^T + bias, is one matrix product over all steps and directions, computed
before. The recurrence remains: gates = products[t] + h R^T. R is packed (D, ceil(H / NR), G, H, NR): a block of NR
hidden units reads the panels of its G gates, keeps the sums of some gates and batch entries in registers, applies the
gates and writes its NR units. Weights may be quantised to a byte: then states are rounded to 16 bits, and 2-way dot
products are summed in integers. With `lengths`, step t of a batch entry counts when t < length; otherwise its state
stays as it is and its output is 0.

Threads share the D directions where these divide evenly: each runs all steps of its own without synchronisation.
Otherwise they share the blocks of each step. In every other step a thread visits its blocks in reverse order, as the
weights that it read last are still in its second-level cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relayc import te
from relayc.te.tir import Buffer, Dim, PrimExpr, call_intrin
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.te.tir.ops import bitwise_and, bitwise_or, left_shift
from relayc.topi.loops import loop_nest
from relayc.topi.nn.gates import Gates
from relayc.topi.utils import accumulator_type

__all__ = ["Block", "Recurrence", "Step"]

_PARALLEL_WORK, _PARALLEL_STEP = 1 << 16, 1 << 14
"""The least multiply-adds of all steps, and of a single one, for which threads share blocks, with a barrier after each
step. A step of 12,000 takes as long on two threads as on one, one of 16,000 two thirds of the time."""

_PREFETCHED_BYTES = 4 << 20
"""The least bytes of a direction's weights for which panels are prefetched. Measured with 8 entries: without
prefetching 1 MB streams 5 % faster, 4 MB 5 to 8 % slower."""

_LARGEST_STATE = (1 << 15) - 1
"""The integer to which 1, or the largest initial state, is quantised."""

_ACCUMULATORS = 8
"""Vectors of independent accumulators, which hide the latency of multiply-adds. With as many batch entries, of a vector
each, multiply-adds take as long as reading their weights from the second-level cache."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step: its number, the copies of `h` to read and to write, and the direction; None: all directions."""

    number: Any
    now: Any
    after: Any
    direction: Any = None


@dataclass(frozen=True, slots=True)
class Block:
    """A block of units of one direction in a step: its time in the sequence and the copies of `h` to use."""

    direction: Any
    number: Any
    time: Any
    now: Any
    after: Any


class Recurrence:
    """The loops common to all recurrences; `h` holds two copies of the hidden states, read and written alternately.

    States and sums of 16-bit floats are float32, `dtype`: only weights, inputs and results have 16 bits.
    With quantised weights, the `depth` steps of a sum are two units each, `codes` holds copies of the states as pairs
    of integers, and `unit` (D, B) their scales.
    """

    def __init__(
        self, ib: IRBuilder, products: Buffer, weights: Buffer, h0: Buffer, lengths: Buffer | None, gates: Gates
    ) -> None:
        self.ib, self.gates = ib, gates
        self.products, self.weights = ib.buffer(products), ib.buffer(weights)
        self.lengths = None if lengths is None else ib.buffer(lengths)
        self.steps, self.batch, _ = products.shape
        shape: list[int] = [int(d) for d in weights.shape]  # type: ignore[arg-type]
        self.directions, self.blocks, self.gate_count, self.depth, self.lanes = shape
        self.direction_bytes = math.prod(shape[1:]) * weights.dtype.nbytes
        self.hidden = int(h0.shape[-1])  # type: ignore[arg-type]
        self.dtype = accumulator_type(str(products.dtype))
        self.h = self.state("h", 2)
        self.load(self.h, h0)
        self.codes: BufferView | None = None
        if weights.dtype == "int16":
            self.codes = ib.allocate("int32", (2, self.directions, self.batch, self.depth), "codes", scope="global")
            self.unit = ib.allocate(self.dtype, (self.directions, self.batch), "unit", scope="global")
            self._encode_first()

    def state(self, name: str, copies: int) -> BufferView:
        """Allocate `copies` of the states, in whole blocks of units."""
        shape: tuple[Dim, ...] = (copies, self.directions, self.batch, self.blocks * self.lanes)
        return self.ib.allocate(self.dtype, shape, name, scope="global")

    def load(self, state: BufferView, source: Buffer) -> None:
        """Load copy 0 of `state` from (D, B, H); padding units of the last block are 0."""
        initial = self.ib.buffer(source)
        units = self.blocks * self.lanes
        with loop_nest(self.ib, (self.directions, self.batch, units), independent=True) as (d, b, j):
            value = te.cast(self.dtype, initial[d, b, j])
            state[0, d, b, j] = te.if_then_else(j < self.hidden, value, te.const(0, self.dtype))

    def store(self, out: Buffer, state: BufferView, copy: Any) -> None:
        """Store a copy of `state` to (D, B, H)."""
        result = self.ib.buffer(out)
        with loop_nest(self.ib, (self.directions, self.batch, self.hidden), independent=True) as (d, b, j):
            result[d, b, j] = te.cast(out.dtype, state[copy, d, b, j])

    def _encode_first(self) -> None:
        """Quantise the initial states: to 16 bits, or fewer such that sums of their products fit 32."""
        ib, units = self.ib, self.blocks * self.lanes
        largest = min(_LARGEST_STATE, ((1 << 31) - 1) // (128 * units))
        with loop_nest(ib, (self.directions, self.batch)) as (d, b):
            self.unit[d, b] = te.const(1, self.dtype)
            with ib.for_range(0, self.hidden, "j") as j:
                self.unit[d, b] = te.max(self.unit[d, b], te.abs(self.h[0, d, b, j]))
            self.unit[d, b] = self.unit[d, b] / te.const(largest, self.dtype)
            with ib.for_range(0, self.blocks, "block") as block:
                self._encode(d, b, block, 0)

    def _encode(self, d: Any, b: Any, block: Any, copy: Any) -> None:
        """Quantise the states of a block: the first half of its units in lower halves, the others in upper ones."""
        assert self.codes is not None
        half = self.lanes // 2
        factor = self.ib.let("factor", te.const(1, self.dtype) / self.unit[d, b])

        def rounded(unit: Any) -> PrimExpr:
            value = te.cast("int32", te.round(self.h[copy, d, b, unit] * factor))
            if self.hidden % self.lanes == 0:
                return value
            return te.select(unit < self.hidden, value, te.const(0, "int32"))

        with self.ib.for_range(0, half, "lane", kind="vectorized") as lane:
            first = block * self.lanes + lane
            pair = bitwise_or(bitwise_and(rounded(first), 0xFFFF), left_shift(rounded(first + half), 16))
            self.codes[copy, d, b, block * half + lane] = pair

    def encode(self, at: Block, b: Any) -> None:
        """Quantise the new states of a block, with quantised weights."""
        if self.codes is not None:
            self._encode(at.direction, b, at.number, at.after)

    @property
    def _shared(self) -> str:
        """The kind of the shared loop: parallel where there is enough work."""
        step = self.gate_count * self.hidden**2 * (self.batch if isinstance(self.batch, int) else 1)
        work = step * self.steps if isinstance(self.steps, int) else _PARALLEL_WORK
        worthwhile = step >= _PARALLEL_STEP and work >= _PARALLEL_WORK
        return "parallel" if worthwhile or self.gates.go_apart else "serial"

    @contextmanager
    def each_step(self) -> Generator[Step, None, None]:
        """Loop over all steps: direction by direction where threads share directions, else for all together."""
        ib = self.ib
        if not self.gates.go_apart:
            with ib.for_range(0, self.steps, "step") as number:
                yield self._step(number)
            return
        kind = self._shared if self.directions > 1 else "serial"
        with ib.for_range(0, self.directions, "direction", kind) as d, ib.for_range(0, self.steps, "step") as number:
            yield self._step(number, d)

    def _step(self, number: Any, direction: Any = None) -> Step:
        now = self.ib.let("now", number % 2)
        return Step(number, now, 1 - now, direction)

    @contextmanager
    def each_block(self, step: Step) -> Generator[Block, None, None]:
        """Loop over the blocks of a step, of its direction or of all, in parallel where threads share them."""
        ib, count = self.ib, self.directions * self.blocks
        if step.direction is not None:
            with ib.for_range(0, self.blocks, "block", independent=True) as n:
                yield self._block(step, step.direction, self._alternated(step, n, 0, self.blocks))
        elif self.gates.cores == 0:
            with ib.for_range(0, count, "block", self._shared, independent=True) as n:
                yield self._block(step, n // self.blocks, n % self.blocks)
        else:
            shares = -(-count // -(-count // self.gates.cores))  # equal shares, on fewer threads if necessary
            with ib.for_range(0, shares, "share", self._shared, independent=True) as share:
                begin = ib.let("begin", share * count // shares)
                end = ib.let("end", (share + 1) * count // shares)
                with ib.for_range(begin, end, "block", independent=True) as n:
                    at = ib.let("alternated", self._alternated(step, n, begin, end))
                    yield self._block(step, at // self.blocks, at % self.blocks)

    @staticmethod
    def _alternated(step: Step, n: Any, begin: Any, end: Any) -> PrimExpr:
        """`n` of [begin, end), counted from the end in every other step."""
        return te.select(step.now == 0, n, begin + end - 1 - n)

    def _block(self, step: Step, direction: Any, block: Any) -> Block:
        ib, reverse, backwards = self.ib, self.gates.reverse, self.steps - 1 - step.number
        time = backwards if reverse[0] else step.number
        if len(set(reverse)) > 1:
            time = te.select(direction == reverse.index(True), backwards, step.number)
        return Block(direction, ib.let("unit_block", block), ib.let("time", time), step.now, step.after)

    @contextmanager
    def each_entry(self) -> Generator[Any, None, None]:
        """Loop over the batch entries."""
        with self.ib.for_range(0, self.batch, "b", independent=True) as b:
            yield b

    @contextmanager
    def each_unit(self, at: Block) -> Generator[tuple[Any, Any], None, None]:
        """Loop over the units of a block as one vector: gives the lane and the unit."""
        with self.ib.for_range(0, self.lanes, "lane", kind="vectorized") as lane:
            yield lane, at.number * self.lanes + lane

    def sums(self, source: BufferView, copy: Any, at: Block, gates: Sequence[int]) -> BufferView:
        """A state times the panels of `gates` of one block: NR sums for each batch entry and gate.

        Tiles of some entries and gates keep their sums in registers, so that a loaded weight serves all entries. In a
        batch of dynamic size, remaining entries are computed one by one, with all of their gates.
        """
        ib, batch = self.ib, self.batch
        if batch != 1:
            self._prefetch_products(at, gates)
        total = ib.allocate(self.dtype, (batch, len(gates), self.lanes), "total", scope="global")
        rows, together = _sums_per_step(batch, len(gates), self.gates)
        tiles = batch // rows
        fetches = rows > 1 and self.direction_bytes >= _PREFETCHED_BYTES
        for first in range(0, len(gates), together):
            part = [(g, gates[g]) for g in range(first, first + together)]
            following = gates[first + together] if first + together < len(gates) else gates[0]
            with ib.for_range(0, tiles, "tile", independent=True) as tile:
                progress = (tile, tiles) if fetches and isinstance(tiles, int) else None
                self._sum_tile(total, source, copy, at, tile * rows, rows, part, following, progress)
            if isinstance(batch, int) and batch % rows:
                rest = batch % rows
                self._sum_tile(total, source, copy, at, batch - rest, rest, part, following, None)
        if not isinstance(batch, int) and rows > 1:
            with ib.for_range(tiles * rows, batch, "entry", independent=True) as entry:
                self._sum_tile(total, source, copy, at, entry, 1, list(enumerate(gates)), gates[0], None)
        return total

    def _sum_tile(
        self, total: BufferView, source: BufferView, copy: Any, at: Block, first: Any, rows: int,
        gates: Sequence[tuple[int, int]], following: int, progress: tuple[Any, int] | None,
    ) -> None:  # fmt: skip
        """The sums of `rows` entries from `first` on, for (index in the sums, gate).

        Small tiles use several accumulators, each for every n-th unit of the state, to hide the latency of
        multiply-adds. `progress` is (index of this tile on these panels, their number): spread over the tiles, as many
        panels from the gate `following` on are prefetched.
        """
        ib, lanes, width = self.ib, self.lanes, rows * len(gates) * self.lanes
        chains = math.gcd(max(_ACCUMULATORS // (self.gates.vectors * rows * len(gates)), 1), self.depth)
        summed = self.dtype if self.codes is None else "int32"
        sums = ib.allocate(summed, chains * width, "sums", scope="local")
        pairs = list(itertools.product(range(rows), gates))

        def vector() -> Any:
            return ib.for_range(0, lanes, "lane", kind="vectorized")

        for start in range(0, chains * width, lanes):
            with vector() as lane:
                sums[start + lane] = te.const(0, summed)
        with ib.for_range(0, self.depth // chains, "k") as k:
            if progress is not None:
                tile, tiles = progress
                self._prefetch_weights(at, following, len(gates), (tile * self.depth + k * chains) // tiles)
            for chain, (n, (row, (_, gate))) in itertools.product(range(chains), enumerate(pairs)):
                with vector() as lane:
                    here, step = chain * width + n * lanes + lane, k * chains + chain
                    weight = self.weights[at.direction, at.number, gate, step, lane]
                    place = (copy, at.direction, first + row, step)
                    term = source[place] * te.cast(self.dtype, weight) if self.codes is None else te.dot2(
                        self.codes[place], te.byte_pairs(weight)
                    )  # fmt: skip
                    sums[here] = sums[here] + term
        for start in range(width, chains * width, lanes):
            with vector() as lane:
                sums[start % width + lane] = sums[start % width + lane] + sums[start + lane]
        for n, (row, (place, _)) in enumerate(pairs):
            with vector() as lane:
                total[first + row, place, lane] = te.cast(self.dtype, sums[n * lanes + lane])

    def _prefetch_products(self, at: Block, gates: Sequence[int]) -> None:
        """Prefetch the input's contribution to `gates`, scattered cache lines that are read after the sums.

        They arrive while the sums are computed. A single entry reads too few lines to benefit.
        """
        with self.each_entry() as b:
            for gate in gates:
                column = (at.direction * self.gate_count + gate) * self.hidden + at.number * self.lanes
                address = call_intrin("handle", "address_of", self.products[at.time, b, column])
                self.ib.emit(call_intrin("int32", "prefetch", address, 3, 0))

    def _prefetch_weights(self, at: Block, gate: int, count: int, unit: Any) -> None:
        """Prefetch NR weights of `unit` in `count` panels from `gate` on; gate 0 is that of the next block."""
        block = at.number
        if gate == 0:
            block = te.max(0, te.min(at.number + 1 - 2 * at.now, self.blocks - 1))
        for n in range(count):
            address = call_intrin("handle", "address_of", self.weights[at.direction, block, gate + n, unit, 0])
            self.ib.emit(call_intrin("int32", "prefetch", address, 3, 0))

    def read(self, source: BufferView, index: Sequence[Any], unit: Any) -> PrimExpr:
        """``source[*index, unit]``, 0 for padding units of the last block. `index` may end with an offset."""
        *outer, offset = index
        value = te.cast(self.dtype, source[(*outer, offset + unit)])
        if self.hidden % self.lanes == 0:
            return value
        return te.if_then_else(unit < self.hidden, value, te.const(0, self.dtype))

    def product(self, at: Block, b: Any, gate: int, unit: Any) -> PrimExpr:
        """The input's contribution to `gate` of `unit`."""
        column = (at.direction * self.gate_count + gate) * self.hidden
        return self.read(self.products, (at.time, b, column), unit)

    def kept(self, at: Block, b: Any, new: PrimExpr, old: PrimExpr) -> PrimExpr:
        """`new` while the sequence lasts, then `old`."""
        if self.lengths is None:
            return new
        return te.select(at.time < te.cast("int32", self.lengths[b]), new, old)

    def finish(self, y: BufferView, at: Block, b: Any, unit: Any, value: PrimExpr) -> None:
        """The new hidden state of a unit, and the output of the step."""
        d = at.direction
        self.h[at.after, d, b, unit] = self.kept(at, b, value, self.h[at.now, d, b, unit])
        result = te.cast(y.buffer.dtype, self.kept(at, b, self.h[at.after, d, b, unit], te.const(0, self.dtype)))
        if self.hidden % self.lanes == 0:
            y[at.time, b, d, unit] = result
        else:
            with self.ib.if_scope(unit < self.hidden):
                y[at.time, b, d, unit] = result


def _sums_per_step(batch: Dim, gates: int, room: Gates) -> tuple[int, int]:
    """(batch entries, gates) of a register tile of sums.

    A single entry has all of its gates in one tile.
    """
    entries_per_weight, sums = max(_ACCUMULATORS // room.vectors, 1), room.sums
    if not isinstance(batch, int):
        batch = entries_per_weight
    if batch == 1:
        return 1, gates

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        rows, together = tile
        return -(-batch // rows) * max(rows, entries_per_weight), -together

    widths = [n for n in range(1, min(gates, sums) + 1) if gates % n == 0]
    return min(((rows, n) for n in widths for rows in range(1, min(batch, sums // n) + 1)), key=cost)

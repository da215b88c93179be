"""Linear attention: a state matrix for each head that every position reads and updates, in one kernel.

Columns of the state are independent, so each block of columns runs through all positions by itself, with its part of
the state in the first-level cache, and threads share heads and column blocks. At each position, with the decay e, key
k, value v, rate b and query q of a head, S = e S (by rows), S += k (b (v - k^T S))^T by the delta rule or S += k v^T
without it, and y = q^T S.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, Dim, PrimExpr, Stmt, as_int, call_intrin, ir_builder
from relayc.te.tir.ir_builder import BufferView, IRBuilder
from relayc.topi.groups import constant_size
from relayc.topi.loops import blocks_of

__all__ = ["linear_attention"]

_BLOCK_COLUMNS = 64
"""Columns of a block: enough vectors to hide the latency of the sums, few enough that 128 rows fit in 32 KB."""
_QUERIES = 2
"""Queries of a group whose sums are computed in one pass over the rows of the state."""
_AHEAD, _LINE = 2, 16
"""Prefetch distance in positions, and float32 elements of a cache line."""
_WORTH_SHARING = 1 << 16
"""The least multiply-adds for which heads and column blocks run in parallel."""


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor, decay: Tensor | None, rate: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    """y (B, T, Hq, V) of the type of `query`, and the last state (B, H, K, V) of the type of `state`.

    Inputs are query (B, T, Hq, K), key (B, T, H, K), value (B, T, H, V) and the first state (B, H, K, V), Hq being a
    multiple of H; `decay` (B, T, H, K or 1) is a factor for each row of the state, `rate` (B, T, H or 1) that of the
    delta rule. y is multiplied by `scale`. Computed in float32 (ONNX: LinearAttention; Yang et al. 2024,
    "Parallelizing linear transformers with the delta rule over sequence length").
    """
    gates = [g for g in (decay, rate) if g is not None]
    shapes = [(*query.shape[:3], value.shape[3]), state.shape]
    present = (decay is not None, rate is not None)
    return tuple(
        te.extern(
            shapes, [query, key, value, state, *gates], partial(_fill, present, scale, _BLOCK_COLUMNS),
            name="linear_attention", dtype=[query.dtype, state.dtype], tag="recurrent",
            attrs={"for_threads": partial(_fill, present, scale, 1)},
        )
    )  # fmt: skip


def _fill(
    present: tuple[bool, bool], scale: float, width: int, ins: Sequence[Buffer], outs: Sequence[Buffer]
) -> Stmt:
    """All heads and blocks of `width` columns, then narrower blocks of the remaining columns."""
    ib = ir_builder.create()
    heads = _Heads(ib, ins, outs, present, scale)
    for begin, count, columns in blocks_of(heads.columns, width):
        heads.each_column_block(begin, count, columns)
    return ib.get()


class _Heads:
    """The heads of a batch, and the loops over their column blocks."""

    def __init__(
        self, ib: IRBuilder, ins: Sequence[Buffer], outs: Sequence[Buffer], present: tuple[bool, bool], scale: float
    ) -> None:
        self.ib, self.scale = ib, scale
        self.query, self.key, self.value, self.first, *gates = [ib.buffer(b) for b in ins]
        self.decay = gates.pop(0) if present[0] else None
        self.rate = gates.pop(0) if present[1] else None
        self.y, self.last = [ib.buffer(b) for b in outs]
        self.batch, self.steps, self.queries, self.rows = ins[0].shape
        self.heads, self.columns = ins[2].shape[2:]
        queries, groups = as_int(self.queries), as_int(self.heads)
        assert queries is not None and groups is not None, "the numbers of heads are attributes of the operator"
        self.group = queries // groups

    def each_column_block(self, begin: int, count: Dim, width: int) -> None:
        """`count` blocks of `width` columns from column `begin` on, of all heads of all batch entries."""
        ib, each = self.ib, self.heads * count
        work = constant_size((self.batch, self.steps, self.queries, self.rows, self.columns))
        kind = "parallel" if work >= _WORTH_SHARING else "serial"
        with ib.for_range(0, self.batch * each, "block", kind, independent=True) as n:
            b, h = ib.let("b", n // each), ib.let("h", n % each // count)
            _ColumnBlock(self, b, h, ib.let("column", begin + n % count * width), width).run()


class _ColumnBlock:
    """The loops of `width` columns of the state of head `h`, from `column` on."""

    def __init__(self, heads: _Heads, b: Any, h: Any, column: Any, width: int) -> None:
        self.ib, self.of, self.b, self.h, self.column, self.width = heads.ib, heads, b, h, column, width
        # A GPU thread has a single column, in local memory.
        self.state = self.ib.allocate("float32", (heads.rows, width), "state", "local" if width == 1 else "global")
        self.written = self._columns("written")

    def run(self) -> None:
        """All positions, and the state after them."""
        ib, of = self.ib, self.of
        with self._each_row() as row, self._lanes() as lane:
            self.state[row, lane] = _float(of.first[self.b, self.h, row, self.column + lane])
        with ib.for_range(0, of.steps, "t") as t:
            if self.width > 1:
                self._prefetch(te.min(t + _AHEAD, of.steps - 1))
            self._write(t)
            for first in range(0, of.group, _QUERIES):
                self._read(t, range(first, min(first + _QUERIES, of.group)))
        with self._each_row() as row, self._lanes() as lane:
            of.last[self.b, self.h, row, self.column + lane] = self.state[row, lane]

    def _write(self, t: Any) -> None:
        """Compute what position `t` adds to the state, before multiplying by its key: the value, or its delta."""
        of, known = self.of, self._columns("known")
        if of.rate is not None:
            with self._lanes() as lane:
                known[lane] = te.const(0, "float32")
            with self._each_row() as row:
                key = self._at(of.key, t, row)
                with self._lanes() as lane:
                    known[lane] = known[lane] + key * self._decayed(t, row, lane)
        with self._lanes() as lane:
            value = _float(of.value[self.b, t, self.h, self.column + lane])
            new = value if of.rate is None else self._at(of.rate, t) * (value - known[lane])
            self.written[lane] = new

    def _prefetch(self, t: Any) -> None:
        """Prefetch the inputs of position `t`, which lie kilobytes after those of this position."""
        of = self.of
        heads = [(of.key, self.h), *[(of.query, self.h * of.group + q) for q in range(of.group)]]
        with self.ib.for_range(0, (of.rows + (_LINE - 1)) // _LINE, "line") as line:
            for source, head in heads:
                self._prefetch_line(source[self.b, t, head, line * _LINE])
        for begin in range(0, self.width, _LINE):
            self._prefetch_line(of.value[self.b, t, self.h, self.column + begin])

    def _prefetch_line(self, element: PrimExpr) -> None:
        self.ib.emit(call_intrin("int32", "prefetch", call_intrin("handle", "address_of", element), 3, 0))

    def _decayed(self, t: Any, row: Any, lane: Any) -> PrimExpr:
        old = self.state[row, lane]
        return old if self.of.decay is None else old * self._at(self.of.decay, t, row)

    def _read(self, t: Any, queries: range) -> None:
        """The results of some queries of the head's group; the first of them also update the state."""
        of, sums = self.of, [self._columns(f"sum{q}") for q in queries]
        for total in sums:
            with self._lanes() as lane:
                total[lane] = te.const(0, "float32")
        heads = [self.h * of.group + q for q in queries]
        with self._each_row() as row:
            if queries.start == 0:
                key = self._at(of.key, t, row)
                with self._lanes() as lane:
                    self.state[row, lane] = self._decayed(t, row, lane) + key * self.written[lane]
            for head, total in zip(heads, sums, strict=True):
                with self._lanes() as lane:
                    total[lane] = total[lane] + _float(of.query[self.b, t, head, row]) * self.state[row, lane]
        for head, total in zip(heads, sums, strict=True):
            with self._lanes() as lane:
                of.y[self.b, t, head, self.column + lane] = total[lane] * te.const(of.scale, "float32")

    def _at(self, gate: BufferView, t: Any, row: Any = None) -> PrimExpr:
        """The gate of this head, and row, at `t`; dimensions of size 1 are broadcast."""
        index = [self.h, *([] if row is None else [row])]
        own = [0 if d == 1 else i for i, d in zip(index, gate.buffer.shape[2:], strict=True)]
        return _float(gate[self.b, t, *own])

    def _columns(self, name: str) -> BufferView:
        return self.ib.allocate("float32", self.width, name, scope="local")

    def _each_row(self) -> AbstractContextManager[Any]:
        return self.ib.for_range(0, self.of.rows, "row")

    def _lanes(self) -> AbstractContextManager[Any]:
        return self.ib.for_range(0, self.width, "lane", "vectorized" if self.width > 1 else "serial")


def _float(value: PrimExpr) -> PrimExpr:
    return te.cast("float32", value)

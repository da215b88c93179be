"""LSTM, GRU and the plain RNN over a sequence; their loops are those of `topi.nn.recurrence`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from relayc import te
from relayc.te import Tensor
from relayc.te.tir import Buffer, PrimExpr, Stmt, ir_builder
from relayc.te.tir.ir_builder import IRBuilder
from relayc.topi.nn.gates import Gates
from relayc.topi.nn.launched_recurrence import LaunchedRecurrence
from relayc.topi.nn.recurrence import Block, Recurrence

__all__ = ["gru", "lstm", "rnn"]


def _extern(
    name: str, products: Tensor, weight: Tensor, h0: Tensor, others: Sequence[Tensor | None], states: int, fill: Any
) -> tuple[Tensor, ...]:
    """The operation with results y (T, B, D, H) and `states` final states (D, B, H).

    ``fill(ib, kind, inputs, results)`` emits the loops of a kind of recurrence. Those for GPUs (attribute
    "for_threads") are launched step by step, except with quantised weights.
    """
    (steps, batch, _), (directions, _, hidden), inputs = products.shape, h0.shape, (h0, *others)
    shapes = [(steps, batch, directions, hidden), *[(directions, batch, hidden)] * states]
    operands = [products, weight, *[t for t in inputs if t is not None]]
    present = [t is not None for t in inputs]

    def body(kind: type[Recurrence], ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        rest = iter(ins[2:])
        ib = ir_builder.create()
        fill(ib, kind, [ins[0], ins[1], *[next(rest) if p else None for p in present]], outs)
        return ib.get()

    kinds = [products.dtype] * len(shapes)
    threads = Recurrence if weight.dtype == "int16" else LaunchedRecurrence
    attrs = {"for_threads": partial(body, threads)}
    return tuple(
        te.extern(shapes, operands, partial(body, Recurrence), name=name, dtype=kinds, tag="recurrent", attrs=attrs)
    )


def lstm(
    products: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    peephole: Tensor | None,
    lengths: Tensor | None,
    gates: Gates,
    input_forget: bool = False,
    scales: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """y (T, B, D, H), h and c (D, B, H) of products (T, B, D 4 H), gates in the order input, output, forget, cell.

    Weights may be quantised to a byte, with `scales` (D, 4 H): (D, ceil(H / NR), 4, K, NR) int16 holds those of units k
    and k + NR / 2 of a block of the state, K being half of the units of all blocks.

    c' = f c + i g and h' = o act(c'); `peephole` (D, 3, H) adds p c to the input and forget gates and p c' to the
    output gate; `input_forget` couples f = 1 - i. Activations: of the gates, of the cell gate, of c'.
    """

    def fill(ib: IRBuilder, kind: type[Recurrence], ins: Sequence[Any], outs: Sequence[Buffer]) -> None:
        r = kind(ib, ins[0], ins[1], ins[2], ins[5], gates)
        y, c = ib.buffer(outs[0]), r.state("c", 1)
        r.load(c, ins[3])
        peep = None if ins[4] is None else ib.buffer(ins[4])
        unit_scales = None if ins[6] is None else ib.buffer(ins[6])

        def scaled(total: PrimExpr, gate: int, d: Any, b: Any, unit: Any) -> PrimExpr:
            if unit_scales is None:
                return total
            return total * (r.unit[d, b] * r.read(unit_scales, (d, gate * r.hidden), unit))

        def looked(value: PrimExpr, number: int, d: Any, b: Any, unit: Any) -> PrimExpr:
            return value if peep is None else value + r.read(peep, (d, number, 0), unit) * c[0, d, b, unit]

        with r.each_step() as step, r.each_block(step) as at:
            total, d = r.sums(r.h, at.now, at, (0, 1, 2, 3)), at.direction
            with r.each_entry() as b:
                with r.each_unit(at) as (lane, unit):
                    i, o, f, g = [
                        r.product(at, b, k, unit) + scaled(total[b, k, lane], k, d, b, unit)
                        for k in range(4)
                    ]
                    total[b, 0, lane] = gates(0, looked(i, 0, d, b, unit))
                    i = total[b, 0, lane]
                    f = te.const(1, r.dtype) - i if input_forget else gates(0, looked(f, 2, d, b, unit))
                    c[0, d, b, unit] = r.kept(at, b, f * c[0, d, b, unit] + i * gates(1, g), c[0, d, b, unit])
                    h = gates(0, looked(o, 1, d, b, unit)) * gates.activate(2, c[0, d, b, unit])
                    r.finish(y, at, b, unit, h)
                r.encode(at, b)
        r.store(outs[1], r.h, r.steps % 2)
        r.store(outs[2], c, 0)

    return _extern("lstm", products, weight, h0, (c0, peephole, lengths, scales), 2, fill)


def gru(
    products: Tensor,
    weight: Tensor,
    h0: Tensor,
    hidden_bias: Tensor,
    lengths: Tensor | None,
    gates: Gates,
    reset_after: bool,
) -> tuple[Tensor, ...]:
    """y (T, B, D, H), h (D, B, H) of products (T, B, D 3 H), gates in the order update z, reset r, hidden n.

    h' = (1 - z) n + z h. With `reset_after` n = act(x + r (h R^T + hidden_bias)), else n = act(x + (r h) R^T +
    hidden_bias). Activations: of the gates, of n.
    """

    def fill(ib: IRBuilder, kind: type[Recurrence], ins: Sequence[Any], outs: Sequence[Buffer]) -> None:
        r = kind(ib, ins[0], ins[1], ins[2], ins[4], gates)
        y, bias, z = ib.buffer(outs[0]), ib.buffer(ins[3]), r.state("z", 1)
        reset_state = None if reset_after else r.state("reset_state", 1)

        def mixed(new: PrimExpr, at: Block, b: Any, unit: Any) -> PrimExpr:
            kept = z[0, at.direction, b, unit]
            return (te.const(1, r.dtype) - kept) * new + kept * r.h[at.now, at.direction, b, unit]

        with r.each_step() as step:
            with r.each_block(step) as at:
                total, d = r.sums(r.h, at.now, at, (0, 1, 2) if reset_after else (0, 1)), at.direction
                with r.each_entry() as b, r.each_unit(at) as (lane, unit):
                    z[0, d, b, unit] = gates(0, r.product(at, b, 0, unit) + total[b, 0, lane])
                    reset = gates(0, r.product(at, b, 1, unit) + total[b, 1, lane])
                    if reset_state is None:
                        inner = total[b, 2, lane] + r.read(bias, (d, 0), unit)
                        new = gates(1, r.product(at, b, 2, unit) + reset * inner)
                        r.finish(y, at, b, unit, mixed(new, at, b, unit))
                    else:
                        reset_state[0, d, b, unit] = reset * r.h[at.now, d, b, unit]
            if reset_state is not None:
                with r.each_block(step) as at:
                    total, d = r.sums(reset_state, 0, at, (2,)), at.direction
                    with r.each_entry() as b, r.each_unit(at) as (lane, unit):
                        new = gates(1, r.product(at, b, 2, unit) + total[b, 0, lane] + r.read(bias, (d, 0), unit))
                        r.finish(y, at, b, unit, mixed(new, at, b, unit))
        r.store(outs[1], r.h, r.steps % 2)

    return _extern("gru", products, weight, h0, (hidden_bias, lengths), 1, fill)


def rnn(products: Tensor, weight: Tensor, h0: Tensor, lengths: Tensor | None, gates: Gates) -> tuple[Tensor, ...]:
    """y (T, B, D, H), h (D, B, H) of products (T, B, D H); h' = act(x + h R^T)."""

    def fill(ib: IRBuilder, kind: type[Recurrence], ins: Sequence[Any], outs: Sequence[Buffer]) -> None:
        r = kind(ib, ins[0], ins[1], ins[2], ins[3], gates)
        y = ib.buffer(outs[0])
        with r.each_step() as step, r.each_block(step) as at:
            total = r.sums(r.h, at.now, at, (0,))
            with r.each_entry() as b, r.each_unit(at) as (lane, unit):
                r.finish(y, at, b, unit, gates(0, r.product(at, b, 0, unit) + total[b, 0, lane]))
        r.store(outs[1], r.h, r.steps % 2)

    return _extern("rnn", products, weight, h0, (lengths,), 1, fill)

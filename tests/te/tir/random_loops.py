"""Random loop programs of the kind that schedules make: split, guarded, reordered loops of every kind over a
reduction into local memory, with padded reads. Every program is legal, whatever the kinds of its loops."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from relayc.te.dtype import HANDLE
from relayc.te.tir import (
    Allocate,
    BufferLoad,
    BufferStore,
    Dim,
    For,
    ForKind,
    IfThenElse,
    Let,
    PrimExpr,
    PrimFunc,
    SizeVar,
    Stmt,
    Var,
    cast,
    const,
    convert,
    decl_buffer,
    if_then_else,
    likely,
    maximum,
    minimum,
    select,
    seq,
)  # fmt: skip
from relayc.te.tir.interpreter import interpret
from relayc.te.tir.ops import all as all_of, any as any_of, floordiv, floormod

KINDS = [ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED]


@dataclass
class Program:
    """A function and the arrays to run it on; the last array is the output."""

    func: PrimFunc
    arrays: list[np.ndarray]

    def run(self, func: PrimFunc | None = None) -> np.ndarray:
        arrays = [a.copy() for a in self.arrays]
        interpret(self.func if func is None else func, *arrays, check_uninitialized=True)
        return arrays[-1]


def _loop(var: Var, extent: Dim, kind: ForKind, body: Stmt) -> For:
    return For(var, const(0), convert(extent), kind, body)


def random_program(seed: int, kinds: list[ForKind] = KINDS) -> Program:
    """The program of a seed."""
    rng = Random(seed)
    sizes = [rng.randint(1, 13) for _ in range(rng.randint(1, 2))]
    symbolic = rng.random() < 0.3
    n = SizeVar("n")
    shape: list[Dim] = [n if symbolic and axis == 0 else size for axis, size in enumerate(sizes)]
    a, b = decl_buffer(shape, name="A"), decl_buffer((sizes[-1] + 2,), "int32", name="B")
    c = decl_buffer(shape, rng.choice(["float32", "int32"]), name="C")

    loops: list[tuple[Var, Dim]] = []
    guards: list[PrimExpr] = []
    index: list[PrimExpr] = []
    for axis, size in enumerate(shape):
        factor = rng.choice([1, 2, 3, 4, 8])
        if factor == 1:
            var = Var(f"i{axis}")
            loops.append((var, size))
            index.append(var)
            continue
        outer, inner = Var(f"o{axis}"), Var(f"i{axis}")
        trips = (size + factor - 1) // factor
        loops += [(outer, trips), (inner, factor)]
        value = outer * factor + inner
        index.append(value)
        if not isinstance(size, int) or size % factor:
            guards.append(likely(value < size))
    if rng.random() < 0.5:
        rng.shuffle(loops)

    body = _body(rng, a, b, c, index, shape)
    if guards:
        body = IfThenElse(all_of(*guards), body)
    vectorized = False
    for var, extent in reversed(loops):
        kind = rng.choice(kinds)
        if kind is ForKind.VECTORIZED and vectorized:
            kind = ForKind.SERIAL
        vectorized |= kind is ForKind.VECTORIZED
        body = _loop(var, extent, kind, body)
    handles = [Var(x.name, HANDLE) for x in (a, b, c)]
    func = PrimFunc(tuple(handles), body, dict(zip(handles, (a, b, c), strict=True)), {"global_symbol": f"f{seed}"})
    data = np.random.default_rng(seed)
    arrays = [data.integers(-9, 9, sizes).astype(np.float32), data.integers(1, 5, sizes[-1] + 2).astype(np.int32),
              np.zeros(sizes, str(c.dtype))]  # fmt: skip
    return Program(func, arrays)


def _body(rng: Random, a, b, c, index: list[PrimExpr], shape: list[Dim]) -> Stmt:
    k, extent = Var("k"), rng.randint(1, 3)
    read = _padded(rng, a, index, k, shape)
    integer = BufferLoad(b, (index[-1] + rng.randint(0, 2),))
    other = cast("float32", integer)
    gathered = BufferLoad(a, (*index[:-1], integer % shape[-1]))
    quotient = cast("float32", floordiv(k * 7 - 9, integer) + floormod(index[-1] - 5, integer))
    local = Var("local")
    term = rng.choice([lambda: read * other, lambda: maximum(read, other), lambda: read + cast("float32", k),
                       lambda: select(index[-1] % 2 < 1, read, other), lambda: read, lambda: read - gathered,
                       lambda: read + quotient, lambda: Let(local, integer * 2, cast("float32", local) - read),
                       lambda: if_then_else(any_of(at_edge(index), integer < 3), other, gathered)])()  # fmt: skip
    if rng.random() < 0.2:
        even = BufferStore(c, cast(c.dtype, other), tuple(index))
        odd = BufferStore(c, cast(c.dtype, gathered + 1.0), tuple(index))
        return IfThenElse(index[-1] % 2 < 1, even, odd if rng.random() < 0.7 else None)
    if rng.random() < 0.3:
        return BufferStore(c, cast(c.dtype, _padded(rng, a, index, const(1), shape) + other), tuple(index))
    width = rng.choice([1, 3])
    acc = decl_buffer((width,), name="acc", scope="local")
    slot = (const(0),) if width == 1 else (k % 3,)
    z = Var("z")
    clear = _loop(z, width, ForKind.SERIAL, BufferStore(acc, const(0.0), (z,)))
    kind = rng.choice([ForKind.SERIAL, ForKind.UNROLLED])
    update = _loop(k, extent, kind, BufferStore(acc, BufferLoad(acc, slot) + term, slot))
    total = BufferLoad(acc, (const(0),))
    if width == 3:
        total = total + BufferLoad(acc, (minimum(const(extent), 2),))
    return Allocate(acc, seq(clear, update, BufferStore(c, cast(c.dtype, total), tuple(index))))


def at_edge(index: list[PrimExpr]) -> PrimExpr:
    """Is this the first element of its row?"""
    return index[-1] < 1


def _padded(rng: Random, a, index: list[PrimExpr], k: PrimExpr, shape: list[Dim]) -> PrimExpr:
    """A load shifted by k - 1 along the last axis, 0 outside."""
    if rng.random() < 0.3:
        return BufferLoad(a, tuple(index))
    at = index[-1] + k - 1
    inside = all_of(at >= 0, at < shape[-1])
    return if_then_else(inside, BufferLoad(a, (*index[:-1], at)), 0.0)

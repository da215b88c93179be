"""Loops over the lanes of a local buffer become horizontal reductions."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend.fold_lanes import fold_lanes
from relayc.backend.llvm.build import build
from relayc.backend.runtime import nd
from relayc.backend.target import Target
from relayc.te.ir import IRModule, collect
from relayc.te.tir import (
    Add,
    Allocate,
    BufferLoad,
    BufferStore,
    Call,
    For,
    ForKind,
    Max,
    Min,
    Mul,
    PrimFunc,
    Var,
    const,
    decl_buffer,
    ramp,
    seq,
)


def row_reduction(op: type, lanes: int, dtype: str = "float32", scope: str = "local", offset: int = 0) -> PrimFunc:
    """out[0] = op over 64 elements: `lanes` partial results, then their fold."""
    a, out = decl_buffer((64,), dtype, name="A"), decl_buffer((1,), dtype, name="out")
    partial = decl_buffer((lanes + offset,), dtype, name="partial", scope=scope)
    k, j = Var("k"), Var("j")
    at = (ramp(offset, 1, lanes),)
    first = BufferStore(partial, BufferLoad(a, (ramp(0, 1, lanes),)), at)
    rest = BufferStore(partial, op(BufferLoad(partial, at), BufferLoad(a, (ramp(k * lanes, 1, lanes),))), at)
    fold = BufferStore(out, op(BufferLoad(out, (const(0),)), BufferLoad(partial, (j + offset,))), (const(0),))
    body = seq(
        first,
        For(k, const(1), const(64 // lanes - 1), ForKind.SERIAL, rest),
        For(j, const(0), const(lanes), ForKind.SERIAL, fold),
    )
    return PrimFunc((a.data, out.data), Allocate(partial, body), {a.data: a, out.data: out}, {"global_symbol": "f"})


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("lanes", [2, 8, 32])
@pytest.mark.parametrize(("op", "reference"), [(Add, np.sum), (Max, np.max), (Min, np.min)])
def test_the_fold_becomes_an_equal_horizontal_reduction(op, reference, lanes, offset):
    f = row_reduction(op, lanes, offset=offset)
    folded = fold_lanes(f)
    assert [c.op for c in collect(folded.body, Call)] == [f"vector_reduce_{reference.__name__}".replace("sum", "add")]
    assert len(collect(folded.body, For)) == 1
    x = np.random.default_rng(1).uniform(-1, 1, 64).astype("f4")
    start = np.array([0.25], "f4")
    out = nd.array(start)
    build(IRModule({"f": f}), Target("llvm"))["f"](nd.array(x), out)
    np.testing.assert_allclose(out.numpy()[0], reference(np.append(x, start)), rtol=1e-5)


def test_the_vector_stays_in_registers():
    text = build(IRModule({"f": row_reduction(Add, 16)}), Target("llvm")).get_source()
    assert "alloca" not in text


def test_other_loops_are_unchanged():
    for f in (row_reduction(Mul, 8), row_reduction(Add, 8, scope="global")):
        assert fold_lanes(f) is f
    a, out = decl_buffer((8,), name="A", scope="local"), decl_buffer((8,), name="out")
    j = Var("j")
    for index, source in ((j, j), (const(0), j * 2), (const(0), const(1))):
        store = BufferStore(out, BufferLoad(out, (index,)) + BufferLoad(a, (source,)), (index,))
        loop = For(j, const(0), const(8), ForKind.SERIAL, store)
        f = PrimFunc((a.data, out.data), loop, {a.data: a, out.data: out})
        assert fold_lanes(f) is f

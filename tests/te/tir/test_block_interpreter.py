"""Threads of a block meet at barriers and share memory."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.te.dtype import HANDLE
from relayc.te.tir import (
    Allocate,
    AttrStmt,
    BufferLoad,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    PrimFunc,
    Range,
    Stmt,
    StringImm,
    Var,
    call_intrin,
    const,
    decl_buffer,
    seq,
)  # fmt: skip
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.interpreter import InterpreterError

BX = IterVar(Range(0, 2), Var("bx"), "thread", "blockIdx.x")
TX = IterVar(Range(0, 4), Var("tx"), "thread", "threadIdx.x")
TY = IterVar(Range(0, 2), Var("ty"), "thread", "threadIdx.y")
A, B = decl_buffer((32,), name="A"), decl_buffer((32,), name="B")
SYNC = Evaluate(call_intrin("int32", "storage_sync", StringImm("shared")))


def launch(body: Stmt) -> PrimFunc:
    for axis in (TX, TY, BX):
        assert axis.dom is not None
        body = AttrStmt("thread_extent", axis, const(axis.dom.extent), body)
    handles = Var("A", HANDLE), Var("B", HANDLE)
    return PrimFunc(handles, body, {handles[0]: A, handles[1]: B}, {"global_symbol": "f"})


def run(func: PrimFunc) -> np.ndarray:
    a, b = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    BlockInterpreter({"f": func}, check_uninitialized=True)("f", a, b)
    return b


def test_blocks_reverse_their_elements_through_shared_memory():
    tile = decl_buffer((8,), name="tile", scope="shared")
    k, lane = Var("k"), TY.var * 4 + TX.var
    at = BX.var * 16 + k * 8
    load = BufferStore(tile, BufferLoad(A, (at + lane,)), (lane,))
    store = BufferStore(B, BufferLoad(tile, (const(7) - lane,)), (at + lane,))
    body = For(k, const(0), const(2), ForKind.SERIAL, Allocate(tile, seq(load, SYNC, store, SYNC)))
    np.testing.assert_array_equal(run(launch(body)), np.arange(32).reshape(4, 8)[:, ::-1].reshape(-1))


def test_a_missing_barrier_changes_the_result():
    tile = decl_buffer((8,), name="tile", scope="shared")
    lane = TY.var * 4 + TX.var
    load = BufferStore(tile, BufferLoad(A, (lane,)), (lane,))
    store = BufferStore(B, BufferLoad(tile, (const(7) - lane,)), (lane,))
    with pytest.raises(InterpreterError, match="never written"):
        run(launch(Allocate(tile, seq(load, store))))


def test_a_barrier_that_some_threads_miss_is_an_error():
    with pytest.raises(InterpreterError, match="others never reach"):
        run(launch(IfThenElse(TX.var < 2, SYNC)))

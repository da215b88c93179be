"""The interpreter: every kind of node, and the faults it finds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayc.te.dtype import HANDLE, dtype
from relayc.te.ir import IRModule
from relayc.te.tir import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Div,
    Evaluate,
    For,
    ForKind,
    IterVar,
    LetStmt,
    Mod,
    PrimFunc,
    Ramp,
    Range,
    Shuffle,
    SizeVar,
    StringImm,
    Var,
    While,
    call_intrin,
    cast,
    const,
    decl_buffer,
    if_then_else,
    maximum,
    select,
    seq,
)  # fmt: skip
from relayc.te.tir.interpreter import Interpreter, InterpreterError, interpret


def function(buffers: list[Buffer], body, *scalars: Var, name: str = "main") -> PrimFunc:
    handles = [Var(b.name, HANDLE) for b in buffers]
    return PrimFunc((*handles, *scalars), body, dict(zip(handles, buffers, strict=True)), {"global_symbol": name})


def value_of(expr) -> np.ndarray:
    """The value of an expression without variables, lanes in an array."""
    out = decl_buffer((expr.dtype.lanes,), str(expr.dtype.element), "out")
    index = const(0) if expr.dtype.lanes == 1 else Ramp(const(0), const(1), expr.dtype.lanes)
    result = np.zeros(expr.dtype.lanes, getattr(ml_dtypes, str(expr.dtype.element), str(expr.dtype.element)))
    interpret(function([out], BufferStore(out, expr, (index,))), result)
    return result


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Div(const(-7), const(2)), -3),
        (Mod(const(-7), const(2)), -1),
        (const(-7) // 2, -4),
        (const(-7) % 2, 1),
        (Call(dtype("int32"), "shift_right", (const(-8), const(1))), -4),
        (Call(dtype("int32"), "popcount", (const(-1),)), 32),
        (Call(dtype("int32"), "clz", (const(1),)), 31),
        (cast("int8", Var("x")), None),
        (maximum(const(float("nan")), const(1.0)), float("nan")),
        (if_then_else(const(True), const(1), Div(const(1), const(1))), 1),
        (call_intrin("int32", "reinterpret", const(1.0)), 0x3F800000),
        (select(Ramp(const(0), const(1), 4) < Broadcast(const(2), 4), Broadcast(const(1), 4), Broadcast(const(0), 4)),
         [1, 1, 0, 0]),
        (Shuffle((Ramp(const(0), const(1), 4), Ramp(const(8), const(2), 2)), (5, 0, 4)), [10, 0, 8]),
    ],
)  # fmt: skip
def test_values(expr, expected):
    if expected is not None:
        np.testing.assert_array_equal(value_of(expr), np.array(expected, value_of(expr).dtype).reshape(-1))


def test_integers_wrap_and_casts_truncate():
    a = decl_buffer((4,), "int32", "a")
    x = BufferLoad(a, (const(0),))
    body = seq(
        BufferStore(a, x * x, (const(1),)),
        BufferStore(a, cast("int32", cast("int8", x)), (const(2),)),
        BufferStore(a, cast("int32", const(-2.75)), (const(3),)),
    )
    data = np.array([70000, 0, 0, 0], np.int32)
    interpret(function([a], body), data)
    assert data.tolist() == [70000, 70000 * 70000 - (1 << 32), 112, -2]


def test_symbolic_shape_while_let_and_allocate():
    n = SizeVar("n")
    a, total, i = decl_buffer((n, 4), name="a"), decl_buffer((1,), name="total"), decl_buffer((1,), "int32", "i")
    row, y = Var("row"), Var("y")
    at = BufferLoad(i, (const(0),))
    step = LetStmt(
        row, at, seq(
            For(y, const(0), const(4), ForKind.UNROLLED,
                BufferStore(total, BufferLoad(total, (const(0),)) + BufferLoad(a, (row, y)), (const(0),))),
            BufferStore(i, at + 1, (const(0),)),
        ))  # fmt: skip
    body = Allocate(i, seq(BufferStore(i, const(0), (const(0),)), BufferStore(total, const(0.0), (const(0),)),
                           While(at < n, step)))  # fmt: skip
    data, result = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(1, np.float32)
    interpret(function([a, total], body), data, result, check_uninitialized=True)
    assert result[0] == data.sum()
    with pytest.raises(InterpreterError, match=r"shape \(3, 3\), expected \(3, 4\)"):
        interpret(function([a, total], body), np.zeros((3, 3), np.float32), result)


def test_predicated_vector_access_and_strides():
    a, b = decl_buffer((6,), name="a"), decl_buffer((6,), name="b", strides=(2,))
    lanes = Ramp(const(0), const(1), 8)
    mask = lanes < Broadcast(const(6), 8)
    body = BufferStore(b, BufferLoad(a, (lanes,), mask) + Broadcast(const(1.0), 8), (lanes,), mask)
    data, wide = np.arange(6, dtype=np.float32), np.zeros(12, np.float32)
    interpret(function([a, b], body), data, wide[::2])
    np.testing.assert_array_equal(wide[::2], data + 1)
    assert not wide[1::2].any()


def test_thread_axes_run_as_loops():
    a = decl_buffer((8,), "int32", "a")
    bx, tx = IterVar(Range(0, 2), Var("bx"), "thread", "blockIdx.x"), IterVar(
        Range(0, 4), Var("tx"), "thread", "threadIdx.x")  # fmt: skip
    store = BufferStore(a, bx.var * 10 + tx.var, (bx.var * 4 + tx.var,))
    body = AttrStmt("thread_extent", bx, const(2), AttrStmt("thread_extent", tx, const(4), store))
    data = np.zeros(8, np.int32)
    interpret(function([a], body), data)
    assert data.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    barrier = Evaluate(call_intrin("int32", "storage_sync", StringImm("shared")))
    with pytest.raises(InterpreterError, match="barrier"):
        interpret(function([a], AttrStmt("thread_extent", bx, const(2), barrier)), data)


def test_calls_between_functions():
    a = decl_buffer((4,), name="a")
    x = Var("x")
    twice = function([a], For(x, const(0), const(4), ForKind.SERIAL, BufferStore(a, BufferLoad(a, (x,)) * 2.0, (x,))),
                     name="twice")  # fmt: skip
    b = decl_buffer((8,), name="b")
    address = call_intrin("handle", "address_of", BufferLoad(b, (const(4),)))
    kernel = Evaluate(call_intrin("int32", "call_kernel", StringImm("twice"), address))
    packed = Evaluate(call_intrin("int32", "call_packed", StringImm("log"), const(3)))
    seen: list[int] = []
    main = function([b], seq(kernel, packed))
    data = np.ones(8, np.float32)
    Interpreter(IRModule({"main": main, "twice": twice}), {"log": seen.append})("main", data)
    assert data.tolist() == [1] * 4 + [2] * 4 and seen == [3]
    with pytest.raises(InterpreterError, match="no function 'log'"):
        Interpreter({"main": main, "twice": twice})("main", data)


def test_faults_are_found():
    a, t = decl_buffer((4,), name="a"), decl_buffer((4,), name="t")
    i = Var("i")
    outside = For(i, const(0), const(5), ForKind.SERIAL, BufferStore(a, const(0.0), (i,)))
    data = np.zeros(4, np.float32)
    with pytest.raises(InterpreterError, match="index 4 leaves axis 0 of a"):
        interpret(function([a], outside), data)
    unwritten = Allocate(t, BufferStore(a, BufferLoad(t, (const(1),)), (const(0),)))
    interpret(function([a], unwritten), data)
    assert np.isnan(data[0])
    with pytest.raises(InterpreterError, match="read but was never written"):
        interpret(function([a], unwritten), data, check_uninitialized=True)
    with pytest.raises(InterpreterError, match="3 is not 4"):
        interpret(function([a], AssertStmt(const(False), "{} is not {}", (const(3), const(4)), outside)), data)
    with pytest.raises(InterpreterError, match="dtype float64"):
        interpret(function([a], outside), data.astype(np.float64))
    with pytest.raises(InterpreterError, match="takes 1 arguments, got 2"):
        interpret(function([a], outside), data, data)


def test_bfloat16():
    a = decl_buffer((2,), "bfloat16", "a")
    body = BufferStore(a, BufferLoad(a, (const(0),)) + BufferLoad(a, (const(0),)), (const(1),))
    data = np.array([1.5, 0], ml_dtypes.bfloat16)
    interpret(function([a], body), data)
    assert float(data[1]) == 3.0


def test_a_store_that_keeps_some_lanes_reads_nothing() -> None:
    scratch, out = decl_buffer((4,), "float32", "scratch"), decl_buffer((4,), "float32", "out")
    lanes = Ramp(const(0), const(1), 4)
    kept = select(lanes < Broadcast(const(2), 4), Broadcast(const(1.0, "float32"), 4), BufferLoad(scratch, (lanes,)))
    store = BufferStore(scratch, kept, (lanes,))

    def run(element: int) -> float:
        body = Allocate(scratch, seq(store, BufferStore(out, BufferLoad(scratch, (const(element),)), (const(0),))))
        result = np.zeros(4, np.float32)
        function = PrimFunc((out.data,), body, {out.data: out}, {"global_symbol": "f"})
        interpret(function, result, check_uninitialized=True)
        return float(result[0])

    assert run(1) == 1.0
    with pytest.raises(InterpreterError, match="never written"):
        run(2)


@pytest.mark.parametrize("masked", [False, True])
def test_lanes_that_are_not_used_may_be_unwritten(masked: bool) -> None:
    """Lanes may be unwritten that are not selected, or that a store masks off; others may not."""

    def run(used: int) -> np.ndarray:
        scratch, out = decl_buffer((4,), "float32", "scratch"), decl_buffer((4,), "float32", "out")
        lanes = Ramp(const(0), const(1), 4)
        first, value = lanes < Broadcast(const(used), 4), BufferLoad(scratch, (lanes,))
        clear = [BufferStore(out, const(0.0, "float32"), (const(i),)) for i in range(4)]
        fill = [BufferStore(scratch, const(1.0, "float32"), (const(i),)) for i in range(2)]
        zeros = Broadcast(const(0.0, "float32"), 4)
        store = BufferStore(out, value, (lanes,), first) if masked else BufferStore(
            out, select(first, value, zeros), (lanes,))  # fmt: skip
        body = Allocate(scratch, seq(*clear, *fill, store))
        result = np.empty(4, np.float32)
        function = PrimFunc((out.data,), body, {out.data: out}, {"global_symbol": "f"})
        interpret(function, result, check_uninitialized=True)
        return result

    np.testing.assert_array_equal(run(2), [1, 1, 0, 0])
    with pytest.raises(InterpreterError, match="never written"):
        run(3)

"""Divisions, minima and maxima of indices are hoisted out of loops, and results are unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te, topi
from relayc.te.dtype import HANDLE
from relayc.te.tir import (
    Broadcast,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    Let,
    LetStmt,
    PrimFunc,
    SizeVar,
    Var,
    const,
    decl_buffer,
    ramp,
    select,
    seq,
)
from relayc.te.tir.interpreter import interpret
from relayc.te.tir.ops import floordiv, floormod, maximum, minimum
from relayc.te.tir.passes.hoist_invariants import hoist_invariants
from relayc.te.tir.verifier import verify

n, i, j = SizeVar("n"), Var("i"), Var("j")


def function(body, *buffers) -> PrimFunc:
    handles = [Var(b.name, HANDLE) for b in buffers]
    return PrimFunc((*handles, n), body, dict(zip(handles, buffers, strict=True)))


def loop(var, extent, body):
    return For(var, const(0), extent if not isinstance(extent, int) else const(extent), ForKind.SERIAL, body, {})


def text_of(func: PrimFunc) -> list[str]:
    return [line.strip() for line in str(func).splitlines()[1:]]


def test_divisions_are_hoisted_to_the_loop_of_their_variables():
    a = decl_buffer((64,), "int32", "a")
    body = loop(i, n, loop(j, 4, BufferStore(a, floordiv(i, n) + floormod(i, n) * j, (j,))))
    assert text_of(hoist_invariants(function(body, a))) == [
        "for i in range(n):",
        "quotient = truncdiv(i, max(n, 1))",
        "remainder = truncmod(i, max(n, 1))",
        "for j in range(4):",
        "a[j] = quotient + remainder * j",
    ]


def test_nested_and_equal_divisions_are_computed_once():
    a = decl_buffer((64,), "int32", "a")
    inner = floordiv(i + 3, n + 1)
    body = loop(i, 8, loop(j, 4, BufferStore(a, floormod(inner, n + 2) + floordiv(i + 3, n + 1), (j,))))
    assert text_of(hoist_invariants(function(body, a))) == [
        "for i in range(8):",
        "quotient = truncdiv(i + 3, n + 1)",
        "remainder = truncmod(quotient, n + 2)",
        "for j in range(4):",
        "a[j] = remainder + quotient",
    ]


def test_possibly_negative_dividends_are_rounded_down():
    a = decl_buffer((64,), "int32", "a")
    func = function(loop(i, 8, BufferStore(a, floordiv(i - 3, n), (i,))), a)
    assert "quotient = (i - 3) // max(n, 1)" in text_of(hoist_invariants(func))


def test_conditions_of_branches_hold_for_the_divisions_in_them():
    a = decl_buffer((64,), "int32", "a")
    divided = BufferStore(a, floordiv(i + n - 8, n), (i,))
    func = function(IfThenElse(n >= 8, loop(i, 8, divided)), a)
    assert "quotient = truncdiv(i + n - 8, n)" in text_of(hoist_invariants(func))


def test_minima_and_divisions_by_numbers_are_hoisted_out_of_loops_that_they_do_not_depend_on():
    """The last tile of a product begins at a minimum, by which its panel's prefetches are counted."""
    a = decl_buffer((64,), "int32", "a")
    last = minimum(i * 4, n - 4)
    value = floordiv(last + 3, 4) + floormod(last, 3) + maximum(j, last) + minimum(j, 5)
    body = loop(i, n, loop(j, 8, BufferStore(a, value, (j,))))
    assert text_of(hoist_invariants(function(body, a))) == [
        "for i in range(n):",
        "minimum = min(i * 4, n - 4)",
        "remainder = minimum % 3",
        "for j in range(8):",
        "a[j] = (minimum + 3) // 4 + remainder + max(j, minimum) + min(j, 5)",
    ]


def test_positions_that_lanes_are_selected_from_are_broadcast_once():
    """LLVM's few passes broadcast them for each vector of a search for an extremum."""
    a, b, k = decl_buffer((64,), "int32", "a"), decl_buffer((64,), "int32", "b"), Var("k")

    def store(lanes: int, place: Var) -> BufferStore:
        at = ramp(place * lanes, 1, lanes)
        values = BufferLoad(b, (at,))
        return BufferStore(a, select(values > values, Broadcast(i + 2, lanes), Broadcast(const(9), lanes)), (at,))

    program = function(loop(i, 8, seq(loop(j, 4, store(8, j)), loop(k, 4, store(4, k)))), a, b)
    assert text_of(hoist_invariants(program)) == [
        "for i in range(8):",
        "position = broadcast(i + 2, 8)",
        "position_1 = broadcast(i + 2, 4)",
        "for j in range(4):",
        "a[ramp(j * 8, 1, 8)] = select(b[ramp(j * 8, 1, 8)] > b[ramp(j * 8, 1, 8)], position, broadcast(9, 8))",
        "for k in range(4):",
        "a[ramp(k * 4, 1, 4)] = select(b[ramp(k * 4, 1, 4)] > b[ramp(k * 4, 1, 4)], position_1, broadcast(9, 4))",
    ]


@pytest.mark.parametrize("divided", ["by data", "of data", "outside of loops", "by a number"])
def test_other_divisions_are_not_hoisted(divided: str):
    a = decl_buffer((64,), "int32", "a")
    at = BufferLoad(a, (i,))
    bodies = {
        "by data": loop(i, 8, BufferStore(a, floordiv(i, at), (i,))),
        "of data": loop(i, 8, BufferStore(a, floordiv(at, n), (i,))),
        "outside of loops": BufferStore(a, floordiv(const(7), n), (const(0),)),
        "by a number": loop(i, 8, BufferStore(a, floordiv(i + n, 3), (i,))),
    }
    lines = text_of(hoist_invariants(function(bodies[divided], a)))
    assert all(line.startswith(("for", "a[")) for line in lines)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (1, 1), (4, 16), (7, 3)])
def test_a_fused_and_tiled_image_is_computed_correctly(rows: int, columns: int):
    h, w = SizeVar("h"), SizeVar("w")
    x = te.placeholder((h, w, 4), name="x")
    y = topi.nn.pad(x, (1, 1, 0), (1, 1, 0), 0.0)
    s = te.create_schedule([y.op])
    outer, _ = s[y].split(s[y].fuse(*s[y].op.axis[:2]), factor=6, tail="shift")
    s[y].parallel(outer)
    func = te.lower(s, [x, y])["main"]
    hoisted = hoist_invariants(func)
    verify(hoisted)
    assert hoisted is not func
    data = np.arange(rows * columns * 4, dtype=np.float32).reshape(rows, columns, 4)
    results = [np.full((rows + 2, columns + 2, 4), 7, np.float32) for _ in range(2)]
    for f, result in zip((func, hoisted), results, strict=True):
        interpret(f, data.copy(), result)
    np.testing.assert_array_equal(results[0], np.pad(data, [(1, 1), (1, 1), (0, 0)]))
    np.testing.assert_array_equal(results[1], results[0])


def test_divisions_by_data_are_not_hoisted():
    """Data may be negative, and guards against division by 0 are inside the loop."""
    a, b = decl_buffer((4,), "int32", "a"), decl_buffer((), "int32", "b")
    d = Var("d")
    body = LetStmt(d, BufferLoad(b, ()), loop(j, 4, BufferStore(a, floordiv(const(-6), d) + floormod(j, d), (j,))))
    program = function(body, a, b)
    assert text_of(hoist_invariants(program)) == text_of(program)


def test_divisions_by_let_variables_stay_in_their_expression():
    a, d = decl_buffer((4,), "int32", "a"), Var("d")
    program = function(loop(j, 4, BufferStore(a, Let(d, n + j, floordiv(j, d)), (j,))), a)
    hoisted = hoist_invariants(program)
    verify(hoisted)
    assert text_of(hoisted) == text_of(program)


def test_negative_divisors_stay_negative():
    a = decl_buffer((8,), "int32", "a")
    program = function(loop(j, 8, BufferStore(a, floordiv(j, n - 5), (j,))), a)
    hoisted = hoist_invariants(program)
    verify(hoisted)
    for size in (2, 9):
        got = np.zeros(8, np.int32)
        interpret(hoisted, got, size)
        np.testing.assert_array_equal(got, np.arange(8) // (size - 5))

"""Reduction steps that read padding: which are skipped, and that results stay as they were."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.te.dtype import HANDLE
from relayc.te.tir import (
    Allocate,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    PrimExpr,
    PrimFunc,
    Stmt,
    Var,
    cast,
    const,
    decl_buffer,
    if_then_else,
    maximum,
    minimum,
    seq,
)  # fmt: skip
from relayc.te.tir.interpreter import interpret
from relayc.te.tir.ops import all as all_of
from relayc.te.tir.passes.hoist_if_then_else import hoist_if_then_else
from relayc.te.tir.passes.loop_partition import loop_partition
from relayc.te.tir.passes.skip_padding import SKIPS_PADDING, skip_padding

A, W, B = decl_buffer((6, 8), name="A"), decl_buffer((3,), name="W"), decl_buffer((6, 8), name="B")
SUMS = decl_buffer((8,), name="SUMS", scope="local")
Y, X, K = Var("y"), Var("x"), Var("k")
ROW, COLUMN = all_of(Y + K >= 1, Y + K < 7), X >= 1


def loop(var: Var, extent: int, body: Stmt, **annotations: bool) -> For:
    return For(var, const(0), const(extent), ForKind.SERIAL, body, annotations)


def function(tile: Stmt, **annotations: bool) -> PrimFunc:
    """`tile` adds up the sums of a line, in a loop over lines with `annotations`."""
    first = loop(X, 8, BufferStore(SUMS, const(1.0), (X,)))
    last = loop(X, 8, BufferStore(B, BufferLoad(SUMS, (X,)), (Y, X)))
    body = Allocate(SUMS, seq(first, tile, last))
    handles = [Var(b.name, HANDLE) for b in (A, W, B)]
    return PrimFunc(
        tuple(handles), loop(Y, 6, body, **annotations), dict(zip(handles, (A, W, B), strict=True))
    )


def windows(store: Stmt, **annotations: bool) -> PrimFunc:
    """`store` for each of 6 x 8 results and three taps along the lines, in a loop over lines with `annotations`."""
    return function(loop(K, 3, loop(X, 8, store)), **annotations)


def read(padding: float, *conditions: PrimExpr) -> PrimExpr:
    return if_then_else(all_of(*conditions), BufferLoad(A, (Y + K - 1, X - 1)), const(padding))


def onto(combine, term: PrimExpr) -> BufferStore:
    return BufferStore(SUMS, combine(BufferLoad(SUMS, (X,)), term), (X,))


def results(func: PrimFunc) -> np.ndarray:
    data = np.arange(48, dtype=np.float32).reshape(6, 8) - 20
    found = np.ones((6, 8), np.float32)
    interpret(func, data, np.array([2, -1, 3], np.float32), found)
    return found


def add(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return a + b


@pytest.mark.parametrize("store", [
    onto(add, read(0.0, ROW, COLUMN) * BufferLoad(W, (K,))),
    onto(add, BufferLoad(W, (K,)) * cast("float32", read(0.0, ROW, COLUMN))),
    onto(add, read(0.0, COLUMN, ROW)),
    onto(maximum, read(float("-inf"), ROW, COLUMN)),
    onto(minimum, read(float("inf"), ROW, COLUMN)),
], ids=["weighted", "converted", "sum", "maximum", "minimum"])  # fmt: skip
def test_lines_of_padding_are_skipped(store: BufferStore):
    """The branch moves out of the loop over columns, whose own condition stays with the read."""
    plain = windows(store)
    assert skip_padding(plain).body is plain.body
    skipped = hoist_if_then_else(skip_padding(windows(store, **{SKIPS_PADDING: True})))
    text = [line.strip() for line in str(skipped).splitlines()]
    at = next(n for n, line in enumerate(text) if line.startswith("if "))
    assert text[at] == "if y + k >= 1 and y + k < 7:"
    assert text[at + 1] == "for x in range(8):" and "if_then_else(x >= 1," in text[at + 2]
    np.testing.assert_array_equal(results(skipped), results(plain))


def test_a_condition_of_lines_alone_leaves_a_plain_read():
    store = onto(add, if_then_else(ROW, BufferLoad(A, (Y + K - 1, X)), const(0.0)))
    skipped = skip_padding(windows(store, **{SKIPS_PADDING: True}))
    assert "if_then_else" not in str(skipped)
    np.testing.assert_array_equal(results(skipped), results(windows(store)))


@pytest.mark.parametrize("store", [
    onto(add, read(1.0, ROW, COLUMN)),  # padding counts
    onto(add, read(0.0, ROW, COLUMN) + 1.0),  # so does what is added to it
    onto(maximum, read(0.0, ROW, COLUMN)),
    onto(maximum, read(float("-inf"), ROW, COLUMN) * const(2.0)),
    onto(add, read(0.0, COLUMN)),  # columns differ
    onto(add, if_then_else(BufferLoad(W, (K,)) > 0.0, BufferLoad(A, (Y, X)), const(0.0))),  # memory may change
    BufferStore(SUMS, BufferLoad(SUMS, (7 - X,)) + read(0.0, ROW, COLUMN), (X,)),  # another element
    BufferStore(SUMS, read(0.0, ROW, COLUMN), (X,)),  # no sum
])  # fmt: skip
def test_other_steps_stay(store: BufferStore):
    func = windows(store, **{SKIPS_PADDING: True})
    assert skip_padding(func).body is func.body


def test_versions_of_iterations_do_not_ask_for_lines_that_are_skipped():
    """The body without tests of columns serves all lines."""
    store = onto(add, read(0.0, ROW, COLUMN))
    columns = loop(X, 8, loop(K, 3, store), **{SKIPS_PADDING: True, "pragma_loop_versions": True})
    cut = loop_partition(skip_padding(function(columns)))
    assert "if x >= 1:" in [line.strip() for line in str(cut).splitlines()]
    np.testing.assert_array_equal(results(cut), results(function(columns)))

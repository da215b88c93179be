"""Overlap of the end of an iteration with the beginning of the next."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.ir import collect
from relayc.te.tir import Allocate, BufferStore, For, IfThenElse, PrimFunc
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.overlap_iterations import APART, OVERLAP

ROWS, COLUMNS = 6, 20


def _centred(block: int, *, tail: str = "guard", marked: bool = True, apart: bool = True) -> PrimFunc:
    """x less the mean of its column, by blocks of columns; with `apart` the mean is a separate stage from the sum."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    k = te.reduce_axis((0, ROWS), name="k")
    total = te.compute((COLUMNS,), lambda j: te.sum(x(k, j), axis=k), name="total")
    mean = te.compute((COLUMNS,), lambda j: total(j) / ROWS, name="mean")
    y = te.compute((ROWS, COLUMNS), lambda i, j: x(i, j) - mean(j), name="y")
    s = te.create_schedule(y.op)
    if not apart:
        s[mean].compute_inline()
    outer, inner = s[y].split(y.op.axis[1], factor=block, tail=tail)
    s[y].reorder(outer, y.op.axis[0], inner)
    if apart:
        s[mean].compute_at(s[y], outer)
    s[total].compute_at(s[y], outer)
    s[total].reorder(k, total.op.axis[0])
    if marked:
        s[y].pragma(outer, "overlap_iterations")
    return te.lower(s, [x, y])["main"]


def _check(func: PrimFunc) -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype("float32")
    y = np.full_like(x, np.nan)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (x, y))
    np.testing.assert_allclose(y, x - x.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("block", "tail"), [(4, "guard"), (5, "guard"), (10, "guard"), (8, "shift"), (7, "shift")])
def test_overlapped_iterations_compute_equal_results(block: int, tail: str) -> None:
    func = _centred(block, tail=tail)
    _check(func)
    assert len(collect(func.body, IfThenElse)) == 1
    assert len(collect(func.body, For)) > len(collect(_centred(block, tail=tail, marked=False).body, For))


def test_the_annotation_is_removed() -> None:
    func = _centred(4)
    assert all(OVERLAP not in loop.annotations for loop in collect(func.body, For))


def test_a_single_iteration_is_unchanged() -> None:
    func = _centred(COLUMNS)
    _check(func)
    assert not collect(func.body, IfThenElse)


def test_an_end_that_reads_what_the_beginning_writes_is_not_overlapped() -> None:
    func = _centred(4, apart=False)
    _check(func)
    assert not collect(func.body, IfThenElse)


@pytest.mark.parametrize("turned", [False, True])
def test_inner_loops_are_fused_where_the_next_iteration_overwrites_stored_elements(turned: bool) -> None:
    """Groups of rows, and rows in them: each is stored in one loop with its replacement, unless orders differ."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    k = te.reduce_axis((0, ROWS), name="k")
    double = te.compute((ROWS, COLUMNS), lambda i, j: x(i, j) * 2, name="double")
    total = te.compute((COLUMNS,), lambda j: te.sum(double(k, j), axis=k), name="total")
    y = te.compute((ROWS, COLUMNS), lambda i, j: double(i, j) / 2 - total(j) / (2 * ROWS), name="y")
    s = te.create_schedule(y.op)
    block, column = s[y].split(y.op.axis[1], factor=4)
    group, row = s[y].split(y.op.axis[0], factor=2)
    s[y].reorder(block, group, row, column)
    for stage in (double, total):
        s[stage].compute_at(s[y], block)
    s[total].reorder(k, total.op.axis[0])
    outer, inner = s[double].split(double.op.axis[0], factor=2)
    if turned:
        s[double].reorder(outer, double.op.axis[1], inner)
    s[y].pragma(block, "overlap_iterations")
    func = te.lower(s, [x, y])["main"]
    _check(func)
    (either,) = collect(func.body, IfThenElse)
    both = [{store.buffer.name for store in collect(loop, BufferStore)} for loop in collect(either.then_case, For)]
    assert both.count({"y", "double"}) == (1 if turned else 3)


def test_iterations_with_separate_memory_may_traverse_it_in_different_orders() -> None:
    """Copies are filled by columns and stored by rows; even and odd iterations use different halves of the buffer."""
    x = te.placeholder((3, ROWS, COLUMNS), name="x")
    y = te.compute((3, ROWS, COLUMNS), lambda *i: x(*i) * 2, name="y")
    s = te.create_schedule(y.op)
    copy = s.cache_read(x, "local", [y.op])
    _, i, j = s[y].op.axis
    block, i = s[y].split(i, factor=2)
    s[y].split(s[y].fuse(i, j), factor=2)
    s[copy].compute_at(s[y], block)
    s[copy].reorder(s[copy].op.axis[2], s[copy].op.axis[1])
    s[y].pragma(block, "overlap_iterations", APART)
    func = te.lower(s, [x, y])["main"]
    data = np.random.default_rng(0).standard_normal((3, ROWS, COLUMNS)).astype("float32")
    found = np.full_like(data, np.nan)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (data, found))
    assert np.array_equal(found, data * 2)
    assert [tuple(a.buffer.shape) for a in collect(func.body, Allocate)] == [(2 * 2 * COLUMNS,)]
    (either,) = collect(func.body, IfThenElse)
    written = [{store.buffer.name for store in collect(loop, BufferStore)} for loop in collect(either.then_case, For)]
    assert {"y", "x.local"} in written

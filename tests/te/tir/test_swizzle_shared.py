"""Swizzled shared memory: places of elements, and unchanged results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import LoweringError, ScheduleError
from relayc.te.ir import IRModule, collect
from relayc.te.tir import Allocate, BufferStore, PrimFunc, Ramp
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.merge_shared_memory import merge_shared_memory
from relayc.te.tir.passes.swizzle_shared import SwizzleShared
from relayc.te.tir.passes.thread_sync import thread_sync

LINES, LINE = 16, 64


def _transposed(lanes: int) -> PrimFunc:
    """A float16 matrix transposed through swizzled shared memory, filled by copies of `lanes` elements."""
    a = te.placeholder((LINES, LINE), "float16", name="a")
    lines = te.compute((LINES, LINE), lambda i, k: a(i, k) * te.const(2, "float16"), name="lines")
    out = te.compute((LINE, LINES), lambda k, i: lines(i, k), name="out")
    s = te.create_schedule(out.op)
    k, i = out.op.axis
    s[out].reorder(i, k)
    s[out].bind(k, te.thread_axis((0, LINE), "threadIdx.x"))
    block = s[out].fuse(s[out].split(i, factor=LINES)[0])
    s[out].bind(block, te.thread_axis("blockIdx.x"))
    s[lines].set_scope("shared")
    s[lines].swizzle()
    s[lines].compute_at(s[out], block)
    row, column = s[lines].op.axis
    column, lane = s[lines].split(column, factor=lanes)
    s[lines].vectorize(lane)
    _, thread = s[lines].split(s[lines].fuse(row, column), factor=LINE)
    s[lines].bind(thread, te.thread_axis((0, LINE), "threadIdx.x"))
    return te.lower(s, [a, out])["main"]


def _swizzled(func: PrimFunc) -> PrimFunc:
    return SwizzleShared()(IRModule({"main": func}))["main"]


def _check(func: PrimFunc) -> None:
    a = np.random.default_rng(0).standard_normal((LINES, LINE)).astype("float16")
    out = np.full((LINE, LINES), np.nan, "float16")
    func = thread_sync(func)
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (a, out))
    np.testing.assert_array_equal(out, 2 * a.T)


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_rewritten_programs_compute_equal_results(lanes: int) -> None:
    func = _transposed(lanes)
    _check(func)
    _check(_swizzled(func))


def test_equal_parts_of_eight_lines_lie_in_different_banks() -> None:
    (store,) = [n for n in collect(_swizzled(_transposed(8)).body, BufferStore) if n.buffer.swizzled]
    (index,) = store.indices
    assert isinstance(index, Ramp) and "^" in str(index.base)


def test_memory_is_aligned_to_the_swizzle_pattern() -> None:
    (memory,) = [n.buffer for n in collect(_transposed(8).body, Allocate) if n.buffer.scope == "shared"]
    assert memory.align == 8 * 128
    merge_shared_memory(_transposed(8))


def test_accesses_across_parts_raise() -> None:
    with pytest.raises(LoweringError, match="no part of 16 bytes"):
        _swizzled(_transposed(16))


def test_only_shared_memory_is_swizzled() -> None:
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a(i) + 1.0, name="b")
    out = te.compute((8,), lambda i: b(i) + 1.0, name="out")
    s = te.create_schedule(out.op)
    with pytest.raises(ScheduleError, match="only shared memory"):
        s[b].swizzle()

"""Cross-thread reductions by groups of all shapes: results in any thread order, and the exchange that is used."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import LoweringError
from relayc.te.ir import collect
from relayc.te.tir import Allocate, Call, PrimFunc
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.lower_thread_allreduce import lower_thread_allreduce
from relayc.te.tir.passes.thread_sync import thread_sync


def reduction(rows: int, threads: dict[str, int], serial: int, combine, dtype: str = "float32", data: int = 1):
    """Rows of `serial` * the threads in `threads` elements; `data` threads of threadIdx.y take a row each if > 1."""
    total = serial * int(np.prod(list(threads.values())))
    a = te.placeholder((rows, total), dtype, name="a")
    k = te.reduce_axis((0, total), name="k")
    out = te.compute((rows,), lambda i: combine(a[i, k], k), name="out")
    return a, out, k


def schedule(out, threads: dict[str, int], data_axis: str | None, data: int):
    s = te.create_schedule(out.op)
    rest = s[out].op.reduce_axis[0]
    for tag, extent in threads.items():
        rest, bound = s[out].split(rest, factor=extent)
        s[out].bind(bound, te.thread_axis(f"threadIdx.{tag}"))
    row = s[out].op.axis[0]
    if data_axis is not None:
        row, own = s[out].split(row, factor=data)
        s[out].bind(own, te.thread_axis(f"threadIdx.{data_axis}"))
    s[out].bind(row, te.thread_axis("blockIdx.x"))
    return s


def lowered(rows, threads, serial=1, combine=lambda x, k: te.sum(x, axis=k), dtype="float32", data_axis=None, data=1):
    a, out, _ = reduction(rows, threads, serial, combine, dtype)
    func = te.lower(schedule(out, threads, data_axis, data), [a, out], name="f")["f"]
    return thread_sync(lower_thread_allreduce(func))


def results(func: PrimFunc, rows: int, columns: int, dtype: str = "float32"):
    """The argument, and the results with the threads in either order."""
    a = np.random.default_rng(0).integers(-50, 50, (rows, columns)).astype(dtype)
    outs = []
    for backwards in (False, True):
        out = np.full((rows,), 77, dtype)
        BlockInterpreter({"f": func}, check_uninitialized=True, backwards=backwards)("f", a, out)
        outs.append(out)
    np.testing.assert_array_equal(*outs)
    return a, outs[0]


def calls(func: PrimFunc, op: str) -> int:
    return len([c for c in collect(func.body, Call) if c.op == op])


@pytest.mark.parametrize(
    ("threads", "data_axis", "data", "shuffles", "barriers"),
    [
        ({"x": 1}, None, 1, 0, 0),
        ({"x": 2}, None, 1, 1, 0),
        ({"x": 32}, None, 1, 5, 0),
        ({"x": 8}, "y", 3, 3, 0),  # groups inside a partial warp
        ({"x": 8, "y": 4}, None, 1, 5, 0),  # two axes, one warp
        ({"x": 64}, None, 1, 6, 1),
        ({"x": 96}, None, 1, 7, 1),  # three warps: no power of two
        ({"x": 32, "y": 3}, None, 1, 7, 1),
        ({"x": 64}, "y", 2, 6, 1),
        ({"x": 5}, None, 1, 0, 1),
        ({"x": 5}, "y", 3, 0, 1),
        ({"y": 6}, "x", 4, 0, 1),  # columns
        ({"y": 8}, "x", 4, 0, 1),
        ({"x": 50}, None, 1, 0, 2),
        ({"y": 40}, "x", 2, 0, 2),
        ({"x": 2, "z": 3}, "y", 2, 0, 1),  # non-adjacent groups
    ],
)
def test_sums(threads, data_axis, data, shuffles, barriers):
    serial, rows = 3, 2 * data
    func = lowered(rows, threads, serial, data_axis=data_axis, data=data)
    a, out = results(func, rows, serial * int(np.prod(list(threads.values()))))
    np.testing.assert_array_equal(out, a.sum(1))
    assert (calls(func, "warp_shuffle_xor"), calls(func, "storage_sync")) == (shuffles, barriers), func


@pytest.mark.parametrize("threads", [{"x": 16}, {"x": 64}, {"x": 7}, {"x": 40}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremes(threads, dtype, kind):
    combine = {"max": te.max, "min": te.min}[kind]
    func = lowered(2, threads, 2, lambda x, k: combine(x, axis=k), dtype)
    a, out = results(func, 2, 2 * int(np.prod(list(threads.values()))), dtype)
    np.testing.assert_array_equal(out, getattr(a, kind)(1))


@pytest.mark.parametrize("threads", [8, 64, 96, 7, 50])
def test_tuples(threads):
    """The largest element and its index."""
    a = te.placeholder((3, 2 * threads), name="a")
    k = te.reduce_axis((0, 2 * threads), name="k")

    def combine(x, y):
        first = te.any(x[1] > y[1], te.all(x[1] == y[1], x[0] < y[0]))
        return te.select(first, x[0], y[0]), te.select(first, x[1], y[1])

    argmax = te.comm_reducer(combine, lambda i, v: (te.const(1 << 20, i), te.min_value(v)), name="argmax")
    where, most = te.compute((3,), lambda i: argmax((k, a[i, k]), axis=k), name="out")
    s = te.create_schedule(where.op)
    _, bound = s[where].split(s[where].op.reduce_axis[0], factor=threads)
    s[where].bind(bound, te.thread_axis("threadIdx.x"))
    s[where].bind(s[where].op.axis[0], te.thread_axis("blockIdx.x"))
    func = thread_sync(lower_thread_allreduce(te.lower(s, [a, where, most], name="f")["f"]))
    x = np.random.default_rng(1).integers(0, 9, (3, 2 * threads)).astype("float32")
    for backwards in (False, True):
        i, v = np.full(3, -1, "int32"), np.full(3, np.nan, "float32")
        BlockInterpreter({"f": func}, check_uninitialized=True, backwards=backwards)("f", x, i, v)
        np.testing.assert_array_equal(i, x.argmax(1))
        np.testing.assert_array_equal(v, x.max(1))


@pytest.mark.parametrize("threads", [64, 7])
def test_in_a_loop_shared_slots_are_read_before_they_are_rewritten(threads):
    a = te.placeholder((4, 2 * threads), name="a")
    k = te.reduce_axis((0, 2 * threads), name="k")
    out = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="out")
    s = te.create_schedule(out.op)
    _, bound = s[out].split(s[out].op.reduce_axis[0], factor=threads)
    s[out].bind(bound, te.thread_axis("threadIdx.x"))
    func = thread_sync(lower_thread_allreduce(te.lower(s, [a, out], name="f")["f"]))
    x, y = results(func, 4, 2 * threads)
    np.testing.assert_array_equal(y, x.sum(1))
    assert calls(func, "storage_sync") == 2


def test_the_allreduce_call_is_lowered_completely():
    func = lowered(2, {"x": 64})
    assert calls(func, "thread_allreduce") == 0
    assert all(n.buffer.scope in ("local", "shared") for n in collect(func.body, Allocate))


def test_reductions_across_blocks_raise():
    a, out, _ = reduction(2, {"x": 8}, 1, lambda x, k: te.sum(x, axis=k))
    s = te.create_schedule(out.op)
    s[out].bind(s[out].op.reduce_axis[0], te.thread_axis("blockIdx.x"))
    with pytest.raises(LoweringError, match="bind reduce axes to threadIdx"):
        lower_thread_allreduce(te.lower(s, [a, out], name="f")["f"])

"""Tensor intrinsics that replace inner loops."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import ScheduleError
from relayc.te.tir import StringImm, call_intrin, decl_buffer
from relayc.te.tir.interpreter import Interpreter

RNG = np.random.default_rng(11)


def dot_intrin(n, rows=1, with_parts=True):
    """out[i] (+)= sum_k a[k] * b[i, k] by calling "dot" with addresses and a stride."""
    a, b = te.placeholder((n,), name="a"), te.placeholder((rows, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((rows,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
    strided = decl_buffer((rows, n), "float32", "b", strides=[te.var("s"), 1], elem_offset=te.var("offset"))

    def emit(ins, outs):
        x, y, z = ins[0], ins[1], outs[0]

        def call(accumulate):
            addresses = [call_intrin("handle", "address_of", te.tir.BufferLoad(buffer, start))
                         for buffer, start in ((x, (te.const(0),)), (y, (te.const(0),) * 2), (z, (te.const(0),)))]
            return call_intrin("int32", "call_extern", StringImm("dot"), *addresses, y.strides[0], n, accumulate)

        ib = te.ir_builder.create()
        out = ib.buffer(z)
        with ib.for_range(0, rows, name="r") as r:
            out[r] = 0.0
        return (call(0), ib.get(), call(1)) if with_parts else call(0)

    return te.decl_tensor_intrin(c.op, emit, name="dot", binds={b: strided})


def run_dot(schedule, tensors, *arrays, rows=1):
    def dot(x, y, z, stride, n, accumulate):
        at = [p.memory.view(tensors[0].dtype)[p.offset // 4 :] for p in (x, y, z)]
        for r in range(rows):
            value = at[0][:n] @ at[1][r * stride : r * stride + n]
            at[2][r] = (at[2][r] if accumulate else 0) + value
        return 0

    Interpreter(te.lower(schedule, tensors), {"dot": dot})("main", *arrays)


def product(m, n, k):
    a, b = te.placeholder((m, k), name="A"), te.placeholder((n, k), name="B")
    r = te.reduce_axis((0, k), name="k")
    return a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[j, r], axis=r), name="C")


@pytest.mark.parametrize(("depth", "rows"), [(8, 1), (4, 1), (4, 2), (2, 3)])
def test_reduction_tensorized_whole_and_split(depth, rows):
    a, b, c = product(3, 6, 8)
    s = te.create_schedule(c)
    jo, ji = s[c].split(c.op.axis[1], rows)
    ko, ki = s[c].split(c.op.reduce_axis[0], depth)
    s[c].reorder(c.op.axis[0], jo, ko, ji, ki)
    s[c].tensorize(ji, dot_intrin(depth, rows))
    text = str(te.lower(s, [a, b, c]))
    assert text.count("dot") == 1
    x, y = RNG.integers(-3, 4, (3, 8)).astype(np.float32), RNG.integers(-3, 4, (6, 8)).astype(np.float32)
    z = np.full((3, 6), np.nan, np.float32)
    run_dot(s, [a, b, c], x, y, z, rows=rows)
    np.testing.assert_array_equal(z, x @ y.T)


def test_elementwise_intrinsic_over_a_part_of_a_cached_tensor():
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] * 2.0 + 1.0, name="y")

    def emit(ins, outs):
        ib = te.ir_builder.create()
        a, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with ib.for_range(0, 4) as i:
            out[i] = 1.0 + a[i] * 2.0
        return ib.get()

    intrin = te.decl_tensor_intrin(y.op, emit, name="scale")
    a = te.placeholder((3, 8), name="a")
    b = te.compute((3, 8), lambda i, j: a[i, j] * 2.0 + 1.0, name="b")
    s = te.create_schedule(b)
    copy = s.cache_read(a, "local", [b])
    jo, ji = s[b].split(b.op.axis[1], 4)
    s[copy].compute_at(s[b], jo)
    s[b].tensorize(ji, intrin)
    v, r = RNG.random((3, 8), dtype=np.float32), np.empty((3, 8), np.float32)
    Interpreter(te.lower(s, [a, b]))("main", v, r)
    np.testing.assert_array_equal(r, v * np.float32(2) + np.float32(1))


@pytest.mark.parametrize(
    ("depth", "factor", "parts", "message"),
    [
        (4, 2, True, "axis k runs 2 times inside the tensorized loop, the intrinsic's 4"),
        (3, 3, True, "guarded.*factors that divide"),
        (4, 4, False, "no reduce_update"),
    ],
)
def test_loops_must_fit_the_intrinsic(depth, factor, parts, message):
    a, b, c = product(3, 6, 8)
    s = te.create_schedule(c)
    ko, ki = s[c].split(c.op.reduce_axis[0], factor)
    s[c].reorder(ko, *c.op.axis, ki)
    s[c].tensorize(ki, dot_intrin(depth, 1, parts))
    with pytest.raises(ScheduleError, match=message):
        te.lower(s, [a, b, c])


def test_computations_must_be_the_same():
    a, b = te.placeholder((3, 4), name="A"), te.placeholder((6, 4), name="B")
    k = te.reduce_axis((0, 4), name="k")
    for body, message in [
        (lambda i, j: te.max(a[i, k] * b[j, k], axis=k), "the reduction is another one"),
        (lambda i, j: te.sum(a[i, k] + b[j, k], axis=k), "the stage computes .* where the intrinsic computes"),
        (lambda i, j: te.sum(a[i, 3 - k] * b[j, k], axis=k), "the stage computes .* where the intrinsic computes"),
    ]:
        c = te.compute((3, 6), body, name="C")
        s = te.create_schedule(c)
        s[c].tensorize(k, dot_intrin(4))
        with pytest.raises(ScheduleError, match=message):
            te.lower(s, [a, b, c])


def test_compact_buffers_are_required_only_for_addresses():
    x = te.placeholder((2, 4), name="x")
    y = te.compute((2, 4), lambda i, j: x[i, j] + 1.0, name="y")

    def emit(ins, outs):
        origin = (te.const(0),) * 2
        addresses = [call_intrin("handle", "address_of", te.tir.BufferLoad(b, origin)) for b in (*ins, *outs)]
        return call_intrin("int32", "call_extern", StringImm("f"), *addresses)

    intrin = te.decl_tensor_intrin(y.op, emit, name="f")
    a = te.placeholder((6, 8), name="a")
    b = te.compute((6, 8), lambda i, j: a[i, j] + 1.0, name="b")
    s = te.create_schedule(b)
    *_, ii, _ = s[b].tile(*b.op.axis, 2, 4)
    s[b].tensorize(ii, intrin)
    with pytest.raises(ScheduleError, match=r"strides \(8, 1\), the intrinsic expects \(4, 1\); declare"):
        te.lower(s, [a, b])

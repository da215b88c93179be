"""Operations with loops of their own: extern statements and scans."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import CompileError, LoweringError
from relayc.te.tir import Evaluate, StringImm, call_intrin
from relayc.te.tir.interpreter import Interpreter

RNG = np.random.default_rng(3)


def run(schedule, tensors, *arrays, functions=None):
    Interpreter(te.lower(schedule, tensors), functions, check_uninitialized=True)("main", *arrays)


def insertion_sort(n):
    def fill(ins, outs):
        ib = te.ir_builder.create()
        a, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        place = ib.allocate("int32", 1, name="place")
        with ib.for_range(0, n, name="i") as i:
            value = ib.let("value", a[i])
            place[0] = i
            with ib.while_loop(te.all(place[0] > 0, te.if_then_else(place[0] > 0, out[place[0] - 1] > value, False))):
                out[place[0]] = out[place[0] - 1]
                place[0] = place[0] - 1
            out[place[0]] = value
        return ib.get()

    return fill


def test_extern_statement_between_computes():
    n = 9
    x = te.placeholder((n,), name="x")
    twice = te.compute((n,), lambda i: x[i] * 2.0, name="twice")
    ordered = te.extern((n,), [twice], insertion_sort(n), name="ordered")
    y = te.compute((n,), lambda i: ordered[n - 1 - i] + 1.0, name="y")
    s = te.create_schedule(y)
    s.cache_read(twice, "local", [ordered])
    a, r = RNG.random(n, dtype=np.float32), np.empty(n, np.float32)
    run(s, [x, y], a, r)
    np.testing.assert_array_equal(r, np.sort(a * np.float32(2))[::-1] + np.float32(1))


def test_extern_with_several_outputs_and_branches():
    n = 6
    x = te.placeholder((n,), name="x")

    def fill(ins, outs):
        ib = te.ir_builder.create()
        a, positive, sign = ib.buffer(ins[0]), ib.buffer(outs[0]), ib.buffer(outs[1])
        with ib.for_range(0, n, name="i") as i:
            with ib.if_scope(a[i] > 0.5):
                positive[i] = a[i]
                sign[i] = 1
            with ib.else_scope():
                positive[i] = 0.0
                sign[i] = 0
        return ib.get()

    positive, sign = te.extern([(n,), (n,)], [x], fill, name="f", dtype=["float32", "int32"])
    s = te.create_schedule(positive)
    a = RNG.random(n, dtype=np.float32)
    p, q = np.empty(n, np.float32), np.empty(n, np.int32)
    run(s, [x, positive, sign], a, p, q)
    np.testing.assert_array_equal(p, np.where(a > 0.5, a, 0))
    np.testing.assert_array_equal(q, a > 0.5)


def test_extern_call():
    x = te.placeholder((4,), name="x")

    def call(ins, outs):
        addresses = [call_intrin("handle", "address_of", te.ir_builder.create().buffer(b)[0]) for b in (*ins, *outs)]
        return Evaluate(call_intrin("int32", "call_extern", StringImm("negate"), *addresses))

    y = te.extern((4,), [x], call, name="y")
    a, r = RNG.random(4, dtype=np.float32), np.empty(4, np.float32)

    def negate(source, target):
        target.memory.view(y.dtype)[:] = -source.memory.view(x.dtype)
        return 0

    Interpreter(te.lower(te.create_schedule(y), [x, y]), {"negate": negate})("main", a, r)
    np.testing.assert_array_equal(r, -a)


def cumulative_sum(m, n):
    x = te.placeholder((m, n), name="x")
    state = te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    scaled = te.compute((m, n), lambda t, i: state[t - 1, i] * 1.0, name="scaled")
    step = te.compute((m, n), lambda t, i: scaled[t, i] + x[t, i], name="step")
    return x, scaled, step, te.scan(first, step, state, inputs=[x], name="scan")


def test_scan_computes_step_after_step():
    m, n = te.var("m"), 5
    x, scaled, step, result = cumulative_sum(m, n)
    s = te.create_schedule(result)
    outer, _ = s[step].split(step.op.axis[1], 2)
    module = te.lower(s, [x, result], simple_mode=True)
    assert 'scaled = allocate([1, 5], "float32"' in str(module)
    a, r = RNG.integers(0, 9, (7, 5)).astype(np.float32), np.empty((7, 5), np.float32)
    run(s, [x, result], a, r)
    np.testing.assert_array_equal(r, np.cumsum(a, axis=0))
    s[scaled].compute_at(s[step], outer)
    module = te.lower(s, [x, result], simple_mode=True)
    assert 'scaled = allocate([1, 2], "float32"' in str(module)
    run(s, [x, result], a, r)
    np.testing.assert_array_equal(r, np.cumsum(a, axis=0))


def test_scan_feeding_a_compute_and_of_several_states():
    m, n = 6, 3
    x = te.placeholder((m, n), name="x")
    s1, s2 = te.placeholder((m, n), name="s1"), te.placeholder((m, n), name="s2")
    i1 = te.compute((1, n), lambda _, i: x[0, i], name="i1")
    i2 = te.compute((1, n), lambda _, i: 0.0, name="i2")
    u1 = te.compute((m, n), lambda t, i: s1[t - 1, i] + x[t, i], name="u1")
    u2 = te.compute((m, n), lambda t, i: s2[t - 1, i] + s1[t - 1, i], name="u2")
    _, b = te.scan([i1, i2], [u1, u2], [s1, s2], name="pair")
    y = te.compute((m, n), lambda t, i: b[t, i] * 2.0, name="y")
    s = te.create_schedule(y)
    a, r = RNG.integers(0, 9, (m, n)).astype(np.float32), np.empty((m, n), np.float32)
    run(s, [x, y], a, r)
    sums = np.cumsum(a, axis=0)
    want = np.concatenate([np.zeros((1, n)), np.cumsum(sums, axis=0)[:-1]])
    np.testing.assert_array_equal(r, want * 2)


def test_unsupported_externs_and_scans_raise():
    x, _, step, result = cumulative_sum(4, 5)
    with pytest.raises(LoweringError, match="shares its memory"):
        te.lower(te.create_schedule(result), [x, step, result])
    with pytest.raises(CompileError, match="expected a statement or a call"):
        te.extern((4,), [x], lambda ins, outs: None)
    with pytest.raises(CompileError, match="must have one shape and dtype"):
        te.scan(te.placeholder((1, 3)), te.placeholder((4, 3)), te.placeholder((4, 2)))
    ib = te.ir_builder.create()
    with pytest.raises(CompileError, match="must follow an if_scope"), ib.else_scope():
        pass
    n = te.compute((4, 5), lambda i, j: x[i, j], name="n")
    e = te.extern((4, 5), [n], lambda ins, outs: Evaluate(te.const(0)), name="e")
    s = te.create_schedule(e)
    s[n].compute_inline()
    with pytest.raises(CompileError, match=r"e \(a ExternOp\) reads as a whole tensor"):
        te.lower(s, [x, e])

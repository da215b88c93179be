"""Annotations of schedules: threads, predicates, alignment, double buffers, prefetches, pragmas."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import ScheduleError
from relayc.te.tir import decl_buffer, ir_builder
from relayc.te.tir.interpreter import Interpreter

RNG = np.random.default_rng(5)


def row_sums(m, n):
    a = te.placeholder((m, n), name="a")
    k = te.reduce_axis((0, n), name="k")
    return a, te.compute((m,), lambda i: te.sum(a[i, k], axis=k), name="b")


def test_reduction_across_threads():
    a, b = row_sums(4, 30)
    s = te.create_schedule(b)
    _, ki = s[b].split(b.op.reduce_axis[0], 8)
    thread = te.thread_axis("threadIdx.x")
    s[b].bind(ki, thread)
    s[b].bind(b.op.axis[0], te.thread_axis("blockIdx.x"))
    s[b].set_store_predicate(thread.var == 0)
    text = str(te.lower(s, [a, b], simple_mode=True))
    assert "thread_allreduce(1, b.partial[0], address_of(b.all[0]), threadIdx.x)" in text
    assert text.index("b.partial[0] = 0.0") < text.index("likely(k.outer * 8 + threadIdx.x < 30)")
    assert text.index("if threadIdx.x == 0") > text.index("thread_allreduce")
    s[b].reorder(ki, *[v for v in s[b].leaf_iter_vars if v is not ki])
    assert "thread_allreduce" in str(te.lower(s, [a, b], simple_mode=True))


def test_threads_can_not_reduce_around_serial_data_loops():
    a, b = row_sums(4, 30)
    s = te.create_schedule(b)
    ko, ki = s[b].split(b.op.reduce_axis[0], 8)
    s[b].bind(ki, te.thread_axis("threadIdx.x"))
    s[b].reorder(ki, ko, b.op.axis[0])
    with pytest.raises(ScheduleError, match=r"reduce loop k.outer stands outside data loop i; reorder it"):
        te.lower(s, [a, b])


def test_rfactor_bound_to_threads_computes_the_sum():
    a, b = row_sums(4, 30)
    s = te.create_schedule(b)
    _, ki = s[b].split(b.op.reduce_axis[0], 8)
    partial = s.rfactor(b, ki)
    s[partial].bind(s[partial].op.axis[0], te.thread_axis("threadIdx.x"))
    x, r = RNG.integers(0, 9, (4, 30)).astype(np.float32), np.empty(4, np.float32)
    Interpreter(te.lower(s, [a, b]), check_uninitialized=True)("main", x, r)
    np.testing.assert_array_equal(r, x.sum(1))


def test_storage_align_pads_strides_and_keeps_values():
    a = te.placeholder((6, 10), name="a")
    b = te.compute((6, 10), lambda i, j: a[i, j] * 2.0, name="b")
    c = te.compute((10, 6), lambda i, j: b[j, i] + 1.0, name="c")
    s = te.create_schedule(c)
    s[b].storage_align(b.op.axis[0], 8, 1)
    x, r = RNG.random((6, 10), dtype=np.float32), np.empty((10, 6), np.float32)
    module = te.lower(s, [a, c])
    assert "* 17" in str(module)
    Interpreter(module, check_uninitialized=True)("main", x, r)
    np.testing.assert_array_equal(r, (x * np.float32(2) + np.float32(1)).T)


def test_prefetch_touches_the_lines_of_a_later_iteration():
    a = te.placeholder((20, 40), name="a")
    b = te.compute((20, 40), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    s[b].prefetch(a, b.op.axis[0], 2)
    text = str(te.lower(s, [a, b], simple_mode=True))
    assert "prefetch(address_of(a[min(i + 2, 19), a.line1 * 16]), 3, 0)" in text
    x, r = RNG.random((20, 40), dtype=np.float32), np.empty((20, 40), np.float32)
    Interpreter(te.lower(s, [a, b]))("main", x, r)
    np.testing.assert_array_equal(r, x * np.float32(2))
    with pytest.raises(ScheduleError, match="does not read"):
        s[b].prefetch(b, b.op.axis[0], 1)


@pytest.mark.parametrize(("level", "locality"), [(2, 2), (1, 3)])
def test_prefetched_lines_are_chosen_by_where_the_axes_begin(level: int, locality: int):
    """A product prefetches the next rows of its right operand while it computes with rows of the left one."""
    a, b = te.placeholder((8, 32), name="a"), te.placeholder((6, 32), name="b")
    k = te.reduce_axis((0, 32), name="k")
    c = te.compute((6, 8), lambda n, m: te.sum(a[m, k] * b[n, k], axis=k), name="c")
    s = te.create_schedule(c)
    n, m = c.op.axis
    m_outer, m_inner = s[c].split(m, factor=2)
    k_outer, k_inner = s[c].split(c.op.reduce_axis[0], factor=4)
    s[c].reorder(n, m_outer, k_outer, k_inner, m_inner)
    s[c].prefetch(b, k_outer, te.Prefetch(order=lambda n, m, k: (n + 1, m * 4 + k // 4), level=level))
    text = str(te.lower(s, [a, b, c], simple_mode=True))
    assert f"prefetch(address_of(b[min(n + 1, 5), m.outer * 8 + k.outer]), {locality}, 0)" in text
    x, y, r = (RNG.random(shape, dtype=np.float32) for shape in ((8, 32), (6, 32), (6, 8)))
    Interpreter(te.lower(s, [a, b, c]))("main", x, y, r)
    np.testing.assert_allclose(r, y @ x.T, rtol=1e-5)
    with pytest.raises(ScheduleError, match="does not read"):
        s[c].prefetch(c, k_outer, te.Prefetch(order=lambda n, m, k: (n, m)))
    s[c].prefetch(te.placeholder((6, 8), name="other"), k_outer, te.Prefetch(order=lambda n, m, k: (n, m)))
    with pytest.raises(ScheduleError, match="prefetch of other, which no stage reads"):
        te.lower(s, [a, b, c])


def test_lines_are_prefetched_in_the_order_of_the_calls():
    a = te.placeholder((8, 64), name="a")
    b = te.compute((8, 64), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    for ahead in (64, 80, 96):
        s[b].prefetch(a, b.op.axis[0], te.Prefetch(order=lambda i, j, ahead=ahead: (i * 64 + ahead,)))
    text = str(te.lower(s, [a, b]))
    places = [text.index(f"i * 64 + {ahead}, 511)") for ahead in (64, 80, 96)]
    assert places == sorted(places)


def test_lines_are_prefetched_where_vectors_that_span_rows_begin():
    a = te.placeholder((8, 24), name="a")
    b = te.compute((8, 24), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    outer, inner = s[b].split(s[b].fuse(*b.op.axis), factor=16)
    s[b].vectorize(inner)
    s[b].prefetch(a, outer, te.Prefetch(order=lambda i, j: (i * 24 + j + 48,)))
    assert "a[0, min(i.j.fused.outer * 16 + 48, 191)]" in str(te.lower(s, [a, b], simple_mode=True))


def test_the_place_of_a_prefetch_may_read_an_inlined_tensor():
    a = te.placeholder((8, 64), name="a")
    row = te.compute((), lambda: te.const(3, "int64"), name="row")
    b = te.compute((64,), lambda j: a[row[()], j] * 2.0, name="b")
    s = te.create_schedule(b)
    s[row].compute_inline()
    s[b].prefetch(a, b.op.axis[0], te.Prefetch(order=lambda j: (row[()] * 64 + j + 16,)))
    assert "prefetch(address_of(a[j + 208])" in str(te.lower(s, [a, b]))


def test_several_consecutive_lines_are_prefetched():
    a = te.placeholder((8, 64), name="a")
    b = te.compute((8, 64), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    s[b].prefetch(a, b.op.axis[0], te.Prefetch(order=lambda i, j: (i * 64 + 64,), lines=3))
    text = str(te.lower(s, [a, b]))
    assert [text.count(f"min(i * 64 + 64, 511){behind}]") for behind in ("", " + 16", " + 32")] == [1, 1, 1]


def test_a_prefetched_line_may_lie_past_the_end_of_its_dimension():
    """Only the last index may lie past the end, which leads to the following row, or past the tensor."""
    a = te.placeholder((8, 64), name="a")
    b = te.compute((8, 64), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    s[b].prefetch(a, b.op.axis[1], te.Prefetch(order=lambda i, j: (i + 1, j * 2), past_end=True))
    assert "a[min(i + 1, 7), j * 2]" in str(te.lower(s, [a, b], simple_mode=True))


@pytest.mark.parametrize(
    ("strides", "place"),
    [(None, "0, 0, i * 320 + j * 64"), ((640, 128, 1), "0, i * 5 + j, 0"), ((512, 64, 1), "i, 0, j * 64")],
)
def test_one_index_into_all_dimensions_finds_lines_of_rows_with_gaps(strides, place: str):
    """Rows that lie in a wider tensor are further apart in memory than in the tensor's order."""
    n = te.size_var("n")
    a = te.placeholder((n, 5, 64), name="a")
    b = te.compute((n, 5, 64), lambda i, j, k: a[i, j, k] * 2.0, name="b")
    s = te.create_schedule(b)
    wanted = te.Prefetch(order=lambda i, j, k: ((i * 5 + j) * 64 + k,), written=True, past_end=True)
    s[b].prefetch(b, b.op.axis[1], wanted)
    buffer = decl_buffer((n, 5, 64), "float32", "b", strides=strides)
    text = str(te.lower(s, [a, b], binds={b: buffer}, simple_mode=True))
    assert f"prefetch(address_of(b[{place}]), 3, 1)" in text


@pytest.mark.parametrize(("factor", "place"), [(16, "min(i * 64 + j.outer * 144, 511)"), (64, "i * 64")])
def test_prefetched_lines_may_depend_on_loops_of_several_iterations_or_one(factor, place):
    a = te.placeholder((8, 64), name="a")
    b = te.compute((8, 64), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    outer, _ = s[b].split(b.op.axis[1], factor=factor)
    s[b].prefetch(a, outer, te.Prefetch(order=lambda i, j: (i * 64 + j + outer.var * 128,)))
    text = str(te.lower(s, [a, b]))
    assert text.count("prefetch(") == 1 and f"prefetch(address_of(a[{place}])" in text


def test_prefetched_lines_use_index_tables_and_inlined_producers():
    x, table = te.placeholder((50, 16), name="x"), te.placeholder((20,), "int64", name="table")
    b = te.compute((50, 16), lambda i, j: x[i, j] + 1.0, name="b")
    c = te.compute((50, 16), lambda i, j: b[i, j] * 2.0, name="c")
    d = te.compute((20, 16), lambda i, j: c[table[i], j], name="d")
    s = te.create_schedule(d)
    s[b].compute_inline()
    s[c].compute_inline()
    all_of_it, _ = s[d].split(d.op.axis[1], nparts=1)
    s[d].prefetch(x, all_of_it, te.Prefetch(order=lambda i, j: (table[te.min(i + 3, 19)], j)))
    text = str(te.lower(s, [x, table, d], simple_mode=True))
    assert text.count("prefetch(") == 1 and "table[min(i + 3, 19)]" in text
    values, picks, r = RNG.random((50, 16), dtype=np.float32), RNG.integers(0, 50, 20), np.zeros((20, 16), np.float32)
    Interpreter(te.lower(s, [x, table, d]))("main", values, picks, r)
    np.testing.assert_allclose(r, (values[picks] + 1) * 2, rtol=1e-5)


def test_prefetches_at_a_distance_for_reads_and_writes():
    a = te.placeholder((20, 40), name="a")
    b = te.compute((20, 40), lambda i, j: a[i, j] * 2.0, name="b")
    c = te.compute((20, 40), lambda i, j: b[i, j] + 1.0, name="c")
    s = te.create_schedule(c)
    outer, inner = s[b].split(b.op.axis[1], factor=20)
    s[b].vectorize(inner)
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].prefetch(a, outer, te.Prefetch(80))
    s[b].prefetch(c, outer, te.Prefetch(0))
    text = str(te.lower(s, [a, c]))
    for line in (0, 16):
        own = f" + {line}" if line else ""
        assert f"prefetch(address_of(a[i * 40 + j.outer * 20 + {80 + line}]), 3, 0)" in text
        assert f"prefetch(address_of(c[i * 40 + j.outer * 20{own}]), 3, 1)" in text
    x, r = RNG.random((20, 40), dtype=np.float32), np.empty((20, 40), np.float32)
    Interpreter(te.lower(s, [a, c]))("main", x, r)
    np.testing.assert_array_equal(r, x * np.float32(2) + np.float32(1))
    other = te.placeholder((3, 4), name="other")
    with pytest.raises(ScheduleError, match="prefetch of other, which the stage does not read"):
        s[b].prefetch(other, outer, te.Prefetch(1))


def test_prefetch_at_a_distance_covers_a_contiguous_run_that_crosses_rows():
    """As a box the region would be two whole rows."""
    a = te.placeholder((8, 9, 16), name="a")
    b = te.compute((72 * 16,), lambda i: a[i // 16 // 9, i // 16 % 9, i % 16] * 2.0, name="b")
    s = te.create_schedule(b)
    outer, _ = s[b].split(b.op.axis[0], factor=64)
    s[b].prefetch(a, outer, te.Prefetch(64))
    text = str(te.lower(s, [a, b]))
    assert re.findall(r"prefetch\(address_of\(a\[(.*)\]\), 3, 0\)", text) == [
        f"i.outer * 64 + {64 + line}" for line in (0, 16, 32, 48)
    ]
    x, r = RNG.random((8, 9, 16), dtype=np.float32), np.empty(72 * 16, np.float32)
    Interpreter(te.lower(s, [a, b]))("main", x, r)
    np.testing.assert_array_equal(r, x.ravel() * 2)


@pytest.mark.parametrize("inputs", [1, 2])
def test_prefetch_at_a_distance_of_inputs_of_inlined_producers(inputs):
    a = te.placeholder((20, 40), name="a")
    inner = te.compute((20, 40), lambda i, j: a[i, j] * 1.0, name="inner") if inputs == 2 else a
    b = te.compute((20, 36), lambda i, j: te.if_then_else(te.all(j >= 2, j < 34), inner[i, j - 2], 0.0), name="b")
    c = te.compute((20, 32), lambda i, j: b[i, j] + b[i, j + 4], name="c")
    s = te.create_schedule(c)
    for stage in (inner, b)[2 - inputs :]:
        s[stage].compute_inline()
    s[c].prefetch(a, c.op.axis[0], te.Prefetch(64))
    text = str(te.lower(s, [a, c], simple_mode=True))
    assert "prefetch(address_of(a[i, a.line1 * 16 + 62]), 3, 0)" in text, "from where it begins to be read"
    x, r = RNG.random((20, 40), dtype=np.float32), np.empty((20, 32), np.float32)
    Interpreter(te.lower(s, [a, c]))("main", x, r)
    padded = np.pad(x[:, :32], ((0, 0), (2, 2)))
    np.testing.assert_array_equal(r, padded[:, :32] + padded[:, 4:])


def test_no_prefetch_in_the_initialisation_of_a_reduction():
    a, k = te.placeholder((64, 40), name="a"), te.reduce_axis((0, 64), name="k")
    c = te.compute((40,), lambda j: te.sum(a[k, j], axis=k), name="c")
    s = te.create_schedule(c)
    s[c].reorder(k, c.op.axis[0])
    s[c].prefetch(a, c.op.axis[0], te.Prefetch(80))
    text = str(te.lower(s, [a, c], simple_mode=True))
    assert text.count("prefetch(") == 1 and text.index("prefetch(") > text.index("for k in")


def test_double_buffer_and_pragmas_are_marked():
    a = te.placeholder((8, 16), name="a")
    b = te.compute((8, 16), lambda i, j: a[i, j] * 2.0, name="b")
    c = te.compute((8, 16), lambda i, j: b[i, j] + 1.0, name="c")
    s = te.create_schedule(c)
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].double_buffer()
    s[c].pragma(c.op.axis[1], "auto_unroll_max_step", 16)
    text = str(te.lower(s, [a, c], simple_mode=True))
    assert "double_buffer_scope" in text
    assert "pragma_auto_unroll_max_step" in text
    x, r = RNG.random((8, 16), dtype=np.float32), np.empty((8, 16), np.float32)
    Interpreter(te.lower(s, [a, c]))("main", x, r)
    np.testing.assert_array_equal(r, x * np.float32(2) + np.float32(1))


def test_virtual_threads_compute_all_elements():
    a = te.placeholder((64,), name="a")
    b = te.compute((64,), lambda i: a[i] * 2.0, name="b")
    s = te.create_schedule(b)
    vx, rest = s[b].split(b.op.axis[0], nparts=2)
    tx, _ = s[b].split(rest, nparts=8)
    s[b].bind(vx, te.thread_axis("vthread", name="vx"))
    s[b].bind(tx, te.thread_axis("threadIdx.x"))
    x, r = RNG.random(64, dtype=np.float32), np.empty(64, np.float32)
    Interpreter(te.lower(s, [a, b]))("main", x, r)
    np.testing.assert_array_equal(r, x * np.float32(2))


def test_env_threads_start_around_a_scan():
    m, n = 5, 8
    x = te.placeholder((m, n), name="x")
    state = te.placeholder((m, n), name="state")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    step = te.compute((m, n), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    total = te.scan(first, step, state, inputs=[x], name="total")
    s = te.create_schedule(total)
    block = te.thread_axis((0, 2), "blockIdx.x")
    s[total].env_threads([block])
    io, _ = s[step].split(step.op.axis[1], nparts=2)
    s[step].bind(io, block)
    jo, _ = s[first].split(first.op.axis[1], nparts=2)
    s[first].bind(jo, te.thread_axis("blockIdx.x"))
    text = str(te.lower(s, [x, total], simple_mode=True))
    assert text.count('thread("blockIdx.x", 2)') == 2
    v, r = RNG.integers(0, 9, (m, n)).astype(np.float32), np.empty((m, n), np.float32)
    Interpreter(te.lower(s, [x, total]))("main", v, r)
    np.testing.assert_array_equal(r, np.cumsum(v, axis=0))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s, b: s[b].storage_align(b.op.reduce_axis[0], 8), "one of the operation's axes: i"),
        (lambda s, b: s[b].storage_align(b.op.axis[0], 0), "must be at least 1"),
        (lambda s, b: s[b].double_buffer(), "only intermediate results"),
        (lambda s, b: s[b].set_store_predicate(3), "expected a bool expression"),
        (lambda s, b: s[b].env_threads([b.op.axis[0]]), "expected thread axes"),
        (lambda s, b: s[b].pragma(te.reduce_axis((0, 3)), "x"), "stage b: pragma of axis rv, which is no axis"),
    ],
)
def test_misused_annotations_raise(misuse, message):
    _, b = row_sums(4, 30)
    with pytest.raises(ScheduleError, match=message):
        misuse(te.create_schedule(b), b)


def test_recompute_by_an_equivalent_formula() -> None:
    """A matrix product recomputed as one of views; the arguments stay those of the first formula."""
    x, w = te.placeholder((3, 5), name="x"), te.placeholder((4, 5), name="w")
    k = te.reduce_axis((0, 5), name="k")
    y = te.compute((3, 4), lambda i, j: te.sum(x(i, k) * w(j, k), axis=k), name="y")
    z = te.compute((3, 4), lambda i, j: y(i, j) + 1.0, name="z")
    s = te.create_schedule(z.op)
    turned = te.compute((5, 4), lambda i, j: w(j, i), name="turned")
    r = te.reduce_axis((0, 5), name="r")
    s.recompute(y, te.compute((3, 4), lambda i, j: te.sum(x(i, r) * turned(r, j), axis=r), name="y"))
    s[turned].compute_at(s[y], s[y].op.axis[0])
    func = te.lower(s, [x, w, z])["main"]
    a, b = np.random.default_rng(0).random((3, 5), "float32"), np.random.default_rng(1).random((4, 5), "float32")
    out = np.zeros((3, 4), "float32")
    Interpreter({"main": func})("main", a, b, out)
    np.testing.assert_allclose(out, a @ b.T + 1, rtol=1e-6)


def test_recompute_by_a_statement() -> None:
    """Stages that only the replaced formula has read are gone."""
    x = te.placeholder((4,), name="x")
    unread = te.compute((4,), lambda i: x(i) * 3.0, name="unread")
    y = te.compute((4,), lambda i: unread(i) + x(i), name="y")
    s = te.create_schedule(y.op)

    def fill(ins, outs):
        ib = ir_builder.create()
        a, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        with ib.for_range(0, 4) as i:
            out[i] = a[i] * 4.0
        return ib.get()

    s.recompute(y, te.extern((4,), [x], fill, name="y"))
    assert unread.op not in [stage.op for stage in s.stages]
    out = np.zeros(4, "float32")
    Interpreter({"main": te.lower(s, [x, y])["main"]})("main", np.arange(4, dtype="float32"), out)
    np.testing.assert_array_equal(out, [0, 4, 8, 12])


def test_recompute_raises_for_other_shapes_and_unknown_inputs() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x(i) + 1.0, name="y")
    s = te.create_schedule(y.op)
    with pytest.raises(ScheduleError, match="expected the same"):
        s.recompute(y, te.compute((3,), lambda i: x(i) * 2.0, name="other"))
    strange = te.placeholder((4,), name="strange")
    with pytest.raises(ScheduleError, match="an input that the schedule does not have"):
        s.recompute(y, te.compute((4,), lambda i: strange(i) * 2.0, name="other"))


def test_a_schedule_prints_its_stages_with_their_loops():
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1, name="b")
    s = te.create_schedule(b.op)
    s[b].split(b.op.axis[0], factor=4)
    assert str(s).splitlines() == ["schedule of", "  stage(a: )", "  stage(b: i.outer, i.inner)"]


def test_starts_of_nested_axes_are_added_once():
    """Loops of stages computed inside others count from 0: the start of an axis is not added twice."""
    a = te.placeholder((64, 8), name="a")
    b = te.compute((64, 8), lambda i, j: a[i, j] * 2.0, name="b")
    s = te.create_schedule(b)
    copy = s.cache_write(b, "local")
    outer, _ = s[b].split(b.op.axis[0], factor=4)
    s[copy].compute_at(s[b], outer)
    s[copy].prefetch(a, s[copy].op.axis[0], te.Prefetch(order=lambda i, j: (te.min(i + 8, 63), j)))
    prefetch = next(line for line in str(te.lower(s, [a, b], simple_mode=True)).splitlines() if "prefetch(" in line)
    assert "min(i.outer * 4 + i.c + 8, 63)" in prefetch


def triangle_of_products(n: int) -> tuple[te.Tensor, te.Schedule, te.IterVar]:
    """Sums of the elements of each row that are not right of the diagonal, in blocks of four rows."""
    a, k = te.placeholder((n, n), name="a"), te.reduce_axis((0, n), name="k")
    b = te.compute((n,), lambda i: te.sum(te.if_then_else(k <= i, a[i, k], 0.0), axis=k), name="b")
    c = te.compute((n,), lambda i: b[i] + 1.0, name="c")
    s = te.create_schedule(c)
    block, _ = s[c].split(c.op.axis[0], 4)
    s[b].compute_at(s[c], block)
    s[b].limit(k, block * 4 + 4)
    return a, s, block


def test_a_limited_loop_leaves_out_later_iterations():
    a, s, _ = triangle_of_products(10)
    c = s.outputs[0].output(0)
    function = te.lower(s, [a, c], simple_mode=True)
    assert "min(" in str(function)
    array, result = RNG.standard_normal((10, 10)).astype("float32"), np.zeros(10, "float32")
    array[:4, 4:] = np.nan  # which the first block does not read
    Interpreter(te.lower(s, [a, c]), check_uninitialized=True)("main", array, result)
    kept = np.where(np.tri(10, dtype=bool), array, 0)
    np.testing.assert_allclose(result, kept.sum(1) + 1, rtol=1e-5)


def test_only_serial_loops_are_limited():
    _, s, block = triangle_of_products(8)
    c = s.outputs[0].output(0)
    s[c].parallel(block)
    with pytest.raises(ScheduleError, match=r"limit of i\.outer, which is not serial"):
        s[c].limit(block, te.const(1))


def blocks_of_rows(rows: int) -> tuple[te.Tensor, te.Tensor, te.Schedule]:
    """Twice the square of each element of a dynamic number of rows, in blocks of 8 that are squared by tiles of 4."""
    n = te.size_var("n")
    a = te.placeholder((n, 3), name="a")
    b = te.compute((n, 3), lambda i, j: a[i, j] * a[i, j], name="b")
    c = te.compute((n, 3), lambda i, j: b[i, j] + b[i, j], name="c")
    d = te.compute((n, 3), lambda i, j: c[i, j], name="d")
    s = te.create_schedule(d)
    block, _ = s[d].split(d.op.axis[0], factor=8, tail="predicate")
    tile, row = s[c].split(c.op.axis[0], factor=rows, tail="shift")
    left = te.floordiv(n - block * 8 + (rows - 1), rows)
    s[b].overrun(b.op.axis[0], zeros=True)
    s[b].limit(b.op.axis[0], left * rows)
    s[c].overrun(row)
    s[c].unroll(row)
    s[c].limit(tile, left)
    s[b].compute_at(s[d], block)
    s[c].compute_at(s[d], block)
    return a, d, s


@pytest.mark.parametrize("rows", [4, 3])
@pytest.mark.parametrize("count", [1, 4, 5, 8, 13, 24])
def test_tiles_overrun_into_zeros_past_the_end(count: int, rows: int):
    a, d, s = blocks_of_rows(rows)
    module = te.lower(s, [a, d])
    array, result = RNG.standard_normal((count, 3)).astype("float32"), np.zeros((count, 3), "float32")
    Interpreter(module, check_uninitialized=True)("main", array, result)
    np.testing.assert_allclose(result, 2 * array * array, rtol=1e-6)
    squared = [line for line in str(module).splitlines() if "c[" in line.split("=")[0]]
    assert len(squared) == rows, "one version of the tile, without a test for each row"


def doubled_in_whole_tiles(multiple: int) -> tuple[te.Tensor, te.Tensor, te.Schedule]:
    """Twice each of a dynamic number of elements, in tiles of 4, of a copy with a multiple of so many elements."""
    n = te.size_var("n")
    whole = te.floordiv(n + (multiple - 1), multiple) * multiple
    a = te.placeholder((n,), name="a")
    b = te.compute((whole,), lambda i: a[te.min(i, n - 1)], name="b")
    c = te.compute((whole,), lambda i: b[i] + b[i], name="c")
    d = te.compute((n,), lambda i: c[i], name="d")
    s = te.create_schedule(d)
    block, _ = s[d].split(d.op.axis[0], factor=8, tail="predicate")
    tile, row = s[c].split(c.op.axis[0], factor=4, tail="shift")
    s[c].overrun(row)
    s[c].unroll(row)
    s[c].limit(tile, te.floordiv(n - block * 8 + 3, 4))
    s[c].compute_at(s[d], block)
    return a, d, s


@pytest.mark.parametrize("count", [1, 4, 5, 8, 13, 24])
def test_whole_tiles_overrun_no_tensor_that_ends_with_one(count: int):
    a, d, s = doubled_in_whole_tiles(4)
    module = te.lower(s, [a, d])
    array, result = RNG.standard_normal(count).astype("float32"), np.zeros(count, "float32")
    Interpreter(module, check_uninitialized=True)("main", array, result)
    np.testing.assert_array_equal(result, 2 * array)
    assert len([line for line in str(module).splitlines() if "c[" in line.split("=")[0]]) == 4, "no tests for each row"


def test_a_limit_that_counts_in_a_part_refuses_other_loops():
    a, d, s = doubled_in_whole_tiles(4)
    (c,) = d.op.input_tensors
    tile = s[c].leaf_iter_vars[0]
    for iterations in (1, 2):
        s[c].limit(tile, te.const(2), of=iterations)
        if iterations == 1:
            with pytest.raises(ScheduleError, match=r"expected 1 iterations, got 2: consumers do not read"):
                te.lower(s, [a, d])
        else:
            te.lower(s, [a, d])


@pytest.mark.parametrize("multiple", [1, 2, 3, 6])
def test_tiles_do_not_overrun_a_tensor_that_ends_within_one(multiple: int):
    a, d, s = doubled_in_whole_tiles(multiple)
    with pytest.raises(ScheduleError, match=r"it reads b, which has no elements past its end"):
        te.lower(s, [a, d])


def test_only_loops_with_memory_past_the_end_overrun():
    a, d, s = blocks_of_rows(4)
    (c,) = d.op.input_tensors
    (b,) = c.op.input_tensors
    with pytest.raises(ScheduleError, match=r"overrun of j of an output, which has no memory past its end"):
        s[d].overrun(d.op.axis[1])
    s[b].compute_inline()
    with pytest.raises(ScheduleError, match=r"it reads a, which has no elements past its end"):
        te.lower(s, [a, d])
    _, sums = row_sums(4, 3)
    s = te.create_schedule(te.compute((4,), lambda i: sums[i], name="copy"))
    with pytest.raises(ScheduleError, match=r"overrun of the reduce axis k"):
        s[sums].overrun(sums.op.reduce_axis[0])
    with pytest.raises(ScheduleError, match=r"with zeros, for computes without a reduction"):
        s[sums].overrun(sums.op.axis[0], zeros=True)


def test_parts_that_do_not_fill_the_memory_of_a_stage_stay_guarded():
    a = te.placeholder((10,), name="a")
    b = te.compute((10,), lambda i: a[i] + 1.0, name="b")
    c = te.compute((10,), lambda i: b[i] * 2.0, name="c")
    s = te.create_schedule(c)
    _, inner = s[b].split(b.op.axis[0], factor=4)
    s[b].overrun(inner, zeros=True)
    array, result = RNG.standard_normal(10).astype("float32"), np.zeros(10, "float32")
    Interpreter(te.lower(s, [a, c]))("main", array, result)
    np.testing.assert_allclose(result, array * 2 + 2, rtol=1e-6)

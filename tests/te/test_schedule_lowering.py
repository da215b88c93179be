"""From schedules to loops: text of whole nests, and values through the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te, topi
from relayc.te.errors import LoweringError, ScheduleError
from relayc.te.ir import DumpInstrument, PassContext, collect
from relayc.te.lower import schedule_to_function
from relayc.te.tir import Allocate, SizeVar
from relayc.te.tir.interpreter import Interpreter, interpret
from relayc.te.tir.verifier import verify

RNG = np.random.default_rng(7)


def run(module, *arrays):
    Interpreter(module, check_uninitialized=True)("main", *arrays)


def matmul(m, n, k):
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    return a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")


def check_matmul(schedule, a, b, c, m, n, k):
    x, y = RNG.random((m, k), dtype=np.float32), RNG.random((k, n), dtype=np.float32)
    z = np.full((m, n), np.nan, np.float32)
    run(te.lower(schedule, [a, b, c], simple_mode=True), x, y, z)
    np.testing.assert_allclose(z, x @ y, rtol=1e-5)


def test_register_tile_has_constant_offsets_and_starts_before_the_reduction():
    m, n, k = 14, 32, 8
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((n // 16, k, 16), name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[j // 16, r, j % 16], axis=r), name="C")
    s = te.create_schedule(c)
    cc = s.cache_write(c, "local")
    io, jo, ii, ji = s[c].tile(*c.op.axis, 6, 16)
    s[c].reorder(jo, io, ii, ji)
    s[c].unroll(ii)
    s[c].vectorize(ji)
    s[cc].compute_at(s[c], io)
    ci, cj = s[cc].op.axis
    s[cc].reorder(r, ci, cj)
    s[cc].unroll(ci)
    s[cc].vectorize(cj)
    expected = """
    for j.outer in range(2):
        for i.outer in range(3):
            C.local = allocate([6, 16], "float32", scope="local")
            for i.c.init in unrolled(6):
                if likely(i.outer * 6 + i.c.init < 14):
                    for j.c.init in vectorized(16):
                        C.local[i.c.init, j.c.init] = 0.0
            for k in range(8):
                for i.c in unrolled(6):
                    if likely(i.outer * 6 + i.c < 14):
                        for j.c in vectorized(16):
                            C.local[i.c, j.c] = C.local[i.c, j.c] + A[i.outer * 6 + i.c, k] * B[j.outer, k, j.c]
            for i.inner in unrolled(6):
                if likely(i.outer * 6 + i.inner < 14):
                    for j.inner in vectorized(16):
                        C[i.outer * 6 + i.inner, j.outer * 16 + j.inner] = C.local[i.inner, j.inner]
"""
    assert expected.strip("\n") in str(te.lower(s, [a, b, c], simple_mode=True))


def test_fused_axes_stay_correlated_with_the_axes_they_came_from():
    """A 1x1 convolution over fused n, h, w reads exactly one tile of the flat matrix product."""
    n, h, w, channels = 2, 7, 5, 32
    flat = te.placeholder((n * h * w, channels), name="X")
    dense = te.compute((n * h * w, channels), lambda p, o: flat[p, o] * 2.0, name="D")
    out = te.compute((n, h, w, channels), lambda b, y, x, o: dense[(b * h + y) * w + x, o] + 1.0, name="Y")
    s = te.create_schedule(out)
    b, y, x, o = out.op.axis
    fused = s[out].fuse(b, y, x)
    fo, fi = s[out].split(fused, 6)
    oo, oi = s[out].split(o, 16)
    s[out].reorder(oo, fo, fi, oi)
    s[dense].compute_at(s[out], fo)
    s[dense].set_scope("local")
    module = te.lower(s, [flat, out], simple_mode=True)
    assert 'D = allocate([6, 16], "float32", scope="local")' in str(module)
    v = RNG.random((n * h * w, channels), dtype=np.float32)
    r = np.empty((n, h, w, channels), np.float32)
    run(module, v, r)
    np.testing.assert_array_equal(r, (v * np.float32(2) + np.float32(1)).reshape(r.shape))


@pytest.mark.parametrize("factor", [1, 3, 4, 16])
def test_inexact_splits_are_guarded(factor):
    a, b, c = matmul(5, 7, 6)
    s = te.create_schedule(c)
    i, j = c.op.axis
    (k,) = c.op.reduce_axis
    io, ii = s[c].split(i, factor)
    jo, ji = s[c].split(j, nparts=factor)
    ko, ki = s[c].split(k, factor)
    s[c].reorder(ko, io, jo, ki, ii, ji)
    check_matmul(s, a, b, c, 5, 7, 6)


def test_shifted_tails_need_no_guard():
    a, b, c = matmul(14, 9, 5)
    s = te.create_schedule(c)
    cc = s.cache_write(c, "local")
    io, ii = s[c].split(c.op.axis[0], 6, tail="shift")
    jo, ji = s[c].split(c.op.axis[1], 4, tail="shift")
    s[c].reorder(io, jo, ii, ji)
    s[c].parallel(s[c].fuse(io, jo))
    s[cc].compute_at(s[c], s[c].leaf_iter_vars[0])
    text = str(te.lower(s, [a, b, c], simple_mode=True))
    assert "likely" not in text
    assert 'allocate([6, 4], "float32", scope="local")' in text
    check_matmul(s, a, b, c, 14, 9, 5)


def transposed_by_lines(rows, columns, width, length, apart=False):
    a = te.placeholder((columns, rows), name="a")
    b = te.compute((rows, columns), lambda i, j: a[j, i], name="b")
    s = te.create_schedule(b)
    tile, line, element = s[b].split_lines(width, length, apart=apart)
    group, row = s[b].split(b.op.axis[0], factor=2, tail="shift")
    s[b].reorder(group, tile, row, line, element)
    s[b].unroll(line)
    s[b].vectorize(element)
    copy = s.cache_read(a, "local", [b.op])
    s[copy].compute_at(s[b], tile)
    return s, a, b


@pytest.mark.parametrize(
    ("rows", "columns", "width", "length"),
    [(5, 12, 8, 4), (3, 13, 8, 4), (4, 37, 8, 4), (7, 41, 16, 8), (2, 64, 16, 8), (9, 100, 32, 16)],
)  # fmt: skip
@pytest.mark.parametrize("apart", [False, True])
def test_split_lines_begin_at_cache_lines(rows, columns, width, length, apart):
    s, a, b = transposed_by_lines(rows, columns, width, length, apart)
    module = te.lower(s, [a, b], simple_mode=True)
    x = RNG.random((columns, rows), dtype=np.float32)
    result = np.full((rows, columns), np.nan, np.float32)
    run(module, x, result)
    np.testing.assert_array_equal(result, x.T)
    assert f"allocate([{width + length}, 2]" in str(module)


def fused_lines(shape, width, length, axes=2, apart=False):
    a = te.placeholder(shape, name="a")
    b = te.compute(shape, lambda *i: a(*i) * 2.0 + i[-1], name="b")
    s = te.create_schedule(b)
    *outer, _ = b.op.axis[: 1 - axes]
    group, _ = s[b].split(outer[-1], factor=2, tail="shift")
    s[b].fuse(*b.op.axis[-axes:])
    _, line, element = s[b].split_lines(width, length, apart=apart)
    s[b].unroll(line)
    s[b].vectorize(element)
    s[b].fuse(*outer[:-1], group)
    return s, a, b


@pytest.mark.parametrize(
    ("shape", "axes", "width", "length"), [((3, 4, 5, 7), 2, 16, 8), ((2, 3, 7, 9), 2, 24, 8), ((5, 3, 3, 5), 3, 8, 4)]
)  # fmt: skip
@pytest.mark.parametrize("apart", [False, True])
def test_split_lines_of_fused_axes_cover_the_fused_row(shape, axes, width, length, apart):
    s, a, b = fused_lines(shape, width, length, axes, apart)
    module = te.lower(s, [a, b], simple_mode=True)
    x, result = RNG.random(shape, dtype=np.float32), np.full(shape, np.nan, np.float32)
    run(module, x, result)
    np.testing.assert_array_equal(result, x * np.float32(2) + np.arange(shape[-1], dtype=np.float32))


def test_unaligned_ends_of_rows_are_computed_before_overlapping_lines():
    s, a, b = fused_lines((3, 4, 5, 7), 16, 8)
    _, tile = str(te.lower(s, [a, b])).split(".tile in range(")
    guarded = [text for text in tile.splitlines()[1:] if text.strip()]
    assert [text.strip().startswith("if ") for text in guarded] == [True, False, True, False, False, False], tile


def test_split_lines_needs_compact_results_of_constant_length():
    s, *_ = transposed_by_lines(5, 12, 8, 4)
    with pytest.raises(ScheduleError, match="tiles of whole lines"):
        transposed_by_lines(5, 11, 8, 4)
    copy = next(stage for stage in s.stages if stage.attach == "at")
    with pytest.raises(ScheduleError, match="no compact output"):
        copy.split_lines(8, 4)


def test_shifted_tails_raise_where_recomputing_is_unsafe():
    a, b, c = matmul(14, 9, 5)
    s = te.create_schedule(c)
    io, ii = s[c].split(c.op.axis[0], 6, tail="shift")
    (k,) = c.op.reduce_axis
    with pytest.raises(ScheduleError, match="data axes only"):
        s[c].split(k, 2, tail="shift")
    check_matmul(s, a, b, c, 14, 9, 5)
    s[c].reorder(k, io, ii)
    with pytest.raises(ScheduleError, match=r"reduce loop k stands outside .* updated twice"):
        te.lower(s, [a, b, c], simple_mode=True)
    s[c].reorder(io, ii, k)
    s[c].parallel(io)
    with pytest.raises(ScheduleError, match=r"parallel .* cache_write"):
        te.lower(s, [a, b, c], simple_mode=True)
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] + 1, name="y")
    t = te.create_schedule(y)
    t[y].split(y.op.axis[0], n, tail="shift")
    with pytest.raises(ScheduleError, match="constant factor"):
        te.lower(t, [x, y], simple_mode=True)


def test_shifted_tails_of_symbolic_extents_have_a_guarded_version_for_small_extents():
    m = te.size_var("m")
    a, b, c = matmul(m, 9, 5)
    s = te.create_schedule(c)
    cc = s.cache_write(c, "local")
    io, ii = s[c].split(c.op.axis[0], 6, tail="shift")
    s[c].unroll(ii)
    s[cc].compute_at(s[c], io)
    text = str(te.lower(s, [a, b, c], simple_mode=True))
    large, small = text.split("else:", 1)
    assert "if likely(m - 6 >= 0)" in large and large.count("likely") == 1 and "likely" in small
    for size in (0, 1, 5, 6, 7, 12, 13):
        check_matmul(s, a, b, c, size, 9, 5)


def test_shifted_loops_of_large_extents_need_no_guards():
    n = te.size_var("n")
    x = te.placeholder((n,), name="x")
    k = te.reduce_axis((0, 3), name="k")
    p = te.compute((n + 2,), lambda i: te.if_then_else(te.all(i >= 1, i < n + 1), x[i - 1], 0.0), name="p")
    y = te.compute((n,), lambda i: te.sum(p[i + k], axis=k), name="y")
    s = te.create_schedule(y)
    s[p].compute_inline()
    outer, inner = s[y].split(y.op.axis[0], 4, tail="shift", least=6)
    s[y].pragma(outer, "loop_partition_hint")
    s[y].unroll(inner)
    s[y].unroll(k)
    module = te.lower(s, [x, y])
    text = str(module["main"])
    assert "if likely(n >= 6)" in text
    assert "if_then_else" not in text.split("else:")[0]
    for size in (1, 2, 5, 6, 9, 12):
        a = np.arange(1, size + 1, dtype=np.float32)
        result = np.zeros(size, np.float32)
        interpret(module["main"], a, result)
        assert np.array_equal(result, np.convolve(np.pad(a, 1), np.ones(3, np.float32), "valid"))


def test_specialize_small_selects_another_schedule_below_the_factor():
    m = te.size_var("m")
    a, b, c = matmul(m, 9, 5)

    def tiles_of(height: int) -> te.Schedule:
        s = te.create_schedule(c)
        cc = s.cache_write(c, "local")
        io, ii = s[c].split(c.op.axis[0], height, tail="shift" if height > 1 else "guard")
        s[c].unroll(ii)
        s[cc].compute_at(s[c], io)
        return s

    s, half, single = tiles_of(6), tiles_of(3), tiles_of(1)
    s.specialize_small(half)
    half.specialize_small(single)
    large, smaller, smallest = str(te.lower(s, [a, b, c], simple_mode=True)).split("else:")
    assert "if likely(m - 6 >= 0)" in large and "if likely(m - 3 >= 0)" in smaller
    assert large.count("likely") == smaller.count("likely") == 1 and "likely" not in smallest
    for size in (0, 1, 2, 3, 5, 6, 7, 12, 13):
        check_matmul(s, a, b, c, size, 9, 5)


def test_a_schedule_for_small_extents_is_left_out_where_only_empty_results_have_such():
    """Rows of a batch are none, or more than a tile has; without rows there is nothing to compute."""
    batch, more = te.size_var("batch"), te.size_var("more")

    def lowered(*shape, **how):
        a = te.placeholder(shape, name="A")
        c = te.compute(shape, lambda *i: a[i] + 1.0, name="C")
        s = te.create_schedule(c)
        s[c].split(s[c].fuse(*c.op.axis), 6, tail="shift")
        s.specialize_small(te.create_schedule(c))
        return te.lower(s, [a, c], **how)

    of_images = str(lowered(batch, 8, simple_mode=True))
    assert "if likely(batch * 8 - 6 >= 0)" in of_images and "else:" not in of_images
    for shape in ((batch, 4), (batch * 8 + more, 1)):
        assert "else:" in str(lowered(*shape, simple_mode=True))
    for size in (0, 1, 2, 5):
        x, y = RNG.random((size, 8), dtype=np.float32), np.full((size, 8), np.nan, np.float32)
        run(lowered(batch, 8), x, y)
        np.testing.assert_array_equal(y, x + 1)


def test_specialize_small_takes_a_condition_on_sizes():
    m = te.size_var("m")
    a, b, c = matmul(m, 9, 5)
    s, other, by_tiles = te.create_schedule(c.op), te.create_schedule(c.op), te.create_schedule(c.op)
    other[c].reorder(c.op.axis[1], c.op.axis[0])
    s.specialize_small(other, unless=m >= 4)
    by_tiles[c].split(c.op.axis[0], 2, tail="shift")
    by_tiles.specialize_small(other, unless=m >= 4)
    assert "if likely(m >= 4)" in str(te.lower(s, [a, b, c], simple_mode=True))
    assert "if likely(m >= 4)" in str(te.lower(by_tiles, [a, b, c], simple_mode=True)), "it implies a tile's two rows"
    by_three = te.create_schedule(c.op)
    by_three[c].split(c.op.axis[0], 3, tail="shift")
    by_three.specialize_small(other, unless=m >= 2)
    assert "if likely(m - 3 >= 0 and m >= 2)" in str(te.lower(by_three, [a, b, c], simple_mode=True))
    for schedule in (s, by_tiles, by_three):
        for size in (0, 1, 3, 4, 5):
            check_matmul(schedule, a, b, c, size, 9, 5)


@pytest.mark.parametrize("length", [1, 2, 5, 11])
@pytest.mark.parametrize("aligned", [False, True])
def test_common_first_statements_of_specialized_schedules_run_before_the_test(length, aligned):
    n = te.var("n")
    a = te.placeholder((n, 3), name="A")
    b = te.compute((n, 3), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((n, 3), lambda i, j: b[i, j] * b[i, 2 - j], name="C")

    def by(factor, gap=0):
        s = te.create_schedule(c.op)
        s[c].split(c.op.axis[0], factor=factor, tail="shift")
        if gap:
            s[b].storage_align(b.op.axis[0], gap, 0)
        return s

    s, half = by(8), by(4, gap=16 if aligned else 0)
    s.specialize_small(half)
    half.specialize_small(by(1, gap=16 if aligned else 0))
    text = str(te.lower(s, [a, c], simple_mode=True))
    assert text.count(" + 1.0") == (2 if aligned else 1) and text.count("    C[") == 3, text
    x, y = RNG.random((length, 3), dtype=np.float32), np.full((length, 3), np.nan, np.float32)
    run(te.lower(s, [a, c]), x, y)
    np.testing.assert_allclose(y, (x + 1) * (x + 1)[:, ::-1], rtol=1e-6)


def test_symbolic_sizes():
    m, n, k = te.var("m"), te.var("n"), te.var("k")
    a, b, c = matmul(m, n, k)
    s = te.create_schedule(c)
    cc = s.cache_write(c, "local")
    _, jo, _, _ = s[c].tile(*c.op.axis, 2, 4)
    s[cc].compute_at(s[c], jo)
    (r,) = s[cc].op.reduce_axis
    ko, _ = s[cc].split(r, 3)
    s[cc].reorder(ko, *s[cc].op.axis)
    assert 'C.local = allocate([2, 4], "float32", scope="local")' in str(te.lower(s, [a, b, c], simple_mode=True))
    check_matmul(s, a, b, c, 5, 7, 4)


def test_padding_and_stencil_attached_at_a_tile():
    x = te.placeholder((9,), name="X")
    pad = te.compute((11,), lambda i: te.if_then_else(te.all(i >= 1, i < 10), x[i - 1], 0.0), name="pad")
    y = te.compute((9,), lambda i: pad[i] + pad[i + 1] + pad[i + 2], name="Y")
    s = te.create_schedule(y)
    yo, _ = s[y].split(y.op.axis[0], 4)
    s[pad].compute_at(s[y], yo)
    module = te.lower(s, [x, y], simple_mode=True)
    assert 'pad = allocate([6], "float32"' in str(module)
    v, r = RNG.random(9, dtype=np.float32), np.empty(9, np.float32)
    run(module, v, r)
    padded = np.pad(v, 1)
    np.testing.assert_allclose(r, padded[:-2] + padded[1:-1] + padded[2:], rtol=1e-6)


def test_rfactor_and_cache_read():
    a, b, c = matmul(4, 5, 12)
    s = te.create_schedule(c)
    _, ki = s[c].split(c.op.reduce_axis[0], 5)
    cf = s.rfactor(c, ki)
    copy = s.cache_read(a, "local", [cf])
    s[copy].compute_at(s[cf], s[cf].op.axis[0])
    s[cf].compute_at(s[c], c.op.axis[0])
    check_matmul(s, a, b, c, 4, 5, 12)


def test_argmax_updates_index_and_value_together():
    a = te.placeholder((3, 6), name="a")
    argmax = te.comm_reducer(
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.select(x[1] >= y[1], x[1], y[1])),
        lambda i, v: (te.const(-1, i), te.min_value(v)),
    )
    k = te.reduce_axis((0, 6), name="k")
    index, value = te.compute((3,), lambda i: argmax((k.var, a[i, k]), axis=k), name="arg")
    s = te.create_schedule(index)
    x = RNG.random((3, 6), dtype=np.float32)
    p, v = np.empty(3, np.int32), np.empty(3, np.float32)
    run(te.lower(s, [a, index, value], simple_mode=True), x, p, v)
    np.testing.assert_array_equal(p, x.argmax(1))
    run(te.lower(s, [a, index], simple_mode=True), x, p)
    np.testing.assert_array_equal(p, x.argmax(1))


def test_inlining_a_chain_leaves_one_nest():
    a = te.placeholder((4, 6), name="a")
    b = te.compute((4, 6), lambda i, j: te.exp(a[i, j]), name="b")
    c = te.compute((6, 4), lambda i, j: b[j, i] + 1.0, name="c")
    d = te.compute((24,), lambda i: c[i // 4, i % 4] * 2.0, name="d")
    s = te.create_schedule(d)
    te.AutoInlineInjective(s)
    module = te.lower(s, [a, d], simple_mode=True)
    assert "allocate" not in str(module)
    x, r = RNG.random((4, 6), dtype=np.float32), np.empty(24, np.float32)
    run(module, x, r)
    np.testing.assert_allclose(r, (np.exp(x).T + 1).reshape(-1) * 2, rtol=1e-6)


def test_regions_are_shared_by_threads_according_to_scope():
    n = 64
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="b")
    c = te.compute((n,), lambda i: b[i] + 1.0, name="c")
    s = te.create_schedule(c)
    bx, tx = s[c].split(c.op.axis[0], 16)
    s[c].bind(bx, te.thread_axis("blockIdx.x"))
    s[c].bind(tx, te.thread_axis("threadIdx.x"))
    s[b].compute_at(s[c], bx)
    s[b].set_scope("shared")
    s[b].bind(s[b].op.axis[0], te.thread_axis("threadIdx.x"))
    text = str(te.lower(s, [a, c], simple_mode=True))
    assert 'allocate([16], "float32", scope="shared")' in text
    assert text.count("threadIdx.x") < 8
    s[b].set_scope("local")
    s2 = te.create_schedule(c)
    bx, tx = s2[c].split(c.op.axis[0], 16)
    s2[c].bind(bx, te.thread_axis("blockIdx.x"))
    s2[c].bind(tx, te.thread_axis("threadIdx.x"))
    s2[b].compute_at(s2[c], tx)
    module = te.lower(s2, [a, c], simple_mode=True)
    assert 'allocate([1], "float32", scope="local")' in str(module)
    x, r = RNG.random(n, dtype=np.float32), np.empty(n, np.float32)
    run(module, x, r)
    np.testing.assert_array_equal(r, x * np.float32(2) + np.float32(1))


def stages():
    a, _, c = matmul(8, 8, 8)
    d = te.compute((8, 8), lambda i, j: c[i, j] + 1.0, name="D")
    e = te.compute((8, 8), lambda i, j: a[i, j] * 2.0, name="E")
    return te.create_schedule([d, e]), a, c, d, e


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s, a, c, d, e: s[d].split(c.op.axis[0], 2), "stage D: split of axis i, which is no axis of the stage"),
        (lambda s, a, c, d, e: (s[d].split(d.op.axis[0], 2), s[d].split(d.op.axis[0], 2)), "split or fused already"),
        (lambda s, a, c, d, e: s[d].split(d.op.axis[0]), "exactly one of factor= and nparts="),
        (lambda s, a, c, d, e: s[d].split(d.op.axis[0], 0), "at least 1"),
        (lambda s, a, c, d, e: s[c].fuse(c.op.axis[0], c.op.reduce_axis[0]), "not adjacent.*reorder them first"),
        (lambda s, a, c, d, e: s[c].fuse(c.op.axis[1], c.op.reduce_axis[0]), "fuse axes of one kind"),
        (lambda s, a, c, d, e: s[d].reorder(d.op.axis[0], d.op.axis[0]), "names an axis twice"),
        (lambda s, a, c, d, e: s[c].compute_at(s[e], e.op.axis[0]), "does not consume C"),
        (lambda s, a, c, d, e: s[c].compute_at(s[c], c.op.axis[0]), "at itself"),
        (lambda s, a, c, d, e: s[d].compute_at(s[e], e.op.axis[0]), "outputs are computed at root"),
        (lambda s, a, c, d, e: s[c].compute_inline(), "only plain formulas"),
        (lambda s, a, c, d, e: s[a].compute_inline(), "inputs are not computed"),
        (lambda s, a, c, d, e: s[c].parallel(c.op.reduce_axis[0]), "reduce axis k.*use rfactor"),
        (lambda s, a, c, d, e: s[c].vectorize(c.op.reduce_axis[0]), "reduce axis k.*use rfactor"),
        (lambda s, a, c, d, e: (s[d].vectorize(d.op.axis[1]), s[d].unroll(d.op.axis[1])), "has one kind"),
        (lambda s, a, c, d, e: [s[d].bind(d.op.axis[0], te.thread_axis("threadIdx.x")) for _ in "12"], "bound to thre"),
        (lambda s, a, c, d, e: [s[d].bind(x, te.thread_axis("threadIdx.x")) for x in d.op.axis], "thread axis once"),
        (lambda s, a, c, d, e: s[d].bind(d.op.axis[0], d.op.axis[1]), "expected one made by te.thread_axis"),
        (lambda s, a, c, d, e: (s[d].vectorize(d.op.axis[1]), s[d].split(d.op.axis[1], 2)), "split first"),
        (lambda s, a, c, d, e: s[d].set_scope("shared"), "outputs are in global memory"),
        (lambda s, a, c, d, e: s.cache_read(a, "local", [d]), "does not read it; it reads C"),
        (lambda s, a, c, d, e: (s[c].split(c.op.reduce_axis[0], 2), s.cache_write(c, "local")), "cache_write first"),
        (lambda s, a, c, d, e: s.rfactor(d, d.op.axis[0]), "is no reduction"),
        (lambda s, a, c, d, e: s.rfactor(c, c.op.axis[0]), "expected a reduce axis"),
        (lambda s, a, c, d, e: s[te.compute((3,), lambda i: i)], "its stages are: A, B, C, D, E"),
        (lambda s, a, c, d, e: s[d].split(d.op.axis[0], "2"), "expected an integer"),
        (lambda s, a, c, d, e: s[d].bind(d.op.axis[0], "threadIdx.x"), r"expected an axis: te\.thread_axis"),
        (lambda s, a, c, d, e: te.create_schedule(None), "create_schedule of None; expected operations"),
    ],
)
def test_misused_primitives_raise_with_advice(misuse, message):
    with pytest.raises(ScheduleError, match=message):
        misuse(*stages())


def lower_with(prepare):
    s, a, c, d, e = stages()
    prepare(s, a, c, d, e)
    te.lower(s, [a, c.op.input_tensors[1], d, e], simple_mode=True)


def wide_vector(s, a, c, d, e):
    s[d].vectorize(s[d].fuse(*d.op.axis))
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] + 1, name="y")
    t = te.create_schedule(y)
    t[y].vectorize(y.op.axis[0])
    te.lower(t, [x, y], simple_mode=True)


def test_vector_loops_must_be_short_and_constant():
    with pytest.raises(ScheduleError, match="stage y: vectorize: loop i runs n times, which is not a constant"):
        lower_with(wide_vector)
    x = te.placeholder((100, 100), name="x")
    y = te.compute((100, 100), lambda i, j: x[i, j] + 1, name="y")
    s = te.create_schedule(y)
    s[y].vectorize(s[y].fuse(*y.op.axis))
    with pytest.raises(ScheduleError, match=r"runs 10000 times; at most 1024 lanes.*split it"):
        te.lower(s, [x, y], simple_mode=True)


def test_attachments_must_cover_all_readers():
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1, name="b")
    c = te.compute((8,), lambda i: b[i] * 2, name="c")
    d = te.compute((8,), lambda i: c[i] + b[i], name="d")
    s = te.create_schedule(d)
    s[b].compute_at(s[c], c.op.axis[0])
    with pytest.raises(ScheduleError, match="d reads it outside that loop"):
        te.lower(s, [a, d], simple_mode=True)


def test_arguments_are_checked():
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1, name="b")
    s = te.create_schedule(b)
    with pytest.raises(LoweringError, match="input a is read but is not among the arguments"):
        te.lower(s, [b])
    with pytest.raises(LoweringError, match="expected a tensor, variable or buffer"):
        te.lower(s, [a, b, "n"])
    with pytest.raises(LoweringError, match="argument a is given twice"):
        te.lower(s, [a, a, b])


def test_variables_have_values():
    a, k, scale = te.placeholder((8, 4), name="a"), te.reduce_axis((0, 4), "k"), te.var("scale", "float32")
    b = te.compute((8,), lambda i: a[i, k], name="b")
    with pytest.raises(LoweringError, match=r"nothing gives variable k a value.*te\.sum\(\.\.\., axis=k\)"):
        te.lower(te.create_schedule(b), [a, b])
    c = te.compute((8,), lambda i: a[i, 0] * scale, name="c")
    with pytest.raises(LoweringError, match="scale"):
        te.lower(te.create_schedule(c), [a, c])
    te.lower(te.create_schedule(c), [a, scale, c])


def test_symbolic_tails_are_partitioned_without_tests_for_negative_sizes():
    n = te.var("n")
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="b")
    s = te.create_schedule(b)
    s[b].vectorize(s[b].split(b.op.axis[0], 8)[1])
    text = str(te.lower(s, [n, a, b]))
    assert "for i.outer in range(n // 8):\n        b[ramp(i.outer * 8, 1, 8)] = " in text
    assert "min" not in text


def test_every_stage_of_lowering_can_be_printed():
    a, b, c = matmul(5, 7, 6)
    s = te.create_schedule(c)
    s[c].vectorize(s[c].split(c.op.axis[1], 4)[1])
    dump = DumpInstrument()
    with PassContext(instruments=[dump]):
        module = te.lower(s, [a, b, c])
    steps = dict(dump.dumps)
    assert "Flatten" in steps and "vectorized" in steps["Flatten"] and "vectorized" not in steps["Vectorize"]
    assert dump.dumps[-1][1] == str(module)


def test_inlining_a_chain_expands_each_formula_once(monkeypatch):
    made: list[str] = []
    plain = te.operation.ComputeOp.__init__

    def counted(op, name, *rest):
        made.append(name)
        plain(op, name, *rest)

    monkeypatch.setattr(te.operation.ComputeOp, "__init__", counted)
    a = te.placeholder((8,), name="A")
    last = a
    for i in range(60):
        last = te.compute((8,), lambda j, x=last: x[j] + 1.0, name=f"s{i}")
    s = te.create_schedule(last)
    te.schedule.AutoInlineInjective(s)
    made.clear()
    func = te.lower(s, [a, last], simple_mode=True)
    assert made == ["s59"], "of the stages that stay one new operation each, of the inlined ones none"
    x, y = RNG.random(8, dtype=np.float32), np.full(8, np.nan, np.float32)
    run(func, x, y)
    np.testing.assert_allclose(y, x + 60, rtol=1e-5)


def test_a_formula_read_at_two_indices_is_expanded_at_both():
    a = te.placeholder((9,), name="A")
    b = te.compute((9,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((8,), lambda i: b[i] + b[i + 1], name="C")
    d = te.compute((8,), lambda i: c[i] * b[i], name="D")
    s = te.create_schedule(d)
    s[b].compute_inline()
    s[c].compute_inline()
    x, y = RNG.random(9, dtype=np.float32), np.full(8, np.nan, np.float32)
    run(te.lower(s, [a, d], simple_mode=True), x, y)
    np.testing.assert_allclose(y, (2 * x[:-1] + 2 * x[1:]) * 2 * x[:-1], rtol=1e-5)


def test_a_region_inside_a_loop_takes_the_memory_of_its_largest_extent() -> None:
    n = SizeVar("n", most=32)
    x = te.placeholder((10, n), name="x")
    doubled = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="doubled")
    y = te.compute(x.shape, lambda i, j: doubled[i, j] + 1.0, name="y")
    s = te.create_schedule(y.op)
    s[doubled].compute_at(s[y], s[y].op.axis[0])
    module = te.lower(s, [x, y], simple_mode=True)
    (allocated,) = [node.buffer for node in collect(module["main"].body, Allocate)]
    assert tuple(allocated.shape) == (1, 32)
    data, result = RNG.random((10, 13), dtype=np.float32), np.full((10, 13), np.nan, np.float32)
    run(module, data, result)
    np.testing.assert_array_equal(result, data * 2 + 1)


def test_a_formula_with_a_let_read_at_two_indices_has_two_variables():
    table, size = te.placeholder((9,), name="table"), te.size_var("n")
    x = te.placeholder((size,), name="x")
    places = te.compute((size,), lambda i: te.cast("int64", i), name="places")
    positions = topi.take(table, places, 0, mode="numpy")
    moved = te.compute((size,), lambda i: x[i] + positions[i], name="moved")
    y = te.compute((size,), lambda i: moved[i] + te.if_then_else(i >= 1, moved[i - 1] * 10.0, 0.0), name="y")
    s = te.create_schedule(y)
    for tensor in (places, positions, moved):
        s[tensor].compute_inline()
    verify(schedule_to_function(s, [table, x, y]))
    func = te.lower(s, [table, x, y])["main"]
    names, data = RNG.random(9, dtype=np.float32), RNG.random(7, dtype=np.float32)
    result, both = np.full(7, np.nan, np.float32), data + names[:7]
    interpret(func, names, data, result)
    np.testing.assert_allclose(result, both + np.append(0, both[:-1]) * 10, rtol=1e-6)

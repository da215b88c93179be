"""Small passes: programs before and after."""

from __future__ import annotations

import functools
import operator

import ml_dtypes
import numpy as np
import pytest

from relayc.te.dtype import FLOAT32, HANDLE
from relayc.te.ir.visitor import post_order
from relayc.te.tir import (
    Allocate,
    AttrStmt,
    BufferLoad,
    BufferStore,
    Cast,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    Let,
    PrimFunc,
    Range,
    SizeVar,
    Var,
    broadcast,
    call_intrin,
    const,
    decl_buffer,
    if_then_else,
    maximum,
    minimum,
    ramp,
    select,
    seq,
)  # fmt: skip
from relayc.te.tir.interpreter import InterpreterError, interpret
from relayc.te.tir.ops import all as all_of, floordiv, likely
from relayc.te.tir.passes.hoist_allocations import hoist_allocations
from relayc.te.tir.passes.hoist_if_then_else import hoist_if_then_else
from relayc.te.tir.passes.inject_double_buffer import inject_double_buffer
from relayc.te.tir.passes.inject_virtual_thread import inject_virtual_thread
from relayc.te.tir.passes.legalize_compute import LOW_PRECISION, legalize_compute
from relayc.te.tir.passes.loop_partition import loop_partition
from relayc.te.tir.passes.remove_no_op import remove_no_op
from relayc.te.tir.passes.rewrite_unsafe_select import rewrite_unsafe_select
from relayc.te.tir.passes.simplify import simplify
from relayc.te.tir.passes.unroll import unroll
from relayc.te.tir.passes.vectorize import vectorize
from relayc.te.tir.substitute import Substitution, fresh_copy, substitute
from relayc.te.tir.verifier import verify

i, j = Var("i"), Var("j")


def loop(var, extent, body, kind=ForKind.SERIAL, **annotations):
    return For(var, const(0), const(extent), kind, body, annotations)


def function(body, *buffers) -> PrimFunc:
    handles = [Var(b.name, HANDLE) for b in buffers]
    return PrimFunc(tuple(handles), body, dict(zip(handles, buffers, strict=True)))


def lines(func: PrimFunc) -> list[str]:
    return str(func).splitlines()[1:]


def test_bits_of_vectors_are_reinterpreted():
    a, b = decl_buffer((8,), name="A"), decl_buffer((8,), "int32", name="B")
    bits = call_intrin("int32", "reinterpret", BufferLoad(a, (i,)))
    func = vectorize(function(loop(i, 8, BufferStore(b, minimum(bits, const(7)), (i,)), ForKind.VECTORIZED), a, b))
    assert not any("for i" in line for line in lines(func))
    values, result = np.linspace(-1e-44, 1e-44, 8, dtype=np.float32), np.zeros(8, np.int32)
    interpret(func, values, result)
    np.testing.assert_array_equal(result, np.minimum(values.view(np.int32), 7))


def test_select_that_leaves_a_buffer_becomes_lazy():
    a, b = decl_buffer((8,), name="A"), decl_buffer((8,), name="B")
    shifted = select(i >= 1, BufferLoad(a, (i - 1,)), 0.0)
    inside = select(i >= 1, BufferLoad(a, (i,)), 0.0)
    func = function(loop(i, 8, seq(BufferStore(b, shifted, (i,)), BufferStore(b, inside, (i,)))), a, b)
    with pytest.raises(InterpreterError, match="leaves axis 0"):
        interpret(func, np.zeros(8, np.float32), np.zeros(8, np.float32))
    safe = rewrite_unsafe_select(func)
    assert lines(safe)[1:] == [
        "        B[i] = if_then_else(i >= 1, A[i - 1], 0.0)",
        "        B[i] = select(i >= 1, A[i], 0.0)",
    ]
    interpret(safe, np.zeros(8, np.float32), np.zeros(8, np.float32))
    assert rewrite_unsafe_select(safe) is safe


def test_select_between_elements_that_its_condition_reads_stays():
    a, b, n = decl_buffer((8,), name="A"), decl_buffer((8,), name="B"), Var("n")
    larger = select(BufferLoad(b, (n,)) < BufferLoad(a, (n,)), BufferLoad(a, (n,)), BufferLoad(b, (n,)))
    func = function(BufferStore(b, larger, (i,)), a, b)
    assert rewrite_unsafe_select(func) is func
    other = select(BufferLoad(b, (n,)) < BufferLoad(a, (n,)), BufferLoad(a, (n + 1,)), BufferLoad(b, (n,)))
    assert "if_then_else" in str(rewrite_unsafe_select(function(BufferStore(b, other, (i,)), a, b)))
    lazy = if_then_else(n < 8, BufferLoad(a, (n,)), 0.0)
    unread = select(lazy > 0.0, BufferLoad(a, (n,)), 0.0)
    assert "select" not in str(rewrite_unsafe_select(function(BufferStore(b, unread, (i,)), a, b)))


def test_select_stays_where_a_branch_proves_its_bounds():
    a, b = decl_buffer((10,), name="A"), decl_buffer((10,), name="B")
    at = i * 4 + j
    store = BufferStore(b, select(BufferLoad(b, (at,)) > 0.0, BufferLoad(a, (at,)), 0.0), (at,))
    guarded = function(loop(i, 3, loop(j, 4, IfThenElse(at < 10, store))), a, b)
    assert rewrite_unsafe_select(guarded) is guarded
    assert "if_then_else" in str(rewrite_unsafe_select(function(loop(i, 3, loop(j, 4, store)), a, b)))


def test_select_that_may_divide_by_zero_becomes_lazy():
    b = decl_buffer((8,), "int32", name="B")
    func = function(loop(i, 8, BufferStore(b, select(i > 0, floordiv(const(8), i), 0), (i,))), b)
    assert "if_then_else(i > 0, 8 // i, 0)" in str(rewrite_unsafe_select(func))


def test_branches_leave_loops():
    n, b = Var("n"), decl_buffer((8, 8), name="B")
    store = BufferStore(b, const(1.0), (i, j))
    other = BufferStore(b, const(2.0), (i, j))
    body = loop(i, 8, loop(j, 8, IfThenElse(all_of(n > 3, i < n, j < 4), store)))
    assert lines(hoist_if_then_else(function(body, b))) == [
        "    if n > 3:",
        "        for i in range(8):",
        "            if i < n:",
        "                for j in range(8):",
        "                    if j < 4:",
        "                        B[i, j] = 1.0",
    ]
    nested = loop(j, 8, IfThenElse(n > 3, IfThenElse(n > 4, store)), ForKind.VECTORIZED)
    hoisted = hoist_if_then_else(function(nested, b))
    assert lines(hoisted)[:3] == ["    if n > 3:", "        if n > 4:", "            for j in vectorized(8):"]
    body = loop(i, 8, loop(j, 8, IfThenElse(n > 3, store, other)))
    assert lines(hoist_if_then_else(function(body, b)))[0] == "    if n > 3:"
    stays = function(loop(i, 8, loop(j, 8, IfThenElse(j > 3, store, other))), b)
    assert hoist_if_then_else(stays) is stays


def test_uniform_conditions_stay_branches_when_vectorized():
    a, b, n = decl_buffer((8,), name="A"), decl_buffer((8,), name="B"), Var("n")
    guarded = IfThenElse(likely(n * 2 + n < 9), BufferStore(b, BufferLoad(a, (i,)), (i,)))
    text = str(vectorize(function(loop(i, 8, guarded, ForKind.VECTORIZED), a, b)))
    assert "B[ramp(0, 1, 8)] = A[ramp(0, 1, 8)]" in text
    assert "where" not in text


def test_unrolled_loops_are_not_partitioned_at_thread_dependent_bounds():
    """The guard is in each copy of the body: a loop of thread-dependent length could not be unrolled."""
    b, thread = decl_buffer((20,), name="B"), IterVar(Range(0, 8), Var("tx"), "thread", "threadIdx.x")
    place = i * 8 + thread.var
    body = IfThenElse(likely(place < 20), BufferStore(b, const(1.0), (place,)))
    nest = AttrStmt("thread_extent", thread, const(8), loop(i, 3, body, ForKind.UNROLLED))
    text = str(loop_partition(function(nest, b)))
    assert "for i in unrolled(3):" in text
    assert "if likely(i * 8 + tx < 20):" in text


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn"])
def test_low_precision_computes_in_float32(kind):
    a, b = decl_buffer((16,), kind, "A"), decl_buffer((16,), kind, "B")
    x, y = BufferLoad(a, (i,)), BufferLoad(b, (i,))
    value = maximum(x * y + x, select(x < y, x, y)) + Cast(x.dtype, i) - call_intrin(kind, "exp", x)
    func = function(loop(i, 16, BufferStore(b, value, (i,))), a, b)
    legal = legalize_compute(func)
    verify(legal)
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    data = np.random.default_rng(0).uniform(-1, 1, 16).astype(dtype)
    expected, result = data[::-1].copy(), data[::-1].copy()
    interpret(func, data, expected)
    interpret(legal, data, result)
    np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))
    assert legalize_compute(func, ()) is func
    assert "float32" in str(legal) and set(LOW_PRECISION) > {kind}


def test_tails_become_smaller_loops():
    b = decl_buffer((30,), name="B")
    value = i * 8 + j
    guarded = IfThenElse(call_intrin("bool", "likely", value < 30), BufferStore(b, const(1.0), (value,)))
    func = function(loop(i, 4, loop(j, 8, guarded, ForKind.VECTORIZED)), b)
    assert lines(vectorize(loop_partition(func))) == [
        "    for i in range(3):",
        "        B[ramp(i * 8, 1, 8)] = broadcast(1.0, 8)",
        "    B[ramp(24, 1, 6)] = broadcast(1.0, 6)",
    ]


def test_tails_of_dynamic_length_end_early_and_stay_vectorized():
    n, outer, tile = SizeVar("n"), Var("o"), decl_buffer((64,), name="T", scope="local")
    b = decl_buffer((n,), name="B")

    def guarded(store):
        vector, lane = Var("i"), Var("j")
        at, value = vector * 8 + lane, outer * 64 + vector * 8 + lane
        return loop(vector, 8, loop(lane, 8, IfThenElse(likely(value < n), store(at, value)), ForKind.VECTORIZED))

    body = seq([guarded(lambda at, _: BufferStore(tile, const(1.0), (at,))),
                guarded(lambda at, value: BufferStore(b, BufferLoad(tile, (at,)), (value,)))])  # fmt: skip
    nest = For(outer, const(0), floordiv(n + 63, 64), ForKind.SERIAL, Allocate(tile, body))
    func = PrimFunc((b.data, n), nest, {b.data: b}, {"global_symbol": "main"})
    text = str(vectorize(loop_partition(func)))
    assert text.count("extent=(n + 7) // 8 - n // 8") == 2, "of eight vectors, the one that is not whole"
    assert "range(n - " not in text, "no scalars"
    for size in (0, 1, 7, 8, 63, 64, 77, 200):
        result = np.zeros(size + 8, "float32")
        interpret(vectorize(loop_partition(func)), result[:size], size)
        assert (result[:size] == 1.0).all() and not result[size:].any()


def test_inactive_lanes_keep_the_contents_of_private_memory():
    n, tile, b = SizeVar("n"), decl_buffer((6,), name="T", scope="local"), decl_buffer((8,), name="B")
    first, second = loop(i, 6, BufferStore(tile, const(1.0), (i,))), Var("j")
    masked = IfThenElse(likely(second < n), BufferStore(tile, const(2.0), (second,)))
    third = Var("k")
    out = IfThenElse(third < 6, BufferStore(b, BufferLoad(tile, (third,)), (third,)))
    body = seq([first, *[loop(v, 8, s, ForKind.VECTORIZED) for v, s in ((second, masked), (third, out))]])
    func = PrimFunc((b.data, n), Allocate(tile, body), {b.data: b}, {"global_symbol": "main"})
    text = str(vectorize(func))
    assert "allocate([8]" in text and "T[ramp(0, 1, 8)] = select(" in text and "T[ramp(0, 1, 8), where" not in text
    result = np.zeros(8, "float32")
    interpret(vectorize(func), result, 4)
    assert result.tolist() == [2, 2, 2, 2, 1, 1, 0, 0]


def test_parallel_loops_are_versioned_on_their_guards():
    b = decl_buffer((30,), name="B")
    value = i * 8 + j
    guarded = IfThenElse(call_intrin("bool", "likely", value < 30), BufferStore(b, const(1.0), (value,)))
    func = function(loop(i, 4, loop(j, 8, guarded), ForKind.PARALLEL), b)
    assert lines(loop_partition(func)) == [
        "    for i in parallel(4):",
        "        if i < 3:",
        "            for j in range(8):",
        "                B[i * 8 + j] = 1.0",
        "        else:",
        "            for j_1 in range(6):",
        "                B[j_1 + 24] = 1.0",
    ]


def test_parallel_loops_have_one_version_where_a_guard_is_outside_of_a_dynamic_loop():
    n = SizeVar("n")
    b = decl_buffer((30, n), name="B")
    k = Var("k")
    guarded = IfThenElse(call_intrin("bool", "likely", i * 8 + j < 30), BufferStore(b, const(1.0), (i * 8 + j, k)))
    rows = loop(j, 8, For(k, const(0), n, ForKind.SERIAL, guarded))
    assert lines(loop_partition(function(loop(i, 4, rows, ForKind.PARALLEL), b))) == [
        "    for i in parallel(4):",
        "        for j in range(min(8, 30 - i * 8)):",
        "            for k in range(n):",
        "                B[i * 8 + j, k] = 1.0",
    ]


@pytest.mark.parametrize("kind", [ForKind.SERIAL, ForKind.PARALLEL])
def test_the_last_iteration_is_peeled_on_a_pragma(kind: ForKind):
    a = decl_buffer((19,), name="a")
    store = BufferStore(a, const(1.0), (minimum(i * 4, const(15)) + j,))
    func = function(loop(i, 5, loop(j, 4, store), kind, pragma_last_apart=True), a)
    cut = loop_partition(func)
    text = str(cut)
    assert "min" not in text and "a[i * 4 + j]" in text
    assert ("if i < 4:" in text) == (kind is ForKind.PARALLEL)
    found = np.zeros(19, np.float32)
    interpret(cut, found)
    assert found.all()


def test_the_peeled_iteration_is_specialised_where_padding_begins_before_it():
    a, b = decl_buffer((13,), name="a"), decl_buffer((13,), name="b")
    value = call_intrin("float32", "if_then_else", i * 4 + j < 10, BufferLoad(a, (i * 4 + j,)), const(1.0))
    inner = For(j, const(0), minimum(const(13) - i * 4, const(4)), ForKind.SERIAL, BufferStore(b, value, (i * 4 + j,)))
    func = function(loop(i, 4, inner, pragma_last_apart=True, pragma_loop_partition_hint=True), a, b)
    cut = loop_partition(func)
    assert "min(" not in str(cut)
    found = [np.arange(13, dtype=np.float32), np.zeros(13, np.float32)]
    interpret(cut, *found)
    assert found[1].tolist() == [*range(10), 1, 1, 1]


def test_padding_is_partitioned_on_a_hint():
    a, b = decl_buffer((8,), name="A"), decl_buffer((8,), name="B")
    inside = all_of(i >= 1, i < 8)
    value = call_intrin("float32", "if_then_else", inside, BufferLoad(a, (i - 1,)), const(0.0))
    store = BufferStore(b, value, (i,))
    assert lines(loop_partition(function(loop(i, 8, store, pragma_loop_partition_hint=True), a, b))) == [
        "    B[0] = 0.0",
        "    for i in range(1, extent=7):  # pragma_loop_partition_hint: True",
        "        B[i] = A[i - 1]",
    ]


def cut_image_of_any_size(*, of_rows: str = "", of_columns: str) -> PrimFunc:
    """A shifted image within a border of zeros, partitioned by the pragmas of its loops, and checked."""
    h, w = SizeVar("h"), SizeVar("w")
    a, b = decl_buffer((h, w), name="A"), decl_buffer((h, w), name="B")
    inside = all_of(i >= 1, i < h - 1, j >= 1, j < w - 1)
    value = call_intrin("float32", "if_then_else", inside, BufferLoad(a, (i - 1, j - 1)), const(0.0))
    columns = For(j, const(0), w, ForKind.SERIAL, BufferStore(b, value, (i, j)), {of_columns: True})
    rows = For(i, const(0), h, ForKind.PARALLEL, columns, {of_rows: True} if of_rows else {})
    cut = loop_partition(function(rows, a, b))
    values, result = np.arange(20, dtype=np.float32).reshape(4, 5), np.ones((4, 5), np.float32)
    interpret(cut, values, result)
    expected = np.zeros((4, 5), np.float32)
    expected[1:-1, 1:-1] = values[:-2, :-2]
    np.testing.assert_array_equal(result, expected)
    return cut


def test_borders_of_images_of_any_size_are_not_cut_again():
    """Rows inside have three loops over columns, those at the border one, whose tests ask for both."""
    hint = "pragma_loop_partition_hint"
    assert str(cut_image_of_any_size(of_rows=hint, of_columns=hint)).count("B[") == 3 + 1


def test_iterations_have_two_versions_where_a_loop_asks_for_them():
    """One test joins the guards of all loops around."""
    cut = cut_image_of_any_size(of_columns="pragma_loop_versions")
    assert lines(cut)[2:5] == [
        "            if i >= 1 and i + 1 < h and j >= 1 and j + 1 < w:",
        "                B[i, j] = A[i - 1, j - 1]",
        "            else:",
    ]
    assert str(cut).count("B[") == 2


def test_small_extents_have_no_loop_for_the_middle():
    n = SizeVar("n")
    b = decl_buffer((n,), name="B")
    value = call_intrin("float32", "if_then_else", all_of(i >= 1, i + 1 < n), const(1.0), const(2.0))
    store = BufferStore(b, value, (i,))
    guarded = For(i, const(0), n, ForKind.SERIAL, store, {"pragma_loop_partition_hint": True})
    large = loop(i, 4, BufferStore(b, const(3.0), (i,)))
    cut = simplify(loop_partition(function(IfThenElse(likely(n >= 2), large, guarded), b)))
    assert "1.0" not in str(cut)
    for size in (0, 1):
        result = np.zeros(size, np.float32)
        interpret(cut, result)
        assert result.tolist() == [2.0] * size


def test_unroll_respects_its_budget_and_pragmas():
    b = decl_buffer((64,), name="B")
    store = BufferStore(b, const(1.0), (i,))
    assert len(lines(unroll(function(loop(i, 4, store, ForKind.UNROLLED), b)))) == 4
    kept = function(loop(i, 64, store, ForKind.UNROLLED), b)
    assert unroll(kept, max_statements=32) is kept
    assert unroll(kept, explicit=False) is kept
    automatic = function(loop(i, 8, store, pragma_auto_unroll_max_step=8), b)
    assert len(lines(unroll(automatic))) == 8
    assert len(lines(unroll(function(loop(i, 9, store, pragma_auto_unroll_max_step=8), b)))) == 2


def test_loops_without_a_vector_form_become_serial():
    b = decl_buffer((8,), name="B")
    total = BufferStore(b, BufferLoad(b, (const(0),)) + 1.0, (const(0),))
    assert lines(vectorize(function(loop(i, 8, total, ForKind.VECTORIZED), b)))[0] == "    for i in range(8):"


def test_virtual_threads_are_interleaved():
    a, b = decl_buffer((32,), name="A"), decl_buffer((8,), name="B")
    acc, shared = decl_buffer((1,), name="acc", scope="local"), decl_buffer((4,), name="tile")
    vt = IterVar(Range(0, 2), Var("vt"), "thread", "vthread")
    load = loop(j, 4, BufferStore(shared, BufferLoad(a, (i * 4 + j,)), (j,)))
    at = vt.var * 2 + j
    add = BufferStore(acc, BufferLoad(acc, (const(0),)) + BufferLoad(shared, (vt.var,)), (const(0),))
    body = seq(
        BufferStore(acc, const(0.0), (const(0),)),
        loop(i, 8, Allocate(shared, seq(load, add))),
        loop(j, 2, BufferStore(b, BufferLoad(acc, (const(0),)), (at,))),
    )
    func = function(AttrStmt("virtual_thread", vt, const(2), Allocate(acc, body)), a, b)
    result = inject_virtual_thread(func)
    verify(result)
    text = str(result)
    assert "virtual_thread" not in text and text.count("unrolled(2)") == 3
    assert 'acc = allocate([2], "float32", scope="local")' in text and "tile = allocate([4]" in text
    data = np.random.default_rng(0).integers(0, 9, 32).astype(np.float32)
    expected, out = np.zeros(8, np.float32), np.zeros(8, np.float32)
    interpret(func, data, expected)
    interpret(result, data, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("start", [0, 3])
def test_double_buffers_are_filled_ahead(start):
    a, b, tile = decl_buffer((64,), name="A"), decl_buffer((64,), name="B"), decl_buffer((4,), name="tile")
    fill = loop(i, 4, BufferStore(tile, BufferLoad(a, (j * 4 + i,)), (i,)))
    use = loop(i, 4, BufferStore(b, BufferLoad(tile, (const(3) - i,)) * 2.0, (j * 4 + i,)))
    body = Allocate(tile, seq(AttrStmt("double_buffer_scope", tile, const(1), fill), use))
    func = function(For(j, const(start), const(9), ForKind.SERIAL, body), a, b)
    result = inject_double_buffer(func)
    verify(result)
    assert 'tile = allocate([8], "float32")' in str(result) and "double_buffer" not in str(result)
    data = np.arange(64, dtype=np.float32)
    expected, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    interpret(func, data, expected)
    interpret(result, data, out, check_uninitialized=True)
    np.testing.assert_array_equal(out, expected)


def test_a_double_buffer_that_depends_on_the_loop_stays_single():
    b, tile = decl_buffer((16,), name="B"), decl_buffer((4,), name="tile")
    fill = loop(i, 4, BufferStore(tile, BufferLoad(b, (i,)), (i,)))
    use = loop(i, 4, BufferStore(b, BufferLoad(tile, (i,)) + 1.0, (i,)))
    body = Allocate(tile, seq(AttrStmt("double_buffer_scope", tile, const(1), fill), use))
    result = inject_double_buffer(function(loop(j, 9, body), b))
    assert "allocate([4]" in str(result) and "double_buffer" not in str(result)


def nested_reads(depth: int) -> PrimFunc:
    """B[i] is the first k at which A[i + k] is positive; that is read under the conditions before it."""
    a, b = decl_buffer((32,), name="A"), decl_buffer((16,), name="B")
    value = const(float(depth), "float32")
    for k in reversed(range(depth)):
        value = if_then_else(BufferLoad(a, (i + k,)) > 0.0, const(float(k), "float32"), value)
    return function(loop(i, 16, BufferStore(b, value, (i,)), ForKind.VECTORIZED), a, b)


def test_masks_of_reads_in_conditions_do_not_double_with_each_condition():
    few, many = (len(str(vectorize(nested_reads(depth)))) for depth in (6, 12))
    assert many < 5 * few
    data, result = np.where(np.arange(32) < 12, -1, 1).astype(np.float32), np.zeros(16, np.float32)
    interpret(vectorize(nested_reads(10)), data, result)
    np.testing.assert_array_equal(result, [10, 10, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0])


def test_only_reads_that_may_leave_their_buffer_are_masked():
    a, b = decl_buffer((16,), name="A"), decl_buffer((16,), name="B")
    inside, outside = BufferLoad(a, (i,)), BufferLoad(a, (i + 1,))
    guarded = all_of(inside > 0.0, inside < 2.0, inside < 1.5, i + 1 < 16, outside > 0.0)
    func = function(loop(i, 16, BufferStore(b, select(guarded, 1.0, 0.0), (i,)), ForKind.VECTORIZED), a, b)
    text = str(vectorize(func))
    assert text.count("where=") == 1 and "A[ramp(1, 1, 16), where=" in text  # one mask, not nested masks
    data, result = np.linspace(-1, 2.4, 16, dtype=np.float32), np.zeros(16, np.float32)
    interpret(vectorize(func), data, result)
    following = np.append(data[1:], np.float32(-1))
    np.testing.assert_array_equal(result, (data > 0) & (data < 1.5) & (following > 0))


def test_allocations_of_dynamic_size_are_hoisted_out_of_loops():
    n, b = SizeVar("n"), decl_buffer((8,), name="B")
    line, tile = decl_buffer((n,), name="line", scope="local"), decl_buffer((4,), name="tile", scope="local")
    body = Allocate(line, Allocate(tile, BufferStore(b, const(1.0), (i,))))
    own = decl_buffer((i + 1,), name="own", scope="local")
    func = function(loop(j, 2, loop(i, 8, Allocate(own, body)), ForKind.PARALLEL), b)
    assert lines(hoist_allocations(func)) == [
        "    for j in parallel(2):",
        '        line = allocate([n], "float32", scope="local")',
        "        for i in range(8):",
        '            own = allocate([i + 1], "float32", scope="local")',
        '            tile = allocate([4], "float32", scope="local")',
        "            B[i] = 1.0",
    ]


def test_constant_extents_and_uniform_masks_are_found_from_bounds():
    """The last of seven panels has one vector, all lanes of which are stored."""
    b = decl_buffer((104,), name="B")
    inside = decl_buffer((16,), name="A")
    vector = ramp(i % 7 * 16 + j * 8, 1, 8)

    def store(mask) -> BufferStore:
        return BufferStore(b, BufferLoad(inside, (ramp(j * 8, 1, 8),)), (vector,), mask)

    stores = seq([store(ramp(j * 8, 1, 8) < broadcast(const(n), 8)) for n in (8, 0, 5)])
    last = For(j, const(0), 13 - i % 7 * 2, ForKind.SERIAL, stores)
    func = function(loop(i, 21, IfThenElse(i % 7 >= 6, last)), inside, b)
    assert lines(simplify(func)) == [
        "    for i in range(21):",
        "        if i % 7 >= 6:",
        "            B[ramp(i % 7 * 16, 1, 8)] = A[ramp(0, 1, 8)]",
        "            B[ramp(i % 7 * 16, 1, 8), where=ramp(0, 1, 8) < broadcast(5, 8)] = A[ramp(0, 1, 8)]",
    ]


def _sums(read: int, *others) -> PrimFunc:
    """Four sums of two elements, of which `read` are stored; `others` come before."""
    a, b, tile = decl_buffer((8,), name="A"), decl_buffer((8,), name="B"), decl_buffer((8,), name="T", scope="local")
    places = [ramp(2 * n, 1, 2) for n in range(4)]
    clear = [BufferStore(tile, broadcast(const(0.0), 2), (place,)) for place in places]
    add = [BufferStore(tile, BufferLoad(tile, (place,)) + BufferLoad(a, (place,)), (place,)) for place in places]
    out = [BufferStore(b, BufferLoad(tile, (place,)), (place,)) for place in places[:read]]
    return function(Allocate(tile, seq([*others, *clear, loop(i, 3, seq(add)), *out])), a, b)


@pytest.mark.parametrize("read", [1, 3, 4])
def test_unread_sums_are_removed(read: int):
    func = remove_no_op(_sums(read))
    assert str(func).count("T[") == 4 * read, "cleared, added to, which reads them, and stored"
    data, result = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    interpret(func, data, result)
    np.testing.assert_array_equal(result, np.where(np.arange(8) < 2 * read, 3 * data, 0))


def test_sums_read_at_unknown_indices_are_kept():
    whole = _sums(1)
    assert isinstance(whole.body, Allocate)
    tile, body = whole.body.buffer, whole.body.body
    b = next(b for b in whole.buffer_map.values() if b.name == "B")
    other = decl_buffer((4,), "int32", "U", data=tile.data)
    address = Evaluate(call_intrin(HANDLE, "address_of", BufferLoad(tile, (const(0),))))
    reads = [BufferStore(b, BufferLoad(tile, (j,)), (j,)), BufferStore(b, Cast(FLOAT32, BufferLoad(other, (j,))), (j,))]
    prefetched = Evaluate(call_intrin("int32", "prefetch", address.value, 3, 0))
    for read in (*[loop(j, 4, each) for each in reads], prefetched):
        kept = remove_no_op(whole.with_body(Allocate(tile, seq([body, read]))))
        assert str(kept).count("T[") >= 4 + 8 + 1


def test_copies_of_a_let_with_other_values_have_variables_of_their_own():
    indices, out = decl_buffer((2, 8), "int32", name="A"), decl_buffer((8,), "int32", name="B")
    row, i, position = Var("row"), Var("i"), Var("position")
    wrapped = position + select(position < 0, const(100), const(0))
    at = Let(position, BufferLoad(indices, (row, i)), wrapped)
    first, second = [substitute(at, {row: const(r)}) for r in (0, 1)]
    assert first.var is not second.var
    one_body = Let(position, BufferLoad(indices, (const(0), i)), wrapped) * 1000 + Let(position, i, wrapped)
    x = np.arange(-8, 8, dtype="int32").reshape(2, 8)
    for value, wanted in [(first * 1000 + second, x[0] % 100 * 1000 + x[1]), (one_body, x[0] % 100 * 1000 + range(8))]:
        body = loop(i, 8, BufferStore(out, value, (i,)))
        got = np.zeros(8, "int32")
        interpret(function(fresh_copy(body), indices, out), x, got)
        np.testing.assert_array_equal(got, wanted)


def _nested_lets(count, i):
    """``let v0 = i * 2 in let v1 = v0 + 1 in ... v0 + v1 + ...``"""
    names = [Var(f"v{k}") for k in range(count)]
    body = functools.reduce(operator.add, names)
    for k in reversed(range(count)):
        body = Let(names[k], names[k - 1] + 1 if k else i * 2, body)
    return body


def test_nested_lets_are_substituted_in_linear_work(monkeypatch):
    visits = []
    inner = Substitution.visit
    monkeypatch.setattr(Substitution, "visit", lambda self, node: (visits.append(node), inner(self, node))[1])
    counts = []
    for depth in (10, 20):
        old = _nested_lets(depth, i)
        visits.clear()
        new = substitute(old, {i: const(3)})
        counts.append(len(visits))
        names = [[node.var for node in post_order(let) if isinstance(node, Let)] for let in (old, new)]
        assert set(names[0]).isdisjoint(names[1])
        out = decl_buffer((1,), "int32", name="B")
        got = np.zeros(1, "int32")
        interpret(function(BufferStore(out, new, (const(0),)), out), got)
        assert got[0] == 6 * depth + sum(range(depth))
    assert counts[1] < 3 * counts[0]


def test_lets_that_read_nothing_that_is_replaced_stay():
    x, y = Var("x"), Var("y")
    kept = Let(y, x * 2, y + y)
    new = substitute(Let(x, i + 1, x) + Let(x, const(5), kept), {i: const(3)})
    lets = [node for node in post_order(new) if isinstance(node, Let)]
    assert x not in [let.var for let in lets] and len(lets) == 3
    alone = Let(y, Var("z") * 2, y + y)
    assert substitute(alone + i, {i: const(3)}).a is alone

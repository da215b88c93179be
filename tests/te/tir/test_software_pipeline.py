"""Rings of buffers filled ahead, asynchronous copies, and guards that stay in place."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te
from relayc.te.errors import LoweringError, ScheduleError
from relayc.te.ir import collect
from relayc.te.tir import AttrStmt, Call, For, IfThenElse, PrimFunc, SeqStmt, Stmt
from relayc.te.tir.block_interpreter import BlockInterpreter
from relayc.te.tir.passes.inject_async_copy import inject_async_copy
from relayc.te.tir.passes.inject_software_pipeline import ASYNC_SCOPE, EXPLICIT_SYNC

ROWS, DEPTH, STEP = 8, 21, 4


def _sums(stages: int, vector: int = 1, behind: bool = False) -> PrimFunc:
    """Sums of rows whose slices are copied to shared memory: thread i adds up row i."""
    steps = -(-DEPTH // STEP)
    a = te.placeholder((ROWS, steps * STEP), name="a")
    filled = te.compute(
        (steps * STEP, ROWS), lambda k, i: te.if_then_else(k < DEPTH, a(i, k), te.const(0.0)), name="filled"
    )
    k = te.reduce_axis((0, steps * STEP), name="k")
    total = te.compute((ROWS,), lambda i: te.sum(filled(k, i), axis=k), name="total")
    s = te.create_schedule(total.op)
    local = s.cache_write(total, "local")
    s[total].bind(total.op.axis[0], te.thread_axis((0, ROWS), "threadIdx.x"))
    s[local].compute_at(s[total], s[total].leaf_iter_vars[0])
    outer, _ = s[local].split(s[local].op.reduce_axis[0], factor=STEP)
    s[filled].set_scope("shared")
    s[filled].compute_at(s[local], outer)
    s[filled].bind(s[filled].op.axis[1], te.thread_axis((0, ROWS), "threadIdx.x"))
    s[filled].pipeline(stages, behind)
    return te.lower(s, [a, total])["main"]


def _sums_by_registers(stages: int, steps: int, parts: int) -> PrimFunc:
    """Sums of rows by `steps` slices of shared memory, each loaded to registers in `parts` pieces of two elements."""
    depth, each = steps * parts * 2, parts * 2
    a = te.placeholder((ROWS, depth), name="a")
    filled = te.compute((depth, ROWS), lambda k, i: a(i, k), name="filled")
    k = te.reduce_axis((0, depth), name="k")
    total = te.compute((ROWS,), lambda i: te.sum(filled(k, i), axis=k), name="total")
    s = te.create_schedule(total.op)
    local = s.cache_write(total, "local")
    thread = te.thread_axis((0, ROWS), "threadIdx.x")
    s[total].bind(total.op.axis[0], thread)
    s[local].compute_at(s[total], s[total].leaf_iter_vars[0])
    outer, rest = s[local].split(s[local].op.reduce_axis[0], factor=each)
    part, _ = s[local].split(rest, factor=2)
    s[local].unroll(part)
    registers = s.cache_read(filled, "local", [local])
    s[registers].compute_at(s[local], part)
    s[registers].pipeline(2)
    s[filled].set_scope("shared")
    s[filled].compute_at(s[local], outer)
    s[filled].bind(s[filled].op.axis[1], te.thread_axis((0, ROWS), "threadIdx.x"))
    s[filled].pipeline(stages)
    return te.lower(s, [a, total])["main"]


def _check(func: PrimFunc) -> None:
    a = np.random.default_rng(0).standard_normal((ROWS, 24)).astype("float32")
    total = np.full(ROWS, np.nan, "float32")
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (a, total))
    np.testing.assert_allclose(total, a[:, :DEPTH].sum(1), rtol=1e-5, atol=1e-5)


def _calls(func: PrimFunc, name: str) -> int:
    return len([call for call in collect(func.body, Call) if call.op == name])


@pytest.mark.parametrize("behind", [False, True])
def test_copies_are_started_before_or_after_the_use_of_an_iteration(behind: bool) -> None:
    func = _sums(3, behind=behind)
    _check(func)
    (body,) = [loop.body for loop in collect(func.body, For) if _has(loop.body, "async_wait")]
    assert isinstance(body, SeqStmt)
    assert _has(body.stmts[-1], "async_commit") == behind


def _has(stmt: Stmt, name: str) -> bool:
    return any(call.op == name for call in collect(stmt, Call))


@pytest.mark.parametrize("stages", [2, 3, 4, 9])
def test_a_pipelined_sum_is_correct(stages: int) -> None:
    func = _sums(stages)
    _check(func)
    attributes = {node.key for node in collect(func.body, AttrStmt)}
    assert {ASYNC_SCOPE, EXPLICIT_SYNC} <= attributes
    assert _calls(func, "async_wait") == _calls(func, "storage_sync") == 1


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_registers_are_loaded_one_slice_ahead(stages: int, parts: int, steps: int) -> None:
    func = _sums_by_registers(stages, steps, parts)
    a = np.random.default_rng(0).standard_normal((ROWS, steps * parts * 2)).astype("float32")
    total = np.full(ROWS, np.nan, "float32")
    BlockInterpreter({"main": func}, check_uninitialized=True).call(func, (a, total))
    np.testing.assert_allclose(total, a.sum(1), rtol=1e-5, atol=1e-5)
    if steps > 1:  # the next slice is loaded while the last of this one is used, after its own barrier
        assert _calls(func, "storage_sync") == _calls(func, "async_wait") == 1 + (parts % 2 == 0)


@pytest.mark.parametrize("stages", [2, 4])
def test_copies_become_asynchronous(stages: int) -> None:
    func = inject_async_copy(_sums(stages))
    _check(func)
    assert _calls(func, "async_copy") == STEP * stages or _calls(func, "async_copy") == stages
    assert not [node for node in collect(func.body, AttrStmt) if node.key == ASYNC_SCOPE]


def test_buffers_filled_from_results_of_the_loop_cannot_be_pipelined() -> None:
    a = te.placeholder((4, 4), name="a")
    copy = te.compute((4, 4), lambda i, j: a(i, j) + 1.0, name="copy")
    double = te.compute((4, 4), lambda i, j: copy(i, j) * 2.0, name="double")
    result = te.compute((4, 4), lambda i, j: double(i, j) + 1.0, name="result")
    s = te.create_schedule(result.op)
    for stage in (copy, double):
        s[stage].compute_at(s[result], result.op.axis[0])
    s[double].pipeline(2)
    with pytest.raises(LoweringError, match="double is pipelined, but is filled from what the same iteration"):
        te.lower(s, [a, result])


def test_pipelines_need_two_stages_and_no_output() -> None:
    a = te.placeholder((4,), name="a")
    copy = te.compute((4,), lambda i: a(i) + 1.0, name="copy")
    result = te.compute((4,), lambda i: copy(i) + 1.0, name="result")
    s = te.create_schedule(result.op)
    with pytest.raises(ScheduleError, match="at least 2"):
        s[copy].pipeline(1)
    with pytest.raises(ScheduleError, match="of an output"):
        s[result].pipeline(2)


@pytest.mark.parametrize("tail", ["guard", "predicate"])
def test_a_predicated_tail_is_not_partitioned(tail: str) -> None:
    a = te.placeholder((10,), name="a")
    b = te.compute((10,), lambda i: a(i) + 1.0, name="b")
    s = te.create_schedule(b.op)
    block, thread = s[b].split(b.op.axis[0], factor=4, tail=tail)
    s[b].bind(block, te.thread_axis("blockIdx.x"))
    s[b].bind(thread, te.thread_axis("threadIdx.x"))
    func = te.lower(s, [a, b])["main"]
    branches = collect(func.body, IfThenElse)
    assert len([branch for branch in branches if branch.else_case is not None]) == (tail == "guard")
    data, result = np.arange(10, dtype="float32"), np.zeros(10, "float32")
    BlockInterpreter({"main": func}).call(func, (data, result))
    np.testing.assert_array_equal(result, data + 1)

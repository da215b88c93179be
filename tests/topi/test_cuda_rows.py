"""Reductions, softmax and normalisations on GPUs: rows distributed over threads, in one kernel."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import te, topi
from relayc.backend.target import Target
from relayc.topi.cuda import reduction
from relayc.topi.cuda.cost import Gpu
from relayc.topi.cuda.rows import MAX_REGISTERS, RowMap, plan_rows

RNG = np.random.default_rng(12)


def placeholder(*shape, dtype="float32", name="x"):
    return te.placeholder(shape, dtype, name)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 8), (3, 5), (6, 24), (7, 33), (2, 3, 10)])
@pytest.mark.parametrize("operator", ["sum", "mean", "variance", "log_sum_exp", "max", "argmax"])
def test_reductions_over_each_axis(run_cuda, shape, operator):
    x, a = placeholder(*shape), RNG.standard_normal(shape).astype(np.float32)
    for axis in range(len(shape)):
        (result,) = run_cuda([x], [getattr(topi, operator)(topi.nn.relu(x), axis)], a)
        reference = {"variance": np.var, "log_sum_exp": np.logaddexp.reduce}.get(operator) or getattr(np, operator)
        expected = reference(np.maximum(a, 0), axis=axis)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 2), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions_over_several_axes(run_cuda, axes, keepdims):
    x, a = placeholder(3, 6, 5, dtype="int32"), RNG.integers(-9, 9, (3, 6, 5)).astype(np.int32)
    (result,) = run_cuda([x], [topi.sum(x, axes, keepdims)], a)
    np.testing.assert_array_equal(result, a.sum(axes, keepdims=keepdims))


@pytest.mark.parametrize("operator", ["sum", "argmin"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 300), 1), ((301, 2), 0)])
def test_few_long_reductions_are_split_over_blocks(run_cuda, lower_cuda, monkeypatch, operator, shape, axis):
    monkeypatch.setattr(reduction, "_MIN_STEPS", 1)
    x, a = placeholder(*shape), RNG.random(shape, dtype=np.float32)
    out = getattr(topi, operator)(x, axis)
    assert len(set(re.findall(r"blockIdx.x(?:_\d)? in thread", str(lower_cuda([x], [out]))))) == 2
    (result,) = run_cuda([x], [out], a)
    np.testing.assert_allclose(result, getattr(np, operator)(a, axis), rtol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((6, 24), 1), ((3, 5), 1), ((4, 1), 1), ((2, 70), 1), ((3, 7, 5), 1)])
@pytest.mark.parametrize("operator", ["softmax", "log_softmax"])
def test_softmax_is_one_kernel(run_cuda, lower_cuda, shape, axis, operator):
    x, a = placeholder(*shape), RNG.standard_normal(shape).astype(np.float32)
    out = topi.multiply(getattr(topi.nn, operator)(topi.add(x, x), axis), x)
    assert str(lower_cuda([x], [out])).count("allocate") == str(lower_cuda([x], [out])).count('scope="local"')
    (result,) = run_cuda([x], [out], a)
    expected = softmax(a + a, axis)
    expected = expected if operator == "softmax" else np.log(expected)
    np.testing.assert_allclose(result, expected * a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("columns", [12, 35])
def test_layer_norm_of_a_sum_reads_each_element_once(run_cuda, lower_cuda, columns):
    x, y = placeholder(5, columns), placeholder(5, columns, name="y")
    gamma, beta = placeholder(columns, name="gamma"), placeholder(columns, name="beta")
    out = topi.nn.relu(topi.nn.layer_norm(topi.add(x, y), gamma, beta, 1, 1e-5))
    text = str(lower_cuda([x, y, gamma, beta], [out]))
    assert text.split("else:")[0].count("y[") <= 2 * max(1, columns // 32 + 1)
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in ((5, columns), (5, columns), columns, columns)]
    (result,) = run_cuda([x, y, gamma, beta], [out], *arrays)
    t = arrays[0] + arrays[1]
    expected = (t - t.mean(1, keepdims=True)) / np.sqrt(t.var(1, keepdims=True) + 1e-5) * arrays[2] + arrays[3]
    np.testing.assert_allclose(result, np.maximum(expected, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("groups", [2, None])
def test_norms_of_images(run_cuda, axis, groups):
    """Instance (None) and group norm, channels first and last."""
    shape = (2, 6, 3, 5) if axis == 1 else (2, 3, 5, 6)
    x, gamma, beta = placeholder(*shape), placeholder(6, name="gamma"), placeholder(6, name="beta")
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in (shape, 6, 6)]
    if groups is None:
        out = topi.nn.instance_norm(x, gamma, beta, axis, 1e-5)
    else:
        out = topi.nn.group_norm(x, gamma, beta, groups, axis, 1e-5)
    (result,) = run_cuda([x, gamma, beta], [out], *arrays)
    a = np.moveaxis(arrays[0], axis, 1).reshape(2, groups or 6, -1)
    a = (a - a.mean(2, keepdims=True)) / np.sqrt(a.var(2, keepdims=True) + 1e-5)
    a = a.reshape(2, 6, 3, 5) * arrays[1][:, None, None] + arrays[2][:, None, None]
    np.testing.assert_allclose(result, np.moveaxis(a, 1, axis), rtol=1e-4, atol=1e-4)


def test_half_precision_has_float32_statistics(run_cuda):
    x, gamma = placeholder(3, 40, dtype="float16"), placeholder(40, dtype="float16", name="gamma")
    a, g = (RNG.standard_normal((3, 40)) * 100).astype(np.float16), np.ones(40, np.float16)
    (result,) = run_cuda([x, gamma], [topi.nn.rms_norm(x, gamma, 1, 1e-6)], a, g)
    wide = a.astype(np.float32)
    np.testing.assert_allclose(result, wide / np.sqrt((wide**2).mean(1, keepdims=True)), rtol=2e-3)


def test_a_dynamic_number_of_columns(run_cuda):
    n = te.size_var("n")
    x = te.placeholder((3, n), "float32", "x")
    a = RNG.standard_normal((3, 37)).astype(np.float32)
    (result,) = run_cuda([x], [topi.nn.softmax(x, 1)], a)
    np.testing.assert_allclose(result, softmax(a, 1), rtol=1e-5)
    (total,) = run_cuda([x], [topi.sum(x, 1)], a)
    np.testing.assert_allclose(total, a.sum(1), rtol=1e-4)


def test_rows_and_columns_of_a_reduction():
    x = placeholder(4, 6, 5)
    assert RowMap.of(topi.sum(x, 2).op, x) == RowMap((4, 6, 5), (0, 0, 5))
    assert not RowMap.of(topi.sum(x, 1).op, x).along_memory
    k = te.reduce_axis((0, 2), name="k")
    windows = te.compute((4, 6, 4), lambda i, j, w: te.sum(x[i, j, w + k], axis=k), name="windows")
    assert RowMap.of(windows.op, x) is None
    groups = te.compute((4, 3, 5), lambda i, j, w: te.sum(x[i, j * 2 + k, w], axis=k), name="groups")
    rows = RowMap.of(groups.op, x)
    assert rows is not None and rows.row_shape == [4, 3, 5] and rows.columns == 2
    assert rows.join([1, 2, 3], 1) == [1, 5, 3]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("rows", [1, 100, 12288])
@pytest.mark.parametrize("columns", [1, 7, 64, 197, 768, 1024, 4096, 50257])
def test_plans_cover_the_columns_within_the_limits(arch, rows, columns):
    gpu = Gpu.of(Target(f"cuda -arch={arch}"))
    for along_memory in (True, False):
        for hold in (True, False):
            plan = plan_rows(gpu, rows, columns, 4, along_memory=along_memory, hold=hold)
            assert plan.chunks * plan.chunk >= columns > (plan.chunks - 1) * plan.chunk
            assert columns % plan.lanes == 0
            assert plan.rows * plan.threads <= gpu.limits.threads_per_block
            assert plan.rows * plan.threads % gpu.limits.warp == 0 or plan.threads * plan.rows < gpu.limits.warp
            assert not plan.registers or plan.chunks * plan.lanes <= MAX_REGISTERS

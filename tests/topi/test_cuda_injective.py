"""Elementwise and index-mapping groups on GPUs: any size, and as many elements per access as alignment allows."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te, topi
from relayc.topi.cuda.lanes import flat_lanes, is_flat, row_lanes

RNG = np.random.default_rng(11)


def placeholder(*shape, dtype="float32", name="x"):
    return te.placeholder(shape, dtype, name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int8"])
@pytest.mark.parametrize("shape", [(), (1,), (4, 8), (3, 5), (7, 33), (2, 3, 40), (0, 4)])
def test_elementwise_groups_of_any_size(run_cuda, shape, dtype):
    x, y = placeholder(*shape, dtype=dtype), placeholder(*shape, dtype=dtype, name="y")
    out = topi.add(topi.multiply(x, y), x)
    a, b = RNG.integers(0, 5, shape).astype(dtype), RNG.integers(0, 5, shape).astype(dtype)
    (result,) = run_cuda([x, y], [out], a, b)
    np.testing.assert_array_equal(result, a * b + a)


@pytest.mark.parametrize("n", [1, 37, 1030])
def test_dynamic_sizes(run_cuda, n):
    rows = te.size_var("rows")
    x, b = te.placeholder((rows, 3), "float32", "x"), placeholder(3, name="b")
    a, c = RNG.random((n, 3), dtype=np.float32), RNG.random(3, dtype=np.float32)
    (result,) = run_cuda([x, b], [topi.add(x, b)], a, c)
    np.testing.assert_array_equal(result, a + c)


@pytest.mark.parametrize("columns", [1, 5, 6, 8])
def test_index_mappings_with_a_broadcast(run_cuda, columns):
    x, b = placeholder(4, 6, columns), placeholder(columns, name="b")
    out = topi.transpose(topi.reshape(topi.add(x, b), (2, 2, 6, columns)), (1, 0, 2, 3))
    a, c = RNG.random((4, 6, columns), dtype=np.float32), RNG.random(columns, dtype=np.float32)
    (result,) = run_cuda([x, b], [out], a, c)
    np.testing.assert_array_equal(result, (a + c).reshape(2, 2, 6, columns).transpose(1, 0, 2, 3))


def test_borders_and_concatenations(run_cuda):
    x, y = placeholder(3, 8), placeholder(3, 5, name="y")
    a, b = RNG.random((3, 8), dtype=np.float32), RNG.random((3, 5), dtype=np.float32)
    (result,) = run_cuda([x, y], [topi.concatenate([x, topi.nn.relu(y), x], axis=1)], a, b)
    np.testing.assert_array_equal(result, np.concatenate([a, b, a], axis=1))


def test_several_outputs_are_kernels_of_their_own(run_cuda, lower_cuda):
    x = placeholder(6, 10)
    pieces = topi.split(topi.nn.relu(x), [2, 4], axis=0)
    a = RNG.standard_normal((6, 10)).astype(np.float32)
    first, second = run_cuda([x], pieces, a)
    np.testing.assert_array_equal(np.concatenate([first, second]), np.maximum(a, 0))
    assert str(lower_cuda([x], pieces)).count('thread("blockIdx.x"') == 2


def test_the_fallback_schedule_runs_on_threads(run_cuda):
    """Every stage that is not inlined is a kernel: reductions, tuples, hand-written loops."""
    x = placeholder(5, 7)
    k = te.reduce_axis((0, 7), name="k")
    total = te.compute((5,), lambda i: te.sum(x[i, k], axis=k), name="total", tag="nobody_knows_this")
    low, high = te.compute((5,), lambda i: (total[i] - 1.0, total[i] + 1.0), name="pair", tag="nor_this")
    a = RNG.random((5, 7), dtype=np.float32)
    below, above = run_cuda([x], [low, high], a)
    np.testing.assert_allclose(above - below, np.full(5, 2), rtol=1e-5)
    np.testing.assert_allclose(above, a.sum(1) + 1, rtol=1e-5)


def test_lanes_of_a_vector():
    x, half = placeholder(6, 40), placeholder(6, 40, dtype="float16", name="h")
    assert flat_lanes(topi.nn.relu(x)) == 4
    assert flat_lanes(topi.nn.relu(half)) == 8
    assert flat_lanes(topi.cast(half, "float32")) == 4
    assert flat_lanes(topi.nn.relu(placeholder(3, 6))) == 2
    assert flat_lanes(topi.nn.relu(placeholder(3, 5))) == 1


def test_lanes_follow_the_access_patterns_of_inputs():
    x, bias = placeholder(8, 6, 40), placeholder(40, name="b")
    assert row_lanes(topi.add(x, bias)) == 4
    assert row_lanes(topi.transpose(x, (1, 0, 2))) == 4
    assert row_lanes(topi.transpose(x, (0, 2, 1))) == 1
    assert row_lanes(topi.reshape(x, (8 * 60, 4))) == 4
    assert row_lanes(topi.reshape(placeholder(9, 5), (5, 9))) == 1
    assert row_lanes(topi.strided_slice(x, (0, 0, 2), (1, 1, 1), (8, 6, 36))) == 2
    assert row_lanes(topi.concatenate([x, x], axis=2)) == 1
    assert is_flat(topi.nn.relu(x))
    assert not is_flat(topi.add(x, bias))

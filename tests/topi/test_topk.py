"""Top-k on CPUs: few are ranked by counting, more are kept in a heap, many are sorted.

Equal elements are ordered by position, NaN is the greatest value.
"""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te, topi
from relayc.backend import build, nd
from relayc.backend.runtime import device

RNG = np.random.default_rng(3)


def rows(kind, shape, dtype):
    if kind == "equal":
        return RNG.integers(0, 9, shape).astype(dtype)
    x = (RNG.standard_normal(shape) * 50).astype(dtype)
    if kind == "ordered":
        return np.sort(x, axis=-1)
    if kind == "nan":
        x[..., ::7] = np.nan
    if kind == "extremes":  # enough equal elements for ties at every threshold
        x[...] = RNG.choice(np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1.0], dtype), shape)
    return x


def first(x, k, axis, largest):
    order = np.argsort(x, axis=axis, kind="stable")
    if largest:  # in reversed order the last of equals comes first: reverse the sorted one, too
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    order = np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order


def run(x, k, axis, largest, dynamic_size=False, target="llvm"):
    shape = [te.size_var("n") if dynamic_size and a == axis % x.ndim else d for a, d in enumerate(x.shape)]
    data = te.placeholder(shape, dtype=str(x.dtype), name="x")
    values, places = topi.topk(data, k, axis % x.ndim, largest)
    s = te.create_schedule([values.op, places.op])
    f = build(s, [data, values, places], target)
    expected = first(x, k, axis, largest)
    arguments = [nd.array(v, device("cpu")) for v in (x, *(np.zeros_like(e) for e in expected))]
    f(*arguments)
    for got, want in zip(arguments[1:], expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("kind", ["random", "equal", "ordered", "nan", "extremes"])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("n", "k"),
    [(200, 1), (200, 3), (200, 7), (77, 19), (600, 128), (60, 16), (16, 4), (40, 30), (5, 5), (4000, 512), (2500, 513)],
)
def test_topk_matches_a_stable_sort(kind, largest, n, k):
    run(rows(kind, (3, n), "float32"), k, -1, largest)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float64"])
def test_any_type(dtype):
    run(rows("equal", (2, 100), dtype), 5, -1, True)
    run(rows("equal", (2, 100), dtype), 5, -1, False)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "int8"])
@pytest.mark.parametrize("largest", [False, True])
def test_limits_of_integers(dtype, largest):
    of = np.iinfo(dtype)
    run(RNG.choice(np.array([of.min, of.min + 1, 0, of.max - 1, of.max], dtype), (3, 300)), 20, -1, largest)


@pytest.mark.parametrize("kind", ["random", "ordered", "extremes"])
def test_narrower_vectors(kind):
    run(rows(kind, (3, 500), "float32"), 40, -1, True, target="llvm -mattr=-avx512f")


@pytest.mark.parametrize("n", [1, 17, 300])
def test_short_rows_are_sorted_by_ranks(n):
    x = rows("equal", (4, n), "float32")
    data = te.placeholder(x.shape, name="x")
    order = topi.argsort(data, 1)
    assert "while" not in str(te.lower(te.create_schedule(order.op), [data, order]))
    out = nd.array(np.zeros(x.shape, np.int32), device("cpu"))
    build(te.create_schedule(order.op), [data, order], "llvm")(nd.array(x, device("cpu")), out)
    np.testing.assert_array_equal(out.numpy(), np.argsort(x, axis=1, kind="stable"))


@pytest.mark.parametrize("largest", [False, True])
def test_any_axis_and_dynamic_sizes(largest):
    run(rows("random", (3, 90, 2), "float32"), 6, 1, largest)
    run(rows("random", (2, 3, 90), "float32"), 6, 2, largest, dynamic_size=True)


def test_many_rows_run_in_parallel():
    run(rows("random", (80, 1000), "float32"), 10, -1, True)

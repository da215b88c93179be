"""Hand-written loops on GPUs: sorting, cumulative sums, scattered updates, and loops that are only marked
independent."""

from __future__ import annotations

import re
from contextlib import nullcontext

import numpy as np
import pytest

from relayc import te, topi
from relayc.te.tir import ir_builder
from relayc.topi.cuda import scan, sort

RNG = np.random.default_rng(14)


def few(*shape: int) -> np.ndarray:
    """Small whole numbers, many of them equal."""
    return RNG.integers(0, 6, shape).astype(np.float32)


def launches(module: object) -> int:
    return len(set(re.findall(r'for (blockIdx\.x\w*) in thread\("blockIdx', str(module))))


@pytest.mark.parametrize("chunk", [1024, 4])
@pytest.mark.parametrize(("shape", "axis"), [((3, 10), 1), ((5, 4), 0), ((17,), 0), ((2, 9, 2), 1)])
def test_sorting_is_stable(run_cuda, monkeypatch, chunk, shape, axis):
    monkeypatch.setattr(sort, "_CHUNK", chunk)
    x, a = te.placeholder(shape, "float32", "x"), few(*shape)
    (order,) = run_cuda([x], [topi.argsort(x, axis)], a)
    np.testing.assert_array_equal(order, np.argsort(a, axis, kind="stable"))
    values, places = run_cuda([x], list(topi.topk(x, 2, axis)), a)
    expected = np.argsort(-a, axis, kind="stable").take([0, 1], axis)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(a, expected, axis))


def test_long_rows_are_merged_in_passes(lower_cuda):
    x = te.placeholder((5000,), "float32", "x")
    assert launches(lower_cuda([x], [topi.argsort(x, 0)])) == 1 + 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 40), 1), ((3, 4), 0), ((50,), 0), ((2, 35, 2), 1), ((300, 3), 1)])
def test_cumulative_sums(run_cuda, shape, axis, exclusive, reverse):
    x, a = te.placeholder(shape, "float32", "x"), few(*shape)
    (result,) = run_cuda([x], [topi.cumsum(x, axis, exclusive=exclusive, reverse=reverse)], a)
    total = np.flip(np.flip(a, axis).cumsum(axis), axis) if reverse else a.cumsum(axis)
    np.testing.assert_array_equal(result, total - (a if exclusive else 0))


@pytest.mark.parametrize("max_comparisons", [0, 1 << 30])
@pytest.mark.parametrize("reduction", ["update", "add", "max"])
def test_scattered_updates_are_ordered(run_cuda, monkeypatch, max_comparisons, reduction):
    """By lines of updates, and by elements that search for theirs."""
    monkeypatch.setattr(scan, "_MAX_COMPARISONS", max_comparisons)
    x, updates = te.placeholder((6, 4), "float32", "x"), te.placeholder((9, 3), "float32", "updates")
    indices = te.placeholder((9, 3), "int64", "indices")
    a, u, at = few(6, 4), few(9, 3), RNG.integers(-6, 6, (9, 3))
    (result,) = run_cuda([x, indices, updates], [topi.scatter_elements(x, indices, updates, 0, reduction)], a, at, u)
    expected = a.copy()
    combine = {"update": lambda old, new: new, "add": np.add, "max": np.maximum}[reduction]
    for (i, j), place in np.ndenumerate(at):
        expected[place, j] = combine(expected[place, j], u[i, j])
    np.testing.assert_array_equal(result, expected)


def test_independent_loops_in_serial_ones_run_in_one_block(run_cuda, lower_cuda):
    """State in device memory, steps in order, a barrier after each."""
    x = te.placeholder((5, 70), "float32", "x")

    def fill(ins, outs):
        ib = ir_builder.create()
        source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        state = ib.allocate("float32", (2, 70), "state", scope="global")
        with ib.for_range(0, 70, "j", independent=True) as j:
            state[0, j] = te.const(0.0)
        with ib.for_range(0, 5, "step") as step, ib.for_range(0, 70, "j", independent=True) as j:
            state[1 - step % 2, j] = state[step % 2, 69 - j] + source[step, j]
        with ib.for_range(0, 70, "j", independent=True) as j:
            out[j] = state[1, j]
        return ib.get()

    total = te.extern((70,), [x], fill, name="total", dtype="float32", tag="default")
    assert launches(lower_cuda([x], [total])) == 3
    a, state = few(5, 70), np.zeros(70, np.float32)
    (result,) = run_cuda([x], [total], a)
    for row in a:
        state = state[::-1] + row
    np.testing.assert_array_equal(result, state)


@pytest.mark.parametrize("steps", [None, 2])
def test_scratch_memory_of_an_iteration_is_privatised_per_thread(run_cuda, steps):
    """In a grid of its own, and inside ordered steps."""
    x, a = te.placeholder((40, 6), "float32", "x"), few(40, 6)

    def fill(ins, outs):
        ib = ir_builder.create()
        source, out = ib.buffer(ins[0]), ib.buffer(outs[0])
        ordered = nullcontext() if steps is None else ib.for_range(0, steps, "step")
        with ordered, ib.for_range(0, 40, "row", independent=True) as row:
            reversed_row = ib.allocate("float32", 6, "reversed_row", scope="global")
            with ib.for_range(0, 6, "k") as k:
                reversed_row[5 - k] = source[row, k]
            with ib.for_range(0, 6, "k") as k:
                out[row, k] = reversed_row[k] + source[row, k]
        return ib.get()

    out = te.extern((40, 6), [x], fill, name="out", dtype="float32", tag="default")
    (result,) = run_cuda([x], [out], a)
    np.testing.assert_array_equal(result, a[:, ::-1] + a)


@pytest.mark.parametrize(("block", "stride", "dilation", "pad"), [((3, 2), 2, 1, 1), ((2, 2), 1, 2, 0)])
def test_overlapping_windows_are_added_pixel_by_pixel(run_cuda, block, stride, dilation, pad):
    image = (7, 9)
    counts = [(n + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(image, block, strict=True)]
    columns = few(2, 3, *block, *counts)
    windows = columns.reshape(2, -1, counts[0] * counts[1])
    x = te.placeholder(windows.shape, "float32", "x")
    result = topi.nn.col2im(x, image, block, (stride,) * 2, (dilation,) * 2, (pad,) * 4)
    (found,) = run_cuda([x], [result], windows)
    expected = np.zeros((2, 3, *[n + 2 * pad for n in image]), np.float32)
    for i, j in np.ndindex(*block):
        rows, cols = (slice(k * dilation, k * dilation + (n - 1) * stride + 1, stride)
                      for k, n in zip((i, j), counts, strict=True))  # fmt: skip
        expected[:, :, rows, cols] += columns[:, :, i, j]
    np.testing.assert_array_equal(found, expected[:, :, pad : pad + image[0], pad : pad + image[1]])

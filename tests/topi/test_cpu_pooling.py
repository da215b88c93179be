"""Pooling of images on CPUs, against numpy: borders, tails, batches; no copy of the input."""

from __future__ import annotations

import numpy as np
import pytest

import backend
import te
import topi
from backend.target import Target
from te.ir import post_order
from te.tir import Allocate
from topi.registry import schedule_for

RNG = np.random.default_rng(13)
TARGET = Target("llvm")

CASES = [
    ((1, 112, 112, 64), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False),
    ((2, 13, 15, 20), (3, 2), (2, 1), (1, 1), (1, 0, 0, 1), False),
    ((1, 8, 8, 9), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False),
    ((3, 14, 14, 24), (3, 3), (2, 2), (1, 1), (0, 0, 0, 0), True),
    ((1, 30, 31, 16), (7, 7), (1, 2), (1, 1), (3, 3, 3, 3), False),
    ((1, 20, 20, 8), (3, 3), (1, 1), (2, 2), (2, 2, 2, 2), False),
]


def windows(a, kernel, strides, dilation, padding, out_shape, value):
    """What each window of the outputs covers: (taps, N, H, W, C)."""
    grow = [(0, 0), (padding[0], padding[2] + kernel[0]), (padding[1], padding[3] + kernel[1]), (0, 0)]
    padded = np.pad(a, grow, constant_values=value)
    taps = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = padded[:, i * dilation[0] :: strides[0], j * dilation[1] :: strides[1]]
            taps.append(part[:, : out_shape[1], : out_shape[2]])
    return np.stack(taps)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_pool(case, kind, channels):
    shape, kernel, strides, dilation, padding, ceil_mode = case
    a = RNG.standard_normal(shape).astype("float32")
    stored = np.ascontiguousarray(np.moveaxis(a, 3, channels))
    x = te.placeholder(stored.shape, "float32", "x")
    arguments = (x, (1, 2) if channels == 3 else (2, 3), kernel, strides, dilation, padding, ceil_mode)
    out = topi.nn.max_pool(*arguments) if kind == "max" else topi.nn.avg_pool(*arguments, False)
    module = te.lower(schedule_for([out], TARGET), [x, out])
    result = backend.nd.empty(out.shape, "float32")
    backend.build(module, target=TARGET)(backend.nd.array(stored), result)
    got = np.moveaxis(result.numpy(), channels, 3)
    covered = windows(a, kernel, strides, dilation, padding, got.shape, np.nan)
    expected = np.nanmax(covered, 0) if kind == "max" else np.nanmean(covered, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert {n.buffer.scope for n in post_order(module["main"].body) if isinstance(n, Allocate)} == {"local"}


OPEN_CASES = [
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False),
    ((2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False),
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), False),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2), False),
    ((3, 3), (2, 2), (1, 1), (0, 0, 0, 0), True),
    ((3, 3), (1, 1), (1, 2), (1, 2, 1, 2), False),
]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("case", OPEN_CASES, ids=str)
def test_pool_of_images_of_any_sides(case, kind, channels):
    kernel, strides, dilation, padding, ceil_mode = case
    height, width = te.size_var("h"), te.size_var("w")
    shape = (1, height, width, 12) if channels == 3 else (2, 3, height, width)
    x = te.placeholder(shape, "float32", "x")
    arguments = (x, (1, 2) if channels == 3 else (2, 3), kernel, strides, dilation, padding, ceil_mode)
    out = topi.nn.max_pool(*arguments) if kind == "max" else topi.nn.avg_pool(*arguments, False)
    module = backend.build(te.lower(schedule_for([out], TARGET), [x, out]), target=TARGET)
    for side, other in ((7, 9), (9, 17), (40, 24), (6, 41), (5, 70), (8, 83)):
        a = RNG.standard_normal([{height: side, width: other}.get(d, d) for d in shape]).astype("float32")
        moved = np.moveaxis(a, channels, 3)
        spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
        room = [n + padding[k] + padding[k + 2] - spans[k] for k, n in enumerate((side, other))]
        counts = [(-(-r // s) if ceil_mode else r // s) + 1 for r, s in zip(room, strides, strict=True)]
        covered = windows(moved, kernel, strides, dilation, padding, (moved.shape[0], *counts, moved.shape[3]), np.nan)
        expected = np.moveaxis(np.nanmax(covered, 0) if kind == "max" else np.nanmean(covered, 0), 3, channels)
        result = backend.nd.empty(expected.shape, "float32")
        module(backend.nd.array(a), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)

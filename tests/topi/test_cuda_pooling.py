"""Windows on GPUs: pooling in both layouts, with borders, and local response normalisation."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import te, topi

RNG = np.random.default_rng(13)


def windows(x: np.ndarray, kernel: int, stride: int, pad: int, value: float) -> np.ndarray:
    """The taps of each window along axes 2 and 3, last."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=value)
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    return view.reshape(*view.shape[:4], -1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("channels", "size", "pad"), [(4, 7, 1), (3, 8, 0), (8, 5, 1)])
def test_pooling(run_cuda, channels_last, channels, size, pad):
    a = RNG.standard_normal((2, channels, size, size)).astype(np.float32)
    array = np.ascontiguousarray(np.moveaxis(a, 1, 3)) if channels_last else a
    axes = (1, 2) if channels_last else (2, 3)
    x = te.placeholder(array.shape, "float32", "x")
    covers = topi.nn.Windows(axes, (3, 3), (2, 2), (1, 1), (pad,) * 4)
    (largest,) = run_cuda([x], [topi.nn.relu(topi.nn.max_pool(x, covers))], array)
    (mean,) = run_cuda([x], [topi.nn.avg_pool(x, covers, count_include_pad=True)], array)
    expected_max = np.maximum(windows(a, 3, 2, pad, -np.inf).max(-1), 0)
    expected_mean = windows(a, 3, 2, pad, 0).mean(-1)
    if channels_last:
        expected_max, expected_mean = np.moveaxis(expected_max, 1, 3), np.moveaxis(expected_mean, 1, 3)
    np.testing.assert_array_equal(largest, expected_max)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("output", [(1, 1), (2, 3)])
def test_adaptive_pooling(run_cuda, mode, output):
    a = RNG.standard_normal((2, 3, 5, 6)).astype(np.float32)
    x = te.placeholder(a.shape, "float32", "x")
    (result,) = run_cuda([x], [topi.nn.adaptive_pool(x, (2, 3), output, mode)], a)
    reduce = np.mean if mode == "avg" else np.max
    for i in range(output[0]):
        for j in range(output[1]):
            rows = slice(i * 5 // output[0], -(-(i + 1) * 5 // output[0]))
            columns = slice(j * 6 // output[1], -(-(j + 1) * 6 // output[1]))
            np.testing.assert_allclose(result[:, :, i, j], reduce(a[:, :, rows, columns], (2, 3)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [1, 3])
def test_local_response_normalisation(run_cuda, axis):
    a = RNG.standard_normal((2, 4, 3, 8)).astype(np.float32)
    x = te.placeholder(a.shape, "float32", "x")
    (result,) = run_cuda([x], [topi.nn.relu(topi.nn.lrn(x, 3, axis, 0.1, 0.75, 1.0))], a)
    squares = np.moveaxis(a**2, axis, 0)
    total = sum(np.pad(squares, [(1, 1), *[(0, 0)] * 3])[k : k + a.shape[axis]] for k in range(3))
    expected = a / (1 + 0.1 / 3 * np.moveaxis(total, 0, axis)) ** 0.75
    np.testing.assert_allclose(result, np.maximum(expected, 0), rtol=1e-4, atol=1e-6)

"""TrimKernels: taps that only read padding are dropped, with equal results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc.relay import Call, Expr, Function, const, var
from relayc.relay.op import nn
from relayc.relay.transform import TrimKernels


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


def trimmed(transformed, function: Function) -> tuple[Call, tuple[int, ...]]:
    """The remaining convolution, and the shape of its weights."""
    body = transformed(function, TrimKernels()).body
    return body, body.args[1].shape


def test_a_rate_beyond_the_image_leaves_the_tap_in_the_middle(transformed):
    x = var("x", (1, 4, 5, 5))
    y, shape = trimmed(transformed, Function((x,), nn.conv2d(x, weights(6, 4, 3, 3), padding=6, dilation=6)))
    assert shape == (6, 4, 1, 1)
    assert y.op.padding == (0, 0, 0, 0) and y.op.dilation == (1, 1)


def test_axes_are_trimmed_independently(transformed):
    x = var("x", (1, 4, 9, 1))
    y, shape = trimmed(transformed, Function((x,), nn.conv2d(x, weights(4, 1, 3, 3), padding=1, groups=4)))
    assert shape == (4, 1, 3, 1)
    assert y.op.padding == (1, 0, 1, 0)


def test_layouts_with_channels_last(transformed):
    x = var("x", (1, 3, 3, 4))
    y = nn.conv2d(x, weights(3, 3, 4, 2), padding=5, dilation=5, data_layout="NHWC", kernel_layout="HWIO")
    assert trimmed(transformed, Function((x,), y))[1] == (1, 1, 4, 2)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_not_finite_stay(transformed, value: float):
    x, w = var("x", (1, 1, 1, 1)), np.ones((1, 1, 3, 3), "float32")
    w[0, 0, 0, 0] = value
    before = Function((x,), nn.conv2d(x, const(w), padding=1))
    assert TrimKernels().rewrite(before.body) is before.body


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 9), taps=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 7),
    begin=st.integers(0, 9), end=st.integers(0, 9),
)  # fmt: skip
def test_any_convolution_keeps_its_results(size, taps, stride, dilation, begin, end):
    if size + begin + end < (taps - 1) * dilation + 1:
        return
    x, w = var("x", (1, 1, size)), weights(1, 1, taps)
    before = nn.conv1d(x, w, strides=stride, padding=(begin, end), dilation=dilation)
    after = TrimKernels().rewrite(before)
    assert isinstance(after, Call) and after.ty is before.ty
    data = np.random.default_rng(size).standard_normal((1, 1, size)).astype("float32")
    expected = before.op.reference(data, w.data)
    np.testing.assert_allclose(after.op.reference(data, after.args[1].data), expected, rtol=1e-5, atol=1e-6)

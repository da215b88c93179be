"""ConvolveTransposed: equal results by a convolution and an interleaving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc.relay import Function, const, op, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.transform import ConvolveTransposed
from relayc.te.tir import SizeVar


def weights(*shape: int):
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32"))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "grown", "groups"),
    [((4, 4), (2, 2), 1, 0, 1), ((2, 2), (2, 2), 0, 0, 1), ((3, 3), (2, 2), 1, 1, 2), ((3, 2), (1, 3), 0, 0, 1),
     ((5, 3), (3, 2), 2, 1, 3), ((1, 1), (2, 2), 0, 1, 1)],
)  # fmt: skip
def test_two_dimensions(transformed, operators, kernel, stride, padding, grown, groups):
    x = var("x", (2, 5, 4, 6))
    w = weights(6, 4, *kernel)
    y = nn.conv2d_transpose(
        x, w, strides=stride, padding=padding, output_padding=grown, groups=groups, data_layout="NHWC"
    )
    found = operators(transformed(Function((x,), nn.relu(y)), ConvolveTransposed()))
    assert found["nn.conv2d"] == 1 and found["nn.conv2d_transpose"] == 0


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "grown", "added"),
    [((3, 3), (2, 2), 1, 1, True), ((3, 3), (2, 2), 0, 0, True), ((5, 4), (3, 2), 2, 0, True),
     ((4, 4), (2, 2), 1, 0, True), ((4, 3), (3, 1), 1, 2, True), ((2, 2), (2, 2), 0, 0, False),
     ((2, 2), (2, 2), 1, 0, True),
     ((5, 5), (2, 2), 1, 0, False), ((6, 6), (2, 2), 2, 0, False), ((3, 3), (1, 1), 2, 0, False)],
)  # fmt: skip
def test_overlapping_products_are_added_up_if_phases_are_slower(
    transformed, operators, kernel, stride, padding, grown, added
):
    x = var("x", (2, 5, 4, 24))
    y = nn.conv2d_transpose(
        x, weights(24, 4, *kernel), strides=stride, padding=padding, output_padding=(grown, 0), data_layout="NHWC"
    )
    found = operators(transformed(Function((x,), y), ConvolveTransposed()))
    assert found["nn.conv2d"] == 1 and found["nn.overlap_add"] == added


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize(("stride", "dilation"), [((2, 2), (2, 2)), ((2, 3), (3, 1)), ((4, 1), (2, 2))])
def test_dilated_kernels(transformed, operators, stride, dilation, groups):
    x = var("x", (2, 5, 4, 6))
    y = nn.conv2d_transpose(
        x, weights(6, 6 // groups, 3, 2), strides=stride, dilation=dilation, padding=1, groups=groups,
        data_layout="NHWC",
    )  # fmt: skip
    found = operators(transformed(Function((x,), y), ConvolveTransposed()))
    assert found["nn.overlap_add"] == 1 and found["nn.conv2d"] == (groups < 6)  # depthwise: products of elements


def test_dilated_kernels_by_one_are_dilated_convolutions(transformed, operators):
    x = var("x", (1, 6, 5, 4))
    y = nn.conv2d_transpose(
        x, weights(4, 3, 3, 2), dilation=(2, 3), padding=(1, 2, 0, 3), groups=2, data_layout="NHWC"
    )
    after = transformed(Function((x,), y), ConvolveTransposed())
    assert dict(operators(after)) == {"nn.conv2d": 1}
    assert after.body.op.dilation == (2, 3)


@pytest.mark.parametrize(
    ("stride", "groups", "channels", "expected"),
    [(2, 1, 3, {"nn.conv2d": 1, "nn.overlap_add": 1}), (1, 2, 3, {"nn.conv2d": 1, "reverse": 1}),
     (3, 2, 3, {"nn.conv2d": 1, "nn.overlap_add": 1}), (2, 4, 1, {"multiply": 1, "nn.overlap_add": 1})],
)  # fmt: skip
def test_computed_weights(transformed, operators, stride, groups, channels, expected):
    x, w = var("x", (1, 4, 4, 4)), var("w", (4, channels, 3, 3))
    y = nn.conv2d_transpose(x, op.negative(w), strides=stride, groups=groups, padding=1, data_layout="NHWC")
    found = operators(transformed(Function((x, w), y), ConvolveTransposed()))
    assert {name: found[name] for name in expected} == expected and found["nn.conv2d_transpose"] == 0


def test_dynamic_shapes(transformed, operators):
    x = var("x", (SizeVar("n"), SizeVar("h"), SizeVar("w"), 6))
    y = nn.conv2d_transpose(x, weights(6, 4, 4, 3), strides=(2, 3), padding=1, data_layout="NHWC")
    found = operators(transformed(Function((x,), y), ConvolveTransposed()))
    assert found["nn.conv2d"] == 1 and found["nn.conv2d_transpose"] == 0


def test_stride_one_needs_no_interleaving(transformed, operators):
    x = var("x", (1, 5, 5, 3))
    y = nn.conv2d_transpose(x, weights(3, 2, 3, 3), padding=1, data_layout="NHWC")
    found = operators(transformed(Function((x,), y), ConvolveTransposed()))
    assert dict(found) == {"nn.conv2d": 1}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_one_dimension_of_any_parameters(data: st.DataObject):
    size, taps, stride = (data.draw(st.integers(1, m), label=name) for m, name in ((7, "size"), (6, "taps"), (4, "s")))
    dilation = data.draw(st.integers(1, 3), label="dilation")
    span = (taps - 1) * dilation + 1
    grown = data.draw(st.integers(0, stride - 1), label="output padding")
    before, after = (data.draw(st.integers(0, span), label=name) for name in ("before", "after"))
    if (size - 1) * stride + span + grown - before - after < 1:
        return
    x = var("x", (1, size if data.draw(st.booleans(), label="size known") else SizeVar("n"), 2))
    w = weights(2, 3, taps)
    y = nn.conv1d_transpose(
        x, w, strides=stride, padding=(before, after), dilation=dilation, output_padding=grown, data_layout="NWC"
    )
    function = Function((x,), y)
    after_pass = ConvolveTransposed().transform(function, None)  # type: ignore[arg-type]
    assert after_pass.ty is function.ty
    value = np.random.default_rng(size).standard_normal((1, size, 2)).astype("float32")
    np.testing.assert_allclose(evaluate(after_pass, [value]), evaluate(function, [value]), rtol=1e-4, atol=1e-5)


def test_three_dimensions(transformed, operators):
    x = var("x", (1, 3, 2, 4, 4))
    y = nn.conv3d_transpose(x, weights(4, 2, 3, 2, 3), strides=(2, 2, 1), padding=(1, 0, 1), data_layout="NDHWC")
    found = operators(transformed(Function((x,), y), ConvolveTransposed()))
    assert found["nn.conv3d"] == 1 and found["nn.overlap_add"] == 1


@pytest.mark.parametrize(("taps", "added"), [(4, False), (8, False), (5, True)])
def test_phases_of_one_dimension_are_in_order(transformed, operators, taps, added):
    x = var("x", (2, 9, 6))
    y = nn.conv1d_transpose(x, weights(6, 4, taps), strides=4, padding=1, data_layout="NWC")
    found = operators(transformed(Function((x,), y), ConvolveTransposed()))
    assert found["nn.overlap_add"] == added and found["nn.conv1d"] == 1

"""ConvolveByShiftedGemm: dilated convolutions on small images become sums of shifted matrix products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relayc import te
from relayc.backend.runtime import GraphModule, device
from relayc.backend.target import Target
from relayc.relay import Expr, Function, IRModule, build, const, op, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.op.base import make_call
from relayc.relay.transform import ConvolveByShiftedGemm
from relayc.relay.transform.convolve_by_shifted_gemm import _reaches, _sum

HASWELL = Target("llvm -mcpu=haswell -num-cores=1")
CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def weights(*shape: int) -> Expr:
    return const(np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") / 16)


def dilated(size: tuple[int, int], rate: int, inputs: int = 256, outputs: int = 64) -> Function:
    x = var("x", (1, *size, inputs))
    return Function((x,), nn.conv2d(x, weights(3, 3, inputs, outputs), padding=rate, dilation=rate, **CHANNELS_LAST))


def test_a_large_dilation_becomes_shifted_products(transformed, operators):
    after = transformed(dilated((16, 16), 12), ConvolveByShiftedGemm(HASWELL))
    assert operators(after) == {"nn.conv2d": 9, "strided_slice": 8, "nn.pad": 8, "add": 8}


def test_axes_are_split_independently(transformed, operators):
    after = transformed(dilated((16, 160), 12), ConvolveByShiftedGemm(HASWELL))
    assert operators(after) == {"nn.conv2d": 3, "strided_slice": 2, "nn.pad": 2, "add": 2}


def test_the_depth_of_a_flat_volume(transformed, operators):
    x = var("x", (1, 2, 9, 9, 64))
    layouts = {"data_layout": "NDHWC", "kernel_layout": "DHWIO"}
    y = nn.conv3d(x, weights(5, 1, 1, 64, 64), padding=(2, 0, 0, 2, 0, 0), **layouts)
    after = transformed(Function((x,), y), ConvolveByShiftedGemm(HASWELL))
    assert operators(after) == {"nn.conv3d": 3, "strided_slice": 2, "nn.pad": 2, "add": 2}


def of_any_size(reduction: int, *, padding: int, rate: int) -> Function:
    """A dilated convolution of one of so many rows and columns of images of any size."""
    x = var("x", (te.size_var("b"), te.size_var("h"), te.size_var("w"), 32))
    strides, ends = (reduction, reduction), (1 << 30, 1 << 30)
    part = make_call("strided_slice", (x,), begin=(0, 0), end=ends, strides=strides, axes=(1, 2))
    y = nn.conv2d(part, weights(3, 3, 32, 32), padding=padding, dilation=rate, **CHANNELS_LAST)
    return Function((x,), y)


@pytest.mark.parametrize("padding", [12, 14])
def test_images_of_any_size(transformed, operators, padding: int):
    before = of_any_size(16, padding=padding, rate=12)
    after = transformed(before, ConvolveByShiftedGemm(HASWELL))
    assert operators(after)["nn.conv2d"] == 9
    graph = GraphModule(build(_module(before), HASWELL)["default"](device("cpu", 0)))
    for images, lines, columns in ((1, 1, 1), (2, 12, 13), (1, 13, 12), (1, 20, 24), (3, 25, 11), (1, 40, 3)):
        data = np.random.default_rng(lines).standard_normal((images, 16 * lines, 16 * columns, 32)).astype("float32")
        convolution = before.body
        expected = convolution.op.reference(data[:, ::16, ::16], convolution.args[1].data)
        np.testing.assert_allclose(graph.infer({"x": data})[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("reduction", "padding", "rate"), [(1, 12, 12), (16, 0, 12)], ids=["large", "too small"])
def test_images_of_any_size_stay_that_are_likely_large_or_too_small(reduction: int, padding: int, rate: int):
    before = of_any_size(reduction, padding=padding, rate=rate)
    assert ConvolveByShiftedGemm(HASWELL)(_module(before))["main"] is before


def test_sequences_of_any_length_stay():
    x = var("x", (te.size_var("b"), te.size_var("n"), 256))
    layouts = {"data_layout": "NWC", "kernel_layout": "WIO"}
    before = Function((x,), nn.conv1d(x, weights(3, 256, 256), padding=(256, 0), dilation=128, **layouts))
    assert ConvolveByShiftedGemm(HASWELL)(_module(before))["main"] is before


@pytest.mark.parametrize("size", [(56, 56), (14, 14), (7, 7)])
def test_common_layers_stay(size: tuple[int, int]):
    before = dilated(size, 1)
    assert ConvolveByShiftedGemm(HASWELL)(_module(before))["main"] is before


def test_unsupported_convolutions_stay():
    x, narrow = var("x", (1, 16, 16, 64)), var("x", (1, 16, 16, 64), "float16")
    attrs = {"padding": 12, "dilation": 12, **CHANNELS_LAST}
    endless = np.ones((3, 3, 64, 64), "float32")
    endless[0, 0, 0, 0] = np.inf
    w = var("w", (3, 3, 64, 64))
    kept = [
        Function((x,), nn.conv2d(x, const(endless), **attrs)),
        Function((x, w), nn.conv2d(x, w, **attrs)),
        Function((x,), nn.conv2d(x, weights(3, 3, 64, 64), strides=2, **attrs)),
        Function((x,), nn.conv2d(x, weights(3, 3, 1, 64), groups=64, **attrs)),
        Function((narrow,), nn.conv2d(narrow, const(np.ones((3, 3, 64, 64), "float16")), **attrs)),
    ]
    for before in kept:
        assert ConvolveByShiftedGemm(HASWELL)(_module(before))["main"] is before


@pytest.mark.parametrize(("images", "inputs"), [(1, 4), (0, 4), (1, 0)])
def test_results_of_nothing_but_zeros_stay(images: int, inputs: int):
    x = var("x", (images, 2, 2, inputs))
    before = Function((x,), nn.conv2d(x, weights(1, 2, inputs, 4), padding=(0, 9, 0, -6), **CHANNELS_LAST))
    assert ConvolveByShiftedGemm(HASWELL)(_module(before))["main"] is before


def _module(function: Function) -> IRModule:
    return IRModule({"main": function})


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)), taps=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    rate=st.tuples(st.integers(1, 5), st.integers(1, 5)), padding=st.tuples(*[st.integers(0, 6)] * 4),
)  # fmt: skip
def test_any_convolution_keeps_its_results(size, taps, rate, padding):
    sums = [n + padding[k] + padding[k + 2] for k, n in enumerate(size)]
    if any(s < (t - 1) * d + 1 for s, t, d in zip(sums, taps, rate, strict=True)):
        return
    x = var("x", (2, *size, 3))
    call = nn.conv2d(x, weights(*taps, 3, 2), padding=padding, dilation=rate, **CHANNELS_LAST)
    data = np.random.default_rng(sum(size)).standard_normal(x.tensor_type.static_shape).astype("float32")
    expected = evaluate(Function((x,), call), [data])
    for axes in ((0,), (1,), (0, 1)):
        if all(_reaches(call, k) for k in axes):  # otherwise no tap ever reads the image
            found = evaluate(Function((x,), op.add(_sum(call, axes), const(np.float32(0)))), [data])
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

"""Convolutions of images of dynamic width copy their windows, of many channels, by blocks of pixels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import relay
from relayc.backend.llvm.codegen.pass_selection import PassSelection, select_passes
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.expr import Expr
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op import nn, qnn
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar

RNG = np.random.default_rng(3)
SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2")
SIZES = [(1, 9, 1), (1, 9, 40), (2, 20, 33), (3, 7, 12), (1, 64, 50)]


def quantised(inputs: int, outputs: int, kernel: int, stride: int, dilation: int) -> tuple[relay.Var, Expr]:
    """A convolution of images (b, inputs, h, w) of bytes with a bias, quantised again."""
    x = relay.var("x", (SizeVar("b"), inputs, SizeVar("h"), SizeVar("w")), "uint8")
    scales, zeros = RNG.uniform(0.001, 0.004, outputs).astype(np.float32), np.zeros(outputs, np.int8)
    weight = RNG.integers(-127, 128, (outputs, inputs, kernel, kernel)).astype(np.int8)
    real = nn.conv2d(
        qnn.dequantize(x, 0.02, 113), qnn.dequantize(relay.const(weight), scales, zeros, axis=0),
        strides=(stride, stride), padding=(kernel // 2 * dilation,) * 2, dilation=(dilation, dilation),
    )  # fmt: skip
    bias = relay.const(RNG.normal(size=outputs).astype(np.float32))
    return x, qnn.quantize(nn.relu(nn.bias_add(real, bias, axis=1)), 0.1, 20, out_dtype="uint8")


@pytest.mark.parametrize("target", ["llvm -num-cores=2", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize(("inputs", "outputs", "kernel", "stride", "dilation"), [
    (64, 64, 3, 1, 1), (64, 33, 3, 2, 1), (72, 1, 5, 1, 1), (64, 40, 3, 1, 2), (16, 16, 7, 2, 1), (64, 24, 1, 2, 1),
])  # fmt: skip
def test_quantised_images_of_any_size(inputs, outputs, kernel, stride, dilation, target):
    x, body = quantised(inputs, outputs, kernel, stride, dilation)
    built = relay.build(relay.Function([x], body), target)
    module = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2)
    for batch, height, width in SIZES:
        data = RNG.integers(0, 256, (batch, inputs, height, width)).astype(np.uint8)
        expected = evaluate(relay.Function([x], body), [data]).astype(np.int64)
        off = np.abs(module.infer({"x": data})[0].astype(np.int64) - expected)
        assert off.max() <= 1 and (off > 0).mean() < 0.02


@pytest.mark.parametrize("target", ["llvm -num-cores=2", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize(("inputs", "outputs", "kernel", "stride", "dilation"), [
    (64, 64, 3, 2, 1), (96, 33, 3, 3, 1), (64, 1, 5, 1, 1), (64, 24, 3, 1, 3),
])  # fmt: skip
def test_images_of_any_size(inputs, outputs, kernel, stride, dilation, target):
    x = relay.var("x", (SizeVar("b"), inputs, SizeVar("h"), SizeVar("w")))
    weight = RNG.normal(size=(outputs, inputs, kernel, kernel)).astype(np.float32)
    padding = (kernel // 2 * dilation,) * 2
    conv = nn.conv2d(
        x, relay.const(weight), strides=(stride, stride), padding=padding, dilation=(dilation, dilation)
    )  # fmt: skip
    body = nn.relu(conv)
    built = relay.build(relay.Function([x], body), target)
    module = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2)
    for batch, height, width in SIZES:
        data = RNG.normal(size=(batch, inputs, height, width)).astype(np.float32)
        expected = evaluate(relay.Function([x], body), [data])
        np.testing.assert_allclose(module.infer({"x": data})[0], expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("features", "few"), [("", 4), ("-mattr=-avx512f", 4)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (1, 1), (1, 2)])
def test_few_pixels_are_computed_a_few_at_a_time_by_many_weights(kernel, stride, features, few):
    """One by one would read all weights as often."""
    x = relay.var("x", (SizeVar("b"), 64, SizeVar("h"), SizeVar("w")))
    weight = RNG.normal(size=(96, 64, kernel, kernel)).astype(np.float32)
    body = nn.conv2d(x, relay.const(weight), strides=(stride, stride), padding=(kernel // 2,) * 2)
    function = relay.Function([x], body)
    server = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server {features} -l2-bytes=32768")
    optimized = relay.optimize(IRModule({"main": function}), server)
    texts = [str(lower(node.workload, server).function) for node in make_graph(optimized["main"]).nodes]
    (text,) = [text for text in texts if "conv2d" in text and "p1" in text]
    tile, fewer = [int(least) for least in re.findall(r"if likely\(.* >= (\d+)\):", text)]
    assert tile > few == fewer
    built = relay.build(function, f"llvm {features} -l2-bytes=32768 -num-cores=2")
    module = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2)
    for batch, height, width in [(b, h, w) for b in (1, 2) for h in (1, 3) for w in range(1, 14, 3)]:
        data = RNG.normal(size=(batch, 64, height, width)).astype(np.float32)
        expected = evaluate(function, [data])
        np.testing.assert_allclose(module.infer({"x": data})[0], expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("channels", "width"), [(3, 224), (1, 20), (5, 7)])
def test_padded_lines_of_few_channels_are_copied_by_vectors(channels, width):
    """Element by element they were a loop for LLVM's vectoriser, and the whole kernel took all of its passes."""
    x = relay.var("x", (2, channels, 30, width))
    weight = RNG.normal(size=(32, channels, 3, 3)).astype(np.float32)
    function = relay.Function([x], nn.conv2d(x, relay.const(weight), strides=(2, 2), padding=(1, 1)))
    optimized = relay.optimize(IRModule({"main": function}), SERVER)
    kernels = [lower(node.workload, SERVER).function for node in make_graph(optimized["main"]).nodes]
    (kernel,) = [kernel for kernel in kernels if "pad = " in str(kernel) or " pad: " in str(kernel)]
    assert select_passes([kernel]) is PassSelection.FEW
    built = relay.build(function, "llvm -num-cores=2")
    data = RNG.normal(size=(2, channels, 30, width)).astype(np.float32)
    (result,) = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2).infer({"x": data})
    np.testing.assert_allclose(result, evaluate(function, [data]), rtol=1e-4, atol=1e-4)


def test_no_kernel_has_the_windows_of_a_whole_image():
    x, body = quantised(64, 64, 3, 1, 1)
    optimized = relay.optimize(IRModule({"main": relay.Function([x], body)}), SERVER)
    kernels = [lower(node.workload, SERVER) for node in make_graph(optimized["main"]).nodes]
    assert any("windows" in str(kernel.function) for kernel in kernels)
    assert not any("windows" in str(kernel.function).split(")")[0] for kernel in kernels), "none is a parameter"

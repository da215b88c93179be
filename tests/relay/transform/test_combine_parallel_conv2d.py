"""CombineParallelConv2D: which convolutions are combined, and that slices of their result are read in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay import Call, Expr, Function, IRModule, Tuple, const, op, var
from relayc.relay.analysis import evaluation_order
from relayc.relay.op import nn
from relayc.relay.stored import StoredConstant
from relayc.relay.transform import CombineParallelConv2D
from relayc.te.ir import PassContext
from relayc.te.tir import SizeVar

CACHES = "-num-cores=2 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432"
AVX512 = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512 {CACHES}")
AVX2 = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell {CACHES}")
NEON = Target(f"llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1 {CACHES}")


def weights(seed: int, *shape: int) -> Expr:
    return const(np.random.default_rng(seed).standard_normal(shape).astype("float32") / 8)


def conv(x: Expr, channels: int, kernel: int = 1, seed: int = 0, weight: Expr | None = None, **attrs: Any) -> Expr:
    """A channels-last convolution."""
    filters = weights(seed, channels, cast(int, x.shape[-1]), kernel, kernel) if weight is None else weight
    return nn.conv2d(x, filters, padding=kernel // 2, data_layout="NHWC", **attrs)


def layer(x: Expr, channels: int, kernel: int = 1, seed: int = 0) -> Expr:
    return nn.relu(op.add(conv(x, channels, kernel, seed), weights(seed + 1, channels)))


def image(side: int, channels: int, batch: int = 1) -> relay.Var:
    return var("x", (batch, side, side, channels))


def heads(x: Expr, channels: Sequence[int], kernel: int = 1) -> Function:
    """Layers on `x`, each with a convolution on its result."""
    results = [layer(layer(x, n, kernel, 10 * i), 8, 3, 10 * i + 5) for i, n in enumerate(channels)]
    assert isinstance(x, relay.Var)
    return Function((x,), Tuple(tuple(results)))


def widths(function: Function, kernel: int) -> list[int]:
    """The channels of the convolutions of a kernel size that read the parameter."""
    calls = [e for e in evaluation_order(function) if isinstance(e, Call) and e.operator.name == "nn.conv2d"]
    return sorted([e.shape[-1] for e in calls if e.args[0] is function.params[0] and e.args[1].shape[-1] == kernel])  # type: ignore[type-var]


def combined(function: Function, target: Target = AVX512) -> Function:
    after = CombineParallelConv2D(target)(IRModule({"main": function}))["main"]
    assert isinstance(after, Function)
    return after


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON])
def test_winograd_convolutions_are_combined(target: Target):
    function = heads(image(40, 32), (32, 32), kernel=3)
    assert widths(combined(function, target), 3) == [64]


def test_convolutions_that_would_be_direct_when_combined_stay_separate():
    """100 channels are no multiple of a vector's, as Winograd's algorithm needs them to be."""
    function = heads(image(38, 512), (16, 84), kernel=3)
    assert combined(function) is function


def test_channels_that_fill_no_register_tile_are_combined():
    """16 channels of 28 pixels need 29 loads for 28 multiply-adds, 32 of 14 pixels 16."""
    function = heads(image(40, 64), (16, 16))
    assert widths(combined(function, AVX512), 1) == [32]
    assert combined(function, AVX2) is function


def test_channels_that_fill_register_tiles_stay_separate():
    function = heads(image(40, 64), (64, 64))
    assert combined(function) is function


def test_the_narrowest_are_combined():
    function = heads(image(40, 64), (64, 16, 64, 16))
    assert widths(combined(function), 1) == [32, 64, 64]


def test_results_beyond_the_second_level_cache_stay_separate():
    """They would be read with strides from there on."""
    function = heads(image(160, 64), (16, 16))
    assert combined(function) is function


def test_inputs_of_a_concatenation_stay_separate():
    x = image(40, 64)
    concatenated = op.concatenate([layer(x, 16, 1, 1), layer(x, 16, 1, 3)], axis=3)
    function = Function((x,), layer(concatenated, 8, 3, 5))
    assert combined(function) is function


def test_few_channels_are_combined_though_they_are_copied():
    """Three and twelve channels, less than a vector each: objects and boxes of a proposal network."""
    x = image(50, 256)
    function = Function((x,), Tuple((conv(x, 3, seed=1), op.add(conv(x, 12, seed=2), weights(3, 12)))))
    assert widths(combined(function), 1) == [15]
    assert widths(combined(function, AVX2), 1) == [15]


def test_only_equal_convolution_attributes_are_combined():
    x, computed = image(40, 32), var("w", (32, 32, 3, 3))
    leaves = [
        conv(x, 32, 3, 2, strides=2),
        conv(x, 32, 3, 3, dilation=2),
        nn.silu(conv(x, 32, 3, 4)),
        nn.relu(conv(x, 32, 3, 5)),
        conv(x, 32, 5, 6),
        conv(x, 32, 3, groups=32, weight=weights(7, 32, 1, 3, 3)),
        conv(x, 32, 3, weight=computed),
    ]
    results = [conv(e, 8, 3, 8) for e in leaves]
    function = Function((x, computed), Tuple(tuple(results)))
    assert combined(function) is function


def test_dynamic_and_quantised_convolutions_stay():
    x = var("x", (1, SizeVar("h"), 40, 32))
    function = Function((x,), Tuple(tuple([conv(conv(x, 32, 3, i), 8, 3) for i in range(2)])))
    assert combined(function) is function
    quantized = var("quantized", (1, 40, 40, 32), "int32")
    whole = [nn.conv2d(quantized, const(np.ones((16, 32, 1, 1), "int32")), data_layout="NHWC") for _ in range(2)]
    function = Function((quantized,), Tuple(tuple([nn.max_pool2d(e, (2, 2), layout="NHWC") for e in whole])))
    assert combined(function) is function


def test_convolutions_in_different_branches_stay_separate():
    x, flag = image(40, 32), var("flag", (), "bool")
    results = [conv(conv(x, 32, 3, i), 8, 3, 9) for i in range(2)]
    function = Function((x, flag), relay.If(flag, *results))
    assert combined(function) is function
    function = Function((x, flag), relay.If(flag, op.add(*results), conv(x, 8)))
    assert widths(combined(function), 3) == [64]


def test_layers_with_a_residual_addition_stay():
    """The addition is fused into a layer's kernel."""
    x, y = image(40, 32), var("y", (1, 40, 40, 32))
    results = [nn.relu(op.add(conv(x, 32, 3, i), y)) for i in range(2)]
    function = Function((x, y), Tuple(tuple([conv(e, 8, 3, 9) for e in results])))
    assert combined(function) is function


def test_weights_of_several_images_are_in_memory_once():
    x = var("x", (1, 40, 40, 32))
    levels = [x, nn.max_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC")]
    first, second = weights(1, 32, 32, 3, 3), weights(2, 32, 32, 3, 3)

    def results(level: Expr) -> list[Expr]:
        return [conv(nn.relu(conv(level, 32, 3, weight=w)), 8, 3, 3) for w in (first, second)]

    after = combined(Function((x,), Tuple((*results(levels[0]), *results(levels[1])))))
    made = [e for e in evaluation_order(after) if isinstance(e, Call) and e.shape[-1] == 64]
    convolutions = [e for e in made if e.operator.name == "nn.conv2d"]
    assert len(convolutions) == 2
    assert convolutions[0].args[1] is convolutions[1].args[1]
    alone = conv(nn.relu(conv(levels[1], 32, 3, weight=first)), 8, 3, 3)
    function = Function((x,), Tuple((*results(x), alone)))
    assert combined(function) is function


def test_weights_in_the_file_stay_there():
    def stored(seed: int) -> StoredConstant:
        values = np.random.default_rng(seed).standard_normal((32, 32, 3, 3)).astype("float32")

        def fill(array: np.ndarray, start: int) -> None:
            array[...] = values.reshape(-1)[start : start + array.size].reshape(array.shape)

        return StoredConstant(values.shape, values.dtype, fill)

    x, kept = image(40, 32), [stored(1), stored(2)]
    function = Function((x,), Tuple(tuple([conv(conv(x, 32, 3, weight=w), 8, 3, 3) for w in kept])))
    after = combined(function)
    assert widths(after, 3) == [64]
    assert not any(w.is_loaded for w in kept)
    whole = next(e.args[1] for e in evaluation_order(after) if isinstance(e, Call) and e.args[0] is x)
    assert isinstance(whole, StoredConstant)
    np.testing.assert_array_equal(whole.data, np.concatenate([w.data for w in kept]))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", ["winograd", "narrow", "residual", "few"])
def test_results_equal_those_of_separate_layers(case: str, batch: int):
    inputs = 256 if case == "few" else 32
    x = image(20, inputs, batch)
    if case == "residual":  # the first slice is read by a convolution and a sum
        first, second = layer(x, 32, 3, 1), conv(x, 32, 3, 3)
        deep = op.add(first, layer(first, 32, 3, 5))
        function = Function((x,), op.concatenate([deep, layer(nn.relu(second), 32, 1, 7)], axis=3))
    elif case == "few":
        results = [op.reshape(conv(x, n, seed=n), (batch, -1, 1)) for n in (3, 12)]
        function = Function((x,), op.concatenate(results, axis=1))
    else:
        function = heads(x, (16, 16, 32), 3 if case == "winograd" else 1)
    data = np.random.default_rng(0).standard_normal((batch, 20, 20, inputs)).astype("float32")
    found: list[list[np.ndarray]] = []
    kernels: list[Counter[str]] = []
    for disabled in ([], ["CombineParallelConv2D"]):
        with PassContext(opt_level=3, disabled_pass=disabled):
            lib = relay.build(IRModule({"main": function}), target="llvm -num-cores=2 -l2-bytes=1048576")
        module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=2)
        module.set_input("x", data)
        module.run()
        found.append([module.get_output(i).numpy() for i in range(module.get_num_outputs())])
        kernels.append(Counter([name for node in lib.graph.nodes for name in node.ops]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert kernels[0]["add"] <= kernels[1]["add"]
    if case in ("winograd", "few"):
        convolutions = [sum(n for name, n in some.items() if "conv2d" in name) for some in kernels]
        assert convolutions[0] < convolutions[1]
    if case == "winograd":
        assert "strided_slice" not in kernels[0]

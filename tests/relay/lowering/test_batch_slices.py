"""Batch slicing: the same bits with less memory, and operators that mix images are not sliced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.target import Target
from relayc.relay.expr import Expr, Function, Var, var
from relayc.relay.lowering.graph import SlicedRun, make_graph
from relayc.relay.lowering.graph_passes import arrange
from relayc.relay.lowering.image_runs import sliced_function
from relayc.te import size_var
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext
from relayc.te.tir import SizeVar

SMALL = "llvm -l2-bytes=65536 -l3-bytes=1048576"
"""Caches that hold the activations of one or two images, not of a batch."""

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def conv(x: Expr, outputs: int, kernel: int = 3, groups: int = 1) -> Expr:
    channels = x.shape[-1]
    weight = relay.const(normal(kernel, kernel, channels // groups, outputs))
    return relay.nn.conv2d(
        x, weight, padding=kernel // 2, groups=groups, data_layout="NHWC", kernel_layout="HWIO"
    )


def residual_network(batch: int | SizeVar) -> Function:
    """Two blocks with shortcuts, a depthwise convolution, a channel shuffle, a concatenation, pooling, a product."""
    x = var("x", (batch, 32, 32, 8))
    y = relay.nn.relu(conv(x, 16))
    for _ in range(2):
        z = relay.nn.relu(conv(y, 32, 1))
        z = relay.nn.relu(conv(z, 32, 3, 32))
        y = relay.nn.relu(relay.op.add(y, conv(z, 16, 1)))
    apart = relay.reshape(y, (batch, 32, 32, 4, 4))
    y = relay.reshape(relay.transpose(apart, (0, 1, 2, 4, 3)), (batch, 32, 32, 16))
    y = relay.concatenate([conv(y, 16, 1), conv(y, 16)], axis=-1)
    y = relay.nn.max_pool2d(y, (2, 2), strides=(2, 2), layout="NHWC")
    y = relay.reshape(relay.mean(y, (1, 2)), (batch, 32))
    return Function((x,), relay.nn.dense(y, relay.const(normal(10, 32))))


def dense_network(batch: int | SizeVar) -> Function:
    """Concatenations of all results before, of which two are outputs, as is a depthwise convolution of the input."""
    x = var("x", (batch, 24, 24, 16))
    y, last = x, x
    for _ in range(4):
        last = relay.nn.relu(conv(relay.nn.relu(y), 16))
        y = relay.concatenate([y, last], axis=3)
    return Function((x,), relay.Tuple((conv(y, 32, 1), relay.nn.relu(conv(x, 16, 3, 16)), last)))


def chain_behind_a_softmax(batch: int | SizeVar) -> Function:
    """Convolutions; the first of them is the last to read a tensor, of smaller images, computed for the whole batch."""
    x = var("x", (batch, 16, 16, 16))
    y = relay.nn.softmax(x, axis=-1)
    for _ in range(5):
        y = relay.nn.relu(conv(y, 48, 1))
    return Function((x,), relay.nn.softmax(y, axis=-1))


def open_runs(function: Function) -> list[SlicedRun]:
    """The runs of a network's nodes for slices of a batch of symbolic size."""
    graph = make_graph(relay.optimize(IRModule({"main": function}), SMALL)["main"])
    arrange(graph, Target(SMALL))
    return list(graph.sliced_runs())


def build(function: Function, slices: str, target: str = SMALL) -> CompiledModel:
    with PassContext(config={"relay.batch_slices": slices}):
        return relay.build(IRModule({"main": function}), target=target)


def run(lib: CompiledModel, data: np.ndarray, threads: int = 1) -> list[np.ndarray]:
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=threads)
    module.set_input("x", data)
    module.run()
    results = [module.get_output(i).numpy().copy() for i in range(module.get_num_outputs())]
    assert all(timing.seconds > 0 for timing in module.profile()) or not data.size  # node by node
    for i, result in enumerate(results):
        np.testing.assert_array_equal(module.get_output(i).numpy(), result)
    return results


@pytest.mark.parametrize("batch", [4, 7])
@pytest.mark.parametrize("threads", [1, 2])
def test_slices_give_the_same_bits(batch: int, threads: int):
    function, data = residual_network(batch), normal(batch, 32, 32, 8)
    whole, slices = build(function, "off"), build(function, "auto")
    assert slices.build_report.nodes > whole.build_report.nodes
    np.testing.assert_array_equal(run(slices, data, threads)[0], run(whole, data, threads)[0])


@pytest.mark.parametrize("network", [residual_network, dense_network, chain_behind_a_softmax])
@pytest.mark.parametrize("threads", [1, 2])
def test_slices_of_an_open_batch_give_the_same_bits(network: Callable[[SizeVar], Function], threads: int):
    """What a run reads stays until its last slice, and the memory of what it writes is free from the first one on."""
    function = network(size_var("n"))
    assert open_runs(function)
    whole, slices = build(function, "off"), build(function, "auto")
    image = function.params[0].shape[1:]
    for batch in (5, 1, 12, 0, 64, 7):
        data = normal(batch, *image)
        for ours, theirs in zip(run(slices, data, threads), run(whole, data, threads), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_sizes_that_are_not_the_batch_are_not_sliced():
    n, sides = size_var("n"), size_var("sides")
    for shape in ((n, 96, sides, 16), (sides, n, 64, 16)):
        x = var("x", shape)
        assert not open_runs(Function((x,), conv(relay.nn.relu(conv(x, 32)), 8)))
    x, y = var("x", (n, 64, 64, 16)), var("y", (sides, 64, 64, 16))
    assert not open_runs(Function((x, y), relay.Tuple([conv(relay.nn.relu(conv(z, 32)), 8) for z in (x, y)])))


@pytest.mark.parametrize("batch", [4, 6])
def test_slices_of_a_batch_are_concatenated_again(batch: int):
    """Rolls along two axes, as for windows of a Swin Transformer: a slice computes a part of a concatenation."""

    def rolled(x: Expr, axis: int) -> Expr:
        parts = [relay.strided_slice(x, [b], [e], axes=[axis]) for b, e in ((3, 56), (0, 3))]
        return relay.concatenate(parts, axis)

    x, data = var("x", (batch, 56, 56, 96)), normal(batch, 56, 56, 96)
    lib = build(Function((x,), rolled(rolled(x, 1), 2)), "auto", "llvm -l2-bytes=1048576 -l3-bytes=33554432")
    np.testing.assert_array_equal(run(lib, data)[0], np.roll(data, (-3, -3), (1, 2)))


def test_slices_take_less_memory():
    whole, slices = (build(residual_network(8), option).build_report.arena_bytes for option in ("off", "auto"))
    assert slices < 0.6 * whole


def test_a_network_that_fits_the_caches_runs_whole():
    function = residual_network(4)
    whole = relay.build(IRModule({"main": function}), target="llvm -l3-bytes=67108864")
    assert whole.build_report.nodes == build(function, "off").build_report.nodes


def test_one_image_is_not_sliced():
    function = residual_network(1)
    assert build(function, "auto").build_report.nodes == build(function, "off").build_report.nodes


def test_an_output_that_is_read_again_is_whole():
    x = var("x", (6, 32, 32, 16))
    y = relay.nn.relu(conv(x, 32))
    z = y
    for _ in range(4):
        z = relay.nn.relu(conv(z, 32))
    function = Function((x,), relay.Tuple((y, conv(z, 8))))
    whole, slices, data = build(function, "off"), build(function, "auto"), normal(6, 32, 32, 16)
    assert slices.build_report.nodes > whole.build_report.nodes
    for ours, theirs in zip(run(slices, data), run(whole, data), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def sliced(body: Expr, *params: Var, batched: list[bool] | None = None) -> Function | None:
    return sliced_function(Function(params, body), batched or [True] * len(params), 2)


def test_functions_that_map_images_get_a_smaller_batch():
    x, y, bias = var("x", (8, 6, 6, 16)), var("y", (8, 6, 6, 16)), var("bias", (16,))
    kernel = var("kernel", (16, 3, 3, 16))

    def convolved(data: Expr) -> Expr:
        return relay.nn.conv2d(data, kernel, padding=1, data_layout="NHWC", kernel_layout="OHWI")

    for body, params, flags in (
        (relay.nn.relu(relay.op.add(convolved(x), bias)), (x, kernel, bias), [True, False, False]),
        (relay.op.add(x, y), (x, y), [True, True]),
        (relay.concatenate([x, y], axis=3), (x, y), [True, True]),
        (relay.transpose(x, (0, 3, 1, 2)), (x,), [True]),
        (relay.nn.max_pool2d(x, (2, 2), layout="NHWC"), (x,), [True]),
        (relay.strided_slice(x, (4,), (12,), axes=(-1,)), (x,), [True]),
    ):
        function = sliced(body, *params, batched=flags)
        assert function is not None
        assert function.body.shape == (2, *body.shape[1:])


def test_functions_that_mix_images_are_not_sliced():
    x, row = var("x", (8, 8, 4)), var("row", (8,))
    like = relay.const(normal(8, 8, 4))
    for body, params in (
        (relay.concatenate([x, x], axis=0), (x,)),
        (relay.transpose(x, (1, 0, 2)), (x,)),
        (relay.nn.softmax(x, axis=0), (x,)),
        (relay.sum(x, (0,), keepdims=True), (x,)),
        (relay.reverse(x, axis=0), (x,)),
        (relay.op.add(x, like), (x,)),
        (relay.op.add(relay.transpose(x, (0, 2, 1)), row), (x, row)),
        (relay.reshape(x, (64, 4)), (x,)),
        (relay.strided_slice(x, (0, 1), (8, 3), axes=(0, 1)), (x,)),
        (relay.nn.conv1d(x, relay.const(normal(8, 8, 3)), data_layout="CNW", kernel_layout="OIW"), (x,)),
    ):
        assert sliced(body, *params) is None, body


def test_several_results_are_sliced_together():
    x = var("x", (8, 6, 6, 16))
    function = sliced(relay.Tuple((relay.sin(x), relay.cast(x, "int8"))), x)
    assert function is not None
    assert [str(field.ty) for field in function.body.fields] == ["Tensor[(2, 6, 6, 16), float32]",
                                                                "Tensor[(2, 6, 6, 16), int8]"]  # fmt: skip
    assert sliced(relay.Tuple((relay.sin(x), relay.sum(x, (0,)))), x) is None
    assert sliced(relay.Tuple((relay.sin(x), relay.const(normal(8, 2)))), x) is None


def test_siblings_in_a_network_are_sliced():
    x = var("x", (6, 32, 32, 16))
    y = relay.nn.relu(conv(x, 32))
    for _ in range(3):
        y = relay.op.add(conv(relay.sin(y), 32), conv(relay.cos(y), 32, 1))
    function, data = Function((x,), conv(y, 8)), normal(6, 32, 32, 16)
    whole, slices = build(function, "off"), build(function, "auto")
    assert any(node.ops == ("sin", "cos") for node in whole.graph.nodes)
    assert sum(node.ops == ("sin", "cos") for node in slices.graph.nodes) > 3
    np.testing.assert_array_equal(run(slices, data)[0], run(whole, data)[0])


def test_the_option_is_checked():
    with pytest.raises(CompileError, match=r"relay\.batch_slices is 'maybe'"):
        build(residual_network(2), "maybe")

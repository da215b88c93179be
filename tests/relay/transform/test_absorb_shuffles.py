"""Channel shuffles that convolutions absorb, and those that stay."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.relay.analysis import list_op_freqs
from relayc.relay.expr import Call, Constant, Expr, Function, Var, const, var
from relayc.relay.interpreter import evaluate
from relayc.relay.op import nn
from relayc.relay.op.base import make_call
from relayc.relay.transform.absorb_shuffles import AbsorbShuffles
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar

RANDOM = np.random.default_rng(5)


def numbers(*shape: int) -> Constant:
    return const(RANDOM.standard_normal(shape).astype(np.float32) / 3)


def image(channels: int = 24, side: int = 6) -> Var:
    return var("x", (2, side, side, channels))


def shuffled(x: Expr, parts: int) -> Expr:
    *pixels, channels = x.shape
    apart = relay.reshape(x, (*pixels, parts, channels // parts))  # type: ignore[operator]
    return relay.reshape(relay.transpose(apart, (0, 1, 2, 4, 3)), x.shape)


def conv(x: Expr, outputs: int = 16, size: int = 1, groups: int = 1, kernel_layout: str = "HWIO", **how: int) -> Call:
    sizes = {"H": size, "W": size, "I": x.shape[-1] // groups, "O": outputs}  # type: ignore[operator]
    weight = numbers(*[sizes[axis] for axis in kernel_layout])
    return nn.conv2d(x, weight, groups=groups, data_layout="NHWC", kernel_layout=kernel_layout, **how)


def depthwise(x: Expr, strides: int = 1) -> Call:
    return conv(x, x.shape[-1], 3, x.shape[-1], padding=1, strides=strides)  # type: ignore[arg-type]


def absorbed(x: Var, body: Expr) -> Function:
    """The function after the pass; the results of both are compared."""
    before = IRModule({"main": Function((x,), body)})
    after = AbsorbShuffles()(before)
    data = [RANDOM.standard_normal(x.tensor_type.static_shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate(after, data), evaluate(before, data), rtol=1e-4, atol=1e-5)
    return after["main"]


def transpositions(function: Function) -> int:
    return list_op_freqs(function.body).get("transpose", 0)


@pytest.mark.parametrize("kernel_layout", ["HWIO", "OHWI"])
@pytest.mark.parametrize(("parts", "how"), [(4, {"size": 3, "padding": 1}), (3, {"strides": 2}), (8, {"size": 2})])
def test_a_convolution_of_all_channels_reads_them_in_any_order(kernel_layout: str, parts: int, how: dict[str, int]):
    x = image()
    after = absorbed(x, conv(shuffled(x, parts), kernel_layout=kernel_layout, **how))
    assert list_op_freqs(after.body) == {"nn.conv2d": 1}


@pytest.mark.parametrize("kernel_layout", ["HWIO", "OHWI"])
@pytest.mark.parametrize(("parts", "groups", "strides"), [(4, 2, 1), (2, 4, (1, 2)), (3, 4, (2, 1)), (6, 4, 2)])
def test_groups_read_runs_of_channels(kernel_layout: str, parts: int, groups: int, strides: int | tuple[int, int]):
    x = image(channels=24, side=5)
    after = absorbed(x, conv(shuffled(x, parts), 16, 1, groups, kernel_layout, strides=strides))
    assert list_op_freqs(after.body) == {"reshape": 1, "nn.conv2d": 1}


def test_channelwise_operators_get_permuted_constants():
    x = image()
    y = nn.relu(relay.add(shuffled(nn.relu(x), 4), numbers(24)))
    y = relay.multiply(numbers(1, 6, 6, 1), relay.add(depthwise(y), numbers(1, 1, 1, 24)))
    y = relay.minimum(y, const(np.float32(2)))
    after = absorbed(x, relay.add(conv(depthwise(y, strides=2), 16, 1, 2), numbers(16)))
    assert transpositions(after) == 0


def test_lookup_tables_are_not_permuted():
    x = image()
    quantized = relay.cast(relay.multiply(relay.abs(x), const(np.float32(50))), "uint8")
    table = Constant(RANDOM.permutation(256).astype(np.uint8))
    looked_up = make_call("qnn.lookup", (shuffled(quantized, 4), table))
    absorbed(x, conv(relay.cast(looked_up, "float32")))


def test_channels_that_come_unevenly_are_shuffled():
    x = image(channels=12)
    assert transpositions(absorbed(x, conv(shuffled(x, 4), 16, 1, 2))) == 1


def test_windows_of_groups_leave_shuffles_alone():
    x = image()
    assert transpositions(absorbed(x, conv(shuffled(x, 4), 16, 3, 2))) == 1
    assert transpositions(absorbed(x, conv(shuffled(x, 4), 16, 1, 2, padding=1))) == 1


def test_shared_shuffles_stay():
    x = image()
    y = shuffled(x, 4)
    assert transpositions(absorbed(x, relay.concatenate([conv(y), y], axis=3))) == 1
    z = nn.relu(shuffled(x, 4))
    assert transpositions(absorbed(x, relay.concatenate([conv(z), z], axis=3))) == 1


def test_other_transpositions_and_channel_mixing_stay():
    x = image(channels=16)
    pixels = relay.reshape(relay.transpose(relay.reshape(x, (2, 6, 6, 4, 4)), (0, 2, 1, 4, 3)), x.shape)
    rows = relay.reshape(relay.transpose(relay.reshape(x, (2, 9, 4, 4, 4)), (0, 1, 2, 4, 3)), x.shape)
    assert transpositions(absorbed(x, conv(pixels))) == transpositions(absorbed(x, conv(rows))) == 1
    for mixed in (nn.softmax(shuffled(x, 4)), relay.add(shuffled(x, 4), x), relay.reverse(shuffled(x, 4), axis=3)):
        assert transpositions(absorbed(x, conv(mixed))) == 1


def test_computed_weights_leave_shuffles_alone():
    x, weight = image(), var("w", (1, 1, 24, 16))
    body = nn.conv2d(shuffled(x, 4), weight, data_layout="NHWC", kernel_layout="HWIO")
    after = AbsorbShuffles()(IRModule({"main": Function((x, weight), body)}))["main"]
    assert transpositions(after) == 1


def unit(x: Expr, groups: int) -> Expr:
    """A unit of ShuffleNet, of an NCHW image."""
    channels = x.shape[1]
    assert isinstance(channels, int)
    y = nn.relu(nn.conv2d(x, numbers(channels, channels // groups, 1, 1), groups=groups))
    apart = relay.reshape(y, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    y = relay.reshape(relay.transpose(apart, (0, 2, 1, 3, 4)), x.shape)
    y = relay.add(nn.conv2d(y, numbers(channels, 1, 3, 3), groups=channels, padding=1), numbers(channels, 1, 1))
    return nn.relu(relay.add(x, nn.conv2d(y, numbers(channels, channels // groups, 1, 1), groups=groups)))


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2"])
@pytest.mark.parametrize("batch", [1, 3, None])
def test_units_of_a_network_run_without_transpositions(target: str, batch: int | None):
    x = var("x", (SizeVar("n") if batch is None else batch, 48, 14, 14))
    module = IRModule({"main": Function((x,), relay.mean(unit(unit(x, 4), 2), (2, 3)))})
    compiled = relay.build(module, target)
    kernels = [op for node in compiled.graph.nodes for op in node.ops]
    assert kernels.count("transpose") == 1  # to channels last
    data = RANDOM.standard_normal((batch or 2, 48, 14, 14)).astype(np.float32)
    executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=2)
    np.testing.assert_allclose(executor(data)[0].numpy(), evaluate(module, [data]), rtol=1e-3, atol=1e-4)

"""Convolutions compiled with any number of groups and channels, in blocks of rows."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay import Call, Function, IRModule, Var, const, op, var
from relayc.relay.op import nn
from relayc.relay.op.base import make_call
from relayc.relay.transform.pack_weights import PackWeights
from relayc.te.ir import PassContext, post_order
from relayc.te.tir import SizeVar
from relayc.topi.cpu.convolution.group_plan import GroupedWindows, GroupTile, plan_group_tile


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (3, 5), (4, 8), (3, 13), (2, 34), (5, 48)])
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_any_width(groups: int, inputs: int, outputs: int, kernel: int):
    random = np.random.default_rng(groups * inputs * outputs)
    channels = groups * outputs
    data = random.standard_normal((2, groups * inputs, 5, 7)).astype("float32")
    weight = random.standard_normal((channels, inputs, kernel, kernel)).astype("float32")
    bias = random.standard_normal((channels, 1, 1)).astype("float32")
    residual = random.standard_normal((2, channels, 5, 7)).astype("float32")

    x, shortcut = var("x", data.shape), var("shortcut", residual.shape)
    y = nn.conv2d(x, const(weight), groups=groups, padding=kernel // 2)
    assert isinstance(y, Call)
    expected = np.maximum(y.op.reference(data, weight) + bias + residual, 0)  # type: ignore[union-attr]
    function = Function((x, shortcut), nn.relu(op.add(op.add(y, const(bias)), shortcut)))
    compiled = relay.build(IRModule({"main": function}), "llvm")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=1)
    runner.set_input("x", data)
    runner.set_input("shortcut", residual)
    runner.run()
    np.testing.assert_allclose(runner.get_output(0).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(1, 8, 22), (1, 8, 48), (1, 8, 5), (3, 8, 34), (2, 4, 4)])
@pytest.mark.parametrize("cores", [1, 3])
def test_all_panels_iterate_over_blocks_of_rows(groups: int, inputs: int, outputs: int, cores: int):
    """Caches so small that the rows are divided into blocks, the last of which is shifted."""
    random = np.random.default_rng(outputs)
    data = random.standard_normal((1, 31, 29, groups * inputs)).astype("float32")
    weight = random.standard_normal((groups * outputs, inputs, 1, 1)).astype("float32")
    x = var("x", data.shape)
    y = nn.conv2d(x, const(weight), groups=groups, data_layout="NHWC")
    assert isinstance(y, Call)
    target = f"llvm -mtune=x86-64 -l1-bytes=2048 -l2-bytes=8192 -l3-bytes=16384 -num-cores={cores}"
    compiled = relay.build(IRModule({"main": Function((x,), nn.relu(y))}), target)
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=cores)
    runner.set_input("x", data)
    runner.run()
    expected = np.maximum(y.op.reference(data, weight), 0)  # type: ignore[union-attr]
    np.testing.assert_allclose(runner.get_output(0).numpy(), expected, rtol=1e-4, atol=1e-4)


AVX512, AVX2 = "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell"
HOST = ["llvm", "llvm -mattr=-avx512f"]


def result_of(function: Function, target: str, *data: np.ndarray, threads: int = 2) -> np.ndarray:
    compiled = relay.build(IRModule({"main": function}), target)
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=threads)
    return runner(*data)[0].numpy()


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["channels last", "channels first"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("inputs", "outputs", "size"), [(20, 192, 9), (9, 64, 6), (3, 80, 33)])
def test_wide_groups_are_several_panels(
    inputs: int, outputs: int, size: int, kernel: int, dtype: str, axes: tuple[int, ...]
):
    random, groups = np.random.default_rng(size), 3
    data = random.integers(-4, 5, (2, size, size, groups * inputs)).astype(dtype)
    weight = random.integers(-4, 5, (groups * outputs, inputs, kernel, kernel)).astype(dtype)
    x = var("x", data.shape, dtype)
    y = nn.conv2d(x, const(weight), padding=kernel // 2, groups=groups, data_layout="NHWC")
    assert isinstance(y, Call)
    with PassContext(config={"relay.winograd": "off"}):
        result = result_of(Function((x,), op.transpose(nn.relu(y), axes)), "llvm", data)
    expected = y.op.reference(data.astype("float64"), weight.astype("float64"))  # type: ignore[union-attr]
    np.testing.assert_array_equal(result, np.maximum(expected, 0).transpose(axes).astype(dtype))


@pytest.mark.parametrize(("target", "outputs", "width"), [
    (AVX512, 192, 32), (AVX512, 80, 16), (AVX512, 104, 112), (AVX2, 192, 24),
])  # fmt: skip
def test_panels_divide_wide_groups(target: str, outputs: int, width: int):
    x, weight = var("x", (1, 8, 8, 96)), np.ones((3 * outputs, 32, 1, 1), np.float32)
    y = nn.conv2d(x, const(weight), groups=3, data_layout="NHWC")
    packed = PackWeights(Target(target))(IRModule({"main": Function((x,), y)}))["main"].body
    assert isinstance(packed, Call)
    *_, inputs, panel = packed.args[1].shape
    assert (inputs, panel) == (32, width)


GROUPS = [
    (8, 4, 4), (16, 2, 2), (4, 4, 4), (6, 8, 8), (13, 8, 8), (2, 24, 24), (5, 24, 24), (4, 34, 34), (3, 12, 12),
    (4, 16, 16), (3, 5, 16), (2, 3, 40), (8, 3, 8), (7, 4, 2),
]  # fmt: skip
"""Groups, and inputs and outputs of each."""


@pytest.mark.parametrize(("groups", "inputs", "outputs", "kernel", "stride", "dilation", "target"), [
    *[(*sizes, 3, 1, 1, target) for sizes in GROUPS for target in HOST],
    *[(*sizes, *window, "llvm") for sizes in GROUPS[::2] for window in [(1, 1, 1), (3, 2, 1), (3, 1, 2), (9, 1, 1)]],
])  # fmt: skip
def test_groups_share_vectors(
    groups: int, inputs: int, outputs: int, kernel: int, stride: int, dilation: int, target: str
):
    random = np.random.default_rng(groups)
    data = random.standard_normal((2, groups * inputs, 9, 19)).astype("float32")
    weight = random.standard_normal((groups * outputs, inputs, kernel, kernel)).astype("float32")
    bias = random.standard_normal((groups * outputs, 1, 1)).astype("float32")
    x = var("x", data.shape)
    y = nn.conv2d(x, const(weight), stride, dilation * (kernel // 2), dilation, groups)
    with PassContext(config={"relay.winograd": "off"}):
        result = result_of(Function((x,), nn.relu(op.add(y, const(bias)))), target, data)
    assert isinstance(y, Call)
    expected = np.maximum(y.op.reference(data, weight) + bias, 0)  # type: ignore[union-attr]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("width", [8, 24])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_groups_share_vectors_of_any_rank_and_type(rank: int, width: int, dtype: str):
    random, groups = np.random.default_rng(rank), 4
    shape = (1, groups * width, *(3, 5, 10)[-rank:])
    data = random.integers(-4, 5, shape).astype(dtype)
    weight = random.integers(-4, 5, (groups * width, width, *[3] * rank)).astype(dtype)
    x = var("x", shape, dtype)
    y = make_call(f"nn.conv{rank}d", (x, const(weight)), padding=(1,) * (2 * rank), groups=groups)
    expected = y.op.reference(data.astype("float64"), weight.astype("float64"))  # type: ignore[union-attr]
    np.testing.assert_array_equal(result_of(Function((x,), y), "llvm", data), expected.astype(dtype))


@pytest.mark.parametrize("width", [4, 8, 24])
def test_groups_share_vectors_with_computed_weights_and_epilogues(width: int):
    random, groups = np.random.default_rng(width), 4
    data = random.standard_normal((1, 6, 14, groups * width)).astype("float32")
    weight = random.standard_normal((groups * width, width, 3, 3)).astype("float32")
    x, w = var("x", data.shape), var("w", weight.shape)
    y = nn.conv2d(x, nn.relu(w), padding=1, groups=groups, data_layout="NHWC")
    assert isinstance(y, Call)
    result = result_of(Function((x, w), op.sigmoid(y)), "llvm", data, weight)
    total = y.op.reference(data, np.maximum(weight, 0))  # type: ignore[union-attr]
    np.testing.assert_allclose(result, 1 / (1 + np.exp(-total)), rtol=1e-4, atol=1e-5)


def source(target: str, groups: int, width: int, kernel: int = 3, channels: int | None = None) -> tuple[str, bool]:
    """LLVM assembly of a grouped convolution for a target; do its vectors belong to several groups?"""
    x = var("x", (1, 28, 28, groups * width))
    weight = np.ones((groups * width, width, kernel, kernel), np.float32)
    y = nn.conv2d(x, const(weight), padding=kernel // 2, groups=groups, data_layout="NHWC")
    module = PackWeights(Target(target))(IRModule({"main": Function((x,), y)}))
    packed = [e.op for e in post_order(module["main"].body) if isinstance(e, Call)]
    across = any(getattr(o, "across_groups", False) for o in packed)
    with PassContext(config={"relay.winograd": "off"}):
        return relay.build(IRModule({"main": Function((x,), y)}), target).module.get_source("raw-ll"), across


@pytest.mark.parametrize(("target", "groups", "width", "instruction"), [
    (AVX512, 32, 4, "permvar.sf.512"), (AVX512, 32, 8, "permvar.sf.512"), (AVX512, 13, 8, "permvar.sf.512"),
    (AVX2, 32, 4, "avx2.permps"), (AVX512, 5, 24, "select <16 x i1>"), (AVX512, 4, 34, "select <16 x i1>"),
])  # fmt: skip
def test_narrow_groups_are_permuted_or_combined(target: str, groups: int, width: int, instruction: str):
    text, across = source(target, groups, width)
    assert across and instruction in text and "gather" not in text


@pytest.mark.parametrize(("target", "groups", "width"), [
    (AVX512, 3, 64), (AVX512, 2, 128), (AVX2, 5, 24), (AVX2, 4, 34), (AVX2, 8, 8), ("llvm -mcpu=x86-64-v2", 8, 4),
])  # fmt: skip
def test_wide_groups_and_few_registers_have_tiles_of_one_group(target: str, groups: int, width: int):
    assert not source(target, groups, width)[1]


def test_taps_of_a_row_share_their_loads():
    windows = GroupedWindows(28, 28, 3, 3, 1, 1, 8, 24, 24, has_border=True)
    assert plan_group_tile(Target(AVX512), windows) == GroupTile(14, 1)  # divides the row
    text, _ = source(AVX512, 8, 24)
    assert text.count("select <16 x i1>") == 14 + 2  # all taps in one step: each column is loaded once


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("rank", "layout"), [(1, "NWC"), (2, "NHWC"), (3, "NDHWC")])
def test_channels_last_without_packed_weights(rank: int, layout: str, groups: int):
    random = np.random.default_rng(rank)
    data = random.standard_normal((1, *[32 if rank < 3 else 12] * rank, 8)).astype("float32")
    weight = random.standard_normal((8, 8 // groups, *[3] * rank)).astype("float32")
    x = var("x", data.shape)
    y = getattr(nn, f"conv{rank}d")(x, const(weight), groups=groups, padding=1, data_layout=layout)
    with PassContext(disabled_pass=["PackWeights"]):
        compiled = relay.build(IRModule({"main": Function((x,), y)}), "llvm -mattr=-avx512f")
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)))
    runner.set_input("x", data)
    runner.run()
    np.testing.assert_allclose(runner.get_output(0).numpy(), y.op.reference(data, weight), rtol=1e-4, atol=1e-4)


def dynamic_input(channels: int, *fixed: tuple[int, int], rank: int = 2) -> Var:
    """A variable of `channels` last whose batch and sides are dynamic but those `fixed` (axis, size)."""
    sizes = [SizeVar(f"d{n}") for n in range(rank + 1)]
    shape = [dict(fixed).get(n, size) for n, size in enumerate(sizes)]
    return var("x", (*shape, channels))


@pytest.mark.parametrize("target", HOST)
@pytest.mark.parametrize(("rank", "groups", "inputs", "outputs", "stride"), [
    (2, 8, 4, 4, 1), (2, 4, 8, 8, 2), (2, 3, 16, 16, 1), (2, 2, 24, 24, 1), (2, 5, 6, 3, 2), (1, 8, 4, 4, 1),
    (3, 4, 8, 8, 1),
])  # fmt: skip
def test_groups_of_dynamic_images(rank: int, groups: int, inputs: int, outputs: int, stride: int, target: str):
    """Of lines narrower than a tile, as wide, and wider."""
    random = np.random.default_rng(groups)
    x = dynamic_input(groups * inputs, rank=rank)
    weight = random.standard_normal((groups * outputs, inputs, *[3] * rank)).astype("float32")
    y = make_call(f"nn.conv{rank}d", (x, const(weight)), padding=(1,) * (2 * rank), strides=(stride,) * rank,
                  groups=groups, data_layout=f"N{'DHW'[-rank:]}C")  # fmt: skip
    with PassContext(config={"relay.winograd": "off"}):
        compiled = relay.build(IRModule({"main": Function((x,), nn.relu(y))}), target)
    runner = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=2)
    for batch, *sides in ((1, 5, 2, 1), (2, 3, 4, 7), (1, 2, 3, 16), (1, 1, 1, 33)):
        data = random.standard_normal((batch, *sides[-rank:], groups * inputs)).astype("float32")
        expected = np.maximum(y.op.reference(data, weight), 0)  # type: ignore[union-attr]
        np.testing.assert_allclose(runner(data)[0].numpy(), expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("width", "fixed", "across"), [
    (4, (), True), (16, (), True), (24, (), False), (24, ((2, 28),), True),
])  # fmt: skip
def test_lines_of_dynamic_length_share_vectors_of_whole_groups_or_of_one(
    width: int, fixed: tuple[tuple[int, int], ...], across: bool
):
    x, weight = dynamic_input(4 * width, *fixed), np.ones((4 * width, width, 3, 3), np.float32)
    y = nn.conv2d(x, const(weight), padding=1, groups=4, data_layout="NHWC")
    with PassContext(config={"relay.winograd": "off"}):
        module = PackWeights(Target(AVX512))(IRModule({"main": Function((x,), y)}))
        packed = [e.op for e in post_order(module["main"].body) if isinstance(e, Call)]
        assert any(getattr(o, "across_groups", False) for o in packed) == across
        text = relay.build(IRModule({"main": Function((x,), y)}), AVX512).module.get_source("raw-ll")
    assert "gather" not in text


@pytest.mark.parametrize(("rank", "inputs", "outputs"), [(2, 48, 192), (1, 256, 256)])
def test_no_panels_are_prefetched_beside_the_addresses_of_dynamic_pixels(rank: int, inputs: int, outputs: int):
    """Both together exceed the general registers: the tile took up to three times as long."""
    x, weight = dynamic_input(inputs, rank=rank), np.ones((outputs, inputs, *[3] * rank), np.float32)
    y = make_call(f"nn.conv{rank}d", (x, const(weight)), padding=(1,) * (2 * rank), strides=(2,) * rank,
                  data_layout=f"N{'DHW'[-rank:]}C")  # fmt: skip
    text = relay.build(IRModule({"main": Function((x,), y)}), f"{AVX512} -num-cores=1").module.get_source("raw-ll")
    assert "llvm.prefetch" not in text

"""Winograd convolutions: matrices, results and errors of kernels, and choices of the cost model."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay import Function, IRModule, Tuple, const, op, var
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op import nn
from relayc.relay.op.nn.conv import convolve as exact_convolution
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext, collect
from relayc.te.tir import BufferLoad, Call, For, ForKind
from relayc.topi.cpu.convolution.winograd_plan import (
    WinogradShape,
    best_tile,
    cycles_by,
    image_to_plan_for,
    plan_for_images_up_to,
    plan_winograd,
    winograd_pays,
)
from relayc.topi.nn.winograd import WINOGRAD_FILTERS, shared_place, winograd_matrices
from tests.topi.prefetched import Prefetched

HASWELL, AVX512 = Target("llvm -mcpu=haswell -num-cores=2"), Target("llvm -mcpu=skylake-avx512 -num-cores=2")
CACHES = "-mtune=icelake-server -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432"

ERROR = {(2, 3): 4e-6, (4, 3): 1.2e-5, (2, 5): 1.2e-5}
"""The largest errors against float64, relative to the results' root mean square: twice those measured at 64 to 256
channels."""
VOLUME_ERROR = {2: 7e-6, 4: 3e-5}
"""The largest errors of 3 x 3 x 3 filters of up to 64 channels, measured alike; direct convolutions have 1e-5."""


@pytest.mark.parametrize(("tile", "taps"), [(m, r) for r, tiles in WINOGRAD_FILTERS.items() for m in tiles])
def test_matrices_filter_a_line_exactly(tile: int, taps: int):
    rng = np.random.default_rng(tile)
    d, w = rng.standard_normal(tile + taps - 1), rng.standard_normal(taps)
    m = winograd_matrices(tile, taps)
    outputs = m.a.T @ ((m.g @ w) * (m.b.T @ d))
    np.testing.assert_allclose(outputs, np.correlate(d, w, "valid"), rtol=1e-12, atol=1e-12)


def test_weights_of_larger_tiles_hold_those_of_smaller_ones():
    rng = np.random.default_rng(3)
    d, w = rng.standard_normal(4), rng.standard_normal(3)
    small, large = winograd_matrices(2, 3, within=4), winograd_matrices(4, 3)
    places = [int(str(shared_place(te.const(place), 4, 6))) for place in range(4)]
    assert places == [0, 1, 2, 5]
    np.testing.assert_allclose(small.g, large.g[places], rtol=1e-15)
    outputs = small.a.T @ ((large.g[places] @ w) * (small.b.T @ d))
    np.testing.assert_allclose(outputs, np.correlate(d, w, "valid"), rtol=1e-12, atol=1e-12)


def convolve(
    winograd: str, shape: tuple[int, ...], outputs: int, threads: int = 1, padding: int = 1, kernel: int = 3,
    groups: int = 1, dilation: int = 1,
):  # fmt: skip
    """(kernel's operators, result, result in float64) of a convolution with bias, residual and relu."""
    rng = np.random.default_rng(sum(shape))
    n, c, h, w = shape
    data = rng.standard_normal(shape, np.float32)
    weight = rng.standard_normal((outputs, c // groups, kernel, kernel), np.float32)
    bias = rng.standard_normal((outputs, 1, 1), np.float32)
    grown = 2 * padding - (kernel - 1) * dilation
    residual = rng.standard_normal((n, outputs, h + grown, w + grown), np.float32)
    x, r = var("x", shape), var("r", residual.shape)
    y = nn.conv2d(x, const(weight), padding=padding, groups=groups, dilation=dilation)
    y = op.add(op.add(y, const(bias)), r)
    with PassContext(config={"relay.winograd": winograd}):
        lib = relay.build(IRModule({"main": Function((x, r), nn.relu(y))}), f"llvm {CACHES}")
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=threads)
    executor.set_input("x", data)
    executor.set_input("r", residual)
    executor.run()
    exact = exact_convolution(data, weight, (1, 1), (padding,) * 4, (dilation,) * 2, groups)
    operators = {name for node in lib.graph.nodes for name in node.ops}
    return operators, executor.get_output(0).numpy(), np.maximum(exact + bias + residual, 0)


@pytest.mark.parametrize(("option", "tile"), [("f2", 2), ("f4", 4)])
@pytest.mark.parametrize(
    ("shape", "outputs", "padding"),
    [((1, 64, 28, 28), 64, 1), ((2, 32, 15, 30), 48, 1), ((1, 256, 14, 14), 64, 0), ((1, 64, 23, 17), 96, 2)],
)
def test_errors_stay_small(option: str, tile: int, shape: tuple[int, ...], outputs: int, padding: int):
    operators, result, exact = convolve(option, shape, outputs, padding=padding)
    assert "nn.conv2d_nhwc_winograd" in operators
    assert np.abs(result - exact).max() < ERROR[tile, 3] * np.sqrt((exact**2).mean())


@pytest.mark.parametrize(
    ("tile", "inputs", "outputs"), [(4, 18, 18), (4, 26, 40), (4, 36, 36), (4, 24, 50), (2, 100, 50), (2, 50, 130)]
)
def test_channels_that_do_not_fill_vectors(tile: int, inputs: int, outputs: int):
    operators, result, exact = convolve(f"f{tile}", (2, inputs, 15, 29), outputs, threads=2)
    assert "nn.conv2d_nhwc_winograd" in operators
    assert np.abs(result - exact).max() < ERROR[tile, 3] * np.sqrt((exact**2).mean())


@pytest.mark.parametrize(("kernel", "groups"), [(5, 1), (5, 2), (3, 2), (3, 4)])
def test_groups_and_filters_of_five_taps(kernel: int, groups: int):
    shape = (1, 128, 13, 27)
    operators, result, exact = convolve("auto", shape, 128, padding=kernel // 2, kernel=kernel, groups=groups)
    assert "nn.conv2d_nhwc_winograd" in operators
    assert np.abs(result - exact).max() < 1.2e-5 * np.sqrt((exact**2).mean())


def test_an_open_batch_has_a_version_planned_for_several_images():
    """Weights of 1.2 MB are read once for one image, and from the cache for each block of several."""
    n = te.size_var("n")
    x, weight = var("x", (n, 128, 7, 7)), np.random.default_rng(0).standard_normal((128, 128, 3, 3), dtype=np.float32)
    function = Function((x,), nn.conv2d(x, const(weight / 32), padding=1))
    optimized = relay.optimize(IRModule({"main": function}), AVX512)
    (text,) = [
        str(lower(node.workload, AVX512).function)
        for node in make_graph(optimized["main"]).nodes
        if "nn.conv2d_nhwc_winograd" in node.workload.operators
    ]
    assert re.search(r"#0 >= [23]\b", text)
    executor = graph_executor.GraphModule(relay.build(IRModule({"main": function}))["default"](device("cpu", 0)))
    for images in (1, 2, 3, 4, 5, 9):
        data = np.random.default_rng(images).standard_normal((images, 128, 7, 7), dtype=np.float32)
        exact = exact_convolution(data, weight / 32, (1, 1), (1,) * 4, (1, 1), 1)
        (result,) = executor.infer({"x": data})
        assert np.abs(result - exact).max() < ERROR[4, 3] * np.sqrt((exact**2).mean())


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "groups"),
    [(64, 64, 3, 1), (44, 50, 3, 1), (128, 128, 5, 2), (128, 128, 3, 4), (256, 64, 3, 1)],
)
def test_one_version_serves_images_of_any_size(inputs: int, outputs: int, kernel: int, groups: int):
    """Blocks of tiles may be partial: by their number of tiles, one to several blocks, and of their register tiles."""
    n, h, w = map(te.size_var, "nhw")
    weight = np.random.default_rng(0).standard_normal((outputs, inputs // groups, kernel, kernel), np.float32) / 32
    x, padding = var("x", (n, inputs, h, w)), kernel // 2
    y = nn.conv2d(x, const(weight), padding=padding, groups=groups)
    with PassContext(config={"relay.winograd": "f4" if kernel == 3 else "f2"}):
        lib = relay.build(IRModule({"main": Function((x,), y)}), f"llvm {CACHES}")
    assert "nn.conv2d_nhwc_winograd" in {name for node in lib.graph.nodes for name in node.ops}
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for shape in ((1, 1, 1), (1, 5, 3), (2, 9, 17), (1, 31, 33), (3, 40, 21), (1, 70, 64)):
        images, lines, columns = shape
        data = np.random.default_rng(lines).standard_normal((images, inputs, lines, columns), np.float32)
        exact = exact_convolution(data, weight, (1, 1), (padding,) * 4, (1, 1), groups)
        (result,) = executor.infer({"x": data})
        assert np.abs(result - exact).max() < 1.5e-5 * np.sqrt((exact**2).mean()), shape


def test_layers_of_different_likely_sizes_have_one_schedule():
    h, w = te.size_var("h"), te.size_var("w")
    x, rng = var("x", (1, 96, h, w)), np.random.default_rng(0)
    images = [x, op.concatenate([x, x], 2), op.concatenate([x, x], 3)]
    outputs = [nn.conv2d(image, const(rng.standard_normal((24, 96, 3, 3), np.float32)), padding=1) for image in images]
    module = relay.optimize(IRModule({"main": Function((x,), relay.Tuple(outputs))}), AVX512)
    keys = [node.workload.key for node in make_graph(module["main"]).nodes if "winograd" in node.workload.name]
    assert len(keys) == 3 and len(set(keys)) == 1


def test_a_small_image_has_the_plan_of_larger_ones_where_that_costs_them_little():
    target = Target(f"llvm {CACHES} -mattr=+avx512f -num-cores=2")
    large = WinogradShape(1, 256, 256, 96, 24)
    image = image_to_plan_for(target, large, plan_winograd(target, large, 4, 32))
    assert image == WinogradShape(1, 32, 32, 96, 24)
    assert plan_winograd(target, image, 4, 32).block < plan_winograd(target, large, 4, 32).block
    many_weights = WinogradShape(1, 256, 256, 512, 512)  # which a small image reads once, a large one again and again
    assert image_to_plan_for(target, many_weights, plan_winograd(target, many_weights, 4)).lines > 32
    small = WinogradShape(1, 9, 9, 96, 24)
    assert image_to_plan_for(target, small, plan_winograd(target, small, 4)) == small


def test_blocks_of_dynamic_images_have_one_version():
    h, w = te.size_var("h"), te.size_var("w")
    x, weight = var("x", (1, 64, h, w)), var("w", (64, 64, 3, 3))
    module = relay.optimize(IRModule({"main": Function((x, weight), nn.conv2d(x, weight, padding=1))}), AVX512,
                            {"w": np.ones((64, 64, 3, 3), np.float32)})  # fmt: skip
    (kernel,) = [
        lower(node.workload, AVX512)
        for node in make_graph(module["main"]).nodes
        if "nn.conv2d_nhwc_winograd" in node.workload.operators
    ]
    loops = [loop for loop in collect(kernel.function.body, For) if loop.kind is ForKind.PARALLEL]
    assert len(loops) == 1
    assert not kernel.workspaces


def test_few_images_read_a_part_of_the_weights():
    """6.3 MB of weights: one image of 7 x 7 is computed in tiles of 2, by four ninths of them."""
    rng = np.random.default_rng(0)
    x, weight = var("x", (te.size_var("n"), 176, 7, 7)), rng.standard_normal((248, 176, 3, 3), np.float32) / 32
    module = IRModule({"main": Function((x,), nn.conv2d(x, const(weight), padding=1))})
    (text,) = [
        str(lower(node.workload, AVX512).function)
        for node in make_graph(relay.optimize(module, AVX512)["main"]).nodes
        if "nn.conv2d_nhwc_winograd" in node.workload.operators
    ]
    assert re.search(r"p1\[.*j\w* // 3", text)
    executor = graph_executor.GraphModule(relay.build(module)["default"](device("cpu", 0)))
    for images in (1, 2, 3, 5, 9):
        data = rng.standard_normal((images, 176, 7, 7), np.float32)
        exact = exact_convolution(data, weight, (1, 1), (1,) * 4, (1, 1), 1)
        (result,) = executor.infer({"x": data})
        assert np.abs(result - exact).max() < ERROR[4, 3] * np.sqrt((exact**2).mean()), images


@pytest.mark.parametrize(
    ("batch", "outputs", "groups", "dilation", "threads"),
    [("n", 248, 1, 1, 1), ("n", 248, 1, 2, 2), (1, 248, 1, 2, 1), ("n", 256, 2, 1, 2), ("n", 256, 1, 3, 1)],
)
def test_small_images_of_dynamic_sides_read_a_part_of_the_weights(
    batch: int | str, outputs: int, groups: int, dilation: int, threads: int
):
    """Registers' tiles of few tiles end past the last one, which those after it are once more."""
    rng, (n, h, w) = np.random.default_rng(0), map(te.size_var, "nhw")
    weight = rng.standard_normal((outputs, 192 // groups, 3, 3), np.float32) / 32
    x = var("x", (n if batch == "n" else batch, 192, h, w))
    y = nn.conv2d(x, const(weight), padding=dilation, groups=groups, dilation=dilation)
    with PassContext(config={"relay.winograd": "f4"}):
        lib = relay.build(IRModule({"main": Function((x,), y)}), f"llvm {CACHES}")
        optimized = relay.optimize(IRModule({"main": Function((x,), y)}), AVX512)
    (text,) = [
        str(lower(node.workload, AVX512).function)
        for node in make_graph(optimized["main"]).nodes
        if "nn.conv2d_nhwc_winograd" in node.workload.operators
    ]
    assert re.search(r"p1\[.*j\w* // 3", text)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=threads)
    for shape in ((0, 7, 7), (1, 0, 5), (1, 1, 1), (1, 2, 9), (1, 7, 7), (2, 8, 8), (3, 5, 13), (2, 31, 12)):
        images, lines, columns = shape if batch == "n" else (batch, *shape[1:])
        data = rng.standard_normal((images, 192, lines, columns), np.float32)
        (result,) = executor.infer({"x": data})
        assert result.shape == (images, outputs, lines, columns)
        if result.size:
            exact = exact_convolution(data, weight, (1, 1), (dilation,) * 4, (dilation,) * 2, groups)
            assert np.abs(result - exact).max() < 1.5e-5 * np.sqrt((exact**2).mean()), shape


@pytest.mark.parametrize("side", [2, 4, 6, 8])
def test_small_images_of_dynamic_sides_prefetch_all_that_they_read(side: int):
    """One register tile the whole next position, two a half each."""
    inputs, outputs, tile = 96, 128, 4
    x = te.placeholder((1, *map(te.size_var, "hw"), inputs))
    w = te.placeholder((outputs // 32, tile + 2, tile + 2, inputs, 32), name="w")
    y = topi.nn.conv_winograd(x, w, tile, 3, (1,) * 4, channels=outputs)
    target = Target(f"llvm -mcpu=icelake-server -num-cores=1 -l2-bytes={1 << 20} -mtune=znver5")
    function = te.lower(topi.schedule_for([y], target), [x, w, y])["main"]
    rng = np.random.default_rng(side)
    data, weight = (rng.standard_normal(s, np.float32) for s in ((1, side, side, inputs), [int(d) for d in w.shape]))
    lines = Prefetched(function, "w", (data, weight, np.empty((1, side, side, outputs), np.float32))).lines
    of_position = inputs * 32 * 4 // 64
    places = [shared_place(place, 4, tile + 2) for place in range(4)]
    read = [i * (tile + 2) + j for i in places for j in places]
    panel = (tile + 2) ** 2 * of_position
    for position in read[1:]:
        first = panel + position * of_position
        assert all(lines[line] for line in range(first, first + of_position)), position


def test_small_images_are_planned_together():
    """A plan for the largest alone has tiles of 12 rows, of which 7 x 7, 16 small tiles, would leave a third idle."""
    target = Target(f"llvm -mcpu=icelake-server -num-cores=2 -l2-bytes={1 << 20} -mtune=znver5")
    largest = WinogradShape(1, 12, 12, 512, 512)
    plan = plan_for_images_up_to(target, largest, 2, 32, "plan")
    alone = plan_winograd(target, largest, 2, 32)
    assert alone.rows == 12 and plan.rows < 12 and plan.block % plan.rows == 0

    def idle(rows: int) -> int:
        return sum(-n * n % rows for n in range(1, 7))

    assert idle(plan.rows) < idle(alone.rows)


@pytest.mark.parametrize("padding", [0, 1])
def test_small_images_of_bytes_are_converted_where_they_are_read(padding: int):
    """Between two layers of a quantised model are bytes, which the second kernel converts."""
    rng, (h, w) = np.random.default_rng(0), map(te.size_var, "hw")
    first, second = (rng.standard_normal((outputs, 192, 3, 3), np.float32) / 32 for outputs in (192, 248))
    x = var("x", (1, 192, h, w))
    levels = op.round(op.clip(nn.conv2d(x, const(first), padding=1), 0, 255))
    y = nn.conv2d(op.cast(op.cast(levels, "uint8"), "float32"), const(second), padding=padding)
    with PassContext(config={"relay.winograd": "f4"}):
        lib = relay.build(IRModule({"main": Function((x,), Tuple((y, levels)))}), f"llvm {CACHES}")
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for lines, columns in ((3, 9), (8, 8), (31, 12)):
        result, stored = executor.infer({"x": 9 * rng.standard_normal((1, 192, lines, columns), np.float32)})
        exact = exact_convolution(stored, second, (1, 1), (padding,) * 4, (1, 1), 1)
        assert np.abs(result - exact).max() < 1.5e-5 * np.sqrt((exact**2).mean())


@pytest.mark.parametrize(("dilation", "is_winograd"), [(2, True), (12, False)])
def test_images_of_dynamic_sides_are_not_separated_into_ones_smaller_than_tiles(dilation: int, is_winograd: bool):
    """A side of 32, an eighth of the likely one: 144 images of 3 x 3 are tiles of 4 x 4 that are padded."""
    h, w = te.size_var("h"), te.size_var("w")
    x, weight = var("x", (1, 64, h, w)), np.ones((64, 64, 3, 3), np.float32)
    y = nn.conv2d(nn.max_pool2d(x, 8, 8), const(weight), padding=dilation, dilation=dilation)
    module = relay.optimize(IRModule({"main": Function((x,), y)}), AVX512)
    operators = {name for node in make_graph(module["main"]).nodes for name in node.workload.operators}
    assert ("nn.conv2d_nhwc_winograd" in operators) == is_winograd


def test_blocks_of_one_image_of_a_known_size_are_whole_and_of_several_may_be_partial():
    """Two blocks of 25 tiles compute 49, the last one begins earlier; of three images a block of 98 has 49 to do."""
    rng = np.random.default_rng(0)
    x, weight = var("x", (te.size_var("n"), 32, 27, 27)), rng.standard_normal((128, 32, 3, 3), np.float32) / 32
    y = op.concatenate([nn.conv2d(x, const(weight), padding=1)] * 2, 1)  # which stores channels last first
    module = IRModule({"main": Function((x,), y)})
    (text,) = [
        str(lower(node.workload, AVX512).function)
        for node in make_graph(relay.optimize(module, AVX512)["main"]).nodes
        if "nn.conv2d_nhwc_winograd" in node.workload.operators
    ]
    assert "in range(25)" in text and "in range(min(98, " in text
    executor = graph_executor.GraphModule(relay.build(module)["default"](device("cpu", 0)))
    for images in (0, 1, 2, 3, 5):
        data = rng.standard_normal((images, 32, 27, 27), np.float32)
        (result,) = executor.infer({"x": data})
        exact = exact_convolution(data, weight, (1, 1), (1,) * 4, (1, 1), 1)
        np.testing.assert_allclose(result, np.concatenate([exact] * 2, 1), atol=1e-4)


@pytest.mark.parametrize(("shape", "padding", "dilation"), [((1, 64, 28, 28), 2, 2), ((2, 64, 23, 17), 3, 4)])
def test_dilated_convolutions_run_on_subsampled_images(shape: tuple[int, ...], padding: int, dilation: int):
    operators, result, exact = convolve("f4", shape, 64, padding=padding, dilation=dilation)
    assert "nn.conv2d_nhwc_winograd" in operators
    assert np.abs(result - exact).max() < ERROR[4, 3] * np.sqrt((exact**2).mean())


def convolve_volume(
    winograd: str, shape: tuple[int, ...], outputs: int, threads: int = 1, *, taps: int = 3, stride: int = 1,
    padding: int = 1, dilation: int = 1, groups: int = 1,
):  # fmt: skip
    """(kernel's operators, result, result in float64) of a convolution of planes and a relu; arguments of its depth."""
    rng = np.random.default_rng(sum(shape))
    data = rng.standard_normal(shape, np.float32)
    weight = rng.standard_normal((outputs, shape[1] // groups, taps, 3, 3), np.float32)
    x = var("x", shape)
    strides, dilations, borders = (stride, 1, 1), (dilation, 1, 1), (padding, 1, 1) * 2
    y = nn.conv3d(x, const(weight), strides=strides, padding=borders, dilation=dilations, groups=groups)
    with PassContext(config={"relay.winograd": winograd}):
        lib = relay.build(IRModule({"main": Function((x,), nn.relu(y))}), f"llvm {CACHES}")
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=threads)
    executor.set_input("x", data)
    executor.run()
    exact = exact_convolution(data, weight, strides, borders, dilations, groups)
    operators = {name for node in lib.graph.nodes for name in node.ops}
    return operators, executor.get_output(0).numpy(), np.maximum(exact, 0)


@pytest.mark.parametrize(("option", "tile"), [("f2", 2), ("f4", 4)])
@pytest.mark.parametrize(
    ("shape", "depth"),
    [
        ((1, 64, 5, 14, 14), {}), ((2, 32, 4, 15, 27), {}), ((3, 64, 6, 12, 12), {"padding": 0}),
        ((1, 64, 9, 14, 14), {"stride": 2, "padding": 2}), ((2, 64, 7, 14, 14), {"dilation": 3, "padding": 3}),
        ((1, 64, 3, 28, 28), {"taps": 1, "padding": 0}), ((2, 128, 3, 14, 14), {"groups": 2}),
    ],
    ids=["padded", "images", "no-border", "stride", "dilation", "one-plane", "groups"],
)  # fmt: skip
def test_3d_convolutions_are_sums_over_planes(option: str, tile: int, shape: tuple[int, ...], depth: dict[str, int]):
    operators, result, exact = convolve_volume(option, shape, 64, **depth)
    assert "nn.conv3d_ndhwc_winograd" in operators
    assert np.abs(result - exact).max() < VOLUME_ERROR[tile] * np.sqrt((exact**2).mean())


def test_3d_results_are_bitwise_equal_for_any_number_of_threads():
    one, two, three = (convolve_volume("auto", (2, 64, 4, 14, 14), 64, threads)[1] for threads in (1, 2, 3))
    assert np.array_equal(one, two) and np.array_equal(one, three)


def test_3d_convolutions_of_dynamic_sizes_are_direct():
    n, d, h = te.size_var("n"), te.size_var("d"), te.size_var("h")
    for shape in [(n, 64, 4, 14, 14), (1, 64, d, 14, 14), (1, 64, 4, h, 14)]:
        x = var("x", shape)
        y = nn.conv3d(x, const(np.ones((64, 64, 3, 3, 3), np.float32)), padding=1)
        optimized = relay.optimize(IRModule({"main": Function((x,), y)}), HASWELL)
        operators = [name for node in make_graph(optimized["main"]).nodes for name in node.workload.operators]
        assert "nn.conv3d_ndhwc_packed" in operators


def test_planes_of_3d_convolutions_are_transformed_once():
    shape = WinogradShape(8, 56, 56, 64, 64, depth=3, planes=10)
    assert (shape.tiles(4), shape.tiles_read(4)) == (8 * 14 * 14, 10 * 14 * 14)
    assert plan_winograd(AVX512, shape, 4).weights_once, "blocks would transform three planes for each of theirs"


@pytest.mark.parametrize("shape", [(1, 128, 28, 28), (1, 256, 14, 14)])
def test_results_are_bitwise_equal_for_any_number_of_threads(shape: tuple[int, ...]):
    one, two, three = (convolve("auto", shape, 64, threads)[1] for threads in (1, 2, 3))
    assert np.array_equal(one, two) and np.array_equal(one, three)


@pytest.mark.parametrize("line", [28, te.size_var("w")], ids=["known", "open"])
def test_each_element_of_a_tile_is_loaded_once(line: te.Dim):
    x = var("x", (1, 64, 28, line))
    y = nn.conv2d(x, const(np.ones((64, 64, 3, 3), np.float32)), padding=1)
    with PassContext(config={"relay.winograd": "f4"}):
        optimized = relay.optimize(IRModule({"main": Function((x,), y)}), HASWELL)
    workloads = [node.workload for node in make_graph(optimized["main"]).nodes]
    (kernel,) = [lower(w, HASWELL).function for w in workloads if "nn.conv2d_nhwc_winograd" in w.operators]
    reads = [e for e in collect(kernel.body, BufferLoad) if e.buffer.name == "p0"]
    assert len(reads) == 6, "of each line of a tile one"


def test_the_option_disables_winograd_and_rejects_unknown_values():
    assert "nn.conv2d_nhwc_winograd" not in convolve("off", (1, 64, 28, 28), 64)[0]
    with pytest.raises(CompileError, match=r"relay\.winograd is 'yes'; expected one of auto, f2, f4, off"):
        convolve("yes", (1, 8, 4, 4), 8)


@pytest.mark.parametrize("target", [HASWELL, AVX512], ids=["avx2", "avx512"])
def test_profitable_layers_use_winograd(target: Target):
    def chosen(size: int, inputs: int, outputs: int, images: int = 1) -> int:
        plan = winograd_pays(target, WinogradShape(images, size, size, inputs, outputs), WINOGRAD_FILTERS[3])
        return plan.tile if plan is not None else 0

    assert chosen(56, 64, 64) == 4 and chosen(28, 128, 128) == 4
    assert chosen(224, 3, 64) == 0
    assert chosen(4, 16, 16) == 0
    assert chosen(56, 60, 64) == 4 and chosen(28, 36, 36) == 4
    assert chosen(7, 512, 512, images=16) > 0


@pytest.mark.parametrize("cores", [1, 2])
def test_wide_vectors_make_winograd_profitable_for_small_images(cores: int):
    target = Target(f"llvm -mcpu=skylake-avx512 {CACHES} -num-cores={cores}")
    for size, channels, tile in [(14, 256, 4), (14, 512, 4), (7, 512, 2)]:
        plan = winograd_pays(target, WinogradShape(1, size, size, channels, channels), WINOGRAD_FILTERS[3])
        assert plan is not None and plan.tile == tile


@pytest.mark.parametrize("cores", [1, 2, 8])
@pytest.mark.parametrize(("size", "channels"), [(14, 256), (7, 512)])
def test_weights_of_an_open_batch_suit_one_image_and_several(size: int, channels: int, cores: int):
    """F(4, 3) is faster for eight images; one of 7 x 7 reads the part of its weights that are those of F(2, 3)."""
    target = Target(f"llvm -mcpu=icelake-server -mtune=sapphirerapids -num-cores={cores}")
    shape = WinogradShape(1, size, size, channels, channels, or_images=8)
    plan = winograd_pays(target, shape, WINOGRAD_FILTERS[3])
    assert plan is not None and plan.tile == 4
    one, several = shape.of_each_batch()
    assert best_tile(target, several, 4, plan.panel) == 4
    assert size == 14 or best_tile(target, one, 4, plan.panel) == 2

    def cycles(shape: WinogradShape, panel: int) -> float:
        return plan_winograd(target, shape, best_tile(target, shape, 4, panel), panel).cycles

    assert plan.panel == min((16, 32, 64), key=lambda panel: cycles(one, panel) * cycles(several, panel))


def test_two_images_have_a_version_whose_block_is_both():
    """By the version for one image the weights are read for each of them."""
    target = Target("llvm -mcpu=icelake-server -mtune=sapphirerapids -num-cores=1")
    shape = WinogradShape(1, 14, 14, 512, 512)
    one, two = [plan_winograd(target, replace(shape, images=n), 4, 32) for n in (1, 2)]
    assert (one.block, two.block) == (16, 32)
    assert two.cycles < 0.95 * cycles_by(target, replace(shape, images=2), one)
    assert cycles_by(target, shape, one) == one.cycles


@pytest.mark.parametrize("cores", [1, 2])
def test_panels_are_prefetched_over_all_tiles_that_use_the_previous_one(cores: int):
    """Blocks of 10 or 25 tiles stalled: the first tile that uses a panel is over too soon to hide its latency."""
    target = Target(f"llvm -mcpu=icelake-server -mtune=sapphirerapids -num-cores={cores}")
    plan = plan_winograd(target, WinogradShape(1, 14, 14, 256, 256), 2)
    assert plan.block == 49


@pytest.mark.parametrize("vectors", ["haswell", "skylake-avx512"])
def test_small_blocks_keep_weights_in_the_second_level_cache(vectors: str):
    target = Target(f"llvm -mcpu={vectors} {CACHES}")
    shape = WinogradShape(1, 56, 56, 256, 256)
    plan = plan_winograd(target, shape, 4)
    weights = 4 * 36 * 256 * (plan.panel if plan.weights_once else 256)
    passes = -(-shape.tiles(4) // plan.block)
    assert weights <= target.cache_bytes.l2 or passes <= 16, "else each block would read them again, for little work"


def test_tiles_of_large_images_are_prefetched():
    def prefetched(size: int) -> int:
        x = var("x", (1, 64, size, size))
        y = nn.conv2d(x, const(np.ones((64, 64, 3, 3), np.float32)), padding=1)
        with PassContext(config={"relay.winograd": "f4"}):
            optimized = relay.optimize(IRModule({"main": Function((x,), y)}), HASWELL)
        workloads = [node.workload for node in make_graph(optimized["main"]).nodes]
        (kernel,) = [lower(w, HASWELL).function for w in workloads if "nn.conv2d_nhwc_winograd" in w.operators]
        prefetches = [call for call in collect(kernel.body, Call) if call.op == "prefetch"]
        return sum(e.buffer.name == "p0" for call in prefetches for e in collect(call, BufferLoad))

    assert prefetched(112) == 6, "one for each row of a tile"
    assert prefetched(14) == 0


def test_dilated_convolutions_count_tiles_per_subsampled_image():
    assert WinogradShape(1, 28, 28, 64, 64, dilation=2).tiles(4) == 4 * 4 * 4
    assert WinogradShape(1, 28, 27, 64, 64, dilation=4).tiles(4) == 16 * 2 * 2


@pytest.mark.parametrize("cores", [1, 8, 16, 64])
@pytest.mark.parametrize("layer", [(56, 64, 64), (28, 128, 128), (14, 256, 256), (112, 128, 128)])
def test_tiles_are_balanced_between_many_cores(cores: int, layer: tuple[int, int, int]):
    size, inputs, outputs = layer
    target = Target(f"llvm -mcpu=haswell -num-cores={cores}")
    shape = WinogradShape(1, size, size, inputs, outputs)
    plan = plan_winograd(target, shape, 4)
    blocks = -(-shape.tiles(4) // plan.block)
    tasks = blocks * outputs // plan.panel if plan.weights_once else blocks
    assert tasks / (-(-tasks // cores) * cores) >= min(0.75, tasks / cores)

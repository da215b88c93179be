"""Functions that differ only in numbers of channels share a kernel, which takes them as data."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend import Target
from relayc.backend.runtime import CompiledModel, device, graph_executor, load_model
from relayc.relay import Function, IRModule, Tuple, const, op, var
from relayc.relay.lowering.graph import ExecutionGraph, make_graph
from relayc.relay.lowering.graph_passes import arrange
from relayc.relay.lowering.lower import lower
from relayc.relay.lowering.share_extents import ShareExtents
from relayc.relay.op import nn
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.conv import convolve
from relayc.relay.transform import PassContext
from relayc.relay.tuning.bench import KernelBench, Variant
from relayc.topi.tuning import Config
from tests.c_library.library import Library

AVX512 = Target("llvm -mcpu=skylake-avx512 -num-cores=2")
WINOGRAD = ((20, 24), (24, 28), (17, 21), (27, 25))
"""Inputs and outputs of convolutions of panels of 32 outputs."""
DEPTHWISE = ((32, 32), (48, 48), (96, 96), (192, 192))
PRODUCTS = ((40, 33), (40, 47), (40, 40))
PANELS = ((48, 96), (96, 192), (192, 96))
WINOGRAD_PANELS = ((160, 64), (160, 128), (256, 128))
STEPS = ((12, 96), (18, 96), (42, 96))
DENSE_PANELS = ((64, 64), (64, 192), (64, 128))
LAYERS = {
    "winograd": WINOGRAD, "depthwise": DEPTHWISE, "pointwise": PRODUCTS, "panels": PANELS, "steps": STEPS,
    "dense": PRODUCTS, "winograd panels": WINOGRAD_PANELS, "dense panels": DENSE_PANELS,
}  # fmt: skip

Arrays = list[np.ndarray]


def layers(
    kind: str, widths: Sequence[tuple[int, int]], batch: te.Dim, height: te.Dim, width: te.Dim
) -> tuple[Function, list[Arrays]]:
    """A model of independent layers with ReLU, one for each pair of widths, and their weights and biases."""
    rng = np.random.default_rng(0)
    params: list[relay.Var] = []
    outputs: list[relay.Expr] = []
    weights: list[Arrays] = []
    for number, (inputs, count) in enumerate(widths):
        x = var(f"x{number}", (batch, inputs) if kind.startswith("dense") else (batch, height, width, inputs))
        shapes = {"winograd": (inputs, 3, 3), "depthwise": (1, 3, 3), "dense": (inputs,)}
        taps = shapes.get(kind.removesuffix(" panels"), (inputs, 1, 1))
        weight, bias = rng.standard_normal((count, *taps), np.float32) / 8, rng.standard_normal(count, np.float32)
        if kind.startswith("dense"):
            y = nn.dense(x, const(weight))
        else:
            padding, groups = taps[-1] // 2, inputs if kind == "depthwise" else 1
            y = nn.conv2d(x, const(weight), padding=padding, groups=groups, data_layout="NHWC")
        params.append(x)
        outputs.append(nn.relu(op.add(y, const(bias))))
        weights.append([weight, bias])
    return Function(tuple(params), Tuple(outputs)), weights


def of_any_size(kind: str, widths: Sequence[tuple[int, int]]) -> tuple[Function, list[Arrays]]:
    return layers(kind, widths, *map(te.size_var, "nhw"))


def expected(kind: str, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    if kind.startswith("dense"):
        return np.maximum(x.astype(np.float64) @ weight.T.astype(np.float64) + bias, 0)
    around, groups = weight.shape[-1] // 2, x.shape[-1] if kind == "depthwise" else 1
    y = convolve(np.moveaxis(x, -1, 1), weight, (1, 1), (around,) * 4, (1, 1), groups)
    return np.maximum(np.moveaxis(y, 1, -1) + bias, 0)


def graph_of(function: Function, target: Target = AVX512) -> ExecutionGraph:
    return make_graph(relay.optimize(IRModule({"main": function}), target)["main"])


def kernels_of(function: Function) -> set[str]:
    """The kernels for AVX-512 after the pass."""
    graph = graph_of(function)
    ShareExtents()(IRModule({"main": graph}))
    return {node.workload.key for node in graph.nodes}


def run(model: CompiledModel, inputs: Arrays, threads: int = 1) -> Arrays:
    executor = graph_executor.GraphModule(model["default"](device("cpu", 0)), num_threads=threads)
    return [np.array(y) for y in executor.infer({f"x{i}": x for i, x in enumerate(inputs)})]


def inputs_of(kind: str, batch: int, height: int, width: int) -> Arrays:
    rng = np.random.default_rng(batch + height)
    return [rng.standard_normal((batch, k) if kind.startswith("dense") else (batch, height, width, k), np.float32)
            for k, _ in LAYERS[kind]]  # fmt: skip


@pytest.fixture(scope="module")
def compiled():
    """A function that gives the model of a kind of layers for this machine, which is compiled once."""
    made: dict[str, tuple[CompiledModel, list[Arrays]]] = {}

    def find(kind: str) -> tuple[CompiledModel, list[Arrays]]:
        if kind not in made:
            function, weights = of_any_size(kind, LAYERS[kind])
            made[kind] = relay.build(function), weights
        return made[kind]

    return find


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_of_several_widths_share_a_kernel(kind: str):
    function, _ = of_any_size(kind, LAYERS[kind])
    (key,) = kernels_of(function)
    assert "extents=" in key
    assert len({node.workload.key for node in graph_of(function).nodes}) == len(LAYERS[kind])


@pytest.mark.parametrize("kind", LAYERS)
def test_results_are_exact_for_images_of_any_size(compiled, kind: str):
    model, weights = compiled(kind)
    if "avx512f" in Target("llvm").features:
        assert model.build_report.kernels == 1
    for size in ((1, 1, 1), (2, 7, 5), (1, 33, 18), (40, 3, 3)):
        inputs = inputs_of(kind, *size)
        for found, x, (weight, bias) in zip(run(model, inputs), inputs, weights, strict=True):
            exact = expected(kind, x, weight, bias)
            np.testing.assert_allclose(found, exact, atol=2e-5 * np.sqrt((exact**2).mean()) + 1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_results_are_those_of_separate_kernels(compiled, kind: str):
    model, _ = compiled(kind)
    with PassContext(disabled_pass=["ShareExtents"]):
        apart = relay.build(of_any_size(kind, LAYERS[kind])[0])
    assert apart.build_report.kernels == len(LAYERS[kind])
    inputs = inputs_of(kind, 2, 21, 30)
    for threads in (1, 2):
        for found, other in zip(run(model, inputs, threads), run(apart, inputs), strict=True):
            np.testing.assert_array_equal(found, other)


def test_a_saved_model_keeps_the_extents(compiled, tmp_path: Path):
    model, _ = compiled("winograd")
    model.save(tmp_path / "model.relayc")
    inputs = inputs_of("winograd", 1, 9, 11)
    for found, other in zip(run(load_model(tmp_path / "model.relayc"), inputs), run(model, inputs), strict=True):
        np.testing.assert_array_equal(found, other)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux")
def test_a_c_library_passes_the_extents(compiled, tmp_path: Path):
    model, _ = compiled("depthwise")
    model.export_c(tmp_path / "made", "net")
    inputs = inputs_of("depthwise", 2, 8, 13)
    for found, other in zip(Library(tmp_path / "made", "net").create().run(inputs), run(model, inputs), strict=True):
        np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize("kind", LAYERS)
def test_static_models_are_unchanged(kind: str):
    graph = graph_of(layers(kind, LAYERS[kind], 2, 20, 20)[0])
    before = [(node.workload, node.names) for node in graph.nodes]
    module = IRModule({"main": graph})
    assert ShareExtents()(module) is module
    assert [(node.workload, node.names) for node in graph.nodes] == before


BLOCK = 6
"""Layers of a dense block, each of which reads what all before it wrote."""


def dense_block(layers: int = BLOCK) -> Function:
    """Layers of 1 x 1 and 3 x 3 convolutions whose inputs grow by 16 channels each, as in a DenseNet."""
    rng = np.random.default_rng(0)
    images = x = var("x0", (1, 9, 9, 32))
    for number in range(layers):
        channels = 32 + number * 16
        scale, shift = (const(rng.standard_normal(channels, np.float32)) for _ in range(2))
        weight = rng.standard_normal((128, channels, 1, 1), np.float32) / 8
        y = nn.conv2d(nn.relu(op.add(op.multiply(images, scale), shift)), const(weight), data_layout="NHWC")
        weight = rng.standard_normal((16, 128, 3, 3), np.float32) / 32
        y = nn.conv2d(nn.relu(y), const(weight), padding=1, data_layout="NHWC")
        images = op.concatenate([images, y], axis=-1)
    return Function((x,), images)


@pytest.fixture(scope="module")
def block():
    """A dense block for this machine."""
    return relay.build(dense_block())


def block_input() -> Arrays:
    return [np.random.default_rng(1).standard_normal((1, 9, 9, 32), np.float32)]


def arranged(function: Function) -> ExecutionGraph:
    graph = graph_of(function)
    arrange(graph, AVX512)
    return graph


def test_static_layers_of_several_depths_share_a_kernel():
    shared = [node for node in arranged(dense_block()).nodes if node.unshared is not None]
    product, elements = dict.fromkeys(node.workload for node in shared)
    assert "#0 * 16 + 32" in product.key and product.largest_extents == {"#0": BLOCK - 1}
    assert "#0 * 16 + 48" in elements.key and elements.largest_extents == {"#0": BLOCK - 3}  # two have compact inputs
    assert [node.names for node in shared if node.workload is product] == [{"#0": n} for n in range(BLOCK)]


def test_rows_of_shared_layers_are_an_odd_number_of_lines_apart():
    graph = arranged(dense_block())
    products = [node for node in graph.nodes if node.unshared is not None and "conv2d" in node.workload.key]
    assert {graph.strides_of(node.inputs[0])[-2] for node in products} == {144}  # nine lines; the longest row has seven
    assert [node.own_workload.flops for node in products] == [2 * 81 * 128 * (32 + 16 * n) for n in range(BLOCK)]


def test_products_of_several_depths_have_tiles_and_prefetches_like_others():
    node = next(n for n in arranged(dense_block()).nodes if n.unshared is not None and "conv2d" in n.workload.key)
    assert node.unshared is not None
    with PassContext(config={"relay.explain": True}):
        shared, own = (lower(workload, AVX512) for workload in (node.workload, node.unshared))
    heights = [d.facts["height"] for kernel in (shared, own) for d in kernel.decisions if d.subject == "tiles"]
    assert heights[0] == heights[1] > 8
    assert "prefetch" in str(own.function) and "prefetch" in str(shared.function)


def test_layers_of_any_batch_share_a_kernel_if_many_are_alike():
    """Their schedules are planned for the lines of an image, of which all extents are better known."""
    for count, kernels in ((7, 7), (8, 1)):
        function, _ = layers("steps", [(33 + 2 * i, 96) for i in range(count)], te.size_var("n"), 14, 14)
        assert len(kernels_of(function)) == kernels


def test_few_static_layers_have_kernels_of_their_own():
    graph = arranged(dense_block(3))
    assert all(node.unshared is None and "extents=" not in node.workload.key for node in graph.nodes)
    assert all(graph.is_compact(node.outputs[0]) for node in graph.nodes if "nn.relu" in node.workload.operators)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_of_static_layers_are_those_of_separate_kernels(block: CompiledModel, threads: int):
    with PassContext(disabled_pass=["ShareExtents"]):
        apart = relay.build(dense_block())
    if "avx512f" in Target("llvm").features:
        assert block.build_report.kernels < apart.build_report.kernels - BLOCK
    np.testing.assert_array_equal(run(block, block_input(), threads)[0], run(apart, block_input())[0])


def test_a_saved_static_model_keeps_the_extents_and_can_be_profiled(block: CompiledModel, tmp_path: Path):
    block.save(tmp_path / "model.relayc")
    loaded = load_model(tmp_path / "model.relayc")
    np.testing.assert_array_equal(run(loaded, block_input())[0], run(block, block_input())[0])
    executor = graph_executor.GraphModule(loaded["default"](device("cpu", 0)))
    report = executor.profile(repeat=1, x0=block_input()[0])
    assert [timing.flops > 0 for timing in report if "conv2d" in timing.ops] == [True] * 2 * BLOCK


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux")
def test_a_c_library_of_a_static_model_passes_the_extents(block: CompiledModel, tmp_path: Path):
    block.export_c(tmp_path / "made", "net")
    found = Library(tmp_path / "made", "net").create().run(block_input())
    np.testing.assert_array_equal(found[0], run(block, block_input())[0])


def test_a_kernel_of_several_static_extents_is_timed_with_the_largest():
    target = Target("llvm -num-cores=2")
    graph = graph_of(dense_block(), target)
    arrange(graph, target)
    workloads = {node.workload.key: node.workload for node in graph.nodes}.values()
    timers = KernelBench(target, 1, 0).timers([Variant(workload, Config()) for workload in workloads])
    assert all(timer() > 0 for timer in timers)


@pytest.mark.parametrize(
    ("kind", "widths"),
    [("winograd", ((20, 24), (48, 24))),  # memory for tiles of the larger one would be mostly unused
     ("winograd", ((32, 40), (36, 40))),  # one has whole vectors of channels
     ("depthwise", ((16, 16), (48, 48))),  # one has a single vector
     ("depthwise", ((40, 40), (48, 48))),
     ("dense", ((40, 48), (40, 40))),
     ("dense", ((40, 40), (56, 40))),  # rows are read at constant distances
     ("pointwise", ((40, 96), (48, 96)))],
)  # fmt: skip
def test_layers_whose_code_would_differ_stay_apart(kind: str, widths: tuple[tuple[int, int], ...]):
    assert len(kernels_of(of_any_size(kind, widths)[0])) == len(widths)


@pytest.mark.parametrize("kind", ["rows of images", "many weights", "float64"])
def test_dense_layers_whose_code_depends_on_panels_stay_apart(kind: str):
    depth, dtype = 1024 if kind == "many weights" else 64, "float64" if kind == "float64" else "float32"
    rows = (te.size_var("n"), 49) if kind == "rows of images" else (te.size_var("n"),)
    params = [var(name, (*rows, depth), dtype) for name in "ab"]
    weights = [const(np.zeros((units, depth), dtype)) for units in (320, 384)]
    layers = [nn.relu(nn.dense(x, weight)) for x, weight in zip(params, weights, strict=True)]
    assert len(kernels_of(Function(tuple(params), Tuple(layers)))) == 2


def test_extents_keep_their_common_factors_and_bounds():
    (key,) = kernels_of(of_any_size("depthwise", ((48, 48), (96, 96)))[0])
    assert "#3 * 48 + 48" in key and '("#3", 1)' in key


def test_extents_that_reach_an_operator_specialised_on_them_are_not_shared():
    x = var("x", (1, te.size_var("h"), te.size_var("w"), 40))
    images: list[relay.Expr] = []
    for channels in (33, 40):
        weight, slope = np.ones((channels, 40, 1, 1), np.float32), np.ones(channels, np.float32)
        images.append(make_call("nn.prelu", (nn.conv2d(x, const(weight), data_layout="NHWC"), const(slope)), axis=3))
    keys = kernels_of(Function((x,), Tuple(images)))
    assert len(keys) == 2 and all("conv2d" in key and "prelu" in key and "extents" not in key for key in keys)

"""Products with constant weights on CPUs: panels are prefetched, narrow weights widened once for all rows."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op.base import make_call
from relayc.relay.op.nn.conv import convolve
from relayc.te.ir import IRModule, PassContext, collect
from relayc.te.tir import BufferStore, For
from relayc.topi.cpu.products.plan import ProductPlan, plan_product
from relayc.topi.registry import operations_behind
from tests.processors import avx2_target

HASWELL = avx2_target(2)

SMALL = Target({**HASWELL.to_dict(), "l2-bytes": 65536, "l3-bytes": 65536})


def loops_of(rows: te.Dim, dtype: str = "float32", target: Target = HASWELL, depth: int = 128) -> str:
    """The loops of (rows, depth) by constant (depth, 256)."""
    x = relay.var("x", shape=(rows, depth), dtype=dtype)
    weight = relay.const(np.random.default_rng(0).standard_normal((256, depth)).astype(dtype))
    optimized = relay.optimize(IRModule({"main": relay.Function((x,), relay.nn.dense(x, weight))}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "dense_packed" in text)


@pytest.mark.parametrize(("rows", "ahead"), [(1, False), (6, False), (8, True), (64, True), (197, True)])
def test_the_next_panel_is_prefetched_where_several_row_tiles_read_this_one(rows: int, ahead: bool):
    assert ("prefetch(" in loops_of(rows)) == ahead


@pytest.mark.parametrize(("rows", "ahead"), [(1, False), (6, True)])
def test_one_tile_prefetches_its_panel_where_weights_exceed_the_caches(rows: int, ahead: bool):
    assert ("prefetch(" in loops_of(rows, target=SMALL)) == ahead


def test_prefetch_distance_of_one_tile_is_longer_with_a_larger_l1_cache():
    """Steps of panels of 16 floats: 3 KB are 48 of them, 8 KB 128; a panel of 128 steps ends before."""
    large = Target({**SMALL.to_dict(), "l1-bytes": 49152})
    assert "k * 16 + 768" in loops_of(6, target=SMALL, depth=512)
    assert "k * 16 + 2048" in loops_of(6, target=large, depth=512)
    assert "k * 16 + 768" in loops_of(6, target=large, depth=128)
    assert "prefetch(" in loops_of(2, target=large, depth=512)
    assert "prefetch(" not in loops_of(2, target=SMALL, depth=512)
    assert "prefetch(" not in loops_of(1, target=large, depth=512)


@pytest.mark.parametrize("rows", [4, 6, 8, 12, 13, 40])
@pytest.mark.parametrize(("columns", "depth"), [(80, 30), (200, 96)])
def test_results_of_few_rows_where_weights_exceed_the_caches(rows: int, columns: int, depth: int):
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal((columns, depth), dtype=np.float32)
    x = relay.var("x", (rows, depth))
    target = "llvm -mtune=x86-64 -num-cores=2 -l2-bytes=8192 -l3-bytes=8192"
    lib = relay.build(relay.Function((x,), relay.nn.dense(x, relay.const(weight))), target)
    data = rng.standard_normal((rows, depth), dtype=np.float32)
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(data)[0].numpy()
    np.testing.assert_allclose(result, data @ weight.T, rtol=1e-4, atol=1e-4)


SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2")


def tiles(assembly: str) -> list[int]:
    """The number of vectors of sums in each loop."""
    sums = [set(re.findall(r"vfmadd.*, (%[xyz]mm\d+)$", block, flags=re.M)) for block in assembly.split("\n.LBB")]
    return [len(each) for each in sums if each]


@pytest.mark.parametrize(
    ("target", "columns", "found"), [(SERVER, 112, [26, 13]), (HASWELL, 200, [10, 5]), (SERVER, 109, [26, 13])]
)
def test_tiles_of_a_narrow_last_panel_have_only_its_vectors(target: Target, columns: int, found: list[int]):
    """Panels of two vectors: a partial one has tiles of one, which must be whole where there are no masks."""
    x = relay.var("x", (169, 256))
    weight = relay.const(np.random.default_rng(0).standard_normal((columns, 256), dtype=np.float32))
    text = relay.build(relay.Function((x,), relay.nn.dense(x, weight)), target).module.get_source("asm")
    assert tiles(text) == found


@pytest.mark.parametrize(("side", "columns"), [(14, 20), (14, 30), (60, 30)])
def test_results_of_partial_panels_are_transposed_by_vectors(side: int, columns: int):
    """NCHW output: a tile's vectors are stored one by one for the transpose, not assembled from single elements."""
    x = relay.var("x", (1, side, side, 64))
    weight = relay.const(np.random.default_rng(0).standard_normal((columns, 64, 3, 3), dtype=np.float32))
    layer = relay.nn.conv2d(x, weight, strides=2, padding=1, data_layout="NHWC")
    lib = relay.build(relay.Function((x,), relay.op.transpose(layer, (0, 3, 1, 2))), SERVER)
    assert len(lib.graph.nodes) == 1
    assert "vinsertps" not in lib.module.get_source("asm")


def test_panels_partition_evenly_with_a_narrow_last_panel():
    """One parallel loop: 13 panels of 16 columns, 33 tiles of 6 rows; otherwise blocks of rows."""
    for columns, found in ((200, True), (192, True), (204, False)):
        x = relay.var("x", (196, 128))
        weight = relay.const(np.random.default_rng(0).standard_normal((columns, 128), dtype=np.float32))
        optimized = relay.optimize(IRModule({"main": relay.Function((x,), relay.nn.dense(x, weight))}), HASWELL)
        (text,) = [str(lower(n.workload, HASWELL).function) for n in make_graph(optimized["main"]).nodes]
        assert (f"parallel({-(-columns // 16) * 33})" in text) == found


@pytest.mark.parametrize(("size", "inputs", "outputs"), [(13, 8, 112), (13, 8, 104), (32, 8, 150), (33, 8, 150)])
def test_convolutions_whose_last_panel_is_narrow(size: int, inputs: int, outputs: int):
    """All channels, also after the last whole vector, with and without blocks of rows."""
    rng = np.random.default_rng(outputs)
    x, y = relay.var("x", (1, size, size, inputs)), relay.var("y", (1, size, size, outputs))
    weight = rng.standard_normal((outputs, inputs, 1, 1), dtype=np.float32)
    body = relay.nn.relu(relay.nn.conv2d(x, relay.const(weight), data_layout="NHWC") + y)
    data, added = (rng.standard_normal((1, size, size, n), dtype=np.float32) for n in (inputs, outputs))
    expected = np.maximum(data @ weight[:, :, 0, 0].T + added, 0)
    small = "llvm -mtune=x86-64 -l2-bytes=131072"
    for target in ("llvm", small, "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-fma,-avx"):
        lib = relay.build(relay.Function((x, y), body), target)
        result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(data, added)[0].numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "copied"), [(1, False), (64, True)])
def test_narrow_weights_are_widened_by_the_panel_or_as_they_are_read(rows: int, copied: bool):
    assert ("widened = allocate" in loops_of(rows, "float16")) == copied


def test_one_tile_of_all_rows_widens_weights_as_it_reads_them():
    """Two tiles of four rows would have them copied; cache-set conflicts of eight rows cost less."""
    assert "widened = allocate" not in loops_of(8, "float16", SERVER, depth=1024)


@pytest.mark.parametrize(("columns", "found"), [(112, [26, 13]), (128, [26]), (1000, [26, 26])])
def test_narrow_last_panels_of_computed_matrices_have_only_their_vectors(columns: int, found: list[int]):
    """Only where that saves a notable part: a matrix of 1000 columns is computed in whole panels."""
    a, b = relay.var("a", (169, 256)), relay.var("b", (256, columns))
    text = relay.build(relay.Function((a, b), relay.nn.matmul(a, b)), SERVER).module.get_source("asm")
    assert tiles(text) == found


@pytest.mark.parametrize("columns", [256, 250, 248])
def test_dynamic_rows_have_kernels_of_full_and_half_tiles_and_single_rows(columns: int):
    rows = te.size_var("n")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((columns, 64), dtype=np.float32)
    x = relay.var("x", shape=(rows, 64))
    lib = relay.build(relay.Function((x,), relay.nn.relu(relay.nn.dense(x, relay.const(weight)))))
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for n in (1, 2, 3, 4, 5, 6, 7, 29):
        data = rng.standard_normal((n, 64), dtype=np.float32)
        np.testing.assert_allclose(executor(data)[0].numpy(), np.maximum(data @ weight.T, 0), rtol=1e-4, atol=1e-4)


def test_dynamic_rows_are_not_guarded_one_by_one():
    text = loops_of(te.size_var("n"))
    assert text.count("else:") == 4
    assert text.count("if likely(") == 4, "guards of tiles, none inside"


def plan_of(rows: te.Dim, *, columns: int, depth: int, l2_bytes: int) -> ProductPlan:
    """The plan of (rows, depth) by constant (depth, columns)."""
    target = Target({**HASWELL.to_dict(), "l2-bytes": l2_bytes})
    data, weight = te.placeholder((rows, depth)), te.placeholder((columns // 16, depth, 16))
    out = topi.nn.dense_packed(data, weight, columns)
    return plan_product(out, next(op for op in operations_behind([out]) if op.tag == "dense_packed"), target)


@pytest.mark.parametrize("l2_bytes", [1 << 18, 1 << 21])
def test_all_panels_pass_over_blocks_of_dynamic_rows_where_l2_holds_the_weights(l2_bytes: int):
    """The weights take 128 KB, a row half a KB: three quarters of L2 hold a block and them."""
    plan = plan_of(te.size_var("n"), columns=256, depth=128, l2_bytes=l2_bytes)
    assert 0 < plan.tiles_of_a_block * plan.height * 512 + 131072 <= l2_bytes
    assert not plan.panels_first
    assert not plan_of(1000, columns=256, depth=128, l2_bytes=l2_bytes).tiles_of_a_block
    assert not plan_of(te.size_var("n"), columns=16, depth=128, l2_bytes=l2_bytes).tiles_of_a_block, "one panel"


@pytest.mark.parametrize(("depth", "blocks"), [(128, True), (256, False)])
def test_panels_of_large_weights_are_read_once_for_a_block_of_dynamic_rows(depth: int, blocks: bool):
    """The weights take all of L2, a row half a KB or one, of which few would fit into half of it."""
    plan = plan_of(te.size_var("n"), columns=256, depth=depth, l2_bytes=1 << 17)
    assert plan.panels_first
    assert (plan.tiles_of_a_block > 0) == blocks
    assert plan.tiles_of_a_block * plan.height * depth * 4 <= 1 << 16


@pytest.mark.parametrize("rows", [0, 1, 7, 96, 97, 200, 1000])
@pytest.mark.parametrize(("columns", "l2_bytes"), [(96, 1 << 17), (256, 1 << 16)], ids=["weights stay", "weights pass"])
def test_results_of_blocks_of_dynamic_rows(rows: int, columns: int, l2_bytes: int):
    target = Target({**Target("llvm").to_dict(), "l2-bytes": l2_bytes})
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal((columns, 64), dtype=np.float32)
    data = rng.standard_normal((rows, 64), dtype=np.float32)
    x = relay.var("x", shape=(te.size_var("n"), 64))
    lib = relay.build(relay.Function((x,), relay.nn.dense(x, relay.const(weight))), target)
    for threads in (1, 2):
        executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=threads)
        np.testing.assert_allclose(executor(data)[0].numpy(), data @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("target", "copies"), [(SERVER, 6), (HASWELL, 10)], ids=["masks", "no masks"])
def test_a_partial_last_panel_of_dynamic_rows_is_masked_where_masks_are_cheap(target: Target, copies: int):
    """Whole tiles, those of two thirds and half the height, of 4, 2 and single rows are in the code once, without masks
    twice."""
    x, weight = relay.var("x", shape=(te.size_var("n"), 64)), relay.const(np.ones((250, 64), np.float32))
    optimized = relay.optimize(IRModule({"main": relay.Function((x,), relay.nn.dense(x, weight))}), target)
    (text,) = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    assert text.count('scope="local"') == copies


@pytest.mark.parametrize("stride", [1, 2])
def test_fewer_pixels_than_a_tile_has_are_computed_one_by_one(stride: int):
    height, width = te.size_var("h"), te.size_var("w")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((32, 8, 3, 3), dtype=np.float32)
    x = relay.var("x", shape=(1, 8, height, width))
    function = relay.Function((x,), relay.nn.conv2d(x, relay.const(weight), strides=stride, padding=1))
    with PassContext(config={"relay.winograd": "off"}):
        optimized = relay.optimize(IRModule({"main": function}), HASWELL)
        executor = graph_executor.GraphModule(relay.build(function)["default"](device("cpu", 0)))
    workloads = [node.workload for node in make_graph(optimized["main"]).nodes]
    (text,) = [str(lower(w, HASWELL).function) for w in workloads if "nn.conv2d_nhwc_packed" in w.operators]
    assert text.count('scope="local"') == 2, "a tile of several pixels, and one of a single one"
    for size in ((1, 1), (2, 1), (1, 3), (2, 2), (5, 7)):
        data = rng.standard_normal((1, 8, *size), dtype=np.float32)
        expected = convolve(data, weight, (stride, stride), (1, 1, 1, 1), (1, 1), 1)
        np.testing.assert_allclose(executor(data)[0].numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("width", "looped"), [(9, {"kd"}), (te.size_var("w"), {"kd", "kh"})])
def test_taps_of_lines_of_dynamic_width_are_a_loop_where_planes_are_one(width: te.Dim, looped: set[str]):
    """Written out, each pixel of a tile has an address for each line, more than there are registers."""
    rng = np.random.default_rng(0)
    weight, data = (rng.standard_normal(shape, dtype=np.float32) for shape in ((8, 1, 3, 3, 3), (1, 1, 5, 7, 9)))
    x = relay.var("x", shape=(1, 1, 5, 7, width))
    function = relay.Function((x,), relay.nn.conv3d(x, relay.const(weight), padding=1))
    optimized = relay.optimize(IRModule({"main": function}), SERVER)
    workloads = [node.workload for node in make_graph(optimized["main"]).nodes]
    (made,) = [lower(w, SERVER).function for w in workloads if "nn.conv3d_ndhwc_packed" in w.operators]
    assert {"kd", "kh", "kw"} & {loop.loop_var.name for loop in collect(made.body, For)} == looped
    executor = graph_executor.GraphModule(relay.build(function)["default"](device("cpu", 0)))
    expected = convolve(data, weight, (1, 1, 1), (1,) * 6, (1, 1, 1), 1)
    np.testing.assert_allclose(executor(data)[0].numpy(), expected, rtol=1e-4, atol=1e-4)


def test_tiles_begin_on_lines_also_where_an_image_is_one_column():
    """Rows of a tile on two lines would each need an address of its own."""
    found: list[int] = []
    for is_column in (False, True):
        kernel, size = ((3, 1), (500, 1)) if is_column else ((1, 3), (1, 500))
        weight = relay.const(np.ones((64, 64, *kernel), np.float32))
        x = relay.var("x", shape=(te.size_var("n"), 64, *size))
        function = relay.Function((x,), relay.nn.conv2d(x, weight, padding=(1, 0, 1, 0) if is_column else (0, 1, 0, 1)))
        with PassContext(config={"relay.winograd": "off"}):
            optimized = relay.optimize(IRModule({"main": function}), SERVER)
        workloads = [node.workload for node in make_graph(optimized["main"]).nodes]
        (main,) = [lower(w, SERVER).function for w in workloads if "nn.conv2d_nhwc_packed" in w.operators]
        found.append(len(collect(main.body, BufferStore)))
    assert found[0] == found[1] > 20


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (False, True), (True, False)])
def test_computed_matrices_of_dynamic_shapes_are_packed(transpose_a: bool, transpose_b: bool):
    batch, m, n, k = (te.size_var(name) for name in "bmnk")
    a = relay.var("a", shape=(batch, k, m) if transpose_a else (batch, m, k))
    b = relay.var("b", shape=(batch, n, k) if transpose_b else (batch, k, n))
    product = make_call("nn.batch_matmul", (a, b), None, transpose_a=transpose_a, transpose_b=transpose_b)
    lib = relay.build(relay.Function((a, b), relay.nn.relu(product)))
    assert any("nn.pack_panels" in node.ops for node in lib.graph.nodes) == (transpose_a or transpose_b)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    rng = np.random.default_rng(0)
    for sizes in ((1, 1, 5, 3), (2, 3, 33, 17), (3, 40, 16, 1), (1, 7, 64, 64)):
        count, rows, columns, depth = sizes
        x = rng.standard_normal((count, rows, depth), dtype=np.float32)
        y = rng.standard_normal((count, depth, columns), dtype=np.float32)
        arguments = [np.swapaxes(v, 1, 2) if t else v for v, t in ((x, transpose_a), (y, transpose_b))]
        result = executor(*map(np.ascontiguousarray, arguments))[0].numpy()
        np.testing.assert_allclose(result, np.maximum(x @ y, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-fma,-avx"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13), ("float16", 4e-3)])
@pytest.mark.parametrize("batches", [True, False])
def test_a_single_one_of_dynamic_columns(batches: bool, dtype: str, tolerance: float, target: str):
    b, m, n, k = (te.size_var(name) for name in "bmnk")
    batch = (b,) if batches else ()
    left, right = relay.var("left", (*batch, m, k), dtype), relay.var("right", (*batch, k, n), dtype)
    product = relay.nn.batch_matmul(left, right, transpose_b=False) if batches else relay.nn.matmul(left, right)
    lib = relay.build(relay.Function((left, right), relay.nn.relu(product)), target)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    rng = np.random.default_rng(0)
    for columns in (1, 2, 0, 33):
        for rows, depth in ((1, 1), (3, 5), (40, 16), (8, 17), (21, 64), (130, 131), (2, 1000), (0, 4)):
            x = (rng.random((*[2] * len(batch), rows, depth)) - 0.5).astype(dtype)
            y = rng.random((*[2] * len(batch), depth, columns)).astype(dtype)
            expected = np.maximum(x.astype(np.float64) @ y.astype(np.float64), 0)
            (result,) = executor.infer({"left": x, "right": y})
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * depth**0.5)


@pytest.mark.parametrize("transposed", [False, True])
def test_one_column_is_summed_by_vectors_where_it_lies_or_from_a_copy(transposed: bool):
    """Few rows read all columns in place. Transposed matrices are packed by a kernel of their own, which transposes
    registers: a single column is copied."""
    m, n, k = (te.size_var(name) for name in "mnk")
    a, b = relay.var("a", (m, k)), relay.var("b", (n, k) if transposed else (k, n))
    product = relay.nn.matmul(a, b, transpose_b=transposed)
    optimized = relay.optimize(IRModule({"main": relay.Function((a, b), product)}), HASWELL)
    kernels = [str(lower(node.workload, HASWELL).function) for node in make_graph(optimized["main"]).nodes]
    text = next(text for text in kernels if "batch_matmul" in text)
    single = text[text.index("if likely(#2 == 1)") : text.index("else:")]
    copied = "p1.global[ramp(" in single
    assert single.count("in parallel") == 1 and "batch_matmul.rf[ramp(" in single and "pack_panels" not in single
    assert copied == transposed and len(kernels) == 1 + transposed
    few = text[text.index("if likely(#0 >= 3)") :]
    assert ("pack_panels[" in text) != transposed and "pack_panels[" not in few


@pytest.mark.parametrize(("rows", "ahead"), [(1, False), (64, True)])
def test_narrow_weights_are_prefetched_before_they_are_widened(rows: int, ahead: bool):
    assert ("prefetch(" in loops_of(rows, "float16")) == ahead


@pytest.mark.parametrize(("rows", "split_k"), [(3, False), (16, True), (50, True), (127, True), (301, True)])
def test_long_reductions_are_split_into_k_blocks(rows: int, split_k: bool):
    """1024 steps in eight K-blocks, for all rows or for blocks of them; the residual may be in the result's buffer."""
    target = Target({**HASWELL.to_dict(), "l2-bytes": 131072})
    rng = np.random.default_rng(rows)
    weight, x = rng.standard_normal((384, 1024), dtype=np.float32), relay.var("x", (rows, 1024))
    residual = relay.var("r", (rows, 384))
    body = relay.nn.relu(relay.nn.dense(relay.exp(x), relay.const(weight)) + residual)
    function = relay.Function((x, residual), body)
    optimized = relay.optimize(IRModule({"main": function}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    (loops,) = [text for text in kernels if "dense_packed" in text]
    assert ("in range(8)" in loops) == split_k
    lib = relay.build(function, "llvm -mtune=x86-64 -num-cores=2 -l2-bytes=131072")
    data, added = (rng.standard_normal((rows, n), dtype=np.float32) for n in (1024, 384))
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(data, added)[0].numpy()
    expected = np.maximum(np.exp(data.astype(np.float64)) @ weight.T.astype(np.float64) + added, 0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("activation", [relay.nn.relu, relay.nn.gelu, relay.sigmoid])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (5, 40), (64, 96), (197, 48)])
def test_functions_of_a_product_take_some_rows_of_a_tile_at_a_time(
    activation: Callable[[relay.Expr], relay.Expr], rows: int, columns: int
):
    rng = np.random.default_rng(rows)
    weight, data = (rng.standard_normal(shape, dtype=np.float32) for shape in ((columns, 32), (rows, 32)))
    x = relay.var("x", (rows, 32))
    function = relay.Function((x,), activation(relay.nn.dense(x, relay.const(weight))))
    result = graph_executor.GraphModule(relay.build(function)["default"](device("cpu", 0)))(data)[0].numpy()
    np.testing.assert_allclose(result, relay.interpreter.evaluate(function, [data]), rtol=1e-5, atol=1e-5)


def test_a_tile_is_unrolled_except_for_mathematical_functions():
    loops: list[int] = []
    for activation in (relay.nn.relu, relay.nn.gelu):
        x, weight = relay.var("x", (96, 32)), relay.const(np.zeros((64, 32), np.float32))
        function = relay.Function((x,), activation(relay.nn.dense(x, weight)))
        optimized = relay.optimize(IRModule({"main": function}), HASWELL)
        (node,) = make_graph(optimized["main"]).nodes
        loops.append(len(collect(lower(node.workload, HASWELL).function.body, For)))
    assert loops[1] == loops[0] + 1


@pytest.mark.parametrize(("size", "kernel", "groups", "strides"), [
    ((9, 11), (3, 3), 1, (2, 1)), ((13,), (5,), 1, (1,)), ((4, 5, 6), (3, 3, 3), 1, (1, 1, 1)),
    ((9, 9), (3, 3), 4, (1, 1)), ((7, 20), (3, 3), 20, (1, 1)), ((9, 9), (1, 1), 1, (1, 1)),
])  # fmt: skip
def test_convolutions_of_float64_take_packed_weights(size, kernel, groups, strides):
    rng, rank, channels = np.random.default_rng(5), len(size), 40
    weight = rng.standard_normal((channels, channels // groups, *kernel))
    x = relay.var("x", shape=(2, channels, *size), dtype="float64")
    conv = (relay.nn.conv1d, relay.nn.conv2d, relay.nn.conv3d)[rank - 1]
    made = conv(x, relay.const(weight), strides=strides, padding=tuple([1] * rank), groups=groups)
    function = relay.Function((x,), made)
    optimized = relay.optimize(IRModule({"main": function}), SERVER)
    operators = [name for node in make_graph(optimized["main"]).nodes for name in node.workload.operators]
    assert any("packed" in name or "winograd" in name for name in operators)
    data = rng.standard_normal((2, channels, *size))
    result = graph_executor.GraphModule(relay.build(function)["default"](device("cpu", 0)))(data)[0].numpy()
    expected = convolve(data, weight, strides, (1,) * (2 * rank), (1,) * rank, groups)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)

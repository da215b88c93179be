"""Products with an LLC that is hardly faster than memory: reused data stays in the L2 cache."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te import size_var
from relayc.te.ir import IRModule, PassContext

CACHES = "-num-cores=2 -l1-bytes=49152 -l2-bytes=2097152 -l3-bytes=33554432 -mtune"
SLOW_LLC, FAST_LLC = f"{CACHES}=sapphirerapids", f"{CACHES}=znver5"


def residual_product(rows: int, columns: int, depth: int, *, added: bool = True) -> relay.Function:
    """(rows, depth) by constant (depth, columns), a residual added to it."""
    x, residual = relay.var("x", (rows, depth)), relay.var("r", (rows, columns))
    weight = np.random.default_rng(0).standard_normal((columns, depth), dtype=np.float32)
    product = relay.nn.dense(x, relay.const(weight))
    return relay.Function((x, residual), product + residual) if added else relay.Function((x,), product)


def pixels_of_any_batch(inputs: int, outputs: int, side: int) -> relay.Function:
    """A 1 x 1 convolution of images (n, side, side, inputs)."""
    x = relay.var("x", (size_var("n"), side, side, inputs))
    weight = np.random.default_rng(0).standard_normal((1, 1, inputs, outputs), dtype=np.float32)
    convolution = relay.nn.conv2d(x, relay.const(weight), data_layout="NHWC", kernel_layout="HWIO")
    return relay.Function((x,), convolution)


def loops_of(function: relay.Function, caches: str) -> str:
    """The loops of the product's kernel."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids {caches}")
    optimized = relay.optimize(IRModule({"main": function}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "dense" in text or "conv2d" in text)


def tiles_of(function: relay.Function) -> str:
    """The plan of the function's only product."""
    with PassContext(config={"relay.explain": True}):
        model = relay.build(function, f"llvm -mcpu=sapphirerapids {SLOW_LLC}")
    (tiles,) = [d for found in model.build_report.decisions.values() for d in found if d.subject == "tiles"]
    return str(tiles)


@pytest.mark.parametrize(("caches", "columns", "depth", "interleaved"),
                         [(SLOW_LLC, 256, 64, True), (FAST_LLC, 256, 64, False), (SLOW_LLC, 2048, 256, False)],
                         ids=["slow LLC", "fast LLC", "weights too large"])  # fmt: skip
def test_all_panels_pass_over_a_tile_of_rows_where_weights_are_resident(
    caches: str, columns: int, depth: int, interleaved: bool
):
    text = loops_of(residual_product(3136, columns, depth, added=False), caches)
    assert (f"fused % {columns // 32} * {depth * 32}" in text) == interleaved, "the panel is the innermost loop"


@pytest.mark.parametrize(("outputs", "side", "at_once"), [(64, 55, 1), (64, 7, 0)])
def test_all_panels_pass_over_a_tile_of_rows_where_several_images_are_likely(outputs: int, side: int, at_once: int):
    """One image stays in L2, eight of 55 x 55 don't; the weights always do."""
    assert f"tiles_per_step {at_once}," in tiles_of(pixels_of_any_batch(16, outputs, side))


@pytest.mark.parametrize(("outputs", "side", "prefetched"), [(128, 27, True), (16, 7, False)])
def test_results_are_prefetched_where_several_images_are_likely_not_to_be_in_the_caches(
    outputs: int, side: int, prefetched: bool
):
    assert (", 3, 1)" in loops_of(pixels_of_any_batch(32, outputs, side), SLOW_LLC)) == prefetched


@pytest.mark.parametrize("outputs", [1024, 1000])
def test_panels_pass_over_blocks_of_any_number_of_rows_also_if_the_last_is_masked(outputs: int):
    """Weights of 2 MB are read anew for each block of rows that stays in the L2 cache, not all rows for each panel."""
    assert "tiles_of_a_block 39," in tiles_of(pixels_of_any_batch(512, outputs, 13))


@pytest.mark.parametrize(
    ("caches", "rows", "columns", "depth", "shared"),
    [
        (SLOW_LLC, 196, 192, 96, "m"), (FAST_LLC, 196, 192, 96, "n"), (SLOW_LLC, 49, 2048, 512, "n"),
        (SLOW_LLC, 30, 192, 96, "n"),
    ],
    ids=["slow LLC", "fast LLC", "large weights", "few rows"],
)
def test_cores_share_rows_with_a_high_latency_llc(
    caches: str, rows: int, columns: int, depth: int, shared: str
):
    text = loops_of(residual_product(rows, columns, depth, added=False), caches)
    assert f"for {shared}.outer" in text, "the outermost of rows (m) and columns (n) in the parallel loop"


@pytest.mark.parametrize(("caches", "rows", "depth", "prefetched"),
                         [(SLOW_LLC, 3136, 64, True), (FAST_LLC, 3136, 64, True), (SLOW_LLC, 49, 64, False),
                          (SLOW_LLC, 3136, 67, False)],
                         ids=["slow LLC", "fast LLC", "in the cache", "no divisor"])  # fmt: skip
def test_residuals_are_prefetched_during_the_reduction(caches: str, rows: int, depth: int, prefetched: bool):
    assert ("prefetch(address_of(p2[" in loops_of(residual_product(rows, 256, depth), caches)) == prefetched


@pytest.mark.parametrize(("caches", "split_k"), [(SLOW_LLC, True), (FAST_LLC, False)], ids=["slow LLC", "fast LLC"])
def test_reductions_are_split_where_rows_and_two_panels_exceed_l2(
    caches: str, split_k: bool
):
    """Rows take 1.6 MB, two panels 0.8 MB. With a low-latency LLC rows may be read from there."""
    assert ("dense.rf = " in loops_of(residual_product(128, 768, 3088), caches)) == split_k


@pytest.mark.parametrize(("columns", "groups"), [(768, 4), (736, 23)])
def test_k_blocks_have_several_panels_and_partition_evenly(columns: int, groups: int):
    """Groups of 8 of the 24 panels would be three for two cores, groups of 6 are four; nothing divides 23."""
    text = loops_of(residual_product(128, columns, 3080, added=False), SLOW_LLC)
    assert ".rf = " in text and f"in parallel({groups})" in text


@pytest.mark.parametrize(("columns", "guarded"), [(1001, False), (20001, True)])
def test_the_last_panel_is_separate_where_weights_exceed_the_caches(columns: int, guarded: bool):
    """There each panel is read once anyway; tiles of other panels are then whole, without guarded vectors."""
    text = loops_of(residual_product(64, columns, 768, added=False), SLOW_LLC)
    assert (", 1, 32)] + broadcast(" in text) == guarded


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(3136, 256, 64), (196, 192, 96), (3001, 96, 72), (128, 96, 3088), (700, 256, 24), (3000, 768, 300)],
)
def test_results(rows: int, columns: int, depth: int):
    function = residual_product(rows, columns, depth)
    rng = np.random.default_rng(1)
    data, added = (rng.standard_normal((rows, n), dtype=np.float32) for n in (depth, columns))
    lib = relay.build(function, f"llvm {SLOW_LLC}")
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(data, added)[0].numpy()
    expected = relay.interpreter.evaluate(function, [data, added])
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)

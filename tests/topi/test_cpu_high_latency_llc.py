"""Products on processors whose last cache is hardly faster than memory: what is read again stays in the second one."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te.ir import IRModule

CACHES = "-num-cores=2 -l1-bytes=49152 -l3-bytes=33554432 -l2-bytes"
FAR, NEAR = f"{CACHES}={2 << 20}", f"{CACHES}={1 << 20}"


def residual_product(rows: int, columns: int, depth: int, *, added: bool = True) -> relay.Function:
    """(rows, depth) by constant (depth, columns), a residual added to it."""
    x, residual = relay.var("x", (rows, depth)), relay.var("r", (rows, columns))
    weight = np.random.default_rng(0).standard_normal((columns, depth), dtype=np.float32)
    product = relay.nn.dense(x, relay.const(weight))
    return relay.Function((x, residual), product + residual) if added else relay.Function((x,), product)


def loops_of(function: relay.Function, caches: str) -> str:
    """The loops of its product."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids {caches}")
    optimized = relay.optimize(IRModule({"main": function}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "dense" in text)


@pytest.mark.parametrize(("caches", "columns", "depth", "in_turns"),
                         [(FAR, 256, 64, True), (NEAR, 256, 64, False), (FAR, 2048, 256, False)],
                         ids=["far", "near", "weights too large"])  # fmt: skip
def test_all_panels_pass_over_a_tile_of_rows_before_the_next_where_weights_stay(
    caches: str, columns: int, depth: int, in_turns: bool
):
    text = loops_of(residual_product(3136, columns, depth, added=False), caches)
    assert (f"fused % {columns // 32} * {depth * 32}" in text) == in_turns, "which panel: the innermost of the loops"


@pytest.mark.parametrize(
    ("caches", "rows", "columns", "depth", "shared"),
    [(FAR, 196, 192, 96, "m"), (NEAR, 196, 192, 96, "n"), (FAR, 49, 2048, 512, "n"), (FAR, 30, 192, 96, "n")],
    ids=["far", "near", "large weights", "few rows"],
)
def test_cores_share_rows_where_what_another_one_wrote_is_far(
    caches: str, rows: int, columns: int, depth: int, shared: str
):
    text = loops_of(residual_product(rows, columns, depth, added=False), caches)
    assert f"for {shared}.outer" in text, "which of rows (m) and columns (n) the parallel loop goes over first"


@pytest.mark.parametrize(("caches", "rows", "depth", "asked"),
                         [(FAR, 3136, 64, True), (NEAR, 3136, 64, True), (FAR, 49, 64, False), (FAR, 3136, 67, False)],
                         ids=["far", "near", "in the cache", "no parts"])  # fmt: skip
def test_what_is_added_to_a_product_is_fetched_while_it_is_summed_up(caches: str, rows: int, depth: int, asked: bool):
    assert ("prefetch(address_of(p2[" in loops_of(residual_product(rows, 256, depth), caches)) == asked


@pytest.mark.parametrize(("caches", "by_parts"), [(FAR, True), (NEAR, False)], ids=["far", "near"])
def test_reductions_are_done_by_parts_where_rows_and_two_panels_exceed_the_second_level_cache(
    caches: str, by_parts: bool
):
    """Rows take 1.6 MB, two panels 0.8 MB. Where the last cache is near, rows may be read from there."""
    assert ("dense.rf = " in loops_of(residual_product(128, 768, 3088), caches)) == by_parts


@pytest.mark.parametrize(("columns", "groups"), [(768, 4), (736, 23)])
def test_blocks_done_by_parts_have_several_panels_but_cores_have_equal_shares(columns: int, groups: int):
    """Of 24 panels 8 at once would be three groups for two cores, 6 are four; nothing divides 23."""
    text = loops_of(residual_product(128, columns, 3080, added=False), FAR)
    assert ".rf = " in text and f"in parallel({groups})" in text


@pytest.mark.parametrize(("columns", "apart"), [(1001, False), (20001, True)])
def test_a_last_panel_is_one_by_itself_where_weights_exceed_the_caches(columns: int, apart: bool):
    """There each panel is read once anyway; others are made of whole tiles then, not of vectors that are told apart."""
    text = loops_of(residual_product(64, columns, 768, added=False), FAR)
    assert (", 1, 32)] + broadcast(" in text) == apart


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(3136, 256, 64), (196, 192, 96), (3001, 96, 72), (128, 96, 3088), (700, 256, 24), (3000, 768, 300)],
)
def test_results(rows: int, columns: int, depth: int):
    function = residual_product(rows, columns, depth)
    rng = np.random.default_rng(1)
    data, added = (rng.standard_normal((rows, n), dtype=np.float32) for n in (depth, columns))
    lib = relay.build(function, f"llvm {FAR}")
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(data, added)[0].numpy()
    expected = relay.interpreter.evaluate(function, [data, added])
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)

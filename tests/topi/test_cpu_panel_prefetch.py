"""Prefetch schedules of register tiles: each line once, evenly, in interleaved pieces."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from relayc import relay, te, topi
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te.ir import IRModule
from relayc.te.tir import IntImm
from relayc.topi.cpu.products.panel_prefetch import PrefetchSchedule
from relayc.topi.cpu.products.plan import plan_product
from tests.topi.prefetched import Prefetched

CACHES = "-num-cores=2 -l1-bytes=49152 -l3-bytes=33554432"
SLOW_LLC = f"{CACHES} -l2-bytes={2 << 20} -mtune=sapphirerapids"
FAST_LLC = f"{CACHES} -l2-bytes={1 << 20} -mtune=znver5"
SMALL = SLOW_LLC.replace("33554432", "4194304")
"""A high-latency LLC that most weights exceed."""
XEON, HASWELL = [f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={name}" for name in ("sapphirerapids", "haswell")]
NEON = "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1"


def prefetched(schedule: PrefetchSchedule, tiles: int, steps: int) -> list[int]:
    """The prefetched lines, in order."""
    found = [
        schedule.line(tile, step, number)
        for tile in range(tiles)
        for step in range(0, steps, schedule.every)
        for number in range(schedule.at_once)
    ]
    return [each.value if isinstance(each, IntImm) else int(each) for each in found]


@given(tiles=st.integers(1, 300), per_step=st.integers(1, 4), window=st.integers(1, 9), depth=st.integers(1, 200),
       unrolled=st.booleans())  # fmt: skip
def test_every_line_is_prefetched(tiles: int, per_step: int, window: int, depth: int, unrolled: bool):
    steps = window * depth
    schedule = PrefetchSchedule.of(tiles, steps * per_step, steps, depth, unrolled=unrolled)
    lines = prefetched(schedule, tiles, steps)
    assert set(range(schedule.lines)) <= set(lines)
    assert depth % (schedule.every * schedule.interleave) == 0
    assert len(lines) <= 2 * schedule.lines or max(lines) < schedule.lines, "few lines past the end"


@pytest.mark.parametrize(
    ("tiles", "depth", "pieces", "order"),
    [
        (4, 512, 4, [0, 256, 512, 768, 1, 257]),
        (10, 768, 2, [0, 768, 1, 769]),
        (22, 1024, 1, [0, 1, 2, 3]),
        (40, 512, 1, [0, 1, 2, 3]),
        (1, 512, 4, [0, 256, 512, 768, 1, 257]),
        (4, 30, 1, [0, 1, 2, 3]),
    ],
    ids=["few tiles", "ten", "twenty", "forty", "one tile", "less than a page each"],
)
def test_prefetches_of_several_pieces_are_interleaved(tiles: int, depth: int, pieces: int, order: list[int]):
    schedule = PrefetchSchedule.of(tiles, 2 * depth, depth, depth)
    assert schedule.pieces == pieces
    assert prefetched(schedule, tiles, depth)[: len(order)] == order


@pytest.mark.parametrize("tiles", [10, 22, 77])
def test_steps_between_prefetches_are_unrolled(tiles: int):
    """A loop of two times eight steps inside of one over prefetches took a tenth longer."""
    schedule = PrefetchSchedule.of(tiles, 2048, 1024, 1024)
    assert schedule.every <= 8 and schedule.at_once == 1


def test_dynamic_numbers_of_tiles_clamp_prefetches_at_the_end():
    schedule = PrefetchSchedule.of(4, 128, 64, 64, more=True)
    assert prefetched(schedule, 100, 64)[-1] == 127


def product_loops(rows: te.Dim, columns: int, depth: int, caches: str, cpu: str = XEON) -> str:
    """The loops of (rows, depth) by constant (depth, columns)."""
    target = Target(f"{cpu} {caches}")
    weight = relay.const(np.random.default_rng(0).standard_normal((columns, depth), dtype=np.float32))
    function = relay.Function((x := relay.var("x", (rows, depth)),), relay.nn.dense(x, weight))
    optimized = relay.optimize(IRModule({"main": function}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "dense_packed" in text)


def test_prefetches_of_a_step_have_constant_distances():
    """Next to no instructions: one address, and no comparison with the end."""
    text = product_loops(49, 512, 1032, SLOW_LLC)
    (line,) = [each.strip() for each in text.splitlines() if "prefetch" in each]
    assert "k.inner.outer * 8256" in line and "min(k" not in line


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "pieces"),
    [(13, 4096, 3080, True), (13, 4096, 6152, False), (5, 4096, 3080, False)],
    ids=["busy", "panels too large", "not busy"],
)
def test_one_tile_prefetches_the_next_panel_in_pieces_with_enough_arithmetic(
    rows: int, columns: int, depth: int, pieces: bool
):
    """Otherwise it prefetches 8 KB ahead: 2048 floats and up to 48 more."""
    text = product_loops(rows, columns, depth, SMALL)
    prefetches = [line for line in text.splitlines() if "prefetch" in line]
    assert prefetches and all(("+ 20" not in line) == pieces for line in prefetches)


class DynamicRows:
    """A product of a dynamic number of rows by four panels of weights."""

    def __init__(self, tune: str, steps: int) -> None:
        self.steps, self.width, self.panels = steps, 32, 4
        x = te.placeholder((te.size_var("n"), steps))
        w = te.placeholder((self.panels, steps, self.width), name="w")
        y = topi.nn.dense_packed(x, w, self.panels * self.width)
        target = Target(f"{XEON} -num-cores=1 -l2-bytes={1 << 17} -mtune={tune}")
        self.height = plan_product(y, y.op, target).height
        self.function = te.lower(topi.schedule_for([y], target), [x, w, y])["main"]
        self.weight = np.random.default_rng(0).standard_normal((self.panels, steps, self.width), dtype=np.float32)

    def times_prefetched(self, rows: int) -> set[int]:
        """How often lines of the second and third panel are prefetched."""
        data = np.random.default_rng(rows).standard_normal((rows, self.steps), dtype=np.float32)
        result = np.empty((rows, self.panels * self.width), np.float32)
        lines = Prefetched(self.function, "w", (data, self.weight, result)).lines
        exact = data @ self.weight.transpose(1, 0, 2).reshape(self.steps, -1)
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-3)
        of_panel = self.steps * self.width * 4 // 64
        return {lines[line] for line in range(of_panel, (self.panels - 1) * of_panel)}


def test_few_of_a_dynamic_number_of_rows_prefetch_the_next_panel():
    """One tile of two thirds or half the height, of 4 or of 2 rows prefetches all of it, two a half each; single rows
    none."""
    product = DynamicRows("sapphirerapids", 256)
    half, most = product.height // 2, 2 * product.height // 3
    assert half > 4
    for rows, times in {1: 0, 2: 1, 3: 2, 4: 1, half - 1: 2, half: 1, half + 1: 2, 2 * half: 2, 2 * most: 2}.items():
        assert product.times_prefetched(rows) == {times}, rows


def test_few_rows_leave_weights_to_the_hardware_prefetcher_where_the_cache_is_fast():
    """Tiles of half the height take long enough for prefetches to pay, those of four rows don't."""
    product = DynamicRows("znver5", 256)
    half, most = product.height // 2, 2 * product.height // 3
    for rows, times in {2: 0, 4: 0, half: 1, half + 1: 2, 2 * half: 2, 2 * half + 1: 2, 2 * most: 2}.items():
        assert product.times_prefetched(rows) == {times}, rows


@pytest.mark.parametrize("tune", ["sapphirerapids", "znver5"])
def test_fewer_tiles_than_planned_prefetch_the_whole_panel(tune: str):
    """Four tiles a quarter each; two tiles two quarters each, three one or two."""
    product = DynamicRows(tune, 64)
    for rows in (2 * (2 * product.height // 3) + 1, 2 * product.height, 3 * product.height, 4 * product.height):
        assert 0 not in product.times_prefetched(rows), rows


@pytest.mark.parametrize("caches", [SLOW_LLC, FAST_LLC], ids=["slow LLC", "fast LLC"])
@pytest.mark.parametrize("rows", [784, te.size_var("n")], ids=["static", "dynamic"])
def test_lines_of_results_are_prefetched(caches: str, rows: te.Dim):
    assert "3, 1)" in product_loops(rows, 512, 128, caches)


@pytest.mark.parametrize(("columns", "depth", "panels_first"), [(5001, 512, True), (5001, 16, False)])
@pytest.mark.parametrize("cpu", [XEON, HASWELL])
def test_large_weights_are_read_once_for_dynamic_rows_also_with_a_partial_panel(
    columns: int, depth: int, panels_first: bool, cpu: str
):
    """Each tile of rows would read them from behind the L2 cache; once for each block of rows where there are many."""
    text = product_loops(te.size_var("n"), columns, depth, FAST_LLC, cpu)
    parallel = next(line for line in text.splitlines() if "parallel" in line)
    assert bool(re.match(r" *for (i0\.outer\.outer\.)?(n|i1)\.outer", parallel)) == panels_first, parallel


@pytest.mark.parametrize(
    ("cpu", "depth", "prefetched"), [(HASWELL, 128, True), (HASWELL, 768, False), (NEON, 128, False)]
)
def test_lines_of_results_are_not_prefetched_where_accumulators_would_spill(cpu: str, depth: int, prefetched: bool):
    assert ("3, 1)" in product_loops(784, 512, depth, FAST_LLC, cpu)) == prefetched


def convolution_loops(side: int, inputs: int, outputs: int, cpu: str) -> str:
    """The loops of a 3 x 3 convolution by 2."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} {FAST_LLC}")
    weight = relay.const(np.zeros((outputs, inputs, 3, 3), np.float32))
    x = relay.var("x", (1, side, side, inputs))
    convolution = relay.nn.conv2d(x, weight, strides=2, padding=1, data_layout="NHWC")
    optimized = relay.optimize(IRModule({"main": relay.Function((x,), convolution)}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "conv2d = allocate" in text)


@pytest.mark.parametrize(("cpu", "prefetched"), [("sapphirerapids", True), ("haswell", False)])
def test_convolutions_with_sixteen_registers_do_not_prefetch_results(cpu: str, prefetched: bool):
    """A 3 x 3 convolution of 56 x 56 x 128 by 2 took 1.75 times as long."""
    assert ("3, 1)" in convolution_loops(56, 128, 128, cpu)) == prefetched


def test_convolutions_of_few_channels_leave_registers_for_pixels_and_prefetch_results():
    """Tiles of 28 vectors, with all taps of a line unrolled, had accumulators spilled."""
    text = convolution_loops(224, 3, 32, "sapphirerapids")
    found = re.search(r"conv2d = allocate\(\[(\d+)\]", text)
    assert found is not None and 16 <= int(found[1]) // 16 <= 26
    assert "3, 1)" in text


@pytest.mark.parametrize("rows", [1, 5, 13, 16, 49, 128])
@pytest.mark.parametrize(("columns", "depth"), [(512, 96), (1001, 512), (96, 1030), (256, 4608)])
def test_results(rows: int, columns: int, depth: int):
    rng = np.random.default_rng(rows)
    data, weight = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, depth), (columns, depth)))
    function = relay.Function((x := relay.var("x", data.shape),), relay.nn.dense(x, relay.const(weight)))
    lib = relay.build(function, f"llvm {SMALL}")
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(data)[0].numpy()
    np.testing.assert_allclose(result, data @ weight.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("size", "inputs"), [(7, 64), (14, 64), (28, 64), (28, 1), (14, 3), (14, 30)])
def test_results_of_winograd_convolutions(size: int, inputs: int):
    """Also for weights with one line for each position."""
    rng = np.random.default_rng(size)
    data = rng.standard_normal((1, inputs, size, size), dtype=np.float32)
    weight = relay.const(rng.standard_normal((96, inputs, 3, 3), dtype=np.float32))
    x = relay.var("x", data.shape)
    function = relay.Function((x,), relay.nn.conv2d(x, weight, channels=96, kernel_size=(3, 3), padding=(1, 1, 1, 1)))
    result = graph_executor.GraphModule(relay.build(function, f"llvm {SLOW_LLC}")["default"](device("cpu", 0)))(data)[0]
    np.testing.assert_allclose(result.numpy(), relay.interpreter.evaluate(function, [data]), rtol=1e-3, atol=1e-3)

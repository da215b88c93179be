"""How register tiles ask for memory that they, or the next ones, will read: each line once, evenly, in pieces."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayc import relay
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te.ir import IRModule
from relayc.te.tir import IntImm
from relayc.topi.cpu.products.panel_prefetch import PrefetchSchedule

CACHES = "-num-cores=2 -l1-bytes=49152 -l3-bytes=33554432 -l2-bytes"
FAR, NEAR = f"{CACHES}={2 << 20}", f"{CACHES}={1 << 20}"
SMALL = f"-num-cores=2 -l1-bytes=49152 -l3-bytes=4194304 -l2-bytes={2 << 20}"
"""Far, and exceeded by most weights."""
XEON, HASWELL = [f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={name}" for name in ("sapphirerapids", "haswell")]
NEON = "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1"


def asked(pace: PrefetchSchedule, tiles: int, steps: int) -> list[int]:
    """The lines that are asked for, in order."""
    found = [
        pace.line(tile, step, number)
        for tile in range(tiles)
        for step in range(0, steps, pace.every)
        for number in range(pace.at_once)
    ]
    return [each.value if isinstance(each, IntImm) else int(each) for each in found]


@given(tiles=st.integers(1, 300), per_step=st.integers(1, 4), window=st.integers(1, 9), depth=st.integers(1, 200),
       in_a_row=st.booleans())  # fmt: skip
def test_every_line_is_asked_for(tiles: int, per_step: int, window: int, depth: int, in_a_row: bool):
    steps = window * depth
    pace = PrefetchSchedule.of(tiles, steps * per_step, steps, depth, in_a_row=in_a_row)
    lines = asked(pace, tiles, steps)
    assert set(range(pace.lines)) <= set(lines)
    assert depth % (pace.every * pace.turns) == 0
    assert len(lines) <= 2 * pace.lines or max(lines) < pace.lines, "past the end only a little"


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
def test_lines_of_several_pieces_are_asked_for_in_turns(tiles: int, depth: int, pieces: int, order: list[int]):
    pace = PrefetchSchedule.of(tiles, 2 * depth, depth, depth)
    assert pace.pieces == pieces
    assert asked(pace, tiles, depth)[: len(order)] == order


@pytest.mark.parametrize("tiles", [10, 22, 77])
def test_steps_between_asks_are_written_out_in_a_row(tiles: int):
    """A loop of two times eight steps inside of one over asks took a tenth longer."""
    pace = PrefetchSchedule.of(tiles, 2048, 1024, 1024)
    assert pace.every <= 8 and pace.at_once == 1


def test_tiles_that_are_counted_at_run_time_stop_at_the_end():
    pace = PrefetchSchedule.of(4, 128, 64, 64, more=True)
    assert asked(pace, 100, 64)[-1] == 127


def product_loops(rows: int, columns: int, depth: int, caches: str, cpu: str = XEON) -> str:
    """The loops of (rows, depth) by constant (depth, columns)."""
    target = Target(f"{cpu} {caches}")
    weight = relay.const(np.random.default_rng(0).standard_normal((columns, depth), dtype=np.float32))
    function = relay.Function((x := relay.var("x", (rows, depth)),), relay.nn.dense(x, weight))
    optimized = relay.optimize(IRModule({"main": function}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "dense_packed" in text)


def test_each_ask_of_a_step_is_for_the_next_panel_a_constant_from_the_others():
    """Next to no instructions: one address, and no end that it is compared with."""
    text = product_loops(49, 512, 1032, FAR)
    (line,) = [each.strip() for each in text.splitlines() if "prefetch" in each]
    assert "k.inner.outer * 8256" in line and "min(k" not in line


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "pieces"),
    [(13, 4096, 3080, True), (13, 4096, 6152, False), (5, 4096, 3080, False)],
    ids=["busy", "panels too large", "not busy"],
)
def test_one_tile_asks_for_the_next_panel_in_pieces_where_it_is_busy_enough(
    rows: int, columns: int, depth: int, pieces: bool
):
    """Else for what lies 8 KB further on: 2048 floats and up to 48 more."""
    text = product_loops(rows, columns, depth, SMALL)
    asks = [line for line in text.splitlines() if "prefetch" in line]
    assert asks and all(("+ 20" not in line) == pieces for line in asks)


@pytest.mark.parametrize("caches", [FAR, NEAR], ids=["far", "near"])
def test_lines_that_results_go_to_are_asked_for(caches: str):
    assert "3, 1)" in product_loops(784, 512, 128, caches)


@pytest.mark.parametrize(("cpu", "depth", "asked"), [(HASWELL, 128, True), (HASWELL, 768, False), (NEON, 128, False)])
def test_they_are_not_where_sums_would_leave_the_registers_for_more_than_it_gains(cpu: str, depth: int, asked: bool):
    assert ("3, 1)" in product_loops(784, 512, depth, NEAR, cpu)) == asked


def convolution_loops(side: int, inputs: int, outputs: int, cpu: str) -> str:
    """The loops of a 3 x 3 convolution by 2."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu} {NEAR}")
    weight = relay.const(np.zeros((outputs, inputs, 3, 3), np.float32))
    x = relay.var("x", (1, side, side, inputs))
    convolution = relay.nn.conv2d(x, weight, strides=2, padding=1, data_layout="NHWC")
    optimized = relay.optimize(IRModule({"main": relay.Function((x,), convolution)}), target)
    kernels = [str(lower(node.workload, target).function) for node in make_graph(optimized["main"]).nodes]
    return next(text for text in kernels if "conv2d = allocate" in text)


@pytest.mark.parametrize(("cpu", "asked"), [("sapphirerapids", True), ("haswell", False)])
def test_windows_have_no_registers_for_such_lines_where_there_are_sixteen(cpu: str, asked: bool):
    """A 3 x 3 convolution of 56 x 56 x 128 by 2 took 1.75 times as long."""
    assert ("3, 1)" in convolution_loops(56, 128, 128, cpu)) == asked


def test_windows_of_few_channels_leave_registers_for_pixels_and_ask_for_lines_that_results_go_to():
    """Tiles of 28 vectors, all taps of a line of which are written out, had sums moved to memory and back."""
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
    """Of weights of one line for a place, too."""
    rng = np.random.default_rng(size)
    data = rng.standard_normal((1, inputs, size, size), dtype=np.float32)
    weight = relay.const(rng.standard_normal((96, inputs, 3, 3), dtype=np.float32))
    x = relay.var("x", data.shape)
    function = relay.Function((x,), relay.nn.conv2d(x, weight, channels=96, kernel_size=(3, 3), padding=(1, 1, 1, 1)))
    result = graph_executor.GraphModule(relay.build(function, f"llvm {FAR}")["default"](device("cpu", 0)))(data)[0]
    np.testing.assert_allclose(result.numpy(), relay.interpreter.evaluate(function, [data]), rtol=1e-3, atol=1e-3)

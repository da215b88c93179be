"""Products with block-quantised weights: versions for few of a dynamic number of rows, and prefetches."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op.nn.dense_bits import dense_bits
from relayc.relay.transform import PassContext
from relayc.te.ir import IRModule
from relayc.te.tir import Dim, PrimFunc, SizeVar
from tests.topi.prefetched import Prefetched

BLOCK, DEPTH, COLUMNS, WIDTH = 32, 128, 128, 16
AVX512 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=1"
HASWELL = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=1"


def product(rows: Dim, bits: int = 4) -> tuple[relay.Function, np.ndarray]:
    """A product of (rows, DEPTH), and the real weights (COLUMNS, DEPTH)."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 1 << bits, (COLUMNS, DEPTH)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (COLUMNS, DEPTH // BLOCK)).astype(np.float32)
    packed = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    x = relay.var("x", (rows, DEPTH))
    real = (codes - np.float32(1 << (bits - 1))) * scales.repeat(BLOCK, 1)
    return relay.Function([x], dense_bits(x, packed, scales, None, bits)), real


def kernel(rows: Dim, target: str, activations: str) -> PrimFunc:
    """The function of the product's kernel."""
    with PassContext(config={"relay.activations": activations}):
        optimized = relay.optimize(IRModule({"main": product(rows)[0]}), Target(target))
        found = [lower(node.workload, Target(target)).function for node in make_graph(optimized["main"]).nodes]
    (function,) = [function for function in found if "dense_blocks" in function.name]
    return function


@pytest.mark.parametrize(
    ("target", "activations", "many"),
    [(AVX512, "float", 25), (AVX512, "int8", 25), (HASWELL, "float", 19), (HASWELL, "int8", 13)],
)
def test_few_rows_unpack_codes_in_registers(target: str, activations: str, many: int):
    """Up to three of the tallest tiles for few rows do; the tiles of more read panels that are unpacked once."""
    first, _, fewer = str(kernel(SizeVar("n"), target, activations)).partition("    else:")
    assert re.search(rf"if likely\(.*#0 >= {many}\):", first)
    assert "codes = allocate" in first and "codes = allocate" not in fewer


@pytest.mark.parametrize("rows", [30, SizeVar("n")])
@pytest.mark.parametrize("target", [AVX512, HASWELL])
def test_panels_to_be_unpacked_are_prefetched(target: str, rows: Dim):
    """Each line of the second and later panels at least once, while the panel before is multiplied."""
    function = kernel(rows, target, "float")
    buffers = function.buffer_map
    arguments = [
        np.zeros([int(d) if str(d).isdigit() else 30 for d in buffers[param].shape], str(buffers[param].dtype))
        if param in buffers else 30 for param in function.params
    ]  # fmt: skip
    (codes,) = [buffer for buffer in buffers.values() if len(buffer.shape) == 3 and str(buffer.dtype) == "int32"]
    lines = Prefetched(function, codes.name, tuple(arguments)).lines
    size = int(np.prod([int(d) for d in codes.shape])) * 4 // 64
    pairs = size * 2 * WIDTH // COLUMNS
    assert all(lines[line] for line in range(pairs, size))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("activations", ["float", "int8"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell"])
def test_results_of_any_number_of_rows(target: str, activations: str, bits: int):
    function, real = product(SizeVar("n"), bits)
    with PassContext(config={"relay.activations": activations}):
        built = relay.build(function, f"{target} -num-cores=2")
    module = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2)
    random = np.random.default_rng(1)
    for rows in (40, *range(1, 30), 0, 67):
        data = random.standard_normal((rows, DEPTH), np.float32)
        exact = data.astype(np.float64) @ real.T
        tolerance = 1e-4 if activations == "float" else 0.02
        (result,) = module.infer({"x": data})
        assert result.shape == exact.shape
        assert np.abs(result - exact).max(initial=0) <= tolerance * np.abs(exact).max(initial=1)

"""Products with block-quantised weights on GPUs: few, many and any number of rows, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.cuda.disassemble import instruction_counts
from relayc.backend.runtime import graph_executor
from relayc.relay.interpreter import evaluate
from relayc.relay.op.nn.dense_bits import dense_bits
from relayc.relay.transform import PassContext
from relayc.te.ir import IRModule
from relayc.te.ir.decisions import recording
from tests.cuda_proof import proof

RANDOM = np.random.default_rng(5)
LAYOUTS = [
    (37, 96, 32, 4, "zeros"), (100, 1376, 32, 4, "table"), (24, 512, 128, 4, ""), (50, 80, 16, 8, "zeros"),
    (16, 64, 64, 8, ""), (33, 192, 64, 4, "float zeros"),
]  # fmt: skip
"""Columns, depth, weights of a block, bits, and what comes with the scales."""


def program(rows: te.tir.Dim, columns: int, depth: int, block: int, bits: int, kind: str = "", dtype: str = "float32"):
    """relu of a product and a bias, of data (rows, depth); the same weights for equal layouts."""
    random = np.random.default_rng(depth)
    codes = random.integers(0, 256, (columns, depth * bits // 8)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (columns, depth // block)).astype(np.float16).astype(np.float32)
    zeros = random.integers(0, 1 << bits, scales.shape) + (0.25 if kind == "float zeros" else 0)
    x = relay.var("x", (rows, depth), dtype)
    y = dense_bits(
        x, codes, scales, zeros if "zeros" in kind else None, bits,
        table=random.standard_normal(16).astype(np.float32) if kind == "table" else None,
    )  # fmt: skip
    bias = relay.const(random.standard_normal(columns).astype(dtype))
    return relay.Function((x,), relay.nn.relu(y + bias))


def data(function: relay.Function, rows: int) -> np.ndarray:
    ty = function.params[0].tensor_type
    return RANDOM.standard_normal((rows, int(ty.shape[1]))).astype(str(ty.dtype))


def assert_near(result: np.ndarray, function: relay.Function, x: np.ndarray) -> None:
    tolerance = 1e-4 if x.dtype == np.float32 else 2e-2
    expected = evaluate(function, [x]).astype(np.float32)
    np.testing.assert_allclose(result.astype(np.float32), expected, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("rows", "dtype"), [(1, "float32"), (3, "float16"), (8, "float32"), (17, "float16")])
def test_results(cuda_device, rows, dtype, layout):
    function = program(rows, *layout, dtype=dtype)
    x = data(function, rows)
    assert_near(proof.run(cuda_device, function, {"x": x})[0], function, x)


@pytest.mark.parametrize(("rows", "dtype"), [(128, "float32"), (130, "float16"), (520, "float16"), (513, "float32")])
def test_results_of_many_rows(cuda_device, rows, dtype):
    function = program(rows, 37, 96, 32, 4, "zeros", dtype)
    x = data(function, rows)
    assert_near(proof.run(cuda_device, function, {"x": x})[0], function, x)


def test_results_of_any_number_of_rows(cuda_device):
    """One build for all numbers of rows; those of the kernels that don't serve have no blocks."""
    function = program(te.size_var("n"), 37, 96, 32, 4, "zeros")
    library = relay.build(IRModule({"main": function}), "cuda -arch=sm_90")
    executor = graph_executor.GraphModule(library["default"](cuda_device))
    for rows in (1, 2, 8, 9, 40, 1):
        x = data(function, rows)
        executor.run(x=x)
        assert_near(executor.get_output(0).numpy(), program(rows, 37, 96, 32, 4, "zeros"), x)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_machine_code_reads_16_bytes_and_does_not_spill(arch):
    """A thread's words are loaded together, codes become floats without conversions."""
    for rows, bits in ((1, 4), (8, 4), (1, 8)):
        module = proof.compile_for(proof.kernels_of(program(rows, 4096, 4096, 32, bits), arch), arch)
        assert not proof.over_budget(module)
        (counts,) = instruction_counts(module.get_source("sass")).values()
        wide = sum(n for name, n in counts.items() if name.startswith("LDG") and ".128" in name)
        assert wide >= 4 and not any(name.startswith("I2F") for name in counts), counts
    module = proof.compile_for(proof.kernels_of(program(64, 4096, 4096, 32, 4, dtype="float16"), arch), arch)
    assert not proof.over_budget(module)


def test_half_precision_converts_the_data_and_leaves_scales_and_tables(cuda_device):
    function = program(16, 48, 64, 32, 4, "table")
    with PassContext(config={"relay.ToMixedPrecision.dtype": "float16"}):
        text = str(relay.optimize(IRModule({"main": function}), "cuda -arch=sm_90")["main"])
        x = data(function, 16)
        (result,) = proof.run(cuda_device, function, {"x": x})
    assert "Tensor[(16, 64), float16], %p1: Tensor[(3, 8, 16), int32]" in text and "Tensor[(16,), float32]" in text
    np.testing.assert_allclose(result, evaluate(function, [x]), rtol=2e-2, atol=8e-2)


@pytest.mark.parametrize(
    ("rows", "choice", "refused"),
    [
        (1, "a few rows, words read once", []),
        (64, "floats of the weights of a tile", ["64 rows; at most 8", "64 rows in every run", "64 rows; from 512 on"]),
        (600, "floats of all weights before the product", ["600 rows; at most 8", "600 rows in every run"]),
        (te.size_var("n"), "versions for one, a few and many rows", ["rows; at most 8"]),
    ],
)
def test_decisions_say_why(rows, choice, refused):
    with recording() as decisions:
        proof.kernels_of(program(rows, 48, 64, 32, 4), "sm_90")
    (decision,) = [d for d in decisions if d.subject == "schedule of dense_bits"]
    assert decision.choice == choice
    for (_, reason), part in zip(decision.refused, refused, strict=True):
        assert part in reason

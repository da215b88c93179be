"""Products of few rows on CPUs by matrices that are read in place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relayc import relay, te
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay import op
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op import nn
from relayc.te.ir import IRModule

TARGETS = ["llvm -num-cores=2", "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-fma,-avx"]
TYPES = {"float16": (np.float16, 2e-3), "bfloat16": (ml_dtypes.bfloat16, 1e-2), "float64": (np.float64, 1e-13)}
SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2")


def product(
    left: tuple[int, ...], right: tuple[int, ...], dtype: str = "float32", transposed: bool = True
) -> relay.Function:
    a, b = relay.var("a", left, dtype), relay.var("b", right, dtype)
    return relay.Function((a, b), nn.relu(nn.batch_matmul(a, b, transpose_b=transposed)))


def loops_of(function: relay.Function, target: Target = SERVER) -> str:
    """The loops of a function of one kernel."""
    (node,) = make_graph(relay.optimize(IRModule({"main": function}), target)["main"]).nodes
    return str(lower(node.workload, target).function)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("columns", "steps"), [(16, 32), (5, 40), (33, 70), (100, 33), (64, 7), (24, 197)])
def test_few_rows_by_transposed_matrices(rows: int, columns: int, steps: int, target: str):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((2, rows, steps), dtype=np.float32)
    y = rng.standard_normal((2, columns, steps), dtype=np.float32)
    lib = relay.build(product(x.shape, y.shape), target)
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(x, y)[0].numpy()
    expected = np.maximum(x.astype(np.float64) @ np.swapaxes(y, 1, 2), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [4, 8, 16])
def test_few_rows_by_themselves(rows: int, target: str):
    """The kernel reads one tensor, as both operands."""
    x = relay.var("x", (2, rows, 144))
    lib = relay.build(relay.Function((x,), nn.relu(nn.batch_matmul(x, x, transpose_b=True))), target)
    value = np.random.default_rng(0).standard_normal((2, rows, 144), dtype=np.float32)
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(value)[0].numpy()
    expected = np.maximum(value.astype(np.float64) @ np.swapaxes(value, 1, 2), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [2, 70, "n"])
@pytest.mark.parametrize(("columns", "steps"), [(16, 32), (5, 40), (33, 70), (64, 7)])
def test_rows_by_matrices_that_are_looked_up(count: int | str, columns: int, steps: int, target: str):
    rng = np.random.default_rng(0)
    n = count if isinstance(count, int) else te.size_var(count)
    x, at = relay.var("x", (n, 1, steps)), relay.var("at", (n,), "int64")
    y = rng.standard_normal((3, columns, steps), dtype=np.float32)
    found = op.take(relay.const(y), at, axis=0, mode="fast")
    lib = relay.build(relay.Function((x, at), nn.relu(nn.batch_matmul(x, found, transpose_b=True))), target)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    for size in [count] if isinstance(count, int) else [1, 31, 65]:
        rows, which = rng.standard_normal((size, 1, steps), dtype=np.float32), rng.integers(0, 3, size)
        expected = np.maximum(rows.astype(np.float64) @ np.swapaxes(y, 1, 2)[which], 0)
        np.testing.assert_allclose(executor(rows, which)[0].numpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("columns", "steps"), [(16, 32), (5, 40), (33, 70), (256, 7), (97, 512)])
@pytest.mark.parametrize("transposed", [False, True])
def test_groups_of_rows_by_matrices_that_are_looked_up(columns, steps, transposed, constant, target):
    """Their number and length dynamic, or static; positions checked, or not."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((3, columns, steps) if transposed else (3, steps, columns), dtype=np.float32)
    for groups, rows in [(1, 1), (3, 1), (2, 4), (7, 6), (20, 8), (3, 19)]:
        sizes = (groups, rows) if constant else (te.size_var("groups"), te.size_var("rows"))
        x, at = relay.var("x", (*sizes, steps)), relay.var("at", sizes[:1], "int64")
        found = op.take(relay.const(y), at, axis=0, mode="fast" if groups > 1 else "numpy")
        product = nn.relu(nn.batch_matmul(x, found, transpose_b=transposed))
        lib = relay.build(relay.Function((x, at), product), target)
        executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
        data, which = rng.standard_normal((groups, rows, steps), dtype=np.float32), rng.integers(0, 3, groups)
        which = which if groups > 1 else which - 3
        matrices = y[which].swapaxes(1, 2) if transposed else y[which]
        expected = np.maximum(data.astype(np.float64) @ matrices, 0)
        np.testing.assert_allclose(executor(data, which)[0].numpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize(("columns", "steps"), [(40, 70), (16, 96)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_other_floats(rows: int, columns: int, steps: int, dtype: str, transposed: bool):
    rng, (kind, tolerance) = np.random.default_rng(rows), TYPES[dtype]
    x = rng.standard_normal((rows, steps)).astype(kind)
    y = rng.standard_normal((columns, steps) if transposed else (steps, columns)).astype(kind)
    lib = relay.build(product(x.shape, y.shape, dtype, transposed))
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)))(x, y)[0].numpy()
    expected = np.maximum(x.astype(np.float64) @ (y.T if transposed else y).astype(np.float64), 0)
    assert result.dtype == kind
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance * expected.max())


@pytest.mark.parametrize(("columns", "steps"), [(64, 70), (64, 64), (33, 70)])
def test_lanes_are_reduced_for_a_vector_of_results(columns: int, steps: int):
    """For any length of the rows: a partial vector is masked, once for all whole ones before it."""
    loops = loops_of(product((1, steps), (columns, steps)))
    assert "shuffle(" in loops and f"range({steps // 16})" in loops
    assert ("where=" in loops) == (steps % 16 > 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_narrow_matrices_that_are_read_once_are_widened_in_place(dtype: str, transposed: bool):
    loops = loops_of(product((1, 64), (64, 64), dtype, transposed))
    assert f'"{dtype}"' in loops, "the only kernel"


def test_panels_of_doubles_take_as_many_registers_as_floats():
    """Vectors have half as many lanes: otherwise a tile would take twice the registers that there are."""
    function = product((96, 64), (64, 64), "float64", transposed=False)
    text = relay.build(function, SERVER).module.get_source("asm")
    assert "vfmadd" in text and "pd" in text
    hot = max(text.split("\n.LBB"), key=lambda block: block.count("vfmadd"))
    assert hot.count("vfmadd") > 20 and "(%rsp)" not in hot, "no accumulator is spilled"


@pytest.mark.parametrize("columns", [1, 3])
def test_a_dynamic_depth_is_read_in_place_by_vectors(columns: int):
    m, k = te.size_var("m"), te.size_var("k")
    a, b = relay.var("a", (m, k)), relay.var("b", (k, 1) if columns == 1 else (columns, k))
    function = relay.Function((a, b) if columns == 1 else (b, a), (
        nn.batch_matmul(a, b, transpose_b=False) if columns == 1 else nn.batch_matmul(b, a, transpose_b=True)
    ))  # fmt: skip
    nodes = make_graph(relay.optimize(IRModule({"main": function}), SERVER)["main"]).nodes
    loops = [str(lower(node.workload, SERVER).function) for node in nodes if node.workload is not None]
    assert any("ramp(0, 1, 16)" in text for text in loops) and len(loops) == 1
    module = graph_executor.GraphModule(relay.build(function)["default"](device("cpu", 0)))
    for rows, depth in ((1, 1), (5, 7), (40, 64), (33, 300)):
        x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
        y = np.random.default_rng(depth).standard_normal((columns, depth)).astype(np.float32)
        result = module(x, y.T.copy())[0].numpy() if columns == 1 else module(y, x)[0].numpy().T
        np.testing.assert_allclose(result, x @ y.T, rtol=1e-5, atol=1e-4)

"""Attention on CPUs: one kernel for any sizes, divisible by the blocks or not, compiled and compared with numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relayc import backend, relay, te
from relayc.backend.llvm.codegen import PassSelection
from relayc.backend.llvm.compiler import Compiler
from relayc.backend.runtime import graph_executor
from relayc.relay import Function, IRModule, const, op, var
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op.base import get_op, make_call
from relayc.te.ir import collect
from relayc.te.tir import Allocate
from relayc.topi.groups import constant_size

SIZES = {
    "whole blocks": (1, 48, 48, 2, 2, 16, 16),
    "partial everything": (2, 37, 53, 3, 3, 10, 21),
    "fewer queries than a block": (1, 9, 70, 2, 2, 8, 8),
    "shared heads": (1, 24, 40, 4, 2, 16, 16),
    "one head for all": (2, 16, 33, 4, 1, 8, 24),
    "one key": (1, 12, 1, 2, 2, 8, 8),
    "many keys": (1, 16, 1500, 1, 1, 8, 8),
    "a last panel that lacks vectors": (1, 30, 70, 2, 2, 24, 24),
}


def attention_graph(
    sizes: tuple[int, ...], mask: tuple[int, ...] | None, dtype: str, **attrs: float
) -> tuple[Function, list[np.ndarray]]:
    """nn.attention between transposes of (batch, positions, heads, channels), and random inputs."""
    batch, queries, keys, heads, groups, depth, width = sizes
    shapes = [(batch, queries, heads, depth), (batch, keys, groups, depth), (batch, keys, groups, width)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    params = [var(name, shape) for name, shape in zip("qkv", shapes, strict=True)]
    operands = [op.transpose(p, (0, 2, 1, 3)) for p in params]
    if mask is not None:
        values = rng.standard_normal(mask).astype("float32")
        arrays.append(values if dtype == "float32" else values > 0)
        params.append(var("m", mask, dtype))
        operands.append(params[-1])
    call = make_call("nn.attention", operands, None, scale=0.3, **attrs)
    return Function(tuple(params), op.transpose(call, (0, 2, 1, 3))), arrays


def compiled_against_reference(function: Function, arrays: list[np.ndarray]) -> None:
    mod = IRModule({"main": function})
    graph = make_graph(relay.optimize(mod, backend.Target("llvm"))["main"])
    assert [node.workload.operators[-1] for node in graph.nodes] == ["nn.blocked_attention"]
    executor = graph_executor.GraphModule(relay.build(mod, target="llvm")["default"](backend.device("cpu", 0)))
    for index, array in enumerate(arrays):
        executor.set_input(index, array)
    executor.run()
    expected = relay.interpreter.evaluate(function, arrays)
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str):
    compiled_against_reference(*attention_graph(SIZES[name], None, "float32"))


FEW = [
    (1, 1, 70, 4, 2, 16, 24), (2, 7, 33, 3, 3, 10, 21), (1, 1, 1, 2, 2, 8, 8), (1, 1, 133, 8, 2, 32, 80),
    (2, 2, 64, 6, 2, 16, 16), (1, 7, 40, 2, 2, 64, 96), (1, 1, 50, 7, 1, 16, 128), (1, 1, 37, 12, 12, 16, 16),
]  # fmt: skip


@pytest.mark.parametrize("sizes", FEW)
@pytest.mark.parametrize("masked", [False, True])
def test_few_queries_read_keys_and_values_in_place(sizes: tuple[int, ...], masked: bool):
    batch, queries, keys, *_ = sizes
    function, arrays = attention_graph(sizes, (batch, 1, queries, keys) if masked else None, "float32")
    (node,) = make_graph(relay.optimize(IRModule({"main": function}), backend.Target("llvm"))["main"]).nodes
    assert "panels" not in str(lower(node.workload, backend.Target("llvm")).function)
    compiled_against_reference(function, arrays)


TARGETS = {
    "skylake-avx512": ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512", 16, 16),
    "haswell": ("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell", 8, 8),
    "neoverse-n1": ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1", 4, 16),
}


@pytest.mark.parametrize("cpu", TARGETS)
def test_grouped_heads_read_shared_keys_once(cpu: str):
    """All rows take one load of each vector of a key, as long as registers hold a vector accumulator for each row."""
    name, lanes, most = TARGETS[cpu]
    target = backend.Target(name)
    for rows in (2, most, most + 2):
        function, _ = attention_graph((1, rows // 2, 256, 8, 4, 64, 64), None, "float32")
        (node,) = make_graph(relay.optimize(IRModule({"main": function}), target)["main"]).nodes
        text = str(lower(node.workload, target).function)
        assert ("panels" in text) == (rows > most)
        if rows <= most:
            assert re.search(r"in parallel\(4\)|in range\(4\):", text.split("product", 1)[0]), (
                "a head of keys at a time"
            )
            (sums,) = set(re.findall(r"product\.rf\.local = allocate\(\[(\d+)\]", text))
            assert int(sums) == rows * lanes, "accumulators of one key"
            assert len(re.findall(r" = shuffle\(", text)) == rows * 2 * (lanes - 1)


@pytest.mark.parametrize("queries", [1, 3, 19])
@pytest.mark.parametrize("mask", [(1, 6, "s", 45), (2, 1, "s", 45), (1, 1, 1, 45), (6, 1, 45), None])
def test_masks_of_grouped_heads(mask: tuple[int | str, ...] | None, queries: int):
    shape = mask and tuple([queries if n == "s" else int(n) for n in mask])
    sizes = (2, queries, 45, 6, 2, 16, 24)
    compiled_against_reference(*attention_graph(sizes, shape, "float32", causal=mask is None, softcap=2.0))


@pytest.mark.parametrize("dtype", ["float32", "bool"])
@pytest.mark.parametrize("mask", [(1, 1, 20, 37), (2, 1, 1, 37), (37,), (2, 3, 20, 37), (20, 1)])
def test_masks(mask: tuple[int, ...], dtype: str):
    compiled_against_reference(*attention_graph((2, 20, 37, 3, 3, 8, 8), mask, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bool"])
@pytest.mark.parametrize("mask", [(1, 1, 20, 37), (2, 1, 1, 37), (20, 1)])
def test_masks_with_a_partial_last_panel(mask: tuple[int, ...], dtype: str):
    compiled_against_reference(*attention_graph((2, 20, 37, 3, 3, 24, 40), mask, dtype))


@pytest.mark.parametrize(("keys", "depth"), [(40, 8), (75, 8), (33, 8), (37, 24), (69, 40)])
def test_causal(keys: int, depth: int):
    compiled_against_reference(*attention_graph((1, 33, keys, 2, 2, depth, 24), None, "float32", causal=True))


@pytest.mark.parametrize(
    ("cpu", "keys", "row"),
    [
        ("skylake-avx512", 197, 208),
        ("skylake-avx512", 192, 192),
        ("skylake-avx512", 1000, 1024),
        ("haswell", 197, 208),
        ("haswell", 70, 72),
        ("x86-64-v2", 9, 12),
    ],
)
def test_rows_of_scores_are_padded_to_whole_vectors(cpu: str, keys: int, row: int):
    """To whole panels where that computes little more."""
    function, _ = attention_graph((1, 64, keys, 2, 2, 64, 64), None, "float32")
    target = backend.Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={cpu}")
    (node,) = make_graph(relay.optimize(IRModule({"main": function}), target)["main"]).nodes
    text = str(lower(node.workload, target).function)
    (block,) = re.findall(r"score = allocate\(\[(\d+)\]", text)
    (rows,) = re.findall(r"largest = allocate\(\[(\d+)\]", text)
    assert int(block) == int(rows) * row


def test_fully_masked_rows():
    function, arrays = attention_graph((1, 20, 18, 1, 1, 8, 8), (20, 18), "bool")
    arrays[-1][3] = False
    compiled_against_reference(function, arrays)
    function, arrays = attention_graph((1, 20, 18, 1, 1, 8, 8), (20, 18), "bool", masked_value=-3.0)
    arrays[-1][3] = False
    compiled_against_reference(function, arrays)


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 6, 30])
def test_narrow_types_are_read_without_casts(queries: int, kind: str, target: str):
    """Few queries and blocks; scores are rounded, everything else is float32."""
    shapes = [(2, 4, queries, 32), (2, 2, 41, 32), (2, 2, 41, 32), (2, 1, 1, 41)]
    params = [var(name, shape, kind) for name, shape in zip("qkvm", shapes, strict=True)]
    function = Function(tuple(params), make_call("nn.attention", params, None, scale=0.3, rounded=True))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(kind) for shape in shapes]
    mod = IRModule({"main": function})
    text = str(relay.optimize(mod, backend.Target(target))["main"])
    assert "nn.blocked_attention" in text and "cast" not in text
    executor = graph_executor.GraphModule(relay.build(mod, target=target)["default"](backend.device("cpu", 0)))
    for index, array in enumerate(arrays):
        executor.set_input(index, array)
    executor.run()
    expected = relay.interpreter.evaluate(function, arrays).astype("float64")
    unit = 2.0 ** (-10 if kind == "float16" else -7)
    np.testing.assert_allclose(executor.get_output(0).numpy().astype("float64"), expected, rtol=4 * unit, atol=2 * unit)


def test_operator_is_registered():
    assert get_op("nn.blocked_attention").num_copied_inputs == 3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [2, 8])
def test_dynamic_shapes(causal: bool, masked: bool, heads: int):
    queries, keys = te.size_var("s"), te.size_var("t")
    params = [var("q", (1, queries, heads, 8)), var("k", (1, keys, 2, 8)), var("v", (1, keys, 2, 12))]
    operands = [op.transpose(p, (0, 2, 1, 3)) for p in params]
    if masked:
        params.append(var("m", (queries, keys)))
        operands.append(params[-1])
    call = make_call("nn.attention", operands, None, scale=0.3, causal=causal)
    function = Function(tuple(params), op.transpose(call, (0, 2, 1, 3)))
    lib = relay.build(IRModule({"main": function}), target="llvm")
    executor = graph_executor.GraphModule(lib["default"](backend.device("cpu", 0)))
    rng = np.random.default_rng(0)
    for s, t in [(1, 1), (1, 70), (5, 40), (7, 33), (24, 24), (61, 130), (200, 16)]:
        shapes = [(1, s, heads, 8), (1, t, 2, 8), (1, t, 2, 12), (s, t)][: len(params)]
        arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        for index, array in enumerate(arrays):
            executor.set_input(index, array)
        executor.run()
        q, k, v = [np.swapaxes(a, 1, 2) for a in arrays[:3]]
        expected = make_call("nn.attention", [const(a) for a in (q, k, v, *arrays[3:])], None, scale=0.3, causal=causal)
        reference = relay.interpreter.evaluate(Function((), expected), [])
        np.testing.assert_allclose(executor.get_output(0).numpy(), np.swapaxes(reference, 1, 2), rtol=1e-4, atol=1e-5)


def test_single_queries_read_keys_and_values_in_place():
    queries, keys = te.size_var("s"), te.size_var("t")
    params = [var("q", (1, 4, queries, 64)), var("k", (1, 2, keys, 64)), var("v", (1, 2, keys, 96))]
    function = Function(tuple(params), make_call("nn.attention", params, None, scale=0.125))
    optimized = relay.optimize(IRModule({"main": function}), backend.Target("llvm"))
    text = str(lower(make_graph(optimized["main"]).nodes[0].workload, backend.Target("llvm")).function)
    assert text.count("else:") == 2, "blocks, tiles, and queries one by one"
    assert "panels" not in text.rsplit("else:", 1)[1]
    executor = graph_executor.GraphModule(relay.build(function)["default"](backend.device("cpu", 0)))
    rng = np.random.default_rng(0)
    for s, t in [(1, 100), (3, 5)]:
        shapes = [(1, 4, s, 64), (1, 2, t, 64), (1, 2, t, 96)]
        arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
        expected = relay.interpreter.evaluate(
            Function((), make_call("nn.attention", [const(a) for a in arrays], None, scale=0.125)), []
        )
        np.testing.assert_allclose(executor(*arrays)[0].numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "target",
    [
        "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v2",
        "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell",
        "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512",
        "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    ],
)
@pytest.mark.parametrize(("keys", "depth", "transposed"), [(64, 32, True), (53, 10, True), (64, 3, False)])
def test_keys_are_transposed_in_registers(target: str, keys: int, depth: int, transposed: bool):
    function, _ = attention_graph((1, 64, keys, 2, 2, depth, 16), None, "float32")
    (node,) = make_graph(relay.optimize(IRModule({"main": function}), backend.Target(target))["main"]).nodes
    text = str(lower(node.workload, backend.Target(target)).function)
    assert ("shuffle(" in text) == transposed
    assert ("key_rows = allocate" in text) == transposed, "other keys are gathered in place"


def nbytes(allocate: Allocate) -> int:
    return constant_size(allocate.buffer.shape) * allocate.buffer.dtype.nbytes


@pytest.mark.parametrize(("queries", "keys"), [(256, 256), (128, 128), (197, 197), (30, 70)])
def test_blocks_of_rows_leave_llvm_no_loop_to_vectorize(queries: int, keys: int):
    """Not even the one over the rows of a block that divides by their sums: few of LLVM's passes take half the time."""
    function, _ = attention_graph((1, queries, keys, 2, 2, 32, 32), None, "float32")
    target = backend.Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
    (node,) = make_graph(relay.optimize(IRModule({"main": function}), target)["main"]).nodes
    assert Compiler(target).emit([lower(node.workload, target).function]).passes is PassSelection.FEW


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cores", [2, 16])
def test_the_score_matrix_is_never_materialised(cores: int, causal: bool):
    """4096 queries and keys: not in the graph, nor in workspaces, nor in the memory of all threads."""
    length = 4096
    function, _ = attention_graph((1, length, length, 2, 2, 64, 64), None, "float32", causal=causal)
    target = backend.Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores={cores}")
    report = relay.build(IRModule({"main": function}), target).build_report
    graph = make_graph(relay.optimize(IRModule({"main": function}), target)["main"])
    allocated = [
        sum(map(nbytes, collect(lower(node.workload, target).function, Allocate)))
        for node in graph.nodes
    ]
    assert report.arena_bytes + cores * max(allocated) < length * length * 4 / 4
    assert max(allocated) > 0, "blocks of scores are thread-local"


@pytest.mark.parametrize(
    ("heads", "cores", "expected"), [(12, 2, "heads"), (12, 8, "blocks"), (1, 2, "blocks"), (3, 1, "heads")]
)
def test_heads_or_blocks_partition_evenly(heads: int, cores: int, expected: str):
    function, _ = attention_graph((1, 256, 64, heads, heads, 32, 32), None, "float32")
    target = backend.Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores={cores}")
    (node,) = make_graph(relay.optimize(IRModule({"main": function}), target)["main"]).nodes
    kernel = lower(node.workload, target)
    assert bool(kernel.workspaces) == (expected == "blocks"), "shared panels are workspaces"


@pytest.mark.parametrize("dynamic", [False, True])
def test_causal_blocks_do_not_touch_keys_that_none_of_their_queries_sees(dynamic: bool):
    """The value of the last key is NaN, which a weight of 0 does not hide."""
    queries = 200
    sizes = (te.size_var("s"), te.size_var("t")) if dynamic else (queries, queries)
    params = [var("q", (1, 4, sizes[0], 64)), *[var(name, (1, 2, sizes[1], 64)) for name in "kv"]]
    function = Function(tuple(params), make_call("nn.attention", params, None, scale=0.125, causal=True))
    executor = graph_executor.GraphModule(relay.build(function)["default"](backend.device("cpu", 0)))
    rng = np.random.default_rng(0)
    q, k, v = [rng.standard_normal((1, heads, queries, 64)).astype("float32") for heads in (4, 2, 2)]
    v[:, :, -1] = np.nan
    result = executor(q, k, v)[0].numpy()
    assert np.isfinite(result[:, :, :100]).all() and np.isnan(result[:, :, -1]).all()

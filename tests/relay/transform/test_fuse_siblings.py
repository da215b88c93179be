"""Elementwise kernels that read the same large tensor: which are merged, and that results are unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.analysis import evaluation_order, well_formed
from relayc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem, Var, const, var
from relayc.relay.interpreter import evaluate
from relayc.relay.lowering.lower import Workload, lower
from relayc.relay.op import nn
from relayc.relay.transform.canonicalize_ops import CanonicalizeOps
from relayc.relay.transform.fuse_ops import FuseOps
from relayc.relay.transform.fuse_siblings import FuseSiblings
from relayc.relay.transform.pipeline import default_pipeline
from relayc.te.ir import IRModule, PassContext, collect
from relayc.te.tir import BufferStore, For, ForKind, SizeVar

TARGET = Target("llvm -l1-bytes=1024")
"""A processor whose caches are smaller than all tensors here."""
RANDOM = np.random.default_rng(11)


def image(name: str = "x", side: int = 20) -> Var:
    return var(name, (2, side, side))


def fuse(*outputs: Expr, params: list[Var], target: Target = TARGET) -> Function:
    module = IRModule({"main": Function(tuple(params), Tuple(tuple(outputs)))})
    fused = FuseSiblings(target)(FuseOps()(module))["main"]
    well_formed(fused)
    return fused


def calls(function: Function) -> list[Call]:
    return [e for e in evaluation_order(function.body) if isinstance(e, Call) and isinstance(e.op, Function)]


def results(function: Function) -> list[int]:
    """The number of results of each call, fewest first."""
    return sorted(len(c.op.body.fields) if isinstance(c.op.body, Tuple) else 1 for c in calls(function))  # type: ignore[union-attr]


def check(*outputs: Expr, params: list[Var], target: str | Target = TARGET) -> int:
    """Compile and compare with the operators' references; returns the number of kernels that run."""
    module = IRModule({"main": Function(tuple(params), Tuple(tuple(outputs)))})
    data = [RANDOM.uniform(-3, 3, p.tensor_type.static_shape).astype(str(p.dtype)) for p in params]
    compiled = relay.build(module, target)
    executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=2)
    for run in (executor.run, lambda **inputs: executor.profile(repeat=1, **inputs)):
        run(**{p.name: value for p, value in zip(params, data, strict=True)})
        for i, value in enumerate(evaluate(module, data)):
            np.testing.assert_allclose(executor.get_output(i).numpy(), value, rtol=1e-5, atol=1e-6)
    return compiled.build_report.nodes


def test_sine_and_cosine_of_a_tensor_are_one_call():
    x = image()
    fused = fuse(relay.sin(x), relay.cos(x), params=[x])
    assert results(fused) == [2]
    assert all(isinstance(field, TupleGetItem) for field in fused.body.fields)  # type: ignore[attr-defined]
    (call,) = calls(fused)
    assert call.args == (x,)


def test_chains_share_what_they_read_and_give_it_once():
    x, y, row = image(), image("y"), var("row", (20,))
    outputs = relay.sin(relay.add(x, y)), relay.multiply(nn.relu(relay.add(x, row)), y), relay.negative(x)
    fused = fuse(*outputs, params=[x, y, row])
    assert results(fused) == [3]
    assert {a.name for a in calls(fused)[0].args} == {"x", "y", "row"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("columns", "parts", "kernels"),
    [(9, 3, [3]), (20, 2, [2]), (3, 3, [3]), (32, 2, [1, 1]), (9, [2, 5], [1, 1, 1]), (9, [3, 6], [3])],
    ids=["three", "two", "single columns", "whole cache lines", "other shapes", "places of cuts"],
)
def test_column_slices_are_one_call(columns: int, parts: int | list[int], kernels: list[int]) -> None:
    """Each of their cache lines has elements of several slices."""
    x = var("x", (300, columns))
    pieces = relay.split(x, parts if isinstance(parts, int) else tuple(parts), axis=1)
    body = IRModule({"main": Function((x,), Tuple(tuple(pieces)))})
    fused = FuseSiblings(TARGET)(FuseOps()(CanonicalizeOps()(body)))["main"]
    assert results(fused) == kernels
    assert check(*pieces, params=[x]) == len(kernels)


@pytest.mark.parametrize("target", ["llvm -l2-bytes=4096 -l3-bytes=4096", "llvm -mcpu=haswell"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "float64"])
@pytest.mark.parametrize(("shape", "parts"), [((4099, 9), 3), ((2, 1201, 6), 2), ((1031, 28), 4), ((997, 4), 4)])
def test_column_slices_equal_numpy_split(shape: tuple[int, ...], parts: int, dtype: str, target: str) -> None:
    x = var("x", shape, dtype)
    assert check(*relay.split(x, parts, axis=-1), params=[x], target=f"{target} -l1-bytes=1024") == 1


def test_a_slice_that_another_depends_on_is_left_alone() -> None:
    x, y = var("x", (300, 6)), var("y", (300, 3))
    first, second = relay.split(x, 2, axis=1)
    outputs = relay.cumsum(first, axis=0), relay.add(second, relay.cumsum(relay.multiply(first, y), axis=0))
    check(*outputs, params=[x, y])


def test_tensors_in_the_first_level_cache_are_left_alone():
    x = image()
    outputs = relay.sin(x), relay.cos(x)
    assert results(fuse(*outputs, params=[x], target=Target("llvm -l1-bytes=3200"))) == [1, 1]
    assert results(fuse(*outputs, params=[x], target=Target("llvm -l1-bytes=3199"))) == [2]


def test_kernels_that_share_small_tensors_only_are_left_alone():
    x, y, row = image(), image("y"), var("row", (20,))
    assert results(fuse(relay.add(x, row), relay.add(y, row), params=[x, y, row])) == [1, 1]


def test_dependent_siblings_are_left_alone():
    x = image()
    first = relay.sin(x)
    second = relay.multiply(x, relay.cumsum(first, axis=1))
    fused = fuse(first, second, params=[x])
    assert results(fused) == [1, 1, 1]


def test_groups_with_cyclic_dependencies_are_not_both_made():
    x, y = image(), image("y")
    sine, cosine = relay.sin(x), relay.cos(y)
    others = relay.multiply(y, relay.cumsum(sine, axis=1)), relay.multiply(x, relay.cumsum(cosine, axis=1))
    fused = fuse(sine, cosine, *others, params=[x, y])
    assert results(fused).count(2) == 1
    assert check(sine, cosine, *others, params=[x, y]) == 5


def test_consecutive_groups_are_made():
    x = image()
    sine, cosine = relay.sin(x), relay.cos(x)
    sums = relay.cumsum(sine, axis=1)
    fused = fuse(sine, cosine, relay.exp(sums), relay.negative(sums), params=[x])
    assert results(fused) == [1, 2, 2]


def test_other_shapes_data_movement_and_reductions_are_left_alone():
    x = var("x", (1, 20, 20))
    wider = relay.add(x, var("y", (2, 20, 20)))
    outputs = relay.sin(x), wider, relay.transpose(x, (0, 2, 1)), relay.sum(x, (1,)), relay.reverse(x, axis=1)
    assert max(results(fuse(*outputs, params=[x, wider.args[1]]))) == 1  # type: ignore[list-item]


def test_a_loop_writes_a_few_tensors_at_most():
    x = image()
    outputs = [relay.multiply(x, const(np.float32(i))) for i in range(2, 14)]
    assert results(fuse(*outputs, params=[x])) == [5, 7]


def test_without_fusion_nothing_is_merged():
    x = image()
    with PassContext(config={"relay.FuseOps.max_size": 1}):
        assert results(fuse(relay.sin(x), relay.cos(x), params=[x])) == [1, 1]


def test_gpus_keep_kernels_of_one_result():
    assert not any(isinstance(p, FuseSiblings) for p in default_pipeline(3, Target("cuda -arch=sm_90")))
    assert isinstance(default_pipeline(3, Target("llvm"))[-1], FuseSiblings)


@pytest.mark.parametrize("cpu", ["-mcpu=x86-64-v2", "-mcpu=haswell", "-mcpu=skylake-avx512",
                                 "-mtriple=aarch64-linux-gnu -mattr=+neon"])  # fmt: skip
def test_one_loop_stores_all_results(cpu: str):
    x = image(side=200)
    (call,) = calls(fuse(relay.sin(x), relay.cast(x, "int8"), params=[x]))
    function = lower(Workload.of(call.op), Target(f"llvm {cpu}")).function  # type: ignore[arg-type]
    (loop,) = [f for f in collect(function.body, For) if f.kind is ForKind.PARALLEL]
    assert len({store.buffer.data for store in collect(loop, BufferStore)}) == 2
    assert all(store.indices[-1].dtype.lanes > 1 for store in collect(loop, BufferStore))


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2", "c"])
def test_results_stay_what_they_are(target: str):
    x, y, row = image(side=173), image("y", 173), var("row", (173,))
    outputs = (relay.cos(x), relay.add(x, row), relay.greater(x, y), relay.cast(x, "float64"),
               relay.cast(relay.multiply(x, row), "int32"))  # fmt: skip
    assert check(*outputs, params=[x, y, row], target=target) == 1


def test_dynamic_shapes():
    n = SizeVar("n")
    x = var("x", (n, 24))
    compiled = relay.build(Function((x,), Tuple((relay.sin(x), relay.cast(x, "int32")))), TARGET)
    assert compiled.build_report.nodes == 1
    executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)), num_threads=2)
    for size in (1, 3, 64, 501, 0):
        data = RANDOM.uniform(-9, 9, (size, 24)).astype(np.float32)
        sine, whole = executor(data)
        np.testing.assert_allclose(sine.numpy(), np.sin(data), atol=1e-6)
        np.testing.assert_array_equal(whole.numpy(), data.astype(np.int32))


def test_results_with_gaps_and_inputs_with_other_ones():
    x = var("x", (2, 6, 40))
    first, second = relay.split(x, 2, axis=1)
    sine, cosine = relay.sin(first), relay.cos(first)
    whole = relay.concatenate([sine, nn.relu(second)], axis=1)
    assert check(nn.softmax(whole), nn.softmax(cosine), params=[x], target="llvm -l1-bytes=512") == 5

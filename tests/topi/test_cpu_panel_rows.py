"""Packing of row-major matrices into panels on CPUs: transposed in registers."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend import Target
from relayc.backend.runtime import device, graph_executor
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.op import nn
from relayc.te.ir import IRModule

TARGETS = ["llvm -num-cores=2", "llvm -mattr=-avx512f", "llvm -mattr=-avx512f,-avx2,-fma,-avx"]
SERVER = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=icelake-server -num-cores=2")


def loops_of(columns: int, steps: int) -> str:
    """The loops of packing rows (columns, steps) in panels of 32."""
    x = relay.var("x", (columns, steps))
    optimized = relay.optimize(IRModule({"main": relay.Function((x,), nn.pack_panels(x, 32))}), SERVER)
    (node,) = make_graph(optimized["main"]).nodes
    return str(lower(node.workload, SERVER).function)


def check(x: relay.Var, body: relay.Expr, target: str, *shape: int) -> None:
    function = relay.Function((x,), body)
    data = np.random.default_rng(0).standard_normal(shape).astype(str(x.dtype))
    lib = relay.build(function, target)
    result = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=2)(data)[0].numpy()
    np.testing.assert_array_equal(result, relay.interpreter.evaluate(function, [data]))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("columns", "steps"), [(64, 70), (50, 70), (7, 40), (64, 600), (100, 512), (33, 3), (8, 1)])
@pytest.mark.parametrize("width", [4, 16, 48])
def test_packed_panels_equal_the_reference(columns: int, steps: int, width: int, target: str):
    x = relay.var("x", (2, columns, steps))
    check(x, nn.pack_panels(x, width), target, 2, columns, steps)


@pytest.mark.parametrize("target", TARGETS)
def test_computed_rows_are_packed_in_the_same_kernel(target: str):
    x = relay.var("x", (64, 70), "float16")
    check(x, nn.pack_panels(relay.cast(x, "float32") * relay.const(np.float32(0.5)), 16), target, 64, 70)
    y = relay.var("y", (3, 40, 20))
    check(y, nn.pack_panels(relay.transpose(y, (1, 0, 2)), 16), target, 3, 40, 20)
    check(y, nn.pack_panels(relay.transpose(y, (0, 2, 1)), 16), target, 3, 40, 20)


def test_dynamic_numbers_of_rows():
    x = relay.var("x", (te.size_var("b"), te.size_var("n"), 24))
    for count in (1, 16, 39):
        check(x, nn.pack_panels(x, 16), "llvm", 2, count, 24)


def test_rows_are_shuffled_rather_than_gathered():
    """Gathering took four times as long as transposing tiles in registers, for rows pages apart ten times."""
    for columns, steps in ((64, 100), (50, 100), (64, 1024)):
        loops = loops_of(columns, steps)
        assert "shuffle(" in loops and f", {steps}, 32)]" not in loops


@pytest.mark.parametrize(("steps", "copied"), [(1000, False), (1024, True)])
def test_rows_with_cache_set_conflicts_are_copied_first(steps: int, copied: bool):
    assert ("panel_rows = allocate" in loops_of(64, steps)) == copied

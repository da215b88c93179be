"""float32 means float32: no kernel of a float32 graph uses a narrower type, on any processor."""

from __future__ import annotations

import pytest

from relayc.backend.target import Target
from relayc.relay import Function, optimize
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te.ir import IRModule, collect
from relayc.te.tir import Allocate, PrimExpr
from tests.relay.lowering.test_same_bits import MODELS

TARGETS = [
    "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell",
    "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=sapphirerapids",
    "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-v2",
]


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_of_float32_graphs_use_no_other_float_type(target: str) -> None:
    for make in MODELS.values():
        function = make()
        assert isinstance(function, Function)
        for node in make_graph(optimize(IRModule({"main": function}), Target(target))["main"]).nodes:
            loops = lower(node.workload, Target(target)).function
            types = {str(e.dtype.element) for e in collect(loops.body, PrimExpr)}
            types |= {str(a.buffer.dtype.element) for a in collect(loops.body, Allocate)}
            types |= {str(b.dtype.element) for b in loops.buffer_map.values()}
            assert {name for name in types if "float" in name} == {"float32"}, node.workload.name

"""The passes behind `relay.optimize`: instruments see them all, and each may be disabled."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.target import Target
from relayc.relay import IRModule, op
from relayc.relay.lowering.graph_passes import graph_passes
from relayc.relay.lowering.kernel_passes import kernel_passes
from relayc.runtime import GraphModule, device
from relayc.te.ir import DumpInstrument, PassContext, TimingInstrument

HOST = Target("llvm")
PASSES = [p.name for p in (*graph_passes(HOST), *kernel_passes(HOST))] + ["LoadScalars", "PlanRegions"]


def model() -> relay.Function:
    """Kernels that every pass changes: rows, reductions, two transposes, a padding, views, two scales."""
    x = relay.var("x", (2, 6, 4, 8))
    rows = relay.nn.softmax(x)
    moved = op.transpose(op.reshape(op.transpose(x, (0, 2, 3, 1)), (2, 4, 2, 4, 6)), (0, 3, 1, 2, 4))
    padded = relay.nn.pad(x, ((0, 0), (0, 0), (0, 0), (1, 2)))
    total = op.sum(op.tanh(x), axis=(2, 3))
    joined = relay.concatenate([op.tanh(op.sigmoid(x)), op.sqrt(op.exp(x))], 1)
    scaled = [op.tanh(op.multiply(op.sin(x), relay.const(c))) for c in (0.3, 0.7)]
    return relay.Function((x,), relay.Tuple([rows, moved, padded, total, joined, *scaled]))


def results(**settings: object) -> list[np.ndarray]:
    with PassContext(**settings):
        executor = GraphModule(relay.build(IRModule({"main": model()}), HOST)["default"](device("cpu", 0)), 1)
    data = np.random.default_rng(0).standard_normal((2, 6, 4, 8)).astype("float32")
    executor.set_input("x", data)
    executor.run()
    return [executor.get_output(i).numpy() for i in range(executor.get_num_outputs())]


def test_instruments_see_every_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    timing, dump = TimingInstrument(), DumpInstrument()
    results(instruments=[timing, dump])
    assert set(PASSES) <= set(timing.seconds)
    changed = {name for name, _ in dump.dumps}
    assert {"ShareKernels", "CollapseDimensions", "CollapseReductions", "CollapseIndexMaps"} <= changed
    assert any("fused_nn_softmax" in text and "= " in text for name, text in dump.dumps if name == "PlaceKVCaches")


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_may_be_disabled(name: str):
    for found, expected in zip(results(disabled_pass=[name]), results(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)

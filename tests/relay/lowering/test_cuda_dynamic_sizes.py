"""Models with dynamic shapes on a GPU: run, captured by their sizes, replayed."""

from __future__ import annotations

import numpy as np

from relayc import relay
from relayc.backend.runtime import graph_executor
from relayc.relay import op
from relayc.te.tir import SizeVar

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((32, 64), dtype=np.float32)


def expected(x):
    bent = np.maximum(x @ WEIGHT.T, 0)
    raised = np.exp(bent - bent.max(1, keepdims=True, initial=0))
    return raised / raised.sum(1, keepdims=True)


def test_runs_are_recorded_by_their_sizes(cuda_device, monkeypatch):
    captured, capture = [], cuda_device.api.capture
    monkeypatch.setattr(cuda_device.api, "capture", lambda *args: captured.append(capture(*args)) or captured[-1])
    x = relay.var("x", (SizeVar("n"), 64))
    function = relay.Function((x,), op.nn.softmax(op.nn.relu(op.nn.dense(x, relay.const(WEIGHT))), axis=1))
    arch = "sm_" + cuda_device.compute_version.replace(".", "")
    module = graph_executor.GraphModule(relay.build(function, target=f"cuda -arch={arch}")["default"](cuda_device))
    largest = RNG.standard_normal((40, 64), dtype=np.float32)
    module(largest)  # the buffers have their final addresses
    for n in (1, 17, 17, 17, 40, 40, 40, 1, 0, 40):
        values = largest[:n] + n
        np.testing.assert_allclose(module(values)[0].numpy(), expected(values), rtol=1e-3, atol=1e-5)
    assert captured and None not in captured
    held = [module(largest + i)[0] for i in range(5)]
    for i, result in enumerate(held):
        np.testing.assert_allclose(result.numpy(), expected(largest + i), rtol=1e-3, atol=1e-5)
    report = module.profile(repeat=2)
    assert [call.seconds > 0 for call in report] == [True] * len(report)

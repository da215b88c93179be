"""Random ONNX graphs: compiled, run, and compared with an oracle."""

from __future__ import annotations

import numpy as np
import pytest

from relay.op.elementwise import Tanh
from tests.fuzz.builder import generators, random_graph
from tests.fuzz.compare import Finding, check_seed, onnxruntime_outputs, reference_outputs


def test_random_graphs_give_the_oracle_s_results(graph_seeds: range) -> None:
    for seed in graph_seeds:
        check_seed(seed)


def test_a_seed_gives_one_graph() -> None:
    one, two = random_graph(12345), random_graph(12345)
    assert one.model.SerializeToString() == two.model.SerializeToString()
    assert all(np.array_equal(one.inputs[name], two.inputs[name]) for name in one.inputs)


def test_a_planted_fault_is_found_and_shrunk_to_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tanh.compute
    monkeypatch.setattr(Tanh, "compute", lambda self, x: right(self, right(self, x)))
    found = 0
    for seed in range(40):
        try:
            check_seed(seed, only=["Tanh", "Mul", "Transpose", "Concat"], dynamic=False)
        except Finding as finding:
            found += 1
            assert "Tanh" in str(finding)
            assert str(finding).count(" = ") <= 3, f"shrunk badly: {finding}"
    assert found >= 10


def test_the_oracles_agree() -> None:
    """Each operator's reference against onnxruntime, where it is installed."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    compared = 0
    for seed in range(60):
        sample = random_graph(seed)
        theirs = onnxruntime_outputs(sample.model, sample.inputs)
        if theirs is None:
            continue
        compared += 1
        for value, a, b in zip(sample.outputs, reference_outputs(sample.model, sample.inputs), theirs, strict=True):
            tolerance = 0 if value.exact else {"float64": 1e-8, "float16": 0.1}.get(value.dtype, 2e-3)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(value.largest, 1))
    assert compared >= 30


def test_every_operator_of_the_generators_occurs() -> None:
    used = {node.op_type for seed in range(400) for node in random_graph(seed).model.graph.node}
    assert set(generators) <= used

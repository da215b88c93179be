"""Damaged models: each compiles and runs, or fails with one of the package's errors, quickly."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import tests.fuzz.generators  # noqa: F401 (the generators register themselves)
from relayc.backend.runtime.errors import InternalError, RelaycError
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.backend import RelayBackend
from relayc.relay.errors import InternalCompileError
from relayc.te.errors import CompileError
from tests.fuzz.builder import random_graph
from tests.fuzz.mutate import damaged_bytes, mutated

REFUSALS = (CompileError, RelaycError)
PATIENCE = 30.0
"""CPU seconds allowed for each; valid models take less than one."""


def attempt(
    model: ModelProto | bytes, inputs: dict[str, Any], backend: type[RelayBackend] = RelayBackend
) -> str:
    """The outcome of a model: "runs" or "rejected". Raises any other error."""
    began = time.process_time()
    try:
        proto = model if isinstance(model, ModelProto) else _parsed(model)
        if proto is None:
            from_onnx(model)
        else:
            backend.prepare(proto).run({v.name: _value(v, inputs) for v in proto.graph.input})
        outcome = "runs"
    except REFUSALS as error:
        assert str(error) and not isinstance(error, InternalError | InternalCompileError), str(error)
        outcome = "rejected"
    assert time.process_time() - began < PATIENCE
    return outcome


def _parsed(data: bytes) -> ModelProto | None:
    try:
        return onnx.load_model_from_string(data)
    except Exception:  # noqa: BLE001 - protobuf's implementations raise errors of several kinds
        return None


def _value(declared: onnx.ValueInfoProto, inputs: dict[str, Any]) -> Any:
    return inputs.get(declared.name, np.zeros((), np.float32))


def test_mutated_models_are_compiled_or_rejected(damage_seeds: range) -> None:
    outcomes = []
    for seed in damage_seeds:
        sample = random_graph(seed)
        outcomes.append(attempt(mutated(random.Random(seed), sample.model), sample.runs[0]))
    assert "rejected" in outcomes


def test_damaged_bytes_are_compiled_or_rejected(damage_seeds: range) -> None:
    outcomes = []
    for seed in damage_seeds:
        sample = random_graph(seed)
        outcomes.append(attempt(damaged_bytes(random.Random(seed), sample.model.SerializeToString()), sample.runs[0]))
    assert "rejected" in outcomes


def test_truncated_external_data_is_rejected(tmp_path: Path) -> None:
    weight = np.arange(64, dtype=np.float32).reshape(8, 8)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="project")
    graph = onnx.helper.make_graph(
        [node],
        "external",
        [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    path, data = tmp_path / "model.onnx", tmp_path / "model.bin"
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    from_onnx(path)
    whole = data.read_bytes()
    for size in range(0, len(whole), 32):
        data.write_bytes(whole[:size])
        with pytest.raises(CompileError, match="'w'"):
            from_onnx(path)
    data.unlink()
    with pytest.raises(CompileError, match="'w'"):
        from_onnx(path)

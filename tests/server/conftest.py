"""Models to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relayc import relay
from relayc.runtime import GraphModule, device, load_model
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: `dense`, versions 1 and 2, of any number of rows, and `fixed`."""
    folder = tmp_path_factory.mktemp("models")
    for name, version, rows, seed in (("dense", 1, SizeVar("n"), 0), ("dense", 2, SizeVar("n"), 1), ("fixed", 1, 2, 2)):
        x = relay.var("x", (rows, 8))
        weight = np.random.default_rng(seed).standard_normal((4, 8)).astype("float32")
        body = relay.nn.softmax(relay.nn.dense(x, relay.const(weight)))
        path = folder / name / str(version)
        path.mkdir(parents=True)
        module = IRModule({"main": relay.Function((x,), body)}, {"output_names": ["y"]})
        relay.build(module, target="llvm").save(path / "model.relayc")
    return folder


@pytest.fixture(scope="session")
def expected(models: Path) -> Any:
    """The output of the latest `dense` for an input, from an executor without a server."""
    executor = GraphModule(load_model(models / "dense/2/model.relayc")["default"](device("cpu")), 1)
    return lambda x: executor.infer({"x": x})[0]

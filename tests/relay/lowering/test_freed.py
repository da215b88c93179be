"""A compiled model is freed with its last reference: no cycle keeps machine code or weights until a collection."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from relayc import relay
from relayc.backend.runtime import GraphModule, load_model
from relayc.te.ir import IRModule


def test_a_loaded_model_is_freed_with_its_last_reference(tmp_path):
    x = relay.var("x", (2, 8))
    lib = relay.build(IRModule({"main": relay.Function((x,), relay.op.sigmoid(x))}), target="llvm")
    lib.save(tmp_path / "model.relayc")
    gc.collect()
    gc.disable()
    try:
        model = load_model(tmp_path / "model.relayc")
        executor = GraphModule(model["default"]("cpu"))
        result = executor(np.zeros((2, 8), "float32"))[0]
        executor.profile(repeat=1)
        parts = [weakref.ref(part) for part in (model, model.module, executor)]
        del model, executor
        assert [part() for part in parts] == [None] * 3
        assert result.numpy().tolist() == [[0.5] * 8] * 2, "an output outlives its executor"
    finally:
        gc.enable()

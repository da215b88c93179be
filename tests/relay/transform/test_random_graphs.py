"""Random graphs keep their results through the whole pipeline, and as compiled models."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.interpreter import evaluate
from relayc.relay.transform import default_pipeline


@pytest.mark.parametrize("seed", range(60))
def test_pipeline_on_a_random_graph(transformed, random_graph, seed: int):
    transformed(random_graph(seed, 30, 3), *default_pipeline(3, Target("llvm -mcpu=haswell")))


@pytest.mark.parametrize("seed", range(100, 112))
def test_a_random_graph_compiled(random_graph, seed: int):
    function = random_graph(seed, 18, 2)
    numbers = np.random.default_rng(seed)
    inputs = [numbers.standard_normal(p.tensor_type.static_shape).astype("float32") for p in function.params]
    model = graph_executor.GraphModule(relay.build(function, "llvm")["default"](device("cpu", 0)))
    for parameter, value in zip(function.params, inputs, strict=True):
        model.set_input(parameter.name, value)
    model.run()
    for i, expected in enumerate(evaluate(function, inputs)):
        np.testing.assert_allclose(model.get_output(i).numpy(), expected, rtol=1e-3, atol=1e-4)

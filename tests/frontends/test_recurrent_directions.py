"""The directions of recurrent operators: together in one kernel, or apart where their activations differ."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

RNG = np.random.default_rng(3)
STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6
CELLS = {"LSTM": (4, ["Sigmoid", "Tanh", "Relu"]), "GRU": (3, ["HardSigmoid", "Relu"]), "RNN": (1, ["Relu"])}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _run(kind: str, direction: str, activations: list[str], weights: list[np.ndarray], layout: int) -> list[np.ndarray]:
    """Y and the final states."""
    x = np.random.default_rng(1).standard_normal((STEPS, BATCH, FEATURES), dtype=np.float32)
    x = x.transpose(1, 0, 2) if layout else x
    names = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    node = helper.make_node(
        kind, ["x", "w", "r", "b"], names, hidden_size=HIDDEN, direction=direction, activations=activations,
        layout=layout,
    )  # fmt: skip
    stored = [onnx.numpy_helper.from_array(a, n) for a, n in zip(weights, "wrb", strict=True)]
    passed = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    results = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names]
    model = helper.make_model(
        helper.make_graph([node], "g", passed, results, stored), opset_imports=[helper.make_opsetid("", 17)]
    )
    mod, params = from_onnx(model)
    module = graph_executor.GraphModule(relay.build(mod, "llvm", params)["default"](device("cpu", 0)))
    module.set_input("x", x)
    module.run()
    return [module.get_output(i).numpy() for i in range(len(names))]


@pytest.mark.parametrize("kind", list(CELLS))
@pytest.mark.parametrize("layout", [0, 1])
def test_both_directions_are_what_each_is_by_itself(kind, layout):
    gates, other = CELLS[kind]
    sizes = (gates * HIDDEN, FEATURES), (gates * HIDDEN, HIDDEN), (2 * gates * HIDDEN,)
    weights = [RNG.standard_normal((2, *size), dtype=np.float32) for size in sizes]
    for second in (DEFAULTS[kind], other):
        both = _run(kind, "bidirectional", DEFAULTS[kind] + second, weights, layout)
        parts = [
            _run(kind, direction, activations, [w[d : d + 1] for w in weights], layout)
            for d, (direction, activations) in enumerate((("forward", DEFAULTS[kind]), ("reverse", second)))
        ]
        for number, result in enumerate(both):
            axis = (2 if number == 0 else 1) if layout else (1 if number == 0 else 0)
            expected = np.concatenate([p[number] for p in parts], axis=axis)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)

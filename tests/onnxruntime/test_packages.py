"""Small models of the forms that packages run on onnxruntime: voice detection with a state, text in images of any size.

onnxruntime says what is right.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

import relayc.onnxruntime as ours

theirs = pytest.importorskip("onnxruntime")

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(5)
make = helper.make_node


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32) / 4


def _tensor(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _sessions(nodes: list[NodeProto], inputs: list[Any], outputs: list[str], weights: dict[str, Any]) -> list[Any]:
    """The model in a session of this package, and in one of onnxruntime."""
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "small", inputs, [_tensor(name) for name in outputs], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8).SerializeToString()
    options = theirs.SessionOptions()
    options.log_severity_level = 3
    original = theirs.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [ours.InferenceSession(model), original]


def _branch(name: str, nodes: list[NodeProto], *outputs: str) -> GraphProto:
    return helper.make_graph(nodes, name, [], [_tensor(output) for output in outputs])


CHANNELS, UNITS = 6, 5
VOICE = {
    "w": floats(1, 4 * UNITS, CHANNELS), "r": floats(1, 4 * UNITS, UNITS), "b": floats(1, 8 * UNITS),
    "long": floats(CHANNELS, 1, 32), "short": floats(CHANNELS, 1, 16), "rate": np.array(16000), "one": np.array([1]),
    "zero": np.array([0]), "last": np.array([-1]), "first": np.array(0), "second": np.array(1),
}  # fmt: skip


def _voice(rate: str) -> GraphProto:
    """A network for windows of one length: its exporter squeezes the frames' axis if there is one frame."""

    def n(name: str) -> str:
        return f"{rate}_{name}"

    window = VOICE[rate].shape[2]
    squeezed = _branch(n("then"), [make("Squeeze", [n("x"), "last"], [n("t")])], n("t"))
    kept = _branch(n("else"), [make("Identity", [n("x")], [n("e")])], n("e"))
    nodes = [
        make("Unsqueeze", ["input", "one"], [n("u")]),
        make("Conv", [n("u"), rate], [n("c")], strides=[window]),
        make("Relu", [n("c")], [n("x")]),
        make("Shape", [n("x")], [n("shape")]),
        make("Gather", [n("shape"), "last"], [n("frames")]),
        make("Equal", [n("frames"), "one"], [n("is_one")]),
        make("If", [n("is_one")], [n("s")], then_branch=squeezed, else_branch=kept),
        make("Unsqueeze", [n("s"), "zero"], [n("sequence")]),
        make("Gather", ["state", "first"], [n("h")]),
        make("Gather", ["state", "second"], [n("k")]),
        make("Unsqueeze", [n("h"), "zero"], [n("h0")]),
        make("Unsqueeze", [n("k"), "zero"], [n("k0")]),
        make("LSTM", [n("sequence"), "w", "r", "b", "", n("h0"), n("k0")], ["", n("h1"), n("k1")], hidden_size=UNITS),
        make("Concat", [n("h1"), n("k1")], [n("next")], axis=0),
        make("ReduceMean", [n("h1")], [n("mean")], axes=[0, 2], keepdims=0),
        make("Sigmoid", [n("mean")], [n("p")]),
    ]
    return _branch(rate, nodes, n("p"), n("next"))


def test_a_voice_detector_with_a_state_for_two_rates() -> None:
    nodes = [
        make("Equal", ["sr", "rate"], ["is_long"]),
        make("If", ["is_long"], ["p", "next"], then_branch=_voice("long"), else_branch=_voice("short")),
    ]
    inputs = [_tensor("input", [None, None]), _tensor("state", [2, None, UNITS]), _tensor("sr", [], INT64)]
    sessions = _sessions(nodes, inputs, ["p", "next"], VOICE)
    for rate, window, batch in ((16000, 32, 1), (8000, 16, 1), (16000, 40, 3), (8000, 31, 2)):
        states = [np.zeros((2, batch, UNITS), np.float32)] * 2
        for _ in range(3):
            x = floats(batch, window)
            runs = [s.run(None, {"input": x, "state": state, "sr": np.array(rate)})
                    for s, state in zip(sessions, states, strict=True)]  # fmt: skip
            for mine, original in zip(*runs, strict=True):
                np.testing.assert_allclose(mine, original, rtol=1e-4, atol=1e-6)
            states = [run[1] for run in runs]
    with pytest.raises(ours.InvalidArgument, match=r"sizes .* of 1"):
        sessions[0].run(None, {"input": floats(1, 64), "state": states[0][:, :1], "sr": np.array(16000)})


def test_a_text_detector_at_many_sizes() -> None:
    """Pooled twice, resized and added: sizes that are no multiples of 4 do not fit. No size leaves memory behind."""
    nodes = [
        make("Conv", ["x", "w0"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        make("Relu", ["a"], ["a1"]),
        make("Conv", ["a1", "w1"], ["b"], strides=[2, 2], pads=[1, 1, 1, 1], group=8),
        make("GlobalAveragePool", ["b"], ["g"]),
        make("HardSigmoid", ["g"], ["gate"]),
        make("Mul", ["b", "gate"], ["b1"]),
        make("Resize", ["b1", "", "scales"], ["up"], mode="nearest", coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
        make("Add", ["a1", "up"], ["sum"]),
        make("ConvTranspose", ["sum", "w2"], ["full"], strides=[2, 2], kernel_shape=[2, 2]),
        make("Sigmoid", ["full"], ["y"]),
    ]  # fmt: skip
    weights = {
        "w0": floats(8, 3, 3, 3), "w1": floats(8, 1, 3, 3), "w2": floats(8, 1, 2, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    mine, original = _sessions(nodes, [_tensor("x", ["?", 3, "?", "?"])], ["y"], weights)
    held: list[int] = []
    tracemalloc.start()
    try:
        for number in range(60):
            x = floats(1 + number % 2, 3, 4 + 4 * (number % 7), 8 + 4 * number)
            (y,), (wanted,) = mine.run(None, {"x": x}), original.run(None, {"x": x})
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
            del x, y, wanted
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] - held[30] < 64 << 10
    with pytest.raises(ours.InvalidArgument, match="Add"):
        mine.run(None, {"x": floats(1, 3, 12, 18)})

"""Loops whose iterations bind sizes, as compiled functions: they compute what interpreted ones do, bit for bit."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import numpy as np
import pytest
from onnx import parser

from relayc import relay
from relayc.backend.runtime import device
from relayc.backend.runtime.artifact import load_model
from relayc.backend.runtime.compiled_loop import TurnLimit
from relayc.backend.runtime.dynamic import DynamicRunner
from relayc.backend.runtime.errors import ArgumentError, RunCancelledError
from relayc.backend.runtime.execution_plan import LoopStep
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.turning_loop import TurningLoop
from relayc.frontends.onnx import from_onnx

SIZES = np.array([3, 1, 5, 9, 0, 2, 40, 7], np.int64)
COUNT = {"n": np.array(len(SIZES)), "x": np.array([1, -2, 0.5], np.float32), "sizes": SIZES}

AXES = "zero = Constant <value_int = 0> () at0 = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()"
LENGTH = f"{AXES} k = Gather (sizes, i) len = Reshape (k, one)"


def loop(body: str, carried: str, results: str) -> str:
    """A model with a loop over `sizes`."""
    return f"{results} = Loop (n, , {carried}) <body = {body}> }}"


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "a state as long as a value says": (
        "g (int64 n, float[3] x, int64[m] sizes) => (float[r] y) {"
        + loop(f"b (int64 i, bool c, float[a] p) => (bool c, float[d] q) {{ {LENGTH}"
               "fill = ReduceSum <keepdims = 0> (p) e = Expand (fill, len) f = Cast <to = 1> (i) q = Add (e, f) }",
               "x", "y"), COUNT),
    "states of changing sizes that are exchanged": (
        "g (int64 n, float[3] x, int64[m] sizes) => (float[r] y, float[s] z) {"
        + loop(f"b (int64 i, bool c, float[a] p, float[b] q) => (bool c, float[b] q2, float[d] r) {{ {LENGTH}"
               "fill = ReduceSum <keepdims = 0> (p) e = Expand (fill, len) f = Cast <to = 1> (i) r = Add (e, f)"
               "q2 = Identity (q) }", "x, x", "y, z"), COUNT),
    "a state that stays, one that is captured, and one in two dimensions": (
        "g (int64 n, float[3] x, int64[m] sizes) => (float[3] s, float[3] t, float[h, w] y) {"
        "row = Constant <value_ints = [1, 3]> () begin = Reshape (x, row)"
        + loop(f"b (int64 i, bool c, float[3] p, float[3] t, float[a, b] q) => (bool c, float[3] p, float[3] x2,"
               f"float[d, e] r) {{ {LENGTH} three = Constant <value_ints = [3]> ()"
               "both = Concat <axis = 0> (len, three)"
               "fill = ReduceSum <keepdims = 0> (q) e = Expand (fill, both) r = Add (e, t) x2 = Identity (x) }",
               "x, x, begin", "s, t, y"), COUNT),
    "a condition that is a carried value": (
        "g (int64 n, float[3] x, int64[m] sizes) => (float[r] y, bool last) {"
        "three = Constant <value_int = 3> () yes = Cast <to = 9> (three)"
        + loop(f"b (int64 i, bool c, float[a] p, bool t) => (bool u, float[d] q, bool v) {{ {LENGTH}"
               "fill = ReduceSum <keepdims = 0> (p) q = Expand (fill, len) v = Cast <to = 9> (k) u = Identity (t) }",
               "x, yes", "y, last"), COUNT),
    "elements of a sequence": (
        "g (int64 n, float[70, 3] x, int64[m] sizes) => (float[3] y, float[3] z) {"
        "s = SplitToSequence <axis = 0, keepdims = 0> (x) none = Constant <value_floats = [0.0, 0.0, 0.0]> ()"
        + loop(f"b (int64 i, bool c, float[3] p, float[3] q) => (bool c, float[3] r, float[3] t) {{ {AXES}"
               "k = Gather (sizes, i) last = Neg (k) e = SequenceAt (s, k) f = SequenceAt (s, last) r = Add (p, e)"
               "t = Sub (q, f) }", "none, none", "y, z"),
        {"n": COUNT["n"], "x": np.arange(210, dtype=np.float32).reshape(70, 3), "sizes": SIZES}),
    "what is kept of a state": (
        "g (int64 n, float[64] x, int64[m] sizes) => (float[r] y) {"
        + loop(f"b (int64 i, bool c, float[a] p) => (bool c, float[d] q) {{ {AXES}"
               "f = Cast <to = 1> (i) s = Add (p, f) t = Sin (s) mean = ReduceMean <keepdims = 0> (t)"
               "more = Greater (t, mean) q = Compress (t, more) }", "x", "y"),
        {"n": np.array(4), "x": np.linspace(-3, 3, 64, dtype=np.float32), "sizes": SIZES}),
}  # fmt: skip


def compiled(text: str, target: str = "llvm") -> GraphModule:
    module, params = from_onnx(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}'))
    return GraphModule(relay.build(module, target, params)["default"](device("cpu")), num_threads=1)


def outputs(module: GraphModule, feeds: dict[str, Any]) -> list[np.ndarray]:
    return [y.numpy() for y in module(**feeds)]


def interpreted(module: GraphModule, feeds: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    with monkeypatch.context() as patch:
        patch.setattr(DynamicRunner, "_run_compiled", lambda self, step: None)
        return outputs(module, feeds)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_and_interpreted_loops_agree(name, monkeypatch):
    text, feeds = MODELS[name]
    module = compiled(text)
    (step,) = [step for step in module._graph.steps if isinstance(step, LoopStep)]
    assert step.turns is not None
    assert step.entry is None
    expected = interpreted(module, feeds, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(TurnLimit, "adapt", lambda self, seconds: None)
        one_by_one = outputs(module, feeds)
    for found in (one_by_one, outputs(module, feeds), outputs(module, feeds)):
        for result, wanted in zip(found, expected, strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_array_equal(result, wanted)
    (made,) = module._dynamic._compiled_loops.values()
    assert isinstance(made, TurningLoop)
    none = {**feeds, "n": np.array(0)}
    for result, wanted in zip(outputs(module, none), interpreted(module, none, monkeypatch), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_the_first_results_are_those_of_numpy():
    text, feeds = MODELS["a state as long as a value says"]
    state = feeds["x"]
    for i, size in enumerate(SIZES):
        state = np.full(size, state.sum() + i, np.float32)
    np.testing.assert_array_equal(outputs(compiled(text), feeds)[0], state)


def test_the_c_target():
    text, feeds = MODELS["states of changing sizes that are exchanged"]
    for result, expected in zip(outputs(compiled(text, "c"), feeds), outputs(compiled(text), feeds), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_saved_model_has_its_loops(tmp_path):
    text, feeds = MODELS["what is kept of a state"]
    module = compiled(text)
    module._bound.model.save(tmp_path / "loop.relayc")
    again = GraphModule(load_model(tmp_path / "loop.relayc")["default"](device("cpu")), num_threads=1)
    np.testing.assert_array_equal(outputs(again, feeds)[0], outputs(module, feeds)[0])
    assert again._dynamic._compiled_loops


def test_results_outlive_the_next_run():
    text, feeds = MODELS["states of changing sizes that are exchanged"]
    module = compiled(text)
    first = module(**feeds)
    kept = [y.numpy().copy() for y in first]
    module(**{**feeds, "x": 7 * feeds["x"]})
    for result, expected in zip(first, kept, strict=True):
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(("sizes", "text"), [
    ([3, 1, -4, 2], "computes the size -4; expected 0 to"),
    ([3, 1, 1 << 40, 2], "computes the size 1099511627776; expected 0 to"),
])  # fmt: skip
def test_sizes_that_no_tensor_can_have_are_refused(sizes, text, monkeypatch):
    model, feeds = MODELS["a state as long as a value says"]
    module = compiled(model)
    bad = {**feeds, "n": np.array(4), "sizes": np.array(sizes, np.int64)}
    for run in (outputs, lambda m, f: interpreted(m, f, monkeypatch)):
        with pytest.raises(ArgumentError, match=text):
            run(module, bad)
    np.testing.assert_array_equal(outputs(module, feeds)[0], interpreted(module, feeds, monkeypatch)[0])


def test_a_position_without_an_element_is_refused(monkeypatch):
    text, feeds = MODELS["elements of a sequence"]
    module = compiled(text)
    bad = {**feeds, "sizes": np.array([3, 69, 70, 1, 1, 1, 1, 1], np.int64)}
    for run in (outputs, lambda m, f: interpreted(m, f, monkeypatch)):
        with pytest.raises(ArgumentError, match="position 70 in a sequence of 70; expected a position from -70 to 69"):
            run(module, bad)
    rows = feeds["x"][SIZES]
    np.testing.assert_array_equal(outputs(module, feeds)[0], rows.sum(0))


def test_an_element_of_a_stack_may_be_put_in_another_sequence():
    module = compiled("""g (float[70, 3] x, int64 k, bool c) => (float[m, 3] y, float[3] z) {
        s = SplitToSequence <axis = 0, keepdims = 0> (x) zero = Constant <value_floats = [0.0, 0.0, 0.0]> ()
        y0, z = If (c) <then_branch = t () => (seq(float[3]) a, float[3] b) {
            e = SequenceAt (s, k) u = Sin (e) f = SequenceErase (s) g = SequenceInsert (f, u) a = SequenceInsert (g, e)
            b = Cos (e) }, else_branch = f () => (seq(float[3]) a2, float[3] b2) {
            a2 = SequenceInsert (s, zero) b2 = Identity (zero) }>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (y0) }""")
    x = np.arange(210, dtype=np.float32).reshape(70, 3)
    for k in (5, -1, 5):
        y, z = outputs(module, {"x": x, "k": np.array(k), "c": np.array(True)})
        np.testing.assert_array_equal(y[-1], x[k])
        np.testing.assert_array_equal(y[:69], x[:69])
        np.testing.assert_allclose(y[69], np.sin(x[k]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(z, np.cos(x[k]), rtol=1e-4, atol=1e-5)
    assert outputs(module, {"x": x, "k": np.array(1), "c": np.array(False)})[0].shape == (71, 3)


ENDLESS = MODELS["a state as long as a value says"][0].replace("Gather (sizes, i)", "Gather (sizes, zero)")


def test_an_endless_loop_is_interrupted():
    module = compiled(ENDLESS)
    stop = threading.Timer(0.2, _thread.interrupt_main)
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        module(**{**COUNT, "n": np.array(1 << 62)})
    stop.join()
    assert module(**COUNT)[0].shape == (3,)


def test_another_thread_may_cancel_a_run():
    module = compiled(ENDLESS)
    stop = threading.Timer(0.2, module.cancel)
    stop.start()
    with pytest.raises(RunCancelledError):
        module(**{**COUNT, "n": np.array(1 << 62)})
    stop.join()
    assert module(**COUNT)[0].shape == (3,)

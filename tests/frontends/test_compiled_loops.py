"""Loops that are compiled functions: they compute what interpreted ones do, bit for bit, wherever they are left."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import numpy as np
import pytest
from onnx import parser

from relayc import relay
from relayc.backend.runtime import compiled_loop, device, layouts
from relayc.backend.runtime.dynamic import DynamicRunner
from relayc.backend.runtime.errors import ArgumentError, DeviceError
from relayc.backend.runtime.execution_plan import LoopStep
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.onnx import from_onnx
from relayc.relay.interpreter import create_executor

X3 = np.array([1.5, -2, 0.25], np.float32)
FIVE = np.array(5, np.int64)


def loop(body: str, carried: str, results: str) -> str:
    """A node that runs a body `n` times."""
    return f"{results} = Loop (n, , {carried}) <body = {body}>"


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "exchanged states": (
        "g (int64 n, float[3] x) => (float[3] y, float[3] z, float[k, 3] all) {"
        + loop("b (int64 i, bool c, float[3] p, float[3] q) => (bool c, float[3] q, float[3] r, float[3] r)"
               "{ r = Add (p, q) }", "x, x", "y, z, all") + "}",
        {"n": FIVE, "x": X3},
    ),
    "a state that stays, one from outside, and a stack of a captured value": (
        "g (int64 n, float[3] x, float[3] w) => (float[3] y, float[3] z, float[k, 3] all, int64[k] i2) {"
        + loop("b (int64 i, bool c, float[3] p, float[3] q) => (bool d, float[3] p, float[3] w, float[3] q, int64 i)"
               "{ d = Identity (c) }", "x, x", "y, z, all, i2") + "}",
        {"n": FIVE, "x": X3, "w": 2 * X3},
    ),
    "branches that give what they are passed": (
        "g (int64 n, float[3] x) => (float[3] y, float[3] z) {"
        + loop("b (int64 i, bool c, float[3] p, float[3] q) => (bool d, float[3] r, float[3] s) {"
               "two = Constant <value_int = 2> () h = Mod (i, two) d = Identity (c) even = Cast <to = 9> (h)"
               "r, s = If (even) <then_branch = t () => (float[3] t1, float[3] t2)"
               "  { t1 = Identity (q) t2 = Identity (p) },"
               "  else_branch = e () => (float[3] e1, float[3] e2) { e1 = Add (p, q) e2 = Identity (e1) }> }",
               "x, x", "y, z") + "}",
        {"n": FIVE, "x": X3},
    ),
    "loops in the branches of a loop": (
        "g (int64 n, float[3] x) => (float[3] y, float[m, 3] all) {"
        + loop("b (int64 i, bool c, float[3] p) => (bool d, float[3] r, float[3] r) {"
               "two = Constant <value_int = 2> () h = Mod (i, two) d = Identity (c) even = Cast <to = 9> (h)"
               "r = If (even) <then_branch = t () => (float[3] t1)"
               "  { t0 = Loop (i, , p) <body = bt (int64 j, bool cj, float[3] u) => (bool cj, float[3] v)"
               "      { v = Add (u, x) }> t1 = Neg (t0) },"
               "  else_branch = e () => (float[3] e1) { e1 = Loop (n, even, p)"
               "      <body = be (int64 j, bool cj, float[3] u) => (bool ck, float[3] v)"
               "      { v = Mul (u, x) ck = Less (j, i) }> }> }",
               "x", "y, all") + "}",
        {"n": FIVE, "x": X3},
    ),
    "an inner loop that its condition ends, and kernels around it": (
        "g (int64 n, float[3] x) => (float[3] y, int64[m] counts) {"
        + loop("b (int64 i, bool c, float[3] p) => (bool d, float[3] r, int64 count) {"
               "zero = Constant <value_int = 0> () d = Identity (c) p1 = Mul (p, x)"
               "p2, count = Loop (n, c, p1, zero) <body = inner (int64 j, bool cj, float[3] u, int64 k)"
               "  => (bool ck, float[3] v, int64 l) { v = Sub (u, x) l = Add (k, i) ck = Less (l, n) }>"
               "r = Add (p2, p1) }", "x", "y, counts") + "}",
        {"n": FIVE, "x": X3},
    ),
    "a scan in a loop over symbolic sizes": (
        "g (int64 n, float[t, m] x) => (float[m] y, float[k, t, m] all) {"
        "axes = Constant <value_ints = [0]> () start = ReduceSum <keepdims = 0> (x, axes)"
        + loop("b (int64 i, bool c, float[m] p) => (bool d, float[m] r, float[t, m] rows) { d = Identity (c)"
               "r, rows = Scan (p, x) <num_scan_inputs = 1, body = s (float[m] u, float[m] xt)"
               "  => (float[m] v, float[m] w) { v0 = Mul (u, xt) v = Tanh (v0) w = Add (v, xt) }> }",
               "start", "y, all") + "}",
        {"n": FIVE, "x": np.linspace(-1, 1, 20 * 3, dtype=np.float32).reshape(20, 3)},
    ),
    "states that grow, one by what the other was": (
        "g (int64 n, float[1, 3] x) => (float[a, 3] y, float[e, 3] z, float[k] sums) {"
        + loop("b (int64 i, bool c, float[p, 3] u, float[q, 3] v) => (bool c, float[p2, 3] w, float[p, 3] u, float s) {"
               "w0 = Concat <axis = 0> (x, v, u) w = Tanh (w0) s = ReduceSum <keepdims = 0> (x) }",
               "x, x", "y, z, sums") + "}",
        {"n": FIVE, "x": X3[None]},
    ),
    "a state that grows beside a branch and a loop": (
        "g (int64 n, float[1, 3] x) => (float[a, 3] y, float[1, 3] z) {"
        + loop("b (int64 i, bool c, float[p, 3] u, float[1, 3] v) => (bool c, float[p2, 3] w, float[1, 3] q) {"
               "two = Constant <value_int = 2> () h = Mod (i, two) even = Cast <to = 9> (h)"
               "v2 = Loop (i, , v) <body = inner (int64 j, bool e, float[1, 3] s) => (bool e, float[1, 3] t)"
               "  { t = Add (s, x) }>"
               "q = If (even) <then_branch = t () => (float[1, 3] t1) { t1 = Neg (v2) },"
               "  else_branch = e () => (float[1, 3] e1) { e1 = Identity (v2) }>"
               "w = Concat <axis = 0> (u, q) }", "x, x", "y, z") + "}",
        {"n": FIVE, "x": X3[None]},
    ),
    "a state that doubles": (
        "g (int64 n, float[m] x) => (float[e] z) {"
        + loop("b (int64 i, bool c, float[q] v) => (bool c, float[q2] r) {"
               "r0 = Concat <axis = 0> (v, v) r = Add (r0, r0) }", "x", "z") + "}",
        {"n": FIVE, "x": np.arange(9, dtype=np.float32)},
    ),
    "stacks of inner loops of known trip counts": (
        "g (int64 n, float[m] x) => (float[m] y, float[k, 20, m] all, float[k, m, m] more) {"
        "twenty = Constant <value_int = 20> () shape = Shape (x) none = Constant <value_ints = [0]> ()"
        "m0 = Squeeze (shape, none)"
        + loop("b (int64 i, bool c, float[m] p) => (bool c, float[m] r, float[20, m] rows, float[m, m] square) {"
               "r, rows = Loop (twenty, , p) <body = s (int64 j, bool e, float[m] u)"
               "  => (bool e, float[m] v, float[m] w) { v = Tanh (u) w = Mul (v, x) }>"
               "last, square = Loop (m0, , p) <body = t (int64 j, bool e, float[m] u)"
               "  => (bool e, float[m] v, float[m] v) { v = Sub (u, x) }> }", "x", "y, all, more") + "}",
        {"n": FIVE, "x": np.linspace(-1, 1, 7, dtype=np.float32)},
    ),
    "a condition that is a carried value": (
        "g (int64 n, float[3] x, bool[5] flags) => (float[3] y, bool last) {"
        "one = Constant <value_int = 1> () yes = Cast <to = 9> (one)"
        + loop("b (int64 i, bool c, float[3] p, bool t) => (bool d, float[3] r, bool u)"
               "{ r = Add (p, x) u = Gather (flags, i) d = Identity (t) }", "x, yes", "y, last") + "}",
        {"n": FIVE, "x": X3, "flags": np.array([1, 1, 0, 1, 1], bool)},
    ),
    "a loop that its condition ends": (
        "g (int64 n, float x) => (float y, float[k] all, bool[k] flags) {"
        "y, all, flags = Loop (, , x) <body = b (int64 i, bool c, float p) => (bool d, float r, float r, bool d) {"
        "two = Constant <value_float = 2.0> () most = Constant <value_float = 1000.0> () r = Mul (p, two)"
        "d = Less (r, most) }> }",
        {"n": FIVE, "x": np.array(1, np.float32)},
    ),
}  # fmt: skip


APPENDED = (
    "g (int64 n, float[3] x, float[2] w) => (float[3, k] y, float[2] last, float[3] end, int64 count) {"
    "none = SequenceEmpty () also = SequenceEmpty () at = Constant <value_int = -1> ()"
    + loop("b (int64 i, bool c, seq(float[3]) p, float[3] v, seq(float[2]) q)"
           "  => (bool c, seq(float[3]) p2, float[3] v2, seq(float[2]) q2) { f = Cast <to = 1> (i) z = Mul (x, f)"
           "p2 = SequenceInsert (p, z) v2 = Add (v, z) u = Add (w, f) q2 = SequenceInsert (q, u) }",
           "none, x, also", "s, end, t")
    + "y = ConcatFromSequence <axis = 1, new_axis = 1> (s) last = SequenceAt (t, at) count = SequenceLength (s) }"
)  # fmt: skip


def test_sequences_that_are_only_appended_to_are_stacks():
    module = compiled(APPENDED)
    assert sum(isinstance(step, LoopStep) and step.entry is not None for step in module._graph.steps) == 1
    w = np.array([1, 2], np.float32)
    for trips in (4, 1):
        y, last, end, count = outputs(module, {"n": np.array(trips), "x": X3, "w": w})
        np.testing.assert_array_equal(y, X3[:, None] * np.arange(trips, dtype=np.float32))
        np.testing.assert_array_equal(last, w + trips - 1)
        np.testing.assert_array_equal(end, X3 * (1 + trips * (trips - 1) // 2))
        assert count == trips
    with pytest.raises(ArgumentError, match="the sequence is empty; expected at least one element"):
        module(n=np.array(0), x=X3, w=w)


def compiled(text: str, target: str = "llvm") -> GraphModule:
    module, params = from_onnx(model_of(text))
    return GraphModule(relay.build(module, target, params)["default"](device("cpu")), num_threads=1)


def reference(text: str, feeds: dict[str, Any]) -> list[np.ndarray]:
    """The results by the operators' numpy references."""
    module, params = from_onnx(model_of(text))
    named = {**feeds, **params}
    order = [p.name for p in module["main"].params]
    values = create_executor("debug", module).evaluate()(*[np.asarray(named[name]) for name in order])
    return list(values)[: len(model_of(text).graph.output)] if isinstance(values, tuple) else [values]


def model_of(text: str) -> Any:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def outputs(module: GraphModule, feeds: dict[str, Any]) -> list[np.ndarray]:
    return [y.numpy() for y in module(**feeds)]


@pytest.fixture
def one_turn_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code leaves every loop after every iteration, and stacks begin with room for one."""
    monkeypatch.setattr(compiled_loop, "_MAX_TURNS", 1)
    monkeypatch.setattr(compiled_loop, "_STACK_BYTES", 1)


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_loop_computes_what_an_interpreted_one_does(name, monkeypatch, one_turn_a_call):
    text, feeds = MODELS[name]
    module = compiled(text)
    (step,) = [step for step in module._graph.steps if isinstance(step, LoopStep)]
    assert step.entry is not None
    expected = reference(text, feeds)
    stopped = outputs(module, feeds)
    monkeypatch.undo()
    through, again = outputs(module, feeds), outputs(module, feeds)
    assert not module._dynamic._runners
    monkeypatch.setattr(DynamicRunner, "_run_compiled", lambda self, step: None)
    interpreted = outputs(module, feeds)
    assert module._dynamic._runners
    for results in zip(stopped, through, again, interpreted, expected, strict=True):
        for result in results[:3]:
            np.testing.assert_array_equal(result, results[3])
        np.testing.assert_allclose(results[3], results[4], rtol=1e-5, atol=1e-6)
    zero = {**feeds, "n": np.array(0, np.int64)}
    assert [y.shape for y in outputs(module, zero)] == [y.shape for y in interpreted_outputs(module, zero, monkeypatch)]


def interpreted_outputs(module, feeds, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(DynamicRunner, "_run_compiled", lambda self, step: None)
        return outputs(module, feeds)


@pytest.mark.parametrize("name", ["exchanged states", "loops in the branches of a loop"])
def test_the_c_target(name):
    text, feeds = MODELS[name]
    for result, expected in zip(outputs(compiled(text, "c"), feeds), outputs(compiled(text), feeds), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_sizes_may_change_between_runs():
    text, feeds = MODELS["a scan in a loop over symbolic sizes"]
    module = compiled(text)
    for rows, columns in ((20, 3), (17, 40), (20, 3), (30, 1)):
        feeds["x"] = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        for result, expected in zip(outputs(module, feeds), reference(text, feeds), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_a_state_grows_up_to_the_largest_tensor(monkeypatch):
    """Near the limit there is no room to grow; beyond it the run fails, and the next one is right."""
    monkeypatch.setattr(layouts, "MAX_ELEMENTS", 1000)
    text, feeds = MODELS["a state that doubles"]
    module = compiled(text)
    for trips in (6, 7, 6):
        feeds = {**feeds, "n": np.array(trips)}
        if trips == 7:
            with pytest.raises(ArgumentError, match=r"make a tensor of shape .1152,.; expected at most 1000"):
                module(**feeds)
        else:
            np.testing.assert_array_equal(outputs(module, feeds)[0], reference(text, feeds)[0])


def test_results_outlive_the_next_run():
    text, feeds = MODELS["exchanged states"]
    module = compiled(text)
    first = module(**feeds)
    kept = [y.numpy().copy() for y in first]
    module(n=FIVE, x=7 * X3)
    for result, expected in zip(first, kept, strict=True):
        np.testing.assert_array_equal(result.numpy(), expected)


def test_a_long_loop_takes_few_calls(monkeypatch):
    """The turns of a call double as long as it is short, and a loop that ran before begins with as many."""
    monkeypatch.setattr(compiled_loop, "_CALL_SECONDS", float("inf"))
    calls = count_calls(monkeypatch)
    module = compiled("g (int64 n, float x) => (float y) {" + loop(
        "b (int64 i, bool c, float p) => (bool c, float r) { r = Add (p, x) }", "x", "y") + "}")
    for most in (11, 12):
        module(n=np.array(1000, np.int64), x=np.array(1, np.float32))
        assert len(calls) <= most


def count_calls(monkeypatch):
    """The calls of compiled loops, from now on."""
    calls: list[int] = []
    init = compiled_loop.CompiledLoop.__init__

    def counting(self, step, entry, *others):
        init(self, step, lambda *arguments: (calls.append(1), entry(*arguments)), *others)

    monkeypatch.setattr(compiled_loop.CompiledLoop, "__init__", counting)
    return calls


ENDLESS = "g (int64 n, float x) => (float y) {" + loop(
    "b (int64 i, bool c, float p) => (bool d, float r) { d = Identity (c)"
    " r = Loop (n, , p) <body = inner (int64 j, bool e, float q) => (bool e, float s) { s = Add (q, x) }> }", "x", "y"
) + "}"  # fmt: skip


def test_an_endless_loop_is_interrupted():
    module = compiled(ENDLESS)
    x = np.array(1, np.float32)
    stop = threading.Timer(0.2, _thread.interrupt_main)
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        module(n=np.array(1 << 62), x=x)
    stop.join()
    assert module(n=np.array(3), x=x)[0].numpy() == 10


def test_another_thread_may_end_a_run():
    module = compiled(ENDLESS)
    stop = threading.Timer(0.2, lambda: module._context.fail(DeviceError("out of time")))
    stop.start()
    with pytest.raises(DeviceError, match="out of time"):
        module(n=np.array(1 << 62), x=np.array(1, np.float32))
    stop.join()

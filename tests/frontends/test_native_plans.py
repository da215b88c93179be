"""Compiled plans of graphs with size variables: runs without and with them agree, in results and in errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

from relayc import relay
from relayc.backend.runtime import device
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import ArgumentError, DeviceError
from relayc.backend.runtime.executor_pool import ExecutorPool
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.native_plan import NativePlan
from relayc.backend.runtime.plan_frame import largest_sizes
from relayc.frontends.onnx import from_onnx
from relayc.relay.lowering.plan import _Plan

MODELS = {
    "one size": """g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y, float[n] z) {
        a = MatMul (x, w) y = Tanh (a) axes = Constant <value_ints = [1]> ()
        z = ReduceSum <keepdims = 0> (y, axes) }""",
    "sizes that follow from others": """g (float[n, m] x) => (float[r, m] y, float[n, s] z) {
        y = Concat <axis = 0> (x, x, x) a = Concat <axis = 1> (x, x) begin = Constant <value_ints = [1]> ()
        end = Constant <value_ints = [1000]> () axes = Constant <value_ints = [1]> ()
        z = Slice (a, begin, end, axes) }""",
    "a size that is a value": """g (float[n, m] x, int64 k) => (float[r] y, int64[1] count) {
        one = Constant <value_ints = [1]> () len = Reshape (k, one) axes = Constant <value_ints = [0, 1]> ()
        s = ReduceSum <keepdims = 0> (x, axes) y = Expand (s, len) count = Shape (y) }""",
    "the number of results": """g (float[n, m] x) => (int64[2, r] y, float[r] z) {
        zero = Constant <value_float = 0.0> () more = Greater (x, zero) y = NonZero (more)
        at = Transpose (y) z = GatherND (x, at) }""",
    "a branch": """g (float[n, m] x, bool c) => (float[r, m] y) {
        y = If (c) <then_branch = t () => (float[p, q] a) { a = Concat <axis = 0> (x, x) },
                    else_branch = e () => (float[p2, q2] b) { b = Sin (x) }> }""",
    "sequences between kernels": """g (float[n, m] x) => (float[r, m] y) {
        a = Sin (x) b = Concat <axis = 0> (x, x) s = SequenceConstruct (a, b) zero = Constant <value_int = 1> ()
        c = SequenceAt (s, zero) y = Neg (c) }""",
    "an output that is an input": """g (float[n, m] x) => (float[n, m] x2, float[k] flat) {
        x2 = Identity (x) all = Constant <value_ints = [-1]> () flat = Reshape (x, all) }""",
}


def compiled(text: str, **options: Any) -> CompiledModel:
    module, params = from_onnx(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}'))
    return relay.build(module, "llvm", params, **options)


def executor(model: CompiledModel) -> GraphModule:
    return GraphModule(model["default"](device("cpu")), num_threads=1)


def without_plan(model: CompiledModel) -> GraphModule:
    """An executor of the model as earlier versions compiled it."""
    return executor(CompiledModel(replace(model.graph, entry=None), model.params, model.module))


def feeds_of(module: GraphModule, n: int, m: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    sizes, values = {"n": n, "m": m}, {"k": np.array(7 * n % 5), "c": np.array(n % 2 == 0)}
    shapes = module.get_input_info()[0]
    return {name: values[name] if name in values
            else rng.standard_normal([d if isinstance(d, int) else sizes[d] for d in shape]).astype(np.float32)
            for name, shape in shapes.items()}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_same_with_and_without_a_plan(name):
    model = compiled(MODELS[name])
    assert model.graph.entry is not None
    native, python = executor(model), without_plan(model)
    assert native._dynamic._plan is not None
    assert python._dynamic._plan is None
    for n, m in [(0, 4), (3, 4), (1, 4), (3, 4), (200, 5), (2, 300), (0, 4), (5, 4), (6, 4)]:
        m = 4 if name == "one size" else m
        feeds = feeds_of(native, n, m)
        for result, expected in zip(native.infer(feeds), python.infer(feeds), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_array_equal(result, expected)


def test_a_run_is_one_call_of_compiled_code(monkeypatch):
    model = compiled(MODELS["sizes that follow from others"])
    native, calls = executor(model), list[int]()
    call, begin = NativePlan.call, NativePlan.call_with_arrays
    monkeypatch.setattr(NativePlan, "call", lambda self, at: (calls.append(at), call(self, at))[1])
    monkeypatch.setattr(NativePlan, "call_with_arrays", lambda self, *x: (calls.append(0), begin(self, *x))[1])
    for n in (100, 50, 99, 100):
        native.infer(feeds_of(native, n, 60))
        if n == 100:
            del calls[:]  # the first run allocates memory
        else:
            assert calls == [0]
            del calls[:]


def test_branches_that_differ_in_names_and_weights_are_planned_once(monkeypatch):
    made, add_to = list[str](), _Plan.add_to
    monkeypatch.setattr(_Plan, "add_to", lambda plan, *args: made.append(add_to(plan, *args)) or made[-1])
    branch = "(c) <then_branch = t () => (float[p] {0}) {{ w{0} = Constant <value_floats = [{1}.0]> () {0} = {2} }}, "
    branch += "else_branch = e () => (float[q] n{0}) {{ n{0} = Neg (x) }}>"
    parts = [f"{name}{i}_ = If " + branch.format(f"{name}{i}", i + 2, op.format(f"{name}{i}"))
             for i in range(5) for name, op in [("a", "Add (x, w{0})"), ("b", "Concat <axis = 0> (x, w{0}, w{0})")]]
    outputs = [f"{name}{i}_" for i in range(5) for name in "ab"]
    declared = ", ".join(f"float[{name}] {name}" for name in outputs)
    model = compiled(f"g (float[n] x, bool c) => ({declared}) {{ {' '.join(parts)} }}")
    assert len(made) == len(set(made)) <= 4  # the model, sums, concatenations, negations
    x = np.arange(3, dtype=np.float32)
    for c in (True, False):
        results = executor(model).infer({"x": x, "c": np.array(c)})
        for i in range(5):
            np.testing.assert_array_equal(results[2 * i], x + (i + 2) if c else -x)
            np.testing.assert_array_equal(results[2 * i + 1], np.append(x, [i + 2, i + 2]) if c else -x)


@pytest.mark.parametrize(("shapes", "text"), [
    ({"x": (3, 4), "w": (2, 3)}, r"input 'w' of model 'default': got shape \(2, 3\), whose axis 1 is 3; expected 4"),
    ({"x": (2, 4), "w": (4, 2)}, r"needs two equal sizes|expected"),
])  # fmt: skip
def test_sizes_that_contradict_each_other_are_named(shapes, text):
    model = compiled("g (float[n, m] x, float[k, m] w) => (float[n, m] y)"
                     " { a = Add (x, w) b = Tanh (a) y = Mul (b, x) }")  # fmt: skip
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    messages: list[str] = []
    for module in (executor(model), without_plan(model)):
        with pytest.raises(ArgumentError, match=text) as caught:
            module.infer(feeds)
        messages.append(str(caught.value))
        good = {name: np.ones((2, 4), np.float32) for name in feeds}
        np.testing.assert_allclose(module.infer(good)[0], np.tanh(2) * np.ones((2, 4)), rtol=1e-6)
    assert messages[0] == messages[1]


def test_tensors_that_are_too_large_are_refused():
    model = compiled("g (float[n] x, float[m] w) => (float[n, m] y) { one = Constant <value_ints = [-1, 1]> ()"
                     " a = Reshape (x, one) b = Mul (a, w) c = Sin (b) y = Add (c, w) }")  # fmt: skip
    feeds = {"x": np.zeros(1 << 16, np.float32), "w": np.zeros(1 << 15, np.float32)}
    for module in (executor(model), without_plan(model)):
        with pytest.raises(ArgumentError, match=r"tensor of shape \(65536, 32768\); expected at most 2147483647"):
            module.infer(feeds)
        assert module.infer({"x": np.zeros(3, np.float32), "w": np.ones(2, np.float32)})[0].shape == (3, 2)


def test_sizes_whose_products_exceed_64_bits_are_left_to_exact_arithmetic():
    square = ("*", "n", "n")
    assert largest_sizes([("*", square, square)]) == 1 << 15
    assert largest_sizes([("-", ("*", "n", 3), 1)]) == 1 << 31
    assert largest_sizes([]) == 1 << 31
    model = compiled("""g (float[n] x) => (float[s, r] y) {
        zero = Constant <value_int = 0> () axes = Constant <value_ints = [0]> () begin = Constant <value_ints = [0]> ()
        shape = Shape (x) a = Mul (shape, shape) b = Mul (a, a) five = Constant <value_ints = [5]> ()
        left = Sub (b, five) both = Concat <axis = 0> (left, shape) one = Constant <value_float = 1.5> ()
        y = Expand (one, both) }""")
    for module in (executor(model), without_plan(model)):
        assert module.infer({"x": np.zeros(2, np.float32)})[0].shape == (11, 2)
        for n in (1, 1 << 16, 3):  # -4, far too many elements, 76
            if n == 3:
                assert module.infer({"x": np.zeros(n, np.float32)})[0].shape == (76, 3)
                continue
            with pytest.raises(ArgumentError, match="make a tensor of shape"):
                module.infer({"x": np.zeros(n, np.float32)})


def test_outputs_that_are_held_keep_their_values():
    module = executor(compiled(MODELS["one size"]))
    w = np.eye(4, dtype=np.float32)
    held = [module(np.full((1 + i % 3, 4), i, np.float32), w)[0] for i in range(9)]
    for i, value in enumerate(held):
        np.testing.assert_array_equal(value.numpy(), np.tanh(np.full((1 + i % 3, 4), i, np.float32)))


def test_outputs_may_become_the_next_inputs():
    module = executor(compiled("g (float[p, 2] past, float[n, 2] x) => (float[t, 2] y)"
                               " { y = Concat <axis = 0> (past, x) }"))  # fmt: skip
    module.set_input("past", np.zeros((0, 2), np.float32))
    for i in range(60):
        module.run(x=np.full((1, 2), i, np.float32))
        result = module.get_output(0)
        module.set_input_zero_copy("past", result)
    np.testing.assert_array_equal(result.numpy()[:, 0], np.arange(60, dtype=np.float32))


def test_inputs_of_changing_sizes_use_their_memory_again():
    module = executor(compiled(MODELS["an output that is an input"]))
    for n in (3, 4, 2, 3):
        x = np.random.default_rng(n).standard_normal((n, 5)).astype(np.float32)
        copied, flat = module.infer({"x": x})
        np.testing.assert_array_equal(copied, x)
        np.testing.assert_array_equal(flat, x.reshape(-1))
    with pytest.raises(ArgumentError, match=r"got shape \(5,\)"):
        module.infer({"x": np.zeros(5, np.float32)})
    buffer = module.get_input("x")
    before = buffer.numpy()
    module.set_input("x", np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(buffer.numpy(), before)  # what the user has is not used under another shape


def test_memory_that_is_exhausted_is_an_error_and_the_next_run_is_right(monkeypatch):
    model = compiled("g (float[n, n] x) => (float[n, n] y)"
                     " { a = Sin (x) b = MatMul (a, x) c = Tanh (b) y = MatMul (c, a) }")  # fmt: skip
    module = executor(model)
    x = np.eye(3, dtype=np.float32)
    expected = module.infer({"x": x})
    api, alloc = module.device.api, type(module.device.api).alloc_data_space

    def refuse(self: Any, where: Any, nbytes: int, *others: Any) -> int:
        if nbytes > 1 << 20:
            raise DeviceError(f"out of memory: {nbytes} bytes")
        return alloc(self, where, nbytes, *others)

    module.set_input("x", np.eye(600, dtype=np.float32))  # this memory is there
    monkeypatch.setattr(type(api), "alloc_data_space", refuse)
    with pytest.raises(DeviceError, match="out of memory"):
        module.run()
    np.testing.assert_array_equal(module.infer({"x": x})[0], expected[0])


def test_threads_share_a_model_and_an_executor():
    model = compiled(MODELS["sizes that follow from others"])
    pool, shared = ExecutorPool(executor(model)), executor(model)
    barrier = threading.Barrier(4)

    def work(seed: int) -> bool:
        barrier.wait()
        for n in range(1, 40):
            x = np.full((n, seed + 1), seed, np.float32)
            with pool.borrowed() as own:
                first = own.infer({"x": x})
            for y, z in (first, shared.infer({"x": x})):
                if y.shape != (3 * n, seed + 1) or z.shape != (n, 2 * seed + 1) or not (y == seed).all():
                    return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_a_profile_counts_the_kernels_of_a_plan():
    module = executor(compiled(MODELS["one size"]))
    feeds = feeds_of(module, 9, 4)
    expected = module.infer(feeds)
    assert len(module.profile(2, **feeds)) == len(module._graph.nodes)
    np.testing.assert_array_equal(module.get_output(0).numpy(), expected[0])
    np.testing.assert_array_equal(module.infer(feeds)[0], expected[0])


def test_a_plan_computes_each_dimension_of_a_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    pool = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"
    pools = " ".join([f"x{i + 1} = {pool} (x{i})" for i in range(10)])
    source = compiled(f"g (float[1, 3, h, w] x0) => (float[1, 3, p, q] x10) {{ {pools} }}").module.get_source("raw-ll")
    plan = source[source.index("define void @relayc_plan") :]
    assert plan.count("ashr") <= 3 * 10  # the height and width of each result, and its aligned bytes


@pytest.mark.parametrize("make", [executor, without_plan])
def test_memory_whose_size_a_view_tells_is_not_that_of_others(make):
    """The view `v` has its shape from the input; that of the tensor it is a view of, `a`, is known only when the model
    runs. So is that of `b`, which has twice the elements, while `w` is still read."""
    model = compiled("""g (float[n, 64] x, int64[2] s) => (float[p, q] z) {
        r = Reshape (x, s) a = Softmax (r) all = Shape (x) v = Reshape (a, all) w = Softmax (v) k = Reshape (w, s)
        b = Concat <axis = 1> (k, k) y = Softmax (b) most = ReduceMax <keepdims = 0> (y) z = Add (k, most) }""")

    def softmax(values: np.ndarray) -> np.ndarray:
        return np.exp(values) / np.exp(values).sum(-1, keepdims=True)

    x = np.random.default_rng(0).standard_normal((6, 64), np.float32)
    k = softmax(softmax(x.reshape(12, 32)).reshape(6, 64)).reshape(12, 32)
    most = softmax(np.concatenate((k, k), 1)).max()
    (z,) = make(model)(x, np.array([12, 32]))
    np.testing.assert_allclose(z.numpy(), k + most, rtol=1e-5)

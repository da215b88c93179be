"""Inputs that compiled models read in place: memory that nobody can write, aligned to no more than its elements."""

from __future__ import annotations

import ctypes
import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx import numpy_helper, parser

import relayc
from relayc.backend.runtime import ArgumentError, GraphModule
from relayc.backend.runtime.input_ports import InputPorts

MODELS = {
    "elementwise": "g (float[7, 4999] x) => (float[7, 4999] y) { y = Relu (x) }",
    "larger than the caches": "g (float[333, 65537] x) => (float[333, 65537] y) { y = Relu (x) }",
    "product": "g (float[37, 1001] x) => (float[37, 250] y) { y = MatMul (x, w) }",
    "half": "g (float16[37, 1001] x) => (float16[37, 1001] y) { y = Sigmoid (x) }",
    "bytes": "g (uint8[91, 1003] x) => (float[91, 1003] y) { y = Cast <to = 1> (x) }",
    "softmax": "g (float[n, 8193] x) => (float[n, 8193] y) { y = Softmax (x) }",
    "rows": """g (float[n, m] x) => (float[n] y) {
        axes = Constant <value_ints = [1]> () y = ReduceSum <keepdims = 0> (x, axes) }""",
    "columns": """g (float[n, m] x) => (float[m] y) {
        axes = Constant <value_ints = [0]> () y = ReduceMax <keepdims = 0> (x, axes) }""",
    "transpose": "g (float[n, m] x) => (float[m, n] y) { y = Transpose (x) }",
    "images": """g (float[b, 8, 61, 67] x) => (float[b, 16, s, t] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu (c) y = MaxPool <kernel_shape = [2, 2]> (r) }""",
    "sizes that are values": """g (float[n, m] x) => (int64[2, r] y) {
        zero = Constant <value_float = 2.0> () more = Greater (x, zero) y = NonZero (more) }""",
    "a size that may be 1": "g (float[n, m] x, float[k, m] z) => (float[o, m] y) { y = Add (x, z) }",
}
SEEN_AFTERWARDS = {
    "an output that is an input": """g (float[n, m] x) => (float[n, m] y, float[n, m] z) {
        y = Neg (x) z = Identity (x) }""",
    "a loop": """g (float[n, m] x, int64 trips) => (float[n, m] y, float[n, m] z) {
        go = Constant <value = bool {1}> () never = Constant <value_int = 0> ()
        y = Loop (trips, go, x) <body = b (int64 i, bool c, float[p, q] v) => (bool c2, float[p, q] w) {
            c2 = Identity (c) w = Sin (v) }>
        z = Loop (never, go, x) <body = b2 (int64 i2, bool c3, float[p2, q2] v2) => (bool c4, float[p2, q2] w2) {
            c4 = Identity (c3) w2 = Sin (v2) }> }""",
    "a branch": """g (float[n, m] x, bool c) => (float[n, m] y) {
        y = If (c) <then_branch = t () => (float[p, q] a) { a = Identity (x) },
                    else_branch = e () => (float[p2, q2] b) { b = Sin (x) }> }""",
}
SIZES = {"n": 41, "m": 999, "b": 3, "k": 41}
LARGE = 1 << 16
WEIGHTS = {"w": (1001, 250), "k": (16, 8, 3, 3)}


def executor(text: str) -> GraphModule:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    used = {name for node in model.graph.node for name in node.input} - {value.name for value in model.graph.input}
    rng = np.random.default_rng(1)
    for name in used & set(WEIGHTS):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(WEIGHTS[name], np.float32), name))
    return GraphModule.of(relayc.compile_onnx(model))


def feeds_of(module: GraphModule, **sizes: int) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(2), dict[str, np.ndarray]()
    shapes, dtypes = module.get_input_info()
    for name, shape in shapes.items():
        extents = [d if isinstance(d, int) else {**SIZES, **sizes}[str(d)] for d in shape]
        values = np.array(1) if shape == () else 3 * rng.standard_normal(extents)
        feeds[name] = values.astype(dtypes[name])
    return feeds


def read_only(values: np.ndarray) -> np.ndarray:
    """A copy of the values in memory that nobody can write, before a page that nobody can read."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    nbytes = -(-values.nbytes // page) * page
    pages = mmap.mmap(-1, nbytes + page)
    memory = np.frombuffer(pages, np.uint8)
    found = memory[nbytes - values.nbytes : nbytes].view(values.dtype).reshape(values.shape)
    found[...] = values
    begin = ctypes.c_void_p(memory.ctypes.data)
    assert libc.mprotect(begin, ctypes.c_size_t(nbytes), mmap.PROT_READ) == 0
    assert libc.mprotect(ctypes.c_void_p(memory.ctypes.data + nbytes), ctypes.c_size_t(page), 0) == 0
    return found


def same_bits(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.fixture
def copied(monkeypatch):
    """Names of the large arrays that are copied into inputs."""
    found: list[str] = []
    for method in ("set", "copy_array"):
        inner = getattr(InputPorts, method)

        def noted(self: InputPorts, key: Any, value: Any, inner: Any = inner) -> Any:
            done = inner(self, key, value)
            if done is not False and value.nbytes >= LARGE:
                found.append(self.tensor(key).name if isinstance(key, int) else key)
            return done

        monkeypatch.setattr(InputPorts, method, noted)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_results_have_the_bits_of_copied_inputs(name, copied):
    module = executor(MODELS[name])
    for sizes in ({}, {"n": 17, "b": 1, "k": 1}, {}):
        feeds = feeds_of(module, **sizes)
        module.run(feeds)
        expected = [module.get_output(i).numpy() for i in range(module.get_num_outputs())]
        copied.clear()
        for _ in range(2):
            same_bits(module.infer({key: read_only(value) for key, value in feeds.items()}), expected)
        assert not copied


@pytest.mark.parametrize("name", SEEN_AFTERWARDS)
def test_outputs_are_no_views_of_inputs(name):
    module = executor(SEEN_AFTERWARDS[name])
    feeds = feeds_of(module)
    expected = [np.array(value) for value in module.infer({key: read_only(value) for key, value in feeds.items()})]
    same_bits(module.infer(feeds), expected)
    feeds["x"][...] = 0
    same_bits([module.get_output(i).numpy() for i in range(module.get_num_outputs())], expected)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_are_not_kept(name):
    module = executor(MODELS[name])
    kept: list[Any] = []
    for sizes in ({}, {"n": 17, "b": 1, "k": 1}):
        for make in (lambda value: value, lambda value: value.astype(value.dtype.newbyteorder("=")).copy()):
            feeds = {key: make(value) for key, value in feeds_of(module, **sizes).items()}
            seen = [weakref.ref(value) for value in feeds.values()]
            kept = module.infer(feeds)
            del feeds
            gc.collect()
            assert [reference() for reference in seen] == [None] * len(seen)
    assert kept
    with pytest.raises(ArgumentError, match="were never set, or only for a call of infer"):
        module.run()


def test_an_array_may_be_several_inputs_and_a_result_an_input():
    module = executor("g (float[n, m] x, float[n, m] z) => (float[n, m] y) { y = Add (x, z) }")
    x = np.ones((300, 300), np.float32)
    (y,) = module.infer({"x": x, "z": x})
    for power in range(2, 6):
        (y,) = module.infer({"x": y, "z": y})
        np.testing.assert_array_equal(y, np.full((300, 300), 2.0**power))


def test_zero_copy_inputs_need_no_more_than_the_alignment_of_elements():
    module = executor(MODELS["elementwise"])
    feeds = feeds_of(module)
    expected = module.infer(feeds)
    module.set_input_zero_copy("x", read_only(feeds["x"]))
    module.run()
    same_bits([module.get_output(0).numpy()], expected)
    memory = np.zeros(feeds["x"].nbytes + 2, np.uint8)
    with pytest.raises(ArgumentError, match="expected contiguous memory on cpu:0 aligned to 4 bytes"):
        module.set_input_zero_copy("x", memory[2:].view(np.float32).reshape(feeds["x"].shape))


def test_bfloat16_arrays_are_read_in_place(copied):
    module = executor("g (bfloat16[65, 333] x) => (bfloat16[65, 333] y) { y = Neg (x) }")
    x = np.random.default_rng(3).standard_normal((65, 333)).astype(bfloat16)
    same_bits(module.infer({"x": read_only(x)}), [-x])
    assert not copied

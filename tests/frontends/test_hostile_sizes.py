"""Small model files whose counts and attributes would cost minutes or gigabytes: each fails, or builds, quickly.

Models are compiled in a process of their own, which is ended after a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.relay.expr import Tuple

INT64 = TensorProto.INT64
REJECTED_IN, BUILT_IN = 20, 60
"""Seconds of CPU time; most take one."""
_STUCK = 600
"""Seconds after which a process that does not compute counts as stuck, on a busy machine."""

_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
from relayc import relay
from relayc.te.errors import CompileError
from relayc.frontends.onnx import from_onnx
try:
    relay.build(from_onnx(sys.argv[1])[0])
    print("built")
except CompileError as error:
    print(error)
"""


def node(op: str, inputs: list[str], name: str = "culprit", outputs: Sequence[str] = ("y",), **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs, outputs, name=name, **attrs)


def model(
    nodes: list[NodeProto],
    x: list[Any] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    elem_type: int = TensorProto.FLOAT,
    **more: Any,
) -> ModelProto:
    inputs = [helper.make_tensor_value_info("x", elem_type, [2, 3] if x is None else x)]
    inputs += [helper.make_tensor_value_info(name, *form) for name, form in more.pop("inputs", {}).items()]
    stored = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, [helper.make_empty_tensor_value_info("y")], stored)
    imports = [helper.make_opsetid("", more.pop("opset", 18)), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **more)


def skips(extent: Any) -> ModelProto:
    attrs = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 2**31 - 1}
    attrs |= {"ngram_counts": [0, 1], "ngram_indexes": [0, 1], "pool_int64s": [1, 1, 2]}
    return model([node("TfIdfVectorizer", ["x"], **attrs)], [extent], elem_type=INT64)


def doubling_functions() -> ModelProto:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = [helper.make_function("local", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)]
    for i in range(1, 26):
        calls = [helper.make_node(f"f{i - 1}", [a], [b], domain="local") for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], calls, imports))
    return model([node("f25", ["x"], domain="local")], functions=functions)


def folded_chain(of: int, elem_type: int, links: int, op: str, end: list[NodeProto]) -> ModelProto:
    """`links` operators one after the other on a constant of `of` equal elements."""
    one = helper.make_tensor("one", elem_type, [1], [1])
    nodes = [node("ConstantOfShape", ["s"], "first", ["c0"], value=one)]
    for i in range(links):
        operands = [f"c{i}", "two"] if op == "Add" else [f"c{i}"]
        nodes.append(node(op, operands, f"link{i}", [f"c{i + 1}" if i + 1 < links else "last"]))
    return model([*nodes, *end], [1], {"s": np.array([of]), "two": np.array([2])})


def roi_align(**attrs: Any) -> ModelProto:
    inputs = {"r": (TensorProto.FLOAT, [1, 4]), "b": (INT64, [1])}
    return model([node("RoiAlign", ["x", "r", "b"], **attrs)], [1, 1, 8, 8], inputs=inputs)


REJECTED = {
    "skips of short rows": (skips(2000), "max_skip_count is 2147483647"),
    "skips of any rows": (skips("n"), "max_skip_count is 2147483647"),
    "functions": (doubling_functions(), "at most 100000"),
    "kernel": (model([node("MaxPool", ["x"], kernel_shape=[2**31], pads=[2**30] * 2)], [1, 1, 8]), "a kernel of"),
    "pads": (model([node("MaxPool", ["x"], kernel_shape=[2**31 - 1], pads=[2**30] * 2)], [1, 1, 8]), "pads are"),
    "pads of any image": (model([node("MaxPool", ["x"], kernel_shape=[9], pads=[2**30] * 2)], [1, 1, "n"]), "pads are"),
    "strides": (model([node("AveragePool", ["x"], kernel_shape=[1], strides=[2**40])], [1, 1, 8]), "strides are"),
    "named dimensions": (model([node("Relu", ["x"])], [f"d{i}" for i in range(100)]), "at most 64 dimensions"),
    "unsqueezed": (model([node("Unsqueeze", ["x", "a"])], weights={"a": np.arange(100)}), "at most 64"),
    "length": (model([node("DFT", ["x", "n"], axis=1)], [1, 8, 1], {"n": np.array(2**31 - 1)}), "at most"),
    "samples": (roi_align(sampling_ratio=2**30), "expected 0 to 1024"),
}

BUILT = {
    "exponent": model([node("LpPool", ["x"], kernel_shape=[2], p=2**40)], [1, 1, 8]),
    "exponent of a product": model([node("LpPool", ["x"], kernel_shape=[2], p=1000)], [1, 1, 8]),
    "large constants": folded_chain(2**26, TensorProto.FLOAT, 40, "Exp", [node("Add", ["x", "last"])]),
    "split into elements": model(
        [node("SplitToSequence", ["x"], "split", ["s"], axis=0), node("SequenceAt", ["s", "i"])],
        [2**30],
        {"i": np.array(3)},
    ),
    "sum": model([node("Sum", ["x"] * 1000)]),
    "mean": model([node("Mean", ["x"] * 1000)]),
    "adds": model([node("Add", [f"c{i}" if i else "x", "x"], f"a{i}", [f"c{i + 1}"]) for i in range(1000)]
                  + [node("Relu", ["c1000"])]),
    "gathers": model([node("Gather", [f"c{i}" if i else "x", "i"], f"g{i}", [f"c{i + 1}"]) for i in range(100)]
                     + [node("Relu", ["c100"])], [64], inputs={"i": (INT64, [64])}),
}  # fmt: skip


def outcome(path: Path, seconds: int = REJECTED_IN) -> str:
    """What a process prints that imports and builds the model."""
    environment = {**os.environ, "RELAYC_CACHE_DIR": "off"}
    command = [sys.executable, "-c", _CHILD, str(path), str(seconds)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_STUCK, check=False)
    return ran.stdout + ran.stderr


def saved(proto: ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("name", REJECTED)
def test_a_count_that_is_too_large_is_named(name: str, tmp_path: Path) -> None:
    proto, text = REJECTED[name]
    found = outcome(saved(proto, tmp_path))
    assert text in found, found
    assert "Traceback" not in found, found
    if name not in ("functions", "named dimensions"):
        assert "culprit" in found, found


@pytest.mark.parametrize("name", BUILT)
def test_a_long_or_large_model_is_built_quickly(name: str, tmp_path: Path) -> None:
    assert outcome(saved(BUILT[name], tmp_path), BUILT_IN) == "built\n"


def test_values_that_cost_too_much_to_fold_are_needed() -> None:
    end = [node("ReduceMax", ["last"], "largest", ["m"], keepdims=1), node("Expand", ["x", "m"])]
    mod, _ = from_onnx(folded_chain(2**24, INT64, 8, "Add", end))
    assert isinstance(mod["main"].body, Tuple), "with the size, computed at run time"
    mod, _ = from_onnx(folded_chain(2**22, INT64, 8, "Add", end))
    assert mod["main"].body.shape == (17,)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "pipe.onnx"
        os.mkfifo(path)
    found = outcome(path)
    assert "can't be read: it is not a regular file" in found, found


def run(proto: ModelProto, **inputs: np.ndarray) -> np.ndarray:
    module = graph_executor.GraphModule(relay.build(from_onnx(proto)[0])["default"](device("cpu", 0)))
    (y,) = module(**inputs)
    return y.numpy()


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("onesided", [0, 1])
def test_transforms_of_a_large_prime_length(inverse: int, onesided: int) -> None:
    n, rng = 10_007, np.random.default_rng(3)
    half = n // 2 + 1
    terms, parts = (half if inverse and onesided else n), 1 if onesided and not inverse else 2
    x = rng.standard_normal((2, terms, parts)).astype(np.float32)
    inputs, weights = (["x", "n"], {"n": np.array(n)}) if inverse and onesided else (["x"], {})
    proto = model([node("DFT", inputs, axis=1, inverse=inverse, onesided=onesided)], [2, terms, parts], weights)
    y = run(proto, x=x)
    signal = x[..., 0].astype(np.float64) if parts == 1 else x[..., 0] + 1j * x[..., 1].astype(np.float64)
    if inverse and onesided:
        want = np.fft.irfft(signal, n, axis=1)[..., None]
    else:
        spectrum = np.fft.ifft(signal, axis=1) if inverse else np.fft.fft(signal, axis=1)
        spectrum = spectrum[:, :half] if onesided else spectrum
        want = np.stack([spectrum.real, spectrum.imag], axis=2)
    np.testing.assert_allclose(y, want, atol=2e-5 * np.abs(want).max())


def test_a_transform_of_a_prime_length_of_a_million() -> None:
    proto = model([node("DFT", ["x"], axis=1)], [1, 1_000_003, 1])
    impulse = np.zeros((1, 1_000_003, 1), np.float32)
    impulse[0, 1] = 1
    angle = -2 * np.pi * np.arange(1_000_003) / 1_000_003
    np.testing.assert_allclose(run(proto, x=impulse)[0], np.stack([np.cos(angle), np.sin(angle)], 1), atol=1e-4)


def test_regions_of_any_size_are_sampled_in_bounded_time() -> None:
    x, owner = np.ones((1, 1, 8, 8), np.float32), np.zeros(1, np.int64)
    y = run(roi_align(output_height=2, output_width=2), x=x, r=np.array([[0, 0, 1e30, 1e30]], np.float32), b=owner)
    assert np.abs(y).max() <= 1
    for r in ([-np.inf, 0, np.inf, 8], [np.nan] * 4, [1e9, 1e9, -1e9, -1e9]):
        run(roi_align(), x=x, r=np.array([r], np.float32), b=owner)


def test_positions_out_of_range_read_no_other_memory() -> None:
    """Positions are limited to the axis, as all are without checks of indices: nothing else of the model is read."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    rows = {"i": np.array([0, 1 << 30, -(1 << 30)])}
    for extent in (2, "n"):
        inputs = {"i": (INT64, [3])}
        passed = run(model([node("Gather", ["x", "i"])], [extent, 4], inputs=inputs), x=x, **rows)
        np.testing.assert_array_equal(passed, x[[0, 1, 0]])
    stored = run(model([node("Gather", ["x", "i"])], ["n", 4], {"i": np.array([0, 1 << 30])}), x=x)
    np.testing.assert_array_equal(stored, x)
    images = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    regions = np.array([[image, 0, 0, 3, 3] for image in (0, 1, 1e9, -1e9, 1e30)], np.float32)
    pool = model([node("MaxRoiPool", ["x", "r"], pooled_shape=[1, 1])], [2, 1, 4, 4], inputs={"r": (1, ["count", 5])})
    np.testing.assert_array_equal(run(pool, x=images, r=regions).ravel()[:4], [15, 31, 31, 15])


@pytest.mark.parametrize("p", [1, 3, 8, 9, 1000])
def test_norms_of_large_exponents(p: int) -> None:
    x = np.linspace(0.5, 1.0, 8, dtype=np.float32).reshape(1, 1, 8)
    y = run(model([node("LpPool", ["x"], kernel_shape=[2], p=p)], [1, 1, 8]), x=x)
    a, b = x[0, 0, :-1].astype(np.float64), x[0, 0, 1:].astype(np.float64)
    large = np.maximum(a, b) ** p > 1e-37  # below, the power of float32 is 0
    np.testing.assert_allclose(y[0, 0][large], ((a**p + b**p) ** (1 / p))[large], rtol=1e-4)


def test_sums_of_many_operands_are_right() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(BUILT["sum"], x=x), 1000 * x)
    np.testing.assert_allclose(run(BUILT["mean"], x=x), x, rtol=1e-6)


def test_more_nodes_of_functions_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayc.frontends.onnx.expansion.MAX_EXPANDED", 1000)
    with pytest.raises(OnnxImportError, match="at most 1000"):
        from_onnx(doubling_functions())

"""`relayc verify`: every tensor compared, the node at fault named."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from relayc import te
from relayc.backend.cache import DiskCache
from relayc.cli.main import app
from relayc.frontends.onnx import verify as verify_module
from relayc.frontends.onnx.verify import Comparison, _first_cut, departure, verify
from relayc.relay.op.elementwise import Tanh
from relayc.te.errors import CompileError

X = np.random.default_rng(3).standard_normal((2, 6)).astype(np.float32)


def small_model() -> onnx.ModelProto:
    """x @ w -> tanh -> + b, split and joined through a sequence."""
    rng = np.random.default_rng(4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Tanh", ["h"], ["a"], name="activate"),
        helper.make_node("SequenceConstruct", ["a", "h"], ["s"], name="collect"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], name="join", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(rng.standard_normal((6, 4)).astype(np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_right_model_agrees_tensor_by_tensor() -> None:
    report = verify(small_model(), {"x": X}, against="reference", shape={"n": 2})
    assert report.agrees and report.departs is None
    assert [c.tensor for c in report.tensors] == ["h", "a", "length of s", "s[0]", "s[1]", "y"]
    assert [c.shape for c in report.outputs] == [(2, 8)]
    assert not report.skipped
    assert all(c.error < 1e-6 for c in report.tensors)


def listing_model() -> onnx.ModelProto:
    """A loop that appends to a sequence, whose elements are concatenated and counted."""
    value, sequence = helper.make_tensor_value_info, helper.make_tensor_sequence_value_info
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Gather", ["x", "i"], ["row"], name="gather"),
        helper.make_node("Tanh", ["row"], ["a"], name="activate"),
        helper.make_node("SequenceInsert", ["list", "a"], ["longer"], name="append"),
    ]
    body = helper.make_graph(
        nodes, "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), sequence("list", 1, None)],
        [value("on", TensorProto.BOOL, []), sequence("longer", 1, None)],
    )  # fmt: skip
    around = [
        helper.make_node("SequenceEmpty", [], ["empty"], name="start"),
        helper.make_node("Loop", ["trips", "", "empty"], ["s"], body=body, name="loop"),
        helper.make_node("ConcatFromSequence", ["s"], ["joined"], name="join", axis=0, new_axis=1),
        helper.make_node("Shape", ["joined"], ["shape"], name="measure"),
        helper.make_node("Expand", ["one", "shape"], ["ones"], name="lay"),
        helper.make_node("Sub", ["joined", "ones"], ["y"], name="subtract"),
    ]
    inputs = [value("trips", TensorProto.INT64, []), value("x", TensorProto.FLOAT, ["n", 6])]
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    graph = helper.make_graph(around, "listing", inputs, [value("y", TensorProto.FLOAT, None)], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("oracle", ["reference", "onnxruntime"])
def test_runtime_sequences_are_compared_by_element(oracle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if oracle == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    passed = {"trips": np.array(2), "x": X}
    report = verify(listing_model(), passed, against=oracle)
    assert report.agrees and {"length of s", "s[0]", "s[1]", "joined", "y"} <= {c.tensor for c in report.tensors}
    right = Tanh.compute
    monkeypatch.setattr(Tanh, "compute", lambda self, x: right(self, right(self, x)))
    report = verify(listing_model(), passed, against=oracle)
    assert report.departs is not None and report.departs.tensor == "s[0]"


def test_onnxruntime_is_an_oracle_where_it_is_installed() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    report = verify(small_model(), {"x": X}, against="onnxruntime", shape={"n": 2})
    assert report.agrees and len(report.tensors) == 6


def test_the_first_node_that_departs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tanh, "reference", lambda self, x: np.tanh(x) * np.float32(1.01))
    report = verify(small_model(), {"x": X}, against="reference", shape={"n": 2})
    assert report.departs is not None and not report.fused_only
    assert report.departs.tensor == "a" and report.departs.node == "node 'activate' (Tanh)"
    assert report.departs.error == pytest.approx(0.01, rel=0.05)
    assert verify(small_model(), {"x": X}, against="reference", shape={"n": 2}, tolerance=0.02).agrees


@pytest.mark.parametrize("oracle", ["reference", "onnxruntime"])
def test_a_fault_in_the_code_of_an_operator_is_found(oracle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if oracle == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    right = Tanh.compute
    monkeypatch.setattr(Tanh, "compute", lambda self, x: right(self, right(self, x)))
    report = verify(small_model(), {"x": X}, against=oracle)  # n stays open
    assert report.departs is not None and report.departs.node == "node 'activate' (Tanh)"
    assert [c.tensor for c in report.tensors if c.agrees] == ["h", "length of s", "s[1]"]


def test_a_fault_in_fused_code_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of activations, the third wrong only when it is fused."""
    names = [f"t{i}" for i in range(6)]
    nodes = [helper.make_node(op, [a], [b], name=f"n_{op}") for op, a, b in
             zip(("Exp", "Abs", "Tanh", "Neg", "Sigmoid"), names, names[1:], strict=False)]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("t5", TensorProto.FLOAT, [2, 6])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    right = Tanh.compute

    def wrong(self: Tanh, x: te.Tensor) -> te.Tensor:
        return right(self, x) if x.op.name.startswith("p") else right(self, right(self, x))

    monkeypatch.setattr(Tanh, "compute", wrong)
    report = verify(model, {"t0": X}, against="reference")
    assert report.fused_only and report.departs is not None
    assert report.departs.node == "node 'n_Tanh' (Tanh)"


def test_a_fault_that_only_fusion_shows_is_found_by_cutting() -> None:
    names = [f"t{i}" for i in range(11)]
    asked: list[str] = []

    def compare(name: str) -> Comparison:
        asked.append(name)
        return Comparison(name, "n", "float32", (1,), 1.0 if int(name[1:]) >= 7 else 0.0, 1e-4)

    output = Comparison("out", "n", "float32", (1,), 1.0, 1e-4)
    assert _first_cut(names, compare, [output]).tensor == "t7"
    assert len(asked) <= 4
    assert _first_cut(names[:7], compare, [output]) is output


@pytest.mark.parametrize(
    ("value", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([1.0, np.nan], [np.nan, 1.0], np.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([-np.inf, 1.0], [np.inf, 1.0], np.inf),
        ([np.inf, 1.0], [2.0, 1.0], np.inf),
        ([0.0], [0.0], 0.0),
        ([1e-3], [0.0], np.inf),
        ([1.0, 2.0], [1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_departure(value: list[float], expected: list[float], error: float) -> None:
    assert departure(np.array(value, np.float32), np.array(expected, np.float32)) == error


def test_departure_of_another_type_is_infinite() -> None:
    assert departure(np.zeros(2, np.float32), np.zeros(2, np.float64)) == np.inf


def test_invalid_arguments_of_verify() -> None:
    with pytest.raises(CompileError, match="'other'; expected one of onnxruntime, reference"):
        verify(small_model(), {"x": X}, against="other")
    with pytest.raises(CompileError, match="missing: x"):
        verify(small_model(), {}, against="reference")


def test_the_command_tells_and_its_exit_code_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.onnx"
    onnx.save(small_model(), path)
    command = ["verify", str(path), "--against", "reference", "--shape", "n=2"]
    good = CliRunner().invoke(app, command)
    assert good.exit_code == 0 and "all 6 tensors agree with reference" in good.output, good.output
    assert "length of s" in good.output
    monkeypatch.setattr(Tanh, "reference", lambda self, x: np.tanh(x) + np.float32(1))
    bad = CliRunner().invoke(app, command)
    assert bad.exit_code == 1 and "first at a of node 'activate' (Tanh)" in bad.output, bad.output


def test_doctor_reports_on_every_subject() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    lines = {line[5:].split("  ")[0].strip(): line[:3].strip() for line in result.output.splitlines() if line}
    assert lines["python"] == "yes" and lines["target llvm"] == "yes" and lines["onnx"] == "yes"
    assert {"processor", "target c", "cache", "target cuda", "cuda device", "onnxruntime"} <= set(lines)


def test_doctor_says_whether_the_cache_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for place, mark, text in ((tmp_path / "new", "yes", "new"), (tmp_path / "file", "no", "can't be written"),
                              (tmp_path / "shared", "no", "chmod -R"), ("off", "no", "every compilation")):  # fmt: skip
        monkeypatch.setenv("RELAYC_CACHE_DIR", str(place))
        (line,) = [line for line in CliRunner().invoke(app, ["doctor"]).output.splitlines() if "  cache  " in line]
        assert line.startswith(mark) and text in line
    assert sorted(os.listdir(tmp_path)) == ["file", "shared"]


def test_cache_says_what_it_holds_and_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    DiskCache(tmp_path).put("key", bytes(2_000_000))
    said = CliRunner().invoke(app, ["cache"]).output
    assert str(tmp_path) in said.replace("\n", "") and "1 entry, 2.0 MB" in said
    assert CliRunner().invoke(app, ["cache", "--clear"]).exit_code == 0
    assert "0 entries" in CliRunner().invoke(app, ["cache"]).output
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    assert "off" in CliRunner().invoke(app, ["cache"]).output


def quantised_model() -> onnx.ModelProto:
    """x -> int8 -> float32 -> relu, and the place of the maximum."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantise"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="dequantise"),
        helper.make_node("Relu", ["d"], ["y"], name="relu"),
    ]
    constants = {"scale": np.array(0.05, np.float32), "zero": np.array(0, np.int8)}
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("step", "departs"), [(0, None), (1, None), (-1, None), (2, "q"), (-3, "q")])
def test_quantised_tensors_may_differ_by_one_step(monkeypatch, step, departs):
    class Flipped(verify_module._References):
        def __call__(self, names):
            found = super().__call__(names)
            if "q" not in found:
                return found
            at = np.unravel_index(np.argmax(found["q"]), (2, 6))
            found["q"][at] += step
            for name in ("d", "y"):
                found[name][at] += np.float32(step * 0.05)
            return found

    monkeypatch.setattr(verify_module, "_References", Flipped)
    report = verify(quantised_model(), {"x": X}, against="reference")
    assert (None if report.departs is None else report.departs.tensor) == departs
    counts = {found.tensor: found.steps for found in report.tensors}
    assert counts == {"q": abs(step) if abs(step) == 1 else 0, "d": 0, "y": 0}
    assert step != 1 or "1 elements by one step" in str(report.tensors[0])


def quantised_layers() -> onnx.ModelProto:
    """x -> int8 -> sum of all elements times 1, 2, ..., 6 -> int8."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["h"], name="product"),
        helper.make_node("QuantizeLinear", ["h", "scale", "zero"], ["y"], name="last"),
    ]
    weights = np.arange(1, 7, dtype=np.float32).reshape(6, 1)
    constants = {"scale": np.array(0.05, np.float32), "zero": np.array(0, np.int8), "w": weights}
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [2, 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("node", "departs"), [(None, None), ("h", "h"), ("y", "y")])
def test_steps_that_layers_amplify_are_no_departure(monkeypatch, node, departs):
    """One step of an input is six of the product; a wrong `node` after it is found still."""

    class Flipped(verify_module._References):
        def __call__(self, names):
            found = super().__call__(names)
            if "q" in found:
                found["q"][0, 5] += 1
                found["d"][0, 5] += 0.05
                found["h"][0] += 0.3
                found["y"][0] += 6
            if node in found:
                found[node] = found[node] + np.array(3, found[node].dtype)
            return found

    monkeypatch.setattr(verify_module, "_References", Flipped)
    report = verify(quantised_layers(), {"x": X / 10}, against="reference")
    assert (None if report.departs is None else report.departs.tensor) == departs


def test_floats_far_from_quantised_ones_are_exact_still(monkeypatch):
    class Wrong(verify_module._References):
        def __call__(self, names):
            found = super().__call__(names)
            return {name: value + np.float32(0.03) if name == "y" else value for name, value in found.items()}

    monkeypatch.setattr(verify_module, "_References", Wrong)
    report = verify(quantised_model(), {"x": X}, against="reference")
    assert report.departs is not None and report.departs.tensor == "y"


def test_a_model_that_onnxruntime_does_not_run_is_an_error_that_names_the_other_oracle() -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    inputs = {"x": np.array([-1, 2], ml_dtypes.bfloat16)}
    with pytest.raises(CompileError, match=r"onnxruntime can't run the model: .*--against reference"):
        verify(model, inputs)
    assert verify(model, inputs, against="reference").departs is None

"""`relayc quantize`: what is read, which layers are kept, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import relayc
from relayc.cli.main import app
from relayc.quantization import QuantizationError, QuantizationReport, quantize, read_samples
from relayc.runtime import device, graph_executor

runner = CliRunner()
PAGE = Path(__file__).parents[2] / "docs" / "cli_json.md"
SCHEMA = json.loads(re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0])


def layers(*weights: np.ndarray, batch: int | str = 64, opset: int = 17) -> onnx.ModelProto:
    """x through products with weights, with Relu between them; nodes without names."""
    nodes, stored, value = [], [], "x"
    for i, weight in enumerate(weights):
        stored.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"h{i}"]))
        nodes.append(helper.make_node("Relu", [f"h{i}"], [f"a{i}"]))
        value = f"a{i}"
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes, "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, len(weights[0])])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, weights[-1].shape[1]])], stored,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx, two products of 256 x 256, and four runs for it in calibration.npz."""
    folder, rng = tmp_path_factory.mktemp("quantize"), np.random.default_rng(0)
    onnx.save(layers(rng.normal(size=(256, 256)), rng.normal(size=(256, 256))), folder / "model.onnx")
    np.savez(folder / "calibration.npz", x=rng.normal(size=(4 * 64, 256)).astype(np.float32))
    return folder


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return graph_executor.GraphModule(relayc.compile_onnx(path)["default"](device("cpu", 0))).infer({"x": x})[0]


def relative(value: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(value - exact) / np.linalg.norm(exact))


class TestCalibration:
    SHAPES = {"x": (2, 3)}  # noqa: RUF012

    def test_an_array_of_many_blocks_has_as_many_runs(self) -> None:
        x = np.arange(24.0).reshape(8, 3)
        samples = read_samples([{"x": x}], self.SHAPES)
        assert len(samples) == 4 and np.array_equal(samples[1]["x"], x[2:4])

    def test_a_further_dimension_counts_the_runs(self) -> None:
        x = np.arange(30.0).reshape(5, 2, 3)
        assert [sample["x"].tolist() for sample in read_samples([{"x": x}], self.SHAPES)] == x.tolist()

    def test_an_array_with_a_dynamic_batch_is_one_run(self) -> None:
        assert [s["x"].shape for s in read_samples([{"x": np.zeros((7, 3))}], {"x": ("batch", 3)})] == [(7, 3)]

    def test_several_files_add_up(self, tmp_path: Path) -> None:
        for name in "ab":
            np.savez(tmp_path / f"{name}.npz", x=np.zeros((4, 3)))
        assert len(read_samples([tmp_path / "a.npz", tmp_path / "b.npz"], self.SHAPES)) == 4

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"z": np.zeros((2, 3))}, "expected an array for each input of the model: x"),
            ({"x": np.zeros((3, 3))}, r"x has shape \(3, 3\); expected \[2, 3\], a multiple"),
            ({"x": np.zeros(3)}, r"x has shape \(3,\)"),
            ({"x": np.zeros((0, 3))}, "no calibration data"),
            ({"x": np.array([[0, np.nan, 0], [0, 0, 0]])}, "calibration data: x holds NaN"),
        ],
    )
    def test_what_fits_no_input_is_refused(self, arrays: dict[str, np.ndarray], message: str) -> None:
        with pytest.raises(QuantizationError, match=message):
            read_samples([arrays], self.SHAPES)

    def test_a_dynamic_batch_of_no_rows_is_no_data(self) -> None:
        with pytest.raises(QuantizationError, match=r"no calibration data in calibration data: x \[0, 3\]"):
            read_samples([{"x": np.zeros((0, 3))}], {"x": ("batch", 3)})
        arrays = {"x": np.zeros((1, 3)), "past": np.zeros((1, 0, 3))}  # caches begin without a position
        assert len(read_samples([arrays], {"x": ("batch", 3), "past": ("batch", "past", 3)})) == 1

    def test_inputs_have_equally_many_runs(self) -> None:
        with pytest.raises(QuantizationError, match="different numbers of runs: x 2, y 1"):
            read_samples([{"x": np.zeros((4, 3)), "y": np.zeros((1, 1))}], {"x": (2, 3), "y": (1, 1)})

    def test_files_that_are_no_archive_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.npz"
        path.write_bytes(b"PK nothing")
        with pytest.raises(QuantizationError, match=r"can't be read as \.npz"):
            read_samples(path, self.SHAPES)
        with pytest.raises(QuantizationError, match="there is no such file"):
            read_samples(tmp_path / "absent.npz", self.SHAPES)
        np.save(tmp_path / "x.npy", np.zeros(3))
        with pytest.raises(QuantizationError, match="one array without a name"):
            read_samples(tmp_path / "x.npy", self.SHAPES)


@pytest.fixture(scope="module")
def report(folder: Path) -> QuantizationReport:
    pytest.importorskip("onnxruntime", reason="pip install 'relayc[quantize]'")
    return quantize(folder / "model.onnx", folder / "calibration.npz", folder / "int8.onnx", max_error=0.5)


class TestModels:
    @pytest.fixture(autouse=True)
    def tools(self) -> None:
        pytest.importorskip("onnxruntime", reason="pip install 'relayc[quantize]'")

    def test_the_report_says_what_was_measured(self, report: QuantizationReport) -> None:
        assert report.samples == 4 and [layer.operator for layer in report.layers] == ["MatMul", "MatMul"]
        assert all(0 < layer.error < 0.05 and layer.float_us and layer.int8_us for layer in report.layers)
        assert 0 <= report.error < 0.05 and report.float_ms > 0
        found = json.loads(report.json())
        assert found["layers"][0]["name"] == "MatMul_0" and found["speedup"] == pytest.approx(report.speedup)
        assert len(report.table().splitlines()) == 3 and len(report.table(1).splitlines()) == 2

    def test_the_error_is_that_of_the_model_written(self, folder: Path, report: QuantizationReport) -> None:
        if report.output is None:
            pytest.skip("int8 is not faster on this machine")
        runs = np.load(folder / "calibration.npz")["x"].reshape(4, 64, 256)
        exact, value = (np.stack([run(folder / name, x) for x in runs]) for name in ("model.onnx", "int8.onnx"))
        assert relative(value, exact) == pytest.approx(report.error, rel=1e-6)
        kinds = [node.op_type for node in onnx.load(folder / "int8.onnx").graph.node]
        assert kinds.count("DequantizeLinear") > report.kept > 0

    def test_the_error_of_a_layer_is_that_of_its_inputs_and_weights(self, folder: Path, tmp_path: Path) -> None:
        qdq = pytest.importorskip("relayc.quantization.qdq")
        runs = np.load(folder / "calibration.npz")["x"].reshape(4, 64, 256)
        models = qdq.QDQModels(onnx.load(folder / "model.onnx"), [{"x": x} for x in runs], tmp_path)
        found = models.layer_errors(models.write("layers"), [{"x": runs[0]}])
        weight = numpy_helper.to_array(onnx.load(folder / "model.onnx").graph.initializer[0])
        low, high = min(runs.min(), 0), runs.max()
        scale = (high - low) / 255
        zero = np.round(-low / scale)
        rounded = (np.clip(np.round(runs[0] / scale) + zero, 0, 255) - zero) * scale
        steps = np.abs(weight).max(axis=0) / 127
        expected = relative(rounded @ (np.round(weight / steps) * steps), runs[0] @ weight)
        assert found["MatMul_0"] == pytest.approx(expected, rel=0.05)

    def test_a_tolerance_that_none_keeps_writes_nothing(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "none.onnx"
        arguments = ["quantize", folder / "model.onnx", folder / "calibration.npz", "-o", path, "--max-error", "1e-7"]
        result = runner.invoke(app, [*map(str, arguments)])
        assert result.exit_code == 1 and "no layer pays" in result.output and not path.exists()
        result = runner.invoke(app, [*map(str, arguments), "--json"])
        assert result.exit_code == 1 and not path.exists()
        found = json.loads(result.stdout)
        jsonschema.validate(found, SCHEMA)
        assert found["command"] == "quantize" and found["output"] is None
        assert {layer["decision"][:5] for layer in found["layers"]} == {"float"}

    def test_layers_of_the_largest_error_go_back_to_float(self, tmp_path: Path) -> None:
        """A column of weights with an outlier in a row that the input rarely uses makes one layer bad."""
        qdq = pytest.importorskip("relayc.quantization.qdq")
        search = pytest.importorskip("relayc.quantization.search")
        rng = np.random.default_rng(1)
        bad = rng.normal(size=(64, 64))
        bad[0] *= 300
        x = np.abs(rng.normal(size=(16, 64))).astype(np.float32)
        first = np.eye(64)
        first[0, 0] = 1e-4
        models = qdq.QDQModels(layers(first, bad, batch=16), [{"x": x}], tmp_path)
        bench = search._Bench(models.prepared, models.layers, [{"x": x}], "llvm", {}, 1, lambda _: None)
        exact = search._Search(models, bench, "layers", 0.02)
        assert exact._errors["MatMul_2"] > 5 * exact._errors["MatMul_0"]
        assert exact._within_tolerance(frozenset()) == {"MatMul_2"}

    def test_a_layer_of_a_model_that_is_slower(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        search = pytest.importorskip("relayc.quantization.search")
        monkeypatch.setattr(
            search._Bench,
            "measure",
            lambda bench, _, excluded, error: search._Form(
                excluded, error, 1.1, 1e-3, dict.fromkeys(bench.layers, 2.0), dict.fromkeys(bench.layers, 1.0)
            ),
        )
        x = np.random.default_rng(3).normal(size=(64, 32)).astype(np.float32)
        report = quantize(layers(np.eye(32)), [{"x": x}], tmp_path / "int8.onnx", max_error=1.0)
        assert report.output is None and {layer.decision for layer in report.layers} == {"float: slower"}

    def test_old_opsets_and_dynamic_batches(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(2)
        model = layers(rng.normal(size=(32, 32)), batch="batch", opset=11)
        feeds = [{"x": rng.normal(size=(n, 32)).astype(np.float32)} for n in (3, 5)]
        report = quantize(model, feeds, tmp_path / "int8.onnx", max_error=1.0)
        assert report.samples == 2 and report.error < 0.1

    @pytest.mark.parametrize("case", ["quantised", "no layers", "method", "max_error"])
    def test_what_cannot_be_quantised_is_refused(self, case: str, tmp_path: Path) -> None:
        model, options = layers(np.eye(4), batch=1), {}
        message = {"quantised": "quantised already, at node 'MatMul_7'", "no layers": "no layers to quantise",
                   "method": "expected one of minmax", "max_error": "expected a number above 0"}[case]  # fmt: skip
        if case == "quantised":
            model.graph.node.add(op_type="DynamicQuantizeLinear", name="MatMul_7", input=["x"], output=["q", "s", "z"])
        elif case == "no layers":
            del model.graph.node[0]
            model.graph.node[0].input[0] = "x"
        else:
            options = {case: "best" if case == "method" else -1.0}
        with pytest.raises(QuantizationError, match=message):
            quantize(model, [{"x": np.zeros((1, 4), np.float32)}], tmp_path / "int8.onnx", **options)
        assert not list(tmp_path.iterdir())


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    result = runner.invoke(app, ["quantize", str(tmp_path / "model.onnx"), str(tmp_path / "x.npz")])
    assert result.exit_code == 1 and "can't be read" in result.output
    result = runner.invoke(app, ["quantize", str(tmp_path / "model.relayc"), str(tmp_path / "x.npz")])
    assert result.exit_code == 2 and "expected an .onnx file" in result.output

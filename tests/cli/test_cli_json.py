"""`--json`: one object on stdout, by the schema on the page docs/cli_json.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from relayc.cli import runtime_only
from relayc.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "cli_json.md"
SCHEMA = json.loads(re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.M | re.S)[0])
OTHERS = {"serve"}
"""A command whose output is a server's log."""
runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx (x[2, 8] by a weight, softmax), open.onnx (of any batch), bad.onnx (an unknown operator), artifacts,
    keys.pem."""
    folder = tmp_path_factory.mktemp("json")
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32), "w")
    for name, batch, last in (("model", 2, "Softmax"), ("open", "batch", "Softmax"), ("bad", 2, "NoSuchOperator")):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(last, ["h"], ["y"], name="last")]
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, k]) for n, k in (("x", 8), ("y", 5))]
        graph = helper.make_graph(nodes, "small", values[:1], values[1:], [weight])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), folder / f"{name}.onnx")
    for name in ("model", "open"):
        assert runner.invoke(app, ["compile", str(folder / f"{name}.onnx")]).exit_code == 0
    return folder


def record(*arguments: str, code: int = 0) -> dict[str, Any]:
    """The object that a command prints, validated."""
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return validated(result.stdout, arguments[0])


def validated(printed: str, command: str) -> dict[str, Any]:
    found = json.loads(printed)
    assert len(printed.splitlines()) == 1 and found["command"] == command
    jsonschema.validate(found, SCHEMA)
    return found


def test_the_schema_has_every_command_and_every_command_the_option() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    described = {part["properties"]["command"]["const"] for part in SCHEMA["oneOf"][1:]}
    assert {command.name for command in app.registered_commands} - OTHERS == described
    for name in described:
        assert runner.invoke(app, [name, "--json", "--help"]).exit_code == 0


def test_bench(folder: Path) -> None:
    found = record("bench", str(folder / "model.relayc"), "-n", "3", "--sweep-threads", "--profile", "1")
    assert found["results"][0]["threads"] == 1 and len(found["profile"]["calls"]) == 2
    latency = found["results"][0]["latency_ms"]
    assert latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]


def test_compile_run_and_cache(folder: Path, tmp_path: Path) -> None:
    found = record("compile", str(folder / "model.onnx"), "-o", str(tmp_path / "m.relayc"))
    assert found["bytes"] == (tmp_path / "m.relayc").stat().st_size
    found = record("run", found["artifact"], "--fill", "ones", "--print-top", "2", "-o", str(tmp_path / "y.npz"))
    assert found["outputs"][0]["shape"] == [2, 5] and found["written"] == str(tmp_path / "y.npz")
    top, values = found["outputs"][0]["top"], np.load(tmp_path / "y.npz")["y"][0]
    assert len(top) == 2 and top[0] == {"index": [int(values.argmax())], "value": float(values.max())}
    assert record("cache")["entries"] >= 0


def test_inspect(folder: Path) -> None:
    found = record("inspect", str(folder / "model.onnx"))
    assert found["operators"] == {"MatMul": 1, "Softmax": 1} and found["opsets"] == {"ai.onnx": 18}
    assert found["parameters"] == 40 and found["inputs"] == [{"name": "x", "dtype": "float32", "shape": [2, 8]}]
    assert found["flops"] >= 2 * 2 * 8 * 5 and found["memory"]["inputs"] == 2 * 8 * 4
    assert found["process_bytes"] > found["memory"]["total"] > 0
    found = record("inspect", str(folder / "open.relayc"))
    assert found["memory"] is found["flops"] is found["opsets"] is None and found["missing"] == ["batch"]
    found = record("inspect", str(folder / "open.relayc"), "--shape", "batch=1000")
    assert found["flops"] == 2 * 1000 * 8 * 5
    assert found["memory"]["inputs"] == 1000 * 8 * 4 and found["memory"]["activations"] >= 1000 * 5 * 4
    assert "NoSuchOperator" in record("inspect", str(folder / "bad.onnx"))["problem"]
    text = runner.invoke(app, ["inspect", str(folder / "open.onnx")]).stdout
    assert "--shape batch=8" in text and "1 MatMul" in text


def test_profile_show_and_doctor(folder: Path, tmp_path: Path) -> None:
    model = str(folder / "model.onnx")
    assert len(record("profile", model, "-n", "1", "--rounds", "1")["calls"]) == 2
    assert "nn.softmax" in record("show", model, "graph")["text"]
    assert len(record("show", model, "kernels")["kernels"]) == 2
    assert all("decisions" not in kernel for kernel in record("show", model, "kernels")["kernels"])
    reasons = [kernel["decisions"] for kernel in record("show", model, "kernels", "--why")["kernels"]]
    assert len(reasons) == 2 and all(found[0]["subject"] == "schedule" for found in reasons)
    passes = {found["name"]: found for found in record("show", model, "passes")["passes"]}
    assert passes["PackWeights"]["calls"] == {"nn.dense": -1, "nn.dense_packed": 1}
    assert record("show", model, "llvm", "-o", str(tmp_path / "m.ll"))["written"] == str(tmp_path / "m.ll")
    assert "define void" in (tmp_path / "m.ll").read_text()
    found = record("doctor")
    assert found["versions"]["numpy"] == np.__version__ and found["findings"]


def test_show_onnx_is_a_file_for_netron(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "compiled.onnx"
    assert record("show", str(folder / "model.relayc"), "onnx", "-o", str(path))["written"] == str(path)
    graph = onnx.load(path).graph
    assert [node.op_type for node in graph.node][-1] == "nn.softmax" and graph.node[-1].domain == "relayc"
    assert set(graph.node[-1].input) <= {name for node in graph.node for name in node.output}
    assert [value.name for value in graph.output] == ["y"]
    assert "which" in record("show", str(folder / "model.relayc"), "onnx", code=2)["error"]["message"]


def test_tune_sign_and_verify(folder: Path, tmp_path: Path) -> None:
    model = str(folder / "model.onnx")
    assert record("tune", model, "--minutes", "0", "--records", str(tmp_path / "r.json"))["tried"] >= 0
    found = record("verify", model, "--against", "reference")
    assert found["agrees"] and found["furthest"]
    needs = "pip install cryptography"
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization", reason=needs)
    private = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.generate()
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                serialization.NoEncryption())  # fmt: skip
    (tmp_path / "key.pem").write_bytes(pem)
    (tmp_path / "m.relayc").write_bytes((folder / "model.relayc").read_bytes())
    assert record("sign", str(tmp_path / "m.relayc"), "--key", str(tmp_path / "key.pem"))["signature"]


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["run", "model.relayc", "--fill", "sevens"], 2, "usage"),
        (["run", "no.relayc", "--fill", "ones"], 1, "MissingModelError"),
        (["bench", "model.onnx", "--device", "cuda"], 2, "usage"),
        (["compile", "bad.onnx"], 1, "UnsupportedOperatorError"),
    ],
)
def test_errors_are_objects_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, kind: str
) -> None:
    monkeypatch.chdir(folder)
    error = record(*arguments, code=code)["error"]
    assert error["kind"] == kind and error["message"]


def test_the_runtime_alone_prints_the_same_objects(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["run", "--fill", "ones"], ["bench", "-n", "3"]):
        assert runtime_only.main([command[0], str(folder / "model.relayc"), *command[1:], "--json"]) == 0
        validated(capsys.readouterr().out, command[0])
    assert runtime_only.main(["run", "no.relayc", "--fill", "ones", "--json"]) == 1
    assert "no.relayc" in validated(capsys.readouterr().out, "run")["error"]["message"]


@pytest.mark.parametrize("seed", ["-1", "x"])
def test_the_runtime_only_command_takes_seeds_from_0_on(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runtime_only.main(["run", "any.relayc", "--fill", "random", "--seed", seed])
    assert ended.value.code == 2 and f"--seed: {seed!r}; expected an integer, 0 or more" in capsys.readouterr().err

"""The relayc command, end to end on a small model: files, output and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from relayc.backend.runtime import container, load_model
from relayc.cli.main import app
from relayc.relay.lowering.tuning_records import TuningRecords

runner = CliRunner()
WEIGHT = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.onnx (x[batch, 8] times a weight, softmax) and x.npy."""
    folder = tmp_path_factory.mktemp("cli")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="layer/matmul"),
        helper.make_node("Softmax", ["h"], ["y"], name="layer/softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), folder / "model.onnx")
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32))
    result = runner.invoke(app, ["compile", str(folder / "model.onnx"), "--shape", "batch=2"])
    assert result.exit_code == 0, result.output
    return folder


def expected(x: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ WEIGHT)
    return scores / scores.sum(axis=-1, keepdims=True)


def test_compile_writes_an_artifact_and_says_what_it_did(folder: Path) -> None:
    path = folder / "other.relayc"
    result = runner.invoke(app, ["compile", str(folder / "model.onnx"), "-o", str(path), "-s", "x:2,8"])
    assert result.exit_code == 0 and path.is_file()
    for word in ("import", "build", "save", "kernels", f"wrote {path}"):
        assert word in result.output.replace("\n", " "), result.output


@pytest.mark.parametrize("source", ["model.relayc", "model.onnx"])
def test_run_gives_the_model_s_output(folder: Path, source: str) -> None:
    command = ["run", str(folder / source), "-i", f"x={folder / 'x.npy'}", "-o", str(folder / "out.npz")]
    result = runner.invoke(app, [*command, "--shape", "batch=2", "--print-top", "2"])
    assert result.exit_code == 0, result.output
    want = expected(np.load(folder / "x.npy"))
    np.testing.assert_allclose(np.load(folder / "out.npz")["y"], want, rtol=1e-4)
    assert "y: float32[2, 5]" in result.output
    assert f"{want[0].max():.4g}" in result.output


def test_one_artifact_runs_at_any_size(folder: Path) -> None:
    path = folder / "any.relayc"
    result = runner.invoke(app, ["compile", str(folder / "model.onnx"), "-o", str(path), "-s", "x:n,8"])
    assert result.exit_code == 0, result.output
    for size in ("3", "1"):
        command = ["run", str(path), "--fill", "ones", "--shape", f"n={size}", "-o", str(folder / "any.npz")]
        result = runner.invoke(app, command)
        assert result.exit_code == 0, result.output
        y = np.load(folder / "any.npz")["y"]
        np.testing.assert_allclose(y, expected(np.ones((int(size), 8), np.float32)), rtol=1e-4)
    result = runner.invoke(app, ["run", str(path), "--fill", "ones"])
    assert result.exit_code == 2 and "--shape n=8" in result.output.replace("\n", " ")


def test_bench_prints_latency_and_kernels(folder: Path) -> None:
    result = runner.invoke(app, ["bench", str(folder / "model.relayc"), "-n", "3", "--threads", "1", "--profile", "5"])
    assert result.exit_code == 0, result.output
    for word in ("p50", "p90", "p99", "runs/s", "threads", "nn.softmax"):
        assert word in result.output, result.output


def test_profile_compares_kernels_with_ceilings_and_draws_a_roofline(folder: Path) -> None:
    svg = folder / "roofline.svg"
    command = ["profile", str(folder / "model.relayc"), "-n", "2", "--rounds", "1", "--threads", "1"]
    result = runner.invoke(app, [*command, "--svg", str(svg)])
    assert result.exit_code == 0, result.output
    for word in ("% of roof", "nn.softmax", "copy", "GB/s", "total", "run us"):
        assert word in result.output, result.output
    circles = ElementTree.parse(svg).findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 1 and "nn.dense" in ElementTree.tostring(circles[0], encoding="unicode")
    record = json.loads(runner.invoke(app, [*command, "--json"]).stdout)
    assert len(record["calls"]) == 2 and min(record["ceilings"][name] for name in ("gflops", "gbs")) > 0


def test_tune_says_what_it_tried_and_compile_takes_the_records(folder: Path, tmp_path: Path) -> None:
    model, records = str(folder / "model.onnx"), tmp_path / "tuning.json"
    result = runner.invoke(app, ["tune", model, "--shape", "batch=2", "--minutes", "0.002", "--records", str(records)])
    assert result.exit_code == 0, result.output
    assert "variants tried" in result.output and "tune" in result.output
    result = runner.invoke(app, ["tune", model, "--shape", "batch=2"])
    assert result.exit_code == 2 and "--records FILE" in result.output.replace("\n", " ")
    TuningRecords().save(records)
    command = ["compile", model, "--shape", "batch=2", "-o", str(tmp_path / "m.relayc"), "--records"]
    assert runner.invoke(app, [*command, str(records)]).exit_code == 0
    result = runner.invoke(app, [*command, str(tmp_path / "none.json")])
    assert result.exit_code == 1 and "none.json" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("graph", ["def @main(%x: Tensor[(2, 8), float32])", "nn.dense", "nn.softmax"]),
        ("optimized", ["nn.softmax", "fn ("]),
        ("passes", ["CanonicalizeOps: ", "PackWeights: changed", "+1 nn.dense_packed"]),
        ("kernels", ["layer/matmul", "layer/softmax"]),
        ("loops", ["def fused_", "for "]),
        ("llvm", ["define void @fused_"]),
        ("asm", ["fused_", "ret"]),
    ],
)
def test_show(folder: Path, form: str, texts: list[str]) -> None:
    result = runner.invoke(app, ["show", str(folder / "model.onnx"), form, "--shape", "batch=2"])
    assert result.exit_code == 0, result.output
    for text in texts:
        assert text in result.output, result.output


def test_show_why_kernels_have_their_schedules(folder: Path) -> None:
    command = ["show", str(folder / "model.onnx"), "kernels", "--shape", "batch=2"]
    plain, reasons = (runner.invoke(app, [*command, *more]).output for more in ([], ["--why"]))
    assert "schedule of softmax" not in plain
    assert "schedule of softmax: " in reasons and "not strided axis: rows are the last dimension" in reasons
    assert "[topi/cpu/norms/rows.py:" in reasons and "tiles: " in reasons


def test_show_one_kernel(folder: Path) -> None:
    command = ["show", str(folder / "model.onnx"), "llvm", "--shape", "batch=2", "-k"]
    softmax = runner.invoke(app, [*command, "softmax"]).output
    assert "softmax" in softmax and "define void @fused_nn_dense" not in softmax
    assert runner.invoke(app, [*command, "no_such_kernel"]).output.strip() == ""


def test_show_kernels_of_sizes_assumed_to_be_equal(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[b, s, 256] x, float[t] w) => (float[b, heads, t2, 64] y) {
      q, k = Split <axis = 2, num_outputs = 2> (x)
      batch = Shape <start = 0, end = 1> (x)
      length = Shape(w)
      rest = Constant <value_ints = [-1, 64]> ()
      shape = Concat <axis = 0> (batch, length, rest)
      heads = Reshape(k, shape)
      y = Transpose <perm = [0, 2, 1, 3]> (heads)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    shown = runner.invoke(app, ["show", str(tmp_path / "m.onnx"), "loops"])
    assert shown.exit_code == 0 and "def fused_strided_slice_reshape_transpose" in shown.output, shown.output


def test_show_kernels_of_a_loop(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n] x, int64 count, bool go) => (float[n] y) {
      y = Loop (count, go, x) <body = step (int64 i, bool before, float[n] v) => (bool after, float[n] w) {
        after = Identity(before)
        r = Relu(v)
        w = Exp(r)
      }>
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    shown = runner.invoke(app, ["show", str(tmp_path / "m.onnx"), "loops"])
    assert shown.exit_code == 0 and "def fused_nn_relu_exp" in shown.output, shown.output


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["compile", "no.onnx"], 1, ["OnnxImportError", "no.onnx", "No such file"]),
        (["compile", "x.txt"], 2, ["expected an .onnx file"]),
        (["compile", "model.onnx", "-s", "batch=2", "--target", "nosuch"], 1, ["nosuch", "known are"]),
        (["compile", "model.onnx", "--shape", "batch"], 2, ["expected input:1,3,224,224"]),
        (["compile", "model.onnx", "--shape", "z:1"], 1, ["'z'", "no input", "'x'"]),
        (["run", "model.relayc"], 2, ["no value for x", "float32[2, 8]"]),
        (["run", "model.relayc", "--fill", "sevens"], 2, ["random, ones or zeros"]),
        (["run", "no.relayc", "--fill", "ones"], 1, ["no.relayc does not exist", "relayc compile"]),
        (["run", "x.npy", "--fill", "ones"], 1, ["Artifact"]),
        (["show", "model.relayc", "graph"], 2, ["expected an .onnx file"]),
        (["show", "model.relayc", "kernels", "--why"], 2, ["how it was compiled", "expected an .onnx file"]),
        (["show", "model.relayc", "passes"], 2, ["how it was compiled", "expected an .onnx file"]),
        (["show", "model.onnx", "asm", "--why"], 2, ["kernels --why", "not asm"]),
        (["run", "model.relayc", "--no-such-option"], 2, ["no-such-option"]),
        (["compile", "model.onnx", "-o", "no/m.relayc"], 2, ["no folder no"]),
        (["compile", "model.onnx", "-o", "."], 2, ["can't write '.'", "a folder"]),
        (["run", "model.onnx", "--fill", "ones", "-o", "no/y.npz"], 2, ["no folder no"]),
        (["profile", "model.onnx", "--html", "no/p.html"], 2, ["no folder no"]),
        (["run", "model.relayc", "--fill", "random", "--seed", "-1"], 2, ["--seed"]),
        (["run", "model.relayc", "-i", "objects.npz"], 2, ["objects.npz can't be read", "Object arrays"]),
        (["run", "model.relayc", "-i", "flipped.npz"], 2, ["flipped.npz can't be read", "CRC"]),
        (["run", "model.relayc", "-i", "text.npz"], 2, ["text.npz can't be read"]),
        (["run", "model.relayc", "-i", "x=a=b.npz"], 2, ["a=b.npz holds several arrays"]),
        (["run", "model.relayc", "-i", "x.npy"], 2, ["expected name=x.npy"]),
        (["verify", "model.onnx", "--against", "torch"], 2, ["expected onnxruntime or reference"]),
        (["verify", "model.onnx", "--against", "reference"], 2, ["--shape batch=8"]),
        (["compile", "model.onnx", "--emit", "c-library", "-o", "x.npy"], 2, ["x.npy is a file"]),
        (["compile", "model.onnx", "--emit", "c-library", "-o", "x.npy/below"], 2, ["x.npy is a file"]),
        (["compile", "model.onnx", "--emit", "c-library", "-o", "m.so"], 2, ["a C library is a folder", "such as m"]),
        (["run", "model.relayc", "--fill", "ones", "-t", "llvm"], 2, ["--target: model.relayc is an artifact"]),
        (["bench", "model.relayc", "-O0", "--precision", "float16"], 2, ["--opt-level, --precision: model.relayc is"]),
        (["run", "model.relayc", "--check-indices"], 2, ["--check-indices: model.relayc is an artifact"]),
        (["compile", "model.relayc", "--emit", "c-library", "--caches", "auto"], 2, ["--caches: model.relayc is"]),
        (["show", "model.onnx", "ptx"], 2, ["ptx of model.onnx", "expected --target cuda"]),
        (["show", "model.onnx", "asm", "--target", "c"], 2, ["asm of model.onnx", "expected --target llvm"]),
        (["compile", "model.onnx", "-o", "./model.onnx"], 2, ["can't write model.onnx, which is read"]),
        (["show", "model.onnx", "onnx", "-o", "model.onnx"], 2, ["can't write model.onnx, which is read"]),
        (["profile", "model.relayc", "--csv", "model.relayc"], 2, ["can't write model.relayc, which is read"]),
        (["quantize", "model.onnx", "a=b.npz", "-o", "a=b.npz"], 2, ["can't write a=b.npz, which is read"]),
        (["run", "model.relayc", "-i", "x=x.npy", "-o", "x.npy"], 2, ["can't write x.npy, which is read"]),
        (["run", "model.relayc", "-i", "deep.json"], 2, ["deep.json can't be read as JSON"]),
        (["run", "pipe.relayc"], 1, ["it is not a regular file", "pipe.relayc"]),
        (["run", "model.relayc", "-i", "pipe.npz"], 2, ["pipe.npz can't be read", "not a regular file"]),
        (["run", "model.relayc", "-i", "pipe.json"], 2, ["pipe.json can't be read", "not a regular file"]),
        (["generate", "model.onnx", "--features", "pipe.npy"], 2, ["pipe.npy", "not a regular file"]),
        (["generate", "model.onnx", "--features", "a=b.npz"], 2, ["a=b.npz", "it holds several arrays"]),
    ],
)
def test_failures_are_one_block_and_an_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, texts: list[str]
) -> None:
    monkeypatch.chdir(folder)
    np.savez("objects.npz", x=np.array([1, {}], object))
    np.savez("a=b.npz", x=np.load("x.npy"))
    whole = Path("a=b.npz").read_bytes()
    Path("flipped.npz").write_bytes(whole[:150] + bytes([whole[150] ^ 255]) + whole[151:])
    Path("text.npz").write_text("no archive")
    Path("deep.json").write_text("[" * 100_000)
    for name in ("pipe.relayc", "pipe.npz", "pipe.npy", "pipe.json"):
        if not Path(name).exists():
            os.mkfifo(name)
    files = {name: Path(name).read_bytes() for name in ("model.onnx", "model.relayc", "x.npy", "a=b.npz")}
    result = runner.invoke(app, arguments)
    assert result.exit_code == code, result.output
    for text in texts:
        assert text in result.output, result.output
    assert "Traceback" not in result.output
    assert {name: Path(name).read_bytes() for name in files} == files


def test_names_with_brackets_and_equals_signs_are_printed_and_read_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a=b [bold] ü 日本"
    folder.mkdir()
    value = helper.make_tensor_value_info("[/in]", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("[/out]", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Relu", ["[/in]"], ["[/out]"], name="[/relu]")], "g", [value], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), folder / "m [red].onnx")
    np.savez(folder / "x=1.npz", **{"[/in]": np.array([-1, 2], np.float32)})
    np.save(folder / "x.npy", np.array([-3, 4], np.float32))
    artifact = folder / "m [red].relayc"
    shown = runner.invoke(app, ["compile", str(folder / "m [red].onnx")])
    assert shown.exit_code == 0 and f"wrote {artifact} (" in shown.output, shown.output
    for file, last in ((str(folder / "x=1.npz"), 2), (f"[/in]={folder / 'x.npy'}", 4)):
        shown = runner.invoke(app, ["run", str(artifact), "-i", file, "--print-top", "1", "-o", str(folder / "y.npz")])
        assert shown.exit_code == 0 and "[/out]: float32[2]" in shown.output, shown.output
        assert np.load(folder / "y.npz")["[/out]"].tolist() == [0, last]
    command = ["verify", str(folder / "m [red].onnx"), "--against", "reference"]
    shown = runner.invoke(app, command)
    assert shown.exit_code == 0 and "'[/relu]'" in shown.output, shown.output


@pytest.mark.parametrize("name", ["ü", os.fsdecode(b"\xff")], ids=["not ASCII", "not UTF-8"])
def test_names_need_not_be_utf_8_nor_fit_the_terminal(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes((folder / "model.onnx").read_bytes())
    shown = command_line("compile", path, "-s", "batch=2", PYTHONIOENCODING="ascii:strict")
    assert shown.returncode == 0, shown.stderr
    assert path.with_suffix(".relayc").is_file()
    assert b"wrote " + str(path.with_suffix(".relayc")).encode("ascii", "backslashreplace") in shown.stdout
    shown = command_line("inspect", path, "--json", PYTHONIOENCODING="ascii:strict")
    assert json.loads(shown.stdout)["model"] == str(path)


def test_inputs_too_large_for_memory_are_one_block(folder: Path) -> None:
    path = folder / "n.relayc"
    assert runner.invoke(app, ["compile", str(folder / "model.onnx"), "-o", str(path), "-s", "x:n,8"]).exit_code == 0
    result = runner.invoke(app, ["run", str(path), "--fill", "ones", "--shape", f"n={1 << 50}"])
    assert result.exit_code == 1 and "MemoryError" in result.output and "Traceback" not in result.output, result.output


def command_line(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    command = [sys.executable, "-m", "relayc", *map(os.fspath, arguments)]
    return subprocess.run(command, capture_output=True, env=variables, check=False)


def test_output_that_nobody_reads_any_more_ends_quietly(folder: Path) -> None:
    command = [sys.executable, "-m", "relayc", "show", str(folder / "model.onnx"), "asm", "-s", "batch=2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_can_t_be_written_is_one_block(folder: Path, options: list[str]) -> None:
    command = [sys.executable, "-u", "-m", "relayc", "run", str(folder / "model.relayc"), *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for arguments, message in ((["--fill", "ones"], "No space left on device"), ([], "no value for x")):
        with open("/dev/full", "wb") as full:
            whole = [*command, *arguments]
            shown = subprocess.run(whole, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
        assert shown.returncode in (1, 2) and message in shown.stderr.decode(), shown.stderr
        assert b"Traceback" not in shown.stderr


def test_an_interrupt_is_said_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(container, "_write", interrupted)
    command = ["compile", str(folder / "model.onnx"), "-o", str(tmp_path / "m.relayc"), "-s", "batch=2"]
    result = runner.invoke(app, command)
    assert result.exit_code == 130 and result.output.endswith("interrupted\n"), result.output
    assert os.listdir(tmp_path) == []


def test_traceback_option(folder: Path) -> None:
    result = runner.invoke(app, ["--traceback", "compile", str(folder / "no.onnx")])
    assert result.exception is not None and type(result.exception).__name__ == "OnnxImportError"


def test_help_names_every_command_and_option() -> None:
    top = runner.invoke(app, ["--help"]).output
    for command in ("compile", "run", "bench", "show"):
        assert command in top
        assert runner.invoke(app, [command, "--help"]).exit_code == 0


def test_running_an_artifact_does_not_load_the_compiler(folder: Path) -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from relayc.cli.main import app\n"
        f"result = CliRunner().invoke(app, ['run', {str(folder / 'model.relayc')!r}, '--fill', 'random'])\n"
        "assert result.exit_code == 0, result.output\n"
        "loaded = [n for n in ('relay', 'topi', 'onnx', 'networkx') if n in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_activations_option(folder: Path) -> None:
    """The option reaches the passes: products with 4-bit weights read int8 data."""
    random = np.random.default_rng(0)
    codes, scales = random.integers(0, 256, (16, 1, 16), np.uint8), np.full((16, 1), 0.5, np.float32)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=32, N=16, bits=4,
                            block_size=32)  # fmt: skip
    value = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "s")]
    inputs, outputs = [value("x", TensorProto.FLOAT, [1, 32])], [value("y", TensorProto.FLOAT, [1, 16])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "bits", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "bits.onnx")
    for wanted in ("float", "int8"):
        shown = runner.invoke(app, ["show", str(folder / "bits.onnx"), "optimized", "--activations", wanted])
        assert ("nn.quantize_blocks" in shown.output) == (wanted == "int8"), shown.output


def test_half_precision_option(folder: Path) -> None:
    path = folder / "half.relayc"
    command = ["compile", str(folder / "model.onnx"), "-o", str(path), "-s", "batch=2", "--precision", "float16"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    assert {str(value.dtype) for value in load_model(path).params.values()} == {"float16"}
    result = runner.invoke(app, ["run", str(path), "-i", f"x={folder / 'x.npy'}", "-o", str(folder / "half.npz")])
    assert result.exit_code == 0, result.output
    found, exact = np.load(folder / "half.npz")["y"], expected(np.load(folder / "x.npy"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact / exact.sum(axis=-1, keepdims=True), atol=4e-3)
    shown = runner.invoke(app, ["show", *command[1:2], "optimized", "-s", "batch=2", "--precision", "bfloat16"])
    assert 'dtype="bfloat16"' in shown.output, shown.output


def test_the_elements_of_a_sequence_are_listed_and_written(tmp_path):
    parts = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    node = helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, name="split")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])], [parts])
    path, written = tmp_path / "parts.onnx", tmp_path / "parts.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(tmp_path / "x.npz", x=np.arange(6, dtype=np.float32).reshape(2, 3))
    result = CliRunner().invoke(app, ["run", str(path), "--input", str(tmp_path / "x.npz"), "-o", str(written)])
    assert result.exit_code == 0, result.output
    assert "parts[0]: float32[1, 3]" in result.output and "parts[1]: float32[1, 3]" in result.output
    assert np.load(written)["parts[1]"].tolist() == [[3, 4, 5]]


def test_the_version_is_told() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0 and result.stdout.startswith("relayc") and len(result.stdout.splitlines()) == 1


def test_all_figures_of_bench_are_in_a_narrow_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    result = runner.invoke(app, ["bench", str(folder / "model.relayc"), "--repeat", "3"])
    assert result.exit_code == 0, result.output
    assert "…" not in result.output and "figures" in result.output


def test_a_whole_shape_sizes_the_filled_inputs_of_an_artifact(folder: Path) -> None:
    path = folder / "sized.relayc"
    assert runner.invoke(app, ["compile", str(folder / "model.onnx"), "-o", str(path)]).exit_code == 0
    result = runner.invoke(app, ["run", str(path), "--fill", "ones", "--shape", "x:3,8"])
    assert result.exit_code == 0 and "y: float32[3, 5]" in result.output, result.output
    result = runner.invoke(app, ["run", str(path), "--fill", "ones", "--shape", "x:3,9"])
    assert result.exit_code == 2 and "--shape x:3,9: the input has the shape [batch, 8]" in result.output


@pytest.mark.parametrize("source", ["model.onnx", "named.relayc"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "X=x.npy"], "the model has no input 'X'"),
        (["--fill", "ones", "-s", "bath=2"], "(--shape names bath, which is none of these)"),
        (["--fill", "ones", "-s", "X:2,8"], "(--shape names X, which is none of these)"),
    ],
)
def test_a_misspelt_name_is_said_before_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    assert runner.invoke(app, ["compile", "model.onnx", "-o", "named.relayc"]).exit_code == 0
    result = runner.invoke(app, ["run", source, *arguments])
    assert result.exit_code == 2 and message in result.output.replace("\n", " "), result.output


def test_sizes_of_names_that_an_artifact_has_not_are_refused(folder: Path) -> None:
    path = folder / "fixed.relayc"
    compiled = runner.invoke(app, ["compile", str(folder / "model.onnx"), "-o", str(path), "--shape", "batch=2"])
    assert compiled.exit_code == 0
    for command in (["run"], ["bench", "--repeat", "1"]):
        for sizes, message in (
            ("bogus=3", "--shape names bogus, which is no dimension and no input of the artifact: x[2, 8]"),
            ("batch=3", "--shape batch=3: the artifact was compiled for batch=2: x[2, 8]"),
        ):
            result = runner.invoke(app, [*command, str(path), "--fill", "ones", "--shape", sizes])
            assert result.exit_code == 2 and message in result.output.replace("\n", " "), result.output


def test_an_interrupt_while_modules_are_imported_shows_no_traceback() -> None:
    program = (
        "import sys, relayc.__main__ as command\n"
        "def stopped(name): raise KeyboardInterrupt\n"
        "command.import_module = stopped\n"
        "command.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_largest_values_are_those_of_the_first_row_and_of_no_row_there_are_none(folder: Path) -> None:
    path = folder / "rows.relayc"
    assert runner.invoke(app, ["compile", str(folder / "model.onnx"), "-o", str(path)]).exit_code == 0
    for size, said in ((2, "the 3 largest of y[0]"), (1, "the 3 largest of y\n"), (0, "the 0 largest of y\n")):
        arguments = ["run", str(path), "--fill", "ones", "--shape", f"batch={size}", "--print-top", "3"]
        result = runner.invoke(app, arguments)
        assert result.exit_code == 0 and said in result.output, result.output

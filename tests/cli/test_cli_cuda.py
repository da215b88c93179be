"""The command with target CUDA on a machine that may have no GPU: compile, show, and the error without a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from relayc.cli.main import app

pytest.importorskip("cuda.bindings.nvrtc")
ROOT = Path(__file__).parents[2]
TARGET = ["--target", "cuda -arch=sm_90"]
runner = CliRunner()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.relayc for sm_90, beside model.onnx: a product, a sum and a softmax."""
    folder = tmp_path_factory.mktemp("cuda")
    weight = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="layer/matmul"),
        helper.make_node("Softmax", ["h"], ["y"], name="layer/softmax", axis=-1),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, n]) for name, n in (("x", 8), ("y", 5))]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), folder / "model.onnx")
    result = runner.invoke(app, ["compile", str(folder / "model.onnx"), *TARGET])
    assert result.exit_code == 0, result.output
    return folder / "model.relayc"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that sees no GPU."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "relayc", *arguments], env=environment, text=True,
                          capture_output=True, check=False)  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_without_a_device_it_says_so_and_why(artifact, verb):
    done = command(verb, str(artifact), "--fill", "ones")
    assert done.returncode == 1
    assert "there is no device cuda:0: " in done.stderr and "driver" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_an_artifact_shows_its_kernels_without_a_device(artifact):
    done = command("show", str(artifact), "kernels")
    assert done.returncode == 0, done.stderr
    head, columns, *kernels = done.stdout.splitlines()
    assert "kernels for sm_90 (cubin, " in head
    for word in ("threads", "registers", "spilled B", "shared B", "occupancy"):
        assert word in columns
    assert any(line.split()[-1].startswith("fused_nn_softmax_") and " %" in line for line in kernels)
    assert any("layer/matmul" in line for line in kernels)


def test_an_artifact_shows_its_cuda_code(artifact):
    result = runner.invoke(app, ["show", str(artifact), "cuda"])
    assert result.exit_code == 0 and "__global__ void" in result.output
    result = runner.invoke(app, ["show", str(artifact), "asm"])
    assert result.exit_code == 2 and "expected an .onnx file" in result.output


def test_code_of_one_kernel_of_an_onnx_file(artifact):
    path = str(artifact.with_suffix(".onnx"))
    shown = runner.invoke(app, ["show", path, "cuda", "--kernel", "softmax", *TARGET])
    assert shown.exit_code == 0 and "fused_nn_softmax" in shown.output and "fused_nn_dense" not in shown.output
    loops = runner.invoke(app, ["show", path, "loops", "--kernel", "softmax", *TARGET])
    assert "blockIdx.x" in loops.output


def test_another_device_is_rejected(artifact):
    result = runner.invoke(app, ["run", str(artifact), "--fill", "ones", "--device", "cpu"])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "was compiled for 'cuda' (target 'cuda -arch=sm_90 -model=H100') and can't run on cpu:0" in text


def test_an_unknown_architecture_is_a_wrong_target(artifact):
    result = runner.invoke(app, ["compile", str(artifact.with_suffix(".onnx")), "-t", "cuda -arch=sm_12"])
    assert result.exit_code == 1 and "known are: sm_75" in " ".join(result.output.split())

"""relayc.onnxruntime in the place of onnxruntime, for programs that import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

PROGRAM = """
import sys
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.capi import _pybind_state

session = InferenceSession(sys.argv[1], SessionOptions(), providers=["CPUExecutionProvider"])
assert isinstance(session, ort.InferenceSession) and _pybind_state.InvalidArgument is InvalidArgument
try:
    session.run(None, {"x": np.zeros((1, 2), np.float64)})
except InvalidArgument as error:
    print("refused")
print(session.run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist(), session.__class__.__module__, __name__)
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_program_runs_unedited(tmp_path: Path, as_module: bool) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model = tmp_path / "model.onnx"
    model.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    (tmp_path / "program.py").write_text(PROGRAM)
    program = ["-m", "program"] if as_module else [str(tmp_path / "program.py")]
    command = [sys.executable, "-m", "relayc.onnxruntime", *program, str(model)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["refused", "[[-1.0, -1.0]] relayc.onnxruntime.session __main__"]


def test_usage() -> None:
    done = subprocess.run([sys.executable, "-m", "relayc.onnxruntime"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "usage" in done.stderr


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("missing.py", 2)])
def test_help_and_missing_programs(tmp_path: Path, argument: str, code: int) -> None:
    command = [sys.executable, "-m", "relayc.onnxruntime", argument]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code and "usage" in said and "Traceback" not in said


def test_a_session_on_the_cpu_does_not_look_for_a_gpu() -> None:
    program = (
        "import sys, onnx, relayc.onnxruntime as ort\n"
        "from onnx import helper\n"
        "x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in 'xy')\n"
        "graph = helper.make_graph([helper.make_node('Relu', ['x'], ['y'])], 'g', [x], [y])\n"
        "model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)\n"
        "ort.InferenceSession(model, providers=['CPUExecutionProvider'])\n"
        "print([name for name in sys.modules if name.startswith('cuda')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

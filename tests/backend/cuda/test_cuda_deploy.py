"""A saved model for a GPU runs in another process without the compiler, and reports a missing GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relayc import relay
from tests.cuda_emulation import emulation

ROOT = Path(__file__).parents[3]
X = np.arange(-8, 8, dtype="float32").reshape(2, 8)
LOAD = """
import ctypes, sys
import numpy as np
from relayc.backend.runtime import RelaycError, device, graph_executor, load_model
if len(sys.argv) > 2:
    ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL)
model = load_model(sys.argv[1])
"""
RUN = """
executor = graph_executor.GraphModule(model["default"](device("cuda", 0)))
for _ in range(3):
    (y,) = executor(np.arange(-8, 8, dtype="float32").reshape(2, 8))
print(y.numpy().tolist())
packages = ("relayc.te", "relayc.topi", "relayc.relay", "relayc.frontends", "onnx", "networkx",
         "relayc.backend.target", "relayc.backend.driver")
heavy = [m for m in sys.modules if m in packages or m in ("relayc.backend.cuda.codegen", "relayc.backend.cuda.nvrtc")]
assert not heavy, heavy
"""
TRY = """
try:
    graph_executor.GraphModule(model["default"](device("cuda", 0)))
except RelaycError as error:
    print(error)
"""


def run_python(code, *args):
    """The output of a fresh interpreter."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def saved(cuda_device, tmp_path):
    """An artifact for the available device."""
    x = relay.var("x", X.shape)
    function = relay.Function((x,), relay.nn.relu(relay.nn.dense(x, relay.const(np.eye(4, 8, dtype="float32")))))
    arch = "sm_" + cuda_device.compute_version.replace(".", "")
    relay.build(function, target=f"cuda -arch={arch}").save(tmp_path / "model.relayc")
    return tmp_path / "model.relayc"


def test_a_saved_model_runs_without_the_compiler(saved):
    driver = () if emulation.real_driver() else (emulation.build_driver(),)
    assert run_python(LOAD + RUN, saved, *driver) == "[[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]]"


@pytest.mark.skipif(emulation.real_driver(), reason="this machine has a GPU")
def test_a_saved_model_reports_a_missing_gpu(saved):
    printed = run_python(LOAD + TRY, saved)
    reason = printed.removeprefix("there is no device cuda:0: ")
    assert reason != printed and "NVIDIA driver" in reason

"""On a real GPU: every light model against the CPU, one in half precision too, and the benchmark from end to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.light import LIGHT_MODELS, write_light
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import PassContext

pytestmark = [pytest.mark.cuda, pytest.mark.slow]


def run_on_both(name: str, folder: Path, precision: str, tolerance: float) -> None:
    """Run the model on the GPU three times (launched, captured, replayed) against float32 on the CPU."""
    path, inputs = write_light(name, folder)
    module, params = from_onnx(path)
    values = dict(np.load(inputs))
    on_cpu = graph_executor.GraphModule(relay.build(module, "llvm", params)["default"](device("cpu")))
    exact = on_cpu(**values)[0].numpy()
    with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
        library = relay.build(module, "cuda", params)
    on_gpu = graph_executor.GraphModule(library["default"](device("cuda", 0)))
    for _ in range(3):
        found = on_gpu(**values)[0].numpy()
        assert np.isfinite(found).all()
        assert np.abs(found - exact).max() <= tolerance * np.abs(exact).max()


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_a_light_model_agrees_with_the_cpu(name, tmp_path):
    run_on_both(name, tmp_path, "", 1e-3)


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 2e-2), ("bfloat16", 1e-1)])
def test_squeezenet_in_half_precision(tmp_path, precision, tolerance):
    run_on_both("squeezenet", tmp_path, precision, tolerance)


def test_the_benchmark_runs():
    command = [sys.executable, "-m", "benchmarks.gpu", "--models", "light_squeezenet", "--batches", "1",
               "--seconds", "0.1", "--kernels", "3"]  # fmt: skip
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WRONG" not in done.stdout and "| light_squeezenet | 1 | float16 |" in done.stdout, done.stdout

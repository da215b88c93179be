"""Real architectures from ONNX on the CUDA device, compared with the same models on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.light import write_light
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_light_model_agrees_with_the_cpu(cuda_device, name, tmp_path):
    path, inputs = write_light(name, tmp_path)
    module, params = from_onnx(path)
    values = dict(np.load(inputs))
    target = "cuda" if cuda_device.compute_version else "cuda -arch=sm_90"
    executors = [
        graph_executor.GraphModule(relay.build(module, kind, params)["default"](where))
        for kind, where in (("llvm", device("cpu")), (target, cuda_device))
    ]
    for _ in range(2):
        on_cpu, on_gpu = [executor(**values)[0].numpy() for executor in executors]
        assert np.abs(on_gpu - on_cpu).max() <= 1e-4 * np.abs(on_cpu).max()

"""Whole models for a GPU: machine code of every kernel without spills, no faults, and the CPU's results end to end."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.light import write_light
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import IRModule, PassContext
from tests.cuda_proof import proof

pytestmark = pytest.mark.slow


def _light(name: str, folder: Path) -> tuple[IRModule, dict[str, Any], dict[str, np.ndarray]]:
    path, inputs = write_light(name, folder)
    return *from_onnx(onnx.load(path)), dict(np.load(inputs))


def _transformer(folder: Path) -> tuple[IRModule, dict[str, Any], dict[str, np.ndarray]]:
    """Two layers of width 48 with 3 heads, on a batch of 2 with 19 positions each."""
    random = np.random.default_rng(1)
    batch, positions, width, heads = 2, 19, 48, 3

    def weight(*shape: int) -> relay.Expr:
        return relay.const((random.standard_normal(shape) / np.sqrt(shape[-1])).astype("float32"))

    def split(x: relay.Expr) -> relay.Expr:
        x = relay.transpose(relay.reshape(x, (batch, positions, heads, width // heads)), (0, 2, 1, 3))
        return relay.reshape(x, (batch * heads, positions, width // heads))

    def layer(x: relay.Expr) -> relay.Expr:
        q, k, v = (split(relay.nn.dense(x, weight(width, width)) + weight(width)) for _ in range(3))
        scores = relay.nn.softmax(relay.nn.batch_matmul(q, k) * relay.const((width // heads) ** -0.5))
        mixed = relay.reshape(relay.nn.batch_matmul(scores, v, transpose_b=False),
                              (batch, heads, positions, width // heads))  # fmt: skip
        mixed = relay.reshape(relay.transpose(mixed, (0, 2, 1, 3)), (batch * positions, width))
        x = relay.nn.layer_norm(x + relay.nn.dense(mixed, weight(width, width)), weight(width), weight(width))
        hidden = relay.nn.gelu(relay.nn.dense(x, weight(4 * width, width)) + weight(4 * width))
        return relay.nn.layer_norm(x + relay.nn.dense(hidden, weight(width, 4 * width)), weight(width), weight(width))

    x = relay.var("x", (batch * positions, width))
    program = IRModule({"main": relay.Function((x,), layer(layer(x)))})
    return program, {}, {"x": random.standard_normal((batch * positions, width)).astype("float32")}


MODELS = {
    "squeezenet": functools.partial(_light, "squeezenet"),
    "shufflenet": functools.partial(_light, "shufflenet"),
    "transformer": _transformer,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return MODELS[request.param](tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("arch", proof.ARCHES)
def test_machine_code_keeps_the_spill_budget(model, arch):
    module, params, _ = model
    compiled = proof.compile_for(proof.kernels_of(module, arch, params), arch)
    assert len(compiled.report) >= 5
    assert not proof.over_budget(compiled)


def test_kernels_have_no_faults(model):
    module, params, _ = model
    assert proof.check_kernels(proof.kernels_of(module, "sm_90", params), "sm_90") >= 5


def test_results_agree_with_the_cpu(cuda_device, model):
    module, params, inputs = model
    cpu = graph_executor.GraphModule(relay.build(module, "llvm", params)["default"](device("cpu", 0)))
    cpu.run(**inputs)
    (result,) = proof.run(cuda_device, module, inputs, params)
    np.testing.assert_allclose(result, cpu.get_output(0).numpy(), rtol=1e-3, atol=1e-4)


def test_a_transformer_in_float16(cuda_device, tmp_path):
    """Every function is one kernel, attention as well."""
    module, params, inputs = _transformer(tmp_path)
    cpu = graph_executor.GraphModule(relay.build(module, "llvm", params)["default"](device("cpu", 0)))
    cpu.run(**inputs)
    with PassContext(config={"relay.ToMixedPrecision.dtype": "float16"}):
        (result,) = proof.run(cuda_device, module, inputs, params)
        functions = proof.kernels_of(module, "sm_90", params)
    np.testing.assert_allclose(result, cpu.get_output(0).numpy(), rtol=2e-2, atol=2e-2)
    assert proof.check_kernels(functions, "sm_90") == len(functions)

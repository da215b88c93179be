"""Whole models on a CUDA device, or on the emulated one without hardware.

The reference is the graph interpreter, which evaluates every operator by its numpy reference.
"""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import Device, device, graph_executor, load_model, nd
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.errors import DeviceError
from relayc.relay.expr import Constant
from relayc.relay.interpreter import evaluate
from relayc.te.ir import PassContext

_random = np.random.default_rng(5)


def weights(*shape: int) -> Constant:
    return relay.const((_random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32"))


def perceptron() -> relay.Function:
    x = relay.var("x", (3, 20))
    y = relay.nn.relu(relay.nn.dense(x, weights(33, 20)) + weights(33))
    return relay.Function((x,), relay.nn.softmax(relay.nn.dense(y, weights(7, 33))))


def residual_network() -> relay.Function:
    """Convolutions plain, strided, grouped and depthwise, a residual addition, pooling, concatenation, a classifier."""
    x = relay.var("x", (1, 3, 13, 13))
    y = relay.nn.relu(relay.nn.conv2d(x, weights(8, 3, 3, 3), padding=1))
    z = relay.nn.conv2d(y, weights(8, 1, 3, 3), groups=8, padding=1)
    z = relay.nn.relu(relay.nn.conv2d(z, weights(8, 8, 1, 1)) + y)
    z = relay.nn.max_pool2d(z, 3, strides=2, padding=1)
    both = relay.concatenate([relay.nn.conv2d(z, weights(6, 4, 1, 1), groups=2), z], axis=1)
    both = relay.nn.conv2d(both, weights(5, 14, 3, 3), strides=2)
    return relay.Function((x,), relay.nn.dense(relay.mean(both, axis=(2, 3)), weights(10, 5)))


def encoder_layer() -> relay.Function:
    """A transformer's layer of width 24, 3 heads, on 11 positions."""
    x = relay.var("x", (11, 24))

    def heads(y: relay.Expr) -> relay.Expr:
        return relay.transpose(relay.reshape(y, (11, 3, 8)), (1, 0, 2))

    q, k, v = (heads(relay.nn.dense(x, weights(24, 24))) for _ in range(3))
    scores = relay.nn.softmax(relay.nn.batch_matmul(q, k) * relay.const(8**-0.5))
    mixed = relay.transpose(relay.nn.batch_matmul(scores, v, transpose_b=False), (1, 0, 2))
    one, zero = relay.const(np.ones(24, "float32")), relay.const(np.zeros(24, "float32"))
    y = relay.nn.layer_norm(x + relay.nn.dense(relay.reshape(mixed, (11, 24)), weights(24, 24)), one, zero)
    hidden = relay.nn.gelu(relay.nn.dense(y, weights(96, 24)))
    return relay.Function((x,), relay.nn.layer_norm(y + relay.nn.dense(hidden, weights(24, 96)), one, zero))


def several_results() -> relay.Function:
    """Two inputs; outputs that are computed, a view of a computed one, an input, and a constant."""
    x, y = relay.var("x", (4, 6)), relay.var("y", (4, 6))
    total = relay.tanh(x + y)
    numbers = relay.const(np.arange(3, dtype="float32"))
    return relay.Function(
        (x, y), relay.Tuple((total, relay.reshape(total, (6, 4)), x, numbers, relay.max(total, axis=1)))
    )


def layers_of_different_scales() -> relay.Function:
    """Layers that differ in constants only: one kernel, which takes them as parameters."""
    x = relay.var("x", (8, 16))
    y: relay.Expr = x
    for scale, shift in ((0.5, 0.25), (0.75, -1.5), (1.25, 3.0)):
        weight = relay.const(_random.standard_normal((16, 16)).astype("float32"))
        y = relay.tanh(relay.nn.dense(y, weight) * relay.const(scale, "float32") + relay.const(shift, "float32"))
    return relay.Function((x,), y)


def values_for(function: relay.Function) -> dict[str, np.ndarray]:
    shapes = {p.name: p.tensor_type.static_shape for p in function.params}
    return {name: _random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def compile_for(where: Device, function: relay.Function, precision: str = "") -> CompiledModel:
    target = "cuda" if where.compute_version else "cuda -arch=sm_90"
    with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
        return relay.build(function, target)


def check(executor: graph_executor.GraphModule, function: relay.Function, tolerance: float = 1e-5) -> None:
    """One run on fresh inputs against the interpreter."""
    values = values_for(function)
    executor.run(**values)
    expected = evaluate(function, list(values.values()))
    for i, exact in enumerate(expected if isinstance(expected, tuple) else (expected,)):
        np.testing.assert_allclose(executor.get_output(i).numpy(), exact, rtol=tolerance, atol=tolerance)


MODELS = [perceptron, residual_network, encoder_layer, several_results, layers_of_different_scales]


@pytest.mark.parametrize("model", MODELS)
def test_results_in_float32(cuda_device, model):
    function = model()
    executor = graph_executor.GraphModule(compile_for(cuda_device, function)["default"](cuda_device))
    for _ in range(3):  # the first run launches, later ones replay the captured graph
        check(executor, function, 2e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("float16", 1e-2), ("bfloat16", 6e-2)])
@pytest.mark.parametrize("model", [residual_network, encoder_layer])
def test_results_in_half_precision(cuda_device, model, precision, tolerance):
    function = model()
    executor = graph_executor.GraphModule(compile_for(cuda_device, function, precision)["default"](cuda_device))
    check(executor, function, tolerance)


def test_through_a_file(cuda_device, tmp_path):
    function = encoder_layer()
    compile_for(cuda_device, function).save(tmp_path / "model.relayc")
    executor = graph_executor.GraphModule(load_model(tmp_path / "model.relayc")["default"](cuda_device))
    check(executor, function)


def test_outputs_held_keep_their_values(cuda_device):
    function = perceptron()
    executor = graph_executor.GraphModule(compile_for(cuda_device, function)["default"](cuda_device))
    values = [values_for(function) for _ in range(4)]
    held = [executor(**v)[0] for v in values]
    for result, given in zip(held, values, strict=True):
        np.testing.assert_allclose(result.numpy(), evaluate(function, list(given.values())), rtol=1e-5, atol=1e-6)


def test_inputs_in_place_and_clones(cuda_device):
    function = perceptron()
    first = graph_executor.GraphModule(compile_for(cuda_device, function)["default"](cuda_device))
    second = first.clone()
    check(first, function)
    given = values_for(function)["x"]
    second.set_input_zero_copy("x", nd.array(given, cuda_device))
    second.run()
    np.testing.assert_allclose(second.get_output(0).numpy(), evaluate(function, [given]), rtol=1e-5, atol=1e-6)
    check(first, function)


def test_profile_and_benchmark(cuda_device):
    function = residual_network()
    executor = graph_executor.GraphModule(compile_for(cuda_device, function)["default"](cuda_device))
    report = executor.profile(repeat=1, **values_for(function))
    assert {"nn.conv2d", "mean"} <= {name for call in report for name in call.ops.split("+")}
    assert executor.benchmark(repeat=2, number=2).median > 0


def test_a_model_for_a_gpu_does_not_run_on_the_cpu():
    compiled = relay.build(perceptron(), "cuda -arch=sm_90")
    with pytest.raises(DeviceError, match=r"compiled for 'cuda' .* can't run on cpu:0"):
        compiled["default"](device("cpu"))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_residual_addition_is_part_of_its_convolution(batch):
    x, r = relay.var("x", (batch, 8, 8, 16)), relay.var("r", (batch, 8, 8, 32))
    y = relay.nn.conv2d(x, weights(32, 16, 3, 3), padding=1, data_layout="NHWC", kernel_layout="OIHW")
    function = relay.Function((x, r), relay.nn.relu(y + r))
    (record,) = relay.build(function, "cuda -arch=sm_90").module.functions.values()
    assert len(record["kernels"]) == 1

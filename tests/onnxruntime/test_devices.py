"""Values and bindings on a GPU, real or emulated."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import relayc.onnxruntime as ort
from relayc.runtime import Device

CUDA = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def _scaled() -> bytes:
    """y = 2 x + state, next = y + 1."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "state", "y", "next")]
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["double"]),
        helper.make_node("Add", ["double", "state"], ["y"]),
        helper.make_node("Add", ["y", "one"], ["next"]),
    ]
    constants = [numpy_helper.from_array(np.array(v, np.float32), name) for name, v in (("two", 2), ("one", 1))]
    graph = helper.make_graph(nodes, "scaled", values[:2], values[2:], constants)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def test_values_on_a_gpu(cuda_device: Device) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    assert (value.device_name(), value.shape(), value.data_type()) == ("cuda", [4, 3], "tensor(float)")
    assert value.is_tensor() and value.element_type() == TensorProto.FLOAT
    assert value.tensor_size_in_bytes() == X.nbytes
    np.testing.assert_array_equal(value.numpy(), X)
    value.update_inplace(-X)
    np.testing.assert_array_equal(value.numpy(), -X)
    with pytest.raises(ort.InvalidArgument, match=r"an update by float64 \(4, 3\); expected float32"):
        value.update_inplace(X.astype(np.float64))
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 0], np.int64, "cuda", 0)
    assert (empty.shape(), empty.data_type(), empty.numpy().size) == ([2, 0], "tensor(int64)", 0)
    shared = ort.OrtValue.from_dlpack(ort.OrtValue.ortvalue_from_numpy(X))
    assert shared.device_name() == "cpu"


@pytest.mark.parametrize("provider", [CUDA, ["CPUExecutionProvider"]])
def test_values_of_either_kind_of_memory_are_inputs(cuda_device: Device, provider: list[object]) -> None:
    session = ort.InferenceSession(_scaled(), providers=provider)
    for first, second in (("cuda", "cuda"), ("cpu", "cuda"), ("cpu", "cpu")):
        feed = {
            "x": ort.OrtValue.ortvalue_from_numpy(X, first),
            "state": ort.OrtValue.ortvalue_from_numpy(np.ones_like(X), second),
        }
        (y,) = session.run_with_ort_values(["y"], feed)
        assert y.device_name() == "cpu"
        np.testing.assert_array_equal(y.numpy(), 2 * X + 1)
    with pytest.raises(ort.InvalidArgument, match="Unexpected input data type"):
        session.run(None, {"x": ort.OrtValue.ortvalue_from_numpy(X.astype(np.int64), "cuda"), "state": X})


def test_a_state_stays_on_the_gpu_from_run_to_run(cuda_device: Device) -> None:
    session = ort.InferenceSession(_scaled(), providers=CUDA)
    assert session.get_provider_options()["CUDAExecutionProvider"] == {"device_id": "0"}
    binding = session.io_binding()
    state, expected = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X), "cuda", 0), np.zeros_like(X)
    seen = []
    for step in range(5):
        x = ort.OrtValue.ortvalue_from_numpy(X + step, "cuda", 0)
        binding.bind_input("x", "cuda", 0, np.float32, x.shape(), x.data_ptr())
        binding.bind_ortvalue_input("state", state)
        binding.bind_output("y")
        binding.bind_output("next", "cuda", 0)
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        y, state = binding.get_outputs()
        assert (y.device_name(), state.device_name()) == ("cpu", "cuda")
        expected = 2 * (X + step) + expected
        np.testing.assert_array_equal(y.numpy(), expected)
        expected = expected + 1
        seen.append((state, expected))
    for value, want in seen:  # results are the caller's: later runs leave them alone
        np.testing.assert_array_equal(value.numpy(), want)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], expected)


def test_outputs_are_written_to_bound_memory(cuda_device: Device) -> None:
    session = ort.InferenceSession(_scaled(), providers=CUDA)
    target = ort.OrtValue.ortvalue_from_shape_and_type([4, 3], np.float32, "cuda", 0)
    other = ort.OrtValue.ortvalue_from_shape_and_type([4, 3], np.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("state", X)
    binding.bind_ortvalue_output("y", target)
    binding.bind_output("next", "cuda", 0, np.float32, [4, 3], other.data_ptr())
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), 3 * X)
    np.testing.assert_array_equal(other.numpy(), 3 * X + 1)
    binding.bind_cpu_input("x", X[:2])
    binding.bind_cpu_input("state", X[:2])
    with pytest.raises(ort.InvalidArgument, match=r"\(4, 3\)"):
        session.run_with_iobinding(binding)
    on_host = ort.InferenceSession(_scaled(), providers=["CPUExecutionProvider"]).io_binding()
    on_host.bind_cpu_input("x", X)
    on_host.bind_cpu_input("state", X)
    on_host.bind_output("y", "cuda")
    on_host._session.run_with_iobinding(on_host)
    (y,) = on_host.get_outputs()
    assert y.device_name() == "cuda"
    np.testing.assert_array_equal(y.numpy(), 3 * X)


def test_other_devices_are_refused() -> None:
    with pytest.raises(ort.NotImplemented, match="'dml'; expected 'cpu' or 'cuda'"):
        ort.OrtValue.ortvalue_from_numpy(X, "dml")
    with pytest.raises(ort.RuntimeException, match="cuda:99, which is not there"):
        ort.OrtValue.ortvalue_from_numpy(X, "cuda", 99)

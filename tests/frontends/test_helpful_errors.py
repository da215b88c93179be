"""Errors of first contact with the package name the remedy: wrong kinds of models, targets, names of sizes, paths."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from relayc import relay
from relayc.backend.runtime import GraphModule, MissingModelError, RelaycError, device, load_model
from relayc.frontends.onnx import from_onnx
from relayc.te.errors import CompileError


def relu(*dims: int | str) -> ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("model", [relu(2, 3), "model.onnx", b"bytes"])
def test_build_of_what_has_to_be_imported(model):
    with pytest.raises(CompileError, match=r"from_onnx\(model\), or .*relayc\.compile_onnx\(model\)"):
        relay.build(model)


@pytest.mark.parametrize(("name", "kind"), [("cpu", "llvm"), ("gpu", "cuda"), ("lvm", "llvm")])
def test_hardware_as_target_kind(name, kind):
    with pytest.raises(CompileError, match=f"unknown target kind '{name}' \\(did you mean '{kind}'"):
        relay.build(from_onnx(relu(2, 3))[0], name)


@pytest.mark.parametrize(
    ("model", "shape", "text"),
    [
        (relu(2, 3), {"batch": 8}, r"'batch'.*dimensions have no names\n.*'x' \[2, 3\]\n.*whole shape"),
        (relu("n", 3), {"batch": 8}, r"no input and no dimension\n.*'x' \[n, 3\], 'n' \(a dimension\)"),
        (relu("n", 3), {"x": 8}, r"gives the input 'x' one size\n.*\n.*x: \(sizes, \.\.\.\)"),
        (relu("n", 3), {"n": 2**63}, "elements|size"),
    ],
)
def test_sizes_of_names_that_the_model_lacks(model, shape, text):
    with pytest.raises(CompileError, match=text):
        from_onnx(model, shape=shape)


def test_paths_without_a_model(tmp_path):
    with pytest.raises(MissingModelError, match=r"m\.relayc does not exist; .*relayc compile") as raised:
        load_model(tmp_path / "m.relayc")
    assert isinstance(raised.value, FileNotFoundError) and isinstance(raised.value, RelaycError)
    with pytest.raises(MissingModelError, match="is a folder"):
        load_model(tmp_path)
    with pytest.raises(CompileError, match=r"No such file.*\n.*check the path"):
        from_onnx(tmp_path / "m.onnx")


def test_a_model_is_loaded_from_its_bytes():
    data = relay.build(from_onnx(relu(2, 3))[0]).to_bytes()
    for given in (data, bytearray(data), memoryview(data)):
        (y,) = GraphModule(load_model(given)["default"](device("cpu")))(np.full((2, 3), -1, np.float32))
        assert y.tolist() == [[0, 0, 0]] * 2
    with pytest.raises(RelaycError, match="model in memory"):
        load_model(b"abc")


def test_sizes_without_a_name():
    x, y = [relay.var(name, (relay.Any(), 3)) for name in "xy"]
    lib = relay.build(relay.Function((x, y), relay.Tuple((relay.nn.relu(x), relay.nn.relu(y)))))
    results = GraphModule(lib["default"](device("cpu")))(np.ones((2, 3), np.float32), np.ones((5, 3), np.float32))
    assert [r.shape for r in results] == [(2, 3), (5, 3)]


def test_counts_and_amounts_are_written_as_people_write_them():
    lib = relay.build(from_onnx(relu(2, 3))[0])
    assert "1 kernel for 1 node, arena 0 B, parameters 0 B" in str(lib.build_report)
    assert "1 node, 0 B of weights" in repr(lib)

"""The last net: an exception that is none of the package's becomes an internal error, which says where it happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from relayc import relay
from relayc.backend.runtime import ArgumentError, RelaycError, device
from relayc.backend.runtime.errors import InternalError
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.input_ports import InputPorts
from relayc.frontends.onnx import from_onnx
from relayc.frontends.onnx.backend import RelayBackend
from relayc.relay.errors import InternalCompileError
from relayc.relay.op.elementwise import Tanh
from relayc.te.errors import CompileError

X = np.ones((2, 3), np.float32)


class Strange(Exception):
    """No error of the package."""


def fails(*_: Any, **__: Any) -> Any:
    raise Strange("out of order")


def model(op: str = "Tanh") -> Any:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="squash")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def build() -> Any:
    return relay.build(from_onnx(model())[0])


def test_a_fault_of_a_converter_names_the_node(monkeypatch):
    monkeypatch.setattr(Tanh, "infer", fails)
    with pytest.raises(InternalCompileError, match=r"node 'squash' \(Tanh\): Strange: out of order") as caught:
        from_onnx(model())
    assert isinstance(caught.value, CompileError) and isinstance(caught.value.__cause__, Strange)
    assert "please report it" in str(caught.value)


def test_arguments_that_a_function_has_not_are_no_fault_of_the_package():
    for call in (lambda: from_onnx(model(), x=X), lambda: relay.build(from_onnx(model())[0], traget="llvm"), from_onnx):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_a_fault_for_sizes_that_are_open_is_no_refusal_of_open_sizes(monkeypatch):
    open_sizes = model()
    open_sizes.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    monkeypatch.setattr(Tanh, "infer", fails)
    with pytest.raises(InternalCompileError, match="Strange: out of order"):
        RelayBackend.prepare(open_sizes)


def test_a_fault_outside_of_nodes_is_an_internal_error(monkeypatch):
    monkeypatch.setattr("relayc.frontends.onnx.importer.graph_inputs", fails)
    with pytest.raises(InternalCompileError, match="importing the model: Strange: out of order"):
        from_onnx(model())


def test_a_fault_of_lowering_names_the_fused_group(monkeypatch):
    module, _ = from_onnx(model())
    monkeypatch.setattr(Tanh, "compute", fails)
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    with pytest.raises(InternalCompileError, match=r"(?s)Strange.*while lowering the fused group \('tanh',\)"):
        relay.build(module)


def test_a_fault_of_a_pass_names_it(monkeypatch):
    module, _ = from_onnx(model())
    monkeypatch.setattr("relayc.relay.transform.fuse_ops.FuseOps.run", fails)
    with pytest.raises(InternalCompileError, match=r"(?s)Strange.*in pass FuseOps, after: "):
        relay.build(module)


def test_a_library_that_cannot_be_loaded_is_no_fault_of_the_package(monkeypatch):
    def fails_to_load(*_: Any, **_named: Any) -> None:
        raise OSError("Could not find/load shared object file 'libllvmlite.so'")

    module, _ = from_onnx(model())
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    monkeypatch.setattr("llvmlite.binding.parse_assembly", fails_to_load)
    with pytest.raises(OSError, match="libllvmlite") as caught:
        relay.build(module)
    assert not isinstance(caught.value, RelaycError) and caught.value.__notes__ == ["compiling the model"]


def test_faults_of_the_executor_are_internal_errors(monkeypatch):
    executor = GraphModule(build()["default"](device("cpu")))
    for place, name, action, doing in (
        (InputPorts, "_copy", lambda: executor.set_input("x", X.tolist()), "setting input 'x' of model 'default'"),
        (GraphModule, "_prepare", executor.run, "running model 'default'"),
        (GraphModule, "_fetch", lambda: executor.get_output(0), "fetching output 'y' of model 'default'"),
    ):
        executor.run(x=X)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fails)
            with pytest.raises(InternalError, match=f"{doing}: Strange: out of order") as caught:
                action()
        assert isinstance(caught.value, RelaycError) and isinstance(caught.value.__cause__, Strange)
    executor.run(x=X)


@pytest.mark.parametrize("passing", [MemoryError, KeyboardInterrupt, ArgumentError])
def test_what_passes_the_net(monkeypatch, passing):
    def raises(*_: Any) -> None:
        raise passing

    executor = GraphModule(build()["default"](device("cpu")))
    executor.set_input("x", X)
    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "_prepare", raises)
        with pytest.raises(passing):
            executor.run()


def test_exceptions_of_a_progress_function_reach_its_owner():
    module, _ = from_onnx(model())
    with pytest.raises(Strange, match="out of order"):
        relay.build(module, progress=fails)


def test_an_array_that_cannot_be_exported_is_an_error_of_the_argument():
    class Locked:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("it requires grad")

    executor = GraphModule(build()["default"](device("cpu")))
    with pytest.raises(ArgumentError, match=r"input 'x' .*: the Locked can't be exported by DLPack: it requires grad"):
        executor.set_input("x", Locked())


def test_a_fault_is_one_block_of_the_command_line(monkeypatch, tmp_path):
    typer_testing = pytest.importorskip("typer.testing")
    from relayc.cli.main import app

    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    monkeypatch.setattr("relayc.cli.models.GraphModule.of", fails)
    result = typer_testing.CliRunner().invoke(app, ["run", str(path), "--fill", "ones"])
    assert result.exit_code == 1
    assert "error: InternalError\nStrange: out of order" in result.output and "--traceback" in result.output

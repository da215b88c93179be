"""`compile_torch`, `from_torch`, and models that `torch.onnx.export` returns."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import relayc
from relayc.frontends.onnx import OnnxImportError, from_onnx
from relayc.runtime import ArgumentError, device, graph_executor

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'relayc[torch]'")
pytest.importorskip("onnxscript", reason="needs torch's exporter: pip install 'relayc[torch]'")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.drop = torch.nn.Dropout(0.5)
        self.linear = torch.nn.Linear(16, 4)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids: Any, *, offset: Any = None) -> Any:
        x = self.linear(self.drop(self.embedding(ids))) * self.scale
        return x if offset is None else x + offset


def executor(model: Any) -> graph_executor.GraphModule:
    return graph_executor.GraphModule(model["default"](device("cpu")))


def test_a_compiled_module_with_symbolic_sizes():
    net = Net()
    offset = torch.randn(4)
    model = relayc.compile_torch(
        net, (torch.zeros(2, 3, dtype=torch.int64),), {"offset": offset},
        dynamic_shapes={"ids": {0: "batch", 1: "length"}, "offset": None},
    )  # fmt: skip
    assert net.training and net.drop.training, "the module is as it was"
    net.eval()
    run = executor(model)
    assert run.get_input_info() == ({"ids": ("batch", "length"), "offset": (4,)}, {"ids": "int64", "offset": "float32"})
    for shape in ((2, 3), (1, 1), (5, 7)):
        ids = torch.randint(0, 50, shape)
        (found,) = run(ids=ids, offset=offset)
        torch.testing.assert_close(torch.from_dlpack(found), net(ids, offset=offset).detach())


def test_a_compiled_model_does_not_follow_its_module(tmp_path):
    net, ids = Net().eval(), torch.arange(6).view(2, 3)
    expected = net(ids).detach()
    model = relayc.compile_torch(net, (ids,))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    torch.testing.assert_close(torch.from_dlpack(executor(model)(ids)[0]), expected)
    model.save(tmp_path / "net.relayc")
    code = (
        "import sys, numpy as np\nfrom relayc.runtime import load_model, device, graph_executor\n"
        f"model = load_model({str(tmp_path / 'net.relayc')!r})\n"
        "run = graph_executor.GraphModule(model['default'](device('cpu')))\n"
        "print(run(np.arange(6).reshape(2, 3))[0].shape)\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 3, 4)\n", done.stderr


def test_from_torch_gives_a_module_of_the_graph_ir():
    ids = torch.arange(6).view(2, 3)
    mod, params = relayc.from_torch(Net(), (ids,))
    assert str(mod["main"].ret_type) == "Tensor[(2, 3, 4), float32]" and not params
    mod, params = relayc.from_torch(Net(), (ids,), freeze_params=False)
    assert {values.shape for values in params.values()} >= {(50, 16), (4,)}


def test_an_exported_program():
    net, ids = Net().eval(), torch.arange(6).view(2, 3)
    program = torch.export.export(net, (ids,), dynamic_shapes={"ids": {0: torch.export.Dim("rows")}})
    run = executor(relayc.compile_torch(program))
    ((rows, length),) = run.get_input_info()[0].values()
    assert isinstance(rows, str) and length == 3
    torch.testing.assert_close(torch.from_dlpack(run(ids)[0]), net(ids).detach())
    with pytest.raises(ArgumentError, match="has its arguments and shapes"):
        relayc.compile_torch(program, (ids,))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_onnx_program_is_a_model(dtype):
    net, ids = Net().eval().to(getattr(torch, dtype)), torch.arange(6).view(2, 3)
    program = torch.onnx.export(net, (ids,), dynamo=True, verbose=False)
    expected = net(ids).detach()
    for model in (program, program.model, program.model_proto):
        found = torch.from_dlpack(executor(relayc.compile_onnx(model))(ids)[0])
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    assert all(value.const_value.numpy().size for value in program.model.graph.initializers.values()), "it is as it was"


def test_weights_are_part_of_the_models_key():
    net, ids = Net().eval(), torch.arange(6).view(2, 3)
    results = []
    for value in (1.0, 2.0):
        with torch.no_grad():
            net.linear.weight.fill_(value)
        results.append(executor(relayc.compile_torch(net, (ids,)))(ids)[0].numpy())
    assert not np.array_equal(*results)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((3,), "got a int; expected a torch.nn.Module or an ExportedProgram"),
     ((torch.nn.Linear(2, 2), torch.zeros(2)), "args is a Tensor; expected a tuple")],
)  # fmt: skip
def test_wrong_arguments_are_errors(arguments, expected):
    with pytest.raises(ArgumentError, match=expected):
        relayc.compile_torch(*arguments)


def test_operators_that_torch_cannot_export_are_named():
    from relayc.torch import TorchExportError

    class Factors(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.qr(x)

    with pytest.raises(TorchExportError, match="linalg_qr"):
        relayc.compile_torch(Factors(), (torch.randn(3, 3),))


def test_other_objects_are_no_models():
    with pytest.raises(OnnxImportError, match=r"got a Linear; expected a path, .* relayc\.compile_torch"):
        from_onnx(torch.nn.Linear(2, 2))
    with pytest.raises(OnnxImportError, match="got a Linear"):
        relayc.compile_onnx(torch.nn.Linear(2, 2))

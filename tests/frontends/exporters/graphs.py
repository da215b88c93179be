"""Builder of graphs in the style of exporters, and checks of their results at several sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.relay.op.base import OpDef
from tests.reference_backend import ReferenceBackend

try:
    import onnxruntime
except ImportError:
    onnxruntime = None

__all__ = ["Graph", "check", "compiled_operators", "dynamo", "expected_outputs", "sklearn", "tensorflow", "torchscript"]

Array = np.ndarray[Any, Any]
Naming = Callable[[str, int], tuple[str, str]]
"""Operator and number to the names of the node and of its first output."""


def torchscript(op: str, number: int) -> tuple[str, str]:
    return f"/layer/{op}_{number}", f"/layer/{op}_{number}_output_0"


def dynamo(op: str, number: int) -> tuple[str, str]:
    return f"node_{op}_{number}", f"val_{number}"


def tensorflow(op: str, number: int) -> tuple[str, str]:
    name = f"StatefulPartitionedCall/model_1/{op.lower()}_{number}/{op}__{number}"
    return name, f"{name}:0"


def sklearn(op: str, number: int) -> tuple[str, str]:
    return f"{op[:2]}_{op}{number}", f"variable{number}"


class Graph:
    """Nodes, weights and inputs in the order in which they are written; a value is the name of a tensor."""

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        self.nodes: list[NodeProto] = []
        self.inputs: list[Any] = []
        self.weights: list[TensorProto] = []

    def input(self, name: str, dims: Sequence[int | str], dtype: Any = np.float32) -> str:
        kind = TensorProto.STRING if dtype is str else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        return name

    def weight(self, value: Any, name: str = "") -> str:
        """An initializer."""
        name = name or f"onnx::Weight_{len(self.weights) + 100}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def constant(self, value: Any) -> str:
        """A Constant node."""
        return self("Constant", value=numpy_helper.from_array(np.asarray(value)))

    def __call__(self, op: str, *inputs: str, domain: str = "", outputs: Sequence[str] = (), **attrs: Any) -> str:
        """A node; its first output. `outputs` names them all."""
        name, result = self.naming(op, len(self.nodes))
        self.nodes.append(helper.make_node(op, inputs, outputs or [result], name=name, domain=domain, **attrs))
        return outputs[0] if outputs else result

    def model(
        self,
        outputs: Sequence[str],
        opset: int,
        domains: Mapping[str, int] | None = None,
        functions: Sequence[FunctionProto] = (),
        ir_version: int = 8,
    ) -> ModelProto:
        declared = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "main_graph", self.inputs, declared, self.weights)
        imports = [helper.make_opsetid("", opset)]
        imports += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
        return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=ir_version)


def expected_outputs(model: ModelProto, inputs: Mapping[str, Array]) -> list[Any]:
    """Expected outputs by onnxruntime or, if it is not installed, the numpy references, which do not check converters.

    ONNX's reference evaluator knows no foreign domains, overloads of functions or older quantization.
    """
    if onnxruntime is None:
        return list(ReferenceBackend.prepare(model).run(dict(inputs)))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))


def compiled_operators(model: ModelProto) -> Counter[str]:
    """Counts of operators in the compiled model, without views."""
    mod, params = from_onnx(model)
    after = relay.optimize(mod, "llvm", params)
    calls = [e for e in relay.analysis.evaluation_order(after["main"]) if isinstance(e, relay.Call)]
    return Counter(c.op.name for c in calls if isinstance(c.op, OpDef) and not c.op.is_view)


def check(model: ModelProto, *cases: Mapping[str, Array], rtol: float = 1e-4, atol: float = 1e-5) -> list[list[Array]]:
    """Compiled once, the model must give the expected outputs for each of the `cases`, whatever their sizes."""
    mod, params = from_onnx(model)
    lib = relay.build(mod, target="llvm", params=params)
    executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    outputs: list[list[Array]] = []
    for inputs in cases:
        for name in mod.attrs["input_names"]:
            executor.set_input(name, inputs[name])
        executor.run()
        outputs.append([executor.get_output(i).numpy().copy() for i in range(executor.get_num_outputs())])
        for number, (have, want) in enumerate(zip(outputs[-1], expected_outputs(model, inputs), strict=True)):
            assert (have.dtype, have.shape) == (want.dtype, want.shape), f"output {number}"
            wide = [a.astype(np.float64) for a in (have, want)]
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=f"output {number}")
    return outputs

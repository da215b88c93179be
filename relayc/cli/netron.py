"""The graph of a compiled model as an ONNX file, to look at in Netron: what was fused into which kernel.

It is a picture, not a model: its operators are kernels, of the domain "relayc", which no runtime has.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.runtime.graph import Graph, GraphTensor
from relayc.backend.runtime.sizes import readable_shape, readable_size

__all__ = ["graph_as_onnx"]

_DOMAIN = "relayc"


def graph_as_onnx(model: CompiledModel) -> ModelProto:
    """The graph of a compiled model: a node for each kernel call, named by its operators, with kernel, nodes of the
    imported model, operations and bytes as attributes. Weights have shapes and no values."""
    graph = model.graph
    names = _names(graph)
    nodes = [_node(graph, number, names) for number in range(len(graph.nodes))]
    inputs = [_value(graph.tensors[index], names[index]) for index in graph.inputs]
    outputs = [_value(graph.tensors[index], names[index]) for index in dict.fromkeys(graph.outputs)]
    weights = {index: names[index] for index, tensor in enumerate(graph.tensors) if tensor.storage == "param"}
    others = [_value(tensor, names[index]) for index, tensor in enumerate(graph.tensors)
              if index not in (*graph.inputs, *graph.outputs)]  # fmt: skip
    inputs += [_value(graph.tensors[index], name) for index, name in weights.items()]
    proto = helper.make_graph(nodes, graph.name or "model", inputs, outputs, value_info=others)
    return helper.make_model(
        proto, producer_name="relayc", opset_imports=[helper.make_opsetid(_DOMAIN, 1)],
        doc_string=f"compiled for {graph.target}",
    )  # fmt: skip


def _names(graph: Graph) -> list[str]:
    """A name of its own for each tensor."""
    used: set[str] = set()
    names: list[str] = []
    for index, tensor in enumerate(graph.tensors):
        name = tensor.name if tensor.name and tensor.name not in used else f"{tensor.name}#{index}"
        used.add(name)
        names.append(name)
    return names


def _node(graph: Graph, number: int, names: list[str]) -> NodeProto:
    node = graph.nodes[number]
    return helper.make_node(
        "+".join(node.ops) or node.func, [names[i] for i in node.inputs], [names[i] for i in node.outputs],
        name=node.name, domain=_DOMAIN, kernel=node.func, nodes=list(node.sources), order=number,
        flops=readable_size(node.flops), bytes=readable_size(node.bytes),
    )  # fmt: skip


def _value(tensor: GraphTensor, name: str) -> ValueInfoProto:
    shape = readable_shape(tensor.shape)
    if tensor.dtype == "handle" or "x" in tensor.dtype:
        return helper.make_tensor_value_info(name, TensorProto.UNDEFINED, shape)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(to_numpy(tensor.dtype)), shape)

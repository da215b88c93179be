"""From a graph of aten operators to an ONNX model without weights, by `torch.onnx`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from onnx import ModelProto
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.onnx.errors import OnnxExporterError
from torch.utils import _pytree as pytree

from relayc.torch.errors import TorchExportError
from relayc.torch.fx_rewrites import sizes_from_shapes, whole_operators

__all__ = ["Computed", "Exported", "Passed", "export_graph"]

OPSET = 20
"""The opset of exported models: the one that torch's own converters are written and tested for."""


@dataclass(frozen=True)
class Passed:
    """A result that is an argument of the graph, or a constant of Python."""

    argument: int | None
    constant: Any = None


@dataclass(frozen=True)
class Computed:
    """A result that the model computes: its output of that number; an integer of Python if `is_size`.

    `order` are the axes from the outermost in memory to the innermost, for a tensor whose are not in order: the output
    of the model is transposed by them, so that the tensor's strides are eager mode's.
    """

    output: int
    is_size: bool = False
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Exported:
    """An ONNX model without weights, and how a call of the graph is one of the model.

    `arguments` are the positions, among the graph's arguments, of the model's inputs in order. `constants` are inputs
    behind those, tensors that the graph has itself.
    """

    proto: ModelProto
    arguments: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    results: tuple[Passed | Computed, ...]


def export_graph(module: GraphModule) -> Exported:
    """The model of a graph of aten operators, whose nodes have fake tensors as `meta["val"]`.

    Raises `TorchExportError` for a graph that torch can't export.
    """
    graph = deepcopy(module.graph)
    constants = _constants_as_inputs(graph, module)
    positions = [node for node in graph.nodes if node.op == "placeholder"]
    sizes_from_shapes(graph)
    whole_operators(graph)
    results, outputs = _results(graph, positions)
    used = [node for node in positions if node.users]
    for node in positions:
        if not node.users:
            graph.erase_node(node)
    count = len(positions) - len(constants)
    arguments = [positions.index(node) for node in used]
    if not outputs:
        raise TorchExportError("the graph computes nothing")
    proto = _to_onnx(GraphModule(module, graph), used, outputs)
    kept = tuple(constants[position - count] for position in arguments if position >= count)
    return Exported(proto, tuple(position for position in arguments if position < count), kept, tuple(results))


def _constants_as_inputs(graph: Graph, module: GraphModule) -> list[torch.Tensor]:
    """Make the tensors that the graph reads from its module inputs, the last ones; their values."""
    values: list[torch.Tensor] = []
    last = [node for node in graph.nodes if node.op == "placeholder"]
    for node in list(graph.nodes):
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, torch.Tensor):
            continue
        with graph.inserting_after(last[-1]) if last else graph.inserting_before(next(iter(graph.nodes))):
            made = graph.placeholder(f"constant_{len(values)}")
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        last.append(made)
        values.append(value)
    return values


def _results(graph: Graph, inputs: Sequence[Node]) -> tuple[list[Passed | Computed], list[Node]]:
    """What the graph returns, and the nodes that remain its outputs."""
    end = graph.output_node()
    returned: Any = end.args[0]
    outputs: list[Node] = []
    results: list[Passed | Computed] = []
    for value in returned:
        if not isinstance(value, Node):
            results.append(Passed(None, value))
        elif value in inputs:
            results.append(Passed(inputs.index(value)))
        else:
            order = _memory_order(value.meta["val"])
            if order is not None:
                with graph.inserting_before(end):
                    moved = graph.call_function(torch.ops.aten.permute.default, (value, list(order)))
                moved.meta["val"] = value.meta["val"].permute(order)
                value = moved
            is_size = not isinstance(value.meta["val"], torch.Tensor)
            results.append(Computed(len(outputs), is_size, order))
            outputs.append(value)
    end.args = (tuple(outputs),)
    return results, outputs


def _memory_order(value: Any) -> tuple[int, ...] | None:
    """The axes by falling stride, if the tensor is dense in another order than its axes'; else None."""
    if not isinstance(value, torch.Tensor):
        return None
    example = torch.empty_strided([*map(_hint, value.shape)], [*map(_hint, value.stride())], device="meta")
    if example.is_contiguous():
        return None
    order = tuple(sorted(range(value.dim()), key=lambda axis: -example.stride(axis)))
    return order if example.permute(order).is_contiguous() else None


def _hint(size: int | torch.SymInt) -> int:
    """A size, of a symbolic one its value in the example: comparing those would add guards."""
    return size if isinstance(size, int) else int(size.node.hint)


def _to_onnx(module: GraphModule, inputs: Sequence[Node], outputs: Sequence[Node]) -> ModelProto:
    """The ONNX model; what torch.onnx logs on the way is repeated in the error only."""
    program = _program(module, inputs, outputs)
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.CRITICAL)
    try:
        exported = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False, opset_version=OPSET)
    except OnnxExporterError as error:
        raise TorchExportError(_cause(error)) from error
    finally:
        loud.setLevel(level)
    assert exported is not None, "torch.onnx.export(dynamo=True) returns a program"
    proto = exported.model_proto
    _strip(proto)
    return proto


def _program(module: GraphModule, inputs: Sequence[Node], outputs: Sequence[Node]) -> ExportedProgram:
    """The graph as torch.export would have made it: without parameters, all of them are inputs."""

    def argument(node: Node) -> TensorArgument | SymIntArgument:
        is_tensor = isinstance(node.meta["val"], torch.Tensor)
        return TensorArgument(node.name) if is_tensor else SymIntArgument(node.name)

    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, argument(node), None) for node in inputs],
        [OutputSpec(OutputKind.USER_OUTPUT, argument(node), None) for node in outputs],
    )
    passed = pytree.tree_structure((tuple(range(len(inputs))), {}))
    returned = pytree.tree_structure(list(range(len(outputs))))
    entry = ModuleCallEntry("", ModuleCallSignature([], [], passed, returned))
    return ExportedProgram(module, module.graph, signature, {}, {}, [entry], constants={})


def _cause(error: BaseException) -> str:
    """The innermost reason that torch gives."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n")[0]


def _strip(proto: ModelProto) -> None:
    """Remove what says where the program's lines are: it is long, and would be part of the cache's key."""
    graphs = [proto.graph, *proto.functions]
    for graph in graphs:
        del graph.metadata_props[:]
        for part in (*graph.node, *graph.value_info):
            del part.metadata_props[:]
            part.ClearField("doc_string")
    del proto.metadata_props[:]
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        del value.metadata_props[:]

"""From a graph of aten operators to an ONNX model without weights, by `torch.onnx`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from onnx import ModelProto
from torch._ops import OpOverload
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
from torch.onnx import ONNXProgram
from torch.onnx.errors import OnnxExporterError
from torch.utils import _pytree as pytree

from relayc.torch.errors import TorchExportError
from relayc.torch.fx_rewrites import sizes_from_shapes, whole_operators

__all__ = ["Computed", "Exported", "Passed", "View", "export_graph", "is_view", "quiet_export"]

OPSET = 20
"""The opset of exported models: the one that torch's own converters are written and tested for."""


_LOUD = ("torch.onnx", "onnx_ir", "onnxscript")
"""Loggers that tell of each export, what torch's warnings say in an error, too."""


@dataclass(frozen=True)
class Passed:
    """A result that is an argument of the graph, or a constant of Python."""

    argument: int | None
    constant: Any = None


@dataclass(frozen=True)
class View:
    """An operator that makes a view of a tensor, and its other arguments."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.operator(tensor, *self.args, **self.kwargs)


@dataclass(frozen=True)
class Computed:
    """A result that the model computes: views, innermost first, of its output of that number."""

    output: int
    views: tuple[View, ...] = ()


@dataclass(frozen=True)
class Exported:
    """An ONNX model without weights, and how a call of the graph is one of the model.

    `arguments` are the positions, among the graph's arguments, of the model's inputs in order. `constants` are inputs
    behind those, tensors that the graph has itself. `sizes` are the outputs that are integers of Python to the graph.
    """

    proto: ModelProto
    arguments: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    results: tuple[Passed | Computed, ...]
    sizes: frozenset[int]


def export_graph(module: GraphModule) -> Exported:
    """The model of a graph of aten operators, whose nodes have fake tensors as `meta["val"]`.

    Raises `TorchExportError` for a graph that torch can't export.
    """
    graph = deepcopy(module.graph)
    _inputs_first(graph)
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
    sizes = frozenset(at for at, node in enumerate(outputs) if not isinstance(node.meta["val"], torch.Tensor))
    return Exported(proto, tuple(position for position in arguments if position < count), kept, tuple(results), sizes)


def _inputs_first(graph: Graph) -> None:
    """Move the inputs before everything else: of a part of a graph they come where each is first used."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in graph.find_nodes(op="placeholder"):
        first.prepend(node)


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
    """What the graph returns, and the nodes that are its outputs then.

    Results that are views of one tensor stay that: what the program writes into one is seen in the others.
    """
    end = graph.output_node()
    returned: Any = end.args[0]
    returned = (returned,) if isinstance(returned, Node) else tuple(returned)
    origins = {node: _origin(node) for node in returned if isinstance(node, Node)}
    uses = Counter(base for base, _ in origins.values())
    outputs: dict[Node, Computed] = {}
    results: list[Passed | Computed] = []
    for value in returned:
        if not isinstance(value, Node):
            results.append(Passed(None, value))
        elif value in inputs:
            results.append(Passed(inputs.index(value)))
        else:
            base, views = origins[value]
            base, views = (base, views) if uses[base] > 1 and base not in inputs else (value, ())
            order = _memory_order(base.meta["val"])
            found = outputs.setdefault(base, Computed(len(outputs), () if order is None else (_back(order),)))
            results.append(Computed(found.output, (*found.views, *views)))
    nodes = [_in_memory_order(graph, base) for base in outputs]
    end.args = (tuple(nodes),)
    return results, nodes


def _origin(node: Node) -> tuple[Node, tuple[View, ...]]:
    """The tensor that a node is a view of, and the views in between, innermost first; itself, if it is none."""
    views: list[View] = []
    while is_view(node):
        base, *args = node.args
        if not isinstance(base, Node) or len(node.all_input_nodes) > 1:  # a size that is not known here
            break
        views.append(View(node.target, tuple(args), dict(node.kwargs)))
        node = base
    return node, tuple(reversed(views))


def is_view(node: Node) -> bool:
    """Does the node make a view of a tensor, its first argument?"""
    return isinstance(node.target, OpOverload) and node.target.is_view


def _in_memory_order(graph: Graph, node: Node) -> Node:
    """The node with its axes in the order of its strides: ONNX knows no others, and the tensor is not copied."""
    order = _memory_order(node.meta["val"])
    if order is None:
        return node
    with graph.inserting_before(graph.output_node()):
        moved = graph.call_function(torch.ops.aten.permute.default, (node, list(order)))
    moved.meta["val"] = node.meta["val"].permute(order)
    return moved


def _back(order: Sequence[int]) -> View:
    """The view that undoes a transposition to `order`."""
    return View(torch.ops.aten.permute.default, ([order.index(axis) for axis in range(len(order))],), {})


def _memory_order(value: Any) -> tuple[int, ...] | None:
    """The axes by falling stride, if the tensor is dense in another order than its axes'; else None."""
    if not isinstance(value, torch.Tensor):
        return None
    example = torch.empty_strided([*map(_hint, value.shape)], [*map(_hint, value.stride())], device="meta")
    if example.is_contiguous():
        return None
    order = tuple(sorted(range(value.dim()), key=lambda axis: -example.stride(axis)))
    return order if example.permute(order).is_contiguous() else None


def _hint(size: Any) -> int:
    """A size, of a symbolic one its value in the example: comparing those would add guards."""
    return size if isinstance(size, int) else int(size.node.hint)


def _to_onnx(module: GraphModule, inputs: Sequence[Node], outputs: Sequence[Node]) -> ModelProto:
    proto = quiet_export(_program(module, inputs, outputs)).model_proto
    _strip(proto)
    return proto


def quiet_export(module: torch.nn.Module | ExportedProgram, *args: Any, **kwargs: Any) -> ONNXProgram:
    """`torch.onnx.export` without text on the way. Raises `TorchExportError` with torch's innermost reason."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        program = torch.onnx.export(
            module, *args, dynamo=True, verbose=False, optimize=False, opset_version=OPSET, **kwargs
        )  # fmt: skip
    except OnnxExporterError as error:
        raise TorchExportError(_cause(error)) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    assert program is not None, "torch.onnx.export(dynamo=True) returns a program"
    return program


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

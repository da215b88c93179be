"""Graphs with operators that relayc, or torch's exporter, has not: the parts without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from relayc.frontends.onnx import from_onnx
from relayc.te.errors import CompileError
from relayc.torch.exporting import export_graph, is_view

__all__ = ["split", "unsupported_operators"]


def unsupported_operators(module: GraphModule) -> dict[str, str]:
    """The operators that can't be exported and imported on their own, with the reasons.

    They are found by halves, since an exporter reports the first one only.
    """
    distinct: dict[tuple[str, ...], Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OperatorBase):
            distinct.setdefault(_kind(node), node)
    return {name_of(node): reason for node, reason in _refused([*distinct.values()])}


def name_of(node: Node) -> str:
    """The name of a node's operator: aten.sort.default."""
    return str(node.target)


def _kind(node: Node) -> tuple[str, ...]:
    """What decides whether an operator is supported: its name, and the types and ranks of its inputs."""
    inputs = [node.meta.get("val") for node in node.all_input_nodes]
    return name_of(node), *(f"{v.dtype} {v.dim()}" if isinstance(v, torch.Tensor) else "" for v in inputs)


def _refused(nodes: Sequence[Node]) -> list[tuple[Node, str]]:
    if not nodes:
        return []
    try:
        from_onnx(export_graph(_alone(nodes)).proto)
    except CompileError as error:
        if len(nodes) == 1:
            return [(nodes[0], str(error).split("\n")[0])]
        middle = len(nodes) // 2
        return [*_refused(nodes[:middle]), *_refused(nodes[middle:])]
    return []


def _alone(nodes: Sequence[Node]) -> GraphModule:
    """A graph of these nodes, each with inputs of its own."""
    graph = Graph()
    read = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes))
    inputs: dict[Node, Node] = {}
    for number, source in enumerate(read):
        inputs[source] = graph.placeholder(f"input_{number}")
        inputs[source].meta = dict(source.meta)
    outputs: list[Node] = []
    for node in nodes:
        made = graph.node_copy(node, lambda source: inputs[source])
        parts = [user for user in node.users if "getitem" in str(user.target)]
        is_whole = isinstance(node.meta.get("val"), torch.Tensor | torch.SymInt)
        outputs += [made] if is_whole else [graph.node_copy(part, lambda _, made=made: made) for part in parts]
    graph.output(tuple(outputs))
    return GraphModule(torch.nn.Module(), graph)


class _Supported(OperatorSupportBase):
    """The nodes of all operators but some. Views that are returned stay views, which torch makes."""

    def __init__(self, module: GraphModule, refused: frozenset[str]) -> None:
        self._refused = refused
        self._views: set[Node] = set()
        for node in module.graph.output_node().all_input_nodes:
            while is_view(node):
                self._views.add(node)
                node = node.all_input_nodes[0]

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        """Is this a computation with tensors, of an operator that is supported?"""
        is_tensor = not isinstance(node.meta.get("val"), torch.SymInt)
        is_known = name_of(node) not in self._refused and node not in self._views
        return node.op == "call_function" and is_tensor and is_known


def split(module: GraphModule, refused: frozenset[str]) -> tuple[GraphModule, list[str]]:
    """The graph with the parts between the refused operators as submodules, and the names of these."""
    partitioner = CapabilityBasedPartitioner(module, _Supported(module, refused))
    whole = partitioner.fuse_partitions(partitioner.propose_partitions())
    return whole, [str(node.target) for node in whole.graph.nodes if node.op == "call_module"]

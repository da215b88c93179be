"""Which tensors a node reads, and which nodes tensors need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import AttributeProto, GraphProto, NodeProto

__all__ = ["needed", "reads", "subgraphs"]


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among its attributes."""
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def reads(node: NodeProto) -> list[str]:
    """Names that a node reads, those that its subgraphs take from outside among them."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        for inner in graph.node:
            names.extend([name for name in reads(inner) if name not in own])
            own.update(inner.output)
        names.extend([o.name for o in graph.output if o.name not in own])
    return list(dict.fromkeys(names))


def needed(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
    """Those of the nodes that outputs need, in order, and the names of all tensors that are needed."""
    names, kept = set(outputs), list[NodeProto]()
    for node in reversed(nodes):
        if not names.isdisjoint(node.output):
            kept.append(node)
            names.update(reads(node))
    return kept[::-1], names

"""Which tensors a node reads."""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, NodeProto

__all__ = ["reads", "subgraphs"]


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

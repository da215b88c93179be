"""The graph that a Gradient node differentiates, made an attribute of the node.

ai.onnx.preview.training::Gradient names tensors of its own graph: `y` as a function of `xs` and `zs`. The nodes between
them become a graph of their own, with `xs` and `zs` as inputs, which captures everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto, helper

from relayc.frontends.onnx.errors import fault
from relayc.frontends.onnx.graph import describe, nested_graphs, node_inputs

__all__ = ["BODY", "with_gradient_bodies"]

BODY = "body"
"""The attribute that holds the graph: `xs` and `zs` to `y`."""

MAX_ORDER = 6
"""Greatest order of derivatives: each contains the bodies of the lower ones, and doubles the size."""

_DOMAIN = "ai.onnx.preview.training"


def with_gradient_bodies(nodes: Sequence[NodeProto], where: str) -> Sequence[NodeProto]:
    """`nodes`, those of one graph in topological order, with a body in each Gradient node.

    The body of a gradient of a gradient contains the first one. Raises OnnxImportError where `y` is made by no node and
    for derivatives above MAX_ORDER.
    """
    if not any(map(_is_gradient, nodes)):
        return nodes
    done: list[NodeProto] = []
    for node in nodes:
        lacks_body = _is_gradient(node) and not _order(node)
        done.append(_with_body(node, done, where) if lacks_body else node)
    return done


def _is_gradient(node: NodeProto) -> bool:
    return node.op_type == "Gradient" and node.domain == _DOMAIN


def _order(node: NodeProto) -> int:
    """The order of the derivative that the node computes; 0 of one that is no Gradient, or has no body yet."""
    bodies = [a.g for a in node.attribute if a.name == BODY] if _is_gradient(node) else []
    return max((1 + max(map(_order, body.node), default=0) for body in bodies), default=0)


def _with_body(node: NodeProto, before: Sequence[NodeProto], where: str) -> NodeProto:
    attributes = {a.name: a for a in node.attribute}
    inputs = [name for kind in ("xs", "zs") if kind in attributes for name in _strings(attributes[kind])]
    result = attributes["y"].s.decode(errors="replace") if "y" in attributes else ""
    producers = {name: index for index, n in enumerate(before) for name in n.output if name}
    if result not in producers and result not in inputs:
        problem = f"its attribute y names {result!r}, which no node in front of it makes"
        raise fault(f"{where}: {describe(node)}", problem, expected="the name of a tensor of the same graph")
    body = [before[i] for i in _between(before, producers, inputs, result)]
    if max(map(_order, body), default=0) >= MAX_ORDER:
        problem = f"a derivative of order {MAX_ORDER + 1}"
        raise fault(f"{where}: {describe(node)}", problem, expected=f"at most {MAX_ORDER}")
    made = {name for n in body for name in n.output if name} | set(inputs)
    prefix = next(name for name in [*node.output, node.name, "gradient"] if name)
    renamed = {name: f"{prefix}/{name}" for name in made}
    graph = GraphProto(name=prefix)
    graph.node.extend(_renamed(n, renamed) for n in body)
    graph.input.extend(ValueInfoProto(name=renamed[name]) for name in inputs)
    graph.output.append(ValueInfoProto(name=renamed.get(result, result)))
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.attribute.extend([helper.make_attribute(BODY, graph)])
    return copy


def _strings(attribute: AttributeProto) -> list[str]:
    return [name.decode(errors="replace") for name in attribute.strings]


def _between(
    nodes: Sequence[NodeProto], producers: Mapping[str, int], inputs: Iterable[str], result: str
) -> list[int]:
    """The indices of the nodes that depend on `inputs` and that `result` depends on, ascending."""
    reached = set(inputs)
    dependent = set[int]()
    for index, node in enumerate(nodes):
        if not reached.isdisjoint(node_inputs(node, producers)):
            dependent.add(index)
            reached.update(name for name in node.output if name)
    needed = set[int]()
    todo = [result]
    while todo:
        index = producers.get(name := todo.pop(), -1)
        if name in inputs or index not in dependent or index in needed:
            continue
        needed.add(index)
        todo.extend(node_inputs(nodes[index], producers))
    return sorted(needed)


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of the node with tensors renamed, also where its subgraphs capture them."""
    copy = NodeProto()
    copy.CopyFrom(node)
    for kind in (copy.input, copy.output):
        kind[:] = [names.get(name, name) for name in kind]
    graphs = list(nested_graphs(copy))
    while graphs:
        graph = graphs.pop()
        own = {name for inner in graph.node for name in inner.output} | {value.name for value in graph.input}
        captured = {old: new for old, new in names.items() if old not in own}
        for inner in graph.node:
            inner.input[:] = [captured.get(name, name) for name in inner.input]
            graphs.extend(nested_graphs(inner))
        for output in graph.output:
            output.name = captured.get(output.name, output.name)
    return copy

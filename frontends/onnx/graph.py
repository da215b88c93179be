"""Def-use checks of an ONNX graph, and a topological order of its nodes.

Only nodes that an output depends on are kept. Cycles, undefined and duplicate names are errors.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from onnx import GraphProto, NodeProto

from relayc.frontends.onnx.errors import OnnxImportError, fault

__all__ = [
    "describe", "names_read", "nested_graphs", "node_inputs", "ordered_nodes", "span_name", "with_nested",
    "without_inputs",
]  # fmt: skip


def describe(node: NodeProto, index: int | None = None) -> str:
    """`node 'name' (Op)` for error messages; an unnamed node is identified by its position or first output."""
    operator = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    if node.name:
        return f"node {node.name!r} ({operator})"
    if len(node.output) and node.output[0]:
        return f"the node that makes {node.output[0]!r} ({operator})"
    return f"node {index} ({operator})" if index is not None else f"a node ({operator})"


def nested_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs among the node's attributes, without those nested in them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def with_nested(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and all nodes of the graphs among their attributes."""
    bodies = [nodes]
    while bodies:
        for node in bodies.pop():
            yield node
            bodies += [graph.node for graph in nested_graphs(node)]


def names_read(node: NodeProto) -> Iterable[str]:
    """All names that the node or its subgraphs may read."""
    names = list(node.input)
    graphs = list(nested_graphs(node))
    while graphs:
        graph = graphs.pop()
        names.extend(output.name for output in graph.output)
        for inner in graph.node:
            names.extend(inner.input)
            graphs.extend(nested_graphs(inner))
    return names


def without_inputs(node: NodeProto, absent: set[str]) -> NodeProto:
    """The node without the inputs that the function's caller omitted."""
    if not any(name in absent for name in node.input):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    for index, name in enumerate(node.input):
        if name in absent:
            copy.input[index] = ""
    return copy


def span_name(node: NodeProto) -> str:
    """The name of a node in spans: its own, or its first output's."""
    return node.name if node.name else next((name for name in node.output if name), "")


def ordered_nodes(
    nodes: Sequence[NodeProto], defined: Container[str], outputs: Iterable[str], where: str
) -> list[NodeProto]:
    """The nodes that `outputs` depend on in topological order; file order breaks ties.

    `defined` holds inputs, initializers and names of outer graphs.
    Raises `OnnxImportError` for a name defined twice or nowhere, and for a cycle (naming its nodes).
    """
    producers = _producers(nodes, defined, where)
    needs = _live_needs(nodes, producers, defined, outputs, where)
    readers: dict[int, list[int]] = {index: [] for index in needs}
    for index, sources in needs.items():
        for source in sources:
            readers[source].append(index)
    waiting = {index: len(sources) for index, sources in needs.items()}
    ready = [index for index, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[NodeProto] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(needs):
        raise _cycle_error(nodes, needs, {i for i, count in waiting.items() if count}, where)
    return order


def _producers(nodes: Sequence[NodeProto], defined: Container[str], where: str) -> dict[str, int]:
    """Name -> index of the node that defines it."""
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name == "":
                continue
            if name in producers:
                other = describe(nodes[producers[name]], producers[name])
                raise fault(where, f"{other} and {describe(node, index)} both make {name!r}")
            if name in defined:
                raise fault(
                    where, f"{describe(node, index)} makes {name!r}, which is an input or an initializer already"
                )
            producers[name] = index
    return producers


def _live_needs(
    nodes: Sequence[NodeProto],
    producers: Mapping[str, int],
    defined: Container[str],
    outputs: Iterable[str],
    where: str,
) -> dict[int, set[int]]:
    """The predecessors of each node that the outputs depend on."""
    needs: dict[int, set[int]] = {}
    todo: list[int] = []
    for name in outputs:
        if name in producers:
            todo.append(producers[name])
        elif name not in defined:
            raise fault(
                where,
                f"the output {name!r} is made by no node" + _close(name, producers),
                remedy="the file is cut short or was written wrong; export it again",
            )
    while todo:
        index = todo.pop()
        if index in needs:
            continue
        sources: set[int] = set()
        for name in node_inputs(nodes[index], producers):
            if name in producers:
                sources.add(producers[name])
            elif name not in defined:
                problem = (
                    f"{describe(nodes[index], index)} reads {name!r}, which nothing makes{_close(name, producers)}"
                )
                raise fault(where, problem, expected="an input, an initializer or a node's output")
        needs[index] = sources
        todo.extend(sources)
    return needs


def node_inputs(node: NodeProto, producers: Mapping[str, int]) -> Iterator[str]:
    """Names that `node` reads: its inputs, and the names that its subgraphs capture."""
    for name in node.input:
        if name != "":
            yield name
    graphs = [(graph, frozenset[str]()) for graph in nested_graphs(node)]
    while graphs:
        graph, hidden = graphs.pop()
        hidden = hidden.union(_names_made(graph))
        for output in graph.output:
            if output.name in producers and output.name not in hidden:
                yield output.name
        for inner in graph.node:
            yield from (name for name in inner.input if name in producers and name not in hidden)
            graphs.extend((nested, hidden) for nested in nested_graphs(inner))


def _names_made(graph: GraphProto) -> Iterator[str]:
    """The names defined in a graph, which shadow those of outer graphs."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from node.output


def _close(name: str, producers: Mapping[str, int]) -> str:
    if len(producers) > 20_000:
        return ""
    close = difflib.get_close_matches(name, producers, n=2, cutoff=0.8)
    return f" (close are: {', '.join(map(repr, close))})" if close else ""


def _cycle_error(
    nodes: Sequence[NodeProto], needs: Mapping[int, set[int]], stuck: set[int], where: str
) -> OnnxImportError:
    """The error for a cyclic graph: follows unmet dependencies until a node repeats."""
    path: list[int] = []
    at = min(stuck)
    while at not in path:
        path.append(at)
        at = min(needs[at] & stuck)
    cycle = path[path.index(at) :]
    shown = " <- ".join(describe(nodes[i], i) for i in [*cycle[:8], cycle[0]])
    more = f" (and {len(cycle) - 8} more)" if len(cycle) > 8 else ""
    return fault(where, f"the graph has a cycle: {shown}{more}", expected="a graph without cycles")

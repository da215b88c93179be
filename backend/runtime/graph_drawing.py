"""A compiled graph as SVG: a box for each node, from top to bottom in layers, darker the more time it takes."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from relayc.backend.runtime.graph import Graph

__all__ = ["graph_svg"]

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 190, 34, 14, 26
_MARGIN = 10
_LETTERS = 27
"""Letters of a name that fit into a box."""
_MOST_NODES = 2000
"""Nodes that are drawn: browsers show larger pictures slowly."""


def graph_svg(graph: Graph, seconds: Mapping[str, float]) -> str:
    """The graph's nodes and the tensors that flow between them, by node names coloured with their `seconds`.

    Only the first 2,000 nodes of a larger graph are drawn.
    """
    nodes = graph.nodes[:_MOST_NODES]
    producer = {output: number for number, node in enumerate(nodes) for output in node.outputs}
    edges = [
        (producer[tensor], number)
        for number, node in enumerate(nodes)
        for tensor in dict.fromkeys(node.inputs)
        if producer.get(tensor, number) < number
    ]
    places = _places(len(nodes), edges)
    width = max((x for x, _ in places), default=0) + _BOX_WIDTH + _MARGIN
    height = max((y for _, y in places), default=0) + _BOX_HEIGHT + _MARGIN
    slowest = max([seconds.get(node.name, 0.0) for node in nodes], default=0.0) or 1.0
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">']
    for source, target in edges:
        (x1, y1), (x2, y2) = places[source], places[target]
        middle = _BOX_WIDTH // 2
        lines.append(f'<path d="M{x1 + middle} {y1 + _BOX_HEIGHT}L{x2 + middle} {y2}" stroke="#999" fill="none"/>')
    for (x, y), node in zip(places, nodes, strict=True):
        spent = seconds.get(node.name, 0.0)
        shapes = " ".join(f"{graph.tensors[t].dtype}{graph.tensors[t].shape_text}" for t in node.outputs)
        title = f"{node.name}\n{'+'.join(node.ops)}\n{shapes}\n{spent * 1e6:.1f} us\n{' '.join(node.sources)}"
        lines.append(
            f'<g><title>{escape(title)}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" '
            f'rx="4" stroke="#555" fill="hsl(20,90%,{100 - 45 * spent / slowest:.0f}%)"/>'
            f'<text x="{x + 6}" y="{y + 14}">{escape(node.name[:_LETTERS])}</text>'
            f'<text x="{x + 6}" y="{y + 28}">{escape(shapes[:_LETTERS])}</text></g>'
        )
    return "\n".join([*lines, "</svg>"])


def _places(count: int, edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The upper left corner of each box: in the layer below those of all nodes that it reads from."""
    layers = [0] * count
    for source, target in edges:  # edges come in the order of their targets, and nodes in execution order
        layers[target] = max(layers[target], layers[source] + 1)
    used: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    for layer in layers:
        column = used.get(layer, 0)
        used[layer] = column + 1
        places.append((_MARGIN + column * (_BOX_WIDTH + _GAP_X), _MARGIN + layer * (_BOX_HEIGHT + _GAP_Y)))
    return places

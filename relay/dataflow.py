"""Graphs as networkx graphs, for drawing and for analyses that the compiler does not need."""

from __future__ import annotations

import networkx as nx

from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Constant, Expr, Function, Var
from relayc.relay.op.base import OpDef

__all__ = ["to_networkx"]


def to_networkx(root: Expr) -> nx.DiGraph[Expr]:
    """A node for each expression reachable from `root`, an edge from each operand to its user.

    Nodes are the expressions themselves; their attributes are "label", the operator, the variable's name or the kind
    of expression, and "type".
    """
    graph: nx.DiGraph[Expr] = nx.DiGraph()
    for e in evaluation_order(root):
        graph.add_node(e, label=_label(e), type=str(e.ty))
        graph.add_edges_from((child, e) for child in e.node_children() if isinstance(child, Expr))
    return graph


def _label(e: Expr) -> str:
    match e:
        case Call(op=OpDef() as op):
            return op.name
        case Call(op=Function()):
            return "function"
        case Var():
            return e.name
        case Constant():
            return "constant"
        case _:
            return type(e).__name__

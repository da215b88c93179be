"""Graphs in networkx, and the post-dominators of fusion compared with those of networkx."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings, strategies as st

from relayc import relay
from relayc.relay.dataflow import to_networkx
from relayc.relay.transform.fuse_ops import immediate_post_dominators


def test_nodes_are_expressions_and_edges_lead_to_users() -> None:
    x = relay.var("x", (2, 3))
    once = relay.op.exp(x)
    both = once + once
    graph = to_networkx(relay.Function((x,), both))
    assert list(nx.dag_longest_path(graph)) == [x, once, both, *[n for n in graph if graph.out_degree(n) == 0]]
    assert graph.nodes[once]["label"] == "exp"
    assert graph.nodes[x]["label"] == "x"
    assert graph.nodes[both]["type"] == "Tensor[(2, 3), float32]"


@st.composite
def dags(draw: st.DrawFn) -> list[list[int]]:
    """The users of each node of a graph in which all nodes lead to the last one."""
    count = draw(st.integers(1, 24))
    users: list[list[int]] = []
    for node in range(count - 1):
        later = st.integers(node + 1, count - 1)
        users.append(draw(st.lists(later, min_size=1, max_size=4)))
    return [*users, []]


@settings(max_examples=200, deadline=None)
@given(dags())
def test_post_dominators_are_those_of_networkx(users: list[list[int]]) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(users)))
    graph.add_edges_from((user, node) for node, found in enumerate(users) for user in found)
    exit_ = len(users) - 1
    expected = {n: d for n, d in nx.immediate_dominators(graph, exit_).items() if n != exit_}
    assert immediate_post_dominators(users) == expected


def test_post_dominators_of_a_long_chain() -> None:
    users = [[i + 1] for i in range(20000)] + [[]]
    assert immediate_post_dominators(users) == {i: i + 1 for i in range(20000)}

"""Dynamic optional values, from ONNX to results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from relayc.backend.runtime.errors import ArgumentError
from tests.frontends.sequence_models import (
    BOOL,
    FLOAT,
    INT64,
    TRIPS,
    Compiled,
    assert_same,
    body,
    constant,
    f,
    info,
    model_of,
    n,
    optional,
)


def choosing(then_nodes, then_out, else_nodes, else_out, result):
    """Nodes of an If between two optional values."""
    none = helper.make_node("Optional", [], ["none"], type=helper.make_tensor_type_proto(FLOAT, None))
    then = helper.make_graph(then_nodes, "then", [], [then_out])
    other = helper.make_graph([none, *else_nodes], "else", [], [else_out])
    return helper.make_node("If", ["c"], [result], then_branch=then, else_branch=other, name="choose")


def test_an_optional_value_that_a_branch_gives():
    some = [helper.make_node("Neg", ["x"], ["m"]), helper.make_node("Optional", ["m"], ["some"])]
    get = helper.make_graph([helper.make_node("OptionalGetElement", ["o"], ["g"])], "then", [], [info("g")])
    zeros = helper.make_graph([helper.make_node("Sub", ["x", "x"], ["z"])], "else", [], [info("z")])
    nodes = [
        choosing(some, optional("some"), [], optional("none"), "o"),
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("If", ["has"], ["y"], then_branch=get, else_branch=zeros, name="get"),
    ]
    outputs = [info("has", [], BOOL), info("y"), optional("o")]
    compiled = Compiled(model_of(nodes, [info("c", [], BOOL), info("x", ["n"])], outputs))
    x = f(3)
    has, y, o = compiled(np.array(True), x)
    assert bool(has)
    assert_same([y, o], [-x, -x])
    has, y, o = compiled(np.array(False), x)
    assert not bool(has) and o is None
    assert_same(y, np.zeros_like(x))


def test_the_element_of_an_absent_value_is_an_error():
    some = [helper.make_node("Optional", ["x"], ["some"])]
    nodes = [
        choosing(some, optional("some"), [], optional("none"), "o"),
        helper.make_node("OptionalGetElement", ["o"], ["y"], name="unwrap"),
    ]
    compiled = Compiled(model_of(nodes, [info("c", [], BOOL), info("x", ["n"])], [info("y")]))
    assert_same(compiled(np.array(True), f(3)), [f(3)])
    with pytest.raises(ArgumentError, match="OptionalGetElement 'unwrap': the optional value has no element"):
        compiled(np.array(False), f(3))


def test_an_optional_value_carried_by_a_loop():
    """`best = None; for row in x: if best is None or row.sum() > best.sum(): best = row`."""
    compare = helper.make_graph(
        [
            helper.make_node("OptionalGetElement", ["best"], ["old"]),
            helper.make_node("ReduceSum", ["old"], ["old_sum"], keepdims=0),
            helper.make_node("Greater", ["sum", "old_sum"], ["larger"]),
        ],
        "then", [], [info("larger", [], BOOL)],
    )  # fmt: skip
    yes = helper.make_graph([helper.make_node("Identity", ["true"], ["t"])], "else", [], [info("t", [], BOOL)])
    take = helper.make_graph([helper.make_node("Optional", ["row"], ["taken"])], "then", [], [optional("taken")])
    keep = helper.make_graph([helper.make_node("Identity", ["best"], ["kept"])], "else", [], [optional("kept")])
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["row"]),
        helper.make_node("ReduceSum", ["row"], ["sum"], keepdims=0),
        helper.make_node("OptionalHasElement", ["best"], ["has"]),
        helper.make_node("If", ["has"], ["better"], then_branch=compare, else_branch=yes),
        helper.make_node("If", ["better"], ["next"], then_branch=take, else_branch=keep),
    ]
    graph = body(nodes, [optional("best")], [optional("next")], [constant("true", True)])
    none = helper.make_node("Optional", [], ["none"], type=helper.make_tensor_type_proto(FLOAT, None))
    loop = helper.make_node("Loop", ["trips", "always", "none"], ["y"], body=graph, name="best")
    compiled = Compiled(model_of([none, loop], [TRIPS, info("x", ["t", 3])], [optional("y")]))
    x = f(20, 3)
    assert_same(compiled(n(20), x), [x[x.sum(1).argmax()]])
    assert compiled(n(0), x) == [None]


def test_an_optional_sequence():
    some = [helper.make_node("SequenceConstruct", ["x", "x"], ["xs"]), helper.make_node("Optional", ["xs"], ["some"])]
    nodes = [
        choosing(some, optional("some", True), [], optional("none", True), "o"),
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
    ]
    get = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["o"], ["g"]), helper.make_node("SequenceLength", ["g"], ["len"])],
        "then", [], [info("len", [], INT64)],
    )  # fmt: skip
    none = helper.make_graph([], "else", [], [info("zero", [], INT64)], [constant("zero", 0)])
    nodes.append(helper.make_node("If", ["has"], ["length"], then_branch=get, else_branch=none))
    outputs = [info("length", [], INT64), optional("o", True)]
    compiled = Compiled(model_of(nodes, [info("c", [], BOOL), info("x", ["n"])], outputs))
    assert_same(compiled(np.array(True), f(3)), [n(2), [f(3), f(3)]])
    assert_same(compiled(np.array(False), f(3)), [n(0), None])

"""Orders, variables, counts and the invariants of graphs."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay import analysis
from relayc.relay.interpreter import evaluate
from relayc.te.ir import post_order


def test_evaluation_order_puts_a_let_between_value_and_body():
    x, v = relay.var("x", (4,)), relay.var("v", (4,))
    value, body = relay.nn.relu(x), relay.nn.relu(v)
    let = relay.Let(v, value, body)
    assert list(analysis.evaluation_order(let)) == [x, value, let, v, body]


def test_free_and_bound_variables():
    x, y, v = relay.var("x", (4,)), relay.var("y", (4,)), relay.var("v", (4,))
    f = relay.Function((x,), relay.Let(v, relay.nn.relu(x), relay.op.add(v, y)))
    assert analysis.free_vars(f) == [y]
    assert analysis.bound_vars(f) == [v, x]


def test_well_formed_names_a_free_variable():
    x, y = relay.var("x", (4,)), relay.var("y", (4,))
    with pytest.raises(relay.MalformedGraphError, match="bound nowhere: y"):
        analysis.well_formed(relay.Function((x,), relay.op.add(x, y)))


def test_well_formed_finds_a_cycle_and_names_its_place():
    x = relay.var("x", (4,))
    first = relay.nn.relu(x)
    second = relay.op.make_call("nn.relu", (first,), relay.Span("m.onnx", "Relu_1"))
    first.args = (second,)  # bypasses immutability
    with pytest.raises(relay.MalformedGraphError, match=r"cycle through nn\.relu at m\.onnx Relu_1"):
        analysis.well_formed(relay.Function((x,), second))


def test_well_formed_finds_an_expression_whose_type_is_wrong():
    x = relay.var("x", (4,))
    call = relay.nn.relu(x)
    call.args = (relay.var("y", (5,)),)
    with pytest.raises(relay.MalformedGraphError, match="has parts that give"):
        analysis.well_formed(relay.Function((x, call.args[0]), call))


def test_well_formed_finds_a_missing_global():
    x = relay.var("x", (4,))
    g = relay.GlobalVar("g", relay.FuncType([x.ty], x.ty))
    with pytest.raises(relay.MalformedGraphError, match="no function @g; it has: main"):
        analysis.well_formed(relay.IRModule({"main": relay.Function((x,), relay.Call(g, (x,)))}))


def test_a_function_keeps_the_order_of_its_expressions_and_another_one_has_its_own():
    x = relay.var("x", (4,))
    first = relay.nn.relu(x)
    f = relay.Function((x,), relay.op.add(first, x))
    assert f.order_below() == (x, first, f.body)
    assert f.order_below() is f.order_below()
    assert list(analysis.evaluation_order(f)) == list(post_order(f)) == [x, first, f.body, f]
    assert f.replace(body=first).order_below() == analysis.body_order(f.with_body(first)) == (x, first)


def test_a_function_with_a_let_keeps_no_order():
    x, y = relay.var("x", (4,)), relay.var("y", (4,))
    value = relay.nn.relu(x)
    f = relay.Function((x,), relay.Let(y, value, y))
    assert f.order_below() is None
    assert list(analysis.body_order(f)) == [x, value, f.body, y]


def test_operator_frequencies():
    x = relay.var("x", (4,))
    f = relay.Function((x,), relay.nn.relu(relay.nn.relu(relay.op.add(x, x))))
    assert analysis.list_op_freqs(f) == {"nn.relu": 2, "add": 1}


def test_the_debug_executor_evaluates_lets_closures_and_one_branch():
    x, flag, v = relay.var("x", (4,)), relay.var("flag", (), "bool"), relay.var("v", (4,))
    p = relay.var("p", (4,))
    shared = relay.nn.relu(x)
    closure = relay.Function((p,), relay.op.add(p, shared))
    body = relay.Let(v, closure(x), relay.If(flag, relay.op.add(v, v), shared))
    run = relay.create_executor("debug", relay.IRModule({"main": relay.Function((x, flag), body)})).evaluate()
    data = np.array([-1, 2, -3, 4], "float32")
    np.testing.assert_array_equal(run(data, True), [-2, 8, -6, 16])
    np.testing.assert_array_equal(run(data, flag=False), [0, 2, 0, 4])


def test_the_debug_executor_runs_deep_chains():
    x = relay.var("x", (1,))
    y: relay.Expr = x
    for _ in range(10_000):
        y = relay.op.add(y, relay.const([1.0]))
    assert evaluate(relay.Function((x,), y), [np.zeros(1, "float32")])[0] == 10_000

"""FoldConstant, EliminateCommonSubexpr, DeadCodeElimination: before and after, by structure."""

from __future__ import annotations

import numpy as np

from relayc import relay
from relayc.relay.op import add, nn
from relayc.relay.transform import DeadCodeElimination, EliminateCommonSubexpr, FoldConstant, Pass, PassContext
from relayc.te.ir import first_difference


def run(pass_: Pass, function: relay.Function) -> relay.Function:
    return pass_(relay.IRModule({"main": function}))["main"]


def x4() -> relay.Var:
    return relay.var("x", (4,))


def test_constants_fold_through_the_references():
    x = x4()
    before = relay.Function((x,), add(x, nn.relu(add(relay.const([1.0]), relay.const([-3.0])))))
    y = x4()
    after = relay.Function((y,), add(y, relay.const([0.0])))
    assert first_difference(run(FoldConstant(), before), after) is None


def test_a_constant_that_would_grow_stays_a_call():
    x = relay.var("x", (1024, 1024))
    column, row = relay.const(np.ones((1024, 1), "float32")), relay.const(np.ones((1, 1024), "float32"))
    before = relay.Function((x,), add(x, add(column, row)))
    with PassContext(config={"relay.FoldConstant.max_bytes": 1 << 16}):
        assert run(FoldConstant(), before) is before


def test_quantized_weights_become_floats_whatever_their_size():
    quantized = relay.const(np.arange(-64, 64, dtype=np.int8).reshape(8, 16))
    before = relay.Function((), relay.multiply(relay.cast(quantized, "float32"), relay.const(np.float32(0.5))))
    with PassContext(config={"relay.FoldConstant.max_bytes": 0}):
        after = run(FoldConstant(), before)
    np.testing.assert_array_equal(after.body.data, quantized.data * np.float32(0.5))


def test_known_branches_and_fields_are_chosen():
    x = x4()
    chosen = relay.If(relay.const(np.array(True)), nn.relu(x), x)
    before = relay.Function((x,), relay.TupleGetItem(relay.Tuple((x, chosen)), 1))
    y = x4()
    assert first_difference(run(FoldConstant(), before), relay.Function((y,), nn.relu(y))) is None


def test_equal_calls_become_one():
    x = x4()
    before = relay.Function((x,), add(add(x, relay.const([1.0])), add(x, relay.const([1.0]))))
    y = x4()
    once = add(y, relay.const([1.0]))
    after = relay.Function((y,), add(once, once))
    assert first_difference(before, after) is not None
    assert first_difference(run(EliminateCommonSubexpr(), before), after) is None


def test_calls_in_different_branches_stay_apart():
    x, flag = x4(), relay.var("flag", (), "bool")
    before = relay.Function((x, flag), relay.If(flag, add(nn.relu(x), x), nn.relu(x)))
    assert run(EliminateCommonSubexpr(), before) is before


def test_unused_lets_and_unreachable_functions_go():
    x, v, p = x4(), relay.var("v", (4,)), x4()
    main = relay.Function((x,), relay.Let(v, add(x, x), nn.relu(x)))
    module = relay.IRModule({"main": main, "spare": relay.Function((p,), p)})
    y = x4()
    cleaned = DeadCodeElimination()(module)
    assert list(cleaned) == ["main"]
    assert first_difference(cleaned["main"], relay.Function((y,), nn.relu(y))) is None


def test_passes_on_a_long_chain_take_no_stack():
    x = x4()
    y: relay.Expr = x
    for _ in range(10_000):
        y = nn.relu(add(y, add(relay.const([1.0]), relay.const([1.0]))))
    function = relay.Function((x,), y)
    for pass_ in (FoldConstant(), EliminateCommonSubexpr(), DeadCodeElimination()):
        function = run(pass_, function)
    assert relay.analysis.list_op_freqs(function) == {"nn.relu": 10_000, "add": 10_000}

"""What FuseOps puts together and what it leaves apart."""

from __future__ import annotations

from relay.analysis import evaluation_order
from relay.expr import Call, Expr, Function, Tuple, const, var
from relay.op.broadcast import add
from relay.op.nn import relu
from relay.transform.fuse_ops import FuseOps
from te.ir import IRModule, PassContext


def fuse(*outputs: Expr, params: list[Expr], max_size: int = 256) -> Function:
    body = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs))
    with PassContext(config={"relay.FuseOps.max_size": max_size}):
        return FuseOps()(IRModule({"main": Function(tuple(params), body)}))["main"]


def groups(function: Function) -> list[list[str]]:
    """Operator names of each fused function, in order."""
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call) and isinstance(e.op, Function)]
    return [[e.op.name for e in evaluation_order(c.op.body) if isinstance(e, Call)] for c in calls]


def test_an_elementwise_chain_is_one_kernel():
    x = var("x", (2, 3))
    assert groups(fuse(relu(add(relu(x), const(1.0))), params=[x])) == [["nn.relu", "add", "nn.relu"]]


def test_a_diamond_is_one_kernel():
    x = var("x", (2, 3))
    y = relu(x)
    fused = fuse(add(relu(y), add(y, x)), params=[x])
    assert len(groups(fused)) == 1
    assert len(fused.body.args) == 1


def test_a_value_that_is_also_a_result_is_kept():
    x = var("x", (2, 3))
    y = relu(x)
    assert groups(fuse(y, add(y, y), params=[x])) == [["nn.relu"], ["add"]]


def test_scalars_are_taken_inside_and_arrays_stay_arguments():
    x = var("x", (2, 3))
    fused = fuse(add(add(x, const(1.0)), const([1.0, 2.0, 3.0])), params=[x])
    assert [type(a).__name__ for a in fused.body.args] == ["Var", "Constant"]


def test_a_group_does_not_outgrow_the_limit():
    x = var("x", (2,))
    y = x
    for _ in range(10):
        y = relu(y)
    assert max(len(g) for g in groups(fuse(y, params=[x], max_size=4))) <= 4


def test_a_long_chain_does_not_overflow_the_stack():
    x = var("x", (2,))
    y = x
    for _ in range(10_000):
        y = relu(y)
    assert sum(len(g) for g in groups(fuse(y, params=[x]))) == 10_000

"""Which operators FuseOps fuses and which it leaves separate."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.relay import op
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Call, Expr, Function, If, Let, Tuple, const, var
from relayc.relay.op import add, nn
from relayc.relay.op.nn import relu, softmax
from relayc.relay.transform.fuse_ops import FuseOps
from relayc.relay.transform.fused_formula import MAX_DEPTH
from relayc.te.ir import IRModule, PassContext


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


def test_views_at_the_edges_stay_outside():
    x = var("x", (2, 6))
    y = op.reshape(relu(op.transpose(op.reshape(x, (2, 3, 2)), (1, 0, 2))), (12,))
    assert groups(fuse(y, params=[x])) == [["reshape"], ["transpose", "nn.relu"], ["reshape"]]


def test_a_concatenation_reads_results_and_has_an_epilogue():
    x, y = var("x", (2, 3)), var("y", (2, 3))
    fused = fuse(relu(op.concatenate([op.tanh(x), y], axis=1)), params=[x, y])
    assert groups(fused) == [["tanh"], ["concatenate", "nn.relu"]]


def test_a_reduction_absorbs_producers_and_keeps_an_epilogue():
    x = var("x", (8, 64))
    y = op.sqrt(op.add(op.mean(op.multiply(x, x), axis=1), const(1.0)))
    assert groups(fuse(y, params=[x])) == [["multiply", "mean", "add", "sqrt"]]


def test_operators_that_read_inputs_once_absorb_producers():
    x, mask = var("x", (8, 64)), var("mask", (8, 64))
    assert groups(fuse(softmax(add(x, mask)), params=[x, mask])) == [["add", "nn.softmax"]]


def test_work_is_not_repeated_to_save_a_small_result():
    x, y = var("x", (64, 1)), var("y", (64, 64))
    assert groups(fuse(add(op.exp(x), y), params=[x, y])) == [["exp"], ["add"]]


def test_of_two_heavy_operators_one_takes_the_sum():
    a, b, w = var("a", (4, 8)), var("b", (4, 8)), var("w", (8, 8))
    fused = fuse(add(op.nn.dense(a, w), op.nn.dense(b, w)), params=[a, b, w])
    assert sorted(groups(fused)) == [["nn.dense"], ["nn.dense", "add"]]


def test_a_residual_that_leads_past_a_heavy_operator_is_no_cycle():
    a, w = var("a", (4, 8)), var("w", (8, 8))
    first = relu(op.nn.dense(a, w))
    fused = fuse(add(op.nn.dense(first, w), first), params=[a, w])
    assert groups(fused) == [["nn.dense", "nn.relu"], ["nn.dense", "add"]]


def test_branches_and_lets_are_not_crossed():
    x, flag, v = var("x", (2, 3)), var("flag", (), "bool"), var("v", (2, 3))
    branch = If(flag, relu(relu(x)), add(x, x))
    fused = fuse(Let(v, relu(relu(branch)), relu(add(v, v))), params=[x, flag])
    assert groups(fused) == [["nn.relu", "nn.relu"], ["add"], ["nn.relu", "nn.relu"], ["add", "nn.relu"]]


def test_operand_permutations_become_part_of_a_product_on_request(transformed):
    x, w = var("x", (4, 6, 8)), np.ones((3, 8), "float32")
    heads = op.transpose(op.strided_slice(x, (0,), (2,), axes=(1,)), (1, 0, 2))
    mixed = nn.dense(op.transpose(softmax(nn.batch_matmul(heads, heads)), (1, 0, 2)), const(w[:, :4]))
    computed = nn.dense(relu(x), const(w))  # arithmetic is no data movement
    function = Function((x,), Tuple((mixed, computed)))
    assert groups(transformed(function, FuseOps(permutes_into_products=True))) == [
        ["strided_slice", "transpose", "nn.batch_matmul"], ["nn.softmax"], ["transpose", "nn.dense"], ["nn.relu"],
        ["nn.dense"],
    ]  # fmt: skip
    assert ["strided_slice", "transpose"] in groups(transformed(function, FuseOps()))


def test_matrices_looked_up_become_part_of_a_product_with_one_row_each_on_request(transformed):
    x, many, at = var("x", (6, 1, 8)), var("many", (6, 2, 8)), var("at", (6,), "int32")
    found = op.take(const(np.ones((4, 8, 8), "float32")), at, axis=0)
    product = nn.batch_matmul(x, found, transpose_b=True)
    again = nn.batch_matmul(many, found, transpose_b=True)  # reads each element twice
    one, both = Function((x, at), relu(product)), Function((many, at), again)
    assert groups(transformed(one, FuseOps(looks_up_in_products=True))) == [["take", "nn.batch_matmul", "nn.relu"]]
    assert groups(transformed(both, FuseOps(looks_up_in_products=True))) == [["take"], ["nn.batch_matmul"]]
    assert groups(transformed(one, FuseOps())) == [["take"], ["nn.batch_matmul", "nn.relu"]]


def test_bytes_lie_between_two_heavy_operators_whose_results_are_added():
    """The second one's epilogue converts them: a quarter of what the first one would write and the second read."""
    x = var("x", (8, 16))

    def quantized(y: Expr) -> Expr:
        return op.cast(op.clip(op.round(op.multiply(y, const(np.float32(0.1)))), 0, 255), "uint8")

    def numbers(y: Expr) -> Expr:
        return op.multiply(op.cast(quantized(y), "float32"), const(np.float32(10.0)))

    weights = [const(np.full((16, 16), value, np.float32)) for value in (1.0, 2.0)]
    fused = fuse(relu(add(*[numbers(nn.dense(x, w)) for w in weights])), params=[x])
    first, second = groups(fused)
    assert first == ["nn.dense", "multiply", "round", "clip", "cast"]
    assert second[0] == "nn.dense" and second.count("cast") == 3 and second[-2:] == ["add", "nn.relu"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_half_precision_lies_between_two_heavy_operators_whose_results_are_added(dtype: str):
    """As bytes do; a type that is not smaller is converted by a kernel of its own."""
    x = var("x", (8, 16))
    weights = [const(np.full((16, 16), value, np.float32)) for value in (1.0, 2.0)]
    stored = op.cast(nn.dense(x, weights[0]), dtype)
    other = op.cast(op.negative(stored), "float32")
    fused = fuse(relu(add(nn.dense(other, weights[1]), op.cast(stored, "float32"))), params=[x])
    merged = ["nn.dense", "cast", "add", "nn.relu"] in groups(fused)
    assert merged == (dtype != "float64")


def test_a_formula_stays_shallow():
    x = var("x", (8,))
    y: Expr = x
    for _ in range(300):
        y = op.tanh(y)
    assert max(map(len, groups(fuse(y, params=[x])))) == MAX_DEPTH
    for _ in range(300):
        y = op.take(y, const(np.array([1, 0, 3, 2, 5, 4, 7, 6])), axis=0)
    assert max(map(len, groups(fuse(y, params=[x])))) == MAX_DEPTH


def test_a_formula_does_not_double_with_each_operator():
    x, chosen = var("x", (8,), "int64"), var("chosen", (8,), "bool")
    gathered: Expr = x
    selected: Expr = x
    for _ in range(60):
        gathered = op.take(gathered, gathered, axis=0)
        selected = op.where(chosen, selected, op.negative(selected))
    assert max(map(len, groups(fuse(gathered, params=[x])))) <= 6
    assert max(map(len, groups(fuse(selected, params=[chosen, x])))) <= 12
    added: Expr = x
    for _ in range(60):  # of a sum the operand is computed once
        added = add(added, added)
    assert len(groups(fuse(added, params=[x]))) == 1

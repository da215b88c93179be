"""PackWeights, products of two computed operands: which are packed, and how often."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend import Target
from relayc.relay import Call, Function, analysis, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import FoldConstant, PackWeights

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")

PRODUCTS = {
    "plain": ((2, 9, 5), (2, 5, 7), False, False),
    "right transposed": ((2, 9, 5), (2, 7, 5), False, True),
    "left transposed": ((2, 5, 9), (2, 5, 7), True, False),
    "both transposed": ((5, 9), (7, 5), True, True),
    "left broadcast": ((1, 9, 5), (3, 5, 7), False, False),
    "right broadcast between": ((2, 3, 9, 5), (3, 5, 7), False, False),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_operands_are_read_in_place(transformed, operators, case: str):
    left, right, transpose_a, transpose_b = PRODUCTS[case]
    a, b = var("a", left), var("b", right)
    product = nn.batch_matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    after = transformed(Function((a, b), product), PackWeights(HASWELL))
    assert operators(after) == {"nn.pack_panels": 1, "nn.batch_matmul_packed": 1}


@pytest.mark.parametrize("explicit", [True, False], ids=["explicit", "by attribute"])
@pytest.mark.parametrize(("side", "transposed"), [(64, 0), (512, 1)])
def test_left_operands_beyond_the_caches_are_transposed_first(
    transformed, operators, side: int, transposed: int, explicit: bool
):
    a, b = var("a", (2, side, side + 8)), var("b", (2, side, 32))
    left = op.transpose(a, axes=(0, 2, 1)) if explicit else a
    before = Function((a, b), nn.batch_matmul(left, b, transpose_a=not explicit, transpose_b=False))
    after = operators(transformed(before, PackWeights(HASWELL)))
    assert after.pop("transpose", 0) == transposed
    assert after == {"nn.pack_panels": 1, "nn.batch_matmul_packed": 1}


def test_left_operands_transposed_twice_are_read_as_they_were(transformed, operators):
    a, b = var("a", (512, 600)), var("b", (600, 32))
    left = op.transpose(a, axes=(1, 0))
    before = Function((a, b), nn.batch_matmul(left, b, transpose_a=True, transpose_b=False))
    assert operators(transformed(before, PackWeights(HASWELL))) == {"nn.pack_panels": 1, "nn.batch_matmul_packed": 1}


@pytest.mark.parametrize(
    ("columns", "steps", "packed"), [(64, 512, False), (7, 512, True), (64, 4096, True), (64, 8, True)]
)
def test_eight_rows_read_a_transposed_matrix_in_place_if_cached(
    transformed, operators, columns: int, steps: int, packed: bool
):
    a, b = var("a", (8, steps)), var("b", (columns, steps))
    after = transformed(Function((a, b), nn.batch_matmul(a, b)), PackWeights(HASWELL))
    assert ("nn.pack_panels" in operators(after)) == packed


def test_a_matrix_of_a_panel_s_columns_is_a_panel(transformed, operators):
    a, b = var("a", (96, 40)), var("b", (40, 16))
    after = transformed(Function((a, b), nn.batch_matmul(a, b, transpose_b=False)), PackWeights(HASWELL))
    assert operators(after) == {"reshape": 1, "nn.batch_matmul_packed": 1}


@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("constant", [False, True])
def test_products_of_eight_bytes_are_packed(transformed, operators, constant: bool, dtype: str):
    a, b = var("a", (24, 40), dtype), var("b", (40, 72), dtype)
    weight = const(np.random.default_rng(0).normal(0, 9, (40, 72)).astype(dtype)) if constant else b
    params = (a,) if constant else (a, b)
    before = Function(params, nn.batch_matmul(a, weight, transpose_b=False))
    found = operators(transformed(before, PackWeights(HASWELL)))
    assert found == ({"nn.dense_packed": 1} if constant else {"nn.pack_panels": 1, "nn.batch_matmul_packed": 1})


@pytest.mark.parametrize("right", [(5, 7), (1, 1, 5, 7)])
def test_a_common_right_operand_makes_one_product(transformed, right: tuple[int, ...]):
    a, b = var("a", (2, 3, 9, 5)), var("b", right)
    after = transformed(Function((a, b), nn.batch_matmul(a, b, transpose_b=False)), PackWeights(HASWELL))
    calls = [e for e in analysis.evaluation_order(after) if isinstance(e, Call)]
    (product,) = [c for c in calls if c.operator.name == "nn.batch_matmul_packed"]
    assert product.args[0].shape == (54, 5)


def test_constants_of_many_products_are_packed_when_compiling(transformed, operators):
    b = const(np.random.default_rng(0).standard_normal((3, 5, 7)).astype("float32"))
    x = var("a", (2, 3, 9, 5))
    before = Function((x,), nn.batch_matmul(x, b, transpose_b=False))
    assert operators(transformed(before, PackWeights(HASWELL), FoldConstant())) == {"nn.batch_matmul_packed": 1}


@pytest.mark.parametrize(("rows", "transposed"), [(1, False), (1, True), (4, False), (4, True)])
def test_few_rows_are_not_worth_packing_for(transformed, rows: int, transposed: bool):
    a, b = var("a", (2, rows, 16)), var("b", (2, 16, 16))
    before = Function((a, b), nn.batch_matmul(a, b, transpose_b=transposed))
    assert transformed(before, PackWeights(HASWELL)) is before

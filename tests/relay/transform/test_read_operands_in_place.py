"""ReadOperandsInPlace: products of computed matrices without transposed operands."""

from __future__ import annotations

import numpy as np
import pytest

from relayc.backend import Target
from relayc.relay import Function, const, op, var
from relayc.relay.op import nn
from relayc.relay.transform import ReadOperandsInPlace, default_pipeline

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")


@pytest.mark.parametrize("lead", [(), (9,), (2, 9), (2, 3, 1)])
def test_weights_that_are_transposed_are_read_as_they_were(transformed, operators, lead: tuple[int, ...]):
    a, b = var("a", (*lead, 5)), var("b", (5, 7))
    found = operators(transformed(Function((a, b), nn.dense(a, op.transpose(b, axes=(1, 0)))), ReadOperandsInPlace()))
    assert found["nn.batch_matmul"] == 1
    assert "transpose" not in found and "nn.dense" not in found


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_a_matrix_by_a_column_is_a_row_by_it(transformed, operators, lead: tuple[int, ...], is_transposed: bool):
    a, x = var("a", (*lead, 5, 9) if is_transposed else (*lead, 9, 5)), var("x", (*lead, 5, 1))
    left = op.transpose(a, axes=(*range(len(lead)), len(lead) + 1, len(lead))) if is_transposed else a
    after = transformed(Function((a, x), nn.matmul(left, x)), ReadOperandsInPlace())
    assert "transpose" not in operators(after)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_matrix_by_a_constant_column_is_a_row_by_it(transformed, operators, is_transposed: bool):
    a, x = var("a", (5, 9) if is_transposed else (9, 5)), const(np.ones((1, 5), np.float32))
    data = op.transpose(a, axes=(1, 0)) if is_transposed else a
    found = operators(transformed(Function((a,), nn.dense(data, x)), ReadOperandsInPlace()))
    assert found["nn.batch_matmul"] == 1
    assert "transpose" not in found and "nn.dense" not in found


def test_the_whole_pipeline_reads_a_transposed_operand_of_constant_weights_as_it_lies(transformed, operators):
    a, weight = var("a", (40, 24)), const(np.random.default_rng(0).standard_normal((72, 40)).astype("float32"))
    before = Function((a,), nn.relu(nn.dense(op.transpose(a, axes=(1, 0)), weight)))
    found = operators(transformed(before, *default_pipeline(3, HASWELL)))
    assert found == {"nn.batch_matmul_packed": 1, "nn.relu": 1}


def test_the_whole_pipeline_packs_computed_weights(transformed, operators):
    a, b = var("a", (24, 40)), var("b", (40, 72))
    before = Function((a, b), nn.relu(nn.dense(a, op.transpose(b, axes=(1, 0)))))
    found = operators(transformed(before, *default_pipeline(3, HASWELL)))
    assert found == {"nn.pack_panels": 1, "nn.batch_matmul_packed": 1, "nn.relu": 1}

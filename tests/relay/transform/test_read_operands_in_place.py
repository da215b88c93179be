"""ReadOperandsInPlace: products of computed matrices without transpositions in front."""

from __future__ import annotations

import pytest

from backend import Target
from relay import Function, op, var
from relay.op import nn
from relay.transform import ReadOperandsInPlace, default_pipeline

HASWELL = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell")


@pytest.mark.parametrize("lead", [(), (9,), (2, 9), (2, 3, 1)])
def test_weights_that_are_transposed_are_read_as_they_were(transformed, operators, lead: tuple[int, ...]):
    a, b = var("a", (*lead, 5)), var("b", (5, 7))
    found = operators(transformed(Function((a, b), nn.dense(a, op.transpose(b, axes=(1, 0)))), ReadOperandsInPlace()))
    assert found["nn.batch_matmul"] == 1
    assert "transpose" not in found and "nn.dense" not in found


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_a_matrix_by_a_column_is_a_row_by_it(transformed, operators, lead: tuple[int, ...], turned: bool):
    a, x = var("a", (*lead, 5, 9) if turned else (*lead, 9, 5)), var("x", (*lead, 5, 1))
    left = op.transpose(a, axes=(*range(len(lead)), len(lead) + 1, len(lead))) if turned else a
    after = transformed(Function((a, x), nn.matmul(left, x)), ReadOperandsInPlace())
    assert "transpose" not in operators(after)


def test_the_whole_pipeline_packs_computed_weights(transformed, operators):
    a, b = var("a", (24, 40)), var("b", (40, 72))
    before = Function((a, b), nn.relu(nn.dense(a, op.transpose(b, axes=(1, 0)))))
    found = operators(transformed(before, *default_pipeline(3, HASWELL)))
    assert found == {"nn.pack_panels": 1, "nn.batch_matmul_packed": 1, "nn.relu": 1}

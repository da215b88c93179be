"""Where a group of injective operations reads across memory, and what tiling makes of it."""

from __future__ import annotations

import te
import topi
from topi.cpu.transpose import strided_axis


def placeholder(*shape: int) -> te.Tensor:
    return te.placeholder(shape, "float32", "x")


def test_a_transposition_reads_across_memory() -> None:
    x = placeholder(1, 28, 30, 64)
    assert strided_axis(topi.transpose(x, (0, 3, 1, 2))) == 1
    assert strided_axis(topi.transpose(x, (0, 2, 1, 3))) is None


def test_elementwise_operations_are_looked_through() -> None:
    x = placeholder(32, 64)
    assert strided_axis(topi.nn.relu(topi.transpose(topi.nn.relu(x), (1, 0)))) == 0
    assert strided_axis(topi.nn.relu(x)) is None


def test_mixed_directions_and_views_are_left_alone() -> None:
    x, y = placeholder(64, 64), placeholder(64, 64)
    assert strided_axis(topi.add(topi.transpose(x, (1, 0)), y)) is None
    assert strided_axis(topi.transpose(topi.reshape(x, (32, 128)), (1, 0))) is None


def test_small_inputs_do_not_count() -> None:
    bias, x = placeholder(64, 1), placeholder(64, 32)
    assert strided_axis(topi.add(topi.transpose(x, (1, 0)), topi.transpose(bias, (1, 0)))) == 0

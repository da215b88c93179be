"""Where a group of injective operations reads across memory, and what tiling makes of it."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import backend
import te
import topi
from backend.target import Target
from te.dtype import dtype
from te.tir import Var
from topi.cpu.register_transpose import turned
from topi.cpu.transpose import strided_axis
from topi.registry import schedule_for


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


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_shuffles_turn_a_square(lanes: int) -> None:
    rows = [Var("row", dtype(f"float32x{lanes}")) for _ in range(lanes)]
    values = {id(row): np.arange(lanes) + lanes * i for i, row in enumerate(rows)}
    definitions, columns = turned(rows)
    for variable, shuffle in definitions:
        both = np.concatenate([values[id(v)] for v in shuffle.vectors])
        values[id(variable)] = both[list(shuffle.indices)]
    assert np.array_equal([values[id(c)] for c in columns], np.arange(lanes * lanes).reshape(lanes, lanes).T)
    assert len(definitions) == lanes * (lanes.bit_length() - 1)


CASES = [
    ((40, 33), (1, 0)), ((8, 8), (1, 0)), ((7, 30), (1, 0)), ((2, 16, 9, 11), (0, 2, 3, 1)),
    ((1, 24, 8, 8), (0, 2, 3, 1)), ((2, 9, 70, 24), (0, 3, 1, 2)), ((3, 20, 4, 12), (0, 2, 1, 3)),
    ((9, 10, 11), (2, 1, 0)), ((3, 5, 64), (2, 0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["float32", "int32", "float64", "int8"])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v2"] if platform.machine() == "x86_64" else ["llvm"])
def test_transpositions(shape, axes, kind, target) -> None:
    a = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    x = te.placeholder(shape, kind, "x")
    zeros, ones, last = [0] * len(shape), [1] * len(shape), (*shape[:-1], shape[-1] - 1)
    moved = topi.transpose(topi.strided_slice(x, [*zeros[:-1], 1], ones, last), axes)
    out = topi.add(moved, te.compute((1,), lambda i: te.const(1, kind), tag="elemwise"))
    expected = np.transpose(a[..., 1:], axes) + np.array(1, kind)
    module = te.lower(schedule_for([out], Target(target)), [x, out])
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=Target(target))(backend.nd.array(a), result)
    assert np.array_equal(result.numpy(), expected)


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_borders_around_transpositions(kind) -> None:
    a = np.arange(2 * 32 * 9 * 10).reshape(2, 32, 9, 10).astype(kind)
    x = te.placeholder(a.shape, kind, "x")
    out = topi.nn.pad(topi.transpose(x, (0, 2, 3, 1)), (0, 1, 1, 0), (0, 1, 2, 0), 7)
    module = te.lower(schedule_for([out], Target("llvm")), [x, out])
    result = backend.nd.empty(out.shape, kind)
    backend.build(module, target=Target("llvm"))(backend.nd.array(a), result)
    expected = np.pad(a.transpose(0, 2, 3, 1), ((0, 0), (1, 1), (1, 2), (0, 0)), constant_values=7)
    assert np.array_equal(result.numpy(), expected)

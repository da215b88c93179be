"""ChainPools: large windows consist of smaller ones, which pools of the same image share."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.expr import Call, Function, Var
from relayc.relay.interpreter import evaluate
from relayc.relay.transform import ChainPools, EliminateCommonSubexpr, PassContext
from relayc.te.ir import post_order

nn = relay.nn


def pools(function: Function) -> list[tuple[int, ...]]:
    return [e.op.pool_size for e in post_order((function.body,)) if isinstance(e, Call) and "pool" in e.op.name]


def run(function: Function, x: np.ndarray) -> np.ndarray:
    return evaluate(function, [x])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "size, padding, parts",
    [
        ((9, 9), (4, 4, 4, 4), [(5, 5), (5, 5)]),
        ((13, 13), (6, 6, 6, 6), [(5, 5), (5, 5), (5, 5)]),
        ((10, 11), (5, 0, 1, 3), [(5, 5), (5, 5), (2, 3)]),
        ((9, 9), (0, 0, 0, 0), [(5, 5), (5, 5)]),
        ((27, 3), (13, 1, 13, 1), [(5, 3), *[(5, 1)] * 5, (3, 1)]),
    ],
)
def test_large_windows_are_chains(size, padding, parts, layout) -> None:
    shape = (2, 3, 15, 14) if layout == "NCHW" else (2, 15, 14, 3)
    x = Var("x", relay.TensorType(shape, "float32"))
    before = Function((x,), nn.max_pool2d(x, size, (1, 1), padding=padding, layout=layout, ceil_mode=True))
    after = ChainPools().transform(before, PassContext())
    assert pools(after) == parts
    a = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    a.ravel()[[5, 200, 700]] = np.nan, -np.inf, np.inf
    np.testing.assert_array_equal(run(after, a), run(before, a))


@pytest.mark.parametrize(
    "size, stride, padding, shape",
    [
        ((7, 7), 1, (3, 3, 3, 3), (1, 3, 20, 20)),
        ((9, 9), 2, (4, 4, 4, 4), (1, 3, 20, 20)),
        ((9, 9), 1, (8, 8, 8, 8), (1, 3, 20, 20)),  # windows of padding only
        ((9, 9), 1, (0, 0, 4, 4), (1, 3, 6, 6)),  # smaller ones would not fit
    ],
)
def test_others_stay(size, stride, padding, shape) -> None:
    x = Var("x", relay.TensorType(shape, "float32"))
    before = Function((x,), nn.max_pool2d(x, size, (stride, stride), padding=padding))
    kept = pools(ChainPools().transform(before, PassContext()))
    assert kept == [size] or shape[2] == 6


def test_windows_with_unlike_borders_are_right() -> None:
    for padding in ((0, 0, 4, 4), (4, 0, 0, 3), (2, 3, 4, 1)):
        for side in range(5, 12):
            if side + min(padding[0] + padding[2], padding[1] + padding[3]) < 9:
                continue
            x = Var("x", relay.TensorType((1, 1, side, side), "float32"))
            before = Function((x,), nn.max_pool2d(x, (9, 9), (1, 1), padding=padding))
            a = np.random.default_rng(side).standard_normal((1, 1, side, side)).astype(np.float32)
            np.testing.assert_array_equal(run(ChainPools().transform(before, PassContext()), a), run(before, a))


def test_a_spatial_pyramid_takes_three_pools() -> None:
    x = Var("x", relay.TensorType((1, 13, 13, 8), "float32"))
    each = [nn.max_pool2d(x, (k, k), (1, 1), padding=(k // 2,) * 4, layout="NHWC") for k in (5, 9, 13)]
    before = Function((x,), relay.concatenate((x, *each), axis=3))
    after = EliminateCommonSubexpr().transform(ChainPools().transform(before, PassContext()), PassContext())
    assert pools(after) == [(5, 5)] * 3

"""Reductions have as few dimensions as possible, and equal results."""

from __future__ import annotations

import numpy as np
import pytest

from relayc import relay
from relayc.relay.expr import Expr, Function, Var
from relayc.relay.lowering.collapse_reductions import CollapseReductions
from relayc.te.ir import PassContext
from relayc.te.tir import SizeVar
from tests.relay.lowering.collapsed import collapsed


def _var(name: str, *shape: int) -> Var:
    return Var(name, relay.TensorType(shape, "float32"))


def _same(function: Function, shapes: list[tuple[int, ...]]) -> None:
    assert collapsed(CollapseReductions(), function, rtol=1e-5, atol=1e-6)[1] == shapes


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "mean", "variance", "log_sum_exp", "argmax", "argmin"])
@pytest.mark.parametrize(
    ("shape", "axes", "merged"),
    [
        ((2, 5, 3, 4), (1,), (2, 5, 12)),
        ((2, 5, 3, 4), (2, 3), (10, 12)),
        ((2, 5, 3, 4), (0, 2, 3), (2, 5, 12)),
        ((2, 5, 1, 1), (1,), (2, 5)),
        ((2, 5, 1, 1), (0, 2, 3), (2, 5)),
        ((2, 1, 5, 4), (0, 2), (10, 4)),
        ((2, 3, 4, 5, 6), (0, 3, 4), (2, 12, 30)),
    ],
    ids=str,
)
def test_adjacent_dimensions_collapse(name, shape, axes, merged, keepdims) -> None:
    x = _var("x", *shape)
    _same(Function((x,), getattr(relay, name)(x, axis=axes, keepdims=keepdims)), [merged])


def test_elementwise_operators_follow() -> None:
    x, y, bias = _var("x", 2, 5, 3, 4), _var("y", 2, 5, 3, 4), _var("b", 2, 3, 4)
    half = relay.const(np.full((1, 1, 1, 1), 0.5, np.float32))
    summed = relay.sum(relay.multiply(relay.add(x, y), half), axis=1)
    _same(Function((x, y, bias), relay.exp(relay.add(summed, bias))), [(2, 5, 12), (2, 5, 12), (2, 12)])


def test_other_kernels_stay() -> None:
    x, scale, line = _var("x", 2, 5, 3, 4), _var("s", 5, 1, 1), _var("l", 2, 5, 1)
    sized = Var("n", relay.TensorType((SizeVar("n"), 3, 5), "float32"))
    others: list[tuple[tuple[Var, ...], Expr]] = [
        ((x,), relay.sum(x)),  # of everything
        ((x,), relay.max(x, axis=(1, 3))),
        ((line,), relay.argmax(line, axis=2)),  # of one element
        ((line,), relay.argmax(line, axis=(0, 1))),
        ((x, scale), relay.sum(relay.multiply(x, scale), axis=(2, 3))),
        ((x,), relay.subtract(x, relay.max(x, axis=1, keepdims=True))),
        ((sized,), relay.sum(sized, axis=(1, 2))),
        ((x,), relay.sum(relay.sum(x, axis=1), axis=1)),
    ]
    for params, body in others:
        function = Function(params, body)
        assert CollapseReductions().transform(function, PassContext.current()) is function, str(body)

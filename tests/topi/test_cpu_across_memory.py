"""Softmax and norms along dimensions that are not the last: rows across memory, in strips."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import relay
import te
import topi
from backend.runtime import device, graph_executor
from backend.target import Target
from relay.expr import Expr, Var
from relay.interpreter import evaluate
from te.ir import collect
from te.tir import Allocate, BufferStore, Call, For, IfThenElse, PrimFunc, SizeVar, as_int
from topi.registry import schedules_for

CPU = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def _lowered(shape: tuple[int, ...], axis: int) -> PrimFunc:
    x = te.placeholder(shape, name="x")
    y = topi.nn.softmax(x, axis)
    return te.lower(next(iter(schedules_for([y], CPU))), [x, y])["main"]


def _check(function: Callable[[Var], Expr], *shape: int, dtype: str = "float32", tolerance: float = 2e-6) -> None:
    x = Var("x", relay.TensorType(shape, dtype))
    program = relay.Function((x,), function(x))
    data = (np.random.default_rng(0).standard_normal(shape) * 5).astype(dtype)
    module = graph_executor.GraphModule(relay.build(program, "llvm")["default"](device("cpu", 0)), 2)
    module.set_input("x", data)
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), evaluate(program, [data]), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((64, 1000), 0),  # columns that strips do not divide
        ((2, 21, 37, 41), 1),  # planes of an odd size, an odd number of rows
        ((3, 24, 16, 16), 1),
        ((7, 33), 0),  # two strips and a rest
        ((40, 15), 0),  # less than a strip
        ((5, 600, 3, 40), 1),  # more rows than the first-level cache has lines
        ((2, 3, 18, 5, 50), 2),
        ((2, 13, 64, 64), 1),  # rows of which elements are whole pages apart
    ],
)
@pytest.mark.parametrize("operator", [relay.nn.softmax, relay.nn.log_softmax, relay.nn.l2_normalize])
def test_rows_across_memory_are_right(operator: Callable[..., Expr], shape: tuple[int, ...], axis: int) -> None:
    _check(lambda x: operator(x, axis=axis), *shape, tolerance=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-12)])
def test_strips_of_other_types_are_right(dtype: str, tolerance: float) -> None:
    _check(lambda x: relay.nn.softmax(x, axis=1), 2, 20, 17, 19, dtype=dtype, tolerance=tolerance)


def test_what_is_computed_around_a_softmax_of_planes_is_right() -> None:
    scale = relay.const(np.linspace(0.5, 1.5, 19, dtype=np.float32))
    bias = relay.const(np.linspace(-1, 1, 20, dtype=np.float32).reshape(20, 1, 1))

    def around(x: Var) -> Expr:
        return relay.multiply(relay.nn.softmax(relay.tanh(relay.add(x, bias)), axis=1), scale)

    _check(around, 2, 20, 17, 19)


def test_a_strip_is_stored_while_the_next_one_is_read() -> None:
    func = _lowered((2, 64, 40, 40), 1)
    (either,) = collect(func.body, IfThenElse)
    beside, alone = either.then_case, either.else_case
    assert isinstance(beside, For) and isinstance(alone, For)
    stored = [store.buffer.name for store in collect(beside, BufferStore)]
    assert {"softmax", "softmax_max.rf"} <= set(stored)
    assert "softmax" not in [store.buffer.name for store in collect(alone, BufferStore)]


def test_planes_have_no_ends_of_lines() -> None:
    """Strips go across lines of the image: each is a whole vector, at places without divisions but in prefetches."""
    func = _lowered((4, 150, 120, 120), 1)
    touched = [call for call in collect(func.body, Call) if call.op == "prefetch"]
    assert len(touched) == 2
    assert [as_int(call.args[2]) for call in touched] == [1, 0] or [as_int(c.args[2]) for c in touched] == [0, 1]
    stores = [s for s in collect(func.body, BufferStore) if s.buffer.name == "softmax"]
    assert stores and all(s.value.dtype.lanes == 16 for s in stores)


def test_planes_of_sizes_known_at_run_time_are_right() -> None:
    shape = (2, 5, *[SizeVar(name) for name in ("height", "width")])
    x = Var("x", relay.TensorType(shape, "float32"))
    program = relay.Function((x,), relay.nn.softmax(x, axis=1))
    built = relay.build(program, "llvm")
    for height, width in ((3, 4), (17, 40)):
        data = np.random.default_rng(0).standard_normal((2, 5, height, width), dtype=np.float32)
        module = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2)
        module.set_input("x", data)
        module.run()
        wanted = np.exp(data) / np.exp(data).sum(1, keepdims=True)
        np.testing.assert_allclose(module.get_output(0).numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 20, 17, 19), (64, 1000)])
def test_functions_in_front_of_strips_are_computed_once(shape: tuple[int, ...]) -> None:
    x = te.placeholder(shape, name="x")
    y = topi.nn.softmax(topi.tanh(x), len(shape) // 3)
    func = te.lower(next(iter(schedules_for([y], CPU))), [x, y])["main"]
    rows = shape[len(shape) // 3]
    assert len([a for a in collect(func.body, Allocate) if a.buffer.shape == (rows * 16,)]) == 2
    for operator in (relay.nn.softmax, relay.nn.log_softmax, relay.nn.l2_normalize):
        _check(lambda x, f=operator: f(relay.tanh(x), axis=len(shape) // 3), *shape, tolerance=2e-5)

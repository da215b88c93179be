"""Softmax and norms of short rows, transposed in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.expr import Expr, Var
from relayc.relay.interpreter import evaluate
from relayc.te.arith import Analyzer
from relayc.te.ir import collect
from relayc.te.tir import BufferLoad, BufferStore, Call, For, ForKind, PrimFunc, Shuffle, as_int, const
from relayc.te.tir.substitute import substitute
from relayc.topi.registry import schedules_for

nn = relay.nn
TARGETS = ["llvm", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2"]


def _vector(length: int, dtype: str = "float32") -> Expr:
    return relay.const(np.linspace(0.5, 1.5, length).astype(dtype))


def _layer_norm(x: Expr) -> Expr:
    length, dtype = x.ty.shape[-1], str(x.ty.dtype)  # type: ignore[union-attr]
    return nn.layer_norm(x, _vector(length, dtype), _vector(length, dtype))


def _rms_norm(x: Expr) -> Expr:
    return nn.rms_norm(x, _vector(x.ty.shape[-1], str(x.ty.dtype)))  # type: ignore[union-attr]


def _plain_norm(x: te.Tensor) -> te.Tensor:
    one = te.compute(x.shape[-1:], lambda i: te.const(1.0, x.dtype), name="one")
    return topi.nn.layer_norm(x, one, one, 1, 1e-5)


def _check(
    function: Callable[..., Expr], *shapes: tuple[int, ...], dtype: str = "float32", target: str = "llvm"
) -> None:
    random, tolerance = np.random.default_rng(0), {"float16": 4e-3, "float64": 1e-12}.get(dtype, 5e-6)
    data = [(random.standard_normal(shape) * 3).astype(dtype) for shape in shapes]
    inputs = tuple([Var(f"x{n}", relay.TensorType(shape, dtype)) for n, shape in enumerate(shapes)])
    program = relay.Function(inputs, function(*inputs))
    module = graph_executor.GraphModule(relay.build(program, target)["default"](device("cpu", 0)), 2)
    for variable, array in zip(inputs, data, strict=True):
        module.set_input(variable.name, array)
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), evaluate(program, data), rtol=tolerance, atol=tolerance)


def _lowered(operator: Callable[..., Any], shape: tuple[int, ...], target: str) -> PrimFunc:
    x = te.placeholder(shape, name="x")
    y = operator(x)
    return te.lower(next(iter(schedules_for([y], Target(target)))), [x, y])["main"]


@pytest.mark.parametrize("shape", [(64, 10), (33, 4), (100, 7), (2, 3, 49, 13), (16, 24), (131, 30), (43, 47)])
@pytest.mark.parametrize("operator", [nn.softmax, nn.log_softmax, _layer_norm, _rms_norm])
@pytest.mark.parametrize("target", TARGETS)
def test_short_rows_are_right(operator: Callable[..., Expr], shape: tuple[int, ...], target: str) -> None:
    _check(operator, shape, target=target)


@pytest.mark.parametrize("operator", [nn.softmax, _layer_norm])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_short_rows_of_other_types_are_right(operator: Callable[..., Expr], dtype: str) -> None:
    for length in (10, 24, 49):
        _check(operator, (128, length), dtype=dtype)
    _check(operator, (131, 17), dtype=dtype, target="llvm -mcpu=x86-64-v2")  # fewer rows at once than a block has


def test_rows_beyond_the_caches_are_stored_by_whole_lines() -> None:
    _check(nn.softmax, (4096, 10), target="llvm -mtune=x86-64 -l2-bytes=65536 -l3-bytes=65536")
    _check(_layer_norm, (4100, 11), target="llvm -mtune=x86-64 -l2-bytes=65536 -l3-bytes=65536")


def test_fused_operators_around_short_rows_are_right() -> None:
    _check(lambda x, r: _layer_norm(relay.add(x, r)), (6, 32, 20), (6, 32, 20))
    _check(lambda x, r: relay.add(nn.softmax(x), r), (6, 32, 20), (6, 32, 20))
    _check(lambda x: nn.relu(nn.softmax(relay.tanh(x))), (6, 32, 20))
    _check(lambda x, b: nn.softmax(relay.add(x, b)), (64, 12), (12,))  # a vector that all rows share
    _check(lambda x, b: relay.multiply(nn.softmax(x), b), (64, 12), (12,))
    _check(lambda x, m: nn.softmax(relay.add(x, m)), (4, 32, 12), (32, 12))  # a mask of which rows have their own
    _check(lambda x, m: nn.softmax(relay.add(x, m)), (4, 32, 12), (4, 32, 1))


@pytest.mark.parametrize("target", TARGETS)
def test_short_rows_are_transposed_in_registers(target: str) -> None:
    """Inputs and results are transposed; long rows, rows of whole vectors and few rows are not."""
    for length in (10, 41, 47):  # whatever the vectors are
        assert len(collect(_lowered(_plain_norm, (256, length), target).body, Shuffle)) > 8
    for shape in ((256, 1000), (256, 64), (3, 10)):
        assert not collect(_lowered(_plain_norm, shape, target).body, Shuffle)


@pytest.mark.parametrize("length", [5, 7, 8, 10, 13, 16, 21, 24, 31])
def test_results_are_packed_into_contiguous_rows(length: int) -> None:
    """Targets with a two-source permute store whole vectors of results from registers."""
    _check(_layer_norm, (3, 100, length))
    function = _lowered(_plain_norm, (128, length), "llvm -mcpu=x86-64-v4")
    stores = [node for node in collect(function.body, BufferStore) if node.buffer.data in function.params]
    assert [node.value.dtype.lanes for node in stores] == [16] * length


def test_every_cache_line_of_later_rows_is_prefetched() -> None:
    """Rows of 10 are transposed by blocks of 4 columns, of which the last one is shifted."""
    x = te.placeholder((1 << 20, 10), name="x")
    y = topi.max(x, -1)
    body = te.lower(next(iter(schedules_for([y], Target("llvm")))), [x, y])["main"].body
    (loop,) = [node for node in collect(body, For) if node.kind is ForKind.PARALLEL]
    addresses = [call.args[0] for call in collect(loop, Call) if call.op == "address_of"]
    prefetched = [load.indices[0] for load in addresses if isinstance(load, BufferLoad)]

    def lines(group: int) -> set[int]:
        places = [as_int(Analyzer().simplify(substitute(index, {loop.loop_var: const(group)}))) for index in prefetched]
        return {place // 16 for place in places if place is not None}

    assert lines(0) | lines(1) >= set(range(min(lines(0)), min(lines(1))))


def test_short_rows_of_extreme_values_are_right() -> None:
    data = np.random.default_rng(0).standard_normal((64, 10), dtype=np.float32)
    data[3, 4], data[5] = np.nan, -np.inf
    data[7, :9], data[9] = -np.inf, 1e30
    x = Var("x", relay.TensorType(data.shape, "float32"))
    module = graph_executor.GraphModule(
        relay.build(relay.Function((x,), nn.softmax(x)), "llvm")["default"](device("cpu", 0)), 1
    )
    module.set_input("x", data)
    module.run()
    found = module.get_output(0).numpy()
    assert np.isnan(found[[3, 5]]).all()
    np.testing.assert_array_equal(found[7], [0] * 9 + [1])
    np.testing.assert_allclose(found[9], [0.1] * 10, rtol=1e-6)

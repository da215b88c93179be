"""Softmax and norms of rows: fused operators, long and short rows, extreme values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.expr import Expr, Var
from relayc.relay.interpreter import evaluate
from relayc.te.ir import collect
from relayc.te.tir import Allocate, Call, Compare, IfThenElse, PrimFunc, Stmt
from relayc.topi.registry import schedules_for
from tests.topi.small_caches import lowered, result, stored_by_lines

CPU = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
MASK = relay.const(np.tril(np.ones((40, 40), bool)))


def _lowered(front: Callable[[te.Tensor], te.Tensor], columns: int) -> PrimFunc:
    x = te.placeholder((64, columns), name="x")
    y = topi.nn.softmax(front(x), 1)
    return te.lower(next(iter(schedules_for([y], CPU))), [x, y])["main"]


def _masked(x: Var) -> Expr:
    return relay.where(MASK, x, relay.const(np.float32(-1e9)))


@pytest.mark.parametrize("operator", [relay.nn.softmax, relay.nn.log_softmax, relay.nn.l2_normalize])
@pytest.mark.parametrize("front", [_masked, relay.tanh, relay.nn.gelu])
def test_fused_operators_in_front_of_rows_are_right(
    operator: Callable[..., Expr], front: Callable[[Var], Expr]
) -> None:
    x = Var("x", relay.TensorType((3, 40, 40), "float32"))
    program = relay.Function((x,), operator(front(x), axis=-1))
    data = np.random.default_rng(0).standard_normal((3, 40, 40), dtype=np.float32)
    module = graph_executor.GraphModule(relay.build(program, "llvm")["default"](device("cpu", 0)), 2)
    module.set_input("x", data)
    module.run()
    np.testing.assert_allclose(module.get_output(0).numpy(), evaluate(program, [data]), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("columns", [200, 50_000])
def test_functions_in_front_of_a_softmax_are_computed_once(columns: int) -> None:
    """Except in the fallback of the speculation."""
    body = _lowered(topi.tanh, columns).body
    (again,) = collect(body, IfThenElse)
    assert len(_tanh_calls(body)) - len(_tanh_calls(again)) == 1


def _tanh_calls(stmt: Stmt) -> list[Call]:
    return [call for call in collect(stmt, Call) if call.op == "tanh"]


@pytest.mark.parametrize("change", [300.0, -300.0])
@pytest.mark.parametrize("columns", [200, 1000, 4001])
@pytest.mark.parametrize("operator", [topi.nn.softmax, topi.nn.log_softmax])
def test_rows_of_extreme_values_are_right(
    operator: Callable[[te.Tensor, int], te.Tensor], columns: int, change: float
) -> None:
    """Unshifted exponentials would overflow or underflow."""
    data = np.random.default_rng(0).standard_normal((24, columns), dtype=np.float32)
    data[5] += np.float32(change)
    x = te.placeholder(data.shape, name="x")
    y = operator(x, 1)
    expected = data.astype(np.float64) - data.max(1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(1, keepdims=True))
    if operator is topi.nn.softmax:
        expected = np.exp(expected)
    found = result(y, [x], [data], caches="-l1-bytes=8192 -l2-bytes=131072 -l3-bytes=262144")
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6 if operator is topi.nn.log_softmax else 0)


def test_an_addition_in_front_of_a_softmax_is_computed_in_each_pass() -> None:
    assert _rows_kept(_lowered(lambda x: topi.add(x, x), 200)) == 1


@pytest.mark.parametrize("columns", [4000, 4001, 4010])
@pytest.mark.parametrize("operator", [topi.nn.softmax, topi.nn.log_softmax])
def test_long_rows_have_nontemporal_stores(
    operator: Callable[[te.Tensor, int], te.Tensor], columns: int
) -> None:
    """Unaligned rows have non-temporal stores for their inner cache lines, at offsets that depend on the row."""
    caches = "-l1-bytes=8192 -l2-bytes=131072 -l3-bytes=262144"
    x = te.placeholder((24, columns), name="x")
    y = operator(x, 1)
    (func,) = lowered(y, [x], caches=caches).functions.values()
    assert stored_by_lines(func) == (columns % 16 != 0)
    data = np.random.default_rng(0).standard_normal((24, columns), dtype=np.float32)
    exponentials = np.exp(data - data.max(1, keepdims=True))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    if operator is topi.nn.log_softmax:
        expected = np.log(expected)
    np.testing.assert_allclose(result(y, [x], [data], caches=caches), expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("operator", [topi.nn.softmax, topi.nn.log_softmax])
@pytest.mark.parametrize("columns", [5, 37, 1000, 60_000])
def test_a_single_row_is_right(operator: Callable[[te.Tensor, int], te.Tensor], columns: int) -> None:
    data = np.random.default_rng(0).standard_normal(columns, dtype=np.float32)
    x = te.placeholder(data.shape, name="x")
    y = operator(x, 0)
    expected = data.astype(np.float64) - np.log(np.exp(data.astype(np.float64)).sum())
    if operator is topi.nn.softmax:
        expected = np.exp(expected)
    found = result(y, [x], [data], caches="-l1-bytes=8192 -l2-bytes=131072 -l3-bytes=131072")
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6 if operator is topi.nn.log_softmax else 0)


@pytest.mark.parametrize("columns", [1, 10, 49, 200, 4001])
def test_logarithms_near_0_keep_their_precision(columns: int) -> None:
    """Where one element dominates the sum, its distance from the logarithm of the sum is far less than either."""
    data = np.random.default_rng(0).uniform(40, 50, (32, columns)).astype(np.float32)
    data[:, 0] = 60.3
    x = te.placeholder(data.shape, name="x")
    y = topi.nn.log_softmax(x, 1)
    expected = data.astype(np.float64) - np.log(np.exp(data.astype(np.float64)).sum(1, keepdims=True))
    found = result(y, [x], [data], caches="-l1-bytes=8192 -l2-bytes=131072 -l3-bytes=262144")
    np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=0, atol=6e-7 if columns > 1 else 0)


def _rows_kept(func: PrimFunc) -> int:
    """Number of buffers that hold whole rows."""
    return len([a for a in collect(func.body, Allocate) if a.buffer.shape[0] >= 100])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_maxima_of_16_bit_rows_are_computed_in_float32(dtype: str) -> None:
    x = te.placeholder((64, 100), dtype, name="x")
    y = topi.nn.softmax(x, 1)
    func = te.lower(next(iter(schedules_for([y], CPU))), [x, y])["main"]
    compared = [e for e in collect(func.body, Compare) if e.a.dtype.is_float]
    assert compared and all(e.a.dtype.bits == 32 for e in compared)


@pytest.mark.parametrize(
    ("shape", "dtype", "groups"),
    [((64, 150), "float16", 16), ((66, 150), "float16", 33), ((64, 160), "float32", 32), ((64, 200), "float32", 64),
     ((65, 160), "float32", 65), ((64, 200), "float16", 32)],
)  # fmt: skip
def test_short_rows_of_softmax_are_batched(shape: tuple[int, int], dtype: str, groups: int) -> None:
    """Batches of four or two rows, whose results take no more than a 24th of L1."""
    target = Target("llvm -mcpu=x86-64-v3 -mtune=znver3 -num-cores=2")
    x = te.placeholder(shape, dtype, name="x")
    y = topi.nn.softmax(x, 1)
    func = te.lower(next(iter(schedules_for([y], target))), [x, y])["main"]
    outermost = next(line for line in str(func).splitlines() if line.lstrip().startswith("for "))
    assert f"({groups}):" in outermost


@pytest.mark.parametrize(
    ("shape", "dtype", "groups"),
    [((64, 768), "bfloat16", 32), ((64, 256), "float16", 16), ((63, 768), "float16", 63), ((64, 4096), "float16", 64),
     ((64, 768), "float32", 64)],
)  # fmt: skip
def test_norms_of_16_bit_rows_are_batched(shape: tuple[int, int], dtype: str, groups: int) -> None:
    """Batches of two rows of up to three kilobytes; four of shorter ones."""
    x, weight = te.placeholder(shape, dtype, name="x"), te.placeholder(shape[1:], dtype, name="weight")
    y = topi.nn.layer_norm(x, weight, None, 1, 1e-5)
    target = Target("llvm -mtune=znver5 -num-cores=2 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432")
    assert f"({groups})" in str(te.lower(next(iter(schedules_for([y], target))), [x, weight, y])["main"])


@pytest.mark.parametrize("rows", [36, 38, 39])
@pytest.mark.parametrize("columns", [32, 77, 96, 128, 250, 700])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_batched_rows_are_right(dtype: str, columns: int, rows: int) -> None:
    random = np.random.default_rng(1)
    data = random.integers(0, 100, (rows, columns)) if dtype == "uint8" else random.standard_normal((rows, columns))
    weight = relay.const(random.standard_normal(columns, dtype=np.float32))
    x = Var("x", relay.TensorType((rows, columns), dtype))
    for norm in (relay.nn.softmax, lambda v: relay.nn.layer_norm(v, weight, weight)):
        wide = relay.multiply(norm(relay.cast(x, "float32")), relay.const(np.float32(30)))
        program = relay.Function((x,), relay.cast(relay.clip(relay.round(wide), 0, 100), dtype))
        module = graph_executor.GraphModule(relay.build(program, "llvm")["default"](device("cpu", 0)), 2)
        module.set_input("x", data.astype(dtype))
        module.run()
        got, wanted = module.get_output(0).numpy(), evaluate(program, [data.astype(dtype)])
        np.testing.assert_allclose(got.astype("float32"), wanted.astype("float32"), rtol=0, atol=1)


@pytest.mark.parametrize(("processor", "columns", "kept"), [
    ("x86-64-v4", 3000, 0), ("x86-64-v3", 3000, 1), ("x86-64-v3", 20_000, 0), ("x86-64-v4", 1000, 1),
])  # fmt: skip
def test_exponentials_of_long_rows_are_recomputed(processor: str, columns: int, kept: int) -> None:
    """Rows that exceed L1 where a vector is a cache line, else those that exceed a quarter of L2."""
    x = te.placeholder((64, columns), name="x")
    target, caches = f"llvm -mcpu={processor}", "-l1-bytes=8192 -l2-bytes=131072"
    (func,) = lowered(topi.nn.softmax(x, 1), [x], target, caches=caches).functions.values()
    assert _rows_kept(func) == kept


@pytest.mark.parametrize("operator", [topi.nn.softmax, topi.nn.log_softmax])
@pytest.mark.parametrize("columns", [4000, 4999, 20_000])
def test_long_rows_with_infinities_and_nan(operator: Callable[[te.Tensor, int], te.Tensor], columns: int) -> None:
    data = np.random.default_rng(1).standard_normal((2, 20, columns), dtype=np.float32)
    data[0, 0], data[0, 1, : columns // 2], data[0, 2, 7] = -np.inf, -np.inf, np.inf
    data[0, 3, 5], data[0, 4, -1] = np.nan, 1e30
    x = te.placeholder(data.shape, "float32", name="x")
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = data - data.max(2, keepdims=True)
        total = np.exp(distance).sum(2, keepdims=True)
        expected = np.exp(distance) / total if operator is topi.nn.softmax else distance - np.log(total)
    found = result(operator(x, 2), [x], [data], caches="-num-cores=2 -l1-bytes=8192 -l2-bytes=131072")
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 if operator is topi.nn.log_softmax else 1e-7)

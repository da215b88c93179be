"""Softmax of short rows: flattened adjacent rows, with unshifted exponentials where the speculation holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relayc import relay, te, topi
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.expr import Expr, Var
from relayc.te.ir import collect
from relayc.te.ir.decisions import recording
from relayc.te.tir import BufferStore, IfThenElse, PrimFunc
from relayc.topi.registry import schedules_for

nn = relay.nn
TARGETS = ["llvm", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64-v2"]
LENGTHS = [1, 4, 7, 10, 16, 17, 31, 32, 49, 60, 64, 77, 100, 128]


def _lowered(length: int, target: str, rows: int = 256) -> PrimFunc:
    x = te.placeholder((rows, length), name="x")
    y = topi.nn.softmax(x, 1)
    return te.lower(next(iter(schedules_for([y], Target(target)))), [x, y])["main"]


@pytest.mark.parametrize(("processor", "length", "choice"), [
    ("x86-64-v4", 11, "transposed rows"), ("x86-64-v4", 12, "flattened rows"),
    ("haswell", 15, "transposed rows"), ("haswell", 17, "flattened rows"),
])  # fmt: skip
def test_short_rows_of_logarithms_are_transposed(processor: str, length: int, choice: str) -> None:
    x = te.placeholder((256, length), name="x")
    with recording() as decisions:
        list(schedules_for([topi.nn.log_softmax(x, 1)], Target(f"llvm -mcpu={processor}")))
    assert choice in [decision.choice for decision in decisions]


def _run(function: Callable[[Expr], Expr], data: np.ndarray, target: str = "llvm") -> np.ndarray:
    x = Var("x", relay.TensorType(data.shape, str(data.dtype)))
    module = graph_executor.GraphModule(
        relay.build(relay.Function((x,), function(x)), target)["default"](device("cpu", 0)), 2
    )
    module.set_input("x", data)
    module.run()
    return module.get_output(0).numpy()


def _softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(x - x.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)


def _data(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((rows, length), dtype=np.float32) * 3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_are_right(length: int, target: str) -> None:
    data = _data(53, length)
    np.testing.assert_allclose(_run(nn.softmax, data, target), _softmax(data), rtol=3e-6)
    logarithms = _run(nn.log_softmax, data, target)
    np.testing.assert_allclose(logarithms, np.log(_softmax(data)), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("operator", [nn.softmax, nn.log_softmax])
@pytest.mark.parametrize("length", [5, 49, 64])
@pytest.mark.parametrize("change", [300.0, -300.0, 63.0, -20.0, 3e38, -3e38])
def test_rows_of_extreme_values_are_right(operator: Callable[[Expr], Expr], length: int, change: float) -> None:
    """Inputs whose unshifted exponentials overflow, underflow or lose precision."""
    data = _data(64, length)
    data[17] += np.float32(change)
    data[40, 1:] = -np.inf
    data[41, ::2] = -3e38
    expected = _softmax(data)
    if operator is nn.log_softmax:
        with np.errstate(divide="ignore"):
            expected = np.where(expected > 0, np.log(expected), data.astype(np.float64) - data.max(-1, keepdims=True))
    np.testing.assert_allclose(_run(operator, data), expected, rtol=4e-6, atol=1e-6)


def test_nan_and_infinity_stay_in_their_row() -> None:
    data = _data(64, 49)
    data[3, 7], data[5], data[9, 0] = np.nan, -np.inf, np.inf
    found = _run(nn.softmax, data)
    assert np.isnan(found[[3, 5, 9]]).all()
    others = [n for n in range(64) if n not in (3, 5, 9)]
    np.testing.assert_allclose(found[others], _softmax(data[others]), rtol=3e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("length", [10, 49, 64])
def test_other_types_are_right(dtype: str, length: int) -> None:
    data = _data(48, length).astype(dtype)
    tolerance = {"float16": 2e-3, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(_run(nn.softmax, data), _softmax(data), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_row_maxima_are_computed_only_in_the_fallback(target: str) -> None:
    body = _lowered(49, target).body
    (again,) = collect(body, IfThenElse)
    stores = [node for node in collect(body, BufferStore) if node.buffer.name.startswith("softmax_max")]
    assert stores and {*stores} == {n for n in collect(again, BufferStore) if n.buffer.name.startswith("softmax_max")}


@pytest.mark.parametrize("length", [10, 21, 49, 100])
def test_results_are_stored_as_whole_vectors(length: int) -> None:
    function = _lowered(length, "llvm -mcpu=x86-64-v4")
    stores = [node for node in collect(function.body, BufferStore) if node.buffer.data in function.params]
    assert [node.value.dtype.lanes for node in stores] == [16] * length


@pytest.mark.parametrize(("rows", "length", "apart"), [(4096, 49, 0), (4099, 49, 1), (4099, 32, 0)])
def test_only_the_last_rows_have_unaligned_stores(rows: int, length: int, apart: int) -> None:
    body = _lowered(length, "llvm -mcpu=x86-64-v4 -l2-bytes=65536 -l3-bytes=65536", rows).body
    retries = sum("doubted" in str(branch.condition) for branch in collect(body, IfThenElse))
    assert retries == 1 + apart


def test_rows_beyond_the_caches_are_right() -> None:
    target = "llvm -mtune=x86-64 -l2-bytes=65536 -l3-bytes=65536"
    for rows in (4096, 4099):
        data = _data(rows, 10)
        np.testing.assert_allclose(_run(nn.softmax, data, target), _softmax(data), rtol=3e-6)


@pytest.mark.parametrize(
    ("processor", "dtype", "length", "rows"),
    [("x86-64-v4", "float16", 49, 64), ("x86-64-v4", "float16", 64, 32), ("x86-64-v4", "float32", 49, 32),
     ("haswell", "float32", 49, 32), ("haswell", "float16", 50, 32), ("haswell", "float16", 49, 64)],
)  # fmt: skip
def test_rows_that_make_whole_cache_lines_are_batched_beyond_the_caches(
    processor: str, dtype: str, length: int, rows: int
) -> None:
    x = te.placeholder((4096, length), dtype, name="x")
    y = topi.nn.softmax(x, 1)
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor} -l2-bytes=65536 -l3-bytes=65536")
    text = str(te.lower(next(iter(schedules_for([y], target))), [x, y])["main"])
    assert f"in parallel({4096 // rows})" in text


@pytest.mark.parametrize(("rows", "target"), [*[(4096, target) for target in TARGETS], (4115, TARGETS[0])])
def test_rows_of_narrow_results_beyond_the_caches_are_right(rows: int, target: str) -> None:
    data = _data(rows, 49).astype("float16")
    data[17] += np.float16(300)
    found = _run(nn.softmax, data, f"{target} -l2-bytes=65536 -l3-bytes=65536")
    np.testing.assert_allclose(found, _softmax(data), rtol=2e-3, atol=1e-6)


_COLUMN = np.linspace(-1, 1, 20, dtype=np.float32)
_MASK = np.tril(np.zeros((32, 20), np.float32) - 1e9)


@pytest.mark.parametrize(("function", "reference"), [
    (lambda x: nn.softmax(relay.tanh(x)), lambda x: _softmax(np.tanh(x))),
    (lambda x: nn.relu(nn.softmax(x)), _softmax),
    (lambda x: nn.softmax(relay.add(x, relay.const(_COLUMN))), lambda x: _softmax(x + _COLUMN)),
    (lambda x: relay.multiply(nn.softmax(x), relay.const(_COLUMN)), lambda x: _softmax(x) * _COLUMN),
    (lambda x: nn.softmax(relay.add(x, relay.const(_MASK))), lambda x: _softmax(x + _MASK)),
    (lambda x: relay.cast(nn.softmax(x), "float16"), _softmax),
    (lambda x: relay.transpose(nn.softmax(x), (0, 2, 1)), lambda x: _softmax(x).transpose(0, 2, 1)),
    (lambda x: nn.softmax(relay.transpose(x, (0, 2, 1))), lambda x: _softmax(x.transpose(0, 2, 1))),
])  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_fused_operators_around_softmax_are_right(
    function: Callable[[Expr], Expr], reference: Callable[[Any], Any], target: str
) -> None:
    data = np.random.default_rng(0).standard_normal((6, 32, 20), dtype=np.float32)
    found = _run(function, data, target)
    tolerance = 1e-3 if found.dtype == np.float16 else 3e-6
    np.testing.assert_allclose(found, reference(data), rtol=tolerance, atol=3e-7)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [10, 49, 300])
@pytest.mark.parametrize("largest", [-12.0, 0.3, 17.0, 60.0])
def test_logarithms_near_0_keep_their_precision(largest: float, length: int, target: str) -> None:
    """An element that dominates its row's sum: the logarithm of the sum is nearly the element."""
    data = _data(32, length) / 3
    below = np.linspace(0.1, 18, 32, dtype=np.float32) + np.float32(np.log(length))
    data += np.float32(largest) - data.max(-1, keepdims=True) - below[:, np.newaxis]
    data[:, 3] = np.float32(largest)
    found = _run(nn.log_softmax, data, f"{target} -l2-bytes=65536 -l3-bytes=65536")
    distances = data.astype(np.float64) - data.max(-1, keepdims=True)
    expected = distances - np.log(np.exp(distances).sum(-1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=5e-7)
    assert found.max() <= 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["bool", "int8", "float16"])
@pytest.mark.parametrize("length", [4, 11, 20])
def test_rows_of_another_type_beside_them_are_right(length: int, kind: str, target: str) -> None:
    data = _data(53, length)
    other = (np.random.default_rng(3).random(data.shape) * 3).astype(kind)
    x, y = (relay.var(name, data.shape, str(a.dtype)) for name, a in (("x", data), ("y", other)))
    shown = relay.op.where(relay.op.cast(y, "bool"), x, relay.const(np.float32(-5)))
    built = relay.build(relay.Function((x, y), nn.softmax(shown)), target)
    module = graph_executor.GraphModule(built["default"](device("cpu", 0)), 2)
    (result,) = module.infer({"x": data, "y": other})
    np.testing.assert_allclose(result, _softmax(np.where(other.astype(bool), data, -5)), rtol=3e-6)

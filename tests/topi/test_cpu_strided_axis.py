"""Softmax and norms along a strided axis, by column blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.target import Target
from relayc.relay.expr import Expr, Var
from relayc.relay.lowering.lower import lower
from relayc.te.ir import collect
from relayc.te.tir import (
    Allocate,
    BufferLoad,
    BufferStore,
    Call,
    FloorDiv,
    FloorMod,
    For,
    IfThenElse,
    PrimFunc,
    SizeVar,
    Stmt,
    as_int,
)
from tests.topi.compiled import compiled_and_defined
from tests.topi.model_kernels import workloads

CPU = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
SMALL_CACHES = "llvm -mtune=x86-64 -l2-bytes=65536 -l3-bytes=65536"


def _lowered(
    shape: tuple[int, ...], axis: int, target: Target = CPU, front: Callable[[Expr], Expr] | None = None
) -> PrimFunc:
    x = relay.var("x", shape)
    y = relay.nn.softmax(x if front is None else front(x), axis)
    (workload,) = workloads(iter([y]), target)
    return lower(workload, target).function


def _check(
    function: Callable[[Var], Expr], *shape: int, dtype: str = "float32", tolerance: float = 2e-6, target: str = "llvm"
) -> None:
    data = (np.random.default_rng(0).standard_normal(shape) * 5).astype(dtype)
    found, wanted = compiled_and_defined(function, data, target)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((64, 1000), 0),  # partial column blocks
        ((2, 21, 37, 41), 1),  # planes of an odd size, an odd number of rows
        ((3, 24, 16, 16), 1),
        ((7, 33), 0),  # two blocks and a tail
        ((40, 15), 0),  # less than a block
        ((5, 600, 3, 40), 1),  # more rows than the first-level cache has lines
        ((2, 3, 18, 5, 50), 2),
        ((2, 13, 64, 64), 1),  # rows of which elements are whole pages apart
        ((2, 13, 33, 31), 1),  # rows of which they nearly are
    ],
)
@pytest.mark.parametrize("operator", [relay.nn.softmax, relay.nn.log_softmax, relay.nn.l2_normalize])
def test_strided_rows_are_right(operator: Callable[..., Expr], shape: tuple[int, ...], axis: int) -> None:
    _check(lambda x: operator(x, axis=axis), *shape, tolerance=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-12)])
def test_column_blocks_of_other_types_are_right(dtype: str, tolerance: float) -> None:
    _check(lambda x: relay.nn.softmax(x, axis=1), 2, 20, 17, 19, dtype=dtype, tolerance=tolerance)


UNSHIFTED = [
    ((1000, 700), 0),
    ((100, 512), 0),  # two blocks
    ((2, 97, 24, 24), 1),
    ((50, 2051), 0),  # partial blocks and cache lines
    ((3, 60, 1204), 1),  # rows that begin at quarters of lines
    ((41, 1023), 0),  # a few blocks
    ((2, 44, 64, 64), 1),  # rows of which elements are whole pages apart
]


@pytest.mark.parametrize(("shape", "axis"), UNSHIFTED)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float16", 2e-3), ("float64", 1e-12)])
def test_unshifted_blocks_are_right(shape: tuple[int, ...], axis: int, dtype: str, tolerance: float) -> None:
    _check(lambda x: relay.nn.softmax(x, axis=axis), *shape, dtype=dtype, tolerance=tolerance, target=SMALL_CACHES)


@pytest.mark.parametrize("shape", [(600, 1040), (601, 1039)])
def test_fused_operators_around_unshifted_blocks_are_right(shape: tuple[int, ...]) -> None:
    def around(x: Var) -> Expr:
        return nn.relu(relay.subtract(nn.softmax(relay.tanh(x), axis=0), relay.const(np.float32(1e-3))))

    nn = relay.nn
    _check(around, *shape, tolerance=1e-5, target=SMALL_CACHES)


def test_columns_of_minus_infinity_are_right_in_unshifted_blocks() -> None:
    """Columns that begin and end with it, with one finite element, none, infinity, and NaN."""
    data = np.random.default_rng(0).standard_normal((600, 1024), dtype=np.float32)
    data[:100, 0] = data[500:, 0] = data[:300, 1] = data[301:, 1] = data[:, 2] = -np.inf
    data[7, 3], data[599, 4] = np.inf, np.nan
    found, _ = compiled_and_defined(lambda x: relay.nn.softmax(x, axis=0), data, SMALL_CACHES)
    usual = np.exp(data[:, [0, 1, *range(5, 1024)]].astype(np.float64))
    np.testing.assert_allclose(found[:, [0, 1, *range(5, 1024)]], usual / usual.sum(0), rtol=1e-5)
    assert np.isnan(found[:, [2, 4]]).all()
    assert np.isnan(found[7, 3])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_unshifted_blocks_are_read_once_and_stored_while_the_next_one_is_read(target: str) -> None:
    """Where the speculation holds: each row's results are stored beside the exponentials that replace them."""
    func = _lowered((1000, 1600), 0, Target(f"llvm -mcpu={target} -num-cores=2 -l2-bytes=65536"))
    shifted = next(e for e in collect(func.body, IfThenElse) if "softmax_max" in _stored(e))
    fallback = {id(loop) for loop in collect(shifted, For)}
    rows = [loop for loop in collect(func.body, For) if as_int(loop.extent) == 1000 and id(loop) not in fallback]
    unshifted = [loop for loop in rows if "softmax_sum" in _stored(loop)]
    assert [_stored(loop) - {"softmax_exp", "softmax_sum"} for loop in unshifted] == [{"softmax"}, set()]


def _stored(inside: Stmt) -> set[str]:
    return {store.buffer.name for store in collect(inside, BufferStore)}


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_unaligned_rows_are_stored_by_cache_lines(target: str) -> None:
    """Beyond the caches, blocks are seven whole cache lines of 16 and one more that the next block repeats."""
    large = f"llvm -mcpu={target} -num-cores=2 -l2-bytes=65536"
    for l3_bytes, aligned in ((1_000_000, True), (100_000_000, False)):
        func = _lowered((1000, 1603), 0, Target(f"{large} -l3-bytes={l3_bytes}"))
        stores = [store for store in collect(func.body, BufferStore) if store.buffer.name == "softmax"]
        assert {store.value.dtype.lanes for store in stores} == {16}
        assert any(collect(store.indices[-1], FloorMod) for store in stores) == aligned
        kept = {a.buffer.name: a.buffer.shape for a in collect(func.body, Allocate)}
        assert kept["softmax_max"] == (128,)


def test_fused_operators_around_a_softmax_of_planes_are_right() -> None:
    scale = relay.const(np.linspace(0.5, 1.5, 19, dtype=np.float32))
    bias = relay.const(np.linspace(-1, 1, 20, dtype=np.float32).reshape(20, 1, 1))

    def around(x: Var) -> Expr:
        return relay.multiply(relay.nn.softmax(relay.tanh(relay.add(x, bias)), axis=1), scale)

    _check(around, 2, 20, 17, 19)


def test_a_block_is_stored_while_the_next_one_is_read() -> None:
    func = _lowered((2, 64, 40, 40), 1)
    (either,) = collect(func.body, IfThenElse)
    beside, alone = either.then_case, either.else_case
    assert isinstance(beside, For) and isinstance(alone, For)
    stored = [store.buffer.name for store in collect(beside, BufferStore)]
    assert {"softmax", "softmax_max.rf"} <= set(stored)
    assert "softmax" not in [store.buffer.name for store in collect(alone, BufferStore)]


def test_planes_are_collapsed() -> None:
    """Column blocks span lines of the image as whole vectors, with divisions only in prefetch addresses."""
    func = _lowered((4, 39, 120, 120), 1)
    touched = [call for call in collect(func.body, Call) if call.op == "prefetch"]
    assert len(touched) == 2
    assert [as_int(call.args[2]) for call in touched] == [1, 0] or [as_int(c.args[2]) for c in touched] == [0, 1]
    stores = [s for s in collect(func.body, BufferStore) if s.buffer.name == "softmax"]
    assert stores and all(s.value.dtype.lanes == 16 for s in stores)


@pytest.mark.parametrize("plane", [(512, 512), (512, 513), (513, 513)])
def test_blocks_of_planes_are_read_without_divisions(plane: tuple[int, int]) -> None:
    """Planes a multiple of the page size apart, or nearly: the 2-D indices of a block's columns cancel out."""
    func = _lowered((2, 21, *plane), 1)
    assert any(a.buffer.shape == (21 * 128,) for a in collect(func.body, Allocate))
    loads = [load for load in collect(func.body, BufferLoad) if load.buffer.name == "p0"]
    vectors = [load.indices[0] for load in loads if load.dtype.lanes > 1]
    assert vectors
    assert all(d.dtype.lanes == 1 for index in vectors for kind in (FloorDiv, FloorMod) for d in collect(index, kind))


@pytest.mark.parametrize(
    ("target", "channels", "around", "unrolled"),
    [
        ("x86-64-v4", 19, None, True),
        ("x86-64-v4", 33, None, False),  # more than registers hold
        ("x86-64-v4", 19, relay.tanh, False),  # much code
        ("x86-64-v3", 19, None, False),  # vectors of half a cache line
    ],
)
def test_few_planes_with_set_conflicts_stay_in_registers(
    target: str, channels: int, around: Callable[[Expr], Expr] | None, unrolled: bool
) -> None:
    """The exponentials of a column block are fully unrolled."""
    caches = Target(f"llvm -mcpu={target} -num-cores=2 -l2-bytes=65536 -l3-bytes=65536")
    func = _lowered((2, channels, 64, 64), 1, caches, around)
    stores = [s for s in collect(func.body, BufferStore) if s.buffer.name == "softmax_exp"]
    assert (len(stores) == channels) == unrolled


@pytest.mark.parametrize("operator", [relay.nn.softmax, relay.nn.log_softmax, relay.nn.l2_normalize])
def test_planes_in_registers_are_right(operator: Callable[..., Expr]) -> None:
    for channels in (2, 7, 19, 24):
        _check(lambda x: operator(x, axis=1), 2, channels, 64, 48, tolerance=2e-5, target=SMALL_CACHES)
        _check(lambda x: operator(x, axis=1), 2, channels, 64, 64, tolerance=2e-5, target=SMALL_CACHES)
    _check(lambda x: relay.nn.standardize(x, 1), 2, 19, 64, 64, tolerance=2e-5, target=SMALL_CACHES)


def test_planes_of_dynamic_sizes_are_right() -> None:
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
def test_functions_in_front_of_column_blocks_are_computed_once(shape: tuple[int, ...]) -> None:
    func = _lowered(shape, len(shape) // 3, CPU, relay.tanh)
    rows = shape[len(shape) // 3]
    assert len([a for a in collect(func.body, Allocate) if a.buffer.shape == (rows * 16,)]) == 2
    for operator in (relay.nn.softmax, relay.nn.log_softmax, relay.nn.l2_normalize):
        _check(lambda x, f=operator: f(relay.tanh(x), axis=len(shape) // 3), *shape, tolerance=2e-5)

"""Standardisation over any dimensions: over the channels of a pixel, and of each channel over a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relayc import relay
from relayc.backend.target import Target
from relayc.relay.expr import Expr, Var
from relayc.relay.lowering.lower import lower
from relayc.te.ir import collect
from relayc.te.tir import BufferLoad, BufferStore, For, IfThenElse, PrimFunc
from tests.topi.compiled import compiled_and_defined
from tests.topi.model_kernels import workloads

Array = np.ndarray[Any, Any]
SMALL_CACHES = "llvm -mtune=x86-64 -l1-bytes=8192 -l2-bytes=65536 -l3-bytes=65536"
LARGE_CACHES = "llvm -mtune=znver4 -num-cores=2 -l1-bytes=32768 -l2-bytes=1048576 -l3-bytes=33554432"


def _results(data: Array, target: str, **attributes: object) -> tuple[Array, Array]:
    return compiled_and_defined(lambda x: relay.nn.standardize(x, **attributes), data, target)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 24, 33, 31), (1,)),
        ((1, 96, 64, 64), (1,)),
        ((3, 400, 7, 7), (1,)),
        ((30, 32, 7, 7), (1,)),
        ((24, 20, 9, 8), (1,)),
        ((20, 30, 13, 5), (1,)),
        ((2, 16, 24, 6, 8), (2,)),
        ((4, 8, 40, 40), (0, 2, 3)),
        ((1, 8, 100, 100), (0, 2, 3)),
        ((2, 3, 200, 200), (2, 3)),
        ((3000, 70), (0,)),
        ((2, 60, 50, 24), (1, 2)),
        ((3, 20, 30, 8), (0, 1, 2)),
        ((5, 6, 7), (0, 1, 2)),
        ((3, 4, 5, 6), (0, 2)),
        ((2, 3, 4, 5), (1, 3)),
    ],
)
@pytest.mark.parametrize("target", ["llvm", SMALL_CACHES, "llvm -mattr=-avx512f"])
def test_any_dimensions_are_right(shape: tuple[int, ...], axis: tuple[int, ...], target: str) -> None:
    data = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * 3 + 2
    for attributes in ({"epsilon": 1e-6}, {"epsilon": 0.0, "margin": 1e-9}, {"centred": False}):
        found, wanted = _results(data, target, axis=axis, **attributes)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 4e-3), ("float64", 1e-12)])
def test_other_types_are_right(dtype: str, tolerance: float) -> None:
    data = np.random.default_rng(0).standard_normal((4, 24, 17, 19)).astype(dtype)
    for axis in ((1,), (0, 2, 3)):
        found, wanted = _results(data, SMALL_CACHES, axis=axis)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_channels_without_variance_are_not_magnified() -> None:
    """Rounding errors of the mean are divided by a deviation of at least their size."""
    data = np.full((2, 3, 200, 200), 3.1, np.float32)
    data[:, 1] = 1e4
    for axis in ((0, 2, 3), (2, 3)):
        found, _ = _results(data, SMALL_CACHES, axis=axis, epsilon=0.0, margin=1e-9)
        assert np.abs(found).max() <= 4


def _lowered(shape: tuple[int, ...], axes: tuple[int, ...], target: str = "llvm") -> PrimFunc:
    (workload,) = workloads(iter([relay.nn.standardize(relay.var("x", shape), axes)]), Target(target))
    return lower(workload, Target(target)).function


def test_channels_of_planes_and_batches_are_one_kernel() -> None:
    """One parallel loop: column blocks of planes, and channels of a batch, compute their own statistics."""
    blocks, rows = str(_lowered((1, 96, 256, 256), (1,))), str(_lowered((8, 16, 128, 128), (0, 2, 3)))
    assert blocks.count("in parallel(") == rows.count("in parallel(") == 1
    assert "standardize_parts" in rows
    assert "standardize_parts" not in blocks


def test_column_blocks_prefetch_inputs_and_results() -> None:
    """Inputs of collapsed planes are prefetched, too."""
    for shape, axis in (((1, 96, 412, 412), 1), ((96, 412 * 412), 0)):
        text = str(_lowered(shape, (axis,)))
        assert "prefetch(address_of(p0[" in text
        assert "prefetch(address_of(standardize[" in text


@pytest.mark.parametrize("target", ["llvm", "llvm -mattr=-avx512f", "llvm -mcpu=x86-64"])
@pytest.mark.parametrize(
    "shape", [(1, 40, 64, 64), (3, 29, 36, 36), (2, 20, 32, 64), (97, 1040), (97, 1043), (2, 31, 41, 43)]
)
def test_copied_blocks_are_right(shape: tuple[int, ...], target: str) -> None:
    """Planes with and without set conflicts, fewer than 28 rows, partial column blocks, unaligned rows."""
    axis, channels = len(shape) // 3, shape[len(shape) // 3]
    scale = np.linspace(0.5, 1.5, channels, dtype=np.float32).reshape(channels, *[1] * (len(shape) - axis - 1))
    caches = f"{target} -l2-bytes=131072 -l3-bytes=131072"
    operators: list[Callable[[Var], Expr]] = [
        lambda x: relay.nn.standardize(x, axis),
        lambda x: relay.nn.l2_normalize(x, axis=axis),
        lambda x: relay.multiply(relay.nn.standardize(relay.tanh(x), axis), relay.const(scale)),
        lambda x: relay.nn.standardize(relay.add(x, relay.const(scale)), axis, centred=False),
    ]
    data = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * 3 + 2
    for dtype, tolerance in (("float32", 2e-5), ("float64", 1e-6)):
        for operator in operators[: 4 if dtype == "float32" else 2]:
            found, wanted = compiled_and_defined(operator, data.astype(dtype), caches)
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("features", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("shape", [(1, 64, 512, 512), (1, 96, 412, 412), (1, 256, 64, 64), (30, 192, 55, 55)])
def test_strided_rows_are_read_once(shape: tuple[int, ...], features: str) -> None:
    """Rows beyond the caches, or with set conflicts, are copied; a block is stored while the next one is read."""
    func = _lowered(shape, (1,), f"{LARGE_CACHES} -mcpu={features}")
    cases = [c for e in collect(func.body, IfThenElse) for c in (e.then_case, e.else_case) if isinstance(c, For)]
    beside, alone = ({store.buffer.name for store in collect(case, BufferStore)} for case in cases)
    assert alone == {"p0.local", "standardize_mean_sum"}
    assert beside == alone | {"standardize"}
    stores = collect(func.body, BufferStore)
    reading = [s.buffer.name for s in stores if "p0" in [load.buffer.name for load in collect(s, BufferLoad)]]
    assert set(reading) == {"p0.local"}


@pytest.mark.parametrize("shape", [(1, 24, 820, 820), (1, 64, 72, 72), (1, 2048, 128, 128), (30, 192, 35, 35)])
def test_few_rows_and_what_caches_hold_are_not_copied(shape: tuple[int, ...]) -> None:
    """Column blocks that exceed caches, and short unaligned rows, are not copied either."""
    assert "p0.local" not in str(_lowered(shape, (1,), LARGE_CACHES))


def test_small_planes_are_standardised_image_by_image() -> None:
    """Moments take one pass over an image; results that are not whole cache lines are buffered."""
    caches = "llvm -mtune=znver5 -num-cores=2 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432"
    odd, whole = (str(_lowered((256, 384, side, side), (1,), caches)) for side in (14, 16))
    cached, planes = str(_lowered((8, 384, 14, 14), (1,), caches)), str(_lowered((256, 384, 56, 56), (1,), caches))
    for text in (odd, whole, cached):
        assert "standardize_parts" in text
        assert text.count("in parallel(") == 1
    assert ["standardize.local" in text for text in (odd, whole, cached)] == [True, False, False]
    assert "standardize_parts" not in planes


@pytest.mark.parametrize("features", ["", "-mattr=-avx512f"])
def test_images_prefetch_the_next_while_stored(features: str) -> None:
    """Beyond the caches, larger images than L2 are prefetched, too; images in the LLC only if two of them fit L2."""
    caches = f"llvm -mtune=znver5 -num-cores=2 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432 {features}"
    for side, images, prefetched in ((14, 256, True), (28, 64, True), (14, 16, True), (28, 4, None), (32, 64, True)):
        text = str(_lowered((images, 384, side, side), (1,), caches))
        assert ("standardize_parts" in text) == (prefetched is not None)
        if prefetched:
            assert text.index("prefetch(") > text.index("standardize_scale[")  # not in the passes of moments
            assert f"+ {384 * side * side}" in text[text.index("prefetch(") :].split("\n")[0]
    assert "standardize_parts" not in str(_lowered((64, 384, 56, 56), (1,), caches))  # statistics fill half of a cache
    assert "standardize_parts" in str(_lowered((64, 192, 64, 64), (1,), caches))  # blocks would have set conflicts


def test_few_images_are_standardised_in_column_blocks() -> None:
    """With one image, or three, a core would be idle."""
    caches = "llvm -mtune=znver5 -num-cores=2 -l1-bytes=49152 -l2-bytes=1048576 -l3-bytes=33554432"
    for images in (1, 3):
        assert "standardize_parts" not in str(_lowered((images, 768, 16, 16), (1,), caches))


@pytest.mark.parametrize("features", ["-mattr=-avx512f", "-mattr=-avx512f,-avx2,-avx"])
def test_small_planes_are_right_with_other_vectors(features: str) -> None:
    data = np.random.default_rng(1).standard_normal((24, 32, 7, 7), dtype=np.float32) * 2 + 5
    for shape in (data.shape, (24, 16, 14, 7), (49, 24, 8, 4)):
        values = data.reshape(shape)
        found, wanted = _results(values, f"{SMALL_CACHES} {features}", axis=(1,))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
        assert "standardize_parts" in str(_lowered(shape, (1,), f"{SMALL_CACHES} {features}"))

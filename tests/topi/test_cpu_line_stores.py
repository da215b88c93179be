"""Unaligned rows of results: the cache lines inside of them get non-temporal stores."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from relayc import backend, te, topi
from relayc.backend.target import Target
from relayc.topi.cpu.elementwise.line_stores import even_tile
from tests.topi.small_caches import lowered, result, stored_by_lines

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
CACHES = "-num-cores=2 -l1-bytes=8192 -l2-bytes=131072 -l3-bytes=262144"
FEW = CACHES.replace("-l1-bytes=8192", "-l1-bytes=32768 -mtune=znver4")
HELD = "-num-cores=2 -l1-bytes=8192 -l2-bytes=131072 -l3-bytes=67108864"


def _norm(data: Array, groups: int) -> tuple[te.Tensor, list[te.Tensor], list[Array], Array]:
    """A group norm of `data`, its inputs, arrays for them, and the expected result."""
    channels = data.shape[1]
    x = te.placeholder(data.shape, str(data.dtype), "x")
    gamma, beta = (te.placeholder((channels,), str(data.dtype), name) for name in ("gamma", "beta"))
    g, b = (RNG.standard_normal(channels).astype(data.dtype) for _ in range(2))
    wide = data.astype(np.float64).reshape(data.shape[0], groups, -1)
    wide = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    each = (channels, *[1] * (data.ndim - 2))
    expected = wide.reshape(data.shape) * g.reshape(each) + b.reshape(each)
    return topi.nn.group_norm(x, gamma, beta, groups, 1, 1e-5), [x, gamma, beta], [data, g, b], expected


@pytest.mark.parametrize(
    ("shape", "groups"), [((20, 8, 27, 27), 2), ((60, 8, 13, 13), 8), ((4, 4, 71, 73), 2), ((1, 2, 331, 333), 2),
                          ((9, 6, 12, 11, 13), 3), ((60, 8, 179), 4)],
)  # fmt: skip
def test_unaligned_planes_are_right(shape: tuple[int, ...], groups: int) -> None:
    """Groups that L1 holds, larger ones, and groups that no cache holds."""
    data = RNG.standard_normal(shape, dtype=np.float32) + 3
    out, arguments, arrays, expected = _norm(data, groups)
    (func,) = lowered(out, arguments, caches=CACHES).functions.values()
    assert stored_by_lines(func)
    np.testing.assert_allclose(result(out, arguments, arrays, caches=CACHES), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(20, 8, 28, 28), (200, 8, 7, 7), (20, 8, 27, 27)])
def test_other_results_have_plain_stores(shape: tuple[int, ...]) -> None:
    """Aligned rows, short ones, and results that a cache holds."""
    out, arguments, _, _ = _norm(np.zeros(shape, np.float32), 2)
    (func,) = lowered(out, arguments, caches=HELD if shape[-1] == 27 else CACHES).functions.values()
    assert not stored_by_lines(func)


@pytest.mark.parametrize("processor", ["znver5", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_inner_lines_have_nontemporal_stores(processor: str, dtype: str) -> None:
    """All of a tile except the ends of rows, which are read before they are written."""
    out, arguments, _, _ = _norm(np.zeros((40, 8, 27, 27), dtype), 2)
    target = f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor}"
    code = backend.build(lowered(out, arguments, target, caches=CACHES), target=Target(f"{target} {CACHES}"))
    kernel = code.get_source("ll").split("define void @main(")[0]
    size = np.dtype(dtype).itemsize
    stored = re.findall(r"store <(\d+) x (?:float|i32)> .*!nontemporal", kernel)  # float16 as words of two
    assert 4 * sum(map(int, stored)) == even_tile(27 * 27, 64 // size) * size


@pytest.mark.parametrize(("processor", "masks"), [("znver4", 4), ("znver3", 0)])
def test_row_ends_have_masked_stores(processor: str, masks: int) -> None:
    """Two masked stores for each end of a row, on cores with few line-fill buffers and with masks."""
    x = te.placeholder((300, 1001), name="x")
    target = f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor}"
    code = backend.build(lowered(topi.nn.softmax(x, 1), [x], target, caches=FEW), target=Target(f"{target} {FEW}"))
    kernel = code.get_source("raw-ll").split("define void @main(")[0]
    stored = re.findall(r"call void @llvm.masked.store\.v16f32\.p0\(<16 x float> \S+, ptr \S+, i32 (\d+)", kernel)
    assert stored.count("64") == masks  # others belong to the version with plain stores
    assert kernel.count("!nontemporal") > 0


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=znver4", "llvm -mcpu=znver3"])
@pytest.mark.parametrize("columns", [769, 775, 784, 1000, 1001, 1023])
@pytest.mark.parametrize("rows", [33, 70])
def test_row_ends_are_right_at_any_alignment(rows: int, columns: int, target: str) -> None:
    if not Target(target).features <= Target("llvm").features:
        pytest.skip("needs instructions that this processor does not have")
    x = te.placeholder((rows, columns), name="x")
    out, data = topi.nn.softmax(x, 1), RNG.standard_normal((rows, columns), dtype=np.float32)
    caches = "-mtune=znver4 -num-cores=2 -l1-bytes=32768 -l2-bytes=65536 -l3-bytes=65536"
    exponentials = np.exp(data - data.max(1, keepdims=True))
    found = result(out, [x], [data], target=target, caches=caches)
    np.testing.assert_allclose(found, exponentials / exponentials.sum(1, keepdims=True), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("columns", [150, 729, 3001])
def test_rows_of_softmax_have_nontemporal_stores(columns: int) -> None:
    shape = (200_000 // columns, columns)
    x = te.placeholder(shape, name="x")
    out = topi.nn.softmax(x, 1)
    (func,) = lowered(out, [x], caches=CACHES).functions.values()
    assert stored_by_lines(func)
    data = RNG.standard_normal(shape, dtype=np.float32)
    exponentials = np.exp(data - data.max(1, keepdims=True))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(result(out, [x], [data], caches=CACHES), expected, rtol=2e-5, atol=1e-7)


def test_the_last_tile_overlaps_no_line_already_stored() -> None:
    """A tile has a line of its own, at least; and of the row's tiles few elements are computed twice."""
    for length in range(129, 9000):
        width = even_tile(length, 16)
        tiles = -(-(length - 16) // width)
        assert length - 16 - (tiles - 1) * width >= 16 and tiles * width <= 1.2 * length

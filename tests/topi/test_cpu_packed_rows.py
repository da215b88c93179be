"""Permutations of rows beyond the caches: by chunks in the order of the input, as whole cache lines."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from relayc import te, topi
from tests.topi import small_caches

_CACHES = "-mtune=znver4 -l1-bytes=32768 -l2-bytes=8192 -l3-bytes=8192"


lowered = partial(small_caches.lowered, caches=_CACHES)
result = partial(small_caches.result, caches=_CACHES)


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 50, 6, 64), (0, 2, 1, 3)), ((1, 64, 3, 80), (0, 2, 1, 3)), ((67, 5, 81), (1, 0, 2)),
     ((64, 7, 8, 24), (2, 0, 1, 3)), ((300, 3, 17), (1, 0, 2)), ((3, 2, 9000), (1, 0, 2)),
     ((8, 49, 3, 3, 32), (2, 0, 3, 1, 4))],
)  # fmt: skip
def test_rows_in_another_order(shape, axes, kind) -> None:
    x = te.placeholder(shape, kind, "x")
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(kind)
    np.testing.assert_array_equal(result(topi.transpose(x, axes), [x], [array]), array.transpose(axes))


def test_windows_of_an_image() -> None:
    x = te.placeholder((4, 28, 28, 20), "float32", "x")
    parts = topi.transpose(topi.reshape(x, (4, 4, 7, 4, 7, 20)), (0, 1, 3, 2, 4, 5))
    out = topi.nn.relu(topi.reshape(parts, (64, 49, 20)))
    array = np.random.default_rng(0).standard_normal((4, 28, 28, 20), np.float32)
    expected = array.reshape(4, 4, 7, 4, 7, 20).transpose(0, 1, 3, 2, 4, 5).reshape(64, 49, 20)
    np.testing.assert_array_equal(result(out, [x], [array]), np.maximum(expected, 0))


@pytest.mark.parametrize("width", [64, 20, 1])
def test_gathered_rows(width) -> None:
    random = np.random.default_rng(0)
    x, table = te.placeholder((400, width), "float32", "x"), te.placeholder((700,), "int64", "table")
    values, picks = random.standard_normal((400, width), np.float32), random.integers(0, 400, 700)
    found = result(topi.take(x, table, 0), [x, table], [values, picks])
    np.testing.assert_array_equal(found, values[picks])


@pytest.mark.parametrize("processor", small_caches.PROCESSORS)
def test_short_rows_are_packed_and_stored_by_cache_lines(processor) -> None:
    x = te.placeholder((1, 256, 6, 80), "int8", "x")
    text = str(lowered(topi.transpose(x, (0, 2, 1, 3)), [x], small_caches.PROCESSORS[processor]))
    assert text.count('scope="local"') == 1
    assert text.count("prefetch(") == 1
    assert text.index(" in range(20)") > text.index("prefetch(")  # a chunk of 16 rows: 20 cache lines
    assert "1, 64)] = " in text.splitlines()[-1]


def test_whole_lines_need_no_buffer() -> None:
    x = te.placeholder((2, 100, 6, 64), "float32", "x")
    text = str(lowered(topi.transpose(x, (0, 2, 1, 3)), [x]))
    assert "allocate" not in text and text.count("prefetch(") == 1 and "1, 16)] = " in text.splitlines()[-1]


def test_gathered_rows_are_prefetched_through_the_table() -> None:
    x, table = te.placeholder((400, 64), "float32", "x"), te.placeholder((700,), "int64", "table")
    text = str(lowered(topi.take(x, table, 0), [x, table]))
    prefetches = next(line for line in text.splitlines() if "prefetch(" in line)
    assert "table[min(" in prefetches and ", 699)]" in prefetches


def test_later_rows_are_prefetched_along_an_axis_that_is_long_enough() -> None:
    """An axis of 12 heads is too short for a prefetch distance of 8 chunks: its end would be prefetched repeatedly."""
    x = te.placeholder((1, 256, 12, 64), "float32", "x")
    text = str(lowered(topi.transpose(x, (0, 2, 1, 3)), [x]))
    prefetches = next(line for line in text.splitlines() if "prefetch(" in line)
    assert "+ 4, 255) * 768" in prefetches


@pytest.mark.parametrize("case", ["in order", "small", "borders", "several"])
def test_other_outputs_are_not_chunked(case) -> None:
    x, y = te.placeholder((40, 6, 64), "float32", "x"), te.placeholder((40, 6, 64), "float32", "y")
    bias = te.placeholder((64,), "float32", "bias")
    small = te.placeholder((2, 6, 64), "float32", "x")
    outs = {"in order": (topi.add(x, bias), [x, bias]), "small": (topi.transpose(small, (1, 0, 2)), [small]),
            "borders": (topi.nn.pad(topi.transpose(x, (1, 0, 2)), (0, 0, 1), (0, 0, 1), 0.0), [x]),
            "several": (topi.add(topi.transpose(x, (1, 0, 2)), topi.transpose(y, (1, 0, 2))), [x, y])}  # fmt: skip
    assert "prefetch(" not in str(lowered(*outs[case]))


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "block"), [((2, 3, 64, 128), 2), ((2, 3, 28, 56), 2), ((3, 2, 63, 63), 3), ((1, 4, 32, 224), 4)]
)
def test_rows_of_strided_elements(shape, block, kind) -> None:
    n, c, h, w = shape
    x = te.placeholder(shape, kind, "x")
    parts = topi.reshape(x, (n, c, h // block, block, w // block, block))
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(kind)
    expected = array.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    np.testing.assert_array_equal(result(topi.transpose(parts, (0, 3, 5, 1, 2, 4)), [x], [array]), expected)


@pytest.mark.parametrize("processor", small_caches.PROCESSORS)
def test_deinterleaved_inputs_are_prefetched_in_memory_order(processor) -> None:
    """Chunks of 16 rows for each of four parts are 4 KB contiguous: prefetches are at the same offset 8 KB later."""
    x = te.placeholder((256, 256, 2, 64, 2), "int8", "x")
    out = topi.transpose(x, (0, 2, 4, 1, 3))
    text = str(lowered(out, [x], small_caches.PROCESSORS[processor]))
    prefetches = [line for line in text.splitlines() if "prefetch(" in line]
    assert len(prefetches) == 1 and "allocate" not in text
    assert "i0 * 65536 + i1 * 2048 + i2 * 1024" in prefetches[0] and "+ 32, 255) * 256" in prefetches[0]


def test_chunks_divide_their_axis() -> None:
    x = te.placeholder((4, 90, 3, 24), "int8", "x")  # 48 rows of 24 bytes are 1 KB at least, 45 of them half of all
    text = str(lowered(topi.transpose(x, (0, 2, 1, 3)), [x]))
    assert "min(" not in text.splitlines()[-1]


def test_an_axis_that_is_one_chunk_may_be_in_another_order() -> None:
    x = te.placeholder((50, 14, 16, 42), "int8", "x")  # 16 rows of 588 bytes are whole lines, fewer aren't
    text = str(lowered(topi.transpose(x, (0, 2, 1, 3)), [x]))
    assert text.count('scope="local"') == 1 and "1, 64)] = " in text.splitlines()[-1]


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((5, 3, 4, 16, 7, 16), (0, 2, 4, 3, 5, 1)), ((7, 3, 5, 14, 4, 14), (0, 2, 4, 3, 5, 1)),
     ((2, 3, 3, 4, 28, 30), (0, 3, 4, 1, 5, 2)), ((9, 2, 70, 33), (0, 2, 3, 1))],
)  # fmt: skip
def test_interleaved_rows(shape, axes, kind) -> None:
    x = te.placeholder(shape, kind, "x")
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(kind)
    np.testing.assert_array_equal(result(topi.transpose(x, axes), [x], [array]), array.transpose(axes))


@pytest.mark.parametrize("processor", small_caches.PROCESSORS)
def test_interleaved_rows_are_packed_and_all_their_inputs_prefetched(processor) -> None:
    x = te.placeholder((64, 3, 4, 16, 4, 16), "int8", "x")
    text = str(lowered(topi.transpose(x, (0, 2, 4, 3, 5, 1)), [x], small_caches.PROCESSORS[processor]))
    assert text.count('scope="local"') == 1 and text.count("prefetch(") == 3
    assert "1, 64)] = " in text.splitlines()[-1]

"""Outputs beyond the caches whose lines are not whole cache lines: several lines are packed in a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from relayc import te, topi
from tests.topi import small_caches

_CACHES = "-mtune=znver5 -l1-bytes=49152 -l2-bytes=524288 -l3-bytes=8192"
_FEW_FILL_BUFFERS = "-mtune=znver4 -l1-bytes=32768 -l2-bytes=524288 -l3-bytes=8192"
_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


lowered = partial(small_caches.lowered, caches=_CACHES)
result = partial(small_caches.result, caches=_CACHES)


def padded(x: te.Tensor, before: Sequence[int], after: Sequence[int], mode: str) -> te.Tensor:
    return topi.nn.pad(x, before, after, 0.0) if mode == "constant" else topi.nn.mirror_pad(x, before, after, mode)


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [((4, 60, 200), (0, 1, 1), (0, 1, 1)), ((3, 5, 59, 131), (0, 0, 2, 3), (0, 0, 1, 0)),
     ((61, 67, 99), (0, 0, 1), (0, 0, 0)), ((7, 61, 99), (0, 3, 0), (0, 2, 0)), ((201, 301), (1, 2), (1, 2)),
     ((50, 28, 28), (0, 1, 1), (0, 1, 1))],
)  # fmt: skip
@pytest.mark.parametrize("caches", [_CACHES, _FEW_FILL_BUFFERS])
def test_borders(shape, before, after, kind, mode, caches) -> None:
    x = te.placeholder(shape, kind, "x")
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(kind)
    expected = np.pad(array, list(zip(before, after, strict=True)), mode=mode)
    found = small_caches.result(padded(x, before, after, mode), [x], [array], caches=caches)
    np.testing.assert_array_equal(found, expected)


def test_broadcast_and_concatenation() -> None:
    random = np.random.default_rng(0)
    x, y = te.placeholder((700, 50), "float32", "x"), te.placeholder((700, 55), "float32", "y")
    first, second = random.standard_normal((700, 50), np.float32), random.standard_normal((700, 55), np.float32)
    bias = te.placeholder((55,), "float32", "bias")
    found = result(topi.add(y, bias), [y, bias], [second, second[0]])
    np.testing.assert_array_equal(found, second + second[0])
    found = result(topi.concatenate([x, y], 1), [x, y], [first, second])
    np.testing.assert_array_equal(found, np.concatenate([first, second], 1))


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("processor", small_caches.PROCESSORS)
def test_packed_lines_are_stored_by_cache_lines(processor, mode) -> None:
    x = te.placeholder((64, 100, 504), "float32", "x")
    text = str(lowered(padded(x, (0, 1, 1), (0, 1, 1), mode), [x], small_caches.PROCESSORS[processor]))
    assert text.count('scope="local"') == 1 and text.count("prefetch(") == 1
    assert " in parallel(816):" in text  # 8 lines of 2024 bytes are 253 cache lines
    _, last = text.split(" in range(253):")
    assert "prefetch(" in last and "1, 16)] = " in last.splitlines()[-1] and "where" not in last


def test_the_last_chunk_is_masked() -> None:
    x = te.placeholder((61, 101, 504), "float32", "x")
    text = str(lowered(padded(x, (0, 1, 1), (0, 1, 1), "constant"), [x]))
    whole, rest = text.split("else:")
    assert " in parallel(786):" in text  # 6283 lines
    assert "where" not in whole.split(" in range(253):")[1] and "where" in rest.splitlines()[-1]


def test_a_later_chunk_is_prefetched() -> None:
    x = te.placeholder((64, 100, 504), "float32", "x")
    text = str(lowered(padded(x, (0, 1, 1), (0, 1, 1), "constant"), [x]))
    prefetch = next(line for line in text.splitlines() if "prefetch(" in line)
    assert "outer * 8 + 8, 6527) // 102 * 50400" in prefetch and "6527) % 102 * 504" in prefetch


@pytest.mark.parametrize("case", ["whole lines", "small", "long", "out of order", "flat"])
def test_other_outputs_are_not_packed(case) -> None:
    x, y = te.placeholder((64, 100, 504), "float32", "x"), te.placeholder((64, 20, 12), "float32", "x")
    z, flat = te.placeholder((30, 5001), "float32", "z"), te.placeholder((200, 505), "float32", "flat")
    outs = {"whole lines": (padded(x, (0, 1, 4), (0, 1, 4), "constant"), x), "small": (topi.nn.relu(y), y),
            "long": (padded(z, (1, 1), (1, 1), "constant"), z), "flat": (topi.nn.relu(flat), flat),
            "out of order": (padded(topi.transpose(x, (1, 0, 2)), (0, 1, 1), (0, 1, 1), "edge"), x)}  # fmt: skip
    out, argument = outs[case]
    assert "allocate" not in str(lowered(out, [argument]))


@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "float64"])
def test_reversed_lines_are_packed(kind) -> None:
    x = te.placeholder((211, 300), kind, "x")
    text = str(lowered(topi.flip(x, (1,)), [x]))
    assert text.count('scope="local"') >= 1 and "prefetch(" in text
    array = np.random.default_rng(0).integers(-100, 100, (211, 300)).astype(kind)
    np.testing.assert_array_equal(result(topi.flip(x, (1,)), [x], [array]), array[:, ::-1])


def test_lines_shorter_than_cache_lines_are_packed() -> None:
    x = te.placeholder((40, 56, 56), "int8", "x")
    text = str(lowered(padded(x, (0, 1, 1), (0, 1, 1), "constant"), [x]))
    assert " in range(29):" in text  # 32 lines of 58 bytes are 29 cache lines
    array = np.random.default_rng(0).integers(-100, 100, (40, 56, 56)).astype("int8")
    expected = np.pad(array, ((0, 0), (1, 1), (1, 1)))
    np.testing.assert_array_equal(result(padded(x, (0, 1, 1), (0, 1, 1), "constant"), [x], [array]), expected)


@pytest.mark.parametrize("kind", ["int8", "float16", "float32"])
@pytest.mark.parametrize(("planes", "side"), [(80, 7), (70, 14), (67, 28)])
def test_planes_of_short_lines_are_packed(planes, side, kind) -> None:
    shape = (2 * planes, side, side)
    x, array = te.placeholder(shape, kind, "x"), np.random.default_rng(0).integers(-100, 100, shape).astype(kind)
    expected = np.pad(array, ((0, 0), (1, 1), (1, 1)))
    np.testing.assert_array_equal(result(padded(x, (0, 1, 1), (0, 1, 1), "constant"), [x], [array]), expected)


def test_short_lines_with_edge_padding_are_not_packed() -> None:
    x = te.placeholder((700, 14, 14), "int8", "x")
    assert "allocate" not in str(lowered(padded(x, (0, 1, 1), (0, 1, 1), "edge"), [x]))

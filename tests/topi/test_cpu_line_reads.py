"""Prefetches of large inputs that are read line by line, and their order."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from relayc import te, topi
from relayc.backend.target import Target
from relayc.topi.cpu.elementwise.line_reads import LineRead, line_reads
from relayc.topi.groups import constant_size
from relayc.topi.registry import schedule_for
from tests.topi import small_caches

_CACHES = "-mtune=znver4 -l1-bytes=32768 -l2-bytes=524288 -l3-bytes=8192"
_LONG_VECTORS = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4"

lowered = partial(small_caches.lowered, caches=_CACHES)
result = partial(small_caches.result, caches=_CACHES)


def columns(x: te.Tensor, first: int, count: int) -> te.Tensor:
    return topi.strided_slice(x, (0, first), (1, 1), (constant_size(x.shape[:1]), count))


def gated(x: te.Tensor) -> te.Tensor:
    """The first half of each line, weighted by the sigmoid of the second."""
    width = constant_size(x.shape[1:]) // 2
    first, second = (columns(x, at, width) for at in (0, width))
    return topi.multiply(first, topi.sigmoid(second))


def only_read(out: te.Tensor) -> LineRead:
    assert isinstance(out.op, te.ComputeOp)
    (read,) = line_reads(out.op) or []
    return read


def prefetches(out: te.Tensor, arguments: list[te.Tensor], target: str = _LONG_VECTORS) -> list[str]:
    return [line.strip() for line in str(lowered(out, arguments, target)).splitlines() if "prefetch(" in line]


@pytest.mark.parametrize("width", [96, 100, 101, 256])
def test_halves_of_lines_are_computed_as_numpy_does(width) -> None:
    x = te.placeholder((90, 2 * width), "float32", "x")
    array = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    expected = array[:, :width] / (1 + np.exp(-array[:, width:]))
    np.testing.assert_allclose(result(gated(x), [x], [array]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("processor", small_caches.PROCESSORS)
def test_both_halves_of_a_line_are_prefetched_in_order(processor) -> None:
    x = te.placeholder((90, 1024), "float32", "x")
    read = only_read(gated(x))
    assert (read.stride, read.parts) == (1024, 2)
    lines = prefetches(gated(x), [x], small_caches.PROCESSORS[processor])
    assert len(lines) in (2, 4, 8, 16)  # twice the elements that are computed together
    assert all("* 1024 + i1.outer" in line and "+ 2048, " in line for line in lines)  # two lines of 4 KB later
    assert sum("+ 16])" in line for line in lines) == 1


def test_parts_that_are_not_read_are_not_prefetched() -> None:
    x = te.placeholder((90, 1024), "float32", "x")
    quarter = columns(x, 256, 256)
    read = only_read(topi.sigmoid(quarter))
    assert (read.stride, read.parts) == (1024, 1)


def test_unaligned_results_are_prefetched_for_writing() -> None:
    for width, written in ((512, False), (500, True)):
        x = te.placeholder((90, 2 * width), "float32", "x")
        assert any("address_of(x" in line for line in prefetches(gated(x), [x]))
        assert any("address_of(T_multiply" in line or "address_of(multiply" in line
                   for line in prefetches(gated(x), [x])) == written  # fmt: skip


def test_plain_lines_are_left_to_the_hardware_prefetcher() -> None:
    x, bias = te.placeholder((90, 1024), "float32", "x"), te.placeholder((1024,), "float32", "bias")
    mask = te.placeholder((1024,), "bool", "mask")
    long_bias = te.placeholder((16384,), "float32", "bias")
    long = te.placeholder((90, 16384), "float32", "x")
    assert not prefetches(topi.add(x, bias), [x, bias])
    assert prefetches(topi.add(long, long_bias), [long, long_bias])  # the bias itself takes a part of L1
    chosen = topi.where(mask, x, topi.negative(x))
    assert prefetches(chosen, [mask, x]) and not prefetches(chosen, [mask, x], small_caches.PROCESSORS["haswell"])
    held = small_caches.lowered(gated(x), [x], caches="-l3-bytes=33554432")
    assert "prefetch(" not in str(held)


@pytest.mark.parametrize(
    ("processor", "shape", "distance"),
    [("sapphirerapids", (700, 1000), 2048), ("sapphirerapids", (500, 1000), None), ("znver4", (700, 1000), None)],
    ids=["far", "in the cache", "near"],
)
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_elements_are_prefetched_within_the_page_with_a_high_latency_llc(processor, shape, distance, kind) -> None:
    """Inputs that exceed L2 are prefetched half a page ahead."""
    rows, columns = shape
    x = te.placeholder((rows * 4 // np.dtype(kind).itemsize, columns), kind, "x")
    caches = f"-l2-bytes={2 << 20} -mtune={processor}"
    text = str(small_caches.lowered(topi.sigmoid(x), [x], _LONG_VECTORS, caches=caches))
    lines = [line.strip() for line in text.splitlines() if "prefetch(" in line]
    assert bool(lines) == (distance is not None)
    if distance is not None:
        assert f" + {distance // np.dtype(kind).itemsize}, " in lines[0]


def test_inputs_of_two_results_are_prefetched_once() -> None:
    x = te.placeholder((700, 1000), "float32", "x")
    outs = [topi.sigmoid(x), topi.tanh(x)]
    text = str(te.lower(schedule_for(outs, Target(f"{_LONG_VECTORS} -mtune=sapphirerapids")), [x, *outs]))
    prefetches = [line for line in text.splitlines() if "prefetch(address_of(x[" in line]
    assert len(prefetches) == 4  # the cache lines of 64 elements


def test_prefetches_may_run_past_the_end() -> None:
    array = np.random.default_rng(0).standard_normal((700, 1001), np.float32)
    x = te.placeholder(array.shape, "float32", "x")
    found = small_caches.result(topi.sigmoid(x), [x], [array], caches=f"-l2-bytes={2 << 20} -mtune=sapphirerapids")
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-array)), rtol=1e-5, atol=1e-6)

"""A register-tiled matrix product and a direct convolution, scheduled by hand, against the machine's FMA peak.

Nothing but te and the llvm code generator is measured here: no default schedule, no graph. Shapes are those of
BERT-base and ResNet-50; weights are packed in panels of the tile's width. Run it from the repository's root:

    python -m benchmarks.gemm_schedule
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from relayc import te
from relayc.backend.llvm.build import build
from relayc.backend.llvm.ceilings import FmaLoop
from relayc.backend.runtime import nd
from relayc.backend.target import Target

GEMMS = [(128, 768, 768), (128, 3072, 768), (128, 768, 3072), (784, 512, 128), (49, 2048, 512)]
"""Rows, columns and depth."""

CONVOLUTIONS = [(56, 64, 64, 3, 1), (28, 128, 128, 3, 1), (14, 256, 256, 3, 1), (7, 512, 512, 3, 1),
                (56, 64, 256, 1, 1), (56, 128, 128, 3, 2)]  # fmt: skip
"""Input size, input channels, output channels, kernel size, stride."""


def schedule_tile(out: te.Tensor, rows: int, lanes: int) -> te.Schedule:
    """The accumulators of `rows` x `lanes` outputs (the last two axes) in registers, reduce loops around the tile."""
    s = te.create_schedule(out)
    acc = s.cache_write(out, "local")
    *outer, row, column = s[out].op.axis
    row_outer, row_inner = s[out].split(row, rows, tail="shift")
    panel, lane = s[out].split(column, lanes)
    s[out].reorder(panel, *outer, row_outer, row_inner, lane)
    s[out].unroll(row_inner)
    s[out].vectorize(lane)
    s[acc].compute_at(s[out], row_outer)
    *_, tile_row, tile_lane = s[acc].op.axis
    s[acc].reorder(*s[acc].op.reduce_axis, tile_row, tile_lane)
    s[acc].unroll(tile_row)
    s[acc].vectorize(tile_lane)
    return s


def gemm(rows: int, columns: int, depth: int, lanes: int) -> list[te.Tensor]:
    """[A, packed B, C] of C = A @ B, with B as (columns / lanes, depth, lanes)."""
    a = te.placeholder((rows, depth), name="A")
    b = te.placeholder((columns // lanes, depth, lanes), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[j // lanes, k, j % lanes], axis=k), name="C")
    return [a, b, c]


def convolution(size: int, channels: int, filters: int, kernel: int, stride: int, lanes: int) -> list[te.Tensor]:
    """[padded NHWC input, packed weights, output] with weights as (filters / lanes, kh, kw, channels, lanes)."""
    padded = size + 2 * (kernel // 2)
    width = (padded - kernel) // stride + 1
    x = te.placeholder((padded, padded, channels), name="X")
    w = te.placeholder((filters // lanes, kernel, kernel, channels, lanes), name="W")
    kh, kw = te.reduce_axis((0, kernel), name="kh"), te.reduce_axis((0, kernel), name="kw")
    ic = te.reduce_axis((0, channels), name="ic")
    y = te.compute(
        (width, width, filters),
        lambda h, v, f: te.sum(
            x[h * stride + kh, v * stride + kw, ic] * w[f // lanes, kh, kw, ic, f % lanes], axis=[kh, kw, ic]
        ),
        name="Y",
    )
    return [x, w, y]


def measure(label: str, tensors: list[te.Tensor], flops: int, tile: tuple[int, int], target: Target) -> None:
    """Compile, check against numpy and print GFLOP/s beside the peak, interleaved.

    The kernel's time is the CPU time of its thread, which does not count other programs. The peak is the best of all
    rounds, so that the ratio errs on the low side.
    """
    begin = time.perf_counter()
    module = te.lower(schedule_tile(tensors[-1], *tile), tensors, name="kernel")
    lowered = time.perf_counter()
    kernel = build(module, target)["kernel"]
    built = time.perf_counter()
    rng = np.random.default_rng(0)
    arrays = [nd.array(rng.random(t.shape, dtype=np.float32)) for t in tensors]
    kernel(*arrays)
    check(label, [a.numpy() for a in arrays])
    peak, speeds, peaks = FmaLoop(), [], []
    for _ in range(15):
        peaks.append(peak.gflops())
        start = time.thread_time()
        kernel(*arrays)
        speeds.append(flops / (time.thread_time() - start) / 1e9)
    speed, limit = statistics.median(speeds), max(peaks)
    print(f"{label:34} tile {tile[0]}x{tile[1]}  {speed:6.1f} GFLOP/s  {speed / limit:4.0%} of {limit:.0f}"
          f"   best {max(speeds) / limit:4.0%}   lower {1e3 * (lowered - begin):.0f} ms"
          f"  llvm {1e3 * (built - lowered):.0f} ms", flush=True)  # fmt: skip


def check(label: str, arrays: Sequence[np.ndarray]) -> None:
    """The kernel's result is the product's. Raises AssertionError where it is not."""
    x, w, y = arrays
    unpacked = np.moveaxis(w, 0, -2).reshape(*w.shape[1:-1], -1)
    if x.ndim == 2:
        expected = x @ unpacked
    else:
        kernel, width = unpacked.shape[0], y.shape[0]
        stride = (x.shape[0] - kernel) // max(width - 1, 1)
        reach = (width - 1) * stride + 1
        expected = sum(
            x[i : i + reach : stride, j : j + reach : stride] @ unpacked[i, j]
            for i in range(kernel) for j in range(kernel)
        )  # fmt: skip
    np.testing.assert_allclose(y, expected, rtol=2e-4, err_msg=label)


def tile_rows(extent: int, most: int) -> int:
    """Rows of the tile that cover `extent` at the least cost: overlapping rows cost time, and so do small tiles."""
    return min(range(2, most + 1), key=lambda r: (1 + 0.5 / r) * -(-extent // r) * r)


def main() -> None:
    """Print a row for each shape."""
    target = Target("llvm")
    lanes = 32 if "avx512f" in target.features else 16
    rows = 12 if lanes == 32 else 6
    for m, n, k in GEMMS:
        measure(f"gemm {m}x{n}x{k}", gemm(m, n, k, lanes), 2 * m * n * k, (tile_rows(m, rows), lanes), target)
    for size, ic, oc, kernel, stride in CONVOLUTIONS:
        tensors = convolution(size, ic, oc, kernel, stride, lanes)
        flops = 2 * int(np.prod(tensors[-1].shape)) * ic * kernel * kernel
        tile = (tile_rows(int(tensors[-1].shape[1]), rows), lanes)
        measure(f"conv {size}x{size}x{ic} -> {oc} k{kernel} s{stride}", tensors, flops, tile, target)


if __name__ == "__main__":
    main()

"""Matrix products through `relay.build` and the default schedule, as a share of the machine's FMA peak.

    python -m benchmarks.kernels [--rounds 30]

Product and FMA loop are interleaved on one thread; the share is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from relayc import relay
from relayc.backend.llvm.ceilings import FmaLoop
from relayc.backend.runtime import device, graph_executor
from relayc.relay.op.common import numpy_dtype
from relayc.te.ir import IRModule

SHAPES = ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (784, 512, 128), (49, 2048, 512))
"""M, N, K: BERT's projections and feed-forward, two 1x1 convolutions of ResNet-50."""


def product(m: int, n: int, k: int, dtype: str = "float32") -> tuple[relay.Function, np.ndarray[Any, Any]]:
    """C[m, n] = A[m, k] B[k, n] with constant random B, and the transpose of B."""
    weight = np.random.default_rng(0).standard_normal((n, k), dtype=np.float32).astype(numpy_dtype(dtype))
    x = relay.var("x", (m, k), dtype)
    return relay.Function((x,), relay.nn.dense(x, relay.const(weight))), weight


def dense(m: int, n: int, k: int) -> graph_executor.GraphModule:
    """The product compiled for this machine, one thread, its result checked."""
    function, weight = product(m, n, k)
    lib = relay.build(IRModule({"main": function}), target="llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=1)
    data = np.random.default_rng(1).standard_normal((m, k), dtype=np.float32)
    module.set_input("x", data)
    module.run()
    expected = data.astype(np.float64) @ weight.astype(np.float64).T
    error = np.abs(module.get_output(0).numpy() - expected).max() / np.abs(expected).max()
    if error > 1e-5:
        raise SystemExit(f"wrong result at {m}x{n}x{k}: relative error {error:.1e}")
    return module


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    loop = FmaLoop()
    for m, n, k in SHAPES:
        module = dense(m, n, k)
        peaks: list[float] = []
        products: list[float] = []
        for _ in range(rounds):
            peaks.append(loop.gflops())
            start = time.perf_counter()
            module.run()
            products.append(2 * m * n * k / (time.perf_counter() - start) / 1e9)
        product, peak = statistics.median(products), statistics.median(peaks)
        print(f"{m:4d} x {n:4d} x {k:4d}: {product:6.1f} GFLOP/s, {100 * product / peak:5.1f} % of {peak:.1f}")


if __name__ == "__main__":
    main()

"""Matrix products on a GPU: the compiler's kernels against torch's (cuBLAS), as shares of the measured peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from benchmarks.gpu_engines import NotInstalled, NotRun, needed, timer_of
from benchmarks.gpu_peak import Ceilings
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.te.ir import IRModule

__all__ = ["SHAPES", "products"]

SHAPES = ((4096, 4096, 4096), (2048, 2048, 2048), (128, 3072, 768), (1024, 3072, 768), (8, 4096, 4096))
"""M, N, K: large squares, BERT's feed-forward layer at batch 1 and 8, a skinny product."""


class Sheet(Protocol):
    """The output of the table; see `benchmarks.gpu`."""

    def head(self, title: str, *columns: str) -> None: ...
    def row(self, *cells: str) -> None: ...
    def not_run(self, what: str, reason: str) -> str: ...


def products(
    shapes: Sequence[tuple[int, int, int]], precisions: Sequence[str], ceilings: Ceilings, seconds: float, sheet: Sheet
) -> None:
    """The table of products, each checked against numpy's in float64."""
    sheet.head("Matrix products M x N x K:", "shape", "precision", "TFLOP/s", "% of peak", "torch TFLOP/s",
               "share of torch", "error")  # fmt: skip
    for m, n, k in shapes:
        for precision in precisions:
            title, work = f"{m} x {n} x {k}", 2 * m * n * k / 1e12
            ours, error = _ours(m, n, k, precision, seconds)
            share = 1e3 * work / ours / ceilings.gflops(precision)
            row = [title, precision, f"{work / ours:.2f}", f"{100 * share:.1f}"]
            try:
                peer = _torch(m, n, k, precision, seconds)
                row += [f"{work / peer:.2f}", f"{100 * peer / ours:.0f} %"]
            except NotRun as reason:
                row += [sheet.not_run("torch on matrix products", str(reason)), "-"]
            sheet.row(*row, f"{error:.1e}")


def _ours(m: int, n: int, k: int, precision: str, seconds: float) -> tuple[float, float]:
    """Seconds of x (m, k) times a constant (n, k) transposed, and the error as a share of the largest value."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(precision) for shape in ((m, k), (n, k)))
    data = relay.var("x", (m, k), precision)
    function = relay.Function((data,), relay.nn.dense(data, relay.const(w)))
    library = relay.build(IRModule({"main": function}), "cuda")
    executor = graph_executor.GraphModule(library["default"](device("cuda", 0)))
    executor.run(x=x)
    found = executor.get_output(0).numpy()[:64].astype(np.float64)
    exact = x[:64].astype(np.float64) @ w.T.astype(np.float64)
    error = float(np.abs(found - exact).max() / np.abs(exact).max())
    return executor.benchmark(repeat=7, number=3, min_repeat_ms=1e3 * seconds / 7).median, error


def _torch(m: int, n: int, k: int, precision: str, seconds: float) -> float:
    torch: Any = needed("torch")
    if not torch.cuda.is_available():
        raise NotInstalled("torch is built without CUDA, or sees no device")
    torch.backends.cuda.matmul.allow_tf32 = False
    x, w = (torch.randn(*s, device="cuda", dtype=getattr(torch, precision)) for s in ((m, k), (n, k)))
    return timer_of(torch, lambda: torch.nn.functional.linear(x, w))(seconds)

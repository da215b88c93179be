"""Matrix products on a GPU with many tilings: the predictions of the cost model against measurements.

    python -m benchmarks.gpu_tiles [--shapes 4096x4096x4096,...] [--precisions float16] [--tiles 24] [--seconds 0.02]
                                   [--out FILE]

For every shape M x N x K some of the plans that the cost model (`topi/cuda/product_tiles.py`) ranks first, with
different rows, columns and split-K slices, are checked against float64 and timed. FILE gets a line of JSON for each;
the table compares the model's choice with the best plan found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from relayc import backend, te, topi
from relayc.backend.cuda.driver import probe
from relayc.backend.runtime import NDArray, device, load_module_bytes, nd
from relayc.backend.target import Target
from relayc.te.errors import CompileError
from relayc.topi.cuda.contraction import contraction_of
from relayc.topi.cuda.epilogue import start_schedule
from relayc.topi.cuda.products import Plan, plans_of, schedule_tile

SHAPES = (
    "4096x4096x4096", "2048x2048x2048", "1024x3072x768", "1024x768x3072", "1024x768x768", "128x3072x768",
    "128x768x3072", "128x768x768", "1576x3072x768", "197x768x768", "8x4096x4096", "1x4096x4096", "3136x64x576",
    "784x512x128", "196x256x2304", "49x512x4608",
)  # fmt: skip
"""M x N x K: squares, layers of transformers at batch 1 and 8, skinny products, convolutions of ResNet-50."""
_CHECKED_ROWS = 64


@dataclass(frozen=True)
class Case:
    """A product and one plan for it."""

    shape: str
    precision: str
    plan: Plan

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = map(int, self.shape.split("x"))
        return m, n, k

    @property
    def record(self) -> dict[str, Any]:
        """The record of the case before it ran."""
        return {"shape": self.shape, "precision": self.precision, "slices": self.plan.parts, "model": self.plan.cycles,
                "kind": type(self.plan.tile).__name__, **asdict(self.plan.tile)}  # fmt: skip


def _product(shape: str, precision: str) -> tuple[list[te.Tensor], te.Operation]:
    """The arguments of a product (data, weights, result) and its operation."""
    m, n, k = map(int, shape.split("x"))
    x, w = te.placeholder((m, k), precision, name="x"), te.placeholder((n, k), precision, name="w")
    out = topi.nn.dense(x, w)
    anchor = next(op for op in (out.op, *[t.op for t in out.op.input_tensors]) if op.tag == "dense")
    return [x, w, out], anchor


def cases(shape: str, precision: str, count: int, target: Target) -> list[Case]:
    """The best plans of different rows, columns and slices, and the best few of all."""
    _, anchor = _product(shape, precision)
    contraction = contraction_of(anchor)
    assert contraction is not None
    plans = plans_of(contraction, target)
    different: dict[tuple[int, ...], Plan] = {}
    for plan in plans:
        different.setdefault((plan.tile.rows, plan.tile.columns, plan.tile.threads, plan.parts), plan)
    kept = [*plans[: count // 4], *[p for p in different.values() if p not in plans[: count // 4]]]
    return [Case(shape, precision, plan) for plan in kept[:count]]


def compiled(case: Case, target: str) -> tuple[bytes, dict[str, Any]] | str:
    """Machine code of a case and the figures of its first kernel; or the reason why it does not compile."""
    args, anchor = _product(case.shape, case.precision)
    made = Target(target)
    contraction = contraction_of(anchor)
    assert contraction is not None
    try:
        s, out = start_schedule([args[-1]], anchor, made)
        schedule_tile(s, out, contraction, case.plan, made)
        module = backend.build(s, args, made, name="product")
    except CompileError as error:
        return str(error).splitlines()[0]
    (code,) = module.imported_modules
    report = next(iter(code.report.values()))
    return code.save_to_bytes(), {key: report[key] for key in ("registers", "spill_stores") if key in report}


@lru_cache(maxsize=1)
def _operands(shape: str, precision: str) -> tuple[NDArray, NDArray, np.ndarray[Any, Any]]:
    """Data and weights on the GPU, and the first rows of their product."""
    (m, n, k), gpu, rng = map(int, shape.split("x")), device("cuda", 0), np.random.default_rng(0)
    x, w = (rng.standard_normal(size, dtype=np.float32).astype(precision) for size in ((m, k), (n, k)))
    return nd.array(x, gpu), nd.array(w, gpu), x[:_CHECKED_ROWS].astype(np.float64) @ w.T.astype(np.float64)


def measure(code: bytes, case: Case, seconds: float) -> dict[str, Any]:
    """Microseconds of a case, its TFLOP/s, and its error relative to the largest value."""
    (m, n, k), gpu = case.sizes, device("cuda", 0)
    module = load_module_bytes("cuda", code)
    x, w, exact = _operands(case.shape, case.precision)
    out = nd.array(np.full((m, n), np.nan, case.precision), gpu)
    module["product"](x, w, out)
    found = out.numpy()
    error = float(np.abs(found[:_CHECKED_ROWS] - exact).max() / np.abs(exact).max())
    timed = module.time_evaluator("product", gpu, number=3, repeat=5, min_repeat_ms=1e3 * seconds / 5)
    best = timed(x, w, out).median
    whole = bool(np.isfinite(found).all())
    return {"us": best * 1e6, "tflops": 2 * m * n * k / best / 1e12, "error": error, "whole": whole}


def rows(every: Sequence[Case], target: str, seconds: float) -> Iterator[dict[str, Any]]:
    """The record of each case, compiled in parallel and measured one after the other."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(compiled, every, [target] * len(every), chunksize=1))
    for case, code in zip(every, codes, strict=True):
        if isinstance(code, str):
            yield {**case.record, "unsupported": code}
        else:
            yield {**case.record, **code[1], **measure(code[0], case, seconds)}


def table(records: Sequence[dict[str, Any]]) -> None:
    """Print the model's choice and the best plan found for each shape."""
    print("| shape | precision | model's choice | TFLOP/s | best | TFLOP/s | share |")
    print("|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((r["shape"], r["precision"]) for r in records):
        own = [r for r in records if (r["shape"], r["precision"]) == key and "us" in r]
        chosen, best = min(own, key=lambda r: r["model"]), min(own, key=lambda r: r["us"])
        cells = [_plan(chosen), f"{chosen['tflops']:.2f}", _plan(best), f"{best['tflops']:.2f}"]
        print(f"| {' | '.join([*key, *cells])} | {100 * best['us'] / chosen['us']:.0f} % |")


def _plan(record: dict[str, Any]) -> str:
    own = record["tiles"] if record["kind"] == "MmaTile" else (record["parts"], record["vector"])
    return f"{record['warps']} x {own}, {record['depth']} x {record['stages']}, {record['slices']} slices"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--precisions", default="float16,float32")
    parser.add_argument("--tiles", type=int, default=24, help="plans of each shape")
    parser.add_argument("--seconds", type=float, default=0.02, help="length of one measurement")
    parser.add_argument("--out", type=Path, help="file for the records")
    options = parser.parse_args()
    count, reason = probe()
    if count == 0:
        print(f"nothing measured: there is no CUDA device: {reason}", file=sys.stderr)
        raise SystemExit(2)
    target = Target.from_device("cuda")
    every = [case for shape in options.shapes.split(",") for precision in options.precisions.split(",")
             for case in cases(shape, precision, options.tiles, target)]  # fmt: skip
    records = list(rows(every, str(target), options.seconds))
    if options.out is not None:
        options.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    table(records)


if __name__ == "__main__":
    main()

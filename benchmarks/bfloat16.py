"""Whole models in bfloat16 beside float32 and OpenVINO's bfloat16: CPU time of one thread, in turns, and errors.

    pip install openvino
    python -m benchmarks.bfloat16 ZOO [--models resnet50,bert_base] [--rounds 9]

ZOO is a folder that ``python -m benchmarks.zoo`` wrote. An error is the largest difference from relayc's float32
result, as a part of its largest magnitude. Records are appended to ``results/bfloat16.jsonl``; the ratio is OpenVINO's
time divided by that of relayc.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import Runner, openvino_runner
from benchmarks.records import RESULTS, Record, append, markdown, origin
from benchmarks.timing import in_turns
from relayc import relay
from relayc.backend.runtime import device
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import PassContext

Feeds = dict[str, np.ndarray[Any, Any]]


def of_relayc(path: Path, feeds: Feeds, precision: str) -> Runner:
    """Runs of the model in "" (float32) or "bfloat16" by one thread."""
    mod, params = from_onnx(path, shape={name: x.shape for name, x in feeds.items()})
    with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
        executor = GraphModule(relay.build(mod, "llvm", params)["default"](device("cpu", 0)), 1)
    return lambda: executor.infer(feeds)


def measure(path: Path, feeds: Feeds, rounds: int) -> Record:
    """Medians of milliseconds, and errors."""
    runs = {
        "relayc_float32": of_relayc(path, feeds, ""),
        "relayc": of_relayc(path, feeds, "bfloat16"),
        "openvino": openvino_runner(path, 1, feeds, "bf16"),
    }
    results = {name: np.asarray(run()[0], np.float64) for name, run in runs.items()}
    times = in_turns(runs, rounds, 0.0, time.process_time)
    exact = results["relayc_float32"]
    record: Record = {f"{name}_ms": round(1e3 * statistics.median(found), 2) for name, found in times.items()}
    for name in ("relayc", "openvino"):
        record[f"{name}_error"] = float(f"{np.abs(results[name] - exact).max() / np.abs(exact).max():.2g}")
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, append the records and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--models", default="resnet50,mobilenet_v2,bert_base,vit_b16")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    rows = [["model", "float32, ms", "bfloat16, ms", "OpenVINO, ms", "ratio", "error", "OpenVINO's error"]]
    for name in options.models.split(","):
        path = options.zoo / f"{name}.onnx"
        found = measure(path, dict(np.load(path.with_suffix(".npz"))), options.rounds)
        append(RESULTS / "bfloat16.jsonl", {**origin("bfloat16"), "case": name, "threads": 1, **found})
        rows.append([name, *[f"{found[f'{e}_ms']:.1f}" for e in ("relayc_float32", "relayc", "openvino")],
                     f"{found['openvino_ms'] / found['relayc_ms']:.2f}",
                     *[f"{found[f'{e}_error']:.1e}" for e in ("relayc", "openvino")]])  # fmt: skip
    print(markdown(rows))


if __name__ == "__main__":
    main()

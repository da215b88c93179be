"""What the option "relay.check_indices" costs: whole models with and without it, alternating in one process.

    python -m benchmarks.index_checks [--zoo FOLDER] [--rounds 40] [MODEL ...]

Models are those of the zoo's folder (`python -m benchmarks.zoo FOLDER`) that gather by indices known at run time only,
by default bert_base and gpt2, and `embedding`, a lookup of 128 rows with a mean and a product, where the check weighs
most. Each round runs both for at least 20 ms, on one thread and by that thread's clock; the ratio is that of the
smallest times. `check_us` is the time of the kernels that check, by a profile. Prints a line of JSON for each model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import relayc
from benchmarks.records import append, origin
from benchmarks.timing import in_turns
from relayc.runtime import GraphModule, device

OPTIONS = ({}, {"relay.check_indices": True})


def write_embedding(folder: Path) -> tuple[Path, dict[str, Any]]:
    """y = mean(table[ids], 0) @ w, with 128 ids and a table of 30,000 rows of 128."""
    rng = np.random.default_rng(0)
    weights = {"table": rng.standard_normal((30000, 128)), "w": rng.standard_normal((128, 256))}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="lookup"),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("MatMul", ["mean", "w"], ["y"]),
    ]
    values = [helper.make_tensor_value_info("ids", TensorProto.INT64, [128])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256])]
    stored = [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "embedding", values, results, stored)
    path = folder / "embedding.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path, {"ids": rng.integers(0, 30000, 128)}


def measure(path: Path, inputs: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Smallest milliseconds of a run without and with checks, their ratio, number and microseconds of the checks."""
    executors: list[GraphModule] = []
    for config in OPTIONS:
        model = relayc.compile_onnx(path, config=config)
        executors.append(GraphModule(model["default"](device("cpu")), 1))
        executors[-1].set_input(**inputs)
    times = in_turns({"plain": executors[0].run, "checked": executors[1].run}, rounds, 0.02, time.thread_time)
    plain, checked = (1e3 * min(seconds) for seconds in times.values())
    kernels = [call.us for call in executors[1].profile(rounds) if call.ops.startswith("indices.check")]
    return {"ms": round(plain, 4), "checked_ms": round(checked, 4), "ratio": round(checked / plain, 4),
            "checks": len(kernels), "check_us": round(sum(kernels), 2)}  # fmt: skip


def main() -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, help="file for the records")
    parser.add_argument("models", nargs="*", default=["embedding", "bert_base", "gpt2"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            if name == "embedding":
                path, inputs = write_embedding(Path(folder))
            else:
                path = options.zoo / f"{name}.onnx"
                with np.load(path.with_suffix(".npz")) as arrays:
                    inputs = {key: arrays[key] for key in arrays.files}
            record = {**origin("index_checks"), "case": name, **measure(path, inputs, options.rounds)}
            print(json.dumps(record), flush=True)
            if options.out is not None:
                append(options.out, record)


if __name__ == "__main__":
    main()

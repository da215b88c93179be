"""Measured figures in ``benchmarks/results``: files of one JSON record a line, and what is common to tables of them.

``MACHINE.jsonl`` has the whole models of `benchmarks.models`, a file for each CPU; the other files have a subject each.
Their records name the program that measured ("ad hoc": a script that is not kept), the machine, the case, and values
whose keys say the unit. "date" is the day of the measurement; where that is not known, "recorded" is the day on which
the figures entered the repository. "_low" and "_high" are the extremes of several runs.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

__all__ = [
    "CPUS", "MACHINES", "RESULTS", "Record", "append", "geometric_mean", "machine", "markdown", "origin", "ratio",
    "read",
]  # fmt: skip

RESULTS = Path(__file__).parent / "results"
"""The folder of results."""
CPUS = {"zen5": "Zen 5", "zen4": "Zen 4", "zen3": "Zen 3", "xeon": "Xeon"}
"""The CPUs that were measured, by the names of their files, and what tables call them."""
MACHINES = {**CPUS, "emeraldrapids": "Xeon (Emerald Rapids)", "h200": "H200"}
PEERS = ("onnxruntime", "genai", "openvino", "llama_cpp", "torch_compile", "torch")
_LLVM_NAMES = {"znver3": "zen3", "znver4": "zen4", "znver5": "zen5", "sapphirerapids": "xeon"}
_UNITS = ("ms", "us", "tflops")

Record = dict[str, Any]


def machine() -> str:
    """The name of this machine's CPU in the results; LLVM's name of a CPU that has no results yet."""
    name = llvm.get_host_cpu_name()
    return _LLVM_NAMES.get(name, name)


def origin(program: str) -> Record:
    """What every record begins with: the program of this folder that measures, this machine, and the day."""
    return {"program": f"benchmarks.{program}", "machine": machine(), "date": time.strftime("%Y-%m-%d")}


def read(path: Path | str) -> list[Record]:
    """The records of a file, or of a subject's or machine's file in the folder of results."""
    path = path if isinstance(path, Path) else RESULTS / f"{path}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, record: Record) -> None:
    """Add a record to a file at once, so that an interrupted program keeps what it has measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps(record), file=file)


def ratio(record: Record) -> float:
    """The fastest peer's time divided by that of relayc: above 1, relayc is faster. NaN when either is missing."""
    if "ratio" in record:
        return record["ratio"]
    for unit in _UNITS:
        peers = [record[f"{peer}_{unit}"] for peer in PEERS if f"{peer}_{unit}" in record]
        if peers and f"relayc_{unit}" in record:
            ours = record[f"relayc_{unit}"]
            return ours / max(peers) if unit == "tflops" else min(peers) / ours
    return float("nan")


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean, leaving out NaN."""
    known = [value for value in values if value == value]
    return statistics.geometric_mean(known) if known else float("nan")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

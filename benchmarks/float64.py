"""Mathematical functions of float64 beside float32: CPU time of an element, by one thread.

    python -m benchmarks.float64 [--only erf,log] [--elements 100000] [--rounds 15] [--target llvm] [--results FILE]

Both types have as many elements, by default so many that tensors of float64 take 1.6 MB. They run in turns; figures are
the least of all rounds, less those of a few elements: what a call costs. A ratio of 2 is that of the bytes and of
the lanes of a vector. Arguments are uniform in an interval in which no function has special values. FILE gets a record
of each function (`benchmarks.records`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.records import append, markdown, origin
from benchmarks.timing import in_turns
from relayc import relay
from relayc.backend.runtime import device
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.relay.expr import Call

nn = relay.nn
FUNCTIONS: dict[str, tuple[Callable[..., Call], float, float]] = {
    "erf": (relay.erf, -3, 3), "gelu": (nn.gelu, -3, 3), "log": (relay.log, 0.1, 10), "log2": (relay.log2, 0.1, 10),
    "log10": (relay.log10, 0.1, 10), "log1p": (relay.log1p, -0.9, 9), "softplus": (nn.softplus, -5, 5),
    "power": (relay.power, 0.1, 3), "atan": (relay.atan, -3, 3), "asin": (relay.asin, -1, 1),
    "acos": (relay.acos, -1, 1), "asinh": (relay.asinh, -5, 5), "acosh": (relay.acosh, 1, 10),
    "atanh": (relay.atanh, -0.99, 0.99), "exp": (relay.exp, -5, 5), "tanh": (relay.tanh, -3, 3),
    "sin": (relay.sin, -10, 10), "cos": (relay.cos, -10, 10), "tan": (relay.tan, -1.5, 1.5),
    "sinh": (relay.sinh, -5, 5), "cosh": (relay.cosh, -5, 5), "sigmoid": (relay.sigmoid, -5, 5),
    "silu": (nn.silu, -5, 5), "mish": (nn.mish, -5, 5), "elu": (nn.elu, -5, 5), "sqrt": (relay.sqrt, 0.1, 10),
}  # fmt: skip
"""Name -> the function, and the interval of its arguments."""
_FEW = 64
"""Elements of a call that takes the time of a call."""


def run_of(name: str, dtype: str, elements: int, target: str) -> Callable[[], object]:
    """Runs of the function on so many elements."""
    function, low, high = FUNCTIONS[name]
    random = np.random.default_rng(1)
    inputs = [relay.var(x, (elements,), dtype) for x in ("xy" if name == "power" else "x")]
    module = relay.build(relay.Function(inputs, function(*inputs)), target)["default"](device("cpu", 0))
    executor = GraphModule(module, 1)
    for x in inputs:
        executor.set_input(x.name, random.uniform(low, high, elements).astype(dtype))
    return executor.run


def nanoseconds(name: str, elements: int, rounds: int, target: str) -> tuple[float, float]:
    """Nanoseconds of an element in float32 and float64."""
    sizes = {"call": _FEW, "all": elements}
    runs = {f"{dtype} {size}": run_of(name, dtype, n, target)
            for dtype in ("float32", "float64") for size, n in sizes.items()}  # fmt: skip
    least = {run: min(found) for run, found in in_turns(runs, rounds, 5e-3, time.thread_time).items()}
    single, double = [(least[f"{dtype} all"] - least[f"{dtype} call"]) / (elements - _FEW)
                      for dtype in ("float32", "float64")]  # fmt: skip
    return 1e9 * single, 1e9 * double


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the functions that the command line selects, print a table, and append records where wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(FUNCTIONS), help="names of functions")
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", default="llvm", help="a target that this machine can run")
    parser.add_argument("--results", type=Path, help="file to append a record of each function to")
    options = parser.parse_args(arguments)
    rows = [["function", "float32, ns", "float64, ns", "ratio"]]
    for name in options.only.split(","):
        single, double = nanoseconds(name, options.elements, options.rounds, options.target)
        rows.append([name, f"{single:.3f}", f"{double:.3f}", f"{double / single:.2f}"])
        if options.results:
            append(options.results, {
                **origin("float64"), "case": name, "threads": 1, "target": options.target,
                "elements": options.elements, "float32_ns": round(single, 3), "float64_ns": round(double, 3),
            })  # fmt: skip
    print(markdown(rows))


if __name__ == "__main__":
    main()

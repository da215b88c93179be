"""How compilation grows with a model: graphs of N, 2 N and 4 N nodes of a few shapes, compiled without a cache.

    python -m benchmarks.compile_growth [--shapes chain,split] [--nodes 2500] [--out FILE]

Every model is compiled in a process of its own. A line gives its seconds of CPU time and by the clock, and the
process's peak memory in MiB. FILE gets a record of each (`benchmarks.records`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from benchmarks.records import Record, append, markdown, origin
from relayc import relay
from relayc.frontends.onnx import from_onnx

ROOT = Path(__file__).resolve().parent.parent
_FLOAT = TensorProto.FLOAT
_WIDTH = 4


def _value(name: str, *shape: int, dtype: int = _FLOAT) -> object:
    return helper.make_tensor_value_info(name, dtype, shape)


def _constant(name: str, *numbers: int) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def chain(count: int) -> GraphProto:
    """One elementwise operator after the other."""
    nodes = [helper.make_node(("Tanh", "Sigmoid")[i % 2], [f"x{i}"], [f"x{i + 1}"]) for i in range(count)]
    return helper.make_graph(nodes, "chain", [_value("x0", _WIDTH)], [_value(f"x{count}", _WIDTH)])


def products(count: int) -> GraphProto:
    """A chain of products of matrices, each with weights of its own."""
    weights = np.random.default_rng(0).standard_normal((count, _WIDTH, _WIDTH)).astype(np.float32)
    initializers = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    ends = [_value("x0", 2, _WIDTH)], [_value(f"x{count}", 2, _WIDTH)]
    return helper.make_graph(nodes, "products", *ends, initializers)


def concat(count: int) -> GraphProto:
    """A concatenation of as many inputs."""
    inputs = [_value(f"x{i}", 1, _WIDTH) for i in range(count)]
    nodes = [helper.make_node("Concat", [f"x{i}" for i in range(count)], ["y"], axis=0)]
    return helper.make_graph(nodes, "concat", inputs, [_value("y", count, _WIDTH)])


def inputs(count: int) -> GraphProto:
    """As many inputs, each with an operator and an output of its own."""
    nodes = [helper.make_node("Tanh", [f"x{i}"], [f"y{i}"]) for i in range(count)]
    ends = [[_value(f"{name}{i}", 1, _WIDTH) for i in range(count)] for name in "xy"]
    return helper.make_graph(nodes, "inputs", *ends)


def slices(count: int) -> GraphProto:
    """Slices of one tensor, an operator for each, and their concatenation."""
    initializers = [_constant(f"n{i}", i) for i in range(count + 1)]
    nodes = [helper.make_node("Slice", ["x", f"n{i}", f"n{i + 1}"], [f"s{i}"]) for i in range(count)]
    nodes += [helper.make_node("Tanh", [f"s{i}"], [f"t{i}"]) for i in range(count)]
    nodes += [helper.make_node("Concat", [f"t{i}" for i in range(count)], ["y"], axis=0)]
    return helper.make_graph(nodes, "slices", [_value("x", count, _WIDTH)], [_value("y", count, _WIDTH)], initializers)


def split(count: int) -> GraphProto:
    """A split into as many outputs."""
    nodes = [helper.make_node("Split", ["x"], [f"y{i}" for i in range(count)], axis=0, num_outputs=count)]
    outputs = [_value(f"y{i}", 1, _WIDTH) for i in range(count)]
    return helper.make_graph(nodes, "split", [_value("x", count, _WIDTH)], outputs)


def branches(count: int) -> GraphProto:
    """A chain of If nodes."""

    def branch(op: str, i: int) -> GraphProto:
        return helper.make_graph([helper.make_node(op, [f"x{i}"], [f"{op}{i}"])], op, [], [_value(f"{op}{i}", _WIDTH)])

    nodes = [helper.make_node("If", ["c"], [f"x{i + 1}"], then_branch=branch("Tanh", i), else_branch=branch("Neg", i))
             for i in range(count)]  # fmt: skip
    ends = [_value("x0", _WIDTH), _value("c", dtype=TensorProto.BOOL)], [_value(f"x{count}", _WIDTH)]
    return helper.make_graph(nodes, "branches", *ends)


SHAPES: dict[str, Callable[[int], GraphProto]] = {
    made.__name__: made for made in (chain, products, concat, inputs, slices, split, branches)
}


def model(shape: str, count: int) -> ModelProto:
    """The model of a shape with `count` nodes, inputs or outputs."""
    return helper.make_model(SHAPES[shape](count), ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compiled(shape: str, count: int) -> Record:
    """Compile one model in this process; its seconds, and the memory of the process beyond that of the model."""
    proto = model(shape, count)
    before = _peak_bytes()
    clock, cpu = time.perf_counter(), time.process_time()
    mod, params = from_onnx(proto)
    imported = time.process_time() - cpu
    built = relay.build(mod, target="llvm", params=params)
    seconds = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - clock, "import_s": imported}
    seconds |= {f"{name}_s": value for name, value in built.build_report.seconds.items()}
    facts = {name: round(value, 3) for name, value in seconds.items()}
    return facts | {"mib": round((_peak_bytes() - before) / 2**20)}


def measure(shape: str, count: int) -> Record:
    """The record of one model, compiled in a process of its own without a cache."""
    imports = "import json; from benchmarks.compile_growth import compiled"
    code = f"{imports}; print(json.dumps(compiled({shape!r}, {count})))"
    environment = {**os.environ, "RELAYC_CACHE_DIR": "off"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return {**origin("compile_growth"), "case": shape, "nodes": count, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Measure and print, a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--nodes", type=int, default=2500, help="the least number of nodes")
    parser.add_argument("--out", type=Path, help="a file to which records are added")
    options = parser.parse_args()
    records: list[Record] = []
    for shape in options.shapes:
        for times in (1, 2, 4):
            records.append(measure(shape, options.nodes * times))
            if options.out is not None:
                append(options.out, records[-1])
            print(" ".join(f"{key}={value}" for key, value in list(records[-1].items())[3:]), flush=True)
    keys = ["case", "nodes", "cpu_s", "wall_s", "mib"]
    print(markdown([keys, *[[str(record[key]) for key in keys] for record in records]]))


if __name__ == "__main__":
    main()

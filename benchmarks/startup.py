"""Start-up and overhead: import, compilation with an empty and a full cache, loading, executor time per node.

    python -m benchmarks.startup MODEL.onnx INPUTS.npz

Figures are medians of runs in new processes (compilation: of three). The executor's overhead is the slope of the run
time over the number of nodes of a chain of tiny kernels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_IMPORT = """
import time; start = time.perf_counter()
from relayc import relay
print(time.perf_counter() - start)
"""
_COMPILE = """
import sys, time
import numpy as np
from relayc import relay
from relayc.frontends.onnx import from_onnx
feeds = np.load(sys.argv[2])
start = time.perf_counter()
mod, params = from_onnx(sys.argv[1], shape={name: feeds[name].shape for name in feeds.files})
lib = relay.build(mod, target="llvm", params=params)
seconds = time.perf_counter() - start
lib.save(sys.argv[3])
print(seconds)
"""
_LOAD = """
import sys, time
from relayc.backend.runtime import device, graph_executor, load_model
start = time.perf_counter()
module = graph_executor.GraphModule(load_model(sys.argv[1])["default"](device("cpu", 0)))
print(time.perf_counter() - start)
"""
_OVERHEAD = """
import time
import numpy as np
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.te.ir import IRModule, PassContext

def seconds(nodes):
    x = relay.var("x", (16,))
    y = x
    for _ in range(nodes):
        y = relay.op.sigmoid(y)  # a chain of relu would be simplified to one
    with PassContext(config={"relay.FuseOps.max_size": 1}):
        lib = relay.build(IRModule({"main": relay.Function((x,), y)}), target="llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
    module.set_input("x", np.zeros(16, "float32"))
    times = []
    for _ in range(200):
        start = time.perf_counter(); module.run(); times.append(time.perf_counter() - start)
    return sorted(times)[100]

few, many = seconds(10), seconds(1010)
print((many - few) / 1000 * 1e6, few * 1e6)
"""


def _python(code: str, *arguments: str, cache: str) -> list[float]:
    environment = {**os.environ, "RELAYC_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Measure and print, a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an .onnx file")
    parser.add_argument("inputs", type=Path, help="an .npz file of its inputs by name")
    options = parser.parse_args()
    model, inputs = (str(path.resolve(strict=True)) for path in (options.model, options.inputs))
    with tempfile.TemporaryDirectory() as scratch:
        cold: list[float] = []
        for i in range(3):
            cold += _python(_COMPILE, model, inputs, f"{scratch}/model.relayc", cache=f"{scratch}/cache{i}")
        cache = f"{scratch}/cache0"
        warm = [s for _ in range(3) for s in _python(_COMPILE, model, inputs, f"{scratch}/model.relayc", cache=cache)]
        load = [s for _ in range(5) for s in _python(_LOAD, f"{scratch}/model.relayc", cache=cache)]
        imports = [s for _ in range(5) for s in _python(_IMPORT, cache=cache)]
        per_node, least = _python(_OVERHEAD, cache=cache)
    print(f"import relay:            {statistics.median(imports):.3f} s")
    print(f"compile, cold:           {statistics.median(cold):.2f} s")
    print(f"compile, warm cache:     {statistics.median(warm):.2f} s")
    print(f"load the artifact:       {statistics.median(load):.3f} s")
    print(f"executor, each node:     {per_node:.3f} us (a run of 10 nodes: {least:.1f} us)")


if __name__ == "__main__":
    main()

"""A model for an NVIDIA GPU, compiled on any machine and run where there is a GPU.

    python examples/gpu_model.py [MODEL.onnx] [--arch sm_90] [--precision float32|float16|bfloat16]

Needs `pip install '.[cuda]'`. Prints what the kernels use of the GPU, and where there is one, the time of a run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx.backend.test

from relayc import relay
from relayc.backend.cuda.driver import probe
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.te.ir import PassContext

SQUEEZENET = Path(onnx.backend.test.__file__).parent / "data/light/light_squeezenet.onnx"


def main() -> None:
    """Compile, report, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="?", default=SQUEEZENET)
    parser.add_argument("--arch", help="default: that of this machine's GPU, or sm_90")
    parser.add_argument("--precision", default="float32", choices=["float32", "float16", "bfloat16"])
    options = parser.parse_args()

    module, params = from_onnx(options.model)
    half = "" if options.precision == "float32" else options.precision
    with PassContext(config={"relay.ToMixedPrecision.dtype": half}):
        lib = relay.build(module, f"cuda -arch={options.arch}" if options.arch else "cuda", params)
    print(lib.build_report)
    reports = lib.module.report.values()
    print(f"{len(reports)} kernels for {lib.module.arch}: at most {max(r['registers'] for r in reports)} registers and "
          f"{max(r['shared'] for r in reports)} bytes of shared memory, {sum(r['spill_stores'] > 0 for r in reports)} "
          "with spilled registers")  # fmt: skip

    count, reason = probe()
    if count == 0:
        print(f"not run: {reason}")
        return
    executor = graph_executor.GraphModule(lib["default"](device("cuda", 0)))
    rng = np.random.default_rng(0)
    shapes, dtypes = executor.get_input_info()
    for name, shape in shapes.items():
        numbers = rng.standard_normal(shape) if dtypes[name].startswith("float") else rng.integers(0, 100, shape)
        executor.set_input(name, numbers.astype(dtypes[name]))
    executor.run()
    for i in range(executor.get_num_outputs()):
        print(f"output {i}: {executor.get_output(i).numpy().shape}")
    print(executor.benchmark(repeat=10, number=10))


if __name__ == "__main__":
    main()

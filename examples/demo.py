"""Compile a real architecture, run it, and compare with the output recorded by the ONNX project.

    python examples/demo.py [--model squeezenet|resnet50|...] [--threads N]

The models are those that the onnx package brings along for its own tests; nothing is downloaded. Prints the steps of
compiling with their times, the agreement with the recorded output, the latency and the slowest kernels.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper

from relayc import relay
from relayc.backend.runtime import device, graph_executor, load_model
from relayc.frontends.onnx import from_onnx

MODELS = Path(onnx.backend.test.__file__).parent / "data" / "light"
RTOL, ATOL = 1e-3, 1e-7
"""Tolerances of the ONNX project's own test of these models."""


def recorded_case(name: str) -> tuple[Path, dict[str, np.ndarray], np.ndarray]:
    """The model's file, its input (the ramp that the ONNX project's test feeds) and the output recorded for it."""
    path = MODELS / f"light_{name}.onnx"
    if not path.is_file():
        known = ", ".join(sorted(p.stem.removeprefix("light_") for p in MODELS.glob("light_*.onnx")))
        raise SystemExit(f"no model {name!r} in the onnx package; it has: {known}")
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name not in weights:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            size = int(np.prod(shape))
            inputs[value.name] = (np.arange(size).reshape(shape) / size).astype(np.float32)
    output = onnx.TensorProto()
    output.ParseFromString((MODELS / f"light_{name}_output_0.pb").read_bytes())
    return path, inputs, numpy_helper.to_array(output)


def main() -> int:
    """Run the demo; the exit code is 0 when the output agrees."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="squeezenet", help="a light model of the onnx package (default: squeezenet)")
    parser.add_argument("--threads", type=int, default=None, help="threads to run on (default: all)")
    parser.add_argument("--kernels", type=int, default=8, help="kernels to list")
    args = parser.parse_args()
    path, inputs, expected = recorded_case(args.model)

    print(f"model: {path.name} ({path.stat().st_size / 1e3:.0f} kB)\n\ncompiling")
    start = time.perf_counter()
    module, params = from_onnx(path)
    print(f"{'import':<12} {time.perf_counter() - start:8.3f} s")
    compiled = relay.build(module, target="llvm", params=params)
    print(compiled.build_report)

    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / f"{args.model}.relayc"
        compiled.save(artifact)
        start = time.perf_counter()
        loaded = load_model(artifact)
        seconds = time.perf_counter() - start
        print(f"artifact: {artifact.stat().st_size / 1e6:.1f} MB, loaded in {seconds * 1e3:.0f} ms")
        executor = graph_executor.GraphModule(loaded["default"](device("cpu", 0)), args.threads)

    for name, value in inputs.items():
        executor.set_input(name, value)
    executor.run()
    got = executor.get_output(0).numpy()
    error = float(np.max(np.abs(got - expected) / np.maximum(np.abs(expected), 1e-30)))
    agrees = bool(np.allclose(got, expected, rtol=RTOL, atol=ATOL))
    print(f"\nagainst the recorded output: {'agrees' if agrees else 'DIFFERS'}, largest relative error {error:.1e}")

    result = executor.benchmark(repeat=20, number=1)
    print(f"latency: median {result.median * 1e3:.2f} ms on {executor.num_threads} threads\n\nslowest kernels")
    print(executor.profile().table(top=args.kernels))
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())

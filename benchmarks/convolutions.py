"""Convolution layers through `relay.build`, direct and by Winograd's algorithm, against the FMA peak.

    python -m benchmarks.convolutions [--rounds 20] [--layers 0:8]

Layers of the models that `benchmarks.models` runs, one thread. GFLOP/s count the operations of the direct convolution,
so that Winograd's algorithm can exceed the peak. Kernels and the FMA loop are interleaved and timed by their CPU time;
errors are the largest against float64, relative to the root mean square of the results.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from relayc import relay
from relayc.backend.llvm.ceilings import FmaLoop
from relayc.backend.runtime import device, graph_executor
from relayc.relay.op.nn.conv import convolve
from relayc.te.ir import IRModule, PassContext


class Layer(NamedTuple):
    """A square convolution with padding of half the kernel."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def flops(self) -> float:
        """Floating-point operations of the direct convolution."""
        positions = (-(-self.size // self.stride)) ** 2
        return 2.0 * positions * self.kernel**2 * self.inputs // self.groups * self.outputs


LAYERS = (
    Layer(224, 3, 64, 7, 2), Layer(56, 64, 256, 1), Layer(14, 1024, 256, 1), Layer(56, 128, 128, 3, 2),
    Layer(56, 64, 64, 3), Layer(28, 128, 128, 3), Layer(14, 256, 256, 3), Layer(7, 512, 512, 3),
    Layer(224, 64, 64, 3), Layer(112, 128, 128, 3), Layer(56, 256, 256, 3), Layer(28, 512, 512, 3),
    Layer(56, 128, 32, 3), Layer(14, 128, 32, 3), Layer(7, 128, 32, 3), Layer(27, 96, 256, 5, 1, 2),
    Layer(13, 384, 256, 3, 1, 2), Layer(128, 256, 150, 1), Layer(28, 136, 136, 1, 1, 4), Layer(28, 256, 256, 3, 1, 32),
    Layer(56, 128, 128, 3, 1, 32), Layer(14, 512, 512, 3, 1, 32), Layer(56, 256, 256, 3, 2, 32),
    Layer(28, 104, 104, 3, 1, 13), Layer(14, 320, 320, 3, 1, 20), Layer(14, 336, 336, 3, 1, 14),
    Layer(28, 240, 240, 3, 1, 6), Layer(28, 136, 136, 3, 1, 4), Layer(28, 240, 240, 1, 1, 3),
)  # fmt: skip
"""ResNet-50's, VGG-19's, DenseNet-121's, AlexNet's, SegFormer's, ShuffleNet's, ResNeXt-50's and RegNets'."""


class Measured(NamedTuple):
    """A compiled layer: its executor, its algorithm and its error."""

    module: graph_executor.GraphModule
    algorithm: str
    error: float


def convolution(layer: Layer) -> tuple[relay.Function, np.ndarray[Any, Any]]:
    """The layer with random weights and a relu, channels last, and the weights."""
    shape = (layer.outputs, layer.inputs // layer.groups, layer.kernel, layer.kernel)
    weight = np.random.default_rng(0).standard_normal(shape, np.float32)
    x, pad = relay.var("x", (1, layer.size, layer.size, layer.inputs)), layer.kernel // 2
    y = relay.nn.conv2d(
        x, relay.const(weight), strides=layer.stride, padding=pad, groups=layer.groups, data_layout="NHWC"
    )
    return relay.Function((x,), relay.nn.relu(y)), weight


def compile_layer(layer: Layer, winograd: str) -> Measured:
    """The layer compiled for this machine, its error measured."""
    function, weight = convolution(layer)
    data = np.random.default_rng(1).standard_normal((1, layer.inputs, layer.size, layer.size), np.float32)
    with PassContext(config={"relay.winograd": winograd}):
        lib = relay.build(IRModule({"main": function}), target="llvm")
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=1)
    module.set_input("x", np.ascontiguousarray(data.transpose(0, 2, 3, 1)))
    module.run()
    pads = (layer.kernel // 2,) * 4
    exact = np.maximum(convolve(data, weight, (layer.stride,) * 2, pads, (1, 1), layer.groups), 0)
    error = np.abs(module.get_output(0).numpy().transpose(0, 3, 1, 2) - exact).max() / np.sqrt((exact**2).mean())
    operators = [name for node in lib.graph.nodes for name in node.ops]
    return Measured(module, "Winograd" if "nn.conv2d_nhwc_winograd" in operators else "direct", float(error))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--layers", default=":", help="which of the layers, as first:last")
    options = parser.parse_args()
    rounds, (first, last) = options.rounds, [int(n) if n else None for n in options.layers.split(":")]
    loop = FmaLoop()
    print("| layer | direct, GFLOP/s | of the peak | Winograd, GFLOP/s | gain | error, direct | error, Winograd |")
    print("|---|---|---|---|---|---|---|")
    for layer in LAYERS[first:last]:
        kernels = [compile_layer(layer, winograd) for winograd in ("off", "auto")]
        if kernels[1].algorithm == "direct":
            kernels.pop()
        peaks: list[float] = []
        speeds: list[list[float]] = [[] for _ in kernels]
        for _ in range(rounds):
            peaks.append(loop.gflops())
            for kernel, measured in zip(kernels, speeds, strict=True):
                start = time.thread_time()
                kernel.module.run()
                measured.append(layer.flops / (time.thread_time() - start) / 1e9)
        print(row(layer, kernels, [statistics.median(s) for s in speeds], max(peaks)), flush=True)


def row(layer: Layer, kernels: list[Measured], speeds: list[float], peak: float) -> str:
    """A row of the table."""
    stride = f" stride {layer.stride}" if layer.stride > 1 else ""
    groups = f", {layer.groups} groups" if layer.groups > 1 else ""
    kernel = f"{layer.kernel}x{layer.kernel}{stride}{groups}"
    name = f"{layer.size}x{layer.size}x{layer.inputs} to {layer.outputs}, {kernel}"
    cells = [name, f"{speeds[0]:.1f}", f"{100 * speeds[0] / peak:.0f} %"]
    if len(speeds) > 1:
        cells += [f"{speeds[1]:.1f}", f"{speeds[1] / speeds[0]:.2f}"]
    else:
        cells += ["-", "-"]
    cells += [f"{kernels[0].error:.1e}", f"{kernels[1].error:.1e}" if len(kernels) > 1 else "-"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

"""Many random graphs for processors that this machine is not, in several precisions.

    python -m tests.processor_emulation.random_graphs --graphs 500 [--start 0] [--seconds 600] [--targets znver4,...]

Graphs as they are get the oracle's results; those in mixed precision the results of code for this machine, which rounds
the same values. Seeds take processors and precisions in turns. Exits with 1 when a graph failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from unittest import mock

import numpy as np

from relayc import relay
from relayc.backend.runtime import RelaycError
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.onnx.backend import RelayBackend
from relayc.frontends.onnx.verify import departure
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext
from tests.fuzz import compare
from tests.fuzz.builder import Sample, random_graph
from tests.fuzz.oracle import InvalidModel, expected_outputs
from tests.processor_emulation.emulation import emulating

__all__ = ["PRECISIONS", "TARGETS", "check_graph", "main"]

TARGETS = (
    "sapphirerapids", "graniterapids", "znver4", "znver5", "cooperlake", "alderlake", "neoverse-v1", "apple-m1",
)  # fmt: skip
PRECISIONS = ("bfloat16", "", "float16")

_PRODUCTS = (
    "MatMul", "Gemm", "Conv", "MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv", "QuantizeLinear",
    "DequantizeLinear", "DynamicQuantizeLinear", "com.microsoft.MatMulNBits", "com.microsoft.DynamicQuantizeMatMul",
    "com.microsoft.QGemm", "com.microsoft.FusedGemm", "com.microsoft.FusedConv", "com.microsoft.FusedMatMul",
    "com.microsoft.Attention", "com.microsoft.QLinearAdd", "LSTM", "GRU", "Attention",
)  # fmt: skip
_BESIDE = (
    "Add", "Mul", "Relu", "Clip", "Cast", "Transpose", "Reshape", "Concat", "Slice", "LayerNormalization", "Softmax",
    "com.microsoft.Gelu", "com.microsoft.SkipLayerNormalization", "MaxPool", "AveragePool", "GlobalAveragePool",
    "BatchNormalization", "Split", "Tanh", "Sigmoid",
)  # fmt: skip
_ALLOWED = {"float32": 0.05, "float16": 0.1, "bfloat16": 0.2}
"""Shares of the largest magnitude: an operand that is rounded the other way moves a product by 2^-8 of its own."""


def _backend(processor: str, precision: str) -> type[RelayBackend]:
    class Compiled(RelayBackend):
        """Compiles for the target `processor`, in the precision."""

        @classmethod
        def build(cls, mod: IRModule, target: str) -> CompiledModel:
            with PassContext(config={"relay.ToMixedPrecision.dtype": precision}):
                return relay.build(mod, target=processor)

    return Compiled


def check_graph(seed: int, target: str, precision: str) -> None:
    """Raises `Finding` if the graph of a seed is wrong on a processor."""
    sample = random_graph(seed, only=[*_PRODUCTS, *_PRODUCTS, *_BESIDE] if seed % 4 else None)
    backend = _backend(target, precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if precision:
            _compare_with_host(sample, backend, precision)
        else:
            with mock.patch.object(compare, "LoadedBackend", backend):
                compare.check(sample)


def _compare_with_host(sample: Sample, backend: type[RelayBackend], precision: str) -> None:
    there, here = None, None
    for i, inputs in enumerate(sample.runs):
        try:
            expected_outputs(sample, inputs)
        except InvalidModel:
            if i == 0:
                return
            continue
        try:
            here = here or _backend("llvm", precision).prepare(sample.model)
            expected = here.run(dict(inputs))
        except (CompileError, RelaycError):
            continue
        there = there or backend.prepare(sample.model)
        results = there.run(dict(inputs))
        for value, result, want in zip(sample.outputs, results, expected, strict=True):
            exact = value.exact or not value.is_float
            error = departure(np.asarray(result), np.asarray(want))
            if error > (0.0 if exact else _ALLOWED.get(value.dtype, 1e-6)):
                what = f"{value.name} ({value.dtype}{list(value.shape)})"
                raise compare.Finding(f"inputs {i}: {what} is off by {error:.2e}", i)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the graphs of the seeds from `start` on; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--targets", default=",".join(TARGETS), help="LLVM's names of processors")
    options = parser.parse_args(arguments)
    os.environ["RELAYC_CACHE_DIR"] = "off"
    began, failed, done = time.monotonic(), 0, 0
    cpus = options.targets.split(",")
    with emulating():
        for seed in range(options.start, options.start + options.graphs):
            if time.monotonic() - began > options.seconds:
                break
            cpu, precision = cpus[seed % len(cpus)], PRECISIONS[seed // len(cpus) % len(PRECISIONS)]
            try:
                check_graph(seed, f"llvm -mcpu={cpu} -num-cores=2", precision)
            except InvalidModel:
                continue
            except Exception as error:  # noqa: BLE001 - it is reported
                failed += 1
                what = f"seed {seed}, {cpu}, {precision or 'as it is'}"
                print(f"{what}: {type(error).__name__}: {error}", flush=True)
            done += 1
    print(f"{failed} of {done} graphs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

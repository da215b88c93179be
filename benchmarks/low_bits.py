"""Products with 4- and 8-bit weights: the layers of a decoder beside onnxruntime.

    python -m benchmarks.low_bits [--rows 1,4,128] [--bits 4] [--block 32] [--accuracy 4] [--layers 12] [--hidden 1024]
                                  [--asymmetric] [--dynamic] [--rounds 9] [--results FILE]

The model is a decoder without its attention: in each layer a root-mean-square norm, three projections (queries of
`hidden` columns, keys and values of a quarter), the output projection, and a gated layer of 2.75 times as many columns;
at the end a projection to 32768 tokens. All products are MatMulNBits nodes. Each number of rows is a model of its own;
with --dynamic one model serves all. One thread; what is measured is its CPU time, interleaved, the median of the
rounds. GB/s count the bytes of codes and scales, their share is that of a sum over 128 MiB; Gop/s two operations for
each weight and row.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.engines import onnxruntime_session
from benchmarks.peak import SumOfMemory
from benchmarks.records import append, origin
from benchmarks.timing import in_turns
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.frontends.onnx import from_onnx

TOKENS = 32768
_SECONDS = 0.1
"""Least time of a measurement."""


@dataclass(frozen=True)
class Decoder:
    """The sizes and types of the model."""

    hidden: int
    layers: int
    bits: int
    block: int
    accuracy: int
    asymmetric: bool

    def case(self, rows: int, dynamic: bool) -> str:
        """A measurement of these products with so many rows, in words."""
        data = "int8" if self.accuracy == 4 else "float"
        kind = f"{self.bits}-bit, blocks of {self.block}, {data} data{', asymmetric' if self.asymmetric else ''}"
        return f"{kind}, {rows} rows{', dynamic' if dynamic else ''}"

    def products(self) -> list[tuple[int, int]]:
        """(K, N) of every product, in order."""
        inner, n = self.hidden * 11 // 4, self.hidden
        layer = [(n, n), (n, n // 4), (n, n // 4), (n, n), (n, inner), (n, inner), (inner, n)]
        return layer * self.layers + [(n, TOKENS)]

    @property
    def weights(self) -> int:
        """The number of weights."""
        return sum(k * n for k, n in self.products())

    @property
    def nbytes(self) -> float:
        """Bytes of codes, scales and zero points."""
        of_block = self.block * self.bits / 8 + 4 + self.asymmetric * self.bits / 8
        return self.weights / self.block * of_block


class _Builder:
    """The model's graph, node by node."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attrs))
        return name

    def product(self, x: str, depth: int, columns: int) -> str:
        d, blocks = self.decoder, depth // self.decoder.block
        codes = self.random.integers(0, 256, (columns, blocks, d.block * d.bits // 8), np.uint8)
        largest = 3 / (depth**0.5 * (1 << (d.bits - 1)))
        scales = self.random.uniform(0.5 * largest, largest, (columns, blocks)).astype(np.float32)
        inputs = [x, self.constant(codes), self.constant(scales)]
        if d.asymmetric:
            inputs.append(self.constant(self.random.integers(0, 256, (columns, -(-blocks * d.bits // 8)), np.uint8)))
        return self.node("MatMulNBits", *inputs, domain="com.microsoft", K=depth, N=columns, bits=d.bits,
                         block_size=d.block, accuracy_level=d.accuracy)  # fmt: skip

    def norm(self, x: str) -> str:
        return self.node("SimplifiedLayerNormalization", x, self.constant(np.ones(self.decoder.hidden, np.float32)),
                         axis=-1, epsilon=1e-5)  # fmt: skip

    def layer(self, x: str) -> str:
        n, inner = self.decoder.hidden, self.decoder.hidden * 11 // 4
        data = self.norm(x)
        q, k, v = [self.product(data, n, columns) for columns in (n, n // 4, n // 4)]
        mixed = self.node("Mul", self.node("Sigmoid", q), self.node("Concat", k, v, k, v, axis=-1))
        x = self.node("Add", x, self.product(mixed, n, n))
        data = self.norm(x)
        gate, up = self.product(data, n, inner), self.product(data, n, inner)
        gated = self.node("Mul", self.node("Mul", gate, self.node("Sigmoid", gate)), up)
        return self.node("Add", x, self.product(gated, inner, n))

    def model(self, rows: int | str) -> onnx.ModelProto:
        d, x = self.decoder, "x"
        for _ in range(d.layers):
            x = self.layer(x)
        y = self.product(self.norm(x), d.hidden, TOKENS)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows, d.hidden])]
        outputs = [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, rows, TOKENS])]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


Run = Callable[[np.ndarray], np.ndarray]


def _relayc(model: onnx.ModelProto) -> Run:
    mod, params = from_onnx(model)
    lib = relay.build(mod, target="llvm", params=params)
    module = graph_executor.GraphModule(lib["default"](device("cpu", 0)), num_threads=1)

    def run(x: np.ndarray) -> np.ndarray:
        module.set_input("x", x)
        module.run()
        return module.get_output(0).numpy()

    return run


def _onnxruntime(model: onnx.ModelProto) -> Run:
    session = onnxruntime_session(model.SerializeToString())
    return lambda x: session.run(None, {"x": x})[0]


def measure(decoder: Decoder, rows: Sequence[int], dynamic: bool, rounds: int, results: Path | None) -> None:
    """Print, and append to `results`, the times of both engines for each number of rows."""
    read, engines = SumOfMemory(), {"relayc": _relayc, "onnxruntime": _onnxruntime}
    made: dict[str, Run] = {}
    for m in rows:
        if not dynamic or not made:
            model = _Builder(decoder).model("rows" if dynamic else m)
            made = {name: make(model) for name, make in engines.items()}
        x = np.random.default_rng(m).normal(size=(1, m, decoder.hidden)).astype(np.float32)
        outputs = [run(x) for run in made.values()]
        error = float(np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[1]).max())
        runs = {**{name: partial(run, x) for name, run in made.items()}, "read": read.run}
        times = in_turns(runs, rounds, _SECONDS, time.thread_time)
        found = {name: statistics.median(values) for name, values in times.items()}
        roof = read.nbytes / found["read"]
        record = {
            **origin("low_bits"), "case": decoder.case(m, dynamic), "threads": 1, **asdict(decoder), "rows": m,
            "dynamic": dynamic,
            **{f"{name}_ms": round(found[name] * 1e3, 3) for name in made},
            "ratio": round(found["onnxruntime"] / found["relayc"], 3), "read_gbs": round(roof / 1e9, 1),
            "difference": float(f"{error:.2g}"),
            **{f"{name}_gbs": round(decoder.nbytes / found[name] / 1e9, 1) for name in made},
            **{f"{name}_roof": round(decoder.nbytes / found[name] / roof, 2) for name in made},
            **{f"{name}_gops": round(2 * m * decoder.weights / found[name] / 1e9) for name in made},
        }  # fmt: skip
        for name in made:
            ms, gbs, share, gops = [record[f"{name}_{unit}"] for unit in ("ms", "gbs", "roof", "gops")]
            memory = f"{gbs:5.1f} GB/s ({share:4.0%} of {roof / 1e9:.1f})"
            print(f"{m:4} rows  {name:12} {ms:9.3f} ms  {memory}  {gops:5} Gop/s")
        print(f"{'':11}{record['ratio']:.2f} times as fast; outputs differ by {error:.1e} of the largest", flush=True)
        if results is not None:
            append(results, record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,128")
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--accuracy", type=int, default=4, help="accuracy_level: 4 for int8 activations, 0 for floats")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    decoder = Decoder(args.hidden, args.layers, args.bits, args.block, args.accuracy, args.asymmetric)
    measure(decoder, [int(m) for m in args.rows.split(",")], args.dynamic, args.rounds, args.results)


if __name__ == "__main__":
    main()

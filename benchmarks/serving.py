"""The server under load: compiled models, and onnxruntime behind the same server.

    python -m benchmarks.serving [--cases small,mlp,squeezenet] [--connections 8] [--seconds 2] [--rounds 5]
        [--out FILE]

Both engines run in one server process, two instances of one thread each, and get the same requests, whose tensors are
bytes, in turns of `--seconds`. A line gives requests per second, median and 99th percentile of the latency, and the
CPU time that the server takes for a request; all are medians of the rounds. "small" adds two vectors: it is what the
server itself takes. "mlp" is a perceptron of any number of rows, its requests joined to batches of up to 8. FILE gets a
record of each case (`benchmarks.records`).
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import relayc
from benchmarks.engines import onnxruntime_session
from benchmarks.light import write_light
from benchmarks.records import append, origin
from relayc.runtime import load_model
from relayc.server import CompiledRunner, ModelOptions, Repository, Stop, TensorSpec, serve

ENGINES = ("relayc", "onnxruntime")
INSTANCES = 2
BATCH = {"mlp": 8}
"""Largest batches, by case; 1 for others."""


class OnnxRunner:
    """A model in onnxruntime, for the server."""

    platform = "onnxruntime"
    batch_obstacle = None

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._session = onnxruntime_session(path)
        self._cancelled = onnxruntime.RunOptions
        self.inputs, self.outputs = (
            [TensorSpec(t.name, "FP32", tuple(d if isinstance(d, int) else -1 for d in t.shape)) for t in tensors]
            for tensors in (self._session.get_inputs(), self._session.get_outputs())
        )

    def infer(self, inputs: Mapping[str, Any], outputs: Sequence[str], stop: Stop) -> list[Any]:
        options = self._cancelled()

        def terminate() -> None:
            options.terminate = True

        with stop.ends_by(terminate):
            return self._session.run(list(outputs), dict(inputs), options)


def model_of(case: str, path: Path) -> tuple[int, ...]:
    """Write the ONNX model of a case; returns the shape of its input for one request."""
    if case not in ("small", "mlp"):
        written, feeds = write_light(case, path.parent)
        written.rename(path)
        (shape,) = [values.shape for values in np.load(feeds).values()]
        return shape
    widths = [16] if case == "small" else [256, 1024, 1024, 256]
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number, (a, b) in enumerate(itertools.pairwise(widths)):
        weights.append(numpy_helper.from_array(rng.standard_normal((a, b), np.float32) / a**0.5, f"w{number}"))
        nodes += [helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]),
                  helper.make_node("Relu", [f"m{number}"], [f"r{number}"])]  # fmt: skip
        last = f"r{number}"
    nodes.append(helper.make_node("Add", [last, last], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", widths[0]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", widths[-1]])
    graph = helper.make_graph(nodes, case, [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return (1, widths[0])


def run_server(folder: Path, batch: int) -> None:
    """Serve model.relayc and model.onnx of a folder until SIGTERM, and print the URL."""
    repository = Repository()
    options = ModelOptions(INSTANCES, max_batch_size=batch)
    repository.add("relayc", CompiledRunner(load_model(folder / "model.relayc"), num_threads=1), options=options)
    repository.add("onnxruntime", OnnxRunner(folder / "model.onnx"), options=options)
    serve(repository, port=0, started=lambda url: print(url, flush=True))


class Load:
    """Requests from several connections at once."""

    def __init__(self, address: str, shape: tuple[int, ...], connections: int) -> None:
        self._address = address
        self._connections = connections
        metadata = json.loads(self._get("/v2/models/relayc"))
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        item = {
            "name": metadata["inputs"][0]["name"], "datatype": "FP32", "shape": list(shape),
            "parameters": {"binary_data_size": x.nbytes},
        }  # fmt: skip
        header = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
        self._body, self._headers = header + x.tobytes(), {"Inference-Header-Content-Length": str(len(header))}

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(self._address)
        connection.request("GET", path)
        return connection.getresponse().read()

    def _cpu_seconds(self) -> float:
        (line,) = [x for x in self._get("/metrics").decode().splitlines() if x.startswith("process_cpu_seconds_total ")]
        return float(line.split()[1])

    def output(self, engine: str) -> np.ndarray:
        """The output of one request."""
        connection = http.client.HTTPConnection(self._address)
        data, length = self._send(connection, engine)
        return np.frombuffer(data[length:], np.float32)

    def _send(self, connection: http.client.HTTPConnection, engine: str) -> tuple[bytes, int]:
        connection.request("POST", f"/v2/models/{engine}/infer", self._body, self._headers)
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {data.decode()}")
        return data, int(response.headers["Inference-Header-Content-Length"])

    def run(self, engine: str, seconds: float) -> dict[str, float]:
        """Figures of so many seconds of requests, each connection sending the next one after the answer."""
        latencies: list[float] = []
        cpu, start = self._cpu_seconds(), time.perf_counter()
        end = start + seconds

        def work() -> None:
            connection = http.client.HTTPConnection(self._address)
            while (begin := time.perf_counter()) < end:
                self._send(connection, engine)
                latencies.append(time.perf_counter() - begin)
            connection.close()

        threads = [threading.Thread(target=work) for _ in range(self._connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        p50, p99 = np.percentile(latencies, [50, 99])
        return {
            "requests_per_s": len(latencies) / (time.perf_counter() - start), "p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99,
            "server_cpu_ms": 1e3 * (self._cpu_seconds() - cpu) / len(latencies),
        }  # fmt: skip


def measure(case: str, connections: int, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """The figures of both engines. Raises AssertionError if their results differ."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = model_of(case, folder / "model.onnx")
        relayc.compile_onnx(folder / "model.onnx").save(folder / "model.relayc")
        command = [sys.executable, "-m", "benchmarks.serving", "--serve", name, "--batch", str(BATCH.get(case, 1))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                load = Load(server.stdout.readline().strip().removeprefix("http://"), shape, connections)
                np.testing.assert_allclose(load.output("relayc"), load.output("onnxruntime"), rtol=1e-2, atol=1e-4)
                for engine in ENGINES:
                    load.run(engine, seconds / 4)
                orders = [ENGINES if number % 2 else ENGINES[::-1] for number in range(rounds)]
                found = [{engine: load.run(engine, seconds) for engine in order} for order in orders]
            finally:
                server.terminate()
    figures = found[0]["relayc"]
    return {e: {f: statistics.median(one[e][f] for one in found) for f in figures} for e in ENGINES}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", default="small,mlp,squeezenet", help="small, mlp, or light models")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        run_server(options.serve, options.batch)
        return
    for case in options.cases.split(","):
        figures = measure(case, options.connections, options.seconds, options.rounds)
        ratio = figures["onnxruntime"]["server_cpu_ms"] / figures["relayc"]["server_cpu_ms"]
        for engine, values in figures.items():
            print(f"{case:<12} {engine:<12} " + "  ".join(f"{name} {value:9.3f}" for name, value in values.items()))
        print(f"{case:<12} onnxruntime's CPU time of a request divided by relayc's: {ratio:.2f}", flush=True)
        if options.out is not None:
            append(options.out, {
                **origin("serving"), "case": case, "connections": options.connections, "instances": INSTANCES,
                "batch": BATCH.get(case, 1),
                **{f"{e}_{f}": round(v, 4) for e, values in figures.items() for f, v in values.items()},
            })  # fmt: skip


if __name__ == "__main__":
    main()

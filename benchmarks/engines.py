"""One inference engine in a process of its own, driven over pipes.

    python -m benchmarks.engines ENGINE MODEL THREADS INPUTS.npz

reads commands, a line each: ``run SECONDS`` measures and answers with the run times as JSON, ``outputs FILE.npz``
stores the outputs, ``memory`` answers with the peak of resident memory. Each engine has its own process, and engines
are interleaved with pauses, because an idle thread pool that spins slows other engines down. MODEL is an ONNX file, for
relayc an artifact, which

    python -m benchmarks.engines compile MODEL.onnx ARTIFACT INPUTS.npz

makes, so that compiling and running are separate processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "ENGINES", "ROOT", "Engine", "compare", "compile_seconds", "onnxruntime_session", "openvino_runner",
    "peak_megabytes",
]  # fmt: skip

Runner = Callable[[], list[Any]]
ROOT = Path(__file__).resolve().parent.parent


def _compile(path: str, artifact: str, inputs: str) -> None:
    """Compile an ONNX file for this machine, write the artifact, and print the seconds that each took."""
    from relayc import relay
    from relayc.frontends.onnx import from_onnx

    feeds = np.load(inputs)
    shapes = {name: feeds[name].shape for name in feeds.files}
    start = time.perf_counter()
    mod, params = from_onnx(path, shape=shapes)
    lib = relay.build(mod, target="llvm", params=params)
    compiled = time.perf_counter()
    lib.save(artifact)
    print(json.dumps({"compile": compiled - start, "save": time.perf_counter() - compiled}), flush=True)


def _relayc(path: str, threads: int, feeds: dict[str, Any]) -> Runner:
    from relayc.backend.runtime import device, graph_executor, load_model

    module = graph_executor.GraphModule(load_model(path)["default"](device("cpu", 0)), num_threads=threads)
    for name, x in feeds.items():
        module.set_input(name, x)

    def run() -> list[Any]:
        module.run()
        return [module.get_output(i) for i in range(module.get_num_outputs())]

    return run


def onnxruntime_session(model: str | Path | bytes, threads: int = 1) -> Any:
    """An `onnxruntime.InferenceSession` of a model's file, or of its bytes, on so many threads of the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _onnxruntime(path: str, threads: int, feeds: dict[str, Any]) -> Runner:
    session = onnxruntime_session(path, threads)
    return lambda: session.run(None, feeds)


def openvino_runner(path: str | Path, threads: int, feeds: dict[str, Any], precision: str = "f32") -> Runner:
    """Runs of a model by OpenVINO in a precision of its products, "f32" or "bf16"."""
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({name: list(x.shape) for name, x in feeds.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": precision,
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()

    def run() -> list[Any]:
        results = request.infer(feeds, share_inputs=True)
        return [results[i] for i in range(len(results))]

    return run


ENGINES: dict[str, Callable[[str, int, dict[str, Any]], Runner]] = {
    "relayc": _relayc,
    "onnxruntime": _onnxruntime,
    "openvino": openvino_runner,
}


def _measure(run: Runner, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def peak_megabytes() -> float:
    """The peak of this process's resident memory (VmHWM), shared file pages included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def _serve(engine: str, path: str, threads: int, inputs: str) -> None:
    feeds = dict(np.load(inputs))
    start = time.perf_counter()
    run = ENGINES[engine](path, threads, feeds)
    prepared = time.perf_counter() - start
    run()
    first = time.perf_counter() - start - prepared
    print(json.dumps({"prepare": prepared, "first": first}), flush=True)
    for line in sys.stdin:
        command, _, argument = line.rstrip().partition(" ")
        if command == "run":
            print(json.dumps(_measure(run, float(argument))), flush=True)
        elif command == "memory":
            print(json.dumps({"peak": peak_megabytes()}), flush=True)
        elif command == "outputs":
            np.savez(argument, *[x.numpy() if hasattr(x, "numpy") else np.asarray(x) for x in run()])
            print("{}", flush=True)


class Engine:
    """A running engine process. Use as a context manager; on exit its input is closed and its end awaited.

    `prepare_seconds` is the time to load the model and create a session, `first_run_seconds` that of the first run,
    `rounds` has the run times of each round of measurements, `peak_megabytes` the peak of resident memory after exit.
    """

    def __init__(self, name: str, model: Path, threads: int, inputs: Path) -> None:
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "RELAYC_NUM_THREADS": str(threads)}
        self.name = name
        self.rounds: list[list[float]] = []
        self.peak_megabytes = float("nan")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines", name, str(model), str(threads), str(inputs)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip
        ready = self._read()
        self.prepare_seconds, self.first_run_seconds = float(ready["prepare"]), float(ready["first"])

    @property
    def times(self) -> list[float]:
        """The run times of all rounds."""
        return [seconds for times in self.rounds for seconds in times]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line[0] in "[{":
                return json.loads(line)
        raise RuntimeError(f"{self.name} ended with exit status {self._process.wait()}; its message is above")

    def _request(self, command: str) -> Any:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._read()

    def measure(self, seconds: float) -> None:
        """Run the model for some seconds, at least once, and keep the run times as a round."""
        self.rounds.append(self._request(f"run {seconds}"))

    def outputs(self, file: Path) -> list[np.ndarray[Any, Any]]:
        """The outputs of one run; they are also stored in `file`."""
        self._request(f"outputs {file}")
        with np.load(file) as stored:
            return [stored[key] for key in stored.files]

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self.peak_megabytes = float(self._request("memory")["peak"])
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def compile_seconds(model: Path, artifact: Path, inputs: Path, cache: Path) -> float:
    """Seconds to compile in a new process with `cache` as the folder of cached kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engines", "compile", str(model), str(artifact), str(inputs)],
        cwd=ROOT, env={**os.environ, "RELAYC_CACHE_DIR": str(cache)}, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return float(json.loads(done.stdout)["compile"])


def compare(models: Mapping[str, Path], threads: int, inputs: Path, rounds: int, seconds: float) -> list[Engine]:
    """Measure engines, named with the file that each runs: rounds of one measurement of each, with pauses between.

    Returns the engines, which have exited, with their times. An engine that can't run its file is left out.
    """
    engines: list[Engine] = []
    try:
        for name, model in models.items():
            try:
                engines.append(Engine(name, model, threads, inputs))
            except RuntimeError as error:
                print(f"left out: {error}", file=sys.stderr)
        for _ in range(rounds):
            for engine in engines:
                time.sleep(0.2)
                engine.measure(seconds)
    finally:
        for engine in engines:
            engine.__exit__()
    return engines


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        _compile(*sys.argv[2:])
    else:
        _serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])

"""Engines that run a model on an NVIDIA GPU: this compiler, torch eager and compiled, onnxruntime's CUDA provider.

An engine compiles a `Job` and returns a function that times it, or raises `NotRun` with the reason, so that what can't
be measured is listed. Times are those of CUDA events over many consecutive runs with inputs on the device. TF32 is off
in every engine.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relayc import relay
from relayc.backend.runtime import RelaycError, device, graph_executor
from relayc.frontends.onnx import from_onnx
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext

__all__ = ["ENGINES", "Job", "NotInstalled", "NotRun", "Timer", "compiled", "needed", "timer_of"]

Timer = Callable[[float], float]
"""Median seconds of one run, as a function of the seconds to measure."""

_REPEATS = 7
_WARM_UP = 4
"""Runs in which torch compiles, selects kernels and captures its CUDA graph."""


class NotRun(Exception):
    """Why an engine did not run a job."""


class NotInstalled(NotRun):
    """Why an engine can't run anything here."""


@dataclass(frozen=True)
class Job:
    """A model at `path` with `inputs` by name, of `batch` items, to run in `precision` ("float32" or "float16")."""

    name: str
    path: Path
    inputs: Mapping[str, np.ndarray[Any, Any]]
    batch: int
    precision: str

    @property
    def title(self) -> str:
        return f"{self.name}, batch {self.batch}, {self.precision}"


def compiled(job: Job, target: str = "cuda") -> graph_executor.GraphModule:
    """The job's model compiled by relayc, its inputs set. Raises NotRun with the compiler's message."""
    config = {} if job.precision == "float32" else {"relay.ToMixedPrecision.dtype": job.precision}
    try:
        module, params = from_onnx(job.path, shape={name: x.shape for name, x in job.inputs.items()})
        with PassContext(config=config):
            library = relay.build(module, target, params)
        executor = graph_executor.GraphModule(library["default"](device(library.graph.device)))
        executor.run(**job.inputs)
    except (CompileError, RelaycError) as error:
        raise NotRun(str(error).splitlines()[0]) from error
    return executor


def _relayc(job: Job) -> Timer:
    executor = compiled(job)

    def timer(seconds: float) -> float:
        return executor.benchmark(repeat=_REPEATS, number=3, min_repeat_ms=1e3 * seconds / _REPEATS).median

    return timer


def _torch(job: Job, *, compiling: bool) -> Timer:
    torch, zoo = needed("torch"), needed("benchmarks.zoo")
    if not torch.cuda.is_available():
        raise NotInstalled("torch is built without CUDA, or sees no device")
    case = {made.__name__: made for made in zoo.ZOO}.get(job.name)
    if case is None:
        raise NotRun("there is no torch version of this model")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    model, _ = case()
    if getattr(model, "_supports_sdpa", False):
        model.set_attn_implementation("sdpa")  # torch's fused attention; the exported models have none
    kind = getattr(torch, job.precision)
    layout = torch.channels_last if kind is torch.float16 else torch.contiguous_format  # cuDNN's fast layout
    model = zoo.Positional(model.eval().to("cuda", kind).to(memory_format=layout), list(job.inputs))
    feeds = [torch.from_numpy(x).cuda() for x in job.inputs.values()]
    feeds = [x.to(kind) if x.is_floating_point() else x for x in feeds]
    feeds = [x.contiguous(memory_format=layout) if x.dim() == 4 else x for x in feeds]
    if compiling:
        model = torch.compile(model, mode="reduce-overhead")  # with CUDA graphs, as relayc

    def run() -> None:
        with torch.inference_mode():
            model(*feeds)

    for _ in range(_WARM_UP):
        run()
    torch.cuda.synchronize()
    return timer_of(torch, run)


def timer_of(torch: Any, run: Callable[[], object]) -> Timer:
    """A timer of work on torch's current stream."""

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(start: Any, end: Any) -> float:
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    return _timer(run, mark, between)


def _onnxruntime(job: Job) -> Timer:
    onnxruntime = needed("onnxruntime")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise NotInstalled("onnxruntime has no CUDA provider here (pip install onnxruntime-gpu)")
    if job.precision != "float32":
        raise NotRun("the model is float32, and onnxruntime does not convert it")
    providers = [("CUDAExecutionProvider", {"use_tf32": "0"})]
    session = onnxruntime.InferenceSession(job.path, providers=providers)
    if "CUDAExecutionProvider" not in session.get_providers():
        raise NotRun("onnxruntime's CUDA provider does not start")
    binding = session.io_binding()
    for name, x in job.inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda", 0)

    def mark() -> float:
        binding.synchronize_outputs()
        return time.perf_counter()

    return _timer(lambda: session.run_with_iobinding(binding), mark, lambda start, end: end - start)


ENGINES: dict[str, Callable[[Job], Timer]] = {
    "relayc": _relayc,
    "torch eager": lambda job: _torch(job, compiling=False),
    "torch.compile": lambda job: _torch(job, compiling=True),
    "onnxruntime": _onnxruntime,
}


def _timer(run: Callable[[], object], mark: Callable[[], Any], between: Callable[[Any, Any], float]) -> Timer:
    """A timer of `run` by events on its stream."""

    def timed(number: int) -> float:
        start = mark()
        for _ in range(number):
            run()
        return between(start, mark()) / number

    def timer(seconds: float) -> float:
        once = max(timed(3), timed(3), 1e-6)
        number = max(3, int(seconds / _REPEATS / once))
        return float(np.median([timed(number) for _ in range(_REPEATS)]))

    return timer


def needed(module: str) -> Any:
    """A module of a peer. Raises NotRun when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"{error.name} is not installed") from error

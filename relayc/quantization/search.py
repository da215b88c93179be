"""`quantize`: which layers to quantise, by measuring."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import ModelProto

from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.target import Target
from relayc.frontends.compiling import compile_onnx
from relayc.frontends.onnx.inputs import graph_inputs, named_shape
from relayc.frontends.onnx.model import load
from relayc.quantization.calibration import Calibration, Sample, Samples, read_samples
from relayc.quantization.errors import QuantizationError
from relayc.quantization.metrics import relative_error, squared_error
from relayc.quantization.report import Decision, LayerReport, QuantizationReport, Scope

if TYPE_CHECKING:
    from relayc.quantization.qdq import QDQModels

__all__ = ["quantize"]

MOST_ATTEMPTS = 4
"""How often layers that turn out slower are put back into float, and the model is measured again."""
SCOPES: tuple[Scope, ...] = ("everything", "layers")
ROUNDS = 5
"""Rounds of a measurement, in which a float and a quantised executor alternate."""
ERROR_SAMPLES = 8
"""Most samples from which the errors of single layers are computed."""
LARGEST_BYTES = 2**31 - 2**20
"""Size limit of protobuf, and so of a model as one file."""


def quantize(
    model: ModelProto | str | os.PathLike[str],
    calibration: Calibration,
    output: str | os.PathLike[str],
    *,
    max_error: float = 0.05,
    method: str = "minmax",
    target: str = "llvm",
    shape: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> QuantizationReport:
    """Write the fastest static int8 form of `model` to `output`, an ONNX model with QDQ nodes, and report on it.

    `calibration` is an .npz file with arrays by input name, several files, or mappings of inputs (`read_samples` says
    how an array holds many runs). `max_error` limits the relative L2 error of every output over the calibration data,
    0.05 by default. `method` says how ranges are taken from values: "minmax", "entropy" or "percentile". `target`
    and `shape` are those of `compile_onnx`; `threads` are those it is timed with. Without a form that is faster than
    float and within the tolerance nothing is written, and the report's `output` is None.

    Raises QuantizationError, and what importing and compiling the model raise.
    """
    loaded = _checked(model)
    declared = {value.name: named_shape(value) or () for value in graph_inputs(loaded.graph)}
    inputs = {name: ["?" if size is None else size for size in shape] for name, shape in declared.items()}
    samples = read_samples(calibration, inputs)
    if not max_error > 0:
        raise QuantizationError(f"max_error is {max_error!r}; expected a number above 0, such as 0.05")
    qdq = import_module("relayc.quantization.qdq")  # imports onnxruntime
    if method not in qdq.METHODS:
        raise QuantizationError(f"method {method!r}; expected one of {', '.join(qdq.METHODS)}")
    with tempfile.TemporaryDirectory(prefix="relayc-quantize-") as folder:
        say = progress or (lambda _: None)
        say("preparing the model")
        models = qdq.QDQModels(loaded, samples, Path(folder), method)
        if not models.layers:
            raise QuantizationError(f"the model has no layers to quantise: none of {', '.join(qdq.LAYERS)}")
        bench = _Bench(models.prepared, models.layers, samples, target, dict(shape or {}), threads, say)
        searches = [_Search(models, bench, scope, max_error) for scope in SCOPES]
        forms = [(search, search.run()) for search in searches]
        search, best = min(forms, key=lambda pair: float("inf") if pair[1] is None else pair[1].share)
        if best is not None:
            shutil.copyfile(models.write(search.scope, best.excluded), output)
        name = str(model) if isinstance(model, str | os.PathLike) else "the model"
        return search.report(name, str(output), best)


def _checked(model: ModelProto | str | os.PathLike[str]) -> ModelProto:
    """The model in memory. Raises QuantizationError for what can't be quantised at all."""
    load(model)  # says what is wrong with a file
    proto = model if isinstance(model, ModelProto) else onnx.load(Path(model))
    if proto.ByteSize() > LARGEST_BYTES:
        raise QuantizationError(f"the model has {proto.ByteSize() / 1e9:.1f} GB; expected at most 2 GB")
    quantized = [node.name for node in proto.graph.node if "Quantize" in node.op_type or "QLinear" in node.op_type]
    if quantized:
        raise QuantizationError(f"the model is quantised already, at node {quantized[0]!r}; expected a float model")
    return proto


@dataclass(frozen=True)
class _Form:
    """A choice of layers in float, measured.

    `share` is the time of a quantised run relative to a float one, the median over rounds of both; `float_seconds` the
    time of a float run; `float_us` and `int8_us` have microseconds by layer.
    """

    excluded: frozenset[str]
    error: float
    share: float
    float_seconds: float
    float_us: Mapping[str, float]
    int8_us: Mapping[str, float]


class _Bench:
    """The compiled float model, to which forms are compared: outputs for all samples, and time."""

    def __init__(self, model: Path, layers: Collection[str], samples: Samples, target: str, shape: dict[str, Any],
                 threads: int | None, say: Callable[[str], None]) -> None:  # fmt: skip
        self.layers, self.samples, self.say = layers, samples, say
        self.target, self._shape, self._threads = target, shape, threads
        say("compiling in float")
        self.float = self.executor(model)
        self._exact = [_outputs(self.float, sample) for sample in samples]

    def executor(self, path: Path) -> GraphModule:
        """The compiled model of a file."""
        compiled = compile_onnx(path, self.target, shape=self._shape)
        return GraphModule.of(compiled, num_threads=self._threads)

    def error(self, executor: GraphModule) -> float:
        """The largest relative error of an output over all samples."""
        sums = np.zeros((len(self._exact[0]), 2))
        for sample, exact in zip(self.samples, self._exact, strict=True):
            sums += [squared_error(a, b) for a, b in zip(exact, _outputs(executor, sample), strict=True)]
        return max((relative_error(*pair) for pair in sums), default=0.0)

    def measure(self, executor: GraphModule, excluded: frozenset[str], error: float) -> _Form:
        """The form that an executor runs, timed side by side with the float model."""
        pair = (self.float, executor)
        for one in pair:
            for name, values in self.samples[0].items():
                one.set_input(name, values)
            one.run()
        seconds: tuple[list[float], ...] = ([], [])
        layers: tuple[list[dict[str, float]], ...] = ([], [])
        for _ in range(ROUNDS):
            for one, whole, by_layer in zip(pair, seconds, layers, strict=True):
                whole.append(min(one.benchmark(repeat=5, number=1, min_repeat_ms=2).results))
                by_layer.append(self._layer_times(one))
        share = statistics.median(b / a for a, b in zip(*seconds, strict=True))
        return _Form(excluded, error, share, min(seconds[0]), *map(_least, layers))

    def _layer_times(self, executor: GraphModule) -> dict[str, float]:
        """Microseconds by layer; a kernel of several layers counts for each in equal parts."""
        times: dict[str, float] = {}
        for call in executor.profile(repeat=1):
            layers = [name for name in call.sources.split() if name in self.layers]
            for name in layers:
                times[name] = times.get(name, 0.0) + call.us / len(layers)
        return times


class _Search:
    """Puts layers of one scope's form back into float where they lose, until nothing improves."""

    def __init__(self, models: QDQModels, bench: _Bench, scope: Scope, max_error: float) -> None:
        self.scope: Scope = scope
        self._models, self._bench, self._max_error = models, bench, max_error
        bench.say("calibrating")
        self._errors: dict[str, float] = models.layer_errors(models.write(scope), bench.samples[:ERROR_SAMPLES])
        self._decisions: dict[str, Decision] = {}
        self._times: dict[str, tuple[float | None, float | None]] = {}
        self._known_errors: dict[frozenset[str], float] = {}
        self._float_seconds = 0.0

    def run(self) -> _Form | None:
        """The fastest form within the tolerance; None where that is the float model."""
        best: _Form | None = None
        excluded: frozenset[str] = frozenset()
        for _ in range(MOST_ATTEMPTS):
            form = self._measured(excluded)
            if form.error <= self._max_error and form.share < (1 if best is None else best.share):
                best = form
            losing = {name for name, us in form.int8_us.items() if us >= form.float_us.get(name, float("inf"))}
            losing &= self._errors.keys() - excluded
            self._decisions |= dict.fromkeys(losing, "float: slower")
            following = self._within_tolerance(excluded | losing)
            if following == excluded or len(following) == len(self._errors):
                break
            excluded = following
        return best

    def report(self, model: str, output: str, best: _Form | None) -> QuantizationReport:
        """What was decided; `best` is None where nothing was gained."""
        layers = [
            LayerReport(name, operator, *self._times.get(name, (None, None)), self._errors.get(name, 0.0),
                        self._decision(name, best))
            for name, operator in self._models.layers.items()
        ]  # fmt: skip
        float_seconds, share = (self._float_seconds, 1.0) if best is None else (best.float_seconds, best.share)
        return QuantizationReport(
            model=model, output=None if best is None else output, target=str(Target(self._bench.target)),
            threads=self._bench.float.num_threads, samples=len(self._bench.samples), max_error=self._max_error,
            error=0.0 if best is None else best.error, float_ms=1e3 * float_seconds,
            quantized_ms=1e3 * float_seconds * share, scope=self.scope, layers=layers,
        )  # fmt: skip

    def _decision(self, name: str, best: _Form | None) -> Decision:
        if name not in self._errors:
            return "float: not quantised"
        if best is not None and name not in best.excluded:
            return "int8"
        return self._decisions.get(name, "float: slower")  # as is the model, with the layer in int8

    def _within_tolerance(self, excluded: frozenset[str]) -> frozenset[str]:
        """`excluded` with the fewest further layers, those of the largest error first, that keep to the tolerance.

        All layers where the operators between them alone exceed it.
        """
        if self._error(excluded) <= self._max_error:
            return excluded
        everything = frozenset(self._errors)
        if self.scope == "everything" and self._error(everything) > self._max_error:
            self._decisions |= dict.fromkeys(everything - excluded, "float: error")
            return everything
        order = sorted(everything - excluded, key=lambda name: -self._errors[name])
        low, high = 0, len(order)  # in float: too few, enough
        while high - low > 1:
            middle = (low + high) // 2
            within = self._error(excluded | set(order[:middle])) <= self._max_error
            low, high = (low, middle) if within else (middle, high)
        self._decisions |= dict.fromkeys(order[:high], "float: error")
        return excluded | set(order[:high])

    def _error(self, excluded: frozenset[str]) -> float:
        """The error of a form, computed once."""
        if excluded not in self._known_errors:
            self._bench.say(f"comparing, {len(self._errors) - len(excluded)} layers in int8")
            self._known_errors[excluded] = self._bench.error(self._executor(excluded))
        return self._known_errors[excluded]

    def _measured(self, excluded: frozenset[str]) -> _Form:
        self._bench.say(f"measuring, {len(self._errors) - len(excluded)} layers in int8")
        form = self._bench.measure(self._executor(excluded), excluded, self._error(excluded))
        for name in self._models.layers:
            if name not in excluded:  # of a layer in float, its int8 time is that of the last form that had it in int8
                int8_us = form.int8_us.get(name) if name in self._errors else None
                self._times[name] = (form.float_us.get(name), int8_us)
        self._float_seconds = form.float_seconds
        return form

    def _executor(self, excluded: frozenset[str]) -> GraphModule:
        return self._bench.executor(self._models.write(self.scope, excluded))


def _outputs(executor: GraphModule, sample: Sample) -> list[np.ndarray[Any, Any]]:
    """The outputs of a run; an executor may write the next run's to the same memory."""
    return [np.array(value) for value in executor.infer(sample)]


def _least(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: min(times[name] for times in rounds) for name in rounds[0]}

"""The cost of dynamic shapes: models compiled for any size against the same models compiled for one size.

    python -m benchmarks.dynamic --zoo FOLDER [--models bert_base,gpt2] [--threads 1] [--rounds 9] [--seconds 0.3]

The zoo's models are made symbolic in the batch, in the sequence or in both sides of images, and compiled once; then
they run at several sizes, interleaved with models compiled for each size. The result is the median of the ratios of
consecutive measurements, dynamic over static time: 1.10 means that one model for all sizes takes 10 % longer. With one
thread the CPU time of the thread is measured, so that other programs disturb little. Results must agree.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.timing import Clock, seconds_of
from relayc import relay
from relayc.backend.runtime import GraphModule, device
from relayc.frontends.onnx import from_onnx

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model of the zoo, the axes of its inputs that are symbolic, by their names, and the sizes that they have."""

    model: str
    axes: dict[int, str]
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """The names of the symbolic axes."""
        return " and ".join(self.axes.values())

    @property
    def is_of_images(self) -> bool:
        """Whether sides of images are symbolic, on which no constant of the models depends."""
        return len(self.axes) > 1


_BATCH, _SEQUENCE, _SIDES = {0: "batch"}, {1: "sequence"}, {2: "height", 3: "width"}
CASES = (
    Case("resnet50", _BATCH, (1, 2, 8)),
    Case("mobilenet_v2", _BATCH, (1, 2, 8)),
    Case("light_squeezenet", _BATCH, (1, 2, 8)),
    Case("bert_base", _BATCH, (1, 2, 4)),
    Case("bert_base", _SEQUENCE, (8, 16, 32, 128, 200)),
    Case("gpt2", _SEQUENCE, (8, 16, 32, 128, 200)),
    Case("resnet50", _SIDES, (96, 160, 224, 320)),
    Case("mobilenet_v2", _SIDES, (96, 160, 224, 320)),
)


LONGEST = 256
"""Positions in the constants of models with a symbolic sequence."""


def resized(feeds: Arrays, axes: Iterable[int], size: int) -> Arrays:
    """The inputs with `size` entries along the axes, repeated as often as that takes."""
    for axis in axes:
        feeds = {name: np.take(x, np.arange(size) % x.shape[axis], axis) for name, x in feeds.items()}
    return {name: np.ascontiguousarray(x) for name, x in feeds.items()}


def with_symbols(
    model: onnx.ModelProto, case: Case, feeds: Arrays
) -> tuple[onnx.ModelProto, dict[str, tuple[int | str, ...]]]:
    """The model for any size along the axes of the case, and the shapes of its inputs, `feeds` for the exported one."""
    if not case.is_of_images:
        (along,) = case.axes
        model = _made_symbolic(model, along, next(iter(feeds.values())).shape[along])
    return model, {name: tuple([case.axes.get(a, n) for a, n in enumerate(x.shape)]) for name, x in feeds.items()}


def _made_symbolic(model: onnx.ModelProto, along: int, size: int) -> onnx.ModelProto:
    """The model, exported for `size` along the axis, as an exporter writes it for a symbolic dimension: Reshape copies
    or infers the dimension, and constants that lie along it are sliced to its length."""
    graph = model.graph
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    data = next(value.name for value in graph.input if value.name not in values)
    made: dict[str, onnx.NodeProto | onnx.TensorProto] = {}

    def constant(name: str, value: np.ndarray) -> str:
        made[name] = numpy_helper.from_array(value, name)
        return name

    def cut(name: str, axes: Sequence[int]) -> str:
        result = constant(f"{name}_long", _extended(values[name], axes))
        for axis in axes:
            inputs = [result, constant("zero", np.array([0])), "length", constant(f"axis_{axis}", np.array([axis]))]
            result = f"{name}_{axis}"
            made[result] = helper.make_node("Slice", inputs, [result])
        return result

    made["length"] = helper.make_node("Shape", [data], ["length"], start=along, end=along + 1)
    for node in graph.node:
        for i, name in enumerate(node.input):
            table = values.get(name)
            if table is None:
                continue
            axes = [a for a, n in enumerate(table.shape) if n == size and along > 0]
            if node.op_type == "Reshape":
                shape = _symbolic_shape(table.tolist(), along, size)
                node.input[i] = constant(f"{name}_symbolic", np.array(shape, np.int64))
                del node.attribute[:]  # allowzero: 0 is to copy
            elif axes and (table.dtype.kind in "ib" or set(table.shape) == {1, size}):
                node.input[i] = cut(name, axes)
    nodes = [x for x in made.values() if isinstance(x, onnx.NodeProto)] + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(x for x in made.values() if isinstance(x, onnx.TensorProto))
    del graph.value_info[:]
    return model


def _symbolic_shape(shape: list[int], axis: int, size: int) -> list[int]:
    """The shape of a Reshape with the dimension copied from the input, or inferred where it is another axis."""
    if axis == 0:
        return [0, *shape[1:]] if shape[0] == size else shape
    if size not in shape[:2]:
        return shape
    at = shape.index(size)
    if shape[0] == -1:  # the batch, which is 1
        return [1, *[-1 if i == at else n for i, n in enumerate(shape)][1:]]
    return [(0 if -1 in shape else -1) if i == at else n for i, n in enumerate(shape)]


def _extended(table: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """A constant of positions, of equal values, or a causal mask, extended to `LONGEST` positions."""
    if len(axes) == 2:
        row, column = (np.arange(LONGEST).reshape([-1 if a == axis else 1 for a in range(table.ndim)]) for axis in axes)
        result = np.where(column > row, table.reshape(-1)[1], table.reshape(-1)[0])
        result = result.astype(table.dtype).reshape([LONGEST if a in axes else 1 for a in range(table.ndim)])
    else:
        first, second = (np.take(table, [i], axes[0]) for i in (0, 1))
        at = np.arange(LONGEST).reshape([-1 if a == axes[0] else 1 for a in range(table.ndim)])
        result = first | np.zeros(at.shape, bool) if table.dtype == bool else first + at * (second - first)
    known = result
    for axis in axes:
        known = np.take(known, range(table.shape[axis]), axis)
    assert np.array_equal(known, table), "the constant is neither positions, nor equal values, nor a causal mask"
    return result


def executor(model: onnx.ModelProto, shapes: dict[str, tuple[int | str, ...]], threads: int) -> GraphModule:
    """The model compiled for these shapes."""
    mod, params = from_onnx(model, shape=shapes)
    return GraphModule(relay.build(mod, "llvm", params)["default"](device("cpu", 0)), threads)


def compare(dynamic: GraphModule, static: GraphModule, rounds: int, seconds: float, now: Clock) -> tuple[float, float]:
    """(Median ratio dynamic / static, median milliseconds of the static model), interleaved."""
    ratios: list[float] = []
    times: list[float] = []
    for _ in range(rounds):
        a, b, c = (seconds_of(model.run, seconds, now) for model in (static, dynamic, static))
        ratios.append(b / ((a + c) / 2))
        times += [a, c]
    return statistics.median(ratios), 1e3 * statistics.median(times)


def measure(case: Case, zoo: Path, threads: int, rounds: int, seconds: float) -> Iterator[str]:
    """One row for each size."""
    path = zoo / f"{case.model}.onnx"
    model, feeds = onnx.load(path), dict(np.load(path.with_suffix(".npz")))
    feeds = {value.name: feeds[value.name] for value in model.graph.input if value.name in feeds}
    model, symbolic = with_symbols(model, case, feeds)
    dynamic = executor(model, symbolic, threads)
    for size in case.sizes:
        inputs = resized(feeds, case.axes, size)
        static = executor(model, {name: x.shape for name, x in inputs.items()}, threads)
        found, expected = ([y.numpy() for y in model(**inputs)] for model in (dynamic, static))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
        clock = time.thread_time if threads == 1 else time.perf_counter
        ratio, milliseconds = compare(dynamic, static, rounds, seconds, clock)
        yield f"| {case.model} | {case.name} | {size} | {milliseconds:.1f} | {ratio:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, required=True)
    parser.add_argument("--models", default=",".join(dict.fromkeys(case.model for case in CASES)))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args(arguments)
    print("| model | symbolic | size | static, ms | dynamic / static |\n|---|---|---|---|---|")
    for case in CASES:
        if case.model in options.models.split(","):
            for line in measure(case, options.zoo, options.threads, options.rounds, options.seconds):
                print(line, flush=True)


if __name__ == "__main__":
    main()

"""Times single kernels of a model, compiled with given parameters, and whole models, on this machine's CPU."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from relayc.backend.driver import ModuleBuilder
from relayc.backend.runtime import CompiledModel, Context, GraphModule, NDArray, device, nd
from relayc.backend.runtime.dtype import to_numpy
from relayc.backend.target import Target
from relayc.relay.lowering.lower import Kernel, Workload, lower, tensor_types
from relayc.relay.sizes import evaluate
from relayc.relay.tuning.selection import Timer
from relayc.relay.type import TensorType
from relayc.topi.tuning import Config

__all__ = ["Bench", "KernelBench", "Variant"]

_SAMPLE_SECONDS = 1e-3
"""Seconds of one sample: a timer repeats its kernel until a sample takes about this long."""
_MOST_BYTES = 96 << 20
"""Maximum bytes of the copies of one kernel's weights."""


@dataclass(frozen=True)
class Variant:
    """A kernel with its schedule parameters. `weights` are the positions of its constant inputs."""

    workload: Workload
    config: Config
    weights: tuple[int, ...] = ()


class Bench(Protocol):
    """The interface for timing kernels and models: `KernelBench`, or a test's own."""

    @property
    def threads(self) -> int: ...

    def timers(self, variants: Sequence[Variant]) -> list[Timer]: ...

    def model_timer(self, model: CompiledModel) -> Timer: ...


class KernelBench:
    """Makes timers of kernels for `target`, run on `threads` threads.

    Kernels of several extents are timed with the largest ones. In a model whose weights, `model_bytes`, exceed the
    caches, a kernel finds its weights evicted since the last run. So a timer cycles through copies of a kernel's
    weights that take as much memory.
    """

    def __init__(self, target: Target, threads: int | None, model_bytes: int) -> None:
        self.target = target
        self._context = Context(threads)
        self._cold_bytes = min(model_bytes, 2 * max(target.cache_bytes), _MOST_BYTES)
        self._random = np.random.default_rng(0)

    @property
    def threads(self) -> int:
        """The number of threads that kernels run on."""
        return self._context.num_threads

    def timers(self, variants: Sequence[Variant]) -> list[Callable[[], float]]:
        """A timer for each variant, all compiled together. Raises CompileError if one can't be compiled."""
        builder = ModuleBuilder(self.target)
        kernels: list[Kernel] = []
        names: list[str] = []
        for number, variant in enumerate(variants):
            kernel = lower(variant.workload, self.target, variant.config)
            names.append(f"{kernel.name}_{number}")
            builder.add(kernel.function.with_attr("global_symbol", names[-1]))
            kernels.append(kernel)
        module = builder.finish()
        arrays: dict[str, list[list[NDArray]]] = {}
        timers: list[Callable[[], float]] = []
        for name, variant, kernel in zip(names, variants, kernels, strict=True):
            key, extents = variant.workload.key, variant.workload.largest_extents
            if key not in arrays:
                arrays[key] = self._arguments(variant)
            scratch = [TensorType((evaluate(count, extents),), dtype) for count, dtype in kernel.workspaces]
            extra = [*map(self._array, scratch), *[extents[size] for size in kernel.sizes]]
            function = module.get_function(name)
            calls = [function.bind(*arguments, *extra, context=self._context) for arguments in arrays[key]]
            timers.append(_Timer(calls))
        return timers

    def model_timer(self, model: CompiledModel) -> Callable[[], float]:
        """A timer of a whole model; inputs are zeros."""
        executor = GraphModule(model["default"](device("cpu", 0)), self.threads)
        shapes, dtypes = executor.get_input_info()
        for name, shape in shapes.items():
            sizes = [d if isinstance(d, int) else 1 for d in shape]
            executor.set_input(name, nd.empty(sizes, dtypes[name]).copyfrom(np.zeros(sizes, to_numpy(dtypes[name]))))
        return lambda: executor.benchmark(repeat=1, number=1).median

    def _arguments(self, variant: Variant) -> list[list[NDArray]]:
        """Inputs and outputs of a kernel, once for each copy of its weights."""
        function = variant.workload.function
        types = [*[param.tensor_type for param in function.params], *tensor_types(function.body.ty)]
        types = [ty.with_shape([evaluate(d, variant.workload.largest_extents) for d in ty.shape]) for ty in types]
        strides = function.attrs.get("strides", [None] * len(types))
        arrays = [self._array(_spanned(ty, gaps)) for ty, gaps in zip(types, strides, strict=True)]
        inputs, outputs = arrays[: len(function.params)], arrays[len(function.params) :]
        size = sum(types[i].nbytes for i in variant.weights)
        copies = max(1, math.ceil(self._cold_bytes / size)) if size else 1
        result: list[list[NDArray]] = []
        for number in range(min(copies, 64)):
            chosen = [
                nd.array(array.numpy()) if number and i in variant.weights else array for i, array in enumerate(inputs)
            ]
            result.append([*chosen, *outputs])
        return result

    def _array(self, ty: TensorType) -> NDArray:
        """Random floats; zeros of other types, which are legal indices."""
        shape, dtype = ty.static_shape, to_numpy(str(ty.dtype))
        if dtype == np.float32:
            return nd.array(self._random.standard_normal(shape, dtype=np.float32))
        return nd.array(np.zeros(shape, dtype))


def _spanned(ty: TensorType, strides: Sequence[int] | None) -> TensorType:
    """The type of the memory that a tensor with these strides spans."""
    if strides is None:
        return ty
    last = sum((d - 1) * stride for d, stride in zip(ty.static_shape, strides, strict=True))
    return ty.with_shape((last + 1,))


class _Timer:
    """Measures the seconds of one call, the mean over calls that take about a millisecond together."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._next = itertools.cycle(calls)
        self._number = 1
        self._sample()  # touches the memory
        self._number = max(1, math.ceil(_SAMPLE_SECONDS / max(self._sample(), 1e-7)))

    def __call__(self) -> float:
        return self._sample()

    def _sample(self) -> float:
        calls = [next(self._next) for _ in range(self._number)]
        start = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - start) / self._number

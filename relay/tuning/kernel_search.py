"""The search for one kernel, which needs nothing of the model: it may run in another process, on another machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relayc.backend.target import Target
from relayc.relay.lowering.lower import Workload
from relayc.relay.lowering.tuning_records import processor
from relayc.relay.tuning.bench import Bench, KernelBench, Variant
from relayc.relay.tuning.selection import Choice, Timer, select
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext
from relayc.topi.tuning import Config, Knob, Value

__all__ = ["KernelResult", "KernelTask", "alternatives", "search_kernel", "try_timers"]

_MOST_ALTERNATIVES = 12
"""Maximum number of values tried for one parameter: those next to the cost model's."""


@dataclass
class KernelResult:
    """What the search for a kernel found: parameters, and how they compare with the defaults.

    `choice` is None if the search did not get so far, and chooses the defaults if they are the best. `left_out` are
    messages about variants that can't be compiled.
    """

    found: list[tuple[Knob, Value]] = field(default_factory=list[tuple[Knob, Value]])
    choice: Choice | None = None
    tried: int = 0
    left_out: list[str] = field(default_factory=list[str])


def search_kernel(
    workload: Workload,
    weights: tuple[int, ...],
    knobs: Sequence[Knob],
    bench: Bench,
    clock: Callable[[], float],
    end: float,
) -> KernelResult:
    """Tune one parameter after the other, with the best values so far; finally compare them with the defaults."""
    result = KernelResult()

    def timers(configs: Sequence[Config]) -> list[Timer] | None:
        result.tried += len(configs)
        return try_timers(bench, [Variant(workload, config, weights) for config in configs], result.left_out.append)

    found: dict[str, tuple[Knob, Value]] = {}
    for knob in knobs:
        tried = alternatives(knob)
        values = {name: value for name, (_, value) in found.items()}
        configs = [Config(values), *(Config({**values, knob.name: value}) for value in tried)]
        timed = None if clock() > end else timers(configs)
        index = 0 if timed is None else select(timed).index
        if index:
            found[knob.name] = knob, tried[index - 1]
    if not found:
        result.choice = Choice(0, 0.0, 0.0) if clock() <= end else None
        return result
    timed = timers([Config(), Config({name: value for name, (_, value) in found.items()})])
    result.choice = None if timed is None else select(timed)
    if result.choice is not None and result.choice.index:
        result.found = list(found.values())
    return result


@dataclass(frozen=True)
class KernelTask:
    """A search to run elsewhere: `KernelTask(...)()` is its result. All of it can be pickled.

    `end` is the time, in seconds since 1970, after which nothing new is tried; `bench` measures, by default a
    `KernelBench`, whose `model_bytes` these are. Raises CompileError on another processor than `processor`, whose times
    would mean nothing here.
    """

    workload: Workload
    weights: tuple[int, ...]
    knobs: tuple[Knob, ...]
    target: Target
    threads: int
    model_bytes: int
    bench: Bench | None
    context: PassContext
    processor: str
    end: float

    def __call__(self) -> KernelResult:
        if processor() != self.processor:
            raise CompileError(
                f"the executor of relay.tune has a worker with the processor {processor()!r}; expected "
                f"{self.processor!r}, for which parameters are searched"
            )
        bench = KernelBench(self.target, self.threads, self.model_bytes) if self.bench is None else self.bench
        with self.context:
            return search_kernel(self.workload, self.weights, self.knobs, bench, time.time, self.end)


def try_timers(bench: Bench, variants: Sequence[Variant], left_out: Callable[[str], object]) -> list[Timer] | None:
    """Timers of kernels; None, with a message to `left_out`, if one of them can't be compiled."""
    try:
        return bench.timers(variants)
    except CompileError as error:
        left_out(f"left out: {error}")
        return None


def alternatives(knob: Knob) -> list[Value]:
    """The other values of a parameter, those next to the cost model's first."""
    others = [value for value in knob.candidates if value != knob.default]
    if isinstance(knob.default, int) and not isinstance(knob.default, bool):
        others.sort(key=lambda value: abs(math.log(max(int(value), 1) / max(int(knob.default), 1))))
    return others[:_MOST_ALTERNATIVES]

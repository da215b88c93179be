"""Timing of calls, with device synchronisation. TVM: `time_evaluator`, `BenchmarkResult`.

Time is measured between two marks of the device: events in its current stream where it has them, so that only device
work counts; the host's clock elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayc.backend.runtime.checks import positive
from relayc.backend.runtime.device import Device
from relayc.backend.runtime.html_text import table_html

__all__ = ["BenchmarkResult", "measure"]


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per call, one per repeat. Prints as a table in milliseconds."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        """Standard deviation over the repeats (population)."""
        return float(np.std(self.results))

    def __str__(self) -> str:
        names = ("mean", "median", "min", "max", "std")
        head = "  ".join(f"{name + ' (ms)':>12}" for name in names)
        return head + "\n" + "  ".join(f"{getattr(self, name) * 1e3:12.4f}" for name in names)

    def _repr_html_(self) -> str:
        """The result in a notebook."""
        names = ("mean", "median", "min", "max", "std")
        cells = [f"{getattr(self, name) * 1e3:.4f}" for name in names]
        columns = [f"{name} (ms)" for name in names]
        return table_html([*columns, "repeats"], [[*cells, str(len(self.results))]], numbers=[*columns, "repeats"])


def measure(
    call: Callable[[], object],
    devices: Sequence[Device],
    *,
    number: int = 10,
    repeat: int = 1,
    min_repeat_ms: float = 0,
    cooldown_interval_ms: float = 0,
    repeats_to_cooldown: int = 1,
) -> BenchmarkResult:
    """Time `call`: one warm-up, then `repeat` measurements, each the mean of `number` consecutive calls.

    `number` grows until a repeat lasts `min_repeat_ms`. After every `repeats_to_cooldown` repeats there is a pause of
    `cooldown_interval_ms`. Raises `ArgumentError` for counts below 1.
    """
    number, repeat = positive(number, "number"), positive(repeat, "repeat")
    positive(repeats_to_cooldown, "repeats_to_cooldown")
    _timed(call, devices, 1)
    results: list[float] = []
    for index in range(repeat):
        if index and cooldown_interval_ms > 0 and index % repeats_to_cooldown == 0:
            time.sleep(cooldown_interval_ms * 1e-3)
        elapsed = _timed(call, devices, number)
        while elapsed * 1e3 < min_repeat_ms:
            shortage = min_repeat_ms * 1e-3 / max(elapsed, 1e-9)
            number = max(number + 1, int(number * min(shortage * 1.1, 1000.0)))
            elapsed = _timed(call, devices, number)
        results.append(elapsed / number)
    return BenchmarkResult(tuple(results))


def _timed(call: Callable[[], object], devices: Sequence[Device], number: int) -> float:
    """Seconds of `number` calls, the maximum over devices."""
    for device in devices:
        device.sync()
    starts = [device.api.record_mark(device) for device in devices]
    for _ in range(number):
        call()
    ends = [device.api.record_mark(device) for device in devices]
    return max(map(_seconds, devices, starts, ends))


def _seconds(device: Device, start: Any, end: Any) -> float:
    return device.api.seconds_between(device, start, end)

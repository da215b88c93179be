"""`relayc profile`: the time of every kernel against the machine's roofline."""

from __future__ import annotations

import statistics
from importlib import import_module

from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.profiler import Report

__all__ = ["profile_executor"]


def profile_executor(executor: GraphModule, rounds: int, repeat: int) -> Report:
    """The median time of every node over `rounds` profiles of `repeat` runs each.

    On a CPU the ceilings for this number of threads are measured between the rounds. The configuration also has the
    time of a whole run, "run us", which is not synchronised after every node.
    """
    meter = None
    if executor.device.kind == "cpu":
        meters = import_module("relayc.backend.llvm.ceilings")
        meter = meters.CeilingMeter(executor.num_threads, executor.multiplied_types)
    reports: list[Report] = []
    whole: list[float] = []
    for _ in range(rounds):
        if meter is not None:
            meter.sample()
        reports.append(executor.profile(repeat))
        whole += executor.benchmark(repeat=repeat, number=1).results
    ceilings: Ceilings | None = None if meter is None else meter.ceilings
    merged = Report.median(reports, ceilings)
    facts = {**merged.configuration, "run us": round(statistics.median(whole) * 1e6, 1)}
    return Report(merged.calls, facts, ceilings)

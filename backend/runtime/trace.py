"""Traces in the Trace Event format of Chrome, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A trace is a JSON array of "complete" events: a name, a category, a start and a duration in microseconds, the process
and the track (thread) that they are shown in, and facts.
"""

from __future__ import annotations

import json
import os
from typing import Any

from relayc.backend.runtime.profiler import NodeTiming, Report

__all__ = ["Trace"]


class Trace:
    """A trace of one process; `add` appends events in any order."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    @staticmethod
    def of_report(report: Report) -> Trace:
        """The nodes of a profile one after another, with their median times, and the configuration as facts."""
        trace = Trace()
        model = str(report.configuration.get("model", "model"))
        trace.name_track(0, f"{model} on {report.configuration.get('device', 'a device')}")
        trace.add("model_run", "Session", 0.0, report.total_us, 0, **report.configuration)
        trace.add_nodes(report, 0.0, 0)
        return trace

    def name_track(self, track: int, name: str) -> None:
        """Show the events of a track under a name."""
        self._events.append(
            {"name": "thread_name", "ph": "M", "pid": os.getpid(), "tid": track, "args": {"name": name}}
        )

    def add(self, name: str, category: str, start_us: float, duration_us: float, track: int, **facts: Any) -> None:
        """An event that began at `start_us` and lasted `duration_us` microseconds."""
        self._events.append({
            "name": name, "cat": category, "ph": "X", "pid": os.getpid(), "tid": track,
            "ts": start_us, "dur": duration_us, "args": facts,
        })  # fmt: skip

    def add_nodes(self, report: Report, start_us: float, track: int) -> None:
        """The nodes of a report, one after another from `start_us` on."""
        for node in report:
            self.add(node.name, "Node", start_us, node.us, track, **_facts(node, report))
            start_us += node.us

    def json(self) -> str:
        """The trace as the text of a file."""
        return json.dumps(self._events)


def _facts(node: NodeTiming, report: Report) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "operators": node.ops, "sources": node.sources, "shapes": node.shapes, "kernel": node.func,
        "flops": node.flops, "bytes": node.bytes, "GFLOP/s": round(node.gflops, 2), "GB/s": round(node.gbs, 2),
    }  # fmt: skip
    if node.count != 1:
        facts["count"] = node.count
    if report.ceilings is not None:
        facts["% of roof"] = round(100 * report.ceilings.share(node), 1)
    return facts

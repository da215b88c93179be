"""Profile reports: time, operations and memory traffic of every node of a model. TVM: `profiling.Report`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.graph import Graph, GraphNode, GraphTensor
from relayc.backend.runtime.html_text import facts_html, table_html
from relayc.backend.runtime.sizes import evaluate, size_text

__all__ = ["Execution", "Executions", "NodeTiming", "Report", "dynamic_timings", "node_timings"]


@dataclass(frozen=True)
class NodeTiming:
    """A node, or a sum of nodes: seconds per run, floating-point operations, bytes read and written."""

    name: str
    func: str
    ops: str
    sources: str
    shapes: str
    seconds: float
    flops: int
    bytes: int
    multiplied: str = ""
    """the element type of the products among the operations; "": there are none"""
    count: int = 1

    @property
    def us(self) -> float:
        """Microseconds."""
        return self.seconds * 1e6

    @property
    def gflops(self) -> float:
        """Billions of floating point operations per second."""
        return self.flops / self.seconds * 1e-9 if self.seconds else 0.0

    @property
    def gbs(self) -> float:
        """GB of traffic per second."""
        return self.bytes / self.seconds * 1e-9 if self.seconds else 0.0


_COLUMNS: dict[str, Callable[[NodeTiming, float], str]] = {
    "node": lambda t, _: t.name if t.count == 1 else f"{t.count} x {t.name}",
    "operators": lambda t, _: t.ops,
    "output": lambda t, _: t.shapes,
    "us": lambda t, _: f"{t.us:.1f}",
    "%": lambda t, total: f"{100 * t.seconds / total:.1f}" if total else "0.0",
    "GFLOP/s": lambda t, _: f"{t.gflops:.1f}",
    "GB/s": lambda t, _: f"{t.gbs:.1f}",
}
_ROOF_COLUMNS = ("bound", "% of roof")
_LEFT = {"node", "operators", "output", "bound"}
_WIDEST = 48


@dataclass(frozen=True)
class Report:
    """The timings of all nodes in execution order, and the configuration: model, target, device, threads.

    With the machine's `ceilings`, tables and records also show the fraction of the roofline that each node reached.
    """

    calls: list[NodeTiming]
    configuration: dict[str, Any]
    ceilings: Ceilings | None = None

    @staticmethod
    def median(reports: Sequence[Report], ceilings: Ceilings | None = None) -> Report:
        """Merge the reports of several runs of one model, with the median time of every node."""
        calls = [
            replace(same[0], seconds=float(np.median([call.seconds for call in same])))
            for same in zip(*[report.calls for report in reports], strict=True)
        ]
        return Report(calls, reports[0].configuration, ceilings)

    def __iter__(self) -> Iterator[NodeTiming]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def total_us(self) -> float:
        """Microseconds of all nodes together."""
        return sum(call.us for call in self.calls)

    def by(self, key: Callable[[NodeTiming], str]) -> Report:
        """The nodes with equal `key` summed, named after it: `report.by(lambda call: call.ops)`."""
        groups: dict[str, NodeTiming] = {}
        for call in self.calls:
            name = key(call)
            old = groups.get(name)
            groups[name] = replace(
                call if old is None else old,
                name=name,
                shapes=call.shapes if old is None or old.shapes == call.shapes else "",
                seconds=call.seconds + (0 if old is None else old.seconds),
                flops=call.flops + (0 if old is None else old.flops),
                bytes=call.bytes + (0 if old is None else old.bytes),
                count=call.count + (0 if old is None else old.count),
            )
        return Report(list(groups.values()), self.configuration, self.ceilings)

    def table(self, sort: bool = True, top: int | None = None) -> str:
        """The report as text, slowest nodes first unless `sort` is false, the first `top` of them."""
        calls = sorted(self.calls, key=lambda call: -call.seconds) if sort else self.calls
        names = [*_COLUMNS, *(_ROOF_COLUMNS if self.ceilings is not None else ())]
        rows = [self._cells(call, [call]) for call in calls[:top]]
        if len(rows) < len(calls):
            rows.append(self._cells(_summed(f"({len(calls) - len(rows)} more)", calls[top:]), calls[top:]))
        rows.append(self._cells(_summed("total", calls), calls))
        widths = [min(_WIDEST, max(map(len, cells))) for cells in zip(names, *rows, strict=True)]
        lines = [_line(names, names, widths), _line(names, ["-" * width for width in widths], widths)]
        return "\n".join([*lines, *(_line(names, row, widths) for row in rows)])

    def _cells(self, shown: NodeTiming, parts: Sequence[NodeTiming]) -> list[str]:
        """A row of the table: a node, or the sum of several `parts`."""
        total = sum(call.seconds for call in self.calls)
        cells = [column(shown, total) for column in _COLUMNS.values()]
        if self.ceilings is None:
            return cells
        limit = "compute" if self.ceilings.is_compute_bound(shown) else "memory"
        return [*cells, limit if len(parts) == 1 else "", f"{100 * _roof_share(self.ceilings, parts):.1f}"]

    def csv(self) -> str:
        """The report as comma-separated values, one line per node, in the order they run."""
        import csv  # 1 ms, which loading a model does without

        text = io.StringIO()
        rows = self._rows()
        writer = csv.DictWriter(text, list(rows[0]) if rows else ["name"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def json(self) -> str:
        """The report as JSON text: `record`."""
        return json.dumps(self.record(), indent=1)

    def record(self) -> dict[str, Any]:
        """The report as JSON values: "configuration", "calls", and "ceilings" where they are known."""
        ceilings = {} if self.ceilings is None else {"ceilings": asdict(self.ceilings)}
        return {"configuration": self.configuration, **ceilings, "calls": self._rows()}

    def _repr_html_(self) -> str:
        """The report in a notebook: the configuration, and the nodes, slowest first."""
        facts = [(key, str(value)) for key, value in self.configuration.items()]
        facts += [] if self.ceilings is None else [("ceilings", str(self.ceilings))]
        calls = sorted(self.calls, key=lambda call: -call.seconds)
        names = [*_COLUMNS, *(_ROOF_COLUMNS if self.ceilings is not None else ())]
        rows = [self._cells(call, [call]) for call in calls]
        rows.append(self._cells(_summed("total", calls), calls))
        numbers = [name for name in names if name not in _LEFT]
        return facts_html("Profile", facts) + table_html(names, rows, numbers=numbers)

    def __str__(self) -> str:
        facts = [f"{key} {value}" for key, value in self.configuration.items()]
        facts += [] if self.ceilings is None else [str(self.ceilings)]
        return f"{', '.join(facts)}\n{self.table()}"

    @property
    def roof_share(self) -> float:
        """The roofline time of all nodes as a fraction of their measured time. Needs `ceilings`."""
        assert self.ceilings is not None, "a report without ceilings has no share of them"
        return _roof_share(self.ceilings, self.calls)

    def _rows(self) -> list[dict[str, Any]]:
        total = self.total_us
        rows = [{**_fields(call), "percent": 100 * call.us / total if total else 0.0} for call in self.calls]
        for row, call in zip(rows, self.calls, strict=True):
            if self.ceilings is not None:
                row["roof_share"] = self.ceilings.share(call)
        return rows


def _fields(call: NodeTiming) -> dict[str, Any]:
    return {**asdict(call), "us": call.us, "gflops": call.gflops, "gbs": call.gbs}


def _summed(name: str, calls: Sequence[NodeTiming]) -> NodeTiming:
    seconds, flops, nbytes = sum(c.seconds for c in calls), sum(c.flops for c in calls), sum(c.bytes for c in calls)
    return NodeTiming(name, "", "", "", "", seconds, flops, nbytes)


def _roof_share(ceilings: Ceilings, calls: Sequence[NodeTiming]) -> float:
    seconds = sum(call.seconds for call in calls)
    return sum(ceilings.least_seconds(call) for call in calls) / seconds if seconds else 0.0


def _line(names: list[str], cells: list[str], widths: list[int]) -> str:
    padded: list[str] = []
    for name, cell, width in zip(names, cells, widths, strict=True):
        short = cell if len(cell) <= width else cell[: width - 3] + "..."
        padded.append(short.ljust(width) if name in _LEFT else short.rjust(width))
    return "  ".join(padded).rstrip()


class Execution(NamedTuple):
    """The seconds that a node took, and the sizes that it was executed with."""

    seconds: float
    sizes: Mapping[str, int]


class Executions(dict[int, list[Execution]]):
    """The executions of a run by the id of the node."""

    def add(self, node: GraphNode, seconds: float, sizes: Mapping[str, int]) -> None:
        """Note an execution."""
        self.setdefault(id(node), []).append(Execution(seconds, dict(sizes)))


def dynamic_timings(graph: Graph, runs: Sequence[Executions]) -> list[NodeTiming]:
    """The timings of a graph's nodes, and of those in its control flow, summed over their executions; medians of the
    runs."""
    found: list[NodeTiming] = []
    for part, place in [(graph, ""), *graph.bodies()]:
        for node in part.nodes:
            seconds = float(np.median([sum(each.seconds for each in run.get(id(node), ())) for run in runs]))
            timing = _timing(part, node, seconds, runs[-1].get(id(node), ()))
            if timing.count or not place:
                found.append(replace(timing, name=f"{place}: {timing.name}") if place else timing)
    return found


def node_timings(graph: Graph, seconds: Sequence[float]) -> list[NodeTiming]:
    """The timings of the nodes of a graph of static shapes from their seconds."""
    return [_timing(graph, node, time, (Execution(time, {}),)) for node, time in zip(graph.nodes, seconds, strict=True)]


def _timing(graph: Graph, node: GraphNode, seconds: float, executions: Sequence[Execution]) -> NodeTiming:
    """The timing of a node of all its executions; shapes are those of the last."""

    def shape(of: GraphTensor) -> str:
        known = [evaluate(d, executions[-1].sizes) for d in of.shape] if executions else map(size_text, of.shape)
        return f"{of.dtype}[{','.join(map(str, known))}]"

    return NodeTiming(
        name=node.name,
        func=node.func,
        ops="+".join(node.ops),
        sources=" ".join(node.sources),
        shapes=" ".join(shape(graph.tensors[index]) for index in node.outputs),
        seconds=seconds,
        flops=sum(evaluate(node.flops, each.sizes) for each in executions),
        bytes=sum(evaluate(node.bytes, each.sizes) for each in executions),
        multiplied=node.multiplied,
        count=len(executions),
    )

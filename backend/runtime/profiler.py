"""What a profile reports: the time of every node of a model, against its work and traffic. TVM: `profiling.Report`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from backend.runtime.graph import Graph, GraphNode

__all__ = ["NodeTiming", "Report", "node_timings"]


@dataclass(frozen=True)
class NodeTiming:
    """One node, or several summed: seconds of one run, floating point operations, bytes read and written."""

    name: str
    func: str
    ops: str
    sources: str
    shapes: str
    seconds: float
    flops: int
    bytes: int
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
_LEFT = {"node", "operators", "output"}
_WIDEST = 48


@dataclass(frozen=True)
class Report:
    """The timings of all nodes in the order they run, and the circumstances: model, target, device, threads."""

    calls: list[NodeTiming]
    configuration: dict[str, Any]

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
        return Report(list(groups.values()), self.configuration)

    def table(self, sort: bool = True, top: int | None = None) -> str:
        """The report as text, slowest nodes first unless `sort` is false, the first `top` of them."""
        calls = sorted(self.calls, key=lambda call: -call.seconds) if sort else self.calls
        total = sum(call.seconds for call in self.calls)
        rows = [[column(call, total) for column in _COLUMNS.values()] for call in calls[:top]]
        if len(rows) < len(calls):
            left = sum(call.seconds for call in calls[len(rows) :])
            share = f"{100 * left / total:.1f}" if total else "0.0"
            rows.append([f"({len(calls) - len(rows)} more)", "", "", f"{left * 1e6:.1f}", share, "", ""])
        work, traffic = sum(call.flops for call in self.calls), sum(call.bytes for call in self.calls)
        whole = NodeTiming("total", "", "", "", "", total, work, traffic)
        rows.append([column(whole, total) for column in _COLUMNS.values()])
        widths = [min(_WIDEST, max(map(len, cells))) for cells in zip(_COLUMNS, *rows, strict=True)]
        lines = [_line(list(_COLUMNS), widths), _line(["-" * width for width in widths], widths)]
        return "\n".join([*lines, *(_line(row, widths) for row in rows)])

    def csv(self) -> str:
        """The report as comma-separated values, one line per node, in the order they run."""
        text = io.StringIO()
        writer = csv.DictWriter(
            text, [*_fields(self.calls[0]), "percent"] if self.calls else ["name"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(self._rows())
        return text.getvalue()

    def json(self) -> str:
        """The report as JSON: `{"configuration": {...}, "calls": [...]}`."""
        return json.dumps({"configuration": self.configuration, "calls": self._rows()}, indent=1)

    def __str__(self) -> str:
        facts = ", ".join(f"{key} {value}" for key, value in self.configuration.items())
        return f"{facts}\n{self.table()}"

    def _rows(self) -> list[dict[str, Any]]:
        total = self.total_us
        return [{**_fields(call), "percent": 100 * call.us / total if total else 0.0} for call in self.calls]


def _fields(call: NodeTiming) -> dict[str, Any]:
    return {**asdict(call), "us": call.us, "gflops": call.gflops, "gbs": call.gbs}


def _line(cells: list[str], widths: list[int]) -> str:
    padded: list[str] = []
    for name, cell, width in zip(_COLUMNS, cells, widths, strict=True):
        short = cell if len(cell) <= width else cell[: width - 3] + "..."
        padded.append(short.ljust(width) if name in _LEFT else short.rjust(width))
    return "  ".join(padded).rstrip()


def node_timings(graph: Graph, seconds: Sequence[float]) -> list[NodeTiming]:
    """The timings of a graph's nodes, given their seconds."""

    def shapes(node: GraphNode) -> str:
        outputs = [graph.tensors[index] for index in node.outputs]
        return " ".join(f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]" for tensor in outputs)

    return [
        NodeTiming(
            name=node.name,
            func=node.func,
            ops="+".join(node.ops),
            sources=" ".join(node.sources),
            shapes=shapes(node),
            seconds=time,
            flops=node.flops,
            bytes=node.bytes,
        )
        for node, time in zip(graph.nodes, seconds, strict=True)
    ]

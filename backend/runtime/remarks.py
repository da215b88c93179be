"""What stands out in a profile, as sentences: where the time goes, and what to look at next."""

from __future__ import annotations

from collections.abc import Iterator

from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.profiler import NodeTiming, Report
from relayc.backend.runtime.quantities import counted

__all__ = ["remarks"]

_MOST_NODES = 5
"""Nodes far from the roof that are named."""
_WEIGHTY = 0.03
"""Share of the time from which a node is worth a remark."""
_FAR = 0.4
"""Share of the roof below which a node is called far from it."""
_SHORT_US = 5.0
"""Microseconds below which starting threads weighs against the work of a node."""


def remarks(report: Report) -> list[str]:
    """Sentences about a profile, the most important first."""
    calls = sorted(report.calls, key=lambda call: -call.seconds)
    total = sum(call.seconds for call in calls)
    if not total:
        return ["No node took any time."]
    found = [_most_of_the_time(calls, total), *_outside_of_nodes(report), *_short_nodes(calls, total)]
    if report.ceilings is not None:
        found += [*_bound(calls, total, report.ceilings), *_far_nodes(calls, total, report.ceilings)]
    return found


def _most_of_the_time(calls: list[NodeTiming], total: float) -> str:
    """How many nodes make 80 % of the time."""
    count, seconds = 0, 0.0
    while seconds < 0.8 * total:
        seconds += calls[count].seconds
        count += 1
    first = calls[0]
    return (
        f"{count} of {counted(len(calls), 'node')} take {100 * seconds / total:.0f} % of the time; the slowest is "
        f"{first.name} ({first.ops}) with {100 * first.seconds / total:.0f} %."
    )


def _outside_of_nodes(report: Report) -> Iterator[str]:
    whole = report.configuration.get("run us")
    if isinstance(whole, int | float) and whole > 1.2 * report.total_us:
        outside = 100 * (1 - report.total_us / whole)
        yield (
            f"A run takes {whole:.1f} us, its nodes {report.total_us:.1f} us: {outside:.0f} % of it is outside of "
            "kernels (control flow, strings, sizes computed while the model runs)."
        )


def _short_nodes(calls: list[NodeTiming], total: float) -> Iterator[str]:
    short = [call for call in calls if call.us < _SHORT_US * call.count]
    share = sum(call.seconds for call in short) / total
    if len(short) > len(calls) / 2 and share > 0.5:
        yield (
            f"{counted(len(short), 'node')} take less than {_SHORT_US:g} us each and {100 * share:.0f} % of the time "
            "together: fewer threads (--threads 1) or a larger batch may be faster."
        )


def _bound(calls: list[NodeTiming], total: float, ceilings: Ceilings) -> Iterator[str]:
    memory = sum(call.seconds for call in calls if not ceilings.is_compute_bound(call)) / total
    if memory > 0.5:
        yield (
            f"{100 * memory:.0f} % of the time is spent in nodes that memory bounds: half precision (--precision) or a "
            "quantised model moves fewer bytes."
        )


def _far_nodes(calls: list[NodeTiming], total: float, ceilings: Ceilings) -> Iterator[str]:
    far = [
        (call, share)
        for call in calls
        if call.seconds > _WEIGHTY * total
        and (share := ceilings.share(call)) < _FAR
    ]
    for call, share in far[:_MOST_NODES]:
        limit = "compute" if ceilings.is_compute_bound(call) else "memory"
        yield (
            f"{call.name} ({call.ops}, {call.shapes}) takes {100 * call.seconds / total:.0f} % of the time and reaches "
            f"{100 * share:.0f} % of the roof ({limit}); its code: relayc show model.onnx loops --kernel {call.func}"
        )

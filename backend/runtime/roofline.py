"""Roofline plot of a profile as SVG: GFLOP/s over operations per byte, under the ceilings (Williams et al., 2009).

Both axes are logarithmic. A node is a circle whose area is its share of the time, with a tooltip. A bar below the plot
shows the time by kernel family, including nodes without floating-point operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.profiler import NodeTiming, Report

__all__ = ["roofline_svg"]

_WIDTH, _HEIGHT = 860, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 60, 100
_COLORS = {"product": "#2166ac", "convolution": "#b2182b", "other": "#4d4d4d"}
_STYLE = "text{font:12px sans-serif;fill:#222} .grid{stroke:#ddd} .roof{stroke:#222;stroke-width:2;fill:none}"
_LARGEST = 26.0
"""Radius in pixels of a circle for 100 % of the time."""


class _Scale:
    """A logarithmic axis from `low` to `high` over pixels `start` to `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        place = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + min(max(place, 0.0), 1.0) * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def roofline_svg(report: Report) -> str:
    """The roofline plot of a report with ceilings, as SVG text."""
    ceilings = report.ceilings
    assert ceilings is not None, "a roofline needs the machine's ceilings"
    shown = [call for call in report.calls if call.flops and call.bytes and call.seconds]
    work = [call.flops / call.bytes for call in shown]
    x = _Scale(min([*work, ceilings.ridge / 10]), max([*work, ceilings.ridge * 10]), _LEFT, _WIDTH - _RIGHT)
    rates = [call.gflops for call in shown]
    highest = max([ceilings.gflops, *ceilings.by_type.values()])
    y = _Scale(min([*rates, ceilings.gflops / 100]), highest * 1.2, _HEIGHT - _BOTTOM, _TOP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><style>{_STYLE}</style>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_heading(report, ceilings),
        *_grid(x, y),
        *_roof(x, y, ceilings),
        *(_circle(call, report, ceilings, x, y) for call in sorted(shown, key=lambda c: -c.seconds)),
        *_time_bar(report, ceilings),
        "</svg>",
    ]
    return "\n".join(lines)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _heading(report: Report, ceilings: Ceilings) -> Iterator[str]:
    facts = [f"{name} {value}" for name, value in report.configuration.items() if name != "target"]
    yield _text(_LEFT, 24, ", ".join(facts))
    yield _text(_LEFT, 42, f"{ceilings}; {100 * report.roof_share:.0f} % of the roof, {report.total_us / 1e3:.2f} ms")


def _grid(x: _Scale, y: _Scale) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in x.ticks():
        yield f'<path class="grid" d="M{x(value):.1f} {_TOP}V{bottom}"/>'
        yield _text(x(value), bottom + 16, f"{value:g}", "middle")
    for value in y.ticks():
        yield f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{right}"/>'
        yield _text(_LEFT - 6, y(value) + 4, f"{value:g}", "end")
    yield _text((_LEFT + right) / 2, bottom + 34, "operations per byte", "middle")
    yield f'<g transform="translate(20 {(_TOP + bottom) / 2:.0f}) rotate(-90)">{_text(0, 0, "GFLOP/s", "middle")}</g>'


def _roof(x: _Scale, y: _Scale, ceilings: Ceilings) -> Iterator[str]:
    left, right = max(10.0**x.low, 10.0**y.low / ceilings.gbs), 10.0**x.high
    for name, peak in {"float32": ceilings.gflops, **ceilings.by_type}.items():
        points = [(left, left * ceilings.gbs), (peak / ceilings.gbs, peak), (right, peak)]
        path = "L".join(f"{x(work):.1f} {y(rate):.1f}" for work, rate in points)
        yield f'<path class="roof" d="M{path}"/>'
        if ceilings.by_type:
            yield _text(x(right), y(peak) - 4, name, "end")


def _circle(call: NodeTiming, report: Report, ceilings: Ceilings, x: _Scale, y: _Scale) -> str:
    total = report.total_us * 1e-6
    radius = max(2.0, _LARGEST * math.sqrt(call.seconds / total))
    share = 100 * ceilings.share(call)
    title = (f"{call.name}: {call.ops} {call.shapes}\n{call.us:.1f} us, {100 * call.seconds / total:.1f} %, "
             f"{call.gflops:.1f} GFLOP/s, {call.gbs:.1f} GB/s, {share:.0f} % of the roof\n{call.sources}")  # fmt: skip
    place = f'cx="{x(call.flops / call.bytes):.1f}" cy="{y(call.gflops):.1f}" r="{radius:.1f}"'
    style = f'fill="{_COLORS[_family(call)]}" fill-opacity="0.45" stroke="#222" stroke-width="0.5"'
    return f"<circle {place} {style}><title>{escape(title)}</title></circle>"


def _family(call: NodeTiming) -> str:
    if "conv" in call.ops:
        return "convolution"
    return "product" if "dense" in call.ops or "matmul" in call.ops else "other"


def _time_bar(report: Report, ceilings: Ceilings) -> Iterator[str]:
    """A bar of the time by kernel family, each split at its roofline time."""
    total, left, width, top = report.total_us * 1e-6, float(_LEFT), _WIDTH - _LEFT - _RIGHT, _HEIGHT - 44
    for family, color in _COLORS.items():
        calls = [call for call in report.calls if _family(call) == family]
        seconds = sum(call.seconds for call in calls)
        if not seconds:
            continue
        least = sum(ceilings.least_seconds(call) for call in calls)
        size, name = width * seconds / total, f"{family}: {100 * seconds / total:.0f} % of the time, "
        yield f'<rect x="{left:.1f}" y="{top}" width="{size:.1f}" height="14" fill="{color}" fill-opacity="0.45"/>'
        yield (f'<rect x="{left:.1f}" y="{top}" width="{size * min(least / seconds, 1.0):.1f}" height="14" '
               f'fill="{color}"><title>{name}{100 * least / seconds:.0f} % of the roof</title></rect>')  # fmt: skip
        left += size
    names = "   ".join(_COLORS)
    yield _text(_LEFT, top + 32, f"time by family ({names}); dark: what it would take at the roof")

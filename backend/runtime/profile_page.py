"""A profile as one page of HTML that needs no network: remarks, roofline, kernels sortable by column, the graph."""

from __future__ import annotations

from html import escape

from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.graph_drawing import graph_svg
from relayc.backend.runtime.html_text import facts_html
from relayc.backend.runtime.profiler import Report
from relayc.backend.runtime.remarks import remarks
from relayc.backend.runtime.roofline import roofline_svg

__all__ = ["profile_page"]

_STYLE = """
body{font:14px sans-serif;margin:24px;color:#222} h1{font-size:20px} h2{font-size:16px;margin-top:28px}
table{border-collapse:collapse} td,th{padding:3px 8px;border-bottom:1px solid #ddd;text-align:left}
#kernels th{cursor:pointer;background:#f4f4f4;position:sticky;top:0} #kernels td.n{text-align:right}
.graph{overflow:auto;max-height:80vh;border:1px solid #ddd} .graph text{font:11px sans-serif}
"""
_SCRIPT = """
for (const head of document.querySelectorAll("#kernels th")) head.onclick = () => {
  const at = [...head.parentNode.children].indexOf(head), body = document.querySelector("#kernels tbody");
  const key = row => row.children[at].dataset.v ?? row.children[at].textContent;
  const number = head.dataset.n === "1", down = head.dataset.down !== "1";
  for (const other of head.parentNode.children) delete other.dataset.down;
  if (down) head.dataset.down = "1";
  const order = (a, b) => number ? key(a) - key(b) : key(a).localeCompare(key(b));
  body.append(...[...body.rows].sort((a, b) => down === number ? order(b, a) : order(a, b)));
};
"""


def profile_page(report: Report, graph: Graph) -> str:
    """The page of a profile of the model that `graph` is of, as text. Rooflines need a report with ceilings."""
    title = f"Profile of {report.configuration.get('model', 'a model')}"
    facts = [(name, str(value)) for name, value in report.configuration.items()]
    facts += [("nodes together", f"{report.total_us:.1f} us")]
    facts += [] if report.ceilings is None else [("ceilings", str(report.ceilings))]
    notes = "".join(f"<li>{escape(text)}</li>" for text in remarks(report))
    roofline = "" if report.ceilings is None else f"<h2>Roofline</h2>{roofline_svg(report)}"
    seconds = {call.name: call.seconds for call in report.calls}
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{facts_html('Configuration', facts)}"
        f"<h2>Remarks</h2><ul>{notes}</ul>{roofline}"
        f"<h2>Kernels</h2><p>A click on a column sorts by it.</p>{_kernels(report)}"
        f'<h2>Graph</h2><div class="graph">{graph_svg(graph, seconds)}</div>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _kernels(report: Report) -> str:
    """The table of nodes, slowest first; cells of numbers carry the exact value, by which they are sorted."""
    total = sum(call.seconds for call in report.calls) or 1.0
    names = ["node", "operators", "output", "us", "%", "GFLOP/s", "GB/s", "count", "kernel", "sources"]
    numbers = {"us", "%", "GFLOP/s", "GB/s", "count", "% of roof"}
    ceilings = report.ceilings
    if ceilings is not None:
        names[7:7] = ["bound", "% of roof"]
    rows: list[str] = []
    for call in sorted(report.calls, key=lambda call: -call.seconds):
        cells: dict[str, str | float] = {
            "node": call.name, "operators": call.ops, "output": call.shapes, "us": call.us,
            "%": 100 * call.seconds / total, "GFLOP/s": call.gflops, "GB/s": call.gbs, "count": call.count,
            "kernel": call.func, "sources": call.sources,
        }  # fmt: skip
        if ceilings is not None:
            cells["bound"] = "compute" if ceilings.is_compute_bound(call) else "memory"
            cells["% of roof"] = 100 * ceilings.share(call)
        rows.append("<tr>" + "".join(_cell(cells[name]) for name in names) + "</tr>")
    head = "".join(f'<th data-n="{int(name in numbers)}">{escape(name)}</th>' for name in names)
    return f'<table id="kernels"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    shown = str(value) if isinstance(value, int) else f"{value:.1f}"
    return f'<td class="n" data-v="{value:.9g}">{shown}</td>'

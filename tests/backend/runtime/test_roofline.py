from __future__ import annotations

from xml.etree import ElementTree

from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.profiler import NodeTiming, Report
from relayc.backend.runtime.roofline import roofline_svg

SVG = "{http://www.w3.org/2000/svg}"
CALLS = [
    NodeTiming("c", "c", "nn.conv2d", "/c & <d>", "float32[8]", 75e-6, 7_500_000, 75_000),  # 100 GFLOP/s at 100
    NodeTiming("d", "d", "nn.dense_packed", "/d", "float32[8]", 25e-6, 250_000, 250_000),  # 10 GFLOP/s at 1
    NodeTiming("a", "a", "add", "/a", "float32[8]", 10e-6, 0, 1000),
]


def picture() -> ElementTree.Element:
    return ElementTree.fromstring(roofline_svg(Report(CALLS, {"model": "m<1>"}, Ceilings(100.0, 10.0))))


def test_a_circle_for_every_kernel_with_multiply_adds_its_area_the_share_of_time() -> None:
    first, second = picture().iter(f"{SVG}circle")
    assert 2.9 < (float(first.get("r", 0)) / float(second.get("r", 0))) ** 2 < 3.1
    assert float(first.get("cx", 0)) > float(second.get("cx", 0))
    assert "100.0 GFLOP/s" in str(first[0].text) and "/c & <d>" in str(first[0].text)


def test_circles_at_a_ceiling_lie_on_the_roof() -> None:
    root = picture()
    roof = next(path for path in root.iter(f"{SVG}path") if path.get("class") == "roof")
    points = [tuple(map(float, p.split())) for p in str(roof.get("d"))[1:].split("L")]
    compute, memory = root.iter(f"{SVG}circle")
    assert abs(points[-1][1] - float(compute.get("cy", 0))) < 0.2
    (x0, y0), (x1, y1) = points[:2]
    on_slope = y0 + (y1 - y0) * (float(memory.get("cx", 0)) - x0) / (x1 - x0)
    assert abs(on_slope - float(memory.get("cy", 0))) < 0.2


def test_the_bar_has_every_family() -> None:
    bars = [rect for rect in picture().iter(f"{SVG}rect") if rect.get("height") == "14"]
    assert len(bars) == 6 and abs(sum(float(b.get("width", 0)) for b in bars[::2]) - 760) < 0.5

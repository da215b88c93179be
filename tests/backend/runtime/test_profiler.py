from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.graph import Graph
from relayc.backend.runtime.profiler import NodeTiming, Report, node_timings

CALLS = [
    NodeTiming("conv_0", "conv", "nn.conv2d+nn.relu", "/c0 /r0", "float32[1,8]", 30e-6, 60_000, 30_000),
    NodeTiming("add_0", "add", "add", "/a0", "float32[1,8]", 10e-6, 8, 1_000_000),
    NodeTiming("conv_1", "conv", "nn.conv2d+nn.relu", "/c1 /r1", "float32[1,8]", 60e-6, 60_000, 0),
]
REPORT = Report(CALLS, {"model": "m", "threads": 2})


def test_rates():
    assert round(CALLS[0].gflops, 6) == 2 and round(CALLS[0].gbs, 6) == 1 and round(CALLS[1].us, 6) == 10
    assert NodeTiming("", "", "", "", "", 0.0, 5, 5).gflops == 0
    assert round(REPORT.total_us, 6) == 100


def test_the_table_shows_the_slowest_first():
    lines = REPORT.table().splitlines()
    assert lines[0].split() == ["node", "operators", "output", "us", "%", "GFLOP/s", "GB/s"]
    assert [line.split()[0] for line in lines[2:]] == ["conv_1", "conv_0", "add_0", "total"]
    assert lines[2].split()[1:] == ["nn.conv2d+nn.relu", "float32[1,8]", "60.0", "60.0", "1.0", "0.0"]
    assert lines[-1].split()[:3] == ["total", "100.0", "100.0"]
    assert len({line.index("us") for line in lines[:1]}) == 1
    assert [line.split()[0] for line in REPORT.table(sort=False).splitlines()[2:5]] == ["conv_0", "add_0", "conv_1"]


def test_the_table_may_be_cut():
    rows = REPORT.table(top=1).splitlines()[2:]
    assert rows[1].split() == ["(2", "more)", "40.0", "40.0", "1.5", "25.7"]
    assert len(rows) == 3


def test_long_cells_are_cut():
    long = NodeTiming("n" * 100, "f", "", "", "", 1e-6, 0, 0)
    assert "n" * 45 + "..." in Report([long], {}).table()


def test_sums_by_a_key():
    groups = REPORT.by(lambda call: call.func)
    assert [(call.name, call.count) for call in groups] == [("conv", 2), ("add", 1)]
    assert round(groups.calls[0].us, 6) == 90 and groups.calls[0].flops == 120_000
    assert "2 x conv" in groups.table()


def test_csv_and_json_hold_every_node():
    rows = list(csv.DictReader(io.StringIO(REPORT.csv())))
    assert [row["name"] for row in rows] == ["conv_0", "add_0", "conv_1"]
    assert [round(float(row["percent"])) for row in rows] == [30, 10, 60]
    found = json.loads(REPORT.json())
    assert found["configuration"] == {"model": "m", "threads": 2}
    assert [call["name"] for call in found["calls"]] == [row["name"] for row in rows]
    assert str(REPORT).startswith("model m, threads 2\n")


def test_an_empty_report():
    empty = Report([], {})
    assert len(empty) == 0 and "total" in empty.table() and empty.csv() == "name\n"


def test_a_node_of_a_graph(small):
    record = small.graph()
    record["tensors"].append({"name": "scratch", "shape": [8], "dtype": "uint8", "storage": ["arena", 0]})
    record["nodes"][0]["scratch"].append(5)
    graph = Graph.from_json(record)
    timing, last = node_timings(graph, [1e-6, 2e-6])
    assert last.seconds == 2e-6
    assert (timing.name, timing.func, timing.ops) == ("dense_relu_0", "dense_relu", "nn.dense+add+nn.relu")
    assert timing.shapes == "float32[2,4]" and timing.sources == "/fc/MatMul /fc/Add /Relu"


def test_ceilings_say_what_limits_each_node_and_how_near_it_came():
    ceilings = Ceilings(gflops=4.0, gbs=100.0)
    report = Report(CALLS, REPORT.configuration, ceilings)
    lines = report.table().splitlines()
    assert lines[0].split()[-4:] == ["bound", "%", "of", "roof"]
    assert [line.split()[-2:] for line in lines[2:5]] == [["compute", "25.0"], ["compute", "50.0"], ["memory", "100.0"]]
    assert lines[5].split()[-1] == "40.0" and round(report.roof_share, 6) == 0.4  # 15 + 15 + 10 of 100 us
    assert [round(call["roof_share"], 6) for call in json.loads(report.json())["calls"]] == [0.5, 1.0, 0.25]
    assert "roof_share" in report.csv().splitlines()[0] and "copy 100.0 GB/s" in str(report)


def test_the_ridge_is_where_both_ceilings_take_equally_long():
    ceilings = Ceilings(gflops=100.0, gbs=20.0)
    below, at, above = [replace(CALLS[0], flops=flops, bytes=10**9) for flops in (49 * 10**8, 5 * 10**9, 51 * 10**8)]
    assert ceilings.ridge == 5 and ceilings.least_seconds(at) == pytest.approx(1e9 / 20e9)
    assert not ceilings.is_compute_bound(below) and ceilings.is_compute_bound(above)


def test_products_of_other_types_have_their_own_ceiling():
    ceilings = Ceilings(gflops=4.0, gbs=100.0, by_type={"int8": 16.0})
    floats, codes, doubles = [replace(CALLS[2], multiplied=name) for name in ("float32", "uint8", "float64")]
    assert [ceilings.share(call) for call in (floats, codes, doubles)] == pytest.approx([0.25, 0.0625, 0.25])
    assert str(ceilings) == "multiply-adds float32 4.0, int8 16.0 GFLOP/s, copy 100.0 GB/s"
    calls = [replace(CALLS[0], multiplied="int8"), *CALLS[1:]]
    assert Report(calls, {}, ceilings).table().splitlines()[3].split()[-2:] == ["compute", "12.5"]


def test_the_median_of_several_reports():
    slow = Report([replace(call, seconds=9.0) for call in CALLS], {})
    merged = Report.median([REPORT, slow, REPORT], Ceilings(1.0, 1.0))
    assert [call.seconds for call in merged] == [call.seconds for call in CALLS]
    assert merged.configuration == REPORT.configuration and merged.ceilings == Ceilings(1.0, 1.0)


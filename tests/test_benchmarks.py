"""The benchmarks, but for what they measure: tables, results that are kept, what runs where there is no GPU."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import models, peak, roofline
from benchmarks.light import write_light
from relayc.backend.llvm.ceilings import FmaLoop
from relayc.backend.runtime.ceilings import Ceilings
from relayc.backend.runtime.profiler import NodeTiming, Report

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("program", ["benchmarks.gpu", "benchmarks.gpu_peak"])
def test_without_a_gpu_it_says_why_and_measures_nothing(program):
    done = subprocess.run([sys.executable, "-m", program], cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("nothing measured: there is no CUDA device: ") and not done.stdout


def record(model: str, batch: int, threads: int, ours: float, **peers: float) -> dict[str, Any]:
    engines = {name: {"ms": ms, "prepare_s": 0.5, "peak_mb": 99.0} for name, ms in {"relayc": ours, **peers}.items()}
    compiled = {"cold_s": 1.0, "warm_s": 0.25, "bytes": 1}
    return {"model": model, "batch": batch, "threads": threads, "compile": compiled, "engines": engines}


def test_results_of_models_are_read_back_the_last_of_each_case(tmp_path: Path) -> None:
    path = tmp_path / "models.jsonl"
    assert models.read_results(path) == {}
    lines = [record("a", 1, 1, 4.0), record("b", 1, 1, 2.0), record("a", 1, 1, 3.0)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = models.read_results(path)
    assert list(results) == [("a", 1, 1), ("b", 1, 1)] and results["a", 1, 1]["engines"]["relayc"]["ms"] == 3.0


def test_tables_of_models_have_the_better_peer_s_ratio_and_its_mean() -> None:
    records = [
        record("a", 1, 1, 2.0, onnxruntime=5.0, openvino=4.0),
        record("b", 1, 1, 4.0, onnxruntime=2.0),
        record("a", 8, 1, 2.0),
    ]
    text = models.tables({models.case_of(r): r for r in records})
    rows = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in text.splitlines() if line.startswith("|")}
    assert ("a", "2.00", "5.00", "4.00", "2.00") in rows and ("b", "4.00", "2.00", "-", "0.50") in rows
    assert ("geometric mean", "", "", "", "1.00") in rows and ("geometric mean", "", "", "", "nan") in rows
    assert ("a", "1.00", "0.25", "0.500", "0.500", "0.500", "99", "99", "99") in rows


def test_the_front_page_tells_the_means_that_were_measured() -> None:
    measured = [
        [cell.strip() for cell in line.split("|")[2:-1] if cell.strip()]
        for processor in ("x86-64-v4", "zen4", "x86-64-v3", "xeon")
        for line in models.tables(models.read_results(models.RESULTS / f"{processor}.jsonl")).splitlines()
        if "geometric mean" in line
    ]
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| batch ")]
    assert [[c.strip() for c in row.split("|")[2:-1]] for row in rows] == measured


def table_rows(text: str) -> list[list[str]]:
    """The cells of all rows of the tables in a page."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def test_the_page_of_benchmarks_has_the_tables_that_were_measured() -> None:
    page = table_rows((ROOT / "benchmarks" / "README.md").read_text())
    rows = table_rows(models.tables(models.read_results(models.RESULTS / "x86-64-v4.jsonl")))
    begin = page.index(rows[0])
    assert page[begin : begin + len(rows)] == rows
    heads = [i for i, row in enumerate(page) if row[:3] == ["model", "batch 1, 1t", "batch 1, 2t"]]
    for head, processor in zip(heads, ("xeon", "zen4", "x86-64-v3"), strict=True):
        results = models.read_results(models.RESULTS / f"{processor}.jsonl")
        cases = [(batch, threads) for batch in (1, 8) for threads in (1, 2)]
        ratios = {name: [models.ratio(results[name, *case]) for case in cases] for name, _, _ in results}
        ratios["geometric mean"] = [statistics.geometric_mean(column) for column in zip(*ratios.values(), strict=True)]
        wanted = [[name, *[f"{ratio:.2f}" for ratio in row]] for name, row in ratios.items()]
        assert sorted(page[head + 2 : head + 2 + len(wanted)]) == sorted(wanted), processor


def test_only_missing_cases_are_measured_and_none_after_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, int, int]] = []

    class Model:
        def __init__(self, *_: Path) -> None: ...

        def measure(self, case: tuple[str, int, int], *_: Any) -> dict[str, Any]:
            measured.append(case)
            return record(*case, 1.0, onnxruntime=1.0)

    monkeypatch.setattr(models, "_Model", Model)
    monkeypatch.setattr(models, "locate", lambda name, *_: None if name == "absent" else (tmp_path, tmp_path))
    options = argparse.Namespace(
        models=["a", "absent", "b"], batch=[1], threads=[1, 2], again=False, minutes=1.0, zoo=None, engines=[],
        turns=1, seconds=0.1, results=tmp_path / "models.jsonl",
    )  # fmt: skip
    options.results.write_text(json.dumps(record("a", 1, 2, 1.0)) + "\n")
    models.run(options)
    assert measured == [("a", 1, 1), ("b", 1, 1), ("b", 1, 2)]
    models.run(options)
    assert len(measured) == 3 and len(models.read_results(options.results)) == 4
    options.again, options.minutes = True, -1.0
    models.run(options)
    assert len(measured) == 3


def test_light_models_take_a_batch(tmp_path: Path) -> None:
    path, inputs = write_light("squeezenet", tmp_path, batch=3)
    model = onnx.load(path)
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert {feed.shape[0] for feed in np.load(inputs).values()} == {3} and path.stem == "light_squeezenet_b3"


def test_kernels_are_counted_in_families() -> None:
    def call(ops: str, flops: int, nbytes: int = 10) -> NodeTiming:
        return NodeTiming("n", "f", ops, "", "", 1e-3, flops, nbytes)

    calls = [call("nn.conv2d_winograd+add", 9), call("nn.conv2d+clip", 9), call("nn.conv2d_nhwc_packed", 9),
             call("nn.dense_packed", 9), call("add", 0), call("add", 0, 1 << 40)]  # fmt: skip
    assert [roofline.family(c) for c in calls] == list(roofline.FAMILIES)
    report = Report(calls, {"run us": 5000.0}, Ceilings(1.0, 1.0))
    text = roofline.summary(report)
    assert all(name in text for name in roofline.FAMILIES) and text.split("whole run")[1].split()[:2] == ["6", "5.000"]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the tiles are written for x86-64")
def test_tiles_by_hand_have_as_many_multiply_adds_as_are_counted() -> None:
    lanes = FmaLoop().lanes
    if lanes not in peak.TILES:
        pytest.skip("no fused multiply-adds on this processor")
    for rows, vectors in peak.TILES[lanes]:
        tile = peak.TileLoop(rows, vectors, lanes)
        text = tile.assembly()
        sums = re.findall(r"vfmadd231ps %\w+, %\w+, %(\w+)", text)
        assert len(set(sums)) == len(sums) == rows * vectors
        read = set(re.findall(r"\(%r[ac]x\), %(\w+)", text))
        assert len(read) == vectors + 1 and not read & set(sums)
        assert tile.gflops() > 0

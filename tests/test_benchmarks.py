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

import te
from backend.driver import build
from backend.llvm.ceilings import FmaLoop
from backend.runtime.ceilings import Ceilings
from backend.runtime.profiler import NodeTiming, Report
from benchmarks import manifest, models, peak, roofline
from benchmarks.fingerprint import fingerprint
from benchmarks.light import write_light

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


X86 = "llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver3 -num-cores=1"
ARM = "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1 -num-cores=1"


def object_of(target: str, names: str, factor: float = 1.5) -> bytes:
    """An object file of y = exp(x * factor) + exp2(x), whose function, tensors and loops are called by `names`."""
    x = te.placeholder((1000,), "float32", name=f"x{names}")
    y = te.compute((1000,), lambda i: te.exp(x[i] * factor), name=f"y{names}")
    schedule = te.create_schedule(y.op)
    schedule[y].vectorize(schedule[y].split(y.op.axis[0], factor=8)[1])
    (code,) = manifest.object_files(build(schedule, [x, y], target, name=f"f{names}"))
    return code


@pytest.mark.parametrize("target", [X86, ARM])
def test_the_fingerprint_of_machine_code_has_no_names_but_all_constants(target: str) -> None:
    one, renamed, other = (object_of(target, *args) for args in (("",), ("_of_another_name",), ("", 2.5)))
    assert one != renamed and fingerprint(one) == fingerprint(renamed)
    assert fingerprint(other).hash != fingerprint(one).hash and fingerprint(other).size == fingerprint(one).size > 0


def test_a_fingerprint_is_of_an_elf_file() -> None:
    with pytest.raises(ValueError, match="no ELF file of 64 bits"):
        fingerprint(b"MZ")


def test_a_manifest_does_not_depend_on_hash_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--targets", "znver4,neoverse-n1", "--jobs", "1", "--only", ", 8 MB: relu$"]
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "benchmarks.manifest", "write", str(tmp_path / seed), *options]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True)
    assert manifest.main(["compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 0
    assert capsys.readouterr().out == "0 of 4 kernels differ\n"
    (tmp_path / "2").write_text(re.sub(r"([0-9a-f]{24}):\d+", r"\1:1", (tmp_path / "2").read_text(), count=1))
    assert manifest.main(["compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 1
    assert capsys.readouterr().out.endswith("-> 1 bytes\n1 of 4 kernels differ\n")


def a_manifest(*names: str, kernels: str = "aa:10 bb:20 bb:20", target: str = "znver4") -> dict[str, Any]:
    cases = {str(place): {"name": name, "kernels": {target: kernels}} for place, name in enumerate(names)}
    return {"format": 1, "llvm": "22", "targets": {}, "programs": {"kernels": cases}}


def test_manifests_are_compared_by_places_and_multisets() -> None:
    old = a_manifest("a", "b")
    assert manifest.compare(old, a_manifest("c", "d", kernels="bb:20 aa:10 bb:20")) == ([], 0, 6)
    changed = manifest.compare(old, a_manifest("c", "b", kernels="cc:12 bb:20"))
    lines = [f"kernels {place}, {name}, znver4: {sizes} bytes"
             for place, name in ((0, "c"), (1, "b")) for sizes in ("10 -> 12", "20 -> none")]  # fmt: skip
    assert changed == (lines, 4, 6)


def test_manifests_may_be_compared_in_what_both_have() -> None:
    old, new = a_manifest("a", "b"), a_manifest("a")
    lines = [f"kernels 1, b, znver4: {size} -> none bytes" for size in (10, 20, 20)]
    assert manifest.compare(old, new) == (lines, 3, 6) and manifest.compare(old, new, common=True) == ([], 0, 3)

"""Benchmarks without measurements: results, tables, the page made of them, and programs on machines without a GPU."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import bandwidth, manifest, models, peak, records, report, roofline
from benchmarks.fingerprint import fingerprint
from benchmarks.light import write_light
from relayc import te
from relayc.backend.driver import build
from relayc.backend.llvm.ceilings import FmaLoop
from relayc.backend.llvm.object_file import MalformedObject
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


def test_the_last_result_of_each_case_counts(tmp_path: Path) -> None:
    path = tmp_path / "models.jsonl"
    assert models.read_results(path) == {}
    lines = [record("a", 1, 1, 4.0), record("b", 1, 1, 2.0), record("a", 1, 1, 3.0)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = models.read_results(path)
    assert list(results) == [("a", 1, 1), ("b", 1, 1)] and results["a", 1, 1]["engines"]["relayc"]["ms"] == 3.0


def test_tables_of_models_have_ratios_to_the_fastest_peer_and_their_mean() -> None:
    records = [
        record("a", 1, 1, 2.0, onnxruntime=5.0, openvino=4.0),
        record("b", 1, 1, 4.0, onnxruntime=2.0),
        record("a", 8, 1, 2.0),
    ]
    text = models.tables({models.case_of(r): r for r in records})
    rows = {tuple(line[2:-2].split(" | ")) for line in text.splitlines() if line.startswith("|")}
    assert ("a", "2.00", "5.00", "4.00", "2.00") in rows and ("b", "4.00", "2.00", "-", "0.50") in rows
    assert ("geometric mean", "", "", "", "1.00") in rows and ("geometric mean", "", "", "", "nan") in rows
    assert ("a", "1.00", "0.25", "0.500", "0.500", "0.500", "99", "99", "99") in rows


def test_the_front_page_has_the_measured_means() -> None:
    measured = [
        re.findall(r"[\d.]+", line)
        for name in ("zen5", "zen4", "zen3", "xeon")
        for line in models.tables(models.read_results(models.RESULTS / f"{name}.jsonl")).splitlines()
        if "geometric mean" in line
    ]
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| batch ")]
    assert [re.findall(r"[\d.]+", row)[1:] for row in rows] == measured


def test_the_front_page_has_the_measured_means_of_the_gpu() -> None:
    head, *_, means = report.gpu_models()
    measured = dict(zip(head[1:], means[1:], strict=True))
    page = (ROOT / "README.md").read_text()
    for precision in ("float32", "float16"):
        row = f"| {precision} | " + " | ".join(measured[f"batch {batch}, {precision}"] for batch in (1, 8)) + " |\n"
        assert row in page


def test_the_pages_of_benchmarks_are_what_the_figures_give() -> None:
    report.main(["--check"])
    pages = [page.read_text() for page in report.PAGES]
    assert sorted(re.findall(r"<!-- table: (.+) -->", "".join(pages))) == sorted(report.TABLES)
    assert max(len(page.split()) for page in pages) < 5000


def test_a_page_that_differs_from_the_figures_is_an_error_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n\n<!-- table: gpu products -->\nold\n<!-- end -->\n\nafter\n")
    monkeypatch.setattr(report, "PAGES", (page,))
    with pytest.raises(SystemExit, match=r"run python -m benchmarks\.report"):
        report.main(["--check"])
    assert "old" in page.read_text()
    report.main([])
    report.main(["--check"])
    text = page.read_text()
    assert "old" not in text and "| M x N x K | float32 | float16 |" in text
    assert text.startswith("before\n\n<!--") and text.endswith("<!-- end -->\n\nafter\n")
    page.write_text("<!-- table: unknown -->\n<!-- end -->\n")
    with pytest.raises(KeyError, match="unknown"):
        report.main([])


@pytest.mark.parametrize("path", sorted(records.RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_results_parse(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = records.read(path)
    assert found
    report.main(["--print", path.stem])
    assert len(capsys.readouterr().out.splitlines()) > 2
    for record in found:
        if path.stem in records.CPUS:
            assert models.ratio(record) > 0 and record["date"]
            continue
        if path.stem == "decisions":
            assert {"subject", "unit"} <= record.keys()
            assert list((records.RESULTS.parents[1] / "docs/decisions").glob(record["decision"] + "-*.md")), record
            continue
        assert {"program", "machine", "case"} <= record.keys()
        assert record["machine"] in records.MACHINES or record["machine"] == "sm_90"
        assert path.stem == "machines" or "date" in record or "recorded" in record
        times = {key: value for key, value in record.items() if key != "ratio"}
        if "ratio" in record and (exact := records.ratio(times)) == exact:
            assert record["ratio"] == pytest.approx(exact, rel=0.04), record  # of times with two digits


def test_ratios_are_those_to_the_fastest_peer() -> None:
    assert records.ratio({"relayc_ms": 2.0, "onnxruntime_ms": 5.0, "openvino_ms": 4.0}) == 2.0
    assert records.ratio({"relayc_tflops": 2.0, "torch_tflops": 4.0}) == 0.5
    assert records.ratio({"ratio": 1.5, "relayc_ms": 1.0, "onnxruntime_ms": 1.49}) == 1.5
    assert np.isnan(records.ratio({"relayc_ms": 2.0})) and np.isnan(records.geometric_mean([]))


def test_memory_bound_kernels_get_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "bandwidth.jsonl"
    monkeypatch.setattr(bandwidth, "measure", lambda *_: (15.0, 20.0))
    monkeypatch.setattr(
        sys, "argv", ["bandwidth", "--megabytes", "8,128", "--only", "softmax, masked", f"--results={path}"]
    )
    bandwidth.run_program("bandwidth", bandwidth.cases, "", "128", 1)
    assert "| softmax, masked | 15.0 | 20.0 | 75 % | 15.0 | 20.0 | 75 % |" in capsys.readouterr().out
    assert [(r["megabytes"], r["gb_per_s"], r["percent_of_copy"]) for r in records.read(path)] == [
        (8, 15, 75),
        (128, 15, 75),
    ]


def test_only_missing_cases_are_measured_and_no_model_is_begun_after_the_time_limit(
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
        rounds=1, seconds=0.1, results=tmp_path / "models.jsonl",
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


def test_kernels_belong_to_families() -> None:
    def call(ops: str, flops: int, nbytes: int = 10) -> NodeTiming:
        return NodeTiming("n", "f", ops, "", "", 1e-3, flops, nbytes)

    calls = [call("nn.conv2d_winograd+add", 9), call("nn.conv2d+clip", 9), call("nn.conv2d_nhwc_packed", 9),
             call("nn.dense_packed", 9), call("add", 0), call("add", 0, 1 << 40)]  # fmt: skip
    assert [roofline.family(c) for c in calls] == list(roofline.FAMILIES)
    report = Report(calls, {"run us": 5000.0}, Ceilings(1.0, 1.0))
    text = roofline.summary(report)
    assert all(name in text for name in roofline.FAMILIES) and text.split("whole run")[1].split()[:2] == ["6", "5.000"]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the tiles are written for x86-64")
def test_hand_written_tiles_have_as_many_fmas_as_are_counted() -> None:
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
    with pytest.raises(MalformedObject, match="no ELF file of 64 bits"):
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

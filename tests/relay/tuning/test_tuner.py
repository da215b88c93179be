"""The search with a bench that invents times: no clock, and only simulated noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from relayc import relay
from relayc.backend.runtime import CompiledModel, GraphModule, device
from relayc.backend.target import Target
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.relay.lowering.tuning_records import TuningRecords
from relayc.relay.tuning import KernelBench, Variant
from relayc.relay.tuning.tuner import TuningReport, tune
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext
from relayc.topi.tuning import Config

TARGET = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
WEIGHT = np.random.default_rng(0).standard_normal((48, 40)).astype(np.float32)


def model() -> IRModule:
    x = relay.var("x", (20, 40))
    return IRModule({"main": relay.Function((x,), relay.nn.relu(relay.nn.dense(x, relay.const(WEIGHT))))})


class FakeBench:
    """Times by what a variant is; `seconds` says, given its parameters and the width of its weights' panels.

    `models` are the times of the whole model before and after.
    """

    threads = 1

    def __init__(
        self, seconds: Callable[[dict[str, object], int], float], models: tuple[float, float] = (2.0, 1.0)
    ) -> None:
        self.seconds = seconds
        self.models = iter(models)
        self.asked: list[dict[str, object]] = []

    def timers(self, variants: Sequence[Variant]) -> list[Callable[[], float]]:
        timers: list[Callable[[], float]] = []
        for variant in variants:
            lower(variant.workload, TARGET, variant.config)
            panel = int(variant.workload.function.params[1].tensor_type.static_shape[-1])
            self.asked.append(dict(variant.config.values))
            timers.append(partial(float, self.seconds(dict(variant.config.values), panel)))
        return timers

    def model_timer(self, model: CompiledModel) -> Callable[[], float]:
        return partial(float, next(self.models))


def tuned(
    bench: FakeBench, path: Path, clock: Callable[[], float] = lambda: 0.0, executor: Executor | None = None
) -> TuningReport:
    return tune(model(), target=TARGET, minutes=1.0, records=path, bench=bench, clock=clock, executor=executor)


def test_the_best_parameters_of_a_kernel_are_kept_and_used_by_later_builds(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    report = tuned(FakeBench(lambda values, panel: {2: 0.5, 4: 0.8}.get(values.get("rows"), 1.0)), path)
    assert [f.record.values for f in report.findings] == [{"rows": 2}] and report.findings[0].count == 1
    assert report.findings[0].record.us == 0.5e6 and report.findings[0].record.default_us == 1e6
    assert "rows 2 (was " in str(report) and str(path) in str(report)
    records = TuningRecords.load(path)
    assert [r.values for r in records.records.values() if r.values] == [{"rows": 2}]
    with PassContext(config={"relay.tuning.records": str(path)}):
        inside = relay.build(model(), TARGET)
    outside = relay.build(model(), TARGET)
    assert inside.module.get_source() != outside.module.get_source()
    x = np.random.default_rng(1).standard_normal((20, 40)).astype(np.float32)
    results = [GraphModule(lib["default"](device("cpu", 0)))(x)[0].numpy() for lib in (inside, outside)]
    np.testing.assert_allclose(results[0], np.maximum(x @ WEIGHT.T, 0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_nothing_better_is_a_result_too(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    report = tuned(FakeBench(lambda values, panel: 1.0), path)
    assert not report.findings and report.kernels_tuned == 1 and "model:" not in str(report)
    assert all(not r.values and r.defaults for r in TuningRecords.load(path).records.values())


def test_another_search_goes_on_where_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    tuned(FakeBench(lambda values, panel: {2: 0.5}.get(values.get("rows"), 1.0)), path)
    again = FakeBench(lambda values, panel: 1.0)
    report = tuned(again, path)
    assert not report.findings and not any(again.asked) and report.known == 2
    assert "2 kernels and parameters of passes known from before" in str(report)
    again.threads = 2
    assert tuned(again, path).kernels_tuned == 1, "what is best on one thread may not be on two"


def test_records_of_other_defaults_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    tuned(FakeBench(lambda values, panel: 1.0), path)
    records = TuningRecords.load(path)
    for record in list(records.records.values()):
        records.add(replace(record, defaults=dict.fromkeys(record.defaults, -1)))
    records.save(path)
    report = tuned(FakeBench(lambda values, panel: 1.0), path)
    assert report.kernels_tuned == 1 and report.known == 0


def test_parameters_are_tried_together_with_the_best_of_those_before(tmp_path: Path) -> None:
    def seconds(values: dict[str, object], panel: int) -> float:
        return 1.0 - 0.3 * (values.get("rows") == 2) - 0.3 * (values.get("parallel") is True)

    bench = FakeBench(seconds)
    report = tuned(bench, tmp_path / "tuning.json")
    assert report.findings[-1].record.values == {"rows": 2, "parallel": True}
    assert {"rows": 2, "parallel": True} in bench.asked


def test_the_width_of_panels_is_a_parameter_of_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    report = tuned(FakeBench(lambda values, panel: 0.5 if panel == 8 else 1.0), path)
    assert [f.record.values for f in report.findings] == [{"panel of 20x48x40": 8}]
    for records, width in ((str(path), 8), ("off", 16)):
        with PassContext(config={"relay.tuning.records": records}):
            assert f"Tensor[({48 // width}, 40, {width}), float32]" in str(relay.optimize(model(), TARGET))


def test_the_search_ends_when_the_time_is_up(tmp_path: Path) -> None:
    ticks = iter(range(0, 10_000, 25))
    bench = FakeBench(lambda values, panel: 1.0)
    report = tuned(bench, tmp_path / "tuning.json", clock=lambda: float(next(ticks)))
    assert report.kernels_tuned == 0 and report.tried < 6


def test_what_was_found_before_an_interruption_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"

    def seconds(values: dict[str, object], panel: int) -> float:
        if panel == 8 and values:
            raise KeyboardInterrupt
        return 0.5 if panel == 8 else 1.0

    with pytest.raises(KeyboardInterrupt):
        tuned(FakeBench(seconds), path)
    assert [r.values for r in TuningRecords.load(path).records.values()] == [{"panel of 20x48x40": 8}]


@pytest.mark.parametrize("interrupted", [False, True])
def test_findings_that_make_the_whole_model_slower_are_dropped(tmp_path: Path, interrupted: bool) -> None:
    path = tmp_path / "tuning.json"

    def seconds(values: dict[str, object], panel: int) -> float:
        if interrupted and panel == 8 and values:
            raise KeyboardInterrupt
        return 0.5 if panel == 8 else 1.0

    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            tuned(FakeBench(seconds, models=(1.0, 1.25)), path)
    else:
        report = tuned(FakeBench(seconds, models=(1.0, 1.25)), path)
        assert report.dropped and (report.seconds_before, report.seconds_after) == (1.0, 1.25)
        assert "dropped" in str(report) and len(report.findings) == 1
    records = TuningRecords.load(path).records.values()
    assert records and not any(record.values for record in records)


def test_an_executor_finds_what_is_found_here(tmp_path: Path) -> None:
    def seconds(values: dict[str, object], panel: int) -> float:
        return 1.0 - 0.3 * (values.get("rows") == 2) - 0.3 * (values.get("parallel") is True)

    here = tuned(FakeBench(seconds), tmp_path / "here.json")
    with ThreadPoolExecutor(2) as executor:
        there = tuned(FakeBench(seconds), tmp_path / "there.json", executor=executor)
    assert there.findings == here.findings and there.tried == here.tried and there.kernels_tuned == 1
    assert TuningRecords.load(tmp_path / "there.json").records == TuningRecords.load(tmp_path / "here.json").records


@pytest.mark.slow
def test_kernels_are_searched_for_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    with ProcessPoolExecutor(1, get_context("spawn")) as executor, PassContext(opt_level=2):
        report = tune(model(), minutes=0.5, records=path, threads=1, executor=executor)
    assert report.kernels_tuned >= 1 and report.tried > 4
    assert TuningRecords.load(path).records


def test_workers_have_the_same_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relayc.relay.tuning.kernel_search.processor", lambda: "another one")
    with ThreadPoolExecutor(1) as executor, pytest.raises(CompileError, match="a worker with the processor 'another"):
        tuned(FakeBench(lambda values, panel: 1.0), tmp_path / "tuning.json", executor=executor)


def test_workers_try_nothing_when_the_time_is_up(tmp_path: Path) -> None:
    ticks = iter([0.0, 0.0, *[1e6] * 1000])
    with ThreadPoolExecutor(1) as executor:
        report = tuned(FakeBench(lambda values, panel: 1.0), tmp_path / "t.json", lambda: next(ticks), executor)
    assert report.tried == 1  # the kernel as it is


def test_a_variant_that_can_t_be_compiled_is_left_out(tmp_path: Path) -> None:
    class Refusing(FakeBench):
        def timers(self, variants: Sequence[Variant]) -> list[Callable[[], float]]:
            if any("rows" in variant.config.values for variant in variants):
                raise CompileError("no such rows")
            return super().timers(variants)

    report = tuned(Refusing(lambda values, panel: 0.5 if values.get("parallel") else 1.0), tmp_path / "tuning.json")
    assert [f.record.values for f in report.findings] == [{"parallel": True}]


def test_the_bench_times_real_kernels() -> None:
    target = Target("llvm")
    module = relay.optimize(model(), target)
    variants: list[Variant] = []
    for workload in [node.workload for node in make_graph(module["main"]).nodes]:
        variants += [Variant(workload, Config(), (1,)), Variant(workload, Config({"rows": 1}), (1,))]
    bench = KernelBench(target, 1, model_bytes=1 << 16)
    timers = bench.timers(variants)
    assert bench.threads == 1 and len(timers) == 2 and all(timer() > 0 for timer in timers)
    assert "rows" in variants[0].config.knobs
    assert bench.model_timer(relay.build(model(), target))() > 0


def test_tuning_is_for_cpus() -> None:
    with pytest.raises(CompileError, match="can't tune for"):
        tune(model(), target="cuda -arch=sm_80")

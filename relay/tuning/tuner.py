"""`relay.tune`: searches schedule parameters of a model's kernels by measuring, within a time budget.

First the parameters of graph passes, such as the panel width of packed weights: each alternative changes the kernels of
some nodes, whose times are compared. Then those of each kernel, the most expensive one first: one parameter after the
other, each with the best values so far. Every result, positive or negative, is written to the records' file at once, so
that another search continues where this one stopped. At the end, also after an interruption, the tuned model is timed
in turns with the original one; if it is slower, the findings are dropped.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relayc.backend.target import Target
from relayc.relay.expr import Function
from relayc.relay.lowering import build, optimize
from relayc.relay.lowering.driver import as_module
from relayc.relay.lowering.graph import ExecutionGraph, make_graph
from relayc.relay.lowering.graph_passes import arrange
from relayc.relay.lowering.lower import Workload, lower
from relayc.relay.lowering.tuning_records import Record, TuningRecords, default_records_path, graph_subject, processor
from relayc.relay.tuning.bench import Bench, KernelBench, Variant
from relayc.relay.tuning.kernel_search import KernelResult, KernelTask, alternatives, search_kernel, try_timers
from relayc.relay.tuning.selection import Choice, Timer, select
from relayc.relay.type import TensorType
from relayc.relay.versions import versions_of, without_versions
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext
from relayc.topi.tuning import Config, Knob, Value

__all__ = ["Finding", "TuningReport", "tune"]

_GRAPH_SHARE = 0.4
"""Fraction of the time budget for the parameters of graph passes."""
_MODEL_ROUNDS = 15


@dataclass(frozen=True)
class Finding:
    """Parameters that beat the cost model's: of a kernel with `count` occurrences in the model, or of a pass."""

    name: str
    record: Record
    count: int

    def __str__(self) -> str:
        values = ", ".join(
            f"{name} {value} (was {self.record.defaults[name]})" for name, value in self.record.values.items()
        )
        return f"{self.count} x {self.name}: {self.record.default_us:.1f} -> {self.record.us:.1f} us; {values}"


@dataclass
class TuningReport:
    """The result of tuning and its gain: seconds of a run of the model before and after, NaN if not measured."""

    path: Path | None
    findings: list[Finding] = field(default_factory=list)
    tried: int = 0
    kernels: int = 0
    kernels_tuned: int = 0
    known: int = 0
    """parameters of passes and kernels that were kept from an earlier search"""
    seconds_before: float = float("nan")
    seconds_after: float = float("nan")
    dropped: bool = False

    def record(self) -> dict[str, Any]:
        """The report as JSON values: counts, seconds of a run before and after (None: not measured), findings."""
        seconds = [None if math.isnan(s) else s for s in (self.seconds_before, self.seconds_after)]
        return {
            "records": None if self.path is None else str(self.path),
            "tried": self.tried,
            "kernels": self.kernels,
            "kernels_tuned": self.kernels_tuned,
            "known": self.known,
            "seconds_before": seconds[0],
            "seconds_after": seconds[1],
            "dropped": self.dropped,
            "findings": [
                {"kernel": found.name, "count": found.count, "default_us": found.record.default_us,
                 "us": found.record.us, "values": dict(found.record.values)} for found in self.findings
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings]
        known = f", {self.known} kernels and parameters of passes known from before" if self.known else ""
        lines.append(f"{self.tried} variants tried, {self.kernels_tuned} of {self.kernels} kernels looked at{known}")
        if not math.isnan(self.seconds_before):
            lines.append(f"model: {self.seconds_before * 1e3:.3f} -> {self.seconds_after * 1e3:.3f} ms")
        if self.dropped:
            lines.append("the model as a whole is not faster: the findings above were dropped")
        elif self.findings and self.path is not None:
            lines.append(f"kept in {self.path}")
        return "\n".join(lines)


def tune(
    mod: IRModule | Function,
    params: Mapping[str, Any] | None = None,
    target: str | Target = "llvm",
    minutes: float = 5.0,
    *,
    records: str | Path | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[str], None] | None = None,
    bench: Bench | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TuningReport:
    """Search better parameters for the kernels of a model, for about `minutes`, and keep them in a file.

    `records` is the file, by default the user's own, which `relay.build` reads by default (if the cache is disabled
    there is none, and findings are only reported); another file is selected in builds by the option
    ``relay.tuning.records``. `threads` is the number of threads that kernels will run on: all by default. `progress` is
    called with messages. Kernels with dynamic shapes are not tuned. `bench` and `clock` measure times. Raises
    CompileError for a target that is no CPU.

    `executor` is any of `concurrent.futures`, such as that of Dask's client: its workers search for the kernels at the
    same time. Each has to be alone on a machine like this one; CompileError for another processor. The parameters of
    graph passes and the whole model are measured here.
    """
    target = Target(target)
    if target.device_kind != "cpu":
        raise CompileError(f"relay.tune measures on this machine's CPU; it can't tune for {target}")
    path = Path(records) if records is not None else default_records_path()
    search = _Search(mod, params, target, path, clock() + 60 * minutes, clock, progress or (lambda _: None))
    return search.run(bench, threads, executor)


@dataclass
class _Subject:
    """A kernel of the model, its number of occurrences, its constant inputs and their bytes."""

    workload: Workload
    weights: tuple[int, ...]
    bytes: int
    count: int = 0

    def variant(self, config: Config | None = None) -> Variant:
        return Variant(self.workload, Config() if config is None else config, self.weights)


@dataclass(frozen=True)
class _Task:
    """A kernel to search for, its parameters, and its fraction of the model's time."""

    subject: _Subject
    knobs: Sequence[Knob]
    share: float

    def __str__(self) -> str:
        return f"{self.subject.workload.name}, {100 * self.share:.1f} % of the time"


class _Search:
    def __init__(
        self, mod: IRModule | Function, params: Mapping[str, Any] | None, target: Target, path: Path | None,
        end: float, clock: Callable[[], float], progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.mod = as_module(mod)
        self.params, self.target = params, target
        self.report = TuningReport(path)
        self.start, self.end, self.clock, self.progress = clock(), end, clock, progress
        self.records = TuningRecords() if path is None else TuningRecords.load(path)
        self.before = TuningRecords(dict(self.records.records))

    def run(self, bench: Bench | None, threads: int | None, executor: Executor | None) -> TuningReport:
        config = self.records.graph_config(self.target)
        subjects = self.subjects(config)
        self.model_bytes = sum(subject.bytes for subject in subjects.values())
        self.given_bench = bench
        self.bench: Bench = KernelBench(self.target, threads, self.model_bytes) if bench is None else bench
        try:
            subjects = self.tune_passes(list(config.knobs.values()), subjects)
            self.tune_kernels(list(subjects.values()), executor)
        finally:  # the findings are written down already when interrupted
            if self.report.findings:
                self.check_model()
        return self.report

    def subjects(self, config: Config) -> dict[str, _Subject]:
        """The kernels of static shapes in the model under these parameters of graph passes, by workload."""
        with self.records, config:
            graphs = [self.graph(version) for version in (without_versions(self.mod), *versions_of(self.mod).values())]
        found: dict[str, _Subject] = {}
        for part in itertools.chain.from_iterable(graph.all_graphs() for graph in graphs):
            for node in part.nodes:
                inputs = [part.tensors[number] for number in node.inputs]
                types = [t.ty for t in (*inputs, *(part.tensors[i] for i in node.outputs))]
                if not all(isinstance(ty, TensorType) and ty.is_static for ty in types):
                    continue
                weights = [i for i, t in enumerate(inputs) if t.storage is not None and t.storage[0] == "param"]
                made = _Subject(node.workload, tuple(weights), sum(inputs[i].nbytes for i in weights))
                found.setdefault(node.workload.key, made).count += 1
        return found

    def graph(self, module: IRModule) -> ExecutionGraph:
        """The graph of kernels of a version of the model."""
        optimized = optimize(module, self.target, self.params)
        graph = make_graph(optimized["main"], lambda body: optimize(body, self.target)["main"])
        arrange(graph, self.target)
        return graph

    def tune_passes(self, knobs: Sequence[Knob], subjects: dict[str, _Subject]) -> dict[str, _Subject]:
        """Try other values of the parameters that graph passes requested; returns the kernels of the best."""
        end = self.start + (self.end - self.start) * _GRAPH_SHARE
        for knob in knobs:
            best: tuple[Choice, Value, dict[str, _Subject]] | None = None
            if self.is_known(graph_subject(knob.name), [knob]):
                self.report.known += 1
                continue
            for value in alternatives(knob):
                if self.clock() > end:
                    return subjects
                self.progress(f"{knob.name}: {value}")
                known = self.records.graph_config(self.target).values
                others = self.subjects(Config({**known, knob.name: value}))
                choice = self.compare(_without(subjects, others), _without(others, subjects))
                if choice is not None and choice.index and (best is None or choice.ratio < best[0].ratio):
                    best = choice, value, others
            if best is not None:
                choice, value, subjects = best
                self.keep(Finding(knob.name, self.record(graph_subject(knob.name), [(knob, value)], choice), 1))
            else:
                self.note(self.record(graph_subject(knob.name), [], Choice(0, 0.0, 0.0), [knob]))
        return subjects

    def compare(self, old: Sequence[_Subject], new: Sequence[_Subject]) -> Choice | None:
        """Are the kernels `new` clearly faster than the kernels `old` that they replace? None if there are none."""
        if not old or not new:
            return None
        timers = self.timers([subject.variant() for subject in (*old, *new)])
        if timers is None:
            return None
        return select([_total(timers[: len(old)], old), _total(timers[len(old) :], new)])

    def tune_kernels(self, subjects: Sequence[_Subject], executor: Executor | None) -> None:
        """Tune every kernel that has parameters, the most expensive ones first."""
        self.report.kernels = len(subjects)
        known = [subject for subject in subjects if self.is_known(subject.workload.key, self.knobs(subject.workload))]
        self.report.known += len(known)
        subjects = [subject for subject in subjects if subject not in known]
        bases = [subject.variant() for subject in subjects]
        timers = self.timers(bases)
        if timers is None:
            return
        seconds = [timer() * subject.count for timer, subject in zip(timers, subjects, strict=True)]
        del timers  # and with them the kernels' arrays
        tasks: list[_Task] = []
        for number in sorted(range(len(subjects)), key=lambda i: -seconds[i]):
            knobs = [knob for knob in bases[number].config.knobs.values() if len(knob.candidates) > 1]
            if knobs:
                tasks.append(_Task(subjects[number], knobs, seconds[number] / sum(seconds)))
            else:
                self.note(self.record(subjects[number].workload.key, [], Choice(0, 0.0, 0.0), knobs))
        for task, result in self.searched(tasks) if executor is None else self.searched_by(executor, tasks):
            self.take(task, result)

    def searched(self, tasks: Sequence[_Task]) -> Iterator[tuple[_Task, KernelResult]]:
        """Search for one kernel after the other while there is time."""
        for task in tasks:
            if self.clock() > self.end:
                return
            self.progress(str(task))
            subject = task.subject
            yield task, search_kernel(subject.workload, subject.weights, task.knobs, self.bench, self.clock, self.end)

    def searched_by(self, executor: Executor, tasks: Sequence[_Task]) -> Iterator[tuple[_Task, KernelResult]]:
        """Let an executor search for all kernels, and give what it finds in the order in which it does."""
        end = time.time() + self.end - self.clock()
        context = PassContext.current()
        futures: dict[Future[KernelResult], _Task] = {}
        try:
            for task in tasks:
                own = PassContext(
                    context.opt_level, context.required_pass, context.disabled_pass, config=context.config
                )
                search = KernelTask(
                    task.subject.workload, task.subject.weights, tuple(task.knobs), self.target, self.bench.threads,
                    self.model_bytes, self.given_bench, own, processor(), end,
                )  # fmt: skip
                futures[executor.submit(search)] = task
            for future in as_completed(futures):
                self.progress(str(futures[future]))
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()

    def take(self, task: _Task, result: KernelResult) -> None:
        """Report what was found for a kernel, and write it down."""
        self.report.tried += result.tried
        self.report.kernels_tuned += 1
        for message in result.left_out:
            self.progress(message)
        if result.choice is None:
            return
        subject = task.subject
        record = self.record(subject.workload.key, result.found, result.choice, task.knobs)
        if result.found:
            self.keep(Finding(subject.workload.name, record, subject.count))
        else:
            self.note(record)

    def timers(self, variants: Sequence[Variant]) -> list[Timer] | None:
        """Timers of kernels; None, with a message, if one of them can't be compiled."""
        self.report.tried += len(variants)
        return try_timers(self.bench, variants, self.progress)

    def knobs(self, workload: Workload) -> list[Knob]:
        """The tunable parameters of a kernel according to its record; none without a record."""
        config = Config()
        if self.records.find(self.target, workload.key) is not None:
            lower(workload, self.target, config)
        return [knob for knob in config.knobs.values() if len(knob.candidates) > 1]

    def is_known(self, subject: str, knobs: Sequence[Knob]) -> bool:
        """Has an earlier search, with the same number of threads and defaults, covered this kernel or parameter of
        passes?"""
        record = self.records.find(self.target, subject)
        if record is None or record.threads != self.bench.threads:
            return False
        return all(record.defaults.get(knob.name) == knob.default for knob in knobs)

    def record(
        self, subject: str, found: Sequence[tuple[Knob, Value]], choice: Choice, knobs: Sequence[Knob] = ()
    ) -> Record:
        """Record the result, possibly none, after all of `knobs` were tried."""
        return Record(
            str(self.target), processor(), subject, {knob.name: value for knob, value in found},
            {knob.name: knob.default for knob in (*knobs, *[knob for knob, _ in found])},
            round(choice.seconds * 1e6, 3), round(choice.default_seconds * 1e6, 3), self.bench.threads,
        )  # fmt: skip

    def keep(self, finding: Finding) -> None:
        """Accept a finding and write it down at once, so that an interrupted search keeps it."""
        self.report.findings.append(finding)
        self.note(finding.record)

    def note(self, record: Record) -> None:
        """Write down the result for a kernel or a parameter of passes."""
        self.records.add(record)
        if self.report.path is not None:
            TuningRecords.of([record]).save(self.report.path)

    def check_model(self) -> None:
        """Time the original model and the tuned one in turns; drop all findings if it is slower."""
        self.progress("the whole model")
        timers = [self.model_timer(records) for records in (self.before, self.records)]
        before, after = [], []
        for _ in range(_MODEL_ROUNDS):
            before.append(timers[0]())
            after.append(timers[1]())
        self.report.seconds_before, self.report.seconds_after = statistics.median(before), statistics.median(after)
        ratio = statistics.median([b / a for a, b in zip(before, after, strict=True)])
        if ratio > 1.0:
            self.report.dropped = True
            if self.report.path is not None:
                found = [replace(finding.record, values={}) for finding in self.report.findings]
                TuningRecords.of(found).save(self.report.path)

    def model_timer(self, records: TuningRecords) -> Timer:
        """A timer of the model built with `records`."""
        with records:
            lib = build(self.mod, self.target, self.params)
        return self.bench.model_timer(lib)


def _without(subjects: Mapping[str, _Subject], others: Mapping[str, _Subject]) -> list[_Subject]:
    """The kernels that are not among the others, or occur there less often, with the difference of the counts."""
    left: list[_Subject] = []
    for key, subject in subjects.items():
        count = subject.count - (others[key].count if key in others else 0)
        if count > 0:
            left.append(replace(subject, count=count))
    return left


def _total(timers: Sequence[Timer], subjects: Sequence[_Subject]) -> Timer:
    return lambda: sum(subject.count * timer() for timer, subject in zip(timers, subjects, strict=True))

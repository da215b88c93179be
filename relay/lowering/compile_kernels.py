"""Compiles the kernels of a model: takes them from the cache of compiled code, lowers and compiles the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relayc.backend.cache import UNDECODABLE
from relayc.backend.driver import ModuleBuilder
from relayc.backend.size_json import size_to_json
from relayc.backend.source_version import has_source_version
from relayc.backend.target import Target
from relayc.relay.lowering.canonical_sizes import sizes_of
from relayc.relay.lowering.compile_workers import WORKERS_OPTION, CompileWorkers, useful_workers
from relayc.relay.lowering.kernel_steps import KernelStep, split_steps
from relayc.relay.lowering.lower import Workload, lower
from relayc.relay.lowering.tuning_records import current_records
from relayc.relay.lowering.workspace import Workspace
from relayc.relay.sizes import size_from_json
from relayc.te.ir import PassContext
from relayc.te.ir.decisions import Decision
from relayc.te.tir import Var as SizeVariable
from relayc.topi.registry import registered_schedules
from relayc.topi.tuning import Config

__all__ = ["KernelMetadata", "Progress", "compile_kernels"]

Progress = Callable[[str, int, int], None]
"""Called with the current activity, the number of kernels done and the number of all kernels."""


@dataclass
class KernelMetadata:
    """Metadata stored with a kernel's code: see `relay.lowering.lower.Kernel`, and `relay.lowering.kernel_steps`."""

    workspaces: list[Workspace]
    in_place: list[int]
    sizes: tuple[str, ...]
    steps: list[KernelStep]
    decisions: list[Decision] = field(default_factory=list[Decision])

    def to_json(self) -> str:
        workspaces = [(size_to_json(count), element) for count, element in self.workspaces]
        others: dict[str, Any] = {"in_place": self.in_place, "sizes": self.sizes, "steps": self.steps}
        if self.decisions:
            others["decisions"] = [decision.to_json() for decision in self.decisions]
        return json.dumps({"workspaces": workspaces, **others})

    @staticmethod
    def from_json(text: str, variables: Mapping[str, SizeVariable]) -> KernelMetadata:
        record = json.loads(text)
        workspaces = [(size_from_json(count, variables), element) for count, element in record["workspaces"]]
        steps = [KernelStep(*step) for step in record["steps"]]
        decisions = [Decision.from_json(decision) for decision in record.get("decisions", ())]
        return KernelMetadata(workspaces, record["in_place"], tuple(record["sizes"]), steps, decisions)

    @staticmethod
    def from_cache(text: str, variables: Mapping[str, SizeVariable]) -> KernelMetadata | None:
        """What `to_json` gave; None for anything else, which a cache may hold."""
        try:
            found = KernelMetadata.from_json(text, variables)
            elements = [element for _, element in found.workspaces]
            numbers = [*found.in_place, *[number for step in found.steps for number in step]]
        except UNDECODABLE:
            return None
        known = all(isinstance(text, str) for text in (*elements, *found.sizes))
        return found if known and all(isinstance(number, int) for number in numbers) else None


class _Job(NamedTuple):
    """A kernel to compile with schedule parameters. `key` determines its code, for the cache; "" where it may not."""

    workload: Workload
    config: Config
    key: str


def compile_kernels(
    workloads: Iterable[Workload], builder: ModuleBuilder, progress: Progress | None = None
) -> dict[str, KernelMetadata]:
    """Pass every kernel to `builder`, in order, and give the metadata of each by name.

    Kernels come from the builder's cache. Where many are missing there, worker processes compile the last ones, and
    put them into the cache, while this one compiles the first (`relay.lowering.compile_workers`).
    """
    jobs = list(_jobs(workloads, builder.target))
    made: dict[str, KernelMetadata] = {}
    missing = 0
    with CompileWorkers(_serve) as workers:
        for i, job in enumerate(jobs):
            if progress is not None:
                progress(f"kernel {job.workload.name}", i, len(jobs))
            workers.take(job.key)
            metadata = _reused(job, builder)
            if metadata is None:
                missing += 1
                if missing == _FEW_MISSING and (count := useful_workers(len(jobs) - i, builder.target)):
                    workers.start(count, _Settings.current(builder.target), {j.key: j for j in jobs[i + 1 :] if j.key})
                metadata = _compiled(job, builder)
            made[job.workload.name] = metadata
    return made


_NO_INFLUENCE = ("relay.tuning.records", WORKERS_OPTION)
"""Options that the code of a kernel does not depend on; of tuning records, those of the kernel are in its key."""
_FEW_MISSING = 4
"""Kernels that a build finds missing in the cache before it takes the cache to be empty."""


def _jobs(workloads: Iterable[Workload], target: Target) -> Iterator[_Job]:
    context, records = PassContext.current(), current_records()
    options = sorted(item for item in context.config.items() if item[0] not in _NO_INFLUENCE)
    settings = repr((context.opt_level, options, sorted(context.disabled_pass), sorted(context.required_pass)))
    schedules_known = all(map(has_source_version, registered_schedules(target)))
    for workload in workloads:
        config = records.config(target, workload.key)
        tuned = repr(sorted(config.values.items())) if config.values else ""
        # The key determines the code only if the compiler's own sources do.
        known = schedules_known and all(map(has_source_version, workload.operator_classes))
        yield _Job(workload, config, f"{workload.name}\n{settings}{tuned}\n{workload.key}" if known else "")


def _reused(job: _Job, builder: ModuleBuilder) -> KernelMetadata | None:
    """Pass the cached code of a kernel to `builder`; None if there is none."""
    note = builder.reuse(job.workload.name, job.key) if job.key else None
    return None if note is None else KernelMetadata.from_cache(note, sizes_of(job.workload.function))


def _compiled(job: _Job, builder: ModuleBuilder) -> KernelMetadata:
    """Lower a kernel, and pass it to `builder` to be compiled."""
    kernel = lower(job.workload, builder.target, job.config)
    function, parts, steps = split_steps(kernel.function, builder.target)
    in_place, decisions = list(kernel.in_place), list(kernel.decisions)
    note = KernelMetadata(list(kernel.workspaces), in_place, kernel.sizes, steps, decisions).to_json()
    builder.add(function, job.key, note, parts=parts)
    return KernelMetadata.from_json(note, sizes_of(job.workload.function))


class _Settings(NamedTuple):
    """What a worker has to know beside a job."""

    target: Target
    opt_level: int
    required_pass: frozenset[str]
    disabled_pass: frozenset[str]
    config: dict[str, Any]

    @staticmethod
    def current(target: Target) -> _Settings:
        context = PassContext.current()
        return _Settings(target, context.opt_level, context.required_pass, context.disabled_pass, context.config)


def _serve(settings: _Settings, jobs: Iterator[_Job]) -> Iterator[None]:
    """What a worker process does: compile each job into the cache, until the cache turns out not to keep it."""
    target, level, required, disabled, config = settings
    with PassContext(level, required, disabled, config=config):
        for job in jobs:
            # A size may be written in another form on the way here, and the code may then differ.
            if str(job.workload.function) == job.workload.key and not _is_cached(job, target):
                builder = ModuleBuilder(target)
                _compiled(job, builder)
                builder.finish()
                if not _is_cached(job, target):
                    return
            yield


def _is_cached(job: _Job, target: Target) -> bool:
    return _reused(job, ModuleBuilder(target)) is not None

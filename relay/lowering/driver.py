"""`relay.build`: compiles a module of graph functions."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from relayc.backend.driver import ModuleBuilder
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.checks import as_integer
from relayc.backend.runtime.errors import of_user
from relayc.backend.runtime.html_text import facts_html
from relayc.backend.runtime.log import logger
from relayc.backend.runtime.quantities import bytes_text, counted
from relayc.backend.runtime.sizes import MAX_ELEMENTS
from relayc.backend.target import Target
from relayc.relay.argument_types import checked
from relayc.relay.bind_sizes import bind_sizes
from relayc.relay.errors import reports_internal_errors
from relayc.relay.expr import Constant, Expr, Function, Var
from relayc.relay.lowering.compile_kernels import KernelMetadata, Progress, compile_kernels
from relayc.relay.lowering.compiled_loops import compile_loops
from relayc.relay.lowering.description import describe
from relayc.relay.lowering.dynamic import plan_dynamic
from relayc.relay.lowering.entry import EntryFunctions, add_dynamic_entry, add_entry
from relayc.relay.lowering.explain import PassRecord, explaining
from relayc.relay.lowering.graph import (
    AliasReport,
    ControlNode,
    ExecutionGraph,
    Params,
    add_workspaces,
    make_graph,
)
from relayc.relay.lowering.graph_passes import arrange
from relayc.relay.lowering.parallel_regions import PlanRegions
from relayc.relay.lowering.plan import with_plans
from relayc.relay.lowering.process import compiling
from relayc.relay.lowering.static_memory import place_tensors
from relayc.relay.lowering.tuning_records import current_records
from relayc.relay.op.host import OnHost
from relayc.relay.op.sequence import SequenceOperator
from relayc.relay.sizes import assuming, dims_equal, size_variables
from relayc.relay.transform import UpdateKVCacheInPlace, default_pipeline
from relayc.relay.type import TensorType
from relayc.relay.user_arguments import check_text, named_values
from relayc.relay.versions import version_for, versions_of, without_versions
from relayc.te.errors import CompileError
from relayc.te.ir import IRModule, PassContext, Sequential, rewrite_dag
from relayc.te.ir.decisions import Decision
from relayc.te.tir import AttrStmt, For, PrimFunc, While
from relayc.te.tir.analysis import contains
from relayc.topi.tuning import Config

__all__ = ["BuildReport", "as_module", "bind_params_by_name", "build", "optimize"]

_OPTIMIZED = frozenset({AttrStmt, For, While})


@dataclass
class BuildReport:
    """What a build did: seconds of each step, in order, and properties of the result."""

    seconds: dict[str, float] = field(default_factory=dict)
    kernels: int = 0
    nodes: int = 0
    arena_bytes: int = 0
    param_bytes: int = 0
    aliasing: AliasReport = field(default_factory=AliasReport)
    """concatenations, slices and splits without a copy"""
    on_host: list[str] = field(default_factory=list)
    """operations that the executor runs itself, and why: strings and containers, control flow, data-dependent sizes"""
    passes: list[PassRecord] = field(default_factory=list[PassRecord])
    """with the option "relay.explain", the passes that ran, with the rules that fired and near misses"""
    decisions: dict[str, list[Decision]] = field(default_factory=dict[str, list[Decision]])
    """with that option, why kernels, by name, have their schedules"""

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Time a step."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def __str__(self) -> str:
        lines = [f"{name:<12} {seconds:8.3f} s" for name, seconds in self.seconds.items()]
        lines.append(f"{counted(self.kernels, 'kernel')} for {counted(self.nodes, 'node')}, "
                     f"arena {bytes_text(self.arena_bytes)}, parameters {bytes_text(self.param_bytes)}")  # fmt: skip
        if self.aliasing.aliased:
            lines.append(str(self.aliasing))
        return "\n".join([*lines, *[f"on the host: {line}" for line in self.on_host]])

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        facts = [(name, f"{seconds:.3f} s") for name, seconds in self.seconds.items()]
        facts += [("kernels", f"{self.kernels} for {counted(self.nodes, 'node')}")]
        facts += [("arena", bytes_text(self.arena_bytes)), ("parameters", bytes_text(self.param_bytes))]
        return facts_html("BuildReport", [*facts, *[("on the host", line) for line in self.on_host]])


@checked
def bind_params_by_name(function: Function, params: Mapping[str, Any]) -> Function:
    """Parameters of `function` that `params` names become constants (TVM: `bind_params_by_name`).

    Raises CompileError for an unknown name, and for data of another shape or type.
    """
    by_name = {p.name: p for p in function.params}
    unknown = sorted(set(params) - set(by_name))
    if unknown:
        raise CompileError(f"params name {', '.join(unknown)}, which are no inputs; they are: {', '.join(by_name)}")
    constants: dict[int, Constant] = {}
    for name, value in params.items():
        constant = Constant(np.asarray(value.numpy() if hasattr(value, "numpy") else value))
        if constant.ty is not by_name[name].ty:
            raise CompileError(f"params[{name!r}] is a {constant.ty}; the input is a {by_name[name].ty}")
        constants[id(by_name[name])] = constant
    if not constants:
        return function
    body = rewrite_dag(function.body, lambda e: constants.get(id(e), e) if isinstance(e, Var) else e)
    return Function(tuple(p for p in function.params if id(p) not in constants), body, function.attrs)


@np.errstate(all="ignore")
def optimize(
    mod: IRModule | Function, target: str | Target = "llvm", params: Mapping[str, Any] | None = None
) -> IRModule:
    """The module after all graph passes of the current `PassContext`: fused, ready to lower (TVM: `relay.optimize`)."""
    module, params = as_module(mod), named_values(params, "params", '{"weight": array}')
    names = Counter(p.name for p in module["main"].params)
    if names and max(names.values()) > 1:
        twice = ", ".join(name for name, count in names.items() if count > 1)
        raise CompileError(f"several parameters are named {twice}; inputs are set by name, which must be different")
    if params:
        bound = bind_params_by_name(module["main"], params)
        module = module.with_function("main", bound)
    context, target = PassContext.current(), Target(target)
    context.check_passes()
    mixed_precision = context.option("relay.ToMixedPrecision.dtype")
    passes = default_pipeline(context.opt_level, target, mixed_precision, context.required_pass)
    config = Config.current() or current_records().graph_config(target)
    if "size_checks" not in module["main"].attrs:
        with config:
            return Sequential(passes, "optimize")(module)
    with config, assuming():  # the equalities that the model checks are assumed to hold
        return Sequential(passes, "optimize")(module)


@reports_internal_errors("compiling the model")
@np.errstate(all="ignore")
@compiling()
def build(
    mod: IRModule | Function,
    target: str | dict[str, Any] | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    mod_name: str = "default",
    progress: Progress | None = None,
    specialize: Mapping[str, Sequence[int]] | None = None,
    caches: Mapping[str, str] | None = None,
) -> CompiledModel:
    """Compile a module whose "main" is the model (TVM: `relay.build`).

    `params` are weights by the name of the input they stand for. `progress` is called for each kernel. `specialize`
    names frequent values of symbolic dimensions, ``{"batch": [1, 8]}``: for each combination a variant of the model is
    compiled, besides the one for all sizes, and the executor selects it if the inputs match; equal weights are stored
    once. `caches` names inputs that the executor keeps, each with the output that appends to it, ``{"past.0.key":
    "present.0.key"}``: runs append in place (`relay.transform.UpdateKVCacheInPlace`). The result's `build_report` says
    how long each step took, and with the option "relay.explain" what was decided, and why. Raises CompileError with the
    operator, its shapes and its place in the user's model for what can't be compiled.
    """
    target = Target(target)
    _check_arguments(params, mod_name, progress, specialize, caches)
    report = BuildReport()
    progress = None if progress is None else of_user(progress)
    with explaining(report.passes):
        compiled = _build(mod, target, params, mod_name, progress, specialize, caches, report)
    logger().debug("build of %r:\n%s", mod_name, report)
    return compiled


def _build(
    mod: IRModule | Function, target: Target, params: Mapping[str, Any] | None, mod_name: str,
    progress: Progress | None, specialize: Mapping[str, Sequence[int]] | None, caches: Mapping[str, str] | None,
    report: BuildReport,
) -> CompiledModel:  # fmt: skip
    source = as_module(mod)
    if caches:
        source = _with_caches(source, caches, specialize)
    with report.step("optimize"):
        module = optimize(without_versions(source), target, params)
        special = [(sizes, optimize(_specialized(source, sizes), target, params))
                   for sizes in _combinations(specialize)]  # fmt: skip
        special += [({}, optimize(version, target, params)) for version in versions_of(source).values()]
    with report.step("plan"):
        prepare = partial(_prepared, target=target)
        shared = Params()
        graph = make_graph(module["main"], prepare, shared)
        _name_outputs(graph, module.attrs)
        graph.metadata = module.attrs.get("metadata", graph.metadata)
        for sizes, variant in special:
            graph.variants.append((sizes, make_graph(variant["main"], prepare, shared)))
            _name_outputs(graph.variants[-1][1], module.attrs)
        arrange(graph, target)
        report.aliasing = graph.aliasing
    nodes = [node for part in graph.all_graphs() for node in part.nodes]
    workloads = list({node.workload.key: node.workload for node in nodes}.values())
    builder = ModuleBuilder(target)
    with report.step("lower"):
        kernels = compile_kernels(workloads, builder, progress)
    report.decisions = {name: kernel.decisions for name, kernel in kernels.items() if kernel.decisions}
    with report.step("plan"):
        entries = EntryFunctions()
        for part in graph.all_graphs():
            for node in part.nodes:
                own = kernels[node.workload.name].sizes
                node.sizes = tuple([node.names[name] for name in own])
        for part in graph.all_graphs():
            _plan(part, kernels, target, entries)
        if target.device_kind == "cpu":
            compile_loops(graph, entries)
        description = describe(graph, mod_name, str(target), target.device_kind)
        if target.device_kind == "cpu":
            description = with_plans(description, entries)
    with report.step("compile"):
        for key, (first, *others) in _compiled_together(entries):
            if builder.reuse(first.name, key) is None:
                builder.add(first, key, parts=others)
        library = builder.finish()
    _describe(report, graph, len(workloads))
    report.on_host[:0] = _string_ports(graph)
    report.on_host[:0] = [f"{op} {name!r} ({why})" for op, name, why in module.attrs.get("host_nodes", ())]
    compiled = CompiledModel(description, graph.params, library)
    compiled.build_report = report
    return compiled


def as_module(mod: Any) -> IRModule:
    """The module that users pass, or that of the function that they pass. Raises CompileError for anything else."""
    module = IRModule.from_expr(mod) if isinstance(mod, Function) else mod
    if not isinstance(module, IRModule):
        hint = ": wrap it, relay.Function(params, body)" if isinstance(module, Expr) else ""
        if isinstance(module, str | bytes | os.PathLike) or type(module).__name__ == "ModelProto":
            hint = ": import it, mod, params = from_onnx(model), or compile it in one call, relayc.compile_onnx(model)"
        raise CompileError(f"an IRModule or a Function is compiled, not a {type(module).__name__}{hint}")
    return module


def _check_arguments(
    params: Any, mod_name: Any, progress: Any, specialize: Any, caches: Any
) -> None:
    named_values(params, "params", '{"weight": array}')
    check_text(mod_name, "mod_name")
    if progress is not None and not callable(progress):
        raise CompileError(f"progress= is {progress!r}; expected a function")
    for name, sizes in named_values(specialize, "specialize", '{"batch": [1, 8]}').items():
        numbers = [as_integer(size) for size in sizes] if isinstance(sizes, list | tuple) else [None]
        if not all(number is not None and 0 <= number <= MAX_ELEMENTS for number in numbers):
            raise CompileError(f"specialize={{{name!r}: {sizes!r}}}; expected a list of sizes, 0 to {MAX_ELEMENTS}")
    for name, output in named_values(caches, "caches", '{"past": "present"}').items():
        check_text(output, f"the output of the cache {name!r}")


def _with_caches(module: IRModule, caches: Mapping[str, str], specialize: object) -> IRModule:
    if specialize:
        raise CompileError("caches grow with every run: a model that keeps them is not specialized as well")
    precision = PassContext.current().option("relay.ToMixedPrecision.dtype")
    return UpdateKVCacheInPlace(caches, "float16" if precision == "float16" else "float32")(module)


def _prepared(body: Function, target: Target) -> Function:
    """A function of a control-flow operator after all graph passes."""
    return optimize(body, target)["main"]


def _combinations(specialize: Mapping[str, Sequence[int]] | None) -> list[dict[str, int]]:
    """Every choice of one size for each name."""
    if not specialize:
        return []
    return [dict(zip(specialize, map(int, sizes), strict=True)) for sizes in itertools.product(*specialize.values())]


def _specialized(module: IRModule, sizes: Mapping[str, int]) -> IRModule:
    """The model specialised to these sizes.

    Raises CompileError unless they are sizes of the model, and make it static.
    """
    known = size_variables(ty.shape for p in module["main"].params if isinstance(ty := p.ty, TensorType))
    strange = [name for name in sizes if name not in known]
    if strange:
        raise CompileError(f"specialize={dict(sizes)} names {', '.join(strange)}; the dynamic sizes of the "
                           f"inputs are: {', '.join(known) or 'none'}")  # fmt: skip
    main = bind_sizes(*version_for(module, sizes))
    left = size_variables(ty.shape for p in main.params if isinstance(ty := p.ty, TensorType))
    records = main.attrs.get("bound_sizes", ())
    bound = [str(name) for name, _, element, _ in records if element >= 0]
    if left or bound:
        names = ", ".join([*left, *bound])
        raise CompileError(f"specialize={dict(sizes)} leaves dynamic sizes: {names}")
    for a, b, source in main.attrs.get("size_checks", ()):
        if not dims_equal(a, b):
            raise CompileError(f"specialize={dict(sizes)}: {source} needs two equal sizes and gets {a} and {b}")
    attrs = {"bound_sizes": records} if records else {}
    return without_versions(module).with_function("main", main.replace(attrs=attrs))


def _plan(
    graph: ExecutionGraph, kernels: Mapping[str, KernelMetadata], target: Target, entries: EntryFunctions
) -> None:
    """Place the tensors of the graph, and add the functions that run its nodes in sequence, for targets that use
    such."""
    add_workspaces(graph, {name: kernel.workspaces for name, kernel in kernels.items()})
    PlanRegions(target, {name: kernel.steps for name, kernel in kernels.items()})(IRModule({"main": graph}))
    in_place = {name: kernel.in_place for name, kernel in kernels.items()}
    with_entries = target.device_kind == "cpu"
    if graph.is_placed_statically:
        place_tensors(graph, in_place)
        if with_entries:
            graph.entry = add_entry(entries, graph, {name: kernel.steps for name, kernel in kernels.items()})
        return
    rounds = plan_dynamic(graph, in_place)
    runs = [step for step in graph.steps if step["step"] == "run"]
    for step, nodes in zip(runs, rounds, strict=True) if with_entries else ():
        step["entry"] = add_dynamic_entry(entries, graph, *nodes)


def _name_outputs(graph: ExecutionGraph, attrs: Mapping[str, Any]) -> None:
    """Name the outputs as in the model, and note which are maps; a sequence that is an input keeps the input's name."""
    graph.maps = attrs.get("output_maps", {})
    inputs = set(graph.inputs)
    for number, name in zip(graph.outputs, attrs.get("output_names", ()), strict=False):
        if number not in inputs:
            graph.tensors[number].name = name


def _compiled_together(entries: EntryFunctions) -> Iterator[tuple[str, list[PrimFunc]]]:
    """The functions of each object file, and what determines its code: one has all that only call kernels, of which a
    model has several for each of its branches. LLVM optimises the others only: those with loops and parallel regions.
    """
    calls: list[tuple[str, PrimFunc]] = []
    others: list[tuple[str, PrimFunc]] = []
    for text, entry in entries.texts.items():
        (others if contains(entry.body, _OPTIMIZED) else calls).append((f"{entry.name}\n{text}", entry))
    for together in ([calls] if calls else []) + [[each] for each in others]:
        yield "\n".join([key for key, _ in together]), [entry for _, entry in together]


def _describe(report: BuildReport, graph: ExecutionGraph, kernels: int) -> None:
    report.kernels, report.nodes = kernels, len(graph.nodes)
    report.arena_bytes = graph.plan.arena_bytes
    report.param_bytes = sum(data.nbytes for data in graph.params.values())
    for part in graph.all_graphs():
        report.on_host += [_host_operation(c) for c in part.control_nodes]
        records = part.attrs.get("bound_sizes", ())
        sources = dict.fromkeys([str(source) for _, _, element, source in records if element >= 0])
        report.on_host += [f"{source} (sizes)" for source in sources]


def _string_ports(graph: ExecutionGraph) -> list[str]:
    """The inputs and outputs that the executor converts from or to strings."""
    return [f"{what[:-1]} {graph.tensors[numbers[position]].name!r} (strings, as numbers)"
            for what, numbers in (("inputs", graph.inputs), ("outputs", graph.outputs))
            for position in graph.attrs.get(f"text_{what}", ())]  # fmt: skip


def _host_operation(control: ControlNode) -> str:
    if isinstance(control.operator, SequenceOperator):
        return f"{control.source} (sequences)"
    if isinstance(control.operator, OnHost):
        return f"{control.source} ({control.operator.operator.name.partition('.')[0]})"
    return f"{control.operator.name} {control.source!r} (control flow)"

"""Parallel regions of several kernels, and branches that run concurrently in them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from relayc import relay
from relayc.backend.llvm.codegen.work_partition import partition
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.target import Target
from relayc.relay import Expr, Function, IRModule, const, var
from relayc.relay.lowering.graph import ExecutionGraph, make_graph, time_steps
from relayc.relay.lowering.graph_passes import arrange
from relayc.relay.lowering.kernel_steps import KernelStep, split_steps
from relayc.relay.lowering.lower import lower
from relayc.relay.lowering.parallel_regions import PlanRegions
from relayc.relay.lowering.static_memory import place_tensors
from relayc.relay.op import nn
from relayc.te.dtype import INT32
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext
from relayc.te.tir import (
    BufferStore,
    For,
    ForKind,
    IntImm,
    LetStmt,
    PrimFunc,
    Var as Variable,
    as_int,
    call_intrin,
    cast,
    decl_buffer,
)

RANDOM = np.random.default_rng(11)


def weight(*shape: int) -> relay.Constant:
    return const((RANDOM.standard_normal(shape) / np.sqrt(shape[1])).astype("float32"))


def layers(*units: int) -> Function:
    """Dense layers, none of which can be fused with the next."""
    x = out = var("x", (16, units[0]))
    for before, after in itertools.pairwise(units):
        out = nn.relu(nn.dense(out, weight(after, before)))
    return Function((x,), out)


def conv(x: Expr, outputs: int, size: int = 1) -> Expr:
    return nn.relu(nn.conv2d(x, weight(outputs, int(x.shape[1]), size, size), padding=size // 2))


def inception(channels: int = 192, side: int = 28) -> Function:
    """Four branches of an image, concatenated: convolutions of several sizes, and a pool before one."""
    x = var("x", (1, 16, side, side))
    stem = conv(x, channels)
    pooled = nn.max_pool2d(stem, (3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
    branches = (conv(stem, 64), conv(conv(stem, 96), 128, 3), conv(conv(stem, 32), 48, 5), conv(pooled, 32))
    return Function((x,), relay.concatenate(branches, 1))


def compiled(function: Function, **config: str) -> CompiledModel:
    with PassContext(config={f"relay.{name}": value for name, value in config.items()}):
        return relay.build(IRModule({"main": function}), "llvm")


def results(model: CompiledModel, threads: int, data: Sequence[np.ndarray]) -> list[np.ndarray]:
    executor = graph_executor.GraphModule(model["default"](device("cpu", 0)), num_threads=threads)
    for position, value in enumerate(data):
        executor.set_input(position, value)
    executor.run()
    return [executor.get_output(i).numpy().copy() for i in range(executor.get_num_outputs())]


def regions_called(model: CompiledModel) -> int:
    """The number of parallel regions that the run function forks."""
    text = model.get_lib().get_source("raw-ll")
    entry = re.search(r"define void @relayc_run\(.*?\n\}", text, re.DOTALL)
    assert entry is not None
    return entry[0].count("ptr @relayc_run.task")


def planned(function: Function, target: Target) -> tuple[ExecutionGraph, dict[str, list[KernelStep]]]:
    graph = make_graph(relay.optimize(IRModule({"main": function}), target)["main"])
    arrange(graph, target)
    kernels = {n.workload.name: lower(n.workload, target).function for n in graph.nodes}
    steps = {name: split_steps(kernel, target)[2] for name, kernel in kernels.items()}
    PlanRegions(target, steps)(IRModule({"main": graph}))
    return graph, steps


def together(graph: ExecutionGraph) -> list[list[str]]:
    """The last operators of the kernels that run concurrently."""
    found: dict[int, list[str]] = {}
    for time_step, node in time_steps(graph.nodes):
        found.setdefault(time_step, []).append(node.workload.operators[0])
    return list(found.values())


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile everything anew, since cached kernels have no text."""
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")


@pytest.mark.usefixtures("no_cache")
def test_small_kernels_in_a_row_are_one_region():
    model = compiled(layers(*[256] * 5))
    assert len(model.graph.nodes) == 4
    assert regions_called(model) == 1
    apart = compiled(layers(*[256] * 5), shared_regions="off")
    assert regions_called(apart) == 0  # every kernel forks the threads itself


def test_regions_are_short_and_large_kernels_have_their_own():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
    graph, _ = planned(layers(*[256] * 41), target)
    assert len({node.region for node in graph.nodes}) in range(3, 20)
    large, _ = planned(layers(2048, 2048, 2048), target)
    assert [node.region for node in large.nodes] == [None, None]


def test_kernels_for_few_threads_do_not_join_those_for_many():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=64")
    graph, steps = planned(layers(256, 256, 320, 256), target)
    few = {name: [step._replace(most_threads=2) for step in own] for name, own in steps.items()}
    assert len({node.region for node in graph.nodes}) == 1
    one = graph.nodes[1].workload.name
    for node in graph.nodes:
        node.region, node.concurrent = None, False
    PlanRegions(target, {**steps, one: few[one]})(IRModule({"main": graph}))
    assert len({node.region for node in graph.nodes}) == 3


@pytest.mark.parametrize("attributes", ["-mcpu=haswell -l3-bytes=16777216", "-mcpu=skylake-avx512", "-mcpu=x86-64-v2"])
def test_branches_run_concurrently(attributes: str) -> None:
    graph, _ = planned(inception(), Target(f"llvm -mtriple=x86_64-unknown-linux-gnu {attributes} -num-cores=2"))
    assert [len(names) for names in together(graph) if len(names) > 1] == [4, 3]
    place_tensors(graph)
    assert_no_memory_of_others_is_overwritten(graph)


def assert_no_memory_of_others_is_overwritten(graph: ExecutionGraph) -> None:
    nodes = list(time_steps(graph.nodes))
    for time_step, node in nodes:
        for other in [n for m, n in nodes if m == time_step and n is not node]:
            for written in node.outputs:
                for number in (*other.inputs, *other.outputs):
                    assert graph.base_of(number) == graph.base_of(written) or not overlap(graph, written, number)


def overlap(graph: ExecutionGraph, a: int, b: int) -> bool:
    places = [graph.tensors[n].storage for n in (a, b)]
    if not all(place is not None and place[0] == "arena" for place in places):
        return False
    (first, size), (second, other) = [(int(place[1]), graph.tensors[n].nbytes)  # type: ignore[index]
                                      for place, n in zip(places, (a, b), strict=True)]  # fmt: skip
    return first < second + other and second < first + size


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    "function", [layers(*[256] * 7), inception(), inception(64, 7)], ids=["layers", "large", "small"]
)
def test_results_equal_those_of_separate_kernels(function: Function, threads: int) -> None:
    (x,) = function.params
    data = [RANDOM.standard_normal(x.tensor_type.static_shape).astype("float32")]
    apart = results(compiled(function, shared_regions="off"), 1, data)
    for _ in range(3):
        for a, b in zip(results(compiled(function), threads, data), apart, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_profile_names_each_kernel_of_a_region():
    function = inception()
    executor = graph_executor.GraphModule(compiled(function)["default"](device("cpu", 0)), num_threads=2)
    data = RANDOM.standard_normal(function.params[0].tensor_type.static_shape).astype("float32")
    executor.run(x=data)
    whole = executor.get_output(0).numpy().copy()
    report = executor.profile(repeat=1, x=data)
    assert sum("conv" in call.ops for call in report.calls) == 7
    np.testing.assert_array_equal(executor.get_output(0).numpy(), whole)


def test_a_saved_model_has_its_regions(tmp_path: Path) -> None:
    function = inception(64, 14)
    model = compiled(function)
    model.save(tmp_path / "m.relayc")
    data = [RANDOM.standard_normal(function.params[0].tensor_type.static_shape).astype("float32")]
    again = CompiledModel.from_bytes((tmp_path / "m.relayc").read_bytes())
    np.testing.assert_array_equal(results(again, 2, data)[0], results(model, 2, data)[0])


def test_kernels_that_overwrite_an_input_wait_for_its_readers():
    """A branch that works in place must not overwrite memory that the other branch reads."""
    x = var("x", (64, 1024))
    shared = nn.dense(x, weight(1024, 1024))
    function = Function((x,), relay.Tuple((nn.dense(shared, weight(512, 1024)), relay.tanh(nn.softmax(shared)))))
    data = [RANDOM.standard_normal((64, 1024)).astype("float32")]
    apart = results(compiled(function, shared_regions="off"), 1, data)
    for a, b in zip(results(compiled(function), 2, data), apart, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("cores", "less"), [(2, 1.01), (8, 1.0), (16, 1.0), (64, 0.8)])
def test_merged_branches_are_load_balanced_at_least_as_well_as_single_kernels(cores: int, less: float) -> None:
    """The cycles of the busiest thread on many cores, estimated for one merged step and for a step for each."""
    target = Target(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512 -num-cores={cores}")
    graph, steps = planned(inception(side=14), target)
    stages: dict[int, list[tuple[int, int]]] = {}
    for time_step, node in time_steps(graph.nodes):
        own = steps[node.workload.name]
        if own:
            stages.setdefault(time_step, []).append((own[-1].extent, max(round(node.cycles / own[-1].extent), 1)))
    widest = sorted(max(stages.values(), key=len), key=lambda loop: -loop[1])
    apart = sum(-(-extent // cores) * cycles for extent, cycles in widest)
    assert busiest(widest, cores) <= less * apart


def busiest(loops: list[tuple[int, int]], threads: int) -> int:
    work: list[int] = []
    for thread in range(threads):
        own = partition(loops, *[IntImm(INT32, n) for n in (thread, threads, threads)])
        bounds = [(as_int(a), as_int(b)) for a, b in own]
        work.append(sum((b - a) * cycles for (a, b), (_, cycles) in zip(bounds, loops, strict=True)
                        if a is not None and b is not None))  # fmt: skip
    return max(work)


def test_the_option_disables_it_and_is_checked():
    target = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=haswell -num-cores=2")
    for context in (PassContext(config={"relay.shared_regions": "off"}), PassContext(opt_level=1)):
        with context:
            graph, _ = planned(inception(), target)
        assert all(node.region is None and not node.concurrent for node in graph.nodes)
    with pytest.raises(CompileError, match=r"relay\.shared_regions is 'maybe'"):
        PassContext(config={"relay.shared_regions": "maybe"})


def test_a_kernel_that_begins_with_a_random_draw_is_not_split():
    """Each of its threads would draw a key of its own."""
    out = decl_buffer((8,), "float32", "out")
    i, drawn = Variable("i", INT32), Variable("drawn", INT32)
    loop = For(i, IntImm(INT32, 0), IntImm(INT32, 8), ForKind.PARALLEL, BufferStore(out, cast("float32", drawn), (i,)))
    body = LetStmt(drawn, call_intrin("int32", "next_draw", IntImm(INT32, 0)), loop)
    function = PrimFunc((out.data,), body, {out.data: out}, {"global_symbol": "draws"})
    assert split_steps(function, Target("llvm")) == (function, [], [])
    plain = function.with_body(LetStmt(drawn, IntImm(INT32, 3), loop))
    whole, parts, steps = split_steps(plain, Target("llvm"))
    assert [part.name for part in parts] == ["draws.step0"] and [step.extent for step in steps] == [8]
    assert "call_step" in str(whole)



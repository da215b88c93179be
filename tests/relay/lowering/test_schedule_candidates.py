"""When the kernel of a schedule exceeds the target's limits, the next schedule is taken."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.runtime import device, graph_executor, register_func
from relayc.backend.runtime.registry import get_global_func
from relayc.backend.target import Target, register_target_kind
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import Workload, lower
from relayc.te.errors import CompileError
from relayc.te.tir import For, ForKind
from relayc.topi.registry import Rank, register_schedule, schedules_for

_numbers = count()


@pytest.fixture
def strict():
    """A fresh target kind on the interpreter's device with three schedules, and the functions that its verifier saw."""
    name = f"strict{next(_numbers)}"
    kind = register_target_kind(name, device="interp").set_default_keys([name])
    kind.add_attr_option("max-parallel", int, 64, "largest extent of a parallel loop")
    register_func(f"target.build.{name}", get_global_func("target.build.interp"))
    shown: list[te.tir.PrimFunc] = []

    def parallel_by(factor: int):
        def schedule(outs, anchor, target):
            s = te.create_schedule([out.op for out in outs])
            outer, _ = s[outs[0]].split(s[outs[0]].fuse(*outs[0].op.axis), nparts=factor)
            s[outs[0]].parallel(outer)
            return s

        return schedule

    def verify(function, target):
        shown.append(function)
        limit = target.get("max-parallel")
        return [f"a loop of {n} in parallel, {limit} allowed" for n in parallel_extents(function) if n > limit]

    register_schedule("dense", name)(parallel_by(64))
    register_schedule(["elemwise", "broadcast"], name, rank=Rank.ELEMENTWISE)(parallel_by(16))
    register_schedule("default", name)(parallel_by(4))
    register_func(f"target.verify.{name}", verify)
    return name, shown


def parallel_extents(function: te.tir.PrimFunc) -> list[int]:
    return [n.extent.value for n in te.ir.collect(function, For) if n.kind is ForKind.PARALLEL]


def dense_relu() -> relay.Function:
    x = relay.var("x", (8, 16))
    w = relay.const(np.random.default_rng(0).standard_normal((16, 16)).astype("float32"))
    return relay.Function((x,), relay.nn.relu(relay.nn.dense(x, w)))


def fused(function: relay.Function, target: Target) -> Workload:
    return make_graph(relay.optimize(function, target)["main"]).nodes[0].workload


def test_schedules_come_by_rank_and_end_with_the_default(strict):
    name, _ = strict
    a, b = te.placeholder((8, 16), name="a"), te.placeholder((16, 16), name="b")
    k = te.reduce_axis((0, 16))
    c = te.compute((8, 16), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), tag="dense")
    d = te.compute((8, 16), lambda i, j: te.max(c[i, j], te.const(0.0)), tag="elemwise")
    e = te.compute((8, 16), lambda i, j: d[i, j] + 1.0, tag="broadcast")
    target = Target(name)
    extents = [parallel_extents(te.lower(s, [a, b, e])["main"]) for s in schedules_for([e], target)]
    assert extents == [[64], [16], [4]]  # dense, elementwise once for both tags, default


@pytest.mark.parametrize(("limit", "tries"), [(64, 1), (16, 2), (4, 3)])
def test_the_first_schedule_within_the_limits_is_taken(strict, limit, tries):
    name, shown = strict
    target = Target(f"{name} -max-parallel={limit}")
    kernel = lower(fused(dense_relu(), target), target)
    assert len(shown) == tries
    assert parallel_extents(kernel.function) == [limit]


def test_when_none_fits_every_reason_is_given(strict):
    name, _ = strict
    target = Target(f"{name} -max-parallel=2")
    message = r"no schedule .* keeps the limits of strict.*\n.*1: a loop of 64 .*, 2 allowed\n.*2: .*16.*\n.*3: .*4 in"
    with pytest.raises(CompileError, match=message) as info:
        lower(fused(dense_relu(), target), target)
    assert "nn.dense" in info.value.__notes__[0]


def test_the_model_runs(strict):
    name, _ = strict
    function = dense_relu()
    compiled = relay.build(function, f"{name} -max-parallel=4")
    x = np.random.default_rng(1).standard_normal((8, 16)).astype("float32")
    executor = graph_executor.GraphModule(compiled["default"](device("interp")))
    executor.run(x=x)
    np.testing.assert_allclose(
        executor.get_output(0).numpy(), relay.interpreter.evaluate(function, [x]), rtol=1e-5, atol=1e-6
    )

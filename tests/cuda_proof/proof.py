"""Verification of GPU programs without a GPU.

* `compile_for` compiles every kernel to machine code with NVRTC and checks its spills against a budget;
* `check_kernels` runs every kernel as loops in the checker of races, barriers, bounds and uninitialised reads;
* `run` runs the whole program on the device "cuda", which is emulated if there is no GPU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relayc import relay, te
from relayc.backend.cuda.build import assemble, emit, prepare
from relayc.backend.cuda.module import CUDAModule
from relayc.backend.kernels import DeviceFunction, Kernel
from relayc.backend.runtime import Device, graph_executor
from relayc.backend.target import Target
from relayc.relay.lowering.graph import make_graph
from relayc.relay.lowering.lower import lower
from relayc.te.ir import IRModule
from relayc.te.tir import LetStmt, PrimFunc, Stmt
from relayc.te.tir.simt_checker import ExternAccess, KernelChecker

__all__ = ["ARCHES", "check_kernels", "compile_for", "kernels_of", "over_budget", "run"]

ARCHES = ("sm_80", "sm_90")

SPILL_BUDGETS: dict[str, tuple[int, str]] = {
    "nn_attention": (32, "of few channels: ptxas keeps two or three addresses in memory and one more block resident"),
}
"""Pattern of kernel names -> (bytes of spills allowed, reason). All others may have none."""


def _multiply(left: int = 16, right: int = 8) -> list[ExternAccess]:
    return [ExternAccess(0, 16, writes=True), ExternAccess(1, left), ExternAccess(2, right)]


def _fragment(nbytes: int, row: Callable[[np.ndarray, int], np.ndarray], places: int = 1) -> list[ExternAccess]:
    """A load of `nbytes` of registers at each of `places`; every lane reads 16 bytes, starting at `row`(lane,
    stride)."""
    filled = [ExternAccess(place, nbytes, reads=False, writes=True) for place in range(places)]
    return [*filled, ExternAccess(places, 16, offset=lambda i, a: row(i, a[0]))]


def _slices(columns: int, transposed: bool) -> list[ExternAccess]:
    """A product of a warp group: every thread reads its own rows and columns, in swizzled lines of 8 parts.

    Lines of `transposed` columns are of one depth; the threads that have the same columns partition them.
    """
    own = ExternAccess(0, 2 * columns, writes=True)
    rows = [
        ExternAccess(1, 16, offset=lambda i, _, h=half, p=part: h * 1024 + ((p ^ i >> 2) - (i >> 2)) * 16)
        for half in range(2) for part in range(8)
    ]  # fmt: skip
    if transposed:
        return [own, *rows, *[
            ExternAccess(2, 16, offset=lambda i, _, p=part, k=8 * eighth: (
                p // 8 * 8192 + (k + (i >> 2)) * 128 + (p % 8 ^ i >> 2) * 16 - (i & 3) * 4))
            for part in range(columns // 8) for eighth in range(8)
        ]]  # fmt: skip
    return [own, *rows, *[
        ExternAccess(2, 16, offset=lambda i, _, e=e, j=tile, p=part: (
            j * 1024 + e * 128 + ((p ^ 2 * (i & 3) + e) - 2 * (i & 3)) * 16))
        for tile in range(columns // 8) for part in range(8) for e in range(2)
    ]]  # fmt: skip


EXTERNS = {
    **{f"rc_wgmma_{kind}<{columns}, {int(transposed)}>": _slices(columns, transposed)
       for kind in ("float16", "bfloat16") for columns in (64, 128, 192, 256) for transposed in (False, True)},
    **{f"rc_mma_{kind}": _multiply() for kind in ("float16", "bfloat16", "tfloat32", "int8")},
    "rc_load_left": _fragment(16, lambda i, s: ((i & 15) - (i >> 2)) * s + (i >> 4) * 16),
    "rc_load_left_transposed": _fragment(
        16, lambda i, s: ((i >> 4) * 8 + (i & 7)) * s + ((i >> 3 & 1) * 8 - (i >> 2)) * 2),
    "rc_load_right": _fragment(8, lambda i, s: np.where(i < 16, ((i & 7) - (i & 3) * 2) * s + (i >> 3 & 1) * 16, 0)),
    "rc_load_right_transposed": _fragment(8, lambda i, s: np.where(i < 16, (i & 15) * s - (i & 3) * 4, 0)),
    "rc_load_right_pair": _fragment(
        8, lambda i, s: ((i >> 4) * 8 + (i & 7) - (i & 3) * 2) * s + (i >> 3 & 1) * 16, places=2),
    "rc_load_right_pair_transposed": _fragment(8, lambda i, s: (i & 15) * s + (i >> 4) * 16 - (i & 3) * 4, places=2),
}  # fmt: skip
"""Memory accesses of the prelude's tensor core functions. Lanes above 15 provide no rows to a load of two matrices."""


def kernels_of(
    program: relay.Function | IRModule, arch: str, params: Mapping[str, Any] | None = None
) -> list[PrimFunc]:
    """The loop functions of a program as passed to the code generator of `arch`, each distinct one once."""
    target = Target(f"cuda -arch={arch}")
    module = program if isinstance(program, IRModule) else IRModule({"main": program})
    optimized = relay.optimize(module, target, params)
    workloads = {node.workload.key: node.workload for node in make_graph(optimized["main"]).nodes}
    return [lower(workload, target).function for workload in workloads.values()]


def compile_for(functions: Sequence[PrimFunc], arch: str) -> CUDAModule:
    """Machine code of functions, by NVRTC: no emulation may be active."""
    target = Target(f"cuda -arch={arch}")
    return assemble([emit(IRModule({f.name: f for f in functions}), target)], target)


def over_budget(module: CUDAModule) -> list[str]:
    """Kernels that use local memory beyond their budget, each with its figures."""
    found: list[str] = []
    for name, figures in module.report.items():
        spilled = figures["spill_stores"] + figures["spill_loads"]
        budget = max([most for pattern, (most, _) in SPILL_BUDGETS.items() if re.search(pattern, name)], default=0)
        if spilled > budget:
            found.append(f"{name}: {spilled} bytes of spills, {budget} allowed; {figures}")
    return found


def check_kernels(functions: Sequence[PrimFunc], arch: str, arrays: Mapping[str, np.ndarray] | None = None) -> int:
    """Run the kernels of functions in the checker; returns their number. Raises `SimtFault`."""
    count = 0
    for device in prepare(IRModule({f.name: f for f in functions}), Target(f"cuda -arch={arch}")):
        checker = KernelChecker(device.function.buffer_map.values(), device.workspaces, arrays=arrays, externs=EXTERNS)
        launches = list(_launches(device))
        bodies = [body for _, body in launches]
        for i, (kernel, body) in enumerate(launches):
            checker.check(kernel.name, body, followed_by=bodies[i + 1 :])
        count += len(device.kernels)
    return count


def _launches(device: DeviceFunction) -> Iterator[tuple[Kernel, Stmt]]:
    """The kernels of a function in launch order, those of a loop for each of its steps."""
    for step, group in itertools.groupby(device.kernels, lambda kernel: kernel.step):
        kernels = list(group)
        if step is None:
            yield from ((kernel, kernel.body) for kernel in kernels)
            continue
        variable, times = step
        assert isinstance(times, int), "the checker runs functions of known sizes"
        for value, kernel in itertools.product(range(times), kernels):
            yield kernel, LetStmt(variable, te.const(value, variable.dtype), kernel.body)


def run(
    where: Device, program: relay.Function | IRModule, inputs: Mapping[str, np.ndarray],
    params: Mapping[str, Any] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """The outputs of a program, compiled for and run on a device."""
    module = program if isinstance(program, IRModule) else IRModule({"main": program})
    executor = graph_executor.GraphModule(relay.build(module, "cuda -arch=sm_90", params)["default"](where))
    executor.run(**inputs)
    return [executor.get_output(i).numpy() for i in range(executor.get_num_outputs())]

"""Faults injected into correct kernels: the checker must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relayc.backend.cuda.build import prepare
from relayc.backend.kernels import DeviceFunction, Kernel
from relayc.backend.target import Target
from relayc.te.ir import IRModule, Mutator, collect
from relayc.te.tir import BufferLoad, BufferStore, Call, Evaluate, Stmt, StringImm
from relayc.te.tir.ops import add, call_intrin, no_op
from relayc.te.tir.simt_checker import KernelChecker, SimtFault
from tests.cuda_proof import proof
from tests.cuda_proof.families import FAMILIES

pytestmark = pytest.mark.slow
KERNELS = [
    "dense", "dense in float16", "block weights, one row", "conv2d", "batch_matmul", "attention in float16", "softmax",
    "layer_norm", "sum of rows", "transpose",
]  # fmt: skip


class _Edit(Mutator):
    """Replaces the `number`-th statement or load for which `wanted` holds."""

    def __init__(self, wanted: Callable[[Any], bool], number: int, change: Callable[[Any], Any]) -> None:
        self.wanted, self.left, self.change = wanted, number, change

    def visit_default(self, node: Any) -> Any:
        new = node.rebuild(self.visit)
        if not self.wanted(node):
            return new
        self.left -= 1
        return self.change(new) if self.left == -1 else new


def _is_call(node: Any, op: str) -> bool:
    return isinstance(node, Evaluate) and isinstance(node.value, Call) and node.value.op == op


def _is_barrier(node: Any) -> bool:
    return _is_call(node, "storage_sync")


def _is_shared(node: Any, kind: type) -> bool:
    return isinstance(node, kind) and node.buffer.scope == "shared"  # type: ignore[attr-defined]


def _later(node: Evaluate) -> Evaluate:
    """A wait that leaves one more group pending."""
    assert isinstance(node.value, Call)
    return Evaluate(call_intrin("int32", "async_wait", add(node.value.args[0], 1)))


def _beyond(node: BufferLoad) -> BufferLoad:
    return BufferLoad(node.buffer, (add(node.indices[0], node.buffer.shape[0]),), node.predicate)


MUTATIONS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], set[str]]] = {
    "a barrier is missing": (_is_barrier, lambda _: no_op(), {"race", "uninitialized"}),
    "a barrier orders the warp only": (
        _is_barrier, lambda _: Evaluate(call_intrin("int32", "storage_sync", StringImm("warp"))),
        {"race", "uninitialized"}),
    "a wait comes too late": (lambda n: _is_call(n, "async_wait"), _later, {"race", "uninitialized"}),
    "a store is missing": (lambda n: _is_shared(n, BufferStore), lambda _: no_op(), {"uninitialized"}),
    "a load is out of bounds": (lambda n: _is_shared(n, BufferLoad), _beyond, {"bounds"}),
}  # fmt: skip


def _prepared(family: str) -> Iterator[tuple[DeviceFunction, Kernel]]:
    functions = proof.kernels_of(FAMILIES[family](), "sm_90")
    for device in prepare(IRModule({f.name: f for f in functions}), Target("cuda -arch=sm_90")):
        for kernel in device.kernels:
            yield device, kernel


def _found(device: DeviceFunction, kernel: Kernel, body: Stmt) -> str:
    """The kind of fault in a mutated kernel, "" for none."""
    workspaces = {w.name for w in device.workspaces}
    checker = KernelChecker(
        device.function.buffer_map.values(), device.workspaces, initialized=workspaces, externs=proof.EXTERNS
    )
    try:
        checker.check(kernel.name, body)
    except SimtFault as fault:
        return fault.kind
    return ""


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("family", KERNELS)
def test_injected_faults_are_found(family, mutation):
    wanted, change, kinds = MUTATIONS[mutation]
    planted = 0
    for device, kernel in _prepared(family):
        places = [n for n in collect(kernel.body, (Evaluate, BufferStore, BufferLoad)) if wanted(n)]
        # Later stores fill memory that earlier ones have used: without them it has stale values, not uninitialised
        # ones.
        numbers = {0} if mutation == "a store is missing" else {0, len(places) // 2, len(places) - 1}
        for number in sorted(numbers) if places else []:
            body = _Edit(wanted, number, change).visit(kernel.body)
            if mutation == "a barrier orders the warp only" and kernel.threads <= 32:
                continue
            assert _found(device, kernel, body) in kinds, f"{kernel.name}: number {number} of {len(places)}\n{body}"
            planted += 1
    if not planted:
        pytest.skip("nothing of the kind in these kernels")

"""A run for which memory is too short ends in an error of the runtime, never in a crash, and the next run is right."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from relayc import relay
from relayc.backend.runtime import DeviceError, GraphModule, context, device
from relayc.backend.runtime.artifact import CompiledModel, load_model
from relayc.frontends.onnx import from_onnx

_HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
MODELS = {
    "dynamic": """g (float[rows, columns] x, int64[1] k) => (float[a, b] v, int64[a, b] i, float[c, d] s) {
        v, i = TopK<axis=1>(x, k)
        picked = GatherElements<axis=1>(x, i)
        zero = Constant<value_int=0>()
        down = CumSum(picked, zero)
        w, j = TopK<axis=0>(down, k)
        s = GatherElements<axis=0>(v, j)
    }""",
    "static": """g (float[4, 40000] x) => (float[4, 30000] s, float[4, 20000] w) {
        k = Constant<value_ints=[30000]>()
        few = Constant<value_ints=[20000]>()
        v, i = TopK<axis=1>(x, k)
        s = GatherElements<axis=1>(x, i)
        w, j = TopK<axis=1, largest=0>(s, few)
    }""",
}

ONE_NODE = """g (float[rows, columns] x, int64[1] k) => (float[a, b] v, int64[a, b] i) {
    v, i = TopK<axis=1>(x, k)
}"""


def compiled(text: str, target: str) -> CompiledModel:
    module, params = from_onnx(parser.parse_model(_HEAD + text))
    return relay.build(module, target, params=params)


def values(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("name", MODELS)
def test_every_workspace_may_be_refused(name: str, target: str, threads: int) -> None:
    module = GraphModule(compiled(MODELS[name], target)["default"](device("cpu", 0)), threads)
    passed = {"x": values(4, 40000), **({} if name == "static" else {"k": np.array([4])})}
    expected = [y.numpy() for y in module(**passed)]
    struct = module._context._ctx
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(struct.alloc_workspace)
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(struct.free_workspace)
    allowed, held = [0], set[int]()

    @context._AllocWorkspace
    def refusing(ctx: int, nbytes: int) -> int | None:
        allowed[0] -= 1
        if allowed[0] < 0:
            context.Ctx.from_address(ctx).shortage = nbytes
            return None
        held.add(address := allocate(ctx, nbytes))
        return address

    @context._FreeWorkspace
    def freeing(ctx: int, address: int) -> None:
        held.remove(address)
        release(ctx, address)

    struct.alloc_workspace = ctypes.cast(refusing, ctypes.c_void_p).value
    struct.free_workspace = ctypes.cast(freeing, ctypes.c_void_p).value
    refused = 0
    for refused in range(100):
        allowed[0] = refused
        try:
            results = module(**passed)
        except DeviceError as error:
            assert "out of memory: a kernel of model" in str(error) and "bytes of workspace" in str(error)
        else:
            break
        finally:
            assert not held
    assert refused >= 2
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), wanted)


def run_within(limit: int, module: GraphModule) -> int:
    """Status of a forked process that runs the model with so many MiB of address space left: 0, or 1 after an error of
    the runtime."""
    import resource  # absent on Windows

    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 2
    try:
        other = module.clone()
        other.set_input(x=values(2, 1 << 20), k=np.array([1 << 19]))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (limit << 20),) * 2)
        try:
            other.run()
            status = 0
        except DeviceError as error:
            status = 1 if "out of memory" in str(error) else 2
    finally:
        os._exit(status)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
@pytest.mark.parametrize("target", ["llvm", "c"])
def test_no_limit_of_memory_crashes_a_run(target: str, tmp_path: Path) -> None:
    """Not in the process that compiles, whose heap has much free memory."""
    path = str(tmp_path / "model")
    compiled(ONE_NODE, target).save(path)
    program = f"from tests.relay.lowering.test_out_of_memory import statuses; print(*statuses({path!r}))"
    variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what was freed does not count as available
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], env=variables, check=True,
                          capture_output=True, text=True)  # fmt: skip
    assert set(done.stdout.split()) == {"0", "1"}, done.stdout + done.stderr


def statuses(path: str) -> list[int]:
    """What becomes of runs with 1, 4, 7, ... MiB of address space left."""
    module = GraphModule(load_model(path)["default"](device("cpu", 0)), 2)
    return [run_within(limit, module) for limit in range(1, 41, 3)]

"""Functions of a CUDA module: sizes, arguments, workspaces, shared memory, errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relayc import backend, te
from relayc.backend.cuda.driver import bindings
from relayc.backend.cuda.launch import CUDAFunc
from relayc.backend.cuda.module import CUDAModule, load_from_bytes
from relayc.backend.runtime import ArgumentError, ArtifactError, DeviceError, device, nd
from relayc.backend.runtime.packed_func import BufferWord
from relayc.backend.runtime.sizes import SizeValues
from relayc.backend.target import Target
from tests.cuda_emulation import emulation

RNG = np.random.default_rng(0)


def arrays(where, *sizes):
    return [nd.array(RNG.random(size).astype("float32"), where) for size in sizes]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_sizes_come_from_the_arrays(cuda_device, kernels, n):
    a, b, c = arrays(cuda_device, n, n, n)
    kernels["add"](a, b, c)
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())


def test_empty_arrays_launch_nothing(cuda_device, kernels):
    kernels["add"](*arrays(cuda_device, 0, 0, 0))
    cuda_device.sync()


def test_scalars(cuda_device, kernels):
    x, y = arrays(cuda_device, 100, 100)
    for factor in (3, 2.5, np.float64(0.5), np.int8(4)):
        kernels["scale"](x, y, factor)
        assert np.allclose(y.numpy(), x.numpy() * float(factor))


def test_kernels_run_in_order_with_workspaces_between(cuda_device, kernels):
    a, b, c = arrays(cuda_device, 300, 300, 300)
    call = kernels["double_sum"].bind(a, b, c)
    for _ in range(3):
        call()
    assert np.allclose(c.numpy(), 2 * (a.numpy() + b.numpy()))


def words_of(*buffers):
    """The addresses of arrays in a table, and the words as arguments of `bind_words`."""
    table = np.array([array.handle for array, _ in buffers], np.uint64)
    return table, [BufferWord(int(table.ctypes.data) + 8 * i, shape, True) for i, (_, shape) in enumerate(buffers)]


def test_a_call_bound_to_words_runs_on_the_arrays_and_sizes_of_the_moment(cuda_device, kernels):
    """Grids, sizes, workspaces and shared memory are those of each call; 80 KiB require opting in."""
    rows = nd.array(RNG.integers(0, 9, (3, 20 << 10)).astype("float32"), cuda_device)
    totals = nd.empty((3,), "float32", cuda_device)
    table, (a, b, c, x, y) = words_of(
        *[(array, (("+", "half", "half"),)) for array in arrays(cuda_device, 1, 1, 1)],
        (rows, ("count", "length")), (totals, ("count",)),
    )  # fmt: skip
    sizes = SizeValues()
    calls = [kernels[name].bind_words(args, sizes, cuda_device)
             for name, args in (("add", [a, b, c]), ("double_sum", [a, b, c]), ("sums", [x, y]))]  # fmt: skip
    for n in (2, 64, 0, 1000, 130):
        values = arrays(cuda_device, n, n, n)
        table[:3] = [array.handle for array in values]
        sizes.evaluate({"half": n // 2, "count": 3, "length": 20 * n})
        for call, factor in zip(calls[:2], (1, 2), strict=True):
            call()
            assert np.allclose(values[2].numpy(), factor * (values[0].numpy() + values[1].numpy()))
        calls[2]()
        assert np.array_equal(totals.numpy(), rows.numpy().reshape(-1)[: 60 * n].reshape(3, -1).sum(1))


def test_what_calls_bound_to_words_refuse(cuda_device, kernels):
    """Sizes that exceed a kernel's integers and misaligned buffers; functions of other scalars than sizes are bound."""
    array, aligned = arrays(cuda_device, 8)[0], replace(kernels["add"]._function.params[0], align=16)
    table, words = words_of(*[(array, ("n",))] * 3)
    sizes = SizeValues()
    assert kernels["scale"].bind_words([*words[:2], "n"], sizes, cuda_device) is None
    call = kernels["add"].bind_words(words, sizes, cuda_device)
    sizes.evaluate({"n": 1 << 31})
    with pytest.raises(ArgumentError, match="a size is 2147483648; expected int32"):
        call()
    function = kernels["add"]._function
    strict = CUDAFunc(replace(function, params=(aligned, *function.params[1:])), kernels)
    call = strict.bind_words(words, sizes, cuda_device)
    sizes.evaluate({"n": 4})
    call()
    table[0] += 4
    with pytest.raises(ArgumentError, match=r"argument .a. lies at address .* expected a multiple of 16"):
        call()


@pytest.mark.parametrize("n", [16, 12 << 10, 20 << 10])
def test_dynamic_shared_memory(cuda_device, kernels, n):
    """80 KiB require opting in."""
    x = nd.array(RNG.integers(0, 9, (3, n)).astype("float32"), cuda_device)
    y = nd.empty((3,), "float32", cuda_device)
    kernels["sums"](x, y)
    assert np.array_equal(y.numpy(), x.numpy().sum(1))


def test_more_shared_memory_than_there_is(cuda_device, kernels):
    x, y = nd.zeros((1, 1 << 18), "float32", cuda_device), nd.zeros((1,), "float32", cuda_device)
    with pytest.raises(DeviceError, match="kernel 'sums_kernel0' needs 1048576 bytes of dynamic shared memory; cuda:0"):
        kernels["sums"](x, y)


def test_a_launch_that_fails_names_the_kernel(cuda_device, kernels):
    a, b, c = arrays(cuda_device, 8, 8, 8)
    with pytest.raises(DeviceError) as caught:
        kernels["crowd"](a, b, c)
    message = str(caught.value)
    assert "launch of kernel 'add_kernel0' on cuda:0 with grid (1, 1, 1), block (2048, 1, 1)" in message
    assert "INVALID_VALUE" in message


@pytest.mark.skipif(emulation.real_driver(), reason="the device is lost to the whole process")
def test_a_kernel_error_is_raised_by_sync(cuda_device, kernels):
    (x,) = arrays(cuda_device, 8)
    add = kernels["add"].bind(x, x, x)
    replay = cuda_device.api.capture(cuda_device, add)
    kernels["astray"](x)
    with pytest.raises(DeviceError, match=r"work queued on cuda:0 failed: .*\(7\d\d\).*CUDA_LAUNCH_BLOCKING"):
        cuda_device.sync()
    with pytest.raises(DeviceError, match=r"launch of kernel 'add_kernel0' on cuda:0 with .*\(7\d\d\)"):
        add()
    with pytest.raises(DeviceError, match=r"replay of a recorded graph on cuda:0: .*\(7\d\d\)"):
        replay()


def test_bound_calls_keep_their_arguments_alive(cuda_device, kernels):
    a, b, c = arrays(cuda_device, 100, 100, 100)
    expected = a.numpy() + b.numpy()
    call = kernels["add"].bind(a, b, c)
    del a, b
    nd.zeros((100,), "float32", cuda_device)
    call()
    assert np.array_equal(c.numpy(), expected)


def test_bound_calls_work_from_any_thread(cuda_device, kernels):
    a, b, c = arrays(cuda_device, 100, 100, 100)
    call = kernels["add"].bind(a, b, c)
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    cuda_device.sync()
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())


def test_calls_go_to_the_current_stream(cuda_device, kernels):
    a, b, c = arrays(cuda_device, 100, 100, 100)
    stream = cuda_device.create_raw_stream()
    cuda_device.api.sync_stream_from_to(cuda_device, None, stream)
    call = kernels["add"].bind(a, b, c)
    cuda_device.set_raw_stream(stream)
    call()
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())
    cuda_device.set_raw_stream(None)
    cuda_device.free_raw_stream(stream)


def test_arrays_too_small_or_on_another_device_are_rejected(cuda_device, kernels):
    a, b = arrays(cuda_device, 100, 50)
    with pytest.raises(ArgumentError, match=r"argument 'b' has shape \(50,\); expected \(100,\)"):
        kernels["add"](a, b, a)
    with pytest.raises(ArgumentError, match="arguments are on cuda:0, cpu:0; expected one CUDA device"):
        kernels["add"](a, nd.zeros((100,), "float32"), a)


def test_dlpack_arrays_are_accepted(cuda_device, kernels):
    class Foreign:
        """Another library's array, which supports DLPack."""

        def __init__(self, array):
            self.array = array
            self.stream = None

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, *, stream=None, **options):
            self.stream = stream
            return self.array.__dlpack__(stream=-1, **options)

    a, b, c = arrays(cuda_device, 100, 100, 100)
    foreign = Foreign(a)
    kernels["add"](foreign, b, c)
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())
    assert foreign.stream == cuda_device.api.dlpack_stream(cuda_device)


def test_code_for_another_architecture_is_rejected(cuda_device, kernels):
    other = CUDAModule(b"\x7fELF", "cubin", "sm_75", kernels.functions, "", {})
    if cuda_device.compute_version == "7.5":
        pytest.skip("this GPU is the other architecture")
    with pytest.raises(ArtifactError, match=r"was compiled for sm_75 \(cubin\) and can't run on cuda:0, which is sm_"):
        other["add"](*arrays(cuda_device, 8, 8, 8))


def test_invalid_code_is_rejected(cuda_device, kernels):
    broken = CUDAModule(b"garbage", "cubin", kernels.arch, kernels.functions, "", {})
    with pytest.raises(ArtifactError, match="can't load this cubin"):
        broken["add"](*arrays(cuda_device, 8, 8, 8))
    missing = {"f": {**kernels.functions["add"], "kernels": [{**kernels.functions["add"]["kernels"][0], "name": "g"}]}}
    lacking = CUDAModule(kernels.image, "cubin", kernels.arch, missing, "", {})
    with pytest.raises(ArtifactError, match="has no kernel 'g', which its table names"):
        lacking["f"](*arrays(cuda_device, 8, 8, 8))


def test_a_loaded_module_runs(cuda_device, kernels):
    loaded = load_from_bytes(kernels.save_to_bytes())
    a, b, c = arrays(cuda_device, 100, 100, 100)
    loaded["add"](a, b, c)
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())


def test_on_two_devices(cuda_device, kernels):
    other = device("cuda", 1)
    if not other.exist:
        pytest.skip("this machine has one CUDA device")
    for where in (cuda_device, other, cuda_device):
        a, b, c = arrays(where, 100, 100, 100)
        kernels["double_sum"](a, b, c)
        assert np.allclose(c.numpy(), 2 * (a.numpy() + b.numpy()))
    (x,) = arrays(other, 100)
    with pytest.raises(ArgumentError, match="arguments are on cuda:0, cuda:1"):
        kernels["add"](a, x, c)


def test_garbage_collection_preserves_the_current_context(cuda_device, kernels):
    """It runs between any two calls of a thread, such as choosing a GPU and loading a module there."""
    (x,) = arrays(cuda_device, 100)
    replay = cuda_device.api.capture(cuda_device, kernels["add"].bind(x, x, x))
    replay()
    cuda_device.sync()
    bindings().cuCtxSetCurrent(0)
    del x, replay
    gc.collect()
    result, current = bindings().cuCtxGetCurrent()
    assert (int(result), int(current)) == (0, 0)


def test_time_evaluator(cuda_device, kernels):
    a, b, c = arrays(cuda_device, 100, 100, 100)
    result = kernels.time_evaluator("add", cuda_device, number=3, repeat=2)(a, b, c)
    assert len(result.results) == 2 and 0 < result.mean < 10
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())


def test_time_evaluator_of_a_host_function_times_the_device_after_one_check(cuda_device):
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] + 1, name="y")
    s = te.create_schedule(y.op)
    block, thread = s[y].split(y.op.axis[0], factor=64)
    s[y].bind(block, te.thread_axis("blockIdx.x"))
    s[y].bind(thread, te.thread_axis("threadIdx.x"))
    built = backend.build(s, [x, y], Target(f"cuda -arch=sm_{cuda_device.compute_version.replace('.', '')}"))
    a, b = arrays(cuda_device, 100, 100)
    timed = built.time_evaluator("main", cuda_device, number=3, repeat=2)
    assert timed(a, b).mean > 0 and np.array_equal(b.numpy(), a.numpy() + 1)
    with pytest.raises(ArgumentError, match="expected 100"):
        timed(a, nd.empty((99,), "float32", cuda_device))


def test_running_needs_no_compiler():
    """In a process of its own: the run-time part and all it imports."""
    program = """
import sys, relayc.backend.cuda.runtime
from relayc.backend.runtime import load_module_bytes
ours = [name for name in sys.modules if name.split(".")[0] in ("te", "topi", "relay", "frontends", "cuda")]
assert not ours, ours
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

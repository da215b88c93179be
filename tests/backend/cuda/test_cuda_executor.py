"""The graph executor on a GPU: runs captured as a graph and replayed, and changes of their addresses."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from relayc.backend.cuda.module import CUDAModule
from relayc.backend.runtime import ArtifactError, CompiledModel, DeviceError, device, load_model, nd
from relayc.backend.runtime.graph_executor import GraphModule
from relayc.backend.runtime.packed_func import PythonFunc

RNG = np.random.default_rng(0)
N = 300
W = RNG.random(N).astype("float32")


def node(name, func, inputs, outputs):
    return {"name": name, "func": func, "inputs": inputs, "outputs": outputs, "scratch": [], "ops": [func],
            "sources": [f"/{name}"], "flops": N, "bytes": 12 * N}  # fmt: skip


def tensor(name, storage, place):
    return {"name": name, "shape": [N], "dtype": "float32", "storage": [storage, place]}


GRAPH = {
    "version": 1, "name": "chain", "device": "cuda", "target": "cuda",
    "tensors": [tensor("x", "input", 0), tensor("w", "param", "w"), tensor("t", "arena", 0), tensor("y", "output", 0)],
    "nodes": [node("add", "add", [0, 1], [2]), node("twice", "double_sum", [2, 0], [3])],
    "inputs": [0], "outputs": [3], "arena_bytes": 4 * N, "entry": None,
}  # fmt: skip


def expected(x):
    return 2 * ((x + W) + x)


def some():
    return RNG.random(N).astype("float32")


@pytest.fixture
def model(kernels):
    return CompiledModel(GRAPH, {"w": W}, kernels)


@pytest.fixture
def executor(model, cuda_device):
    return GraphModule(model["default"](cuda_device))


@pytest.fixture
def captures(cuda_device, monkeypatch):
    """The result of each attempt to capture."""
    seen, capture = [], cuda_device.api.capture
    monkeypatch.setattr(cuda_device.api, "capture", lambda *args: seen.append(capture(*args)) or seen[-1])
    return seen


def check(executor, x):
    executor.run(x=x)
    assert np.allclose(executor.get_output(0).numpy(), expected(x))


def test_the_second_run_is_captured_and_later_ones_replayed(executor, captures):
    check(executor, some())
    assert captures == []
    for _ in range(4):
        check(executor, some())
    assert len(captures) == 1 and captures[0] is not None


def test_a_replay_is_one_call(executor, captures, kernels):
    for _ in range(3):
        check(executor, some())
    replayed = captures[0]
    executor._static.runner._nodes = None  # unused by a replay
    x = some()
    executor.set_input("x", x)
    replayed()
    assert np.allclose(executor.get_output(0).numpy(), expected(x))


def test_outputs_that_are_held_keep_their_values(executor, captures):
    held = []
    for _ in range(12):
        x = some()
        executor.run(x=x)
        held = [*held[-1:], (x, executor.get_output(0))]
        assert all(np.allclose(y.numpy(), expected(x)) for x, y in held)
    assert 1 <= len(captures) <= 3, "buffers come back, and find their recordings"


def test_inputs_in_place(executor, captures, cuda_device):
    for _ in range(2):
        values = [some() for _ in range(3)]
        places = [nd.array(value, cuda_device) for value in values]
        for value, place in zip(values, places, strict=True):
            executor.set_input_zero_copy("x", place)
            for _ in range(3):
                executor.run()
                assert np.allclose(executor.get_output(0).numpy(), expected(value))
    check(executor, some())
    assert None not in captures


def test_changing_addresses_are_not_captured(executor, captures, cuda_device):
    places = [nd.array(some(), cuda_device) for _ in range(20)]
    for place in places:
        executor.set_input_zero_copy("x", place)
        executor.run()
        assert np.allclose(executor.get_output(0).numpy(), expected(place.numpy()))
    assert captures == []


def test_runs_continue_without_a_graph_if_capture_fails(model, cuda_device, monkeypatch):
    attempts = []
    monkeypatch.setattr(cuda_device.api, "capture", lambda *_: attempts.append(1))
    executor = GraphModule(model["default"](cuda_device))
    for _ in range(5):
        check(executor, some())
    assert len(attempts) == 1


def test_host_functions_are_not_captured(model, cuda_device, captures):
    """A node that is a host function would be run during the capture only."""
    add = model.module.get_function("add")
    calls = []
    model.module._found["add"] = PythonFunc(lambda *args: calls.append(1) or add(*args))
    executor = GraphModule(model["default"](cuda_device))
    for _ in range(4):
        check(executor, some())
    assert len(calls) == 4 and captures == []


def test_capture_rejects_operations_that_can_not_be_replayed(cuda_device, kernels):
    x = nd.array(some(), cuda_device)
    assert cuda_device.api.capture(cuda_device, x.numpy) is None
    assert cuda_device.api.capture(cuda_device, lambda: x.copyfrom(W)) is None
    assert cuda_device.api.capture(cuda_device, cuda_device.sync) is None
    with pytest.raises(ZeroDivisionError):
        cuda_device.api.capture(cuda_device, lambda: 1 // 0)
    x.copyfrom(W)
    assert np.array_equal(x.numpy(), W), "streams are as before"


def test_nothing_runs_during_capture(cuda_device, kernels):
    a, b, c = (nd.array(some(), cuda_device) for _ in range(3))
    before = c.numpy()
    replay = cuda_device.api.capture(cuda_device, kernels["double_sum"].bind(a, b, c))
    assert np.array_equal(c.numpy(), before)
    replay()
    assert np.allclose(c.numpy(), 2 * (a.numpy() + b.numpy()))
    a.copyfrom(W)
    others = [nd.array(some(), cuda_device) for _ in range(8)]  # must not overlap the graph's workspaces
    replay()
    assert np.allclose(c.numpy(), 2 * (W + b.numpy())) and len(others) == 8


def test_replays_on_another_stream_and_thread(cuda_device, kernels):
    a, b, c = (nd.array(some(), cuda_device) for _ in range(3))
    replay = cuda_device.api.capture(cuda_device, kernels["add"].bind(a, b, c))
    cuda_device.sync()

    def work():
        stream = cuda_device.create_raw_stream()
        cuda_device.set_raw_stream(stream)
        replay()
        cuda_device.sync()
        cuda_device.free_raw_stream(stream)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert np.array_equal(c.numpy(), a.numpy() + b.numpy())


def test_a_graph_outlives_the_stream_it_ran_on(cuda_device, kernels):
    a, b, c = (nd.array(some(), cuda_device) for _ in range(3))
    replay = cuda_device.api.capture(cuda_device, kernels["double_sum"].bind(a, b, c))
    stream = cuda_device.create_raw_stream()
    cuda_device.set_raw_stream(stream)
    replay()
    cuda_device.free_raw_stream(stream)
    del replay  # waits for its last run, on a destroyed stream
    cuda_device.sync()
    assert np.allclose(c.numpy(), 2 * (a.numpy() + b.numpy()))


def test_a_device_array_as_input(executor, cuda_device):
    x = some()
    for _ in range(3):
        executor.set_input("x", nd.array(x, cuda_device))
        executor.run()
        assert np.allclose(executor.get_output(0).numpy(), expected(x))
    out = nd.empty((N,), "float32", cuda_device)
    assert executor.get_output(0, out) is out and np.allclose(out.numpy(), expected(x))


def test_benchmark_and_profile(executor):
    x = some()
    result = executor.benchmark(repeat=2, number=3, x=x)
    assert len(result.results) == 2 and result.mean > 0
    assert executor.benchmark(repeat=1, number=1, end_to_end=True, x=x).mean > 0
    report = executor.profile(repeat=2, x=x)
    assert [call.name for call in report] == ["add", "twice"] and all(call.seconds > 0 for call in report)
    assert report.configuration["device"] == "cuda:0"
    check(executor, x)


def test_a_profile_replays_its_nodes_and_their_events(executor, captures):
    executor.profile(repeat=3, x=some())
    assert len(captures) == 1 and captures[0] is not None


def test_events_in_a_graph_are_of_its_last_replay(cuda_device, kernels):
    api, marks = cuda_device.api, []
    call = kernels["add"].bind(*(nd.array(some(), cuda_device) for _ in range(3)))

    def submit():
        marks.append(api.record_mark(cuda_device))
        call()
        marks.append(api.record_mark(cuda_device))

    replay = api.capture(cuda_device, submit)
    for _ in range(2):
        before = api.record_mark(cuda_device)
        replay()
        after = api.record_mark(cuda_device)
        cuda_device.sync()
        times = [api.seconds_between(cuda_device, *pair) for pair in ((before, marks[0]), marks, (marks[1], after))]
        assert min(times) >= 0 and times[1] > 0


def test_clones_and_pickles(executor, model):
    check(executor, some())
    for other in (executor.clone(), pickle.loads(pickle.dumps(executor))):
        for _ in range(3):
            check(other, some())
    check(executor, some())


def test_saved_and_loaded(model, cuda_device, tmp_path):
    model.save(tmp_path / "chain.relayc")
    executor = GraphModule(load_model(tmp_path / "chain.relayc")["default"](cuda_device))
    for _ in range(3):
        check(executor, some())


def test_an_artifact_without_a_device_to_run_it(model, tmp_path):
    model.save(tmp_path / "chain.relayc")
    loaded = load_model(tmp_path / "chain.relayc")
    with pytest.raises(DeviceError, match="there is no device cuda:42: "):
        loaded["default"](device("cuda", 42))


def test_an_artifact_for_another_architecture(kernels, cuda_device):
    other = CUDAModule(kernels.image, "cubin", "sm_75", kernels.functions, "", {})
    with pytest.raises(ArtifactError, match=r"compiled for sm_75.*compile it with target 'cuda -arch=sm_"):
        CompiledModel(GRAPH, {"w": W}, other)["default"](cuda_device)


def test_on_another_gpu(model, cuda_device):
    other = device("cuda", 1)
    if not other.exist:
        pytest.skip("this machine has one CUDA device")
    executors = [GraphModule(model["default"](where)) for where in (cuda_device, other)]
    for _ in range(4):
        for executor in executors:
            check(executor, some())
    assert executors[1].get_output(0).device == other


def test_two_executors_in_two_threads(model, cuda_device):
    wrong = []

    def work(seed):
        rng, executor = np.random.default_rng(seed), GraphModule(model["default"](cuda_device))
        for _ in range(10):
            x = rng.random(N).astype("float32")
            (y,) = executor(x)
            if not np.allclose(y.numpy(), expected(x)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

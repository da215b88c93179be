from __future__ import annotations

import gc
import os
import pickle
import threading
import time

import numpy as np
import pytest

from relayc.backend.runtime import (
    ArgumentError,
    ArtifactError,
    DeviceError,
    ExecutorPool,
    ModuleError,
    device,
    nd,
    register_func,
    remove_global_func,
)
from relayc.backend.runtime.artifact import CompiledModel
from relayc.backend.runtime.graph_executor import GraphModule, create
from relayc.backend.runtime.input_ports import InputPorts
from relayc.backend.runtime.runners import OutputBuffer

X = np.array([[1, 2, 3], [-1, 0, 1]], "float32")


@pytest.fixture
def executor(model):
    return GraphModule(model["default"](device(model.graph.device, 0)))


@pytest.fixture
def compiled(small, c_library):
    return CompiledModel(small.graph(), small.weights, small.CLibrary(c_library))


@pytest.fixture
def fast(compiled):
    return GraphModule(compiled["default"](device("cpu", 0)))


def test_a_model_runs(executor, small):
    executor.set_input("x", X)
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))
    executor.run(x=-X)
    np.testing.assert_array_equal(executor.get_output("y").numpy(), small.expected(-X))


def test_infer_gives_numpy_arrays_and_keeps_nothing(executor, small):
    (y,) = executor.infer({"x": X})
    assert type(y) is np.ndarray and y.flags.owndata
    (again,) = executor.infer({"x": -X}, ["y"])
    np.testing.assert_array_equal(y, small.expected(X))
    np.testing.assert_array_equal(again, small.expected(-X))
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))
    executor.set_input("x", X)
    assert executor.infer({}, []) == []  # inputs that were set stay set
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))
    with pytest.raises(ArgumentError, match="no output 'z'"):
        executor.infer({"x": X}, ["z"])
    with pytest.raises(ArgumentError, match="expected shape"):
        executor.infer({"x": X[:, :2]})


def test_arrays_of_the_last_type_are_copied_without_further_checks(fast, small, monkeypatch):
    """Small models are dominated by the cost of a run; what it must not do is counted."""
    fast.set_input("x", X)
    calls = []
    for name in ("set", "_copy", "_place"):
        inner = getattr(InputPorts, name)
        monkeypatch.setattr(InputPorts, name, lambda self, *a, f=inner, n=name: (calls.append(n), f(self, *a))[1])
    for value in (X, -X):
        fast.run(x=value)
        np.testing.assert_array_equal(fast.get_output(0).numpy(), small.expected(value))
    fast.set_input(0, X)
    assert not calls
    for other in (X.view(type("Sub", (np.ndarray,), {})), nd.array(X), X.tolist()):
        fast.run(x=other)
        np.testing.assert_array_equal(fast.get_output(0).numpy(), small.expected(X))
    assert calls.count("set") == 3
    in_place = nd.array(-X)
    fast.set_input_zero_copy("x", in_place)
    np.testing.assert_array_equal(fast.infer({})[0], small.expected(-X))
    np.testing.assert_array_equal(fast.infer({"x": X})[0], small.expected(X))
    np.testing.assert_array_equal(in_place.numpy(), -X)


def test_memory_is_released_and_taken_again(executor, small):
    executor.run(x=X)
    held = executor.get_output(0)
    executor.release_memory()
    np.testing.assert_array_equal(held.numpy(), small.expected(X))
    with pytest.raises(ArgumentError, match="has not run yet"):
        executor.get_output(0)
    with pytest.raises(ArgumentError, match=r"inputs \['x'\] were never set"):
        executor.run()
    executor.run(x=-X)
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))
    executor.release_memory()
    executor.get_input("x")[:] = X
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))


def test_released_memory_goes_back_to_the_device(small, toy):
    where, api = toy
    executor = GraphModule(CompiledModel(small.graph(None, "toy"), small.weights, small.Python())["default"](where))
    gc.collect()
    executor(X)
    used = len(api.spaces)
    gc.disable()
    executor.release_memory()
    gc.enable()
    assert len(api.spaces) == len(small.weights) < used
    executor(X)
    assert len(api.spaces) == used


@pytest.mark.parametrize("give", ["numpy", "ndarray", "list", "dlpack", "strided", "position"])
def test_inputs_of_every_kind(executor, small, give):
    value = {
        "ndarray": nd.array(X),
        "list": X.tolist(),
        "strided": np.ascontiguousarray(X.T).T,
        "dlpack": type("P", (), {"__dlpack__": lambda _, **o: X.__dlpack__(**o)})(),
    }.get(give, X)
    executor.set_input(0 if give == "position" else "x", value)
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))


def test_what_the_executor_says_of_itself(executor):
    assert executor.get_num_inputs() == 1 and executor.get_num_outputs() == 1
    assert executor.get_input_index("x") == 0
    assert executor.get_input_info() == ({"x": (2, 3)}, {"x": "float32"})
    assert executor.get_output_info() == ({"y": (2, 4)}, {"y": "float32"})
    assert "x: float32[2, 3]" in repr(executor)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("xx", X, r"model 'small' has no input 'xx'\. Its inputs are: x: float32\[2, 3\]"),
        ("w", X, r"no input 'w'; 'w' is a weight, bound when the model was compiled"),
        (1, X, r"has no input 1"),
        (
            "x",
            X.T,
            r"input 'x' of model 'small': got shape \(3, 2\), dtype float32; expected shape \(2, 3\), dtype float",
        ),
        ("x", X.astype("f8"), r"got shape \(2, 3\), dtype float64; expected shape \(2, 3\), dtype float32"),
        ("x", nd.array(X.astype("i4")), r"dtype int32; expected"),
        ("x", [[1, 2], [3]], r"input 'x' of model 'small': no array of float32"),
        ("x", "text", r"no array of float32"),
        ("x", None, r"input 'x' of model 'small': got None; expected an array"),
        ("x", 1.0, r"got shape \(\), dtype float32"),
    ],
)
def test_bad_inputs_are_named(executor, key, value, text):
    with pytest.raises(ArgumentError, match=text):
        executor.set_input(key, value)


def test_an_input_never_set_is_named(executor):
    with pytest.raises(ArgumentError, match=r"model 'small': inputs \['x'\] were never set"):
        executor.run()
    executor.get_input("x").copyfrom(X)
    executor.run()


def test_unknown_outputs_are_rejected(fast):
    fast.run(x=X)
    for key in ("z", 1, -1):
        with pytest.raises(ArgumentError, match=rf"has no output {key!r}; its outputs are: y$"):
            fast.get_output(key)


def test_there_is_no_output_before_a_run(executor, small):
    executor.set_input("x", X)
    for each in (executor, executor.clone()):
        with pytest.raises(ArgumentError, match=r"output 'y' of model 'small' has no value: .* call run"):
            each.get_output(0)
    executor.run()
    with pytest.raises(ArgumentError, match="got shape"):
        executor.run(x=X[:, :2])
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))  # nothing has run since


def test_an_output_is_copied_into_the_out_argument(executor, small):
    executor.run(x=X)
    out, plain = nd.zeros((2, 4)), np.zeros((2, 4), "float32")
    assert executor.get_output(0, out) is out
    executor.get_output(0, plain)
    np.testing.assert_array_equal(out.numpy(), small.expected(X))
    np.testing.assert_array_equal(plain, small.expected(X))
    with pytest.raises(ArgumentError, match=r"output 'y' of model 'small': got shape \(2, 3\)"):
        executor.get_output(0, nd.zeros((2, 3)))


def test_an_output_keeps_its_values_while_it_is_held(executor, small):
    held = []
    for scale in range(1, 6):
        executor.run(x=X * scale)
        held.append(executor.get_output(0))
    for scale, output in enumerate(held, 1):
        np.testing.assert_array_equal(output.numpy(), small.expected(X * scale))


def test_growing_outputs_are_reallocated_seldom():
    """Like a decoder with a KV cache: each output is the next run's input, and longer."""
    buffer = OutputBuffer((1000, 8), "float32", device("cpu"))
    held, seen = buffer.lend(), set()
    for length in range(1001, 1501):
        buffer.renew((length, 8))
        output = buffer.lend()
        assert output.shape == (length, 8) and output.handle != held.handle
        held = output
        seen.add(output.handle)
    assert len(seen) <= 8


def test_an_output_that_shrinks_a_lot_gives_memory_back():
    buffer = OutputBuffer((1 << 20,), "float32", device("cpu"))
    assert not buffer.renew((1 << 19,)), "the same memory"
    assert buffer.renew((16,))


def test_output_buffers_are_used_again(fast):
    seen = set()
    for _ in range(20):
        fast.run(x=X)
        output = fast.get_output(0)
        seen.add(output.handle)
    assert len(seen) == 2, "one in the user's hands, one being written"
    view = np.from_dlpack(output)
    del output
    fast.run(x=-X)
    assert view.ctypes.data != fast.get_output(0).handle, "a consumer of the memory counts as holding it"


def test_zero_copy_input(fast, small):
    memory = nd.array(X)
    fast.set_input_zero_copy("x", memory)
    fast.run()
    np.testing.assert_array_equal(fast.get_output(0).numpy(), small.expected(X))
    memory[:] = -X
    fast.run()
    np.testing.assert_array_equal(fast.get_output(0).numpy(), small.expected(-X))
    fast.set_input("x", X)
    assert memory.numpy().tolist() == (-X).tolist(), "set_input does not write to the user's memory"
    fast.run()
    np.testing.assert_array_equal(fast.get_output(0).numpy(), small.expected(X))


def test_zero_copy_wants_fitting_memory(fast):
    strided = nd.from_dlpack(np.zeros((3, 2), "float32").T)
    shifted = nd.empty((7,))._create_view((2, 3), byte_offset=2)
    for bad in (strided, shifted):
        with pytest.raises(ArgumentError, match=r"can't be used in place; expected contiguous memory on cpu:0"):
            fast.set_input_zero_copy("x", bad)
    with pytest.raises(ArgumentError, match="got shape"):
        fast.set_input_zero_copy("x", nd.empty((3, 2)))


def test_zero_copy_on_nodes(model, small):
    where = device(model.graph.device)
    executor = GraphModule(model["default"](where))
    executor.run(x=X)
    executor.set_input_zero_copy(0, nd.array(-X, where))
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))


def test_outputs_that_are_inputs_or_weights_are_copied(small):
    graph = small.graph(None)
    graph["outputs"] = [4, 0, 1, 3]
    executor = create(graph, small.Python(), "cpu", small.weights)
    y, x, w, h = executor(X)
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_array_equal(w.numpy(), small.weights["w"])
    np.testing.assert_array_equal(h.numpy() + 1, y.numpy())
    x[:] = 0
    w[:] = 0
    np.testing.assert_array_equal(executor(X)[0].numpy(), small.expected(X))


def test_an_output_may_be_named_twice_and_seen_in_two_shapes(small, c_library):
    for entry, module in ((None, small.Python()), ("run_entry", small.CLibrary(c_library))):
        graph = small.graph(entry)
        graph["tensors"].append({"name": "flat", "shape": [8], "dtype": "float32", "storage": ["output", 0]})
        graph["outputs"] = [4, 4, 5]
        executor = create(graph, module, "cpu", small.weights)
        held = [executor(X * scale) for scale in (1, -1)]
        for scale, outputs in zip((1, -1), held, strict=True):
            for output in outputs:
                assert output.numpy().ravel().tolist() == small.expected(X * scale).ravel().tolist()
            assert [output.shape for output in outputs] == [(2, 4), (2, 4), (8,)]


def test_an_executor_is_made_of_a_models_parts(compiled, small):
    parts = compiled.get_graph_json(), compiled.get_lib(), "cpu", compiled.get_params()
    np.testing.assert_array_equal(create(*parts)(X)[0].numpy(), small.expected(X))
    for text in ("{", "[" * 100_000):
        with pytest.raises(ArtifactError, match="graph is no JSON text"):
            create(text, *parts[1:])


def test_weights_are_shared_by_clones(compiled):
    first = GraphModule(compiled["default"](device("cpu")))
    second = first.clone()
    assert first._params["w"] is second._params["w"]
    first.run(x=X)
    second.run(x=-X)
    assert first.get_output(0).numpy().tolist() != second.get_output(0).numpy().tolist()


def test_a_pool_gives_each_thread_an_executor_of_its_own(fast, small):
    pool = ExecutorPool(fast)
    with pool.borrowed() as first, pool.borrowed() as second:
        assert first is not second and first._params["w"] is second._params["w"]
        np.testing.assert_array_equal(second.infer({"x": X})[0], small.expected(X))
    with pool.borrowed() as again:
        assert again in (first, second)


def test_a_model_runs_on_its_device_only(compiled, toy):
    with pytest.raises(DeviceError, match=r"compiled for 'cpu' \(target 'test'\) and can't run on toy:1"):
        compiled["default"](toy[0])
    with pytest.raises(ArgumentError, match="expected 'default'"):
        compiled["other"]
    with pytest.raises(ArgumentError, match="GraphModule takes lib"):
        GraphModule(compiled)


def test_a_wrong_entry_is_rejected(small, c_library):
    for entry, text in (("nothing", "no function 'nothing'"), ("dense_relu", "expected a kernel of two pointers")):
        model = CompiledModel(small.graph(entry), small.weights, small.CLibrary(c_library))
        with pytest.raises(ModuleError, match=text):
            GraphModule(model["default"]("cpu"))


def test_the_number_of_threads_is_the_executors(small, c_library):
    model = CompiledModel(small.graph("run_threads"), small.weights, small.CLibrary(c_library))
    executor = GraphModule(model["default"]("cpu"), num_threads=1)
    executor.run(x=X)
    assert executor.num_threads == 1 and executor.get_output(0).numpy()[0, 0] == 1
    executor.set_num_threads(None)
    executor.run()
    assert executor.get_output(0).numpy()[0, 0] == executor.num_threads
    assert executor.clone(num_threads=1).num_threads == 1


def test_an_exception_of_a_python_function_reaches_the_caller(small, c_library):
    def shout():
        raise RuntimeError("loud")

    register_func("test.executor.shout", shout, override=True)
    try:
        executor = create(small.graph("run_shout"), small.CLibrary(c_library), "cpu", small.weights)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="loud"):
                executor.run(x=X)
            with pytest.raises(ArgumentError, match="its last run failed"):
                executor.get_output(0)
    finally:
        remove_global_func("test.executor.shout")


def test_several_python_threads_may_share_an_executor(executor, small):
    wrong = []

    def work(seed):
        x = np.random.default_rng(seed).integers(-3, 4, (2, 3)).astype("float32")
        for _ in range(40):
            if executor(x)[0].numpy().tolist() != small.expected(x).tolist():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_is_not_locked_out(fast, small):
    fast.run(x=X)
    holding, done = threading.Event(), threading.Event()

    def hold():
        with fast._lock:
            holding.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    child = os.fork()
    if child == 0:
        ok = fast(-X)[0].numpy().tolist() == small.expected(-X).tolist()
        os._exit(0 if ok else 1)
    deadline = time.monotonic() + 10
    status = None
    while status is None and time.monotonic() < deadline:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else None
        time.sleep(0.01)
    done.set()
    thread.join()
    if status is None:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert status == 0


def test_an_executor_is_pickled_as_its_model(executor, small):
    again = pickle.loads(pickle.dumps(executor))
    np.testing.assert_array_equal(again(X)[0].numpy(), small.expected(X))


def test_benchmark(executor):
    result = executor.benchmark(executor.device, repeat=3, number=2, x=X)
    assert len(result.results) == 3 and result.min > 0
    assert executor.benchmark(repeat=1, number=1, end_to_end=True, x=X).mean > 0
    with pytest.raises(ArgumentError, match="expected 'run' on"):
        executor.benchmark(device("cuda", 7))


def test_profile(executor, small):
    report = executor.profile(repeat=2, x=X)
    assert [call.name for call in report] == ["dense_relu_0", "add_one_0"]
    assert all(call.us > 0 for call in report)
    assert report.configuration["model"] == "small" and report.configuration["device"] == str(executor.device)
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))
    executor.run(x=-X)
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))
    executor.set_input("x", X)
    executor.profile(repeat=1)
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(X))


def test_an_executor_frees_all_it_took(small, toy):
    where, api = toy
    model = CompiledModel(small.graph(None, "toy"), small.weights, small.Python())
    gc.collect()
    before = len(api.spaces)
    executor = GraphModule(model["default"](where))
    executor(X)
    executor.profile(repeat=1)
    assert len(api.spaces) > before
    gc.disable()
    del executor, model
    gc.enable()
    assert len(api.spaces) == before


def test_scratch_comes_last_among_a_kernels_arguments(small):
    graph = small.graph(None)
    graph["tensors"].append({"name": "scratch", "shape": [16], "dtype": "uint8", "storage": ["arena", 0]})
    graph["nodes"][1]["scratch"] = [5]
    module = small.Python()
    seen = []

    def add_one(x, y, scratch):
        seen.append((scratch.shape, scratch.dtype))
        y[:] = x.numpy() + 1

    module.functions["add_one"] = add_one
    executor = create(graph, module, "cpu", small.weights)
    np.testing.assert_array_equal(executor(X)[0].numpy(), small.expected(X))
    assert seen == [((16,), "uint8")]


def test_inputs_may_be_passed_in_a_dictionary(executor, small):
    executor.run({"x": X})
    np.testing.assert_array_equal(executor.get_output(0), small.expected(X))
    (y,) = executor({"x": -X})
    np.testing.assert_array_equal(y, small.expected(-X))
    with pytest.raises(ArgumentError, match=r"\(NoneType, dict\).*infer\(\{\"x\": x\}, outputs\)"):
        executor.run(None, {"x": X})
    with pytest.raises(ArgumentError, match="passed twice"):
        executor.run({"x": X}, x=X)
    with pytest.raises(ArgumentError, match="has no input 'z'"):
        executor.run({"z": X})


def test_outputs_are_written_into_users_memory(executor, small):
    shape, where = small.expected(X).shape, executor.device
    mine = nd.zeros(shape, "float32", where)
    executor.set_output_zero_copy("y", mine)
    executor.run(x=X)
    np.testing.assert_array_equal(mine.numpy(), small.expected(X))
    assert executor.get_output(0) is mine
    np.testing.assert_array_equal(executor.infer({"x": -X})[0], small.expected(-X))
    np.testing.assert_array_equal(mine.numpy(), small.expected(-X))
    executor.release_memory()
    executor.run(x=X)
    np.testing.assert_array_equal(mine.numpy(), small.expected(X))
    executor.set_output_zero_copy(0, None)
    executor.run(x=-X)
    np.testing.assert_array_equal(mine.numpy(), small.expected(X))
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))


def test_an_array_lent_before_keeps_its_values_while_runs_write_elsewhere(executor, small):
    executor.run(x=X)
    lent = executor.get_output(0)
    executor.set_output_zero_copy(0, nd.zeros(small.expected(X).shape, "float32", executor.device))
    executor.run(x=-X)
    executor.set_output_zero_copy(0, None)
    executor.run(x=-X)
    np.testing.assert_array_equal(lent.numpy(), small.expected(X))
    np.testing.assert_array_equal(executor.get_output(0).numpy(), small.expected(-X))


def test_memory_that_an_output_can_t_be_written_to_is_refused(fast, small):
    shape = small.expected(X).shape
    with pytest.raises(ArgumentError, match="expected shape"):
        fast.set_output_zero_copy(0, np.zeros((9, 9), "float32"))
    with pytest.raises(ArgumentError, match=r"can't be used in place.*get_output\(out=\)"):
        fast.set_output_zero_copy(0, np.zeros((*shape[:-1], 2 * shape[-1]), "float32")[..., ::2])
    aligned = nd.zeros(shape)
    frozen = np.from_dlpack(aligned)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        fast.set_output_zero_copy(0, frozen)
    with pytest.raises(ArgumentError, match="no output"):
        fast.set_output_zero_copy("z", aligned)

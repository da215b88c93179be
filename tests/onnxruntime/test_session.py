"""InferenceSession of relayc.onnxruntime, beside onnxruntime's own where it says what is right."""

from __future__ import annotations

import json
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import relayc
import relayc.onnxruntime as ours
from relayc import compile_onnx
from relayc.backend.runtime.log import warn_once
from relayc.runtime import ArgumentError, RelaycError, set_random_seed

theirs = pytest.importorskip("onnxruntime")

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL


def _value(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, np.ndarray] | None = None
) -> bytes:
    tensors = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, tensors, doc_string="a graph")
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="a test", ir_version=8, doc_string="a model"
    )
    model.model_version = 7
    helper.set_model_props(model, {"alphabet": "abc"})
    return model.SerializeToString()


WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def dense() -> bytes:
    """y = relu(x w), c = argmax of y."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["c"], axis=1),
    ]
    outputs = [_value("y", FLOAT, ["batch", 3]), _value("c", INT64, ["batch", 1])]
    return _model(nodes, [_value("x", FLOAT, ["batch", 4])], outputs, {"w": WEIGHT})


@pytest.fixture(scope="module")
def endless() -> bytes:
    """A loop of n iterations, each of which adds x to a sum."""
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "x"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [_value("i", INT64, []), _value("go", BOOL, []), _value("sum", FLOAT, [2])],
        [_value("on", BOOL, []), _value("next", FLOAT, [2])],
    )
    nodes = [helper.make_node("Loop", ["n", "", "zero"], ["y"], body=body)]
    inputs = [_value("n", INT64, []), _value("x", FLOAT, [2])]
    return _model(nodes, inputs, [_value("y", FLOAT, [2])], {"zero": np.zeros(2, np.float32)})


X = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)


def test_results_and_descriptions_are_onnxruntimes(dense: bytes) -> None:
    a, b = ours.InferenceSession(dense), theirs.InferenceSession(dense, providers=["CPUExecutionProvider"])
    for mine, other in zip(
        [*a.get_inputs(), *a.get_outputs()], [*b.get_inputs(), *b.get_outputs()], strict=True
    ):
        assert (mine.name, mine.type, mine.shape) == (other.name, other.type, other.shape)
    for x in (X, X[:1], X[:0], X[::2], np.asfortranarray(X)):
        for mine, other in zip(a.run(None, {"x": x}), b.run(None, {"x": x}), strict=True):
            assert (type(mine), mine.dtype, mine.shape) == (type(other), other.dtype, other.shape)
            np.testing.assert_allclose(mine, other, rtol=1e-6)
    (only,) = a.run(["c"], {"x": X})
    np.testing.assert_array_equal(only, b.run(["c"], {"x": X})[0])
    texts = ("producer_name", "graph_name", "description", "graph_description", "domain")
    for field in (*texts, "version", "custom_metadata_map"):
        assert getattr(a.get_modelmeta(), field) == getattr(b.get_modelmeta(), field), field
    assert a.get_providers() == b.get_providers() == ["CPUExecutionProvider"]
    assert a.get_overridable_initializers() == b.get_overridable_initializers() == []


def test_sources_of_a_model(dense: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(dense)
    expected = ours.InferenceSession(dense).run(None, {"x": X})
    compiled = tmp_path / "model.relayc"
    compile_onnx(path).save(compiled)
    sources = (
        path, str(path), ModelProto.FromString(dense), compiled, compiled.read_bytes(), bytearray(dense),
        compile_onnx(path),
    )  # fmt: skip
    assert relayc.InferenceSession is ours.InferenceSession and relayc.onnxruntime is ours
    for source in sources:
        session = ours.InferenceSession(source)
        for found, want in zip(session.run(None, {"x": X}), expected, strict=True):
            np.testing.assert_array_equal(found, want)
        assert session.get_modelmeta().custom_metadata_map == {"alphabet": "abc"}
        assert session.get_inputs()[0].shape == ["batch", 4]


def test_inputs_of_undeclared_rank() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    inputs = [_value("a", FLOAT, None), _value("b", FLOAT, [2])]
    model = _model(nodes, inputs, [helper.make_empty_tensor_value_info("y")])
    mine, other = ours.InferenceSession(model), theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [v.shape for v in mine.get_inputs()] == [v.shape for v in other.get_inputs()]
    for shape in ((), (1,), (3, 2), (4, 1, 2), (1, 2, 3, 1)):
        feed = {"a": np.full(shape, 2, np.float32), "b": np.arange(2, dtype=np.float32)}
        np.testing.assert_array_equal(mine.run(None, feed)[0], other.run(None, feed)[0])


@pytest.mark.parametrize("kind", ["SequenceAt", "ConcatFromSequence"])
def test_sequences_of_elements_of_undeclared_rank(kind: str) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    operands = {"SequenceAt": ["s", "i"], "ConcatFromSequence": ["s"]}[kind]
    nodes = [helper.make_node(kind, operands, ["z"], **({"axis": 0} if len(operands) == 1 else {})),
             helper.make_node("Neg", ["z"], ["y"])]  # fmt: skip
    inputs = [sequence, *([_value("i", INT64, [])] if len(operands) == 2 else [])]
    model = _model(nodes, inputs, [helper.make_empty_tensor_value_info("y")])
    mine, other = ours.InferenceSession(model), theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [(v.shape, v.type) for v in mine.get_inputs()] == [(v.shape, v.type) for v in other.get_inputs()]
    for shape in ((3,), (1,), (3, 2), (4, 1, 2), (1, 2, 3, 1)):
        feed = {"s": [np.full(shape, n, np.float32) for n in range(2)], "i": np.array(1)}
        feed = {name: feed[name] for name in operands}
        np.testing.assert_array_equal(mine.run(None, feed)[0], other.run(None, feed)[0])
    if kind == "ConcatFromSequence":
        with pytest.raises(ours.InvalidArgument):
            mine.run(None, {"s": [np.zeros(2, np.float32), np.zeros((2, 2), np.float32)]})


@pytest.mark.parametrize(
    ("feed", "names"),
    [
        ({}, None),
        ({"x": X.astype(np.float64)}, None),
        ({"x": X.astype(np.int32)}, None),
        ({"x": X[0]}, None),
        ({"x": X[:, :3]}, None),
        ({"x": X, "z": X}, None),
        ({"x": X}, ["nothing"]),
    ],
)
def test_wrong_inputs_raise_what_onnxruntime_raises(
    dense: bytes, feed: dict[str, Any], names: list[str] | None
) -> None:
    b = theirs.InferenceSession(dense, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception) as other:
        b.run(names, feed)
    with pytest.raises(Exception) as mine:
        ours.InferenceSession(dense).run(names, feed)
    assert type(mine.value).__name__ == type(other.value).__name__
    first = str(other.value).split("\n")[0]
    assert str(mine.value).startswith(first[:60])


def test_inputs_are_checked_where_others_were_accepted_before(dense: bytes) -> None:
    session = ours.InferenceSession(dense)
    (first, _), (again, _) = [session.run(None, {"x": X}) for _ in range(2)]
    np.testing.assert_array_equal(first, again)
    for wrong in ({"y": X}, {"x": X, "y": X}, {"x": X.astype(np.float64)}, {"x": X[:, :3]}, {"x": X[0]}, {}):
        with pytest.raises((ours.InvalidArgument, ValueError)):
            session.run(None, wrong)
    for batch in (X[:2], X[:3].tolist(), ours.OrtValue(X[1:])):
        values = np.asarray(batch.numpy() if isinstance(batch, ours.OrtValue) else batch, np.float32)
        np.testing.assert_allclose(session.run(["y"], {"x": batch})[0], np.maximum(values @ WEIGHT, 0), rtol=1e-5)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], first)


def test_no_value_is_no_empty_tensor() -> None:
    session = ours.InferenceSession(
        _model([helper.make_node("Relu", ["x"], ["y"])], [_value("x", FLOAT, ["n"])], [_value("y", FLOAT, ["n"])])
    )
    with pytest.raises(ours.InvalidArgument, match=r"input 'x' is None; expected tensor\(float\)"):
        session.run(None, {"x": None})


def test_wrong_models_raise_what_onnxruntime_raises(tmp_path: Path) -> None:
    unknown = _model([helper.make_node("Unheard", ["x"], ["y"])], [_value("x", FLOAT, [1])], [_value("y", FLOAT, [1])])
    with pytest.raises(ours.NoSuchFile, match="NO_SUCHFILE") as missing:
        ours.InferenceSession(tmp_path / "none.onnx")
    assert isinstance(missing.value, FileNotFoundError) and isinstance(missing.value, RelaycError)
    with pytest.raises(ours.InvalidProtobuf, match="7 : INVALID_PROTOBUF"):
        ours.InferenceSession(b"no model")
    with pytest.raises(ours.InvalidProtobuf, match="it is a folder"):
        ours.InferenceSession(tmp_path)
    with pytest.raises(ours.InvalidGraph, match=r"INVALID_GRAPH : Load model failed"):
        ours.InferenceSession(_model([], [_value("x", FLOAT, [1])], []))
    for source, kind in ((b"", ours.InvalidArgument), (None, TypeError), (5, TypeError), ([], TypeError)):
        with pytest.raises(kind):
            ours.InferenceSession(source)
        with pytest.raises(theirs.capi.onnxruntime_pybind11_state.InvalidArgument if source == b"" else kind):
            theirs.InferenceSession(source)
    with pytest.raises(ours.NotImplemented, match="Unheard"):
        ours.InferenceSession(unknown)
    with pytest.raises(ours.InvalidArgument) as wrong:
        ours.InferenceSession(_identity(FLOAT)).run(None, {"x": "text"})
    assert isinstance(wrong.value, ArgumentError)


def _identity(kind: int, shape: Any = ("n",)) -> bytes:
    return _model([helper.make_node("Identity", ["x"], ["y"])], [_value("x", kind, shape)], [_value("y", kind, shape)])


def test_lists_scalars_and_strings_as_inputs() -> None:
    for kind, value in ((FLOAT, [1, 2.5]), (INT64, [1, 2]), (BOOL, [True, False])):
        b = theirs.InferenceSession(_identity(kind), providers=["CPUExecutionProvider"]).run(None, {"x": value})[0]
        a = ours.InferenceSession(_identity(kind)).run(None, {"x": value})[0]
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    scalar = ours.InferenceSession(_identity(FLOAT, []))
    for value in (np.float32(3), np.array(3, np.float32), 3.0):
        assert scalar.run(None, {"x": value})[0] == 3
    text = np.array(["ä", "b"], object)
    found = ours.InferenceSession(_identity(STRING)).run(None, {"x": text})[0]
    assert found.dtype == object and found.tolist() == ["ä", "b"]


def test_strings_are_checked_as_other_inputs_are() -> None:
    nodes = [helper.make_node("StringConcat", ["a", "b"], ["y"])]
    inputs = [_value(name, TensorProto.STRING, ["n"]) for name in "ab"]
    graph = helper.make_graph(nodes, "join", inputs, [_value("y", TensorProto.STRING, ["n"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    mine, other = ours.InferenceSession(model), theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    for wrong in (np.array("x"), np.array([["x"]]), np.array([1])):
        feed = {"a": wrong, "b": np.array(["1"])}
        with pytest.raises(theirs.capi.onnxruntime_pybind11_state.InvalidArgument) as expected:
            other.run(None, feed)
        with pytest.raises(ours.InvalidArgument) as raised:
            mine.run(None, feed)
        assert str(raised.value)[:60] == str(expected.value)[:60]


def test_names_of_outputs_are_a_list(dense: bytes) -> None:
    with pytest.raises(TypeError, match=r"the text 'y'; expected a list of names"):
        ours.InferenceSession(dense).run("y", {"x": X})


def test_a_scalar_may_be_an_array_of_one_element(caplog: pytest.LogCaptureFixture) -> None:
    """As in onnxruntime, which checks no ranks of scalars; said once."""
    nodes = [
        helper.make_node("Equal", ["rate", "known"], ["is_known"]),
        helper.make_node("Where", ["is_known", "x", "z"], ["y"]),
    ]
    inputs = [_value("x", FLOAT, [2]), _value("rate", INT64, [])]
    model = _model(nodes, inputs, [_value("y", FLOAT, [2])], {"known": np.array(16000), "z": np.zeros(2, np.float32)})
    mine, other = ours.InferenceSession(model), theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    warn_once.cache_clear()
    with caplog.at_level("WARNING", "relayc.onnxruntime"):
        for rate in (np.array(16000), np.array([16000]), np.array([[8000]]), [16000]):
            feed = {"x": np.ones(2, np.float32), "rate": rate}
            np.testing.assert_array_equal(mine.run(None, feed)[0], other.run(None, feed)[0].reshape(2))
    assert len([record for record in caplog.records if "'rate' is a scalar" in record.message]) == 1
    with pytest.raises(ours.InvalidArgument):
        mine.run(None, {"x": np.ones(2, np.float32), "rate": np.array([1, 2])})


def test_results_are_the_callers(dense: bytes) -> None:
    session = ours.InferenceSession(dense)
    first = session.run(["y"], {"x": X})[0]
    before = first.copy()
    session.run(["y"], {"x": -X})
    np.testing.assert_array_equal(first, before)
    first[:] = 0
    np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], before)


@pytest.mark.parametrize("rows", [1 << 9, "n"])
def test_large_results_are_not_copied_and_keep_their_values(rows: int | str) -> None:
    values = [_value(name, FLOAT, [rows, 128]) for name in "xy"]
    session = ours.InferenceSession(_model([helper.make_node("Neg", ["x"], ["y"])], values[:1], values[1:]))
    inputs = [np.full((1 << 9, 128), number, np.float32) for number in range(4)]
    results = [session.run(None, {"x": x})[0] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(result, -x)
    results[0][:] = 7  # it is the caller's
    np.testing.assert_array_equal(session.run(None, {"x": inputs[1]})[0], results[1])
    assert (results[0] == 7).all() and not results[0].flags.owndata
    first, second = session.run(["y", "y"], {"x": inputs[2]})
    first[:] = 7
    np.testing.assert_array_equal(second, -inputs[2])
    del result, results, first, second
    places = {session.run(None, {"x": x})[0].ctypes.data for x in inputs * 5}
    assert len(places) <= 2, "memory that no caller holds is used again"


def test_arrays_are_read_in_place_and_others_are_checked(dense: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ours.InferenceSession(dense)
    first, expected = session.run(None, {"x": X}), np.maximum(X @ WEIGHT, 0)
    monkeypatch.setattr(session, "_accepted", None)  # would be called for what can't be read in place
    for batch in (5, 2, 0, 5):
        frozen = X[:batch].copy()
        frozen.flags.writeable = False
        y, c = session.run(None, {"x": frozen})
        np.testing.assert_allclose(y, expected[:batch], rtol=1e-5)
        assert c.tobytes() == first[1][:batch].tobytes()
        assert session.run(["c"], {"x": frozen})[0].tobytes() == c.tobytes()
    monkeypatch.undo()
    for other in (X.tolist(), np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2]):
        np.testing.assert_allclose(session.run(["y"], {"x": other})[0], expected, rtol=1e-5)
    with pytest.raises(ours.InvalidArgument, match="Unexpected input data type"):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(ours.InvalidArgument, match="Invalid output name"):
        session.run(["z"], {"x": X})


def test_many_threads_share_a_session(dense: bytes) -> None:
    session = ours.InferenceSession(dense)
    inputs = [np.random.default_rng(k).normal(size=(1 + k % 7, 4)).astype(np.float32) for k in range(40)]
    expected = [session.run(None, {"x": x})[0] for x in inputs]
    wrong: list[int] = []

    def work() -> None:
        for k, x in enumerate(inputs):
            if not np.array_equal(session.run(None, {"x": x})[0], expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    futures = [session.submit(["y"], {"x": x}) for x in inputs]
    for future, want in zip(futures, expected, strict=True):
        np.testing.assert_array_equal(future.result()[0], want)


def test_run_async_calls_back(dense: bytes) -> None:
    session, calls, done = ours.InferenceSession(dense), [], threading.Event()

    def finished(results: list[Any], data: Any, error: str) -> None:
        calls.append((len(results), data, error))
        if len(calls) == 2:
            done.set()

    session.run_async(None, {"x": X}, finished, "mine")
    session.run_async(None, {"z": X}, finished, "wrong")
    assert done.wait(30)
    assert (2, "mine", "") in calls
    assert any(data == "wrong" and "missing" in error for _, data, error in calls)


@pytest.mark.parametrize("way", ["timeout", "cancel", "terminate"])
def test_an_endless_run_is_ended(endless: bytes, way: str) -> None:
    session, x = ours.InferenceSession(endless), np.ones(2, np.float32)
    options = ours.RunOptions()
    forever = {"n": np.array(2**62), "x": x}
    if way == "timeout":
        with pytest.raises(ours.Fail, match="terminate"):
            session.run(None, forever, timeout=0.05)
    else:
        future = session.submit(None, forever, options)
        while session._executors.only()._idle:
            time.sleep(0.001)
        time.sleep(0.05)
        if way == "cancel":
            session.cancel()
        else:
            options.terminate = True
        with pytest.raises(ours.Fail, match="terminate"):
            future.result(timeout=30)
        if way == "terminate":
            with pytest.raises(ours.Fail, match="terminate"):
                session.run(None, {"n": np.array(3), "x": x}, options)
    np.testing.assert_array_equal(session.run(None, {"n": np.array(3), "x": x})[0], 3 * x)


def test_io_binding(dense: bytes) -> None:
    session = ours.InferenceSession(dense)
    expected = session.run(None, {"x": X})
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    target = ours.OrtValue.ortvalue_from_shape_and_type((5, 3), np.float32)
    binding.bind_ortvalue_output("y", target)
    binding.bind_output("c")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), expected[0])
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], expected[1])
    binding.clear_binding_inputs()
    held = np.ascontiguousarray(X)
    binding.bind_input("x", "cpu", 0, np.float32, held.shape, held.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), expected[0])
    with pytest.raises(ours.InvalidArgument, match="Invalid input name"):
        binding.bind_cpu_input("z", X)
    small = session.io_binding()
    small.bind_cpu_input("x", X)
    small.bind_ortvalue_output("y", ours.OrtValue.ortvalue_from_shape_and_type((2, 3), np.float32))
    with pytest.raises(ours.InvalidArgument, match=r"bound to float32 \(2, 3\); expected float32 \(5, 3\)"):
        session.run_with_iobinding(small)


def test_values_describe_themselves_as_onnxruntimes() -> None:
    for array in (X, np.arange(3), np.array([True]), X.astype(np.float16), np.zeros((0, 2), np.uint8)):
        a, b = ours.OrtValue.ortvalue_from_numpy(array), theirs.OrtValue.ortvalue_from_numpy(array)
        types = ("shape", "data_type", "element_type", "device_name")
        for method in (*types, "is_tensor", "has_value", "tensor_size_in_bytes"):
            assert getattr(a, method)() == getattr(b, method)(), method
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    for kind in ("cpu", "cuda"):
        a, b = ours.OrtDevice.make(kind, 1), theirs.OrtDevice.make(kind, 1)
        assert (a.device_type(), a.device_id()) == (b.device_type(), b.device_id())
    with pytest.raises(ours.NotImplemented, match="expected 'cpu' or 'cuda'"):
        ours.OrtDevice.make("abacus", 0)


def test_options(dense: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 3
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.execution_mode = ours.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_free_dimension_override_by_name("batch", 5)
    options.add_free_dimension_override_by_name("frames", 7)  # of another model
    session = ours.InferenceSession(dense, options, ["CPUExecutionProvider"])
    assert session.run(["y"], {"x": X})[0].shape == (5, 3)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1  # type: ignore[attr-defined]  # a misspelt option
    with pytest.raises(ours.NotImplemented, match="denormal"):
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with pytest.raises(ours.NotImplemented, match="custom operators"):
        options.register_custom_ops_library("x.so")
    options.optimized_model_filepath = str(tmp_path / "out.onnx")
    with pytest.raises(ours.NotImplemented, match="optimized_model_filepath"):
        ours.InferenceSession(dense, options)
    with pytest.warns(UserWarning, match="'TensorrtExecutionProvider' is not in available"):
        session = ours.InferenceSession(dense, providers=[("TensorrtExecutionProvider", {}), "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_providers_of_options(dense: bytes) -> None:
    options = ours.SessionOptions()
    assert not options.has_providers()
    options.add_provider("CPUExecutionProvider", {"device_id": "0"})
    assert options.has_providers()
    assert ours.InferenceSession(dense, options).get_provider_options() == {"CPUExecutionProvider": {"device_id": "0"}}
    session = ours.InferenceSession(dense, options, ["CPUExecutionProvider"])
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}


def test_wrong_options_say_what_is_expected(dense: bytes) -> None:
    for provider in (("CPUExecutionProvider", 5), 5, ("CPUExecutionProvider",)):
        with pytest.raises(ours.InvalidArgument, match=r"providers\[0\] is .*; expected a name, or a name and its"):
            ours.InferenceSession(dense, providers=[provider])
    assert ours.InferenceSession(dense, providers="CPUExecutionProvider").get_providers() == ["CPUExecutionProvider"]
    for name, value in (("intra_op_num_threads", "two"), ("graph_optimization_level", "all")):
        options = ours.SessionOptions()
        setattr(options, name, value)
        with pytest.raises(ours.InvalidArgument, match=f"{name} is '{value}'; expected an integer"):
            ours.InferenceSession(dense, options)
    with pytest.raises(ours.InvalidArgument, match=r"the dimension 'batch' is 2\.5; expected an integer"):
        ours.SessionOptions().add_free_dimension_override_by_name("batch", 2.5)
    with pytest.raises(ours.InvalidArgument, match=r"a tensor of shape \(-1, 2\); expected sizes of 0 or more"):
        ours.OrtValue.ortvalue_from_shape_and_type([-1, 2], np.float32)


def test_fewer_than_one_thread_are_all(dense: bytes) -> None:
    options = ours.SessionOptions()
    options.intra_op_num_threads = -1
    assert len(ours.InferenceSession(dense, options).run(None, {"x": X})) == 2


def test_values_are_numpy_arrays_to_numpy() -> None:
    value = ours.OrtValue.ortvalue_from_numpy(X)
    np.testing.assert_array_equal(np.asarray(value), X)
    assert np.asarray(value).dtype == X.dtype and np.asarray(value, np.float64).dtype == np.float64


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_of_any_rank_are_concatenated(axis: int) -> None:
    """The model does not declare the rank; elements without the axis are an error."""
    nodes = [helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=axis, name="join")]
    listed = [helper.make_tensor_sequence_value_info("s", FLOAT, None)]
    session = ours.InferenceSession(_model(nodes, listed, [_value("y", FLOAT, None)], {}))
    for x in (X, X[:, :, None], X[0] if axis != 1 else X):
        np.testing.assert_array_equal(session.run(None, {"s": [x, x]})[0], np.concatenate([x, x], axis))
    with pytest.raises(ours.InvalidArgument, match=r"elements of shapes \(\); expected"):
        session.run(None, {"s": [1.0, 2.0]})


def test_sessions_are_pickled(dense: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(dense)
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("batch", 5)
    for source in (path, dense, compile_onnx(dense, shape={"batch": 5})):
        session = ours.InferenceSession(source, options)
        again = pickle.loads(pickle.dumps(session))
        assert again.get_session_options().intra_op_num_threads == 1
        assert again.get_inputs() == session.get_inputs() and again.get_inputs()[0].shape == [5, 4]
        np.testing.assert_array_equal(again.run(["y"], {"x": X})[0], session.run(["y"], {"x": X})[0])


def _optional(name: str) -> Any:
    return helper.make_value_info(name, helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None)))


def _maps(name: str) -> Any:
    of = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, None))
    return helper.make_value_info(name, helper.make_sequence_type_proto(of))


TYPE = helper.make_tensor_type_proto(FLOAT, [2])
SPLIT = helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0)
PARTS = helper.make_tensor_sequence_value_info("parts", FLOAT, None)


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "feeds"),
    [
        ([SPLIT], [_value("x", FLOAT, [3, 2])], [PARTS], [{"x": X[:3, :2]}]),
        ([SPLIT, helper.make_node("Relu", ["x"], ["y"])], [_value("x", FLOAT, ["n", 2])],
         [PARTS, _value("y", FLOAT, ["n", 2])], [{"x": X[:3, :2]}, {"x": X[:0, :2]}]),
        ([helper.make_node("SequenceLength", ["parts"], ["n"]), helper.make_node("Relu", ["x"], ["y"])],
         [PARTS, _value("x", FLOAT, [4])], [_value("n", INT64, []), _value("y", FLOAT, [4])],
         [{"parts": [X], "x": X[0]}, {"parts": [], "x": X[0]}]),
        ([helper.make_node("OptionalHasElement", ["mask"], ["there"]), helper.make_node("Relu", ["x"], ["y"])],
         [_optional("mask"), _value("x", FLOAT, [4])], [_value("there", BOOL, []), _value("y", FLOAT, [4])],
         [{"x": X[0]}, {"x": X[0]}, {"mask": None, "x": X[0]}, {"mask": X, "x": X[0]}, {"x": X[0]}]),
        ([helper.make_node("Optional", [], ["none"], type=TYPE), helper.make_node("Optional", ["x"], ["some"])],
         [_value("x", FLOAT, [4])], [_optional("none"), _optional("some")], [{"x": X[0]}]),
        ([helper.make_node("If", ["go"], ["y"], then_branch=helper.make_graph(
            [helper.make_node("Optional", ["x"], ["a"])], "then", [], [_optional("a")]),
            else_branch=helper.make_graph(
                [helper.make_node("Optional", [], ["b"], type=TYPE)], "else", [], [_optional("b")]))],
         [_value("go", BOOL, []), _value("x", FLOAT, [2])], [_optional("y")],
         [{"go": np.array(True), "x": X[0, :2]}, {"go": np.array(False), "x": X[0, :2]}]),
        ([helper.make_node("ZipMap", ["x"], ["rows"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])],
         [_value("x", FLOAT, ["n", 2])], [_maps("rows")], [{"x": X[:, :2]}]),
    ],
)  # fmt: skip
def test_values_that_are_no_tensors(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], feeds: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Sequences, optional values and maps have onnxruntime's places, names, types and values; saved models too."""
    graph = helper.make_graph(nodes, "values", inputs, outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    path = tmp_path / "model.relayc"
    compile_onnx(model).save(path)
    other = theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    for mine in (ours.InferenceSession(model), ours.InferenceSession(path)):
        for described in ("get_inputs", "get_outputs"):
            found, wanted = [[(v.name, v.type) for v in getattr(s, described)()] for s in (mine, other)]
            assert found == wanted
        for feed in feeds:
            expected = other.run(None, feed)
            assert _plain(mine.run(None, feed)) == _plain(expected)
            first = other.get_outputs()[0].name
            assert _plain(mine.run([first], feed)) == _plain(expected[:1])


def _plain(value: Any) -> Any:
    """Arrays as lists with their shapes and types, for comparison."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def test_a_trace_of_runs_and_nodes(dense: bytes, tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace_")
    session = ours.InferenceSession(dense, options)
    for _ in range(3):
        session.run(None, {"x": X})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert sum(event["name"] == "model_run" for event in events) == 3
    nodes = [event for event in events if event["cat"] == "Node"]
    assert nodes and all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert ours.InferenceSession(dense).end_profiling() == ""


def test_sizes_of_one_name_may_differ(caplog: pytest.LogCaptureFixture) -> None:
    """onnxruntime reports them and goes on; so does a session, with the model compiled once more."""
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    model = _model(nodes, [_value("a", FLOAT, ["n", 2]), _value("b", FLOAT, ["n", 2])], [_value("y", FLOAT, ["n", 2])])
    mine, other = ours.InferenceSession(model), theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    sizes = [(3, 3), (1, 3), (3, 1), (4, 4), (1, 2)]
    with caplog.at_level("WARNING", "relayc.onnxruntime"):
        for first, second in sizes:
            feed = {"a": np.full((first, 2), 2, np.float32), "b": np.full((second, 2), 3, np.float32)}
            np.testing.assert_array_equal(mine.run(None, feed)[0], other.run(None, feed)[0])
    assert [record.message for record in caplog.records if "'n'" in record.message] == [
        "inputs differ in 'n', a size that the model has once: it is compiled for both"
    ]
    with pytest.raises(ours.InvalidArgument):
        mine.run(None, {"a": np.zeros((2, 2), np.float32), "b": np.zeros((3, 2), np.float32)})


def _with_defaults(ir_version: int, declared: Any) -> bytes:
    """y = x w + b, where w and b are inputs with values in the model."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    inputs = [_value("x", FLOAT, ["n", 4]), _value("w", FLOAT, declared), _value("b", FLOAT, [1])]
    weights = {"w": WEIGHT, "b": np.ones(1, np.float32)}
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "defaults", inputs, [_value("y", FLOAT, ["n", "m"])], tensors)
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opset, ir_version=ir_version).SerializeToString()


@pytest.mark.parametrize("declared", [[4, 3], [4, "k"], None])
@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_initializers_that_are_inputs_may_be_overridden(
    declared: Any, ir_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Since version 4 of the format; onnxruntime's results, descriptions and errors."""
    model = _with_defaults(ir_version, declared)
    mine, other = ours.InferenceSession(model), theirs.InferenceSession(model, providers=["CPUExecutionProvider"])
    described = [[(v.name, v.type, v.shape) for v in s.get_overridable_initializers()] for s in (mine, other)]
    assert described[0] == described[1]
    assert [v.name for v in mine.get_inputs()] == ["x"]
    feeds: list[dict[str, Any]] = [
        {}, {"w": -WEIGHT}, {"w": -WEIGHT[:, :1]}, {"b": np.full(1, 7, np.float32)}, {"w": WEIGHT.astype(np.float64)},
        {"w": -WEIGHT, "b": np.full(1, 7, np.float32)}, {"w": WEIGHT}, {},
        {"w": None},
    ]  # fmt: skip
    with caplog.at_level("WARNING", "relayc.onnxruntime"):
        for feed in feeds:
            try:
                (wanted,) = other.run(None, {"x": X, **feed})
            except theirs.capi.onnxruntime_pybind11_state.InvalidArgument as error:
                with pytest.raises(ours.InvalidArgument) as raised:
                    mine.run(None, {"x": X, **feed})
                assert str(raised.value).startswith(str(error)[:60])
            else:
                np.testing.assert_allclose(mine.run(None, {"x": X, **feed})[0], wanted, rtol=1e-5, atol=1e-6)
    logged = [record.message for record in caplog.records if "overridden" in record.message]
    assert len(logged) == len(set(logged)) == (3 if ir_version >= 4 else 0)


def test_a_compiled_model_has_the_values_of_its_initializers(tmp_path: Path) -> None:
    path = tmp_path / "model.relayc"
    compile_onnx(_with_defaults(8, [4, 3])).save(path)
    session = ours.InferenceSession(path)
    assert session.get_overridable_initializers() == []
    with pytest.raises(ours.InvalidArgument, match="Invalid input name: w"):
        session.run(None, {"x": X, "w": WEIGHT})


def test_runs_of_a_compiled_model_do_not_read_its_file(tmp_path: Path) -> None:
    """Nor are its sizes made to differ: the one version that it is checks them."""
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    model = _model(nodes, [_value("a", FLOAT, ["n", 2]), _value("b", FLOAT, ["n", 2])], [_value("y", FLOAT, ["n", 2])])
    path = tmp_path / "model.relayc"
    compile_onnx(model).save(path)
    session = ours.InferenceSession(path)
    path.unlink()
    ones = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(session.run(None, {"a": ones, "b": ones})[0], ones + 1)
    with pytest.raises(ours.InvalidArgument):
        session.run(None, {"a": ones, "b": ones[:1]})


def test_a_seed_of_the_process_is_onnxruntimes() -> None:
    drawn = _model([helper.make_node("RandomNormal", [], ["y"], shape=[8])], [], [_value("y", FLOAT, [8])])

    def draw() -> np.ndarray:
        return ours.InferenceSession(drawn).run(None, {})[0]

    try:
        ours.set_seed(7)
        np.testing.assert_array_equal(draw(), draw())
    finally:
        set_random_seed(None)
    assert not np.array_equal(draw(), draw())

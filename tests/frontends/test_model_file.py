"""Reading model files with the weights apart agrees with parsing the whole file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from relayc.backend.runtime import ArgumentError
from relayc.frontends.onnx import OnnxImportError, from_onnx, model_file
from relayc.frontends.onnx.model_file import LARGE, read_model
from relayc.frontends.onnx.names import with_names_as_text
from relayc.relay.analysis import evaluation_order
from relayc.relay.expr import Constant


def test_a_wrong_setting_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(make({"w": np.zeros((LARGE, 64), np.float32)}).SerializeToString())
    monkeypatch.setenv("RELAYC_NUM_THREADS", "many")
    with pytest.raises(ArgumentError, match=r"^environment variable RELAYC_NUM_THREADS is 'many'"):
        from_onnx(path)


def make(weights: dict[str, np.ndarray], raw: bool = True) -> ModelProto:
    """y = the weights and x, concatenated."""
    tensors = [
        numpy_helper.from_array(w, name) if raw else helper.make_tensor(name, TensorProto.FLOAT, w.shape, w.ravel())
        for name, w in weights.items()
    ]
    node = helper.make_node("Concat", [*weights, "x"], ["y"], axis=0)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph([node], "g", [x], [y], tensors))


def weights(*rows: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {f"w{i}": generator.standard_normal((n, 64)).astype("float32") for i, n in enumerate(rows)}


def constants(given: ModelProto | Path) -> dict[str, np.ndarray]:
    """The weights of the imported model by name."""
    module, _ = from_onnx(given)
    found = [e for e in evaluation_order(module["main"].body) if isinstance(e, Constant)]
    return {e.span.name: e.data for e in found if e.span is not None}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_weights_are_those_of_the_whole_message(tmp_path: Path) -> None:
    expected = weights(64, 3, 65, 1, 20000, 900)  # large ones, small ones, one with memory of its own
    path = write(tmp_path / "model.onnx", make(expected).SerializeToString())
    proto, raw_data = read_model(path)
    assert [len(t.raw_data) for t in proto.graph.initializer] == [0, 768, 0, 256, 0, 0]
    assert raw_data.keys() == {"w0", "w2", "w4", "w5"}
    assert all(array.ctypes.data % 64 == 0 for array in raw_data.values())
    found = constants(path)
    assert found.keys() == expected.keys()
    for name, w in expected.items():
        np.testing.assert_array_equal(found[name], w)
    with pytest.raises(ValueError, match="read-only"):
        found["w0"][0] = 0


def test_values_that_are_no_raw_data_stay_in_the_message(tmp_path: Path) -> None:
    expected = weights(300)
    path = write(tmp_path / "model.onnx", make(expected, raw=False).SerializeToString())
    assert read_model(path)[1] == {}
    np.testing.assert_array_equal(constants(path)["w0"], expected["w0"])


def test_data_of_the_wrong_size_is_rejected(tmp_path: Path) -> None:
    model = make(weights(300))
    model.graph.initializer[0].dims[0] = 301
    path = write(tmp_path / "model.onnx", model.SerializeToString())
    with pytest.raises(OnnxImportError, match="76800 bytes of data for shape"):
        from_onnx(path)


def test_a_subgraph_does_not_get_the_weights_of_the_main_graph(tmp_path: Path) -> None:
    """Both branches have an initializer w0 of their own."""
    outer = weights(300)
    model = make(outer)
    branches = []
    for value in (1.0, 2.0):
        y = helper.make_tensor_value_info("z", TensorProto.FLOAT, [300, 64])
        own = numpy_helper.from_array(np.full((300, 64), value, "float32"), "w0")
        branches.append(helper.make_graph([helper.make_node("Identity", ["w0"], ["z"])], "branch", [], [y], [own]))
    condition = numpy_helper.from_array(np.array(False), "condition")
    model.graph.initializer.append(condition)
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["z"], then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [300, 64]))
    path = write(tmp_path / "model.onnx", model.SerializeToString())
    module, _ = from_onnx(path)
    found = [e.data for e in evaluation_order(module["main"].body) if isinstance(e, Constant) and e.data.size == 19200]
    assert any(np.array_equal(data, outer["w0"]) for data in found)
    assert any(np.all(data == 2.0) for data in found)


def encoded(number: int, payload: bytes) -> bytes:
    return model_file._prefix(number, len(payload)) + payload


@pytest.mark.parametrize("case", ["two graphs", "data twice", "equal names", "a group"])
def test_unusual_layouts_are_parsed_whole(tmp_path: Path, case: str) -> None:
    model = make(weights(300))
    data = model.SerializeToString()
    if case == "two graphs":  # a message that comes twice is one, merged
        data += encoded(7, encoded(10, b"a text"))
    elif case == "data twice":  # the last one counts
        tensor = model.graph.initializer[0].SerializeToString() + encoded(9, bytes(300 * 64 * 4))
        rest = ModelProto()
        rest.CopyFrom(model)
        del rest.graph.initializer[:]
        data = rest.SerializeToString() + encoded(7, encoded(5, tensor))
    elif case == "equal names":
        model.graph.initializer.append(model.graph.initializer[0])
        data = model.SerializeToString()
    else:  # groups are no part of ONNX; the parser skips them as fields that it does not know
        data += bytes([200 << 3 & 0x7F | 3 | 0x80, 200 >> 4, 200 << 3 & 0x7F | 4 | 0x80, 200 >> 4])
    proto, raw_data = read_model(write(tmp_path / "model.onnx", data))
    assert raw_data == {}
    assert proto == ModelProto.FromString(data)


_WHOLE = make(weights(70, 1)).SerializeToString()
_HEADERS = [*range(120), *range(len(_WHOLE) - 420, len(_WHOLE))]
"""Byte positions of sizes, tags and names, except those of the second tensor."""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(_HEADERS), st.integers(0, 255), min_size=1, max_size=3), st.integers(0, 3))
def test_damaged_files_mean_what_the_parser_says(tmp_path: Path, changes: dict[int, int], cut: int) -> None:
    data = bytearray(_WHOLE)
    for place, value in changes.items():
        data[place] = value
    del data[len(data) - cut :]
    path = write(tmp_path / "model.onnx", bytes(data))
    results: list[object] = []
    for given_as in (bytes(data), path):
        try:
            found = {t.name: t for t in from_onnx(given_as)[0]["main"].params}
            results.append(sorted(found))
        except OnnxImportError as error:
            results.append(type(error))
    assert results[0] == results[1]
    try:
        whole = ModelProto.FromString(bytes(data))
    except DecodeError:
        with pytest.raises(DecodeError):
            read_model(path)
        return
    proto, raw_data = read_model(path)
    for tensor in proto.graph.initializer:
        if tensor.name in raw_data:
            assert tensor.raw_data == b""
            tensor.raw_data = raw_data[tensor.name].tobytes()
    assert proto == with_names_as_text(whole)


def test_a_file_that_ends_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "model.onnx", make(weights(300)).SerializeToString())
    monkeypatch.setattr(model_file.os, "preadv", lambda *_: 0)
    with pytest.raises(OnnxImportError, match="became shorter"):
        from_onnx(path)


def test_small_files_are_parsed_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", make(weights(2)).SerializeToString())
    assert path.stat().st_size < LARGE
    assert read_model(path)[1] == {}

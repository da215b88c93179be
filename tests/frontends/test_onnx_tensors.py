"""TensorProto decoding: every element type in every storage form, and sizes that do not fit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relayc.frontends.onnx import OnnxImportError
from relayc.frontends.onnx.model import load
from relayc.frontends.onnx.tensors import sparse_to_numpy, to_numpy

NUMERIC = [
    value.number
    for value in TensorProto.DataType.DESCRIPTOR.values
    if value.name not in ("UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128", "FLOAT6E2M3", "FLOAT6E3M2")
]
NAMES = {value.number: value.name for value in TensorProto.DataType.DESCRIPTOR.values}


@pytest.mark.parametrize("raw", [False, True], ids=["field", "raw"])
@pytest.mark.parametrize("elem_type", NUMERIC, ids=[NAMES[t] for t in NUMERIC])
def test_every_element_type_agrees_with_the_onnx_package(elem_type: int, raw: bool) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    values = np.array([[0, 1, 1], [2, -1, 3], [1, 0, 1]], np.float32)
    if NAMES[elem_type].startswith("UINT") or elem_type == TensorProto.BOOL:
        values = np.abs(values)
    if elem_type in (getattr(TensorProto, "INT2", -1), getattr(TensorProto, "UINT2", -1)):
        values = np.clip(values, -2, 1)
    array = values.astype(dtype)
    if raw:
        tensor = numpy_helper.from_array(array, "t")
    else:
        tensor = helper.make_tensor("t", elem_type, array.shape, values.reshape(-1).tolist())
    got = to_numpy(tensor, (), "t")
    expected = numpy_helper.to_array(tensor)
    assert got.dtype == expected.dtype and got.shape == (3, 3)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_shapes_of_rank_zero_and_empty_ones(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    assert to_numpy(numpy_helper.from_array(array), (), "t").shape == shape


def test_sizes_that_disagree_are_errors() -> None:
    tensor = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    tensor.raw_data = tensor.raw_data[:-1]
    with pytest.raises(OnnxImportError, match=r"23 bytes of data for shape \[2, 3\] of float32(.|\n)*24 bytes"):
        to_numpy(tensor, (), "initializer 'w'")
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    del tensor.float_data[3]
    with pytest.raises(OnnxImportError, match="3 values in float_data"):
        to_numpy(tensor, (), "w")


@pytest.mark.parametrize("dims", [[-1], [2**40], [2**31, 2], [1] * 65])
def test_absurd_shapes_are_rejected_before_anything_is_allocated(dims: list[int]) -> None:
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=dims, raw_data=b"abcd")
    with pytest.raises(OnnxImportError):
        to_numpy(tensor, (), "w")


def test_strings_are_python_strings() -> None:
    tensor = helper.make_tensor("s", TensorProto.STRING, [2], [b"x", "ü".encode()])
    assert to_numpy(tensor, (), "s").tolist() == ["x", "ü"]
    tensor.string_data[1] = b"\xff"
    with pytest.raises(OnnxImportError, match="not UTF-8"):
        to_numpy(tensor, (), "s")


def test_unknown_types_are_named() -> None:
    with pytest.raises(OnnxImportError, match="element type 99"):
        to_numpy(TensorProto(data_type=99, dims=[1], raw_data=b"x"), (), "s")


def test_sparse_tensors_in_both_index_forms() -> None:
    values = numpy_helper.from_array(np.array([3.0, 5.0], np.float32), "v")
    linear = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5], np.int64)), [2, 3])
    pairs = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64)), [2, 3])
    expected = np.array([[0, 3, 0], [0, 0, 5]], np.float32)
    np.testing.assert_array_equal(sparse_to_numpy(linear, (), "s"), expected)
    np.testing.assert_array_equal(sparse_to_numpy(pairs, (), "s"), expected)
    outside = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 6], np.int64)), [2, 3])
    with pytest.raises(OnnxImportError, match="outside"):
        sparse_to_numpy(outside, (), "s")


# external data ----------------------------------------------------------------------------------------------------


def external(location: str, **entries: str) -> TensorProto:
    """A float32[4] whose bytes are in `location`."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "w.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    return inside


def test_external_data_is_read_at_its_offset(folder: Path) -> None:
    got = to_numpy(external("w.bin", offset="8", length="16"), (folder,), "w")
    np.testing.assert_array_equal(got, np.arange(2, 6, dtype=np.float32))
    np.testing.assert_array_equal(to_numpy(external("./w.bin"), (folder,), "w"), np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret.bin", {}, "leads out of the model's folder"),
        ("link.bin", {}, "leads out of the model's folder"),
        ("/etc/passwd", {}, "expected: a relative path"),
        ("", {}, "expected: a relative path"),
        ("nothere.bin", {}, "is not there"),
        (".", {}, "is not there"),
        ("long" * 2000, {}, "is not there"),
        ("w.bin", {"offset": "12"}, "which has 24 bytes"),
        ("w.bin", {"offset": "-4"}, "expected: a non-negative integer"),
        ("w.bin", {"offset": "9" * 30}, "expected: a non-negative integer"),
        ("w.bin", {"length": "8"}, "expected: 16 bytes"),
    ],
)
def test_external_data_that_is_rejected(folder: Path, location: str, entries: dict[str, str], message: str) -> None:
    with pytest.raises(OnnxImportError, match=message):
        to_numpy(external(location, **entries), (folder,), "initializer 'w'")


def test_external_data_without_a_folder_says_what_to_do() -> None:
    with pytest.raises(OnnxImportError, match=r"to do: pass the path of the \.onnx file"):
        to_numpy(external("w.bin"), (), "w")


def test_a_model_saved_with_external_data_is_read_back(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.random.default_rng(0).random((8, 8), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in ("x", "y")]
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:], [weight]))
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    loaded = load(tmp_path / "m.onnx")
    got = to_numpy(loaded.graph.initializer[0], loaded.folders, "w")
    np.testing.assert_array_equal(got, numpy_helper.to_array(weight))


def in_a_cache(tmp_path: Path, data: Path) -> Path:
    """A model laid out as Hugging Face's cache does, with its data as a link to `data`, for (2, 4) of float32."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "x" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    weight = numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(2, 4), "w")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in ("x", "y")]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:], [weight]))
    onnx.save_model(model, blobs / "0a", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    data.parent.mkdir(exist_ok=True)
    (blobs / "model.onnx_data").rename(data)
    (snapshot / "model.onnx").symlink_to("../../../blobs/0a")
    (snapshot / "model.onnx_data").symlink_to(os.path.relpath(data, snapshot))
    return snapshot / "model.onnx"


def test_links_into_the_folder_that_the_model_itself_is_a_link_into(tmp_path: Path) -> None:
    loaded = load(in_a_cache(tmp_path, tmp_path / "blobs" / "0b"))
    got = to_numpy(loaded.graph.initializer[0], loaded.folders, "w")
    np.testing.assert_array_equal(got, np.arange(8, dtype=np.float32).reshape(2, 4))


@pytest.mark.parametrize("folder", ["elsewhere", "blobs2", "snapshots"])
def test_links_that_lead_anywhere_else_are_rejected(tmp_path: Path, folder: str) -> None:
    loaded = load(in_a_cache(tmp_path, tmp_path / folder / "0b"))
    with pytest.raises(OnnxImportError, match="leads out of the model's folder"):
        to_numpy(loaded.graph.initializer[0], loaded.folders, "w")


def test_a_location_may_not_climb_into_the_folder_of_the_links_target(tmp_path: Path) -> None:
    folders = load(in_a_cache(tmp_path, tmp_path / "blobs" / "0b")).folders
    for location in ("../../../blobs/0b", "../../x/../../blobs/0b", str(tmp_path / "blobs" / "0b")):
        with pytest.raises(OnnxImportError, match="external data location"):
            to_numpy(external(location), folders, "w")

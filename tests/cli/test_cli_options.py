"""Parsing and validation of command-line options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relayc.cli.options import UsageError, fill_inputs, parse_shapes, read_inputs, write_archive


def test_shapes() -> None:
    assert parse_shapes(["x:1,3,224,224", "batch=4", "a:b:2", "s:"]) == {
        "x": (1, 3, 224, 224),
        "batch": 4,
        "a:b": (2,),
        "s": (),
    }


@pytest.mark.parametrize("text", ["x", "x:1,2a", "x:-1", ":1,2", "n=", "n=two"])
def test_shapes_that_can_t_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="expected input:1,3,224,224 or dimension=1"):
        parse_shapes([text])


def test_input_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.ones(3), y=np.zeros(2))
    np.save(tmp_path / "one.npy", np.arange(4))
    inputs = read_inputs([str(tmp_path / "all.npz"), f"y={tmp_path / 'one.npy'}"])
    assert inputs["x"].tolist() == [1, 1, 1] and inputs["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="needs its input's name"):
        read_inputs([str(tmp_path / "one.npy")])
    with pytest.raises(UsageError, match="there is no such file"):
        read_inputs([str(tmp_path / "none.npz")])
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04junk")
    with pytest.raises(UsageError, match="can't be read"):
        read_inputs([str(tmp_path / "bad.npz")])


def test_an_archive_takes_any_name(tmp_path: Path) -> None:
    arrays = {"gpu_0/softmax_1": np.eye(2, dtype=np.float32), "file": np.array(3), "allow_pickle": np.zeros((0, 2))}
    write_archive(tmp_path / "out.npz", arrays)
    back = read_inputs([str(tmp_path / "out.npz")])
    assert list(back) == list(arrays) and all(np.array_equal(back[n], arrays[n]) for n in arrays)


def test_pickled_arrays_are_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="can't be read"):
        read_inputs([f"x={tmp_path / 'evil.npy'}"])


def test_filling() -> None:
    wanted = {"x": ((2, 3), "float32"), "ids": ((5,), "int64"), "mask": ((4,), "bool")}
    first = fill_inputs(wanted, {}, "random", 0)
    again = fill_inputs(wanted, {}, "random", 0)
    assert {n: (v.shape, v.dtype.name) for n, v in first.items()} == wanted
    assert all(np.array_equal(first[n], again[n]) for n in wanted)
    assert first["ids"].min() >= 0
    passed = np.full((2, 3), 7, np.float32)
    mixed = fill_inputs(wanted, {"x": passed}, "zeros", 0)
    assert mixed["x"] is passed and not mixed["ids"].any()
    with pytest.raises(UsageError, match="no value for ids, mask; give --input or --fill random"):
        fill_inputs(wanted, {"x": passed}, None, 0)
    with pytest.raises(UsageError, match="no input 'z'; its inputs are: x float32"):
        fill_inputs(wanted, {"z": passed}, "ones", 0)
    with pytest.raises(UsageError, match="expected random, ones or zeros"):
        fill_inputs(wanted, {}, "sevens", 0)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x93NUMPY", b"PK\x03\x04 and no archive"])
def test_other_files_are_not_taken_for_pickles(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.npz can't be read as \.npy or \.npz") as caught:
        read_inputs([str(tmp_path / "x.npz")])
    assert "pickle" not in str(caught.value)

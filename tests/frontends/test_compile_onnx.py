"""`compile_onnx`: one call, and a cache of compiled models by which a program starts without the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import relayc
from relayc.backend.runtime import device, graph_executor
from relayc.backend.runtime.artifact import CompiledModel
from relayc.frontends.model_cache import model_entry
from relayc.frontends.onnx.registry import _table, convert_with
from relayc.te.errors import CompileError
from relayc.te.ir import PassContext

WEIGHTS = np.arange(6, dtype=np.float32)


def model(weights: np.ndarray = WEIGHTS, operator: str = "Add") -> ModelProto:
    node = helper.make_node(operator, ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in "xy")
    graph = helper.make_graph([node], "sum", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model whose weights are in a file of their own, with a cache beside it."""
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path / "cache"))
    save(tmp_path, WEIGHTS)
    return tmp_path


def save(folder: Path, weights: np.ndarray) -> None:
    onnx.save(model(weights), folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)


def result(compiled: CompiledModel) -> list[float]:
    executor = graph_executor.GraphModule(compiled["default"](device("cpu", 0)))
    return executor(np.ones((1, 6), np.float32))[0].numpy().reshape(-1).tolist()


def is_cached(compiled: CompiledModel) -> bool:
    return compiled.build_report is None


def test_a_file_removed_after_it_was_compiled_is_not_kept(folder: Path):
    entry = model_entry(folder / "m.onnx", "llvm", None, 3, None, "m")
    assert entry is not None
    compiled = relayc.compile_onnx(model())
    (folder / "m.onnx").unlink()
    entry._store(compiled, ["m.data"])  # what a thread does
    save(folder, WEIGHTS)
    assert entry.find() is None


@pytest.mark.parametrize("form", [lambda m: m, lambda m: m.SerializeToString()], ids=["message", "bytes"])
def test_the_second_compilation_is_the_first_one_s_artifact(folder: Path, form: Callable[[ModelProto], Any]):
    first, second = (relayc.compile_onnx(form(model())) for _ in range(2))
    assert not is_cached(first) and is_cached(second)
    assert result(first) == result(second) == [1, 2, 3, 4, 5, 6]
    assert not is_cached(relayc.compile_onnx(form(model(operator="Mul"))))


def test_all_that_was_asked_for_counts(folder: Path):
    path = folder / "m.onnx"
    for _ in range(2):
        found = relayc.compile_onnx(path)
    assert is_cached(found)
    mixed = {"relay.ToMixedPrecision.dtype": "float16"}
    others: list[dict[str, Any]] = [
        {"shape": {"n": 1}}, {"opt_level": 1}, {"mod_name": "sum"}, {"config": mixed}, {"target": "llvm -mcpu=x86-64"},
    ]  # fmt: skip
    assert not any(is_cached(relayc.compile_onnx(path, **other)) for other in others)
    with PassContext(opt_level=0):  # does not apply
        assert is_cached(relayc.compile_onnx(path))
    with pytest.raises(CompileError, match="unknown pass option"):
        relayc.compile_onnx(path, config={"relay.unknown": 1})


def test_external_data_count(folder: Path):
    path = folder / "m.onnx"
    assert result(relayc.compile_onnx(path)) == [1, 2, 3, 4, 5, 6]
    (folder / "m.data").write_bytes((2 * WEIGHTS).tobytes())
    changed = relayc.compile_onnx(path)
    assert not is_cached(changed) and result(changed) == [1, 3, 5, 7, 9, 11]
    save(folder, WEIGHTS)
    (folder / "m.data").unlink()
    with pytest.raises(CompileError, match=r"m\.data"):
        relayc.compile_onnx(path)


@pytest.mark.parametrize("damage", ["flipped", "group"])
def test_what_is_damaged_or_foreign_is_compiled_anew(folder: Path, damage: str):
    relayc.compile_onnx(model())
    largest = max((folder / "cache").glob("??/*"), key=lambda path: path.stat().st_size)
    if damage == "flipped":
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 255
        largest.write_bytes(data)
    else:
        largest.chmod(0o660)
    again = relayc.compile_onnx(model())
    assert not is_cached(again) and result(again) == [1, 2, 3, 4, 5, 6]
    assert is_cached(relayc.compile_onnx(model()))


def test_operators_of_the_program_s_own_are_converted_every_time(folder: Path):
    relayc.compile_onnx(model())
    convert_with(lambda node: node[0], "Mine", domain="test.own")
    try:
        assert not is_cached(relayc.compile_onnx(model()))
    finally:
        del _table["test.own", "Mine"]
    assert is_cached(relayc.compile_onnx(model()))


def test_a_compiled_model_starts_without_the_compiler(folder: Path):
    code = """
import sys, relayc
cached = relayc.compile_onnx(sys.argv[1]).build_report is None
print(cached, [m for m in ("relayc.te", "relayc.relay", "relayc.frontends.onnx", "onnx") if m in sys.modules])
"""
    relayc.compile_onnx(folder / "m.onnx")
    command = [sys.executable, "-c", code, str(folder / "m.onnx")]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "True []\n", done.stderr

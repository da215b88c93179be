"""A model that was compiled before is neither lowered nor compiled again, unless something that determines its code
changed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from relayc import relay, te
from relayc.backend.llvm import code_cache, compiler
from relayc.backend.runtime import device, graph_executor
from relayc.backend.source_version import source_version
from relayc.backend.target import Target
from relayc.relay.lowering import compile_kernels
from relayc.relay.op import base
from relayc.relay.op.base import OpDef, OpPattern, register_op
from relayc.relay.op.nn import conv2d, dense, relu
from relayc.relay.type import TensorType
from relayc.te.ir import IRModule, PassContext
from relayc.topi import registry


def model(seed: int = 0) -> IRModule:
    """A convolution that may be Winograd's, and a dense layer; every kernel has work."""
    random = np.random.default_rng(seed)
    x = relay.var("x", (1, 16, 24, 24))
    filters = relay.const(random.standard_normal((32, 16, 3, 3)).astype("float32"))
    weight = relay.const(random.standard_normal((10, 32 * 24 * 24)).astype("float32"))
    y = relu(conv2d(x, filters, padding=(1, 1), channels=32, kernel_size=(3, 3)))
    return IRModule({"main": relay.Function((x,), dense(relay.op.reshape(y, (1, 32 * 24 * 24)), weight))})


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """Counts what is lowered and what LLVM compiles, with a cache of its own."""
    counted: Counter[str] = Counter()
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path))
    lower, make = compile_kernels.lower, compiler.Compiler.object_code

    def counting_lower(*args: object, **kwargs: object) -> object:
        counted["lowered"] += 1
        return lower(*args, **kwargs)

    def counting_make(*args: object, **kwargs: object) -> object:
        counted["compiled"] += 1
        return make(*args, **kwargs)

    monkeypatch.setattr(compile_kernels, "lower", counting_lower)
    monkeypatch.setattr(compiler.Compiler, "object_code", counting_make)
    return counted


def test_progress_is_told_whether_or_not_kernels_are_in_the_cache(work):
    told: list[list[tuple[str, int, int]]] = []
    for _ in range(2):
        told.append([])
        library = relay.build(model(), "llvm", progress=lambda *what: told[-1].append(what))
    count = library.build_report.kernels
    assert work["lowered"] == count > 1
    assert told[0] == told[1] and [what[1:] for what in told[0]] == [(i, count) for i in range(count)]


def result(module: IRModule) -> np.ndarray:
    executor = graph_executor.GraphModule(relay.build(module, "llvm")["default"](device("cpu", 0)))
    executor.set_input("x", np.random.default_rng(1).standard_normal((1, 16, 24, 24)).astype("float32"))
    executor.run()
    return executor.get_output(0).numpy().copy()


def test_a_second_process_compiles_saves_and_runs_without_llvm(tmp_path: Path) -> None:
    """The facts about LLVM and this machine that it needs are stored with the code."""
    program = """
import sys
import numpy as np
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.source_version import source_version
x = relay.var("x", (4, 64))
y = relay.op.nn.softmax(relay.op.nn.dense(x, relay.const(np.ones((32, 64), np.float32))))
lib = relay.build(relay.Function((x,), y), "llvm")
lib.save(sys.argv[1])
executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
executor.set_input("x", np.ones((4, 64), np.float32))
executor.run()
loaded = sorted({"llvmlite.binding", "relayc.backend.llvm.codegen"} & set(sys.modules))
print(loaded, executor.get_output(0).numpy().sum())
"""
    environment = {**os.environ, "RELAYC_CACHE_DIR": str(tmp_path / "cache")}
    command, root = [sys.executable, "-c", program, str(tmp_path / "model.relayc")], Path(__file__).parents[3]
    run = partial(subprocess.run, command, capture_output=True, env=environment, cwd=root, check=True, text=True)
    assert run().stdout.split() == ["['llvmlite.binding',", "'relayc.backend.llvm.codegen']", "4.0"]
    expected = ["[]", "4.0"] if (sys.platform, platform.machine()) == ("linux", "x86_64") else None
    assert run().stdout.split() == expected or expected is None


def test_a_second_compile_lowers_and_compiles_nothing(work: Counter[str]) -> None:
    first = result(model())
    assert work["lowered"] > 0
    assert work["compiled"] > 0
    work.clear()
    np.testing.assert_array_equal(result(model()), first)
    assert not work


def test_damaged_entries_are_compiled_anew_and_mended(work: Counter[str], tmp_path: Path) -> None:
    first = result(model())
    entries = [path for path in tmp_path.glob("??/*") if path.is_file()]
    for i, path in enumerate(entries):
        data = bytearray(path.read_bytes())
        data[len(data) * (i + 1) // (len(entries) + 1)] ^= 0x10
        path.write_bytes(data[: len(data) - i % 2])
    work.clear()
    np.testing.assert_array_equal(result(model()), first)
    assert work["lowered"] > 0
    work.clear()
    np.testing.assert_array_equal(result(model()), first)
    assert not work


@pytest.mark.parametrize(
    "note", ["", "[]", "{}", '{"workspaces": [[["?", 1, 2], 3]], "in_place": [], "sizes": [], "steps": []}',
             '{"workspaces": [], "in_place": [], "sizes": [], "steps": [[1]]}',
             '{"workspaces": [], "in_place": ["x"], "sizes": [], "steps": []}'],
)  # fmt: skip
def test_kernels_with_unreadable_metadata_are_lowered_anew(
    work: Counter[str], monkeypatch: pytest.MonkeyPatch, note: str
) -> None:
    with monkeypatch.context() as patch:
        put = code_cache.CodeCache.put
        patch.setattr(code_cache.CodeCache, "put", lambda self, key, code, _: put(self, key, code, note))
        first = result(model())
    work.clear()
    np.testing.assert_array_equal(result(model()), first)
    assert work["lowered"] > 0
    work.clear()
    np.testing.assert_array_equal(result(model()), first)
    assert not work


def test_processes_share_a_cache(tmp_path: Path) -> None:
    """Started at once, they compile the same kernels concurrently; a third process uses the cache they leave."""
    program = """
import sys
import numpy as np
from relayc import relay
from relayc.backend.runtime import device, graph_executor
from relayc.backend.source_version import source_version
x = relay.var("x", (4, 64))
w = relay.const(np.arange(64 * 32, dtype=np.float32).reshape(32, 64) % 7)
y = relay.op.nn.softmax(relay.op.nn.relu(relay.op.nn.dense(x, w)))
for _ in range(2):
    lib = relay.build(relay.Function((x,), y), "llvm")
executor = graph_executor.GraphModule(lib["default"](device("cpu", 0)))
executor.set_input("x", np.ones((4, 64), np.float32))
executor.run()
print(executor.get_output(0).numpy().tobytes().hex())
"""
    environment = {**os.environ, "RELAYC_CACHE_DIR": str(tmp_path)}
    command, root = [sys.executable, "-c", program], Path(__file__).parents[3]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=root) for _ in range(2)]
    results = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0] and len(results) == 1
    entries = sorted(tmp_path.glob("??/*"))
    assert entries and not [path for path in entries if path.name.startswith(".")]
    third = subprocess.run(command, capture_output=True, env=environment, cwd=root, check=True)
    assert {third.stdout} == results and sorted(tmp_path.glob("??/*")) == entries


@pytest.mark.parametrize("obstacle", ["a file in the way", "a folder of another"])
def test_models_compile_without_a_cache_folder(
    obstacle: str, work: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cache" if obstacle == "a file in the way" else Path("/proc/relayc")
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(folder))
    np.testing.assert_array_equal(result(model()), result(model()))
    assert work["lowered"] > 0


def test_other_weights_take_the_same_code_and_give_their_own_result(work: Counter[str]) -> None:
    first = result(model())
    work.clear()
    second = result(model(seed=1))
    assert not work
    assert not np.allclose(first, second)


def test_options_and_versions_of_the_compiler_are_compiled_anew(
    work: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result(model())
    work.clear()
    with PassContext(config={"relay.winograd": "off"}):
        result(model())
    assert work["lowered"] > 0
    work.clear()
    monkeypatch.setattr(code_cache, "source_version", lambda: "another")
    assert source_version() != "another"
    result(model())
    assert work["lowered"] > 0
    work.clear()
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    result(model())
    assert work["compiled"] > 0


def test_operators_from_elsewhere_are_lowered_every_time(work: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's sources do not tell when such an operator has changed."""
    monkeypatch.setattr(base, "_registry", dict(base._registry))
    factor = 2.0

    @register_op("test.scaled", pattern=OpPattern.ELEMWISE)
    class Scaled(OpDef):
        def infer(self, x: TensorType) -> TensorType:
            return x

        def compute(self, x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *i: x(*i) * factor, name="scaled", tag="elemwise")

    x = relay.var("x", (1, 16, 24, 24))
    module = IRModule({"main": relay.Function((x,), Scaled()(x))})
    before, lowered = result(module), work["lowered"]
    factor = 3.0
    np.testing.assert_allclose(result(module) / 3, before / 2, rtol=1e-6)
    assert work["lowered"] == 2 * lowered
    again = work["compiled"]
    result(module)
    assert work["compiled"] == again, "equal code is still found"


def test_with_a_schedule_from_elsewhere_all_is_lowered(work: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_schedules", dict(registry._schedules))

    @registry.register_schedule("test.other", "cpu")
    def other(outs: list[te.Tensor], anchor: te.Operation, target: Target) -> te.Schedule:
        return te.create_schedule([out.op for out in outs])

    result(model())
    lowered = work["lowered"]
    result(model())
    assert work["lowered"] == 2 * lowered

"""Versions of a session's model for the sizes that its runs often have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

import relayc.onnxruntime as ort
from relayc import compile_onnx
from relayc.onnxruntime.frequent_sizes import FrequentSizes, compile_version_elsewhere
from relayc.runtime import ExecutorPool

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 3)).astype(np.float32)
X = RNG.normal(size=(5, 4)).astype(np.float32)


def dense(batch: int | str = "batch") -> ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", FLOAT, [batch, 4])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, [batch, 3])]
    graph = helper.make_graph(nodes, "dense", inputs, outputs, [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def options(after: str = "0", **settings: Any) -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.add_session_config_entry("relayc.specialize_after", after)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path / "cache"))


def watched(session: ort.InferenceSession) -> FrequentSizes:
    assert isinstance(session._in_place, FrequentSizes)
    return session._in_place


def wait(sizes: FrequentSizes) -> None:
    if (thread := sizes.compiling) is not None:
        thread.join()


def check(session: ort.InferenceSession, x: np.ndarray) -> None:
    np.testing.assert_allclose(session.run(["y"], {"x": x})[0], np.maximum(x @ WEIGHT, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["file", "bytes", "proto"])
def test_frequent_sizes_get_executors_of_their_own(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "relayc.onnxruntime")
    data = dense().SerializeToString()
    (path := tmp_path / "dense.onnx").write_bytes(data)
    session = ort.InferenceSession({"file": path, "bytes": data, "proto": dense()}[kind], options())
    check(session, X)
    sizes = watched(session)
    wait(sizes)
    version = sizes._versions[("x", (5, 4)),]
    assert "the model is compiled for inputs of {'x': (5, 4)}" in caplog.text
    assert version._all[0].get_input_info()[0] == {"x": (5, 4)}
    runs: list[Any] = []
    infer = version.infer_in_place
    version.infer_in_place = lambda *args: (runs.append(args), infer(*args))[1]  # type: ignore[method-assign]
    check(session, X)
    assert len(runs) == 1
    for other in (X[:3], X[:0], X.tolist(), np.asfortranarray(X)):
        check(session, np.asarray(other, np.float32))
    session.run(None, {"x": X.tolist()})
    with pytest.raises(ort.InvalidArgument, match="Unexpected input data type"):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(ort.InvalidArgument, match="Invalid output name"):
        session.run(["z"], {"x": X})
    session.cancel()


def test_a_version_that_fails_leaves_the_model_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "relayc.onnxruntime")
    (path := tmp_path / "dense.onnx").write_bytes(dense().SerializeToString())
    session = ort.InferenceSession(path, options())
    path.unlink()
    sizes = watched(session)
    check(session, X)
    wait(sizes)
    assert "have no version of their own: the compilation ended with status 1: " in caplog.text
    assert isinstance(session._in_place, ExecutorPool)
    check(session, X)


@pytest.mark.parametrize("changed", ["dense.onnx", "weights"])
def test_a_model_that_was_replaced_gets_no_version(changed: str, tmp_path: Path) -> None:
    model, path = dense(), tmp_path / "dense.onnx"
    save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    session = ort.InferenceSession(path, options())
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(2 * WEIGHT, "w"))
    if changed == "weights":
        (tmp_path / "weights").write_bytes((2 * WEIGHT).tobytes())
    else:
        save(model, path)
    sizes = watched(session)
    check(session, X)
    wait(sizes)
    assert isinstance(session._in_place, ExecutorPool)
    check(session, X)


@pytest.mark.parametrize("kind", [ModelProto, bytearray])
def test_a_model_in_memory_that_was_changed_gets_no_version(kind: type) -> None:
    model = dense()
    source: Any = model if kind is ModelProto else bytearray(model.SerializeToString())
    with_overridden = ort.InferenceSession(source)
    session = ort.InferenceSession(source, options())
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(2 * WEIGHT, "w"))
    if kind is bytearray:
        source[:] = model.SerializeToString()
        with pytest.raises(ort.Fail, match=r"the bytearray was changed after the session had read it"):
            with_overridden._version({"x": (5, 4)})
    check(session, X)
    if isinstance(session._in_place, FrequentSizes):
        wait(session._in_place)
    assert isinstance(session._in_place, ExecutorPool)
    check(session, X)


def test_a_session_of_a_model_that_was_replaced_does_not_compile_another_one(tmp_path: Path) -> None:
    model = dense()
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [4, 3]))  # an initializer with another value
    save(model, path := tmp_path / "dense.onnx")
    session = ort.InferenceSession(path)
    save(dense(), path)
    with pytest.raises(ort.Fail, match=r"changed after the session had read it, and .* make another session"):
        session.run(None, {"x": X, "w": WEIGHT})
    check(session, X)


def test_rights_and_links_of_a_file_are_none_of_the_model(tmp_path: Path) -> None:
    model = dense()
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [4, 3]))
    save(model, path := tmp_path / "dense.onnx")
    session = ort.InferenceSession(path)
    path.chmod(0o400)
    (tmp_path / "backup.onnx").hardlink_to(path)
    (y,) = session.run(None, {"x": X, "w": 2 * WEIGHT})
    np.testing.assert_allclose(y, np.maximum(X @ (2 * WEIGHT), 0), rtol=1e-5, atol=1e-6)


def test_the_other_process_says_why_it_failed() -> None:
    with pytest.raises(RuntimeError, match=r"ended with status 1: .*MatMul"):
        compile_version_elsewhere({"model": dense().SerializeToString(), "shape": {"x": (5, 6)}})


@pytest.mark.parametrize("why", ["off", "deterministic", "static", "compiled", "profiled", "no cache"])
def test_sessions_without_versions(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {
        "off": options("off"),
        "deterministic": options(use_deterministic_compute=True),
        "profiled": options(enable_profiling=True, profile_file_prefix=str(tmp_path / "p")),
    }.get(why, options())
    if why == "no cache":
        monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    model = compile_onnx(dense()) if why == "compiled" else dense(5 if why == "static" else "batch")
    session = ort.InferenceSession(model, chosen)
    check(session, X)
    assert not isinstance(session._in_place, FrequentSizes)


def test_short_runs_are_not_watched() -> None:
    session = ort.InferenceSession(dense(), ort.SessionOptions())
    assert watched(session)._limit == 20
    for _ in range(32):
        check(session, X)
    assert isinstance(session._in_place, ExecutorPool)


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf", ""])
def test_what_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(ort.InvalidArgument, match=f'is {value!r}; expected seconds, or "off"'):
        options(value)


class Pool:
    """Executors that say where they ran; their shapes are the first input's."""

    def __init__(self, name: str) -> None:
        self.name, self.cancelled = name, False

    def infer_in_place(self, inputs: Mapping[str, Any], _outputs: object = None) -> list[Any] | None:
        return [self.name] if all(isinstance(value, np.ndarray) for value in inputs.values()) else None

    def cancel(self) -> None:
        self.cancelled = True


def frequent(make: Callable[[Mapping[str, Any]], Any], seconds: float = 0) -> tuple[FrequentSizes, list[str]]:
    stopped: list[str] = []
    return FrequentSizes(Pool("all"), make, seconds, lambda: stopped.append("stopped")), stopped  # type: ignore[arg-type]


def test_there_are_four_versions_at_most() -> None:
    sizes, stopped = frequent(lambda shapes: Pool(str(shapes["x"][0])))
    inputs = [{"x": np.zeros(n)} for n in range(6)]
    for each in inputs:
        assert sizes.infer_in_place(each) == ["all"]
        wait(sizes)
    assert [sizes.infer_in_place(each) for each in inputs] == [["0"], ["1"], ["2"], ["3"], ["all"], ["all"]]
    sizes.cancel()
    assert all(version.cancelled for version in sizes._versions.values())  # type: ignore[attr-defined]
    assert not stopped


def test_a_run_that_began_before_there_was_a_version_asks_for_no_other() -> None:
    made: list[Any] = []
    sizes, _ = frequent(lambda shapes: (made.append(shapes), Pool("version"))[1])
    key = (("x", (2,)),)
    for _ in range(2):
        sizes._count(key, 1)
        wait(sizes)
    assert made == [{"x": (2,)}]


def test_sizes_are_those_of_all_inputs_by_name() -> None:
    sizes, _ = frequent(lambda shapes: Pool(str(sorted(shapes.items()))))
    sizes.infer_in_place({"x": np.zeros(2), "y": np.zeros(3)})
    wait(sizes)
    assert sizes.infer_in_place({"x": np.zeros(2), "y": np.zeros(3)}) == ["[('x', (2,)), ('y', (3,))]"]
    assert sizes.infer_in_place({"x": np.zeros(3), "y": np.zeros(2)}) == ["all"]
    wait(sizes)


def test_values_that_are_no_arrays_are_not_counted() -> None:
    sizes, _ = frequent(lambda _: Pool("version"))
    for value in ([1, 2], 3, None, type("Odd", (), {"shape": [2]})()):
        assert sizes.infer_in_place({"x": value}) is None
    assert sizes._runs == 0 and sizes.compiling is None


def test_runs_before_the_time_are_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 1000, 0.5))
    monkeypatch.setattr("relayc.onnxruntime.frequent_sizes.perf_counter", lambda: next(clock))
    sizes, stopped = frequent(lambda _: Pool("version"), seconds=20)
    for _ in range(39):
        sizes.infer_in_place({"x": np.zeros(2)})
    assert sizes.compiling is None
    sizes.infer_in_place({"x": np.zeros(2)})
    wait(sizes)
    assert sizes.infer_in_place({"x": np.zeros(2)}) == ["version"] and not stopped

"""Compiled models as functions of batches: in this process, and on Dask's and Ray's workers."""

from __future__ import annotations

import os
import pickle
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayc
from relayc import relay
from relayc.batches import mapper as mapper_module
from relayc.runtime import ArgumentError, ArtifactError
from relayc.te.ir import IRModule
from relayc.te.tir import SizeVar

ROWS = np.random.default_rng(0).standard_normal((100, 8)).astype("float32")
WEIGHT = np.random.default_rng(1).standard_normal((4, 8)).astype("float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models: `any` number of rows, `fixed` to 8, `two` inputs and outputs."""
    folder = tmp_path_factory.mktemp("models")
    for name, rows in (("any", SizeVar("n")), ("fixed", 8)):
        x = relay.var("x", (rows, 8))
        module = IRModule(
            {"main": relay.Function((x,), relay.nn.dense(x, relay.const(WEIGHT)))}, {"output_names": ["y"]}
        )
        relay.build(module).save(folder / f"{name}.relayc")
    size = SizeVar("n")
    a, b = relay.var("a", (size, 2)), relay.var("b", (size, 2))
    body = relay.Tuple((relay.op.add(a, b), relay.op.multiply(a, b)))
    relay.build(IRModule({"main": relay.Function((a, b), body)}, {"output_names": ["sum", "product"]})).save(
        folder / "two.relayc"
    )
    return folder


@pytest.mark.parametrize("name", ["any", "fixed"])
@pytest.mark.parametrize("count", [0, 1, 8, 11, 100])
def test_batches_of_any_size(folder, name, count):
    function = relayc.map_batches(folder / f"{name}.relayc")
    result = function(ROWS[:count])
    assert result.shape == (count, 4)
    np.testing.assert_allclose(result, ROWS[:count] @ WEIGHT.T, rtol=1e-5, atol=1e-5)
    assert function({"x": ROWS[:count]}).keys() == {"y"}


def test_columns_by_name(folder):
    a, b = np.ones((3, 2), "float32"), np.full((3, 2), 5, "float32")
    batch = {"left": a, "b": b, "id": np.arange(3)}
    function = relayc.map_batches(folder / "two.relayc", {"a": "left"}, {"product": "p"}, keep=["id"])
    result = function(batch)
    assert [*result] == ["id", "p"]
    np.testing.assert_array_equal(result["p"], a * b)
    assert [*relayc.map_batches(folder / "two.relayc", {"a": "left"}, ["sum"])(batch)] == ["sum"]


def test_a_process_opens_a_model_once(folder, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(mapper_module, "load_model", lambda path, **how: opened.append(path) or LOAD(path, **how))
    monkeypatch.setattr(mapper_module, "_process", mapper_module._Process())
    function = relayc.map_batches(folder / "any.relayc", num_threads=1)
    copies = [pickle.loads(pickle.dumps(function)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda copy: copy(ROWS), copies))
    assert opened == [str(folder / "any.relayc")]
    assert all((result == results[0]).all() for result in results)
    os.utime(folder / "any.relayc")
    function(ROWS)
    relayc.map_batches(folder / "any.relayc", {"x": "column"}, num_threads=1)({"column": ROWS})
    assert len(opened) == 2


LOAD = mapper_module.load_model


def test_other_processes_get_the_function(folder):
    function = relayc.map_batches(folder / "any.relayc")
    assert len(pickle.dumps(function)) < 1000
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        np.testing.assert_array_equal(pool.submit(function, ROWS).result(), function(ROWS))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"left": ROWS}, r"the batch has the columns \['left'\]; missing are \['x'\]"),
        ([1, 2], r"got a list; expected a dictionary of arrays by column, or an array \(Ray Data: batch_format"),
        (ROWS.astype("float64"), "dtype float64; expected shape"),
        (ROWS[:, :3], "expected shape"),
        (np.float32(1)[()], "got a float32"),
    ],
)
def test_wrong_batches(folder, batch, message):
    with pytest.raises(ArgumentError, match=message):
        relayc.map_batches(folder / "any.relayc")(batch)


def test_wrong_models(folder, tmp_path):
    with pytest.raises(ArgumentError, match=r"`relayc compile net.onnx` makes one"):
        relayc.map_batches("net.onnx")
    with pytest.raises(FileNotFoundError):
        relayc.map_batches(tmp_path / "none.relayc")(ROWS)
    with pytest.raises(ArtifactError, match="it is not the trusted file"):
        relayc.map_batches(folder / "any.relayc", expect_sha256="0" * 64)(ROWS)
    with pytest.raises(ArgumentError, match=r"got columns for the inputs \['z'\]"):
        relayc.map_batches(folder / "any.relayc", {"z": "x"})(ROWS)
    with pytest.raises(ArgumentError, match="pass a dictionary of arrays by column"):
        relayc.map_batches(folder / "two.relayc")(ROWS)
    with pytest.raises(ArgumentError, match="no output 'z'"):
        relayc.map_batches(folder / "any.relayc", outputs=["z"])(ROWS)
    with pytest.raises(ArgumentError, match="different numbers of rows"):
        relayc.map_batches(folder / "two.relayc")({"a": ROWS[:1, :2], "b": ROWS[:2, :2]})


@pytest.mark.slow
def test_dask_loses_nothing_when_a_worker_is_killed(folder):
    distributed = pytest.importorskip("distributed", reason="pip install 'relayc[dask]'")
    dask_array = pytest.importorskip("dask.array", reason="pip install 'relayc[dask]'")
    function = relayc.map_batches(folder / "any.relayc", num_threads=1)
    rows = np.concatenate([ROWS] * 20)

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:  # fmt: skip
        whole = dask_array.from_array(rows, chunks=(50, 8)).map_blocks(
            _slowly, function, dtype="float32", chunks=(50, 4)
        )
        future = client.compute(whole)
        while len(client.run(lambda: None)) < 2 or not any(client.processing().values()):
            pass
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        np.testing.assert_array_equal(future.result(timeout=60), function(rows))


def _slowly(block: Any, function: Any) -> Any:
    import time

    time.sleep(0.02)
    return function(block)


def test_ray_data(folder):
    ray = pytest.importorskip("ray", reason="pip install 'ray[data]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        data = ray.data.from_numpy(ROWS).map_batches(
            relayc.map_batches(folder / "fixed.relayc", {"x": "data"}), batch_size=30
        )
        found = np.concatenate([batch["y"] for batch in data.iter_batches(batch_format="numpy")])
        np.testing.assert_allclose(np.sort(found, axis=0), np.sort(ROWS @ WEIGHT.T, axis=0), rtol=1e-5, atol=1e-5)
    finally:
        ray.shutdown()

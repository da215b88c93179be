"""Worker processes of a build: the same code with and without them, and whatever happens to them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relayc import relay
from relayc.backend.target import Target
from relayc.relay.lowering import compile_kernels, compile_workers
from relayc.relay.lowering.lower import Workload, lower
from relayc.relay.transform import PassContext
from relayc.te.tir import SizeVar

KERNELS = 30


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An empty cache, three threads, and the names of the kernels that this process compiles."""
    monkeypatch.setenv("RELAYC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_workers, "num_threads", lambda: 3)
    names: list[str] = []
    compiled: Callable[..., Any] = compile_kernels._compiled

    def noted(job: Any, builder: Any) -> Any:
        names.append(job.workload.name)
        return compiled(job, builder)

    monkeypatch.setattr(compile_kernels, "_compiled", noted)
    return names


def model() -> relay.IRModule:
    """As many kernels, one for each number of columns; the number of rows is open."""
    rows = SizeVar("rows")
    params = [relay.var(f"x{n}", shape=(rows, 3 + n)) for n in range(KERNELS)]
    return relay.IRModule.from_expr(relay.Function(params, relay.Tuple([relay.nn.softmax(x) for x in params])))


def artifact(path: Path, workers: int | None = None) -> bytes:
    with PassContext(config={"relay.compile_workers": workers}):
        relay.build(model(), "llvm -num-cores=2").save(str(path))
    return path.read_bytes()


def alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The artifact without workers and without what they put into the cache."""
    with monkeypatch.context() as context:
        context.setenv("RELAYC_CACHE_DIR", str(path / "other"))
        return artifact(path / "alone.relayc", 0)


def test_code_is_the_same_with_a_worker(
    here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = artifact(tmp_path / "together.relayc")
    assert len(here) < KERNELS, "the worker compiled nothing"
    here.clear()
    assert alone(tmp_path, monkeypatch) == together
    assert len(here) == KERNELS


@pytest.mark.parametrize(
    ("command", "patience"),
    [
        ("raise SystemExit(3)", 60.0),
        ("print('what a library prints'); raise SystemExit", 60.0),
        ("import time; time.sleep(600)", 0.05),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 60.0),
    ],
    ids=["fails", "prints", "hangs", "is killed"],
)
def test_what_a_worker_does_not_do_the_build_does(
    command: str, patience: float, here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    process = compile_workers.subprocess.Popen

    class Watched(process):  # type: ignore[valid-type,misc]
        def wait(self, timeout: float | None = None) -> int:
            ended.append(code := super().wait(timeout))
            return code

    monkeypatch.setattr(compile_workers.subprocess, "Popen", Watched)
    monkeypatch.setattr(compile_workers, "_COMMAND", command)
    monkeypatch.setattr(compile_workers, "_PATIENCE", patience)
    together = artifact(tmp_path / "together.relayc")
    assert len(here) == KERNELS
    assert ended
    assert alone(tmp_path, monkeypatch) == together


def test_there_may_be_no_processes(here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise PermissionError("no processes in this sandbox")

    monkeypatch.setattr(compile_workers.subprocess, "Popen", refused)
    artifact(tmp_path / "together.relayc")
    assert len(here) == KERNELS


def test_an_error_ends_the_workers(here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = compile_workers.CompileWorkers.start

    def noted(self: Any, *args: Any) -> None:
        start(self, *args)
        started.extend(process for process, _ in self._running)

    def progress(name: str, done: int, total: int) -> None:
        if started:
            raise RuntimeError("the user stops it")

    monkeypatch.setattr(compile_workers.CompileWorkers, "start", noted)
    with pytest.raises(RuntimeError, match="the user stops it"):
        relay.build(model(), "llvm -num-cores=2", progress=progress)
    assert started
    assert all(process.poll() is not None for process in started)


def test_when_workers_are_of_use(here: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    llvm = Target("llvm")
    assert compile_workers.useful_workers(100, llvm) == 1
    assert compile_workers.useful_workers(3, llvm) == 0
    with monkeypatch.context() as few:
        few.setattr(compile_workers, "num_threads", lambda: 2)
        assert compile_workers.useful_workers(100, llvm) == 0
        with PassContext(config={"relay.compile_workers": 1}):
            assert compile_workers.useful_workers(100, llvm) == 1
    assert compile_workers.useful_workers(100, Target("cuda -arch=sm_90")) == 0
    with PassContext(config={"relay.compile_workers": 0}):
        assert compile_workers.useful_workers(100, llvm) == 0
    monkeypatch.setattr(compile_workers, "num_threads", lambda: 64)
    assert compile_workers.useful_workers(30, llvm) == 2
    assert compile_workers.useful_workers(1000, llvm) == 8
    with PassContext(config={"relay.compile_workers": 20}):
        assert compile_workers.useful_workers(1000, llvm) == 20
    with monkeypatch.context() as bundled:
        bundled.setattr(sys, "executable", "/opt/app/bin/app")
        assert compile_workers.useful_workers(100, llvm) == 0
    monkeypatch.setenv("RELAYC_CACHE_DIR", "off")
    assert compile_workers.useful_workers(100, llvm) == 0


def test_a_pickled_function_has_the_same_loops() -> None:
    """Types of expressions are compared as objects: one that was copied would not be simplified with the others."""
    rows, target = SizeVar("rows"), Target("llvm -mcpu=haswell -num-cores=2")
    x = relay.var("x", shape=(rows, 2 * rows + 1, 7))
    workload = Workload.of(relay.Function([x], relay.nn.softmax(x), {"primitive": True}))
    again = pickle.loads(pickle.dumps(workload))
    assert str(lower(again, target).function) == str(lower(workload, target).function)

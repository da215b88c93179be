"""The queue of a model: batches, faults in them, cancellation."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="pip install 'relayc[serve]'")

from relayc.runtime import ArgumentError, RunCancelledError, load_model
from relayc.server import CompiledRunner, ModelOptions, Repository, ServerError, Stop, TensorSpec
from relayc.server.scheduler import Job, Scheduler


class Recorder:
    """Notes the rows of each run."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def ran(self, queued: Sequence[float], computed: float, rows: int) -> None:
        self.rows.append(rows)


class Doubler:
    """Doubles its input once it is let go; negative values are refused, values above 100 hang until stopped."""

    platform = "test"
    inputs: Sequence[TensorSpec] = (TensorSpec("x", "FP32", (-1, -1)),)
    outputs: Sequence[TensorSpec] = (TensorSpec("y", "FP32", (-1, -1)),)
    batch_obstacle = None

    def __init__(self) -> None:
        self.go, self.started = threading.Event(), threading.Event()

    def infer(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str], stop: Stop) -> list[np.ndarray]:
        self.started.set()
        assert self.go.wait(20)
        x = inputs["x"]
        if (x < 0).any():
            raise ArgumentError("negative")
        if (x > 100).any():
            stopped = threading.Event()
            with stop.ends_by(stopped.set):
                assert stopped.wait(20)
            raise RunCancelledError("stopped")
        return [2 * x]


@pytest.fixture
def runner() -> Doubler:
    return Doubler()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def scheduler_of(runner: Any, recorder: Any, request: pytest.FixtureRequest, **options: Any) -> Scheduler:
    made = Scheduler("doubler", runner, ModelOptions(**options), recorder)
    request.addfinalizer(lambda: made.close(20))
    request.addfinalizer(runner.go.set)
    return made


def submit(scheduler: Scheduler, *values: list[list[float]]) -> list[Job]:
    jobs = [Job({"x": np.array(value, "float32")}, ["y"]) for value in values]
    for job in jobs:
        scheduler.submit(job)
    return jobs


def test_requests_that_wait_run_together(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, max_batch_size=4, max_delay=0)
    submit(scheduler, [[0]])
    assert runner.started.wait(20)
    values = [[[1]], [[2], [3]], [[4, 5]], [[6]], [[7]]]
    jobs = submit(scheduler, *values)
    runner.go.set()
    for job, value in zip(jobs, values, strict=True):
        assert job.result.result(20)["y"].tolist() == [[2 * x for x in row] for row in value]
    assert recorder.rows == [1, 4, 1, 1]  # three of one width, then the wider one, then what was too much


def test_a_request_waits_for_others(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, max_batch_size=3, max_delay=20, instances=2)
    runner.go.set()
    jobs = submit(scheduler, [[1]], [[2]], [[3]])
    assert [job.result.result(10)["y"].tolist() for job in jobs] == [[[2]], [[4]], [[6]]]
    assert recorder.rows == [3]


def test_a_request_does_not_wait_longer_than_it_has_to(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, max_batch_size=8, max_delay=0.01)
    runner.go.set()
    (job,) = submit(scheduler, [[1]])
    assert job.result.result(20)["y"].tolist() == [[2]]
    (job,) = submit(scheduler, [[float(i)] for i in range(9)])  # larger than a batch
    assert job.result.result(20)["y"].shape == (9, 1)


def test_a_wrong_request_fails_alone(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, max_batch_size=3, max_delay=20)
    runner.go.set()
    good, bad, other = submit(scheduler, [[1]], [[-1]], [[3]])
    assert good.result.result(10)["y"].tolist() == [[2]] and other.result.result(10)["y"].tolist() == [[6]]
    with pytest.raises(ArgumentError, match="negative"):
        bad.result.result(10)


def test_a_cancelled_request_leaves_the_queue(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, queue=1)
    submit(scheduler, [[0]])
    assert runner.started.wait(20)
    (waiting,) = submit(scheduler, [[1]])
    with pytest.raises(ServerError, match="1 requests wait for model 'doubler' already"):
        submit(scheduler, [[2]])
    scheduler.cancel(waiting)
    (other,) = submit(scheduler, [[3]])
    runner.go.set()
    assert other.result.result(20)["y"].tolist() == [[6]]
    assert not waiting.result.done() and recorder.rows == [1, 1]


def test_a_run_ends_when_all_that_wait_for_it_are_gone(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, max_batch_size=2, max_delay=20)
    first, second = submit(scheduler, [[101]], [[102]])
    assert runner.started.wait(20)
    runner.go.set()
    scheduler.cancel(first)
    assert not second.result.done()
    scheduler.cancel(second)
    third, fourth = submit(scheduler, [[1]], [[2]])
    assert third.result.result(20)["y"].tolist() == [[2]] and fourth.result.result(20)["y"].tolist() == [[4]]


def test_what_waits_is_done_at_the_end(runner, recorder, request):
    scheduler = scheduler_of(runner, recorder, request, max_batch_size=2, max_delay=20)
    runner.go.set()
    (job,) = submit(scheduler, [[1]])
    scheduler.close(20)
    assert job.result.result(0)["y"].tolist() == [[2]]
    with pytest.raises(ServerError, match="shutting down"):
        submit(scheduler, [[1]])


def test_compiled_models_say_whether_they_can_be_batched(models):
    dense, fixed = (CompiledRunner(load_model(models / name / "1/model.relayc")) for name in ("dense", "fixed"))
    assert dense.batch_obstacle is None
    assert fixed.batch_obstacle == "'x' has no first dimension of any size"
    repository = Repository()
    options = ModelOptions(max_batch_size=8)
    assert repository.add("fixed", fixed, options=options).scheduler.options.max_batch_size == 1
    assert repository.add("dense", dense, options=options).scheduler.options.max_batch_size == 8
    repository.close(10)


@pytest.mark.parametrize("setting", [{"instances": 0}, {"queue": 0}, {"max_batch_size": 0}, {"max_delay": -1}])
def test_settings_are_checked(setting):
    with pytest.raises(ServerError, match=f"{next(iter(setting))} is .*; expected"):
        ModelOptions(**setting)

"""The queue of a model: a bounded number of waiting requests, worker threads, and requests joined to batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import numpy as np

from relayc.server.errors import ServerError
from relayc.server.runners import ModelRunner, Stop
from relayc.server.tensors import Array

__all__ = ["Job", "ModelOptions", "Observer", "Scheduler"]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is served.

    instances: runs at the same time. queue: requests that may wait; more are refused. max_batch_size: rows of the first
    dimension of requests that run together; 1: each request alone. max_delay: seconds that a request may wait for
    others to join it.
    """

    instances: int = 1
    queue: int = 128
    max_batch_size: int = 1
    max_delay: float = 0.002

    def __post_init__(self) -> None:
        for name in ("instances", "queue", "max_batch_size"):
            if getattr(self, name) < 1:
                raise ServerError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 <= self.max_delay <= 60:
            raise ServerError(f"max_delay is {self.max_delay}; expected 0 to 60 seconds")


class Observer(Protocol):
    """Is called after runs that succeed, with the seconds of each request in the queue, of computing, and the rows."""

    def ran(self, queued: Sequence[float], computed: float, rows: int) -> None: ...


class Job:
    """A request for outputs by name, waiting or running; `result` is a future of the outputs by name."""

    def __init__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> None:
        self.inputs, self.outputs = inputs, list(outputs)
        self.result: Future[dict[str, Array]] = Future()
        self.result.set_running_or_notify_cancel()  # a waiting asyncio task that is cancelled leaves it as it is
        self.enqueued = 0.0
        self.is_cancelled = False
        self.batch: _Batch | None = None

    @property
    def rows(self) -> int:
        """The size of the first dimension."""
        first = next(iter(self.inputs.values()))
        return first.shape[0] if first.ndim else 1

    def joins(self, other: Job) -> bool:
        """May both run together? All sizes but the first are the same, and the first is one for all inputs."""
        shapes, others = ([x.shape for x in job.inputs.values()] for job in (self, other))
        return [s[1:] for s in shapes] == [s[1:] for s in others] and self.is_batch

    @property
    def is_batch(self) -> bool:
        """Do all inputs have the same number of rows, and any?"""
        return self.rows > 0 and all(x.shape[0] == self.rows for x in self.inputs.values())


class _Batch:
    """Jobs that run together."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.stop = jobs, Stop()

    def leave(self) -> None:
        """A job of it was cancelled; without any other the run ends."""
        if all(job.is_cancelled for job in self.jobs):
            self.stop()


class Scheduler:
    """Runs jobs on one model, on `options.instances` threads, first come, first served.

    With `max_batch_size`, a job waits up to `max_delay` for others of the same shape. Any thread may call any method.
    """

    def __init__(self, name: str, runner: ModelRunner, options: ModelOptions, observer: Observer) -> None:
        self.options, self._name, self._runner, self._observer = options, name, runner, observer
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._collecting = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"relayc-serve-{name}-{i}", daemon=True)
            for i in range(options.instances)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """The number of jobs that wait."""
        return len(self._queue)

    def check_room(self) -> None:
        """Raises ServerError, 429, if there is no room for another job, 503 if the queue is closed."""
        if self._is_closed:
            raise ServerError("the server is shutting down", HTTPStatus.SERVICE_UNAVAILABLE)
        if len(self._queue) >= self.options.queue:
            raise ServerError(
                f"{len(self._queue)} requests wait for model {self._name!r} already; try again later",
                HTTPStatus.TOO_MANY_REQUESTS,
            )

    def submit(self, job: Job) -> None:
        """Let `job` wait for its run. Raises what `check_room` raises."""
        with self._changed:
            self.check_room()
            job.enqueued = time.monotonic()
            self._queue.append(job)
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Nobody waits for `job` any more: it leaves the queue, or its run is ended if it runs alone."""
        with self._changed:
            job.is_cancelled = True
            if job in self._queue:
                self._queue.remove(job)
            batch = job.batch
        if batch is not None:
            batch.leave()

    def close(self, timeout: float) -> None:
        """Take no more jobs, and return when those that wait are done, or after about `timeout` seconds."""
        end = time.monotonic() + timeout
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._collecting:  # or each instance would wait for a batch of its own
                batch = self._next_batch()
            if batch is None:
                return
            self._run(batch)

    def _next_batch(self) -> _Batch | None:
        """The jobs to run next, the first one and others that may join it; None when the queue is closed and empty."""
        with self._changed:
            while not self._queue:
                if self._is_closed:
                    return None
                self._changed.wait()
            batch = _Batch([self._queue.popleft()])
            batch.jobs[0].batch = batch
            if self.options.max_batch_size > 1 and batch.jobs[0].is_batch:
                self._fill(batch)
            return batch

    def _fill(self, batch: _Batch) -> None:
        """Move jobs that may join from the queue to the batch, waiting for more until it is full or late."""
        first = batch.jobs[0]
        end, rows = first.enqueued + self.options.max_delay, first.rows
        while True:
            for job in [job for job in self._queue if job.joins(first)]:
                if rows + job.rows <= self.options.max_batch_size:
                    rows += job.rows
                    self._queue.remove(job)
                    batch.jobs.append(job)
                    job.batch = batch
            remaining = end - time.monotonic()
            if rows >= self.options.max_batch_size or remaining <= 0 or self._is_closed:
                return
            self._changed.wait(remaining)

    def _run(self, batch: _Batch) -> None:
        jobs = [job for job in batch.jobs if not job.is_cancelled]
        if not jobs:
            return
        start = time.monotonic()
        try:
            results = self._results(jobs, batch.stop)
        except Exception as error:  # noqa: BLE001 - reported to those who wait
            if len(jobs) > 1:  # one of them may be at fault
                for job in jobs:
                    job.batch = _Batch([job])
                    self._run(job.batch)
            else:
                jobs[0].result.set_exception(error)
            return
        end = time.monotonic()
        self._observer.ran([start - job.enqueued for job in jobs], end - start, sum(job.rows for job in jobs))
        for job, result in zip(jobs, results, strict=True):
            job.result.set_result(result)

    def _results(self, jobs: Sequence[Job], stop: Stop) -> list[dict[str, Array]]:
        """The outputs of each job, of one run."""
        names = list(dict.fromkeys(name for job in jobs for name in job.outputs))
        if len(jobs) == 1:
            return [dict(zip(names, self._runner.infer(jobs[0].inputs, names, stop), strict=True))]
        joined = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in jobs[0].inputs}
        outputs = dict(zip(names, self._runner.infer(joined, names, stop), strict=True))
        bounds = np.cumsum([0, *(job.rows for job in jobs)]).tolist()
        wrong = [name for name, values in outputs.items() if not values.ndim or values.shape[0] != bounds[-1]]
        if wrong:
            raise ServerError(
                f"model {self._name!r} gave {wrong} another number of rows than the {bounds[-1]} of its inputs",
                HTTPStatus.INTERNAL_SERVER_ERROR,
            )
        return [
            {name: outputs[name][low:high] for name in job.outputs}
            for job, low, high in zip(jobs, bounds, bounds[1:], strict=False)
        ]

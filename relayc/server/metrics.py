"""Metrics in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

__all__ = ["Metrics", "ModelMetrics"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""The media type of `Metrics.text`."""


class Metrics:
    """The metrics of one server. Labels are names and versions of served models, never what clients send."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        of_model = ["model", "version"]
        self._requests = Counter(
            "relayc_requests", "Requests for inference, by HTTP status", [*of_model, "status"], registry=registry
        )
        self._seconds = Histogram(
            "relayc_request_seconds", "From the request's first byte to its response", of_model, buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self._queued = Histogram(
            "relayc_queue_seconds", "Wait of a request for its run", of_model, buckets=_SECONDS, registry=registry
        )
        self._computed = Histogram(
            "relayc_compute_seconds", "Duration of a run", of_model, buckets=_SECONDS, registry=registry
        )
        self._rows = Histogram(
            "relayc_batch_rows", "Size of the first dimension in a run", of_model, buckets=_ROWS, registry=registry
        )
        self._waiting = Gauge("relayc_queue_length", "Requests that wait for a run", of_model, registry=registry)
        self._held = Gauge("relayc_held_bytes", "Bytes of requests and responses in memory", registry=registry)

    def model(self, name: str, version: int, waiting: Callable[[], int]) -> ModelMetrics:
        """The metrics of one model; `waiting` says how many requests wait."""
        labels = {"model": name, "version": str(version)}
        self._waiting.labels(**labels).set_function(waiting)
        return ModelMetrics(
            self._requests, self._seconds.labels(**labels), self._queued.labels(**labels),
            self._computed.labels(**labels), self._rows.labels(**labels), labels,
        )  # fmt: skip

    def watch_held_bytes(self, held: Callable[[], int]) -> None:
        """`held` says how many bytes of requests and responses are in memory."""
        self._held.set_function(held)

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """The metrics of one model."""

    def __init__(
        self, requests: Counter, seconds: Histogram, queued: Histogram, computed: Histogram, rows: Histogram,
        labels: dict[str, str],
    ) -> None:  # fmt: skip
        self._requests, self._seconds, self._queued, self._computed = requests, seconds, queued, computed
        self._rows, self._labels = rows, labels

    def answered(self, status: int, seconds: float) -> None:
        """A request was answered with an HTTP status, `seconds` after it came."""
        self._requests.labels(**self._labels, status=str(status)).inc()
        self._seconds.observe(seconds)

    def ran(self, queued: Sequence[float], computed: float, rows: int) -> None:
        """A run has taken `computed` seconds; its requests had waited for `queued` seconds."""
        for seconds in queued:
            self._queued.observe(seconds)
        self._computed.observe(computed)
        self._rows.observe(rows)

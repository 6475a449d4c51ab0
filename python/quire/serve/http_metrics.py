"""What a server counts of HTTP, under the names that deploy/grafana/quire.json shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire._core import PrometheusMetrics

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]


class HttpMetrics:
    """``http_requests_total``, ``http_request_duration_seconds`` and ``http_streams``. Thread-safe.

    They are added to ``metrics``, which has them once: a second raises ValueError. A ``route`` is a template
    ("/v1/models/{model}"), and for what no route takes one name for all, or clients make up series.
    """

    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._requests = metrics.add_family(
            "counter",
            "http_requests_total",
            "HTTP requests that were answered",
            labels=["route", "method", "status"],
        )
        self._seconds = metrics.add_family(
            "histogram",
            "http_request_duration_seconds",
            "Seconds from an HTTP request to the end of its answer",
            labels=["route", "method"],
            buckets=_BUCKETS,
        )
        self._streams = metrics.add_family("gauge", "http_streams", "Answers that are being streamed")

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """An answer has ended, of a stream its last byte."""
        known = method if method in _METHODS else "other"
        self._requests.add([route, known, str(status)])
        self._seconds.observe([route, known], seconds)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """An answer is streamed meanwhile."""
        self._streams.add()
        try:
            yield
        finally:
            self._streams.add(amount=-1)

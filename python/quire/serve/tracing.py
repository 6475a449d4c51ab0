"""Requests as OpenTelemetry spans, with the attributes that vLLM's have.

::

    tracer = RequestTracer.otlp("http://localhost:4318/v1/traces", model_name="my-model")
    ...
    tracer.trace(output, params=params, traceparent=headers.get("traceparent"))
    ...
    tracer.shutdown()

A finished request is one span ``llm_request``, from its arrival to its last token (or to its end, where the
caller says when that was), with a child for each phase that it came to: ``queue``, ``prefill``, ``decode``.
Their times are the engine's own, ``RequestOutput.metrics``: nothing is measured here, and nothing is done
while a request runs. Needs ``pip install quire[trace]``; without it, RequestTracer raises ImportError.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire._core import HttpExchange, RequestMetrics, RequestOutput, RequestUsage, SamplingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

_NEEDS = "pip install 'quire[trace]', or leave tracing off"
# Of a parent that the client sent; others of its headers are none of a trace's.
TRACE_HEADERS = ("traceparent", "tracestate")

_NO_LIMIT = 2**31 - 1  # of conversations: an answer ends by itself


class RequestTracer:
    """Turns finished requests into spans. Thread-safe.

    ``provider`` is OpenTelemetry's TracerProvider, which says what becomes of the spans; ``otlp`` makes one
    that sends them to a collector, in the background. ``model_name`` is their ``gen_ai.response.model``.
    """

    def __init__(self, provider: TracerProvider, *, model_name: str = "") -> None:
        trace, propagation = _import_api()
        self._trace = trace
        self._propagator = propagation.TraceContextTextMapPropagator()
        self._provider = provider
        self._tracer = provider.get_tracer("quire")
        self._model_name = model_name

    @classmethod
    def otlp(
        cls,
        endpoint: str,
        *,
        model_name: str = "",
        service_name: str = "quire",
        headers: Mapping[str, str] | None = None,
    ) -> RequestTracer:
        """One whose spans go to a collector by OTLP over HTTP: ``http://localhost:4318/v1/traces``.

        They wait in a bounded queue for a thread of their own; a collector that is slow or gone costs the
        oldest of them, and no request any time. Raises ImportError, naming the package, where it is missing,
        and ValueError for an endpoint that is no URL.
        """
        if not endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"endpoint must be a URL like http://localhost:4318/v1/traces, got '{endpoint:.200}'"
            )
        _import_api()
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise _missing("opentelemetry-exporter-otlp-proto-http", error) from error
        exporter = OTLPSpanExporter(endpoint=endpoint, headers=dict(headers or {}))
        provider = make_provider(BatchSpanProcessor(exporter), service_name=service_name)
        return cls(provider, model_name=model_name)

    def trace(
        self,
        output: RequestOutput,
        *,
        params: SamplingParams | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        request_id: str | None = None,
        finish_time: float | None = None,
        attributes: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Records the spans of a finished request, from its last output.

        ``params`` are shown as ``gen_ai.request.*``. ``traceparent`` and ``tracestate`` are the client's
        headers (W3C Trace Context): the span is a child of theirs, and recorded where they say so; a header
        that is malformed is passed over, as the standard wants. ``request_id`` is the door's own name for it,
        else the engine's. ``finish_time`` is when it ended, of ``time.monotonic()``; otherwise its last
        token's time. ``attributes`` are added. Raises ValueError for an output that is not the last.
        """
        if not output.finished:
            raise ValueError(
                f"the output of request '{output.request_id}' is not its last: finished is False"
            )
        self.record(
            output.metrics,
            output.usage,
            request_id=output.request_id if request_id is None else request_id,
            finish_reasons=[c.finish_reason for c in output.outputs if c.finish_reason],
            error=next((completion.error for completion in output.outputs if completion.error), ""),
            # A last delta lists only some of them.
            num_sequences=len(output.outputs) if params is None else max(len(output.outputs), params.n),
            params=params,
            traceparent=traceparent,
            tracestate=tracestate,
            finish_time=finish_time,
            attributes=attributes,
        )

    def record(
        self,
        metrics: RequestMetrics,
        usage: RequestUsage,
        *,
        request_id: str,
        finish_reasons: Sequence[str] = (),
        error: str = "",
        num_sequences: int = 1,
        params: SamplingParams | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
        arrival_time: float | None = None,
        finish_time: float | None = None,
        attributes: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """``trace`` of what is known of a request where there is no last output of it.

        An ``error`` is the span's status. ``arrival_time``, of ``time.monotonic()``, stands in for that of
        ``metrics`` where the engine has told nothing yet.
        """
        arrival = metrics.arrival_time or arrival_time
        if not arrival:
            return  # it was never accepted, and took no time
        epoch_ns = _epoch_ns()
        last = max(arrival, metrics.first_scheduled_time, metrics.last_token_time)
        end = last if finish_time is None else max(finish_time, last)
        carrier = {"traceparent": traceparent, "tracestate": tracestate}
        parent = self._propagator.extract({name: value for name, value in carrier.items() if value})
        span = self._tracer.start_span(
            "llm_request",
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes={
                **self._attributes_of(metrics, usage, finish_reasons, end - arrival),
                **_attributes_of_params(params),
                "gen_ai.usage.num_sequences": num_sequences,
                "gen_ai.request.id": request_id,
                **(attributes or {}),
            },
            start_time=_wall_ns(epoch_ns, arrival),
        )
        if error:
            span.set_status(self._trace.StatusCode.ERROR, error)
        within = self._trace.set_span_in_context(span, parent)
        phases = (
            ("queue", metrics.arrival_time, metrics.first_scheduled_time),
            ("prefill", metrics.first_scheduled_time, metrics.first_token_time),
            ("decode", metrics.first_token_time, metrics.last_token_time),
        )
        for name, begin, phase_end in phases:
            if begin == 0 or phase_end == 0:
                break  # it never came so far
            child = self._tracer.start_span(name, context=within, start_time=_wall_ns(epoch_ns, begin))
            child.end(_wall_ns(epoch_ns, phase_end))
        span.end(_wall_ns(epoch_ns, end))

    def record_exchange(
        self,
        exchange: HttpExchange,
        *,
        request_id: str,
        route: str,
        headers: Mapping[str, str],
        arrival_time: float,
    ) -> None:
        """``record`` of an answer of the server, that has ended now; ``headers`` are the client's.

        Of several prompts the times are the first one's. What the client left is "abort".
        """
        reasons = exchange.finish_reasons
        params = exchange.sampling_params
        self.record(
            exchange.metrics,
            exchange.usage,
            request_id=request_id,
            finish_reasons=reasons if exchange.finished else [*reasons, "abort"],
            error=exchange.error,
            num_sequences=max(len(reasons), params.n),
            params=params,
            traceparent=headers.get("traceparent"),
            tracestate=headers.get("tracestate"),
            arrival_time=arrival_time,
            finish_time=time.monotonic(),
            attributes={"http.route": route, **_attributes_of_lora(exchange.lora_name)},
        )

    def shutdown(self, timeout: float | None = None) -> None:
        """Sends what waits, and ends the provider: spans from now on are dropped.

        Waits at most ``timeout`` seconds; None: as long as the provider does, which for a collector that is
        gone is half a minute.
        """
        if timeout is None:
            self._provider.shutdown()
            return
        # A daemon's thread: the process's end does not wait for it either.
        ending = threading.Thread(target=self._provider.shutdown, name="quire-tracer-shutdown", daemon=True)
        ending.start()
        ending.join(timeout)

    def _attributes_of(
        self, metrics: RequestMetrics, usage: RequestUsage, reasons: Sequence[str], e2e_seconds: float
    ) -> dict[str, Any]:
        reached = {
            "gen_ai.latency.time_in_queue": (metrics.queued_time, metrics.first_scheduled_time),
            "gen_ai.latency.time_to_first_token": (metrics.first_token_latency, metrics.first_token_time),
            "gen_ai.latency.time_in_model_prefill": (metrics.prefill_time, metrics.first_token_time),
            "gen_ai.latency.time_in_model_decode": (metrics.decode_time, metrics.first_token_time),
            "gen_ai.latency.time_in_model_inference": (metrics.inference_time, metrics.first_token_time),
        }
        values: dict[str, Any] = {
            "gen_ai.usage.prompt_tokens": usage.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": usage.num_generation_tokens,
            "gen_ai.usage.cached_tokens": usage.num_cached_tokens,
            "gen_ai.usage.reasoning_tokens": usage.num_reasoning_tokens,
            "gen_ai.latency.e2e": e2e_seconds,
        }
        values.update({name: seconds for name, (seconds, when) in reached.items() if when > 0})
        if reasons:
            values["gen_ai.response.finish_reasons"] = list(reasons)
        if self._model_name:
            values["gen_ai.response.model"] = self._model_name
        return values


def _epoch_ns() -> int:
    """The time of day when the engine's clock was 0. Taken anew for each request: the two drift apart."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return wall - (before + time.monotonic_ns()) // 2


def _wall_ns(epoch_ns: int, monotonic: float) -> int:
    """A time of the engine's clock, as nanoseconds of the day's."""
    return epoch_ns + round(monotonic * 1e9)


def make_provider(*processors: SpanProcessor, service_name: str = "quire") -> TracerProvider:
    """A TracerProvider that gives its spans to these. It is the caller's: no global one is set."""
    _import_api()
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as error:
        raise _missing("opentelemetry-sdk", error) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}), shutdown_on_exit=True)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def _attributes_of_params(params: SamplingParams | None) -> dict[str, Any]:
    if params is None:
        return {}
    values: dict[str, Any] = {
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.n": params.n,
    }
    if params.max_tokens is not None and params.max_tokens < _NO_LIMIT:
        values["gen_ai.request.max_tokens"] = params.max_tokens
    return values


def _attributes_of_lora(lora_name: str) -> dict[str, str]:
    if not lora_name:
        return {}
    # Answers have the adapter's name as their model's.
    return {"gen_ai.request.lora_name": lora_name, "gen_ai.response.model": lora_name}


def _import_api() -> tuple[Any, Any]:
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation import tracecontext
    except ImportError as error:
        raise _missing("opentelemetry-api", error) from error
    return trace, tracecontext


def _missing(package: str, error: ImportError) -> ImportError:
    return ImportError(f"tracing needs the package {package}: {_NEEDS} ({error})", name=error.name)

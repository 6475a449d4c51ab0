"""Spans of requests, as OpenTelemetry's own SDK keeps and sends them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from paths import ROOT
from quire import LLM, LLMEngine, SamplingParams
from quire.serve.tracing import RequestTracer, make_provider
from serving import running_server, wait_until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.5, top_p=0.9)


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> LLM:
    return LLM(demo_model)


class Spans:
    """What a tracer records, by name."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = RequestTracer(make_provider(SimpleSpanProcessor(self.exporter)), model_name="demo")

    def by_name(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def spans() -> Spans:
    return Spans()


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return float(span.end_time - span.start_time) / 1e9


def test_a_request_is_a_span_with_a_child_for_each_phase(llm: LLM, spans: Spans) -> None:
    before = time.time_ns()
    [output] = llm.generate("Once upon a time", PARAMS, use_tqdm=False)
    after = time.time_ns()
    spans.tracer.trace(output, params=PARAMS)
    named = spans.by_name()
    assert list(named) == ["queue", "prefill", "decode", "llm_request"]
    request, queue, prefill, decode = (named[n] for n in ("llm_request", "queue", "prefill", "decode"))
    assert request.kind == SpanKind.SERVER and request.parent is None
    for child in (queue, prefill, decode):
        assert child.parent is not None and child.parent.span_id == request.context.span_id
        assert child.context.trace_id == request.context.trace_id
    # They follow each other without a gap, where the clocks were read.
    assert before - 1_000_000 <= (request.start_time or 0) and (request.end_time or 0) <= after + 1_000_000
    assert request.start_time == queue.start_time and request.end_time == decode.end_time
    assert queue.end_time == prefill.start_time and prefill.end_time == decode.start_time
    metrics = output.metrics
    for span, expected in (
        (queue, metrics.queued_time),
        (prefill, metrics.prefill_time),
        (decode, metrics.decode_time),
    ):
        assert seconds(span) == pytest.approx(expected, abs=2e-9)


def test_attributes_are_vllms(llm: LLM, spans: Spans) -> None:
    [output] = llm.generate("Once upon a time", PARAMS, use_tqdm=False)
    spans.tracer.trace(
        output, params=PARAMS, request_id="cmpl-7", attributes={"http.route": "/v1/completions"}
    )
    metrics, usage = output.metrics, output.usage
    assert dict(spans.by_name()["llm_request"].attributes or {}) == {
        "gen_ai.request.id": "cmpl-7",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.n": 1,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": pytest.approx(0.9),
        "gen_ai.response.model": "demo",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.prompt_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": 6,
        "gen_ai.usage.cached_tokens": usage.num_cached_tokens,
        "gen_ai.usage.reasoning_tokens": 0,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.latency.e2e": metrics.last_token_time - metrics.arrival_time,
        "gen_ai.latency.time_in_queue": metrics.queued_time,
        "gen_ai.latency.time_to_first_token": metrics.first_token_latency,
        "gen_ai.latency.time_in_model_prefill": metrics.prefill_time,
        "gen_ai.latency.time_in_model_decode": metrics.decode_time,
        "gen_ai.latency.time_in_model_inference": metrics.inference_time,
        "http.route": "/v1/completions",
    }


def test_a_clients_span_is_the_parent(llm: LLM, spans: Spans) -> None:
    [output] = llm.generate("Once", PARAMS, use_tqdm=False)
    spans.tracer.trace(output, traceparent=PARENT, tracestate="vendor=x")
    request = spans.by_name()["llm_request"]
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{request.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert request.context.trace_state.get("vendor") == "x"
    spans.exporter.clear()
    spans.tracer.trace(output, traceparent=PARENT[:-1] + "0")  # the client records none
    assert not spans.by_name()


@pytest.mark.parametrize("header", ["", "x", "00-0-0-01", PARENT.replace("0af7", "0af\n"), "é" * 99])
def test_a_malformed_parent_is_none(llm: LLM, spans: Spans, header: str) -> None:
    [output] = llm.generate("Once", PARAMS, use_tqdm=False)
    spans.tracer.trace(output, traceparent=header)
    assert spans.by_name()["llm_request"].parent is None


def test_phases_that_were_not_reached_have_no_span(demo_model: Path, spans: Spans) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("a", "Once", PARAMS)
    engine.abort_request("a")
    [output] = engine.step()
    now = time.monotonic()
    spans.tracer.trace(output, finish_time=now)
    [request] = spans.exporter.get_finished_spans()
    assert seconds(request) == pytest.approx(now - output.metrics.arrival_time, abs=2e-9)
    assert (request.attributes or {})["gen_ai.response.finish_reasons"] == ("abort",)
    assert "gen_ai.latency.time_to_first_token" not in (request.attributes or {})
    assert request.status.status_code == StatusCode.UNSET


def test_only_a_last_output_is_a_request(demo_model: Path, spans: Spans) -> None:
    engine = LLMEngine(demo_model)
    engine.add_request("a", "Once upon a time", PARAMS)
    [output] = engine.step()
    with pytest.raises(ValueError, match="finished is False"):
        spans.tracer.trace(output)
    while not output.finished:
        [output] = engine.step()
    spans.tracer.trace(output, params=PARAMS)
    assert (spans.by_name()["llm_request"].attributes or {})["gen_ai.usage.completion_tokens"] == 6


def test_what_failed_says_why_and_what_was_never_answered_has_its_arrival(llm: LLM, spans: Spans) -> None:
    [output] = llm.generate("Once", PARAMS, use_tqdm=False)
    spans.tracer.record(output.metrics, output.usage, request_id="a", error="it broke")
    status = spans.by_name()["llm_request"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "it broke")
    spans.exporter.clear()
    names = [name for name in dir(output.metrics) if not name.startswith("_")]
    nothing: Any = SimpleNamespace(**dict.fromkeys(names, 0.0))
    spans.tracer.record(nothing, output.usage, request_id="b")
    assert not spans.by_name()
    spans.tracer.record(nothing, output.usage, request_id="b", arrival_time=5.0, finish_time=7.0)
    assert list(spans.by_name()) == ["llm_request"]
    assert seconds(spans.by_name()["llm_request"]) == pytest.approx(2.0)


SAILOR = ROOT / "tests" / "python" / "data" / "adapters" / "sailor"


class Collector:
    """An OTLP collector: its URL, and what came."""

    def __init__(self) -> None:
        received: list[ExportTraceServiceRequest] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.received = received
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_a_collector_gets_the_spans(llm: LLM, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")
    received = collector.received
    tracer = RequestTracer.otlp(collector.url, model_name="demo", service_name="my-server")
    [output] = llm.generate("Once", PARAMS, use_tqdm=False)
    tracer.trace(output)
    tracer.shutdown()
    [resource] = [spans for request in received for spans in request.resource_spans]
    assert 'string_value: "my-server"' in str(resource.resource)
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == ["decode", "llm_request", "prefill", "queue"]


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def spans_of(received: list[ExportTraceServiceRequest], name: str) -> list[Span]:
    scopes = [scope for request in received for r in request.resource_spans for scope in r.scope_spans]
    return [span for scope in scopes for span in scope.spans if span.name == name]


def test_a_servers_requests_are_spans_and_a_collector_that_goes_costs_nothing(
    collector: Collector,
) -> None:
    url, received = collector.url, collector.received
    settings = {"OTEL_SERVICE_NAME": "my-server", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    flags = ("--otlp-traces-endpoint", url, "--enable-lora", "--lora-modules", f"sailor={SAILOR}")
    with running_server(*flags, env=settings) as server:
        path = server.url + "/v1/completions"
        body = {"prompt": "Once", "max_tokens": 7, "ignore_eos": True, "temperature": 0.5}
        whole = httpx.post(path, json=body, headers={"traceparent": PARENT, "tracestate": "vendor=x"})
        headers = {"traceparent": "00-nonsense", "X-Request-Id": "streamed"}
        httpx.post(path, json={**body, "stream": True, "n": 2}, headers=headers)
        httpx.post(path, json=body, headers={"traceparent": PARENT[:-1] + "0"})  # none is recorded
        httpx.post(path, json={**body, "model": "sailor"}, headers={"X-Request-Id": "adapted"})
        assert httpx.post(path, json={"prompt": 3}).status_code == 400
        long = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", path, json=long, headers={"X-Request-Id": "left"}) as answer:
            next(answer.iter_bytes())
        wait_until(lambda: any("left" in str(s) for s in spans_of(received, "llm_request")))
        requests = {attributes(s)["gen_ai.request.id"]: s for s in spans_of(received, "llm_request")}
        of_whole, streamed, left, adapted = (
            requests.pop(name) for name in (whole.json()["id"], "cmpl-streamed", "cmpl-left", "cmpl-adapted")
        )
        assert not requests
        assert of_whole.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
        assert of_whole.parent_span_id.hex() == "b7ad6b7169203331" and of_whole.trace_state == "vendor=x"
        assert streamed.parent_span_id == b""
        told = attributes(of_whole)
        assert told["http.route"] == "/v1/completions" and told["gen_ai.response.model"] == "quire-demo"
        assert told["gen_ai.usage.completion_tokens"] == told["gen_ai.request.max_tokens"] == 7
        assert told["gen_ai.request.temperature"] == 0.5 and "gen_ai.request.lora_name" not in told
        told = attributes(adapted)
        assert told["gen_ai.request.lora_name"] == told["gen_ai.response.model"] == "sailor"
        assert attributes(streamed)["gen_ai.usage.num_sequences"] == 2
        assert [v.string_value for v in attributes(streamed)["gen_ai.response.finish_reasons"].values] == [
            "length"
        ] * 2
        assert attributes(left)["gen_ai.response.finish_reasons"].values[-1].string_value == "abort"
        for request in (of_whole, streamed, left):
            phases = [
                next(s for s in spans_of(received, name) if s.parent_span_id == request.span_id)
                for name in ("queue", "prefill", "decode")
            ]
            assert request.start_time_unix_nano == phases[0].start_time_unix_nano
            assert phases[0].end_time_unix_nano == phases[1].start_time_unix_nano
            assert phases[1].end_time_unix_nano == phases[2].start_time_unix_nano
            assert phases[2].end_time_unix_nano <= request.end_time_unix_nano
        assert 'string_value: "my-server"' in str(received[0].resource_spans[0].resource)
        collector.close()
        begin = time.monotonic()
        for _ in range(20):
            assert httpx.post(path, json=body).status_code == 200
        assert time.monotonic() - begin < 10
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 10


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(ValueError, match=r"endpoint must be a URL like .*, got 'localhost:4318'"):
        RequestTracer.otlp("localhost:4318")


@pytest.mark.parametrize(
    ("missing", "package"),
    [
        ("opentelemetry", "opentelemetry-api"),
        ("opentelemetry.sdk", "opentelemetry-sdk"),
        ("opentelemetry.exporter", "opentelemetry-exporter-otlp-proto-http"),
    ],
)
def test_what_is_not_installed_is_named(missing: str, package: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import quire.serve.tracing as t\n"
        "try: t.make_provider() if 'exporter' not in sys.argv[1] else t.RequestTracer.otlp('http://x')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, missing], capture_output=True, text=True, check=True
    )
    assert f"tracing needs the package {package}: pip install 'quire[trace]'" in done.stdout


def test_importing_quire_imports_no_opentelemetry() -> None:
    program = "import sys, quire, quire.serve.tracing; sys.exit('opentelemetry' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)

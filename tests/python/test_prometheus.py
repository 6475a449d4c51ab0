"""The metrics of an engine and a server, as Prometheus's own client reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from prometheus_samples import Samples
from quire import (
    LLM,
    EngineConfig,
    LLMEngine,
    LoRARequest,
    PrometheusMetrics,
    RequestOutput,
    SamplingParams,
)
from quire.serve.http_metrics import HttpMetrics
from serving import wait_until

ADAPTERS = ROOT / "tests" / "python" / "data" / "adapters"

# Families of vLLM 0.26's vllm/v1/metrics/loggers.py and spec_decode/metrics.py that Quire has, as shown.
OF_VLLM = {
    "gauge": [
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info",
    ],
    "counter": [
        "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_hits", "num_preemptions",
        "prompt_tokens", "prompt_tokens_cached", "generation_tokens", "request_success",
        "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    ],
    "histogram": [
        "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
        "request_time_per_output_token_seconds", "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
        "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n",
        "request_params_max_tokens", "request_prefill_kv_computed_tokens", "iteration_tokens_total",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def run(demo_model: Path) -> tuple[Samples, list[RequestOutput], list[SamplingParams]]:
    """Eight requests, the last with a cached prompt, and what was measured."""
    metrics = PrometheusMetrics(model_name="demo", alias_vllm=True)
    llm = LLM(demo_model, metric_sink=metrics, max_num_seqs=4)
    prompts: list[Any] = [[5 + i] * (4 + 8 * i) for i in range(7)]
    params = [SamplingParams(max_tokens=3 + i, ignore_eos=True) for i in range(7)]
    params[0] = SamplingParams(n=2, max_tokens=4, seed=1, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    params.append(SamplingParams(max_tokens=1))
    outputs += llm.generate(prompts[-1], params[-1], use_tqdm=False)
    return Samples(metrics.render()), outputs, params


def test_prometheus_reads_every_family_of_vllms(run: tuple[Samples, Any, Any]) -> None:
    types = {family.name: family.type for family in run[0].families}
    for kind, names in OF_VLLM.items():
        for name in names:
            assert types[f"quire:{name}"] == types[f"vllm:{name}"] == kind
    assert all(family.documentation for family in run[0].families)


def test_every_family_is_an_engines_of_a_model(run: tuple[Samples, Any, Any]) -> None:
    for family in run[0].families:
        for sample in family.samples:
            assert sample.labels["model_name"] == "demo" and sample.labels["engine"] == "0"


def test_sums_and_counts_are_what_the_outputs_say(
    run: tuple[Samples, list[RequestOutput], list[SamplingParams]],
) -> None:
    samples, outputs, params = run
    single = outputs[1:]  # of one completion: their times are the request's

    def total(of: Callable[[RequestOutput], float], among: list[RequestOutput] = outputs) -> float:
        return sum(of(output) for output in among)

    num_completions = sum(p.n for p in params)
    assert samples("quire:generation_tokens_total") == total(lambda o: o.usage.num_generation_tokens)
    assert samples("quire:request_generation_tokens_sum") == total(lambda o: o.usage.num_generation_tokens)
    assert samples("quire:request_prompt_tokens_sum") == total(
        lambda o: o.usage.num_prompt_tokens * len(o.outputs)
    )
    assert samples("quire:prompt_tokens_total") == samples("quire:request_prompt_tokens_sum")
    cached = samples("quire:prompt_tokens_cached_total")
    assert cached >= total(lambda o: o.usage.num_cached_tokens) > 0
    assert (
        samples("quire:request_prefill_kv_computed_tokens_sum")
        == samples("quire:prompt_tokens_total") - cached
    )
    assert samples("quire:request_params_max_tokens_sum") == sum(p.n * (p.max_tokens or 0) for p in params)
    assert samples("quire:request_params_n_sum") == num_completions
    assert samples("quire:request_params_n_count") == len(outputs)
    assert samples("quire:request_max_num_generation_tokens_sum") == total(
        lambda o: max(len(c.token_ids) for c in o.outputs)
    )
    assert samples("quire:e2e_request_latency_seconds_count") == num_completions
    reasons = [c.finish_reason for output in outputs for c in output.outputs]
    for reason in ("stop", "length", "abort", "error"):
        assert samples("quire:request_success_total", finished_reason=reason) == reasons.count(reason)
    times: list[tuple[str, Callable[[RequestOutput], float]]] = [
        ("time_to_first_token_seconds", lambda o: o.metrics.first_token_latency),
        ("request_queue_time_seconds", lambda o: o.metrics.queued_time),
        ("request_prefill_time_seconds", lambda o: o.metrics.prefill_time),
        ("request_decode_time_seconds", lambda o: o.metrics.decode_time),
        ("request_inference_time_seconds", lambda o: o.metrics.inference_time),
    ]
    for name, seconds in times:
        assert samples(f"quire:{name}_count") == num_completions
        # Of the first request's two completions the output does not say each one's.
        assert samples(f"quire:{name}_sum") >= total(seconds, single) - 1e-9


def test_times_of_single_completions_add_up_exactly(demo_model: Path) -> None:
    metrics = PrometheusMetrics(model_name="demo")
    llm = LLM(demo_model, metric_sink=metrics)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    outputs = [llm.generate("Once upon a time", params, use_tqdm=False)[0] for _ in range(3)]
    samples = Samples(metrics.render())
    for name, of in (
        ("time_to_first_token_seconds", "first_token_latency"),
        ("request_queue_time_seconds", "queued_time"),
        ("request_prefill_time_seconds", "prefill_time"),
        ("request_decode_time_seconds", "decode_time"),
        ("inter_token_latency_seconds", "decode_time"),
        ("request_inference_time_seconds", "inference_time"),
        ("request_time_per_output_token_seconds", "mean_time_per_output_token"),
    ):
        expected = sum(getattr(output.metrics, of) for output in outputs)
        assert samples(f"quire:{name}_sum") == pytest.approx(expected, rel=1e-9), name


def test_buckets_count_what_is_at_most_their_bound(run: tuple[Samples, list[RequestOutput], Any]) -> None:
    samples, outputs, _ = run
    lengths = [len(c.token_ids) for output in outputs for c in output.outputs]
    for bound, count in samples.buckets("quire:request_generation_tokens"):
        assert count == sum(length <= bound for length in lengths)
    for family in samples.families:
        if family.type == "histogram":
            counts = [count for _, count in samples.buckets(family.name)]
            assert counts == sorted(counts)
            assert counts[-1] == samples(f"{family.name}_count")


def test_vllms_names_can_stand_alone() -> None:
    text = PrometheusMetrics(model_name="m", alias_vllm=True, quire_names=False).render()
    assert b"quire:" not in text and b"vllm:num_requests_running{" in text
    with pytest.raises(ValueError, match="quire_names and alias_vllm are both false"):
        PrometheusMetrics(model_name="m", quire_names=False)


def test_labels_come_back_as_they_were() -> None:
    name = 'a "model"\nof C:\\n, grüße \N{OWL}'
    for family in Samples(PrometheusMetrics(model_name=name, engine="7").render()).families:
        assert {(s.labels["model_name"], s.labels["engine"]) for s in family.samples} == {(name, "7")}


def test_a_sink_has_one_engine_at_a_time(demo_model: Path, tmp_path: Path) -> None:
    metrics = PrometheusMetrics(model_name="demo")
    (tmp_path / "config.json").write_text("{}")
    for _ in range(2):  # an engine that could not be made does not keep it
        with pytest.raises(ValueError) as failure:
            LLM(tmp_path, metric_sink=metrics)
        assert "metric_sink" not in str(failure.value)
    config = EngineConfig(demo_model, metric_sink=metrics)
    assert isinstance(config.metric_sink, PrometheusMetrics)
    first = LLM.from_config(config)
    for make in (LLM.from_config, LLMEngine.from_config):
        with pytest.raises(
            ValueError, match=r"metric_sink \(PrometheusMetrics of model_name 'demo'.*already"
        ):
            make(config)
    first.generate("Once", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert Samples(metrics.render())("quire:num_kv_cache_blocks") > 0
    del first
    samples = Samples(metrics.render())
    assert samples("quire:num_kv_cache_blocks") == 0
    assert "quire:cache_config_info" not in samples.names()
    second = LLM.from_config(config)
    second.generate("Once", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert Samples(metrics.render())("quire:generation_tokens_total") == 4


def test_how_the_cache_was_made_is_told_before_the_first_step(demo_model: Path) -> None:
    metrics = PrometheusMetrics(model_name="demo")
    engine = LLMEngine(demo_model, metric_sink=metrics, num_gpu_blocks_override=80, block_size=32)
    [info] = [f for f in Samples(metrics.render()).families if f.name == "quire:cache_config_info"]
    labels = info.samples[0].labels
    assert labels["num_gpu_blocks"] == "80" and labels["block_size"] == "32"
    assert labels["cache_dtype"] == engine.model.dtype


def test_adapters_of_an_engine_that_has_any_are_labels(demo_model: Path) -> None:
    metrics = PrometheusMetrics(model_name="demo", alias_vllm=True)

    def told(name: str = "quire:lora_requests_info") -> dict[str, str]:
        families = [family for family in Samples(metrics.render()).families if family.name == name]
        [sample] = families[0].samples if families else [None]
        if sample is None:
            return {}
        assert abs(sample.value - time.time()) < 60
        return {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}

    llm = LLM(demo_model, metric_sink=metrics, enable_lora=True, max_loras=3)
    idle = {"max_lora": "3", "waiting_lora_adapters": "", "running_lora_adapters": ""}
    assert told() == told("vllm:lora_requests_info") == idle
    adapters = [LoRARequest(name, 0, ADAPTERS / name) for name in ("sailor", "json")]
    params = SamplingParams(max_tokens=1500, ignore_eos=True)
    streams = [llm.stream("Once", params, lora_request=adapter) for adapter in adapters]
    for stream in streams:
        next(stream)
    assert told() == {**idle, "running_lora_adapters": "json,sailor"}
    del stream, streams
    wait_until(lambda: told() == idle)


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(TypeError, match="metric_sink must be PrometheusMetrics"):
        EngineConfig("x", metric_sink=print)  # type: ignore[arg-type]


def test_a_servers_families_stand_beside_the_engines() -> None:
    metrics = PrometheusMetrics(model_name="demo")
    requests = metrics.add_family(
        "counter", "http_requests_total", "Requests", labels=["route", "method", "status"]
    )
    seconds = metrics.add_family(
        "histogram", "http_request_duration_seconds", "Seconds", labels=["route"], buckets=[0.1, 1, 10]
    )
    streams = metrics.add_family("gauge", "http_streams", "Streams in flight")

    def serve() -> None:
        for _ in range(500):
            streams.add()
            requests.add(["/v1/completions", "POST", "200"])
            seconds.observe(["/v1/completions"], 0.5)
            metrics.render()
            streams.add(amount=-1)

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    samples = Samples(metrics.render())
    assert samples("http_requests_total", route="/v1/completions", method="POST", status="200") == 2000
    assert samples("http_request_duration_seconds_sum", route="/v1/completions") == 1000
    assert samples("http_request_duration_seconds_bucket", route="/v1/completions", le="0.1") == 0
    assert samples("http_streams") == 0
    with pytest.raises(
        ValueError, match=r"http_requests_total has 3 labels \(route, method, status\), got 1"
    ):
        requests.add(["/"])
    with pytest.raises(ValueError, match="kind must be 'counter', 'gauge' or 'histogram', got 'summary'"):
        metrics.add_family("summary", "a", "b")


def test_http_is_counted_by_route_method_and_status() -> None:
    metrics = PrometheusMetrics(model_name="demo")
    http = HttpMetrics(metrics)
    with pytest.raises(RuntimeError), http.stream(), http.stream():
        assert Samples(metrics.render())("http_streams") == 2
        http.answered("/v1/completions", "POST", 200, 0.25)
        http.answered("unknown", "BREW", 418, 0.001)
        raise RuntimeError
    samples = Samples(metrics.render())
    assert samples("http_streams") == 0
    assert samples("http_requests_total", route="/v1/completions", method="POST", status="200") == 1
    assert samples("http_requests_total", route="unknown", method="other", status="418") == 1
    assert samples("http_request_duration_seconds_sum", route="/v1/completions", method="POST") == 0.25
    with pytest.raises(ValueError, match="http_requests_total already"):
        HttpMetrics(metrics)

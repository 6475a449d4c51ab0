"""The backend's families on the server's metrics port, and the server's own statistics."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from triton_fixtures import ENDLESS
from triton_metrics import Metrics, read_metrics
from triton_requests import open_stream, stream_infer
from triton_server import TritonServer, poll
from tritonclient.utils import InferenceServerException

HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "request_inference_time_seconds",
    "request_time_per_output_token_seconds",
    "request_prefill_kv_computed_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
)
GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_kv_cache_blocks",
    "num_kv_cache_blocks_used",
    "expert_load_imbalance",
)
COUNTERS = (
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "generation_tokens_total",
    "expert_tokens_total",
    "request_success_total",
    "cudagraph_steps_total",
)
IDS = [17, 300, 42, 8, 99]
Models = Callable[..., None]


def ask(server: TritonServer, model: str, ids: list[int], max_tokens: int) -> None:
    sampling = {"max_tokens": max_tokens, "ignore_eos": True}
    stream_infer(
        server.grpc_address, model, {"input_ids": ids, "stream": True, "sampling_parameters": sampling}
    )


def counted(server: TritonServer, model: str, finished: float) -> Metrics:
    """The metrics once so many requests are counted as finished."""
    reason = "length"
    poll(
        f"{finished} finished",
        lambda: read_metrics(server, model)("request_success_total", finished_reason=reason) == finished,
    )
    return read_metrics(server, model)


def test_every_family_has_help_type_and_the_model(server: TritonServer) -> None:
    server.generate("demo", text_input="Once", max_tokens=3)
    text = server.metrics()
    for kind, names in (("histogram", HISTOGRAMS), ("gauge", GAUGES), ("counter", COUNTERS)):
        for name in names:
            assert f"# HELP quire:{name} " in text
            assert f"# TYPE quire:{name} {kind}\n" in text
    for model in ("demo", "sync"):
        [line] = [
            line
            for line in text.splitlines()
            if line.startswith("quire:num_requests_running{") and f'model="{model}"' in line
        ]
        assert f'model_name="{model}"' in line and 'version="1"' in line


def test_counters_count_exactly(server: TritonServer, models: Models) -> None:
    models("counted")
    ask(server, "counted", IDS, max_tokens=7)
    ask(server, "counted", IDS, max_tokens=3)
    metrics = counted(server, "counted", 2)
    assert metrics("prompt_tokens_total") == 10
    assert metrics("generation_tokens_total") == 10
    assert metrics("time_to_first_token_seconds_count") == 2
    assert metrics("inter_token_latency_seconds_count") == 6 + 2
    assert metrics("time_per_output_token_seconds_count") == 6 + 2
    assert metrics("time_per_output_token_seconds_sum") == metrics("inter_token_latency_seconds_sum")
    assert metrics("request_inference_time_seconds_count") == 2
    assert metrics("request_params_max_tokens_sum") == 7 + 3
    assert metrics("request_params_n_sum") == 2
    assert metrics("request_max_num_generation_tokens_sum") == 7 + 3
    assert metrics("request_time_per_output_token_seconds_count") == 2
    # The last token of each is not computed with.
    assert metrics("iteration_tokens_total_sum") == 5 + 6 + 5 + 2
    assert metrics("e2e_request_latency_seconds_count") == 2
    assert metrics("request_queue_time_seconds_count") == 2
    assert metrics("num_preemptions_total") == 0


def test_latencies_are_in_order(server: TritonServer, models: Models) -> None:
    models("timed")
    ask(server, "timed", IDS, max_tokens=20)
    metrics = counted(server, "timed", 1)
    queued, first, all_, between = (
        metrics(f"{name}_sum")
        for name in (
            "request_queue_time_seconds",
            "time_to_first_token_seconds",
            "e2e_request_latency_seconds",
            "inter_token_latency_seconds",
        )
    )
    assert 0 <= queued <= first < all_ < 10
    assert abs(first + between - all_) < 0.05


def test_buckets_are_cumulative(server: TritonServer, models: Models) -> None:
    models("buckets")
    ask(server, "buckets", IDS, max_tokens=5)
    counted(server, "buckets", 1)
    for name in HISTOGRAMS:
        lines = [
            line
            for line in server.metrics().splitlines()
            if line.startswith(f"quire:{name}_bucket") and 'model="buckets"' in line
        ]
        counts = [float(line.rsplit(" ", 1)[1]) for line in lines]
        assert len(counts) > 5
        assert counts == sorted(counts)
        assert counts[-1] == read_metrics(server, "buckets")(f"{name}_count")


def test_a_repeated_prompt_is_a_prefix_hit(server: TritonServer, models: Models) -> None:
    models("prefix", {"block_size": 16})
    ids = list(range(100, 149))  # three full blocks and a token
    ask(server, "prefix", ids, max_tokens=1)
    ask(server, "prefix", ids, max_tokens=1)
    metrics = counted(server, "prefix", 2)
    assert metrics("prefix_cache_queries_total") == 98
    assert metrics("prefix_cache_hits_total") == 48
    assert metrics("prompt_tokens_cached_total") == 48
    assert metrics("request_prefill_kv_computed_tokens_sum") == 50


def test_preemptions_are_counted(server: TritonServer, models: Models) -> None:
    """Seven blocks of 16 for two requests that grow to five each."""
    parameters = {
        "num_gpu_blocks_override": 8,
        "max_model_len": 112,
        "kv_cache_memory_bytes": 0,
        "max_num_seqs": 4,
    }
    models("tight", parameters)
    inputs = {"input_ids": IDS, "stream": True, "sampling_parameters": {"max_tokens": 70, "ignore_eos": True}}
    with open_stream(server.grpc_address) as stream:
        stream.send("tight", inputs)
        stream.send("tight", inputs)
        stream.until_final()
        stream.until_final()
    assert counted(server, "tight", 2)("num_preemptions_total") >= 1


def pending(server: TritonServer, model: str) -> float:
    """The server's own count of requests that its backend has not been given."""
    name = "nv_inference_pending_request_count{"
    lines = [line for line in server.metrics().splitlines() if line.startswith(name)]
    [value] = [float(line.split()[-1]) for line in lines if f'model="{model}"' in line]
    return value


def test_gauges_follow_what_runs(server: TritonServer, models: Models, long_model: Path) -> None:
    parameters = {"max_num_seqs": 1, "num_gpu_blocks_override": 601, "kv_cache_memory_bytes": 0}
    models("gauged", {**parameters, "model": long_model, "block_size": 16})
    assert read_metrics(server, "gauged")("num_kv_cache_blocks") == 600  # block 0 is kept back
    inputs = {"input_ids": IDS, "stream": True, "sampling_parameters": ENDLESS}
    with open_stream(server.grpc_address) as stream:
        stream.send("gauged", {**inputs, "request_id": "runs"})
        stream.next()
        stream.send("gauged", {**inputs, "request_id": "waits"})
        poll("one waits", lambda: read_metrics(server, "gauged")("num_requests_waiting") == 1)
        metrics = read_metrics(server, "gauged")
        assert metrics("num_requests_running") == 1
        assert 0 < metrics("kv_cache_usage_perc") < 1
        assert metrics("num_kv_cache_blocks") == 600
        assert metrics("num_kv_cache_blocks_used") == pytest.approx(600 * metrics("kv_cache_usage_perc"))
        assert pending(server, "gauged") == 0  # what waits is in the engine: the server holds nothing back
        for request_id in ("waits", "runs"):
            assert server.cancel("gauged", request_id).status == 200
    poll("none runs", lambda: read_metrics(server, "gauged")("num_requests_running") == 0)
    metrics = read_metrics(server, "gauged")
    assert metrics("num_kv_cache_blocks_used") == 0 and metrics("num_kv_cache_blocks") == 600


def test_refused_requests_are_no_successes(server: TritonServer, models: Models) -> None:
    models("strict")
    assert server.request("v2/models/strict/generate", {"text_input": "x", "top_p": 7}).status == 400
    ask(server, "strict", IDS, max_tokens=2)
    metrics = counted(server, "strict", 1)
    assert metrics("prompt_tokens_total") == 5


def test_an_unloaded_models_metrics_go(server: TritonServer, models: Models) -> None:
    models("passing")
    ask(server, "passing", IDS, max_tokens=2)
    server.unload("passing")
    assert not [name for name in read_metrics(server, "passing").names() if name.startswith("quire:")]


def test_statistics_say_where_the_time_went(server: TritonServer, models: Models) -> None:
    models("observed", decoupled=False)
    for _ in range(3):
        server.generate("observed", text_input="Once", max_tokens=100, ignore_eos=True)
    poll("three are counted", lambda: server.statistics("observed")["inference_count"] == 3)
    statistics = server.statistics("observed")["inference_stats"]
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert statistics[name]["count"] == 3, name
        assert statistics[name]["ns"] > 0, name
    parts = sum(
        statistics[name]["ns"] for name in ("queue", "compute_input", "compute_infer", "compute_output")
    )
    assert parts <= statistics["success"]["ns"]
    assert statistics["compute_infer"]["ns"] > statistics["compute_input"]["ns"]


def test_statistics_of_a_decoupled_model_count_requests(server: TritonServer, models: Models) -> None:
    models("flowing")
    ask(server, "flowing", IDS, max_tokens=6)
    poll("one is counted", lambda: server.statistics("flowing")["inference_stats"]["success"]["count"] == 1)
    assert server.statistics("flowing")["inference_stats"]["compute_infer"]["ns"] > 0


def failures(server: TritonServer, model: str) -> dict[str, float]:
    """The server's own counter, by reason."""
    lines = [
        line for line in server.metrics().splitlines() if line.startswith("nv_inference_request_failure{")
    ]
    return {
        re.findall(r'reason="(\w+)"', line)[0]: float(line.split()[-1])
        for line in lines
        if f'model="{model}"' in line
    }


def test_only_the_backends_failures_are_counted_as_such(
    server: TritonServer, models: Models, long_model: Path
) -> None:
    models("failing", {"model": long_model, "max_queued_requests": 1})
    statistics = functools.partial(server.statistics, "failing")
    for _ in range(2):
        assert server.request("v2/models/failing/generate", {"text_input": "x", "top_p": 7}).status == 400
    inputs = {"input_ids": IDS, "stream": True, "request_id": "it", "sampling_parameters": ENDLESS}
    with open_stream(server.grpc_address) as stream:
        stream.send("failing", inputs)
        stream.next()
        assert "max_queued_requests" in server.request("v2/models/failing/generate", {"text_input": "x"}).body
        assert server.cancel("failing", "it").status == 200
        with pytest.raises(InferenceServerException, match="cancelled"):
            stream.until_final()
    poll("the cancel is counted", lambda: statistics()["inference_stats"]["success"]["count"] == 1)
    assert statistics()["inference_stats"]["fail"]["count"] == 1
    assert failures(server, "failing") == {"BACKEND": 1, "CANCELED": 0, "OTHER": 0, "REJECTED": 0}

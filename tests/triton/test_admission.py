"""What is refused when there is too much, what comes first, and what ends when its time is up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pieces import in_pieces
from triton_fixtures import ENDLESS
from triton_metrics import is_idle, read_metrics
from triton_requests import error_of, infer, open_stream, stream_infer
from triton_server import TritonServer, poll
from tritonclient.utils import InferenceServerException

LONG = {"text_input": "Once upon a time", "stream": True, "sampling_parameters": ENDLESS}
Models = Callable[..., None]


def test_what_exceeds_max_queued_requests_is_unavailable(
    server: TritonServer, models: Models, long_model: Path
) -> None:
    models("small", {"model": long_model, "max_queued_requests": 1})
    with open_stream(server.grpc_address) as stream:
        stream.send("small", {**LONG, "request_id": "it"})
        stream.next()
        answer = server.request("v2/models/small/generate", {"text_input": "me too", "max_tokens": 1})
        assert answer.status == 400  # /generate's for every error
        assert "max_queued_requests" in answer.body
        stream.send("small", LONG)
        with pytest.raises(InferenceServerException, match="max_queued_requests"):
            while True:
                stream.next()
        assert server.cancel("small", "it").status == 200
    poll("small is idle", lambda: is_idle(server, "small"))
    assert server.generate("small", text_input="me now", max_tokens=1)["text_output"]


def test_the_stock_client_can_tell_that_it_is_unavailable(
    client: Any, server: TritonServer, models: Models, long_model: Path
) -> None:
    models("small_sync", {"model": long_model, "max_queued_requests": 2}, decoupled=False)
    with open_stream(server.grpc_address) as stream:
        for request_id in ("a", "b"):
            stream.send("small_sync", {**LONG, "stream": False, "request_id": request_id})
        poll("both run", lambda: read_metrics(server, "small_sync")("num_requests_running") == 2)
        error = error_of(client, "small_sync", {"text_input": "me too"})
        for request_id in ("a", "b"):
            assert server.cancel("small_sync", request_id).status == 200
    assert "503" in error or "UNAVAILABLE" in error
    poll("it is idle", lambda: is_idle(server, "small_sync"))


def test_a_request_ends_when_its_deadline_passes(
    server: TritonServer, models: Models, long_model: Path
) -> None:
    models("long", {"model": long_model})
    sampling = {**ENDLESS, "deadline_ms": 600}
    inputs = {**LONG, "sampling_parameters": sampling, "return_finish_reason": True}
    deltas = in_pieces(lambda: stream_infer(server.grpc_address, "long", inputs))
    assert deltas[-1].outputs["finish_reason"] == ["abort"]
    assert deltas[-1].final


def test_the_deadline_of_a_plain_request_returns_what_there_is(
    server: TritonServer, models: Models, long_model: Path
) -> None:
    models("long_sync", {"model": long_model}, decoupled=False)
    answer = server.generate(
        "long_sync", text_input="Once", deadline_ms=600, return_finish_reason=True, **ENDLESS
    )
    assert answer["finish_reason"] == "abort"
    assert len(answer["text_output"]) > len("Once")


def test_the_queue_policy_of_the_configuration_is_about_the_queue(
    client: Any, server: TritonServer, models: Models, long_model: Path
) -> None:
    policy = "max_queue_size: 1 default_timeout_microseconds: 1500000 allow_timeout_override: true"
    config = f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
    models("policed", {"model": long_model, "max_num_seqs": 1}, decoupled=False, config=config)
    inputs = {"text_input": "Once", "sampling_parameters": {**ENDLESS, "deadline_ms": 6000}}
    with open_stream(server.grpc_address) as stream:
        stream.send("policed", inputs)
        poll("it runs", lambda: read_metrics(server, "policed")("num_requests_running") == 1)
        assert "default_timeout_microseconds" in error_of(client, "policed", inputs)
        with pytest.raises(InferenceServerException, match="timeout of 300000 us"):
            infer(client, "policed", inputs, timeout=300_000)
        stream.send("policed", inputs)
        poll("one waits", lambda: read_metrics(server, "policed")("num_requests_waiting") == 1)
        assert "max_waiting_requests 1" in error_of(client, "policed", {"text_input": "me too"})
        errors = 0
        for _ in range(2):  # the first has run for longer than the timeout, and ends by its deadline
            try:
                assert stream.next().text.startswith("Once")
            except InferenceServerException as error:
                assert "default_timeout_microseconds" in str(error)
                errors += 1
        assert errors == 1


def test_the_servers_own_request_timeout_is_kept(
    client: Any, server: TritonServer, models: Models, long_model: Path
) -> None:
    models("long_sync", {"model": long_model}, decoupled=False)
    inputs = {"text_input": "Once", "sampling_parameters": ENDLESS}
    with pytest.raises(InferenceServerException, match="timeout"):
        infer(client, "long_sync", inputs, timeout=600_000)  # microseconds
    poll("it is idle", lambda: is_idle(server, "long_sync"))


def test_a_lower_priority_value_is_served_first(
    server: TritonServer, models: Models, long_model: Path
) -> None:
    models("ranked", {"model": long_model, "scheduling_policy": "priority", "max_num_seqs": 1})
    order: list[str] = []
    with open_stream(server.grpc_address) as blocking, open_stream(server.grpc_address) as stream:
        blocking.send("ranked", {**LONG, "request_id": "runs"})
        blocking.next()
        for name, priority in [("last", 5), ("second", 0), ("first", -1)]:
            sampling = {"max_tokens": 20, "ignore_eos": True, "priority": priority}
            stream.send("ranked", {"text_input": name, "sampling_parameters": sampling}, request_id=name)
        poll("all wait", lambda: read_metrics(server, "ranked")("num_requests_waiting") == 3)
        assert server.cancel("ranked", "runs").status == 200
        while len(order) < 3:
            if (response := stream.next()).final:
                order.append(response.request_id)
    assert order == ["first", "second", "last"]


def test_priority_may_be_a_sampling_parameter(server: TritonServer) -> None:
    parameters = (
        '{"priority": "-3", "user": "mira", "cache_salt": "s", "add_special_tokens": false, "max_tokens": 2}'
    )
    assert server.generate("demo", text_input="Once", sampling_parameters=parameters)["text_output"]


def test_a_thousand_requests_at_once_are_all_answered(server: TritonServer) -> None:
    count = 1000
    with open_stream(server.grpc_address) as stream:
        for _ in range(count):
            stream.send(
                "demo", {"input_ids": [5, 6, 7], "sampling_parameters": {"max_tokens": 2, "ignore_eos": True}}
            )
        finals = 0
        while finals < count:
            finals += stream.next().final
    poll("demo is idle", lambda: is_idle(server, "demo"))

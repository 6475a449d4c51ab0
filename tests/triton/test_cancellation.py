"""However a client goes away, its request ends and its memory comes back."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
from test_decoupled import ENSEMBLE
from triton_fixtures import ENDLESS, ENGINE
from triton_metrics import is_idle, read_metrics
from triton_requests import error_of, infer, open_stream
from triton_server import HOST, TritonServer, poll, started_server
from tritonclient.utils import InferenceServerException

REQUEST = {"text_input": "Once upon a time", "stream": True, "sampling_parameters": ENDLESS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Iterator[TritonServer]:
    """One for these tests alone, because cancelling harms this server itself; see open_stream."""
    with started_server(tmp_path_factory.mktemp("cancellation")) as running:
        for name in ("demo", "sync"):
            running.write_model(name, {"model": long_model, **ENGINE}, decoupled=name == "demo")
            running.load(name)
        yield running
        assert running.process.poll() is None, f"the server died:\n{running.log.read_text()[-4000:]}"
        running.process.kill()
        running.process.wait()


@pytest.fixture(autouse=True)
def ends_early_and_leaves_nothing(server: TritonServer) -> Iterator[None]:
    """Around every test: no request goes on to its end, and all memory comes back."""

    def generated() -> list[float]:
        return [read_metrics(server, model)("generation_tokens_total") for model in ("demo", "sync")]

    def idle() -> bool:
        return is_idle(server, "demo") and is_idle(server, "sync")

    poll("nothing runs before the test", idle)
    before = generated()
    yield
    poll("nothing runs after the test", idle)
    assert all(now - then < 7000 for now, then in zip(generated(), before, strict=True))


def test_cancelling_a_grpc_stream_ends_its_requests(server: TritonServer) -> None:
    with open_stream(server.grpc_address) as stream:
        for _ in range(3):
            stream.send("demo", REQUEST)
        stream.next()
        assert read_metrics(server, "demo")("kv_cache_usage_perc") > 0
        stream.cancel()
        poll("demo is idle", lambda: is_idle(server, "demo"))


def test_a_unary_call_whose_deadline_passes_ends(server: TritonServer) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        inputs = {"text_input": "Once upon a time", "sampling_parameters": ENDLESS}
        with pytest.raises(InferenceServerException, match="Deadline"):
            infer(client, "sync", inputs, client_timeout=0.3)


def test_an_asynchronous_unary_call_can_be_cancelled(server: TritonServer) -> None:
    from triton_requests import tensors

    done = threading.Event()
    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        inputs = tensors(tritonclient.grpc, {"text_input": "Once", "sampling_parameters": ENDLESS})
        call = client.async_infer("sync", inputs, callback=lambda result, error: done.set())
        poll("it runs", lambda: read_metrics(server, "sync")("num_requests_running") == 1)
        call.cancel()
        assert done.wait(30)
        poll("sync is idle", lambda: is_idle(server, "sync"))


def test_closing_generate_stream_ends_its_request(server: TritonServer) -> None:
    connection = http.client.HTTPConnection(HOST, server.ports.http)
    body = json.dumps({"text_input": "Once", "stream": True, **ENDLESS})
    connection.request("POST", "/v2/models/demo/generate_stream", body)
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()


def test_a_client_that_is_killed_takes_its_request_along(server: TritonServer) -> None:
    code = """
import sys
from triton_requests import Stream
from test_cancellation import REQUEST
stream = Stream(sys.argv[1])
stream.send("demo", REQUEST)
while True:
    stream.next()
    print("got one", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, server.grpc_address],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"got one\n"
    assert read_metrics(server, "demo")("num_requests_running") == 1
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()


def test_a_stream_can_be_cancelled_by_its_id(server: TritonServer) -> None:
    with open_stream(server.grpc_address) as stream:
        stream.send("demo", {**REQUEST, "request_id": "tale"})
        stream.next()
        answer = server.cancel("demo", "tale")
        assert answer.status == 200
        assert answer.json()["finish_reason"] == "abort"
        with pytest.raises(InferenceServerException, match=r"(?i)cancel"):
            while True:
                stream.next()


def test_generate_can_be_cancelled_by_id(server: TritonServer) -> None:
    """The server does not notice when the client of a plain HTTP request goes away."""
    answers = []
    fields = {"text_input": "Once", "request_id": "plain", **ENDLESS}
    thread = threading.Thread(
        target=lambda: answers.append(server.request("v2/models/sync/generate", fields))
    )
    thread.start()
    poll("it runs", lambda: read_metrics(server, "sync")("num_requests_running") == 1)
    assert server.cancel("sync", "plain").status == 200
    thread.join(30)
    [answer] = answers
    assert answer.status >= 400
    assert "cancel" in answer.body.lower()


def test_the_stock_client_can_cancel_by_id(client: Any, server: TritonServer) -> None:
    with open_stream(server.grpc_address) as stream:
        stream.send("demo", {**REQUEST, "request_id": "tale"})
        stream.next()
        # Another model has no such request.
        error = error_of(client, "sync", {"request_id": "tale", "cancel": True})
        assert "404" in error or "NOT_FOUND" in error
        assert "tale" in error
        assert server.cancel("demo", "tale").status == 200


def test_cancelling_what_is_not_there_is_an_error(server: TritonServer) -> None:
    answer = server.cancel("demo", "nobody")
    assert answer.status == 400  # /generate's for every error; the test above has the stock client's
    assert "nobody" in answer.body


def test_cancelling_needs_an_id(server: TritonServer) -> None:
    answer = server.request("v2/models/demo/generate", {"cancel": True})
    assert answer.status == 400
    assert "request_id" in answer.body


def test_an_id_may_be_used_again_when_its_request_has_ended(server: TritonServer) -> None:
    for _ in range(2):
        fields = {"text_input": "Once", "request_id": "mine", "max_tokens": 3}
        assert server.generate("demo", **fields)["text_output"].startswith("Once")
    assert "mine" in server.cancel("demo", "mine").json()["error"]


def test_an_id_in_use_is_refused(server: TritonServer) -> None:
    with open_stream(server.grpc_address) as stream:
        stream.send("demo", {**REQUEST, "request_id": "tale"})
        stream.next()
        answer = server.request("v2/models/demo/generate", {"text_input": "x", "request_id": "tale"})
        stream.cancel()
        assert answer.status == 400
        assert "tale" in answer.body


def test_a_cancelled_ensemble_goes_on_until_its_step_is_cancelled_by_id(server: TritonServer) -> None:
    """The server does not tell the steps of an ensemble; they do have the name that its client gave."""
    (server.repository / "ensemble" / "1").mkdir(parents=True)
    (server.repository / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    server.load("ensemble")
    with open_stream(server.grpc_address) as stream:
        stream.send("ensemble", {"prompt": "Once", "live": True}, ENDLESS, request_id="tale")
        stream.next()
        stream.cancel()
        time.sleep(0.5)  # a model's own stream ends within a step
        assert read_metrics(server, "demo")("num_requests_running") == 1
        assert server.cancel("demo", "tale").status == 200
        poll("demo is idle", lambda: is_idle(server, "demo"))


def test_many_cancelled_requests_leave_the_engine_as_it_was(server: TritonServer) -> None:
    for _ in range(3):
        with open_stream(server.grpc_address) as stream:
            for _ in range(8):
                stream.send("demo", REQUEST)
            stream.next()
            stream.cancel()
    assert server.generate("demo", text_input="Once", max_tokens=2)["text_output"].startswith("Once")

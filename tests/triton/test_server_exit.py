"""SIGTERM under load: what can finish does, what cannot is told, and the server ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_cancellation import REQUEST
from triton_fixtures import KV_BYTES
from triton_metrics import read_metrics
from triton_requests import Stream
from triton_server import TritonServer, poll, started_server
from tritonclient.utils import InferenceServerException


@pytest.fixture
def ending_server(tmp_path: Path, demo_model: Path, request: pytest.FixtureRequest) -> Iterator[TritonServer]:
    """A server whose exit timeout is 4 s and whose grace is 1 s, or both what a test parametrizes it with."""
    timeout, grace = getattr(request, "param", (4, 1))
    options = (f"--exit-timeout-secs={timeout}", f"--backend-config=quire,exit-grace-secs={grace}")
    with started_server(tmp_path, *options) as running:
        running.write_model("demo", {"model": demo_model, "kv_cache_memory_bytes": KV_BYTES})
        running.load("demo")
        yield running


def stop_under_load(
    server: TritonServer, stream: Callable[[], object], *, seconds: float = 10, may_crash: bool = False
) -> int:
    """Sends SIGTERM while 8 threads stream; returns the server's status when it and they have ended."""
    threads = [threading.Thread(target=stream) for _ in range(8)]
    for thread in threads:
        thread.start()
    poll("they run", lambda: read_metrics(server, "demo")("num_requests_running") == 8)
    start = time.monotonic()
    status = server.stop()
    took = time.monotonic() - start
    for thread in threads:
        thread.join(10)
    log = server.log.read_text()
    assert took < seconds, log[
        -4000:
    ]  # the exit timeout, what docs/triton.md promises after it, and one more
    assert may_crash or status >= 0, log[-4000:]
    return status


@pytest.mark.parametrize("ending_server", [(15, 15)], indirect=True)  # longer than a busy machine takes
def test_sigterm_lets_http_requests_finish(ending_server: TritonServer) -> None:
    answers = []
    fields = {"text_input": "Once", "stream": True, "max_tokens": 400, "ignore_eos": True}
    fields["return_num_output_tokens"] = True
    path = "v2/models/demo/generate_stream"
    status = stop_under_load(
        ending_server, lambda: answers.append(ending_server.request(path, fields)), seconds=20
    )
    assert status == 0, ending_server.log.read_text()[-4000:]
    for answer in answers:
        events = [json.loads(line[6:]) for line in answer.body.splitlines() if line]
        assert sum(event["num_output_tokens"] for event in events) == 400


def test_sigterm_tells_grpc_streams_that_would_take_too_long(ending_server: TritonServer) -> None:
    errors = []

    def read_to_the_end() -> None:
        stream = Stream(ending_server.grpc_address)
        stream.send("demo", REQUEST)
        try:
            stream.until_final()
        except InferenceServerException as error:
            errors.append(str(error))
        stream.close()

    status = stop_under_load(ending_server, read_to_the_end)
    assert status == 0, ending_server.log.read_text()[-4000:]
    assert len(errors) == 8
    assert all("shutting down" in error for error in errors)


def test_a_server_that_gives_up_waiting_ends(ending_server: TritonServer) -> None:
    """The server counts open HTTP connections first, for the whole of its timeout, and tells nobody."""
    fields = {"text_input": "Once", "stream": True, "max_tokens": 2000, "ignore_eos": True}

    def read_until_cut() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ending_server.request("v2/models/demo/generate_stream", fields)

    # The server may crash then, without our doing; it may not hang.
    stop_under_load(ending_server, read_until_cut, may_crash=True)

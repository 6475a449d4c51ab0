"""An engine that fails: its requests are told, its model is not ready, and a reload revives it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cancellation import REQUEST
from triton_fixtures import KV_BYTES
from triton_metrics import read_metrics
from triton_requests import open_stream
from triton_server import HOST, TritonServer, poll, started_server
from tritonclient.utils import InferenceServerException

NUM_STREAMS = 300
# Room for the ids of so long an answer is taken when the request comes in, by the engine and by no step.
LARGE = {"text_input": "and me", "max_tokens": 2000, "ignore_eos": True}
LARGE_BYTES = 2000 * 4


@pytest.fixture(scope="module")
def failing_new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("failing_new") / "libfailing_new.so"
    source = Path(__file__).parent / "failing_new.cc"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def test_a_failed_engine_is_not_ready_and_a_reload_revives_it(
    tmp_path: Path, long_model: Path, failing_new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = tmp_path / "now"
    monkeypatch.setenv("LD_PRELOAD", str(failing_new))
    monkeypatch.setenv("QUIRE_FAIL_WHEN", str(now))
    monkeypatch.setenv("QUIRE_FAIL_BYTES", str(LARGE_BYTES))
    with started_server(tmp_path) as failing:
        monkeypatch.delenv("LD_PRELOAD")
        for name in ("demo", "bystander"):
            failing.write_model(name, {"model": long_model, "kv_cache_memory_bytes": KV_BYTES})
            failing.load(name)
        with open_stream(failing.grpc_address) as stream:
            stream.send("demo", REQUEST)
            stream.next()
            now.touch()
            answer = failing.request("v2/models/demo/generate", LARGE)
            assert answer.status >= 400
            with pytest.raises(InferenceServerException, match="bad_alloc"):
                while True:
                    stream.next()
        assert not now.exists()
        poll("it is not ready", lambda: not failing.is_ready("demo"))
        assert failing.generate("bystander", text_input="Once", max_tokens=2)["text_output"]
        failing.unload("demo")
        failing.load("demo")
        assert failing.generate("demo", text_input="Once", max_tokens=2)["text_output"].startswith("Once")


@pytest.fixture(params=[LARGE_BYTES])
def failing_server(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    long_model: Path,
    failing_new: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[TritonServer, Path]]:
    """A server with ``demo``, and the file whose creation has an engine fail."""
    now = tmp_path / "now"
    monkeypatch.setenv("LD_PRELOAD", str(failing_new))
    monkeypatch.setenv("QUIRE_FAIL_WHEN", str(now))
    monkeypatch.setenv("QUIRE_FAIL_BYTES", str(request.param))
    arguments = ("--http-thread-count=2", "--backend-config=quire,response-burst=96")
    with started_server(tmp_path, *arguments) as failing:
        monkeypatch.delenv("LD_PRELOAD")
        failing.write_model(
            "demo", {"model": long_model, "kv_cache_memory_bytes": 1 << 29, "max_num_seqs": 400}
        )
        failing.load("demo")
        yield failing, now


def test_a_failure_of_many_streams_is_told_to_all(failing_server: tuple[TritonServer, Path]) -> None:
    server, now = failing_server
    inputs = {"text_input": "Once", "stream": True, "max_tokens": 1500, "ignore_eos": True}
    body = json.dumps({**inputs, "return_finish_reason": True})
    connections = []
    for _ in range(NUM_STREAMS):
        connection = http.client.HTTPConnection(HOST, server.ports.http, timeout=60)
        connection.request("POST", "/v2/models/demo/generate_stream", body)
        connections.append(connection)
    poll("they run", lambda: read_metrics(server, "demo")("num_requests_running") > NUM_STREAMS / 2)
    now.touch()
    server.request("v2/models/demo/generate", {**LARGE, "deadline_ms": 2000})
    num_told = 0
    for connection in connections:
        answer = connection.getresponse().read()
        connection.close()
        if b"bad_alloc" in answer:
            num_told += 1
        else:  # in no step that failed
            assert b'"finish_reason":"length"' in answer, answer[-1000:]
    assert num_told > 0

    # While the batch grows, a step may have asked for as much: it takes its requests along, not the engine.
    def is_gone_or_serves() -> bool:
        state = server.state("demo")
        short = {"text_input": "Once", "max_tokens": 1}
        return state == "UNAVAILABLE" or (
            state == "READY" and server.request("v2/models/demo/generate", short).status == 200
        )

    poll("it is gone, or serves", is_gone_or_serves)


@pytest.mark.parametrize("failing_server", [0], indirect=True)
def test_an_old_engine_that_fails_does_not_take_the_new_one_along(
    failing_server: tuple[TritonServer, Path], demo_model: Path
) -> None:
    server, now = failing_server
    with open_stream(server.grpc_address) as stream, open_stream(server.grpc_address) as other:
        for one in (stream, other):
            one.send("demo", REQUEST)
            one.next()
        server.write_model("demo", {"model": demo_model, "kv_cache_memory_bytes": KV_BYTES, "num_threads": 1})
        server.load("demo")
        metrics = read_metrics(server, "demo")
        assert metrics("num_requests_running") == 0  # the new engine's
        now.touch()
        other.cancel()  # or no step of the old one would ask for memory before its request has ended
        with pytest.raises(InferenceServerException, match="bad_alloc"):
            while True:
                stream.next()
    assert server.is_ready("demo")
    assert server.generate("demo", text_input="Once", max_tokens=2)["text_output"].startswith("Once")

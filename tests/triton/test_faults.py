"""Faults to survive: vanishing clients, senseless requests, bursts, models that come and go.

A few of each by default; QUIRE_TRITON_FAULTS=full (tests/run_long.sh) makes them many.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.http
from malformed import malformed_request
from test_cancellation import REQUEST
from triton_fixtures import KV_BYTES
from triton_metrics import is_idle, read_metrics
from triton_requests import Stream, infer, open_stream, stream_infer
from triton_server import HOST, TritonServer, poll, started_server
from tritonclient.utils import InferenceServerException

FULL = os.environ.get("QUIRE_TRITON_FAULTS") == "full"
NUM_CANCELLED = 500 if FULL else 60
NUM_KILLED = 200 if FULL else 6
NUM_MALFORMED = 10_000 if FULL else 600
NUM_CYCLES = 100 if FULL else 12
NUM_BURST_STREAMS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[TritonServer]:
    """One of this module's own: Triton 2.51 itself may keep a model of which a stream was cancelled."""
    with started_server(tmp_path_factory.mktemp("faults")) as running:
        for name in ("demo", "sync"):
            parameters = {"model": demo_model, "kv_cache_memory_bytes": KV_BYTES, "num_threads": 1}
            running.write_model(name, parameters, decoupled=name == "demo")
            running.load(name)
        yield running
        assert running.process.poll() is None, f"the server died:\n{running.log.read_text()[-4000:]}"


def num_threads(server: TritonServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def resident_bytes(server: TritonServer) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_streams_cancelled_at_random_moments_leave_nothing(server: TritonServer) -> None:
    rng = random.Random(1)
    with open_stream(server.grpc_address) as warm:
        warm.send("demo", REQUEST)
        warm.next()
    poll("demo is idle", lambda: is_idle(server, "demo"))
    threads = num_threads(server)
    left = NUM_CANCELLED
    while left > 0:
        streams = [Stream(server.grpc_address) for _ in range(min(20, left))]
        left -= len(streams)
        for stream in streams:
            stream.send("demo", REQUEST)
        for stream in streams:
            time.sleep(rng.choice([0, 0, 0.001, 0.01]))
            stream.cancel()
            stream.close()
    poll("every block is free", lambda: is_idle(server, "demo"))
    # gRPC keeps a few threads of its own for a while; none is left for each stream.
    poll("the threads are gone", lambda: num_threads(server) <= threads + 4, timeout=30)
    metrics = read_metrics(server, "demo")
    assert metrics("request_success_total", finished_reason="abort") >= NUM_CANCELLED / 2
    assert server.generate("demo", text_input="Once", max_tokens=2)["text_output"].startswith("Once")


KILLED_CLIENT = """
import sys
from test_cancellation import REQUEST
from triton_requests import Stream
streams = [Stream(sys.argv[1]) for _ in range(2)]
for stream in streams:
    stream.send("demo", REQUEST)
streams[0].next()
print("running", flush=True)
while True:
    streams[1].next()
"""


def test_killed_clients_leave_nothing(server: TritonServer) -> None:
    poll("demo is idle", lambda: is_idle(server, "demo"))
    left = NUM_KILLED
    while left > 0:
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", KILLED_CLIENT, server.grpc_address],
                cwd=Path(__file__).parent,
                stdout=subprocess.PIPE,
            )
            for _ in range(min(10 if FULL else 3, left))
        ]
        left -= len(clients)
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == b"running\n"
            client.send_signal(signal.SIGKILL)
        for client in clients:
            client.communicate()
    poll("every block is free", lambda: is_idle(server, "demo"))


class ValidNeighbour:
    """Asks the same question over and over on a thread of its own; every answer must be the same."""

    def __init__(self, server: TritonServer) -> None:
        self._server = server
        self._expected = self._ask()
        self._stop = threading.Event()
        self._answers: list[Any] = []
        self._thread = threading.Thread(target=self._run)

    def _ask(self) -> Any:
        return self._server.generate(
            "sync", text_input="The baker said", max_tokens=8, temperature=0, logprobs=3, return_logprobs=True
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            self._answers.append(self._ask())

    def __enter__(self) -> ValidNeighbour:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        assert len(self._answers) > 3
        assert all(answer == self._expected for answer in self._answers)


def test_malformed_requests_are_refused_by_name_beside_valid_ones(server: TritonServer) -> None:
    rng = random.Random(2)
    connection = http.client.HTTPConnection(HOST, server.ports.http)
    with ValidNeighbour(server):
        for _ in range(NUM_MALFORMED):
            request = malformed_request(rng)
            connection.request("POST", "/v2/models/sync/infer", json.dumps(request.body))
            response = connection.getresponse()
            answer = response.read().decode()
            assert response.status == 400, (request, answer)
            assert request.names in answer, (request, answer)
            json.loads(answer)
    connection.close()
    poll("sync is idle", lambda: is_idle(server, "sync"))


@pytest.mark.parametrize("name", ["text_input", "sampling_parameters", "request_id"])
def test_text_that_is_not_utf8_is_refused(client: Any, server: TritonServer, name: str) -> None:
    inputs = {"text_input": "Once", "sampling_parameters": {"max_tokens": 2}, name: b'{"user": "\xff\xfe"}'}
    if name == "request_id":
        # Names are compared, never read.
        assert infer(client, "sync", inputs).text.startswith("Once")
        return
    with pytest.raises(InferenceServerException, match=name if name != "text_input" else "(?i)utf-8"):
        infer(client, "sync", inputs)


# Raw contents of text_input, a string of one element: its length, then its bytes.
RAW_TEXTS = {
    "nothing": b"",
    "half a length": b"\x04\x00",
    "a length beyond the end": b"\xff\xff\xff\xffOnce",
    "a length that stops short": b"\x02\x00\x00\x00Once",
    "two strings": b"\x01\x00\x00\x00a\x01\x00\x00\x00b",
}


@pytest.mark.parametrize("case", RAW_TEXTS)
def test_a_string_whose_length_lies_is_refused(server: TritonServer, case: str) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="sync", raw_input_contents=[RAW_TEXTS[case]])
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as refused:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "text_input" in refused.value.details()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 4 * 5000])
def test_token_ids_that_cannot_be_are_refused(server: TritonServer, size: int) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="sync", raw_input_contents=[b"\x05" * size])
    request.inputs.add(name="input_ids", datatype="INT32", shape=[max(size // 4, 1)])
    with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as refused:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=10)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_bytes_that_are_no_request_at_all_do_not_hurt(server: TritonServer) -> None:
    rng = random.Random(3)
    for _ in range(NUM_MALFORMED // 20):
        connection = http.client.HTTPConnection(HOST, server.ports.http)
        body = rng.randbytes(rng.choice([0, 1, 7, 100, 5000]))
        headers = {"Inference-Header-Content-Length": str(rng.choice([0, 1, 50, 10**9]))}
        path = rng.choice(["sync/infer", "demo/generate", "demo/generate_stream", "sync/generate"])
        connection.request("POST", f"/v2/models/{path}", body, headers if rng.random() < 0.5 else {})
        assert connection.getresponse().status >= 400
        connection.close()
    assert server.generate("demo", text_input="Once", max_tokens=2)["text_output"].startswith("Once")


@pytest.mark.parametrize(
    "options", [(), ("--http-thread-count=2", "--backend-config=quire,response-burst=96")]
)
def test_a_burst_of_http_streams_all_end(tmp_path: Path, demo_model: Path, options: tuple[str, ...]) -> None:
    """A burst of responses must not overrun the HTTP server's queue: it hangs then."""
    with started_server(tmp_path, *options) as small:
        small.write_model(
            "demo", {"model": demo_model, "max_num_seqs": 400, "kv_cache_memory_bytes": 1 << 29}
        )
        small.load("demo")
        body = json.dumps({"text_input": "Once", "stream": True, "max_tokens": 24, "ignore_eos": True})
        connections = []
        for _ in range(NUM_BURST_STREAMS):
            connection = http.client.HTTPConnection(HOST, small.ports.http, timeout=60)
            connection.request("POST", "/v2/models/demo/generate_stream", body)
            connections.append(connection)
        for connection in connections:
            events = [json.loads(line[6:]) for line in connection.getresponse().read().splitlines() if line]
            assert "".join(event["text_output"] for event in events)
            connection.close()
        poll("demo is idle", lambda: is_idle(small, "demo"))


@pytest.fixture
def own_server(tmp_path: Path, demo_model: Path) -> Iterator[TritonServer]:
    """A server that a test may end."""
    with started_server(tmp_path) as running:
        running.write_model("demo", {"model": demo_model, "kv_cache_memory_bytes": KV_BYTES})
        yield running


def test_loading_and_unloading_leaves_memory_and_threads_as_they_were(own_server: TritonServer) -> None:
    def cycle() -> None:
        own_server.load("demo")
        stream_infer(own_server.grpc_address, "demo", {**REQUEST, "sampling_parameters": {"max_tokens": 4}})
        own_server.unload("demo")

    for _ in range(NUM_CYCLES):  # until allocators and gRPC have what they keep
        cycle()
    threads, memory = num_threads(own_server), resident_bytes(own_server)
    for _ in range(NUM_CYCLES):
        cycle()
    poll("the threads are gone", lambda: num_threads(own_server) <= threads + 2)
    assert resident_bytes(own_server) < memory + (8 << 20)


def test_shared_memory_that_is_too_small_is_an_error_of_that_request_only(server: TritonServer) -> None:
    import tritonclient.utils.shared_memory as shm

    region = shm.create_shared_memory_region("small", f"/quire_small_{os.getpid()}", 8)
    with tritonclient.http.InferenceServerClient(server.http_address) as client:
        client.register_system_shared_memory("small", f"/quire_small_{os.getpid()}", 8)
        try:
            text = tritonclient.http.InferInput("text_input", [1], "BYTES")
            text.set_data_from_numpy(np.array([b"Once upon a time"], dtype=np.object_))
            output = tritonclient.http.InferRequestedOutput("text_output", binary_data=True)
            output.set_shared_memory("small", 8)
            with pytest.raises(InferenceServerException, match="text_output"):
                client.infer("sync", [text], outputs=[output])
        finally:
            client.unregister_system_shared_memory("small")
            shm.destroy_shared_memory_region(region)
    poll("sync is idle", lambda: is_idle(server, "sync"))
    assert server.generate("sync", text_input="Once", max_tokens=2)["text_output"].startswith("Once")

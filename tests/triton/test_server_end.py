"""The server ends within its timeouts, whatever its clients keep open, and answers what is under way."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from test_model_repository import start
from triton_fixtures import ENDLESS, ENGINE
from triton_metrics import read_metrics
from triton_requests import Stream
from triton_server import HOST, TritonServer, poll, started_server
from tritonclient.utils import InferenceServerException

# QUIRE_TRITON_FAULTS=full takes the server's own timeouts, and as many streams as have stuck it.
FULL = os.environ.get("QUIRE_TRITON_FAULTS") == "full"
EXIT_TIMEOUT, EXIT_GRACE, NUM_STREAMS = (30, 25, 40) if FULL else (1, 0, 8)
SLACK = 5.0  # what docs/triton.md promises after either timeout
MARGIN = 2.0 if FULL else 1.0
LONG = {"text_input": "Once", "stream": True, "sampling_parameters": {**ENDLESS, "max_tokens": 30000}}


@contextmanager
def server_with(
    directory: Path, model: Path, exit_timeout: int = EXIT_TIMEOUT, exit_grace: int = EXIT_GRACE
) -> Iterator[TritonServer]:
    options = (f"--exit-timeout-secs={exit_timeout}", f"--backend-config=quire,exit-grace-secs={exit_grace}")
    with started_server(directory, *options) as running:
        running.write_model("long", {"model": model, **ENGINE, "kv_cache_memory_bytes": 256 << 20})
        running.load("long")
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()


def seconds_to_end(server: TritonServer) -> float:
    start_time = time.monotonic()
    server.process.terminate()
    server.process.wait(timeout=EXIT_TIMEOUT + 2 * SLACK + 20)
    return time.monotonic() - start_time


class Clients:
    """Streams with a request under way each, which close when that has ended."""

    def __init__(self, server: TritonServer, count: int) -> None:
        self.errors: list[str] = []
        self.threads = [threading.Thread(target=self._run, args=(server,)) for _ in range(count)]
        for thread in self.threads:
            thread.start()
        poll("they run", lambda: read_metrics(server, "long")("num_requests_running") == count)

    def _run(self, server: TritonServer) -> None:
        stream = Stream(server.grpc_address)
        stream.send("long", LONG)
        try:
            stream.until_final()
        except InferenceServerException as error:
            self.errors.append(str(error))
        stream.close()

    def join(self) -> list[str]:
        for thread in self.threads:
            thread.join(20)
        return self.errors


def idle_connection(server: TritonServer) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(HOST, server.ports.http)
    connection.request("GET", "/v2/health/live")
    connection.getresponse().read()
    return connection


def used_stream(server: TritonServer) -> Stream:
    stream = Stream(server.grpc_address)
    stream.send("long", {**LONG, "sampling_parameters": {"max_tokens": 2}})
    stream.until_final()
    return stream


def test_an_idle_http_connection_and_busy_streams(tmp_path: Path, long_model: Path) -> None:
    with server_with(tmp_path, long_model) as server:
        connection = idle_connection(server)
        clients = Clients(server, NUM_STREAMS)
        assert seconds_to_end(server) < EXIT_TIMEOUT + SLACK + MARGIN
        errors = clients.join()
        assert len(errors) == NUM_STREAMS
        assert all("shutting down" in error for error in errors), errors
        connection.close()


def test_requests_that_outlast_every_timeout_are_told(tmp_path: Path, long_model: Path) -> None:
    """The grace is longer than the server waits: they hear of the end when the process exits around them."""
    with server_with(tmp_path, long_model, exit_grace=600) as server:
        clients = Clients(server, NUM_STREAMS)
        assert seconds_to_end(server) < EXIT_TIMEOUT + SLACK + MARGIN
        errors = clients.join()
        assert len(errors) == NUM_STREAMS
        assert all("shutting down" in error for error in errors), errors


@pytest.mark.parametrize(
    "used",
    [False, pytest.param(True, marks=pytest.mark.skipif(not FULL, reason="run_long.sh has the time"))],
    ids=["new", "used"],
)
def test_an_idle_stream_holds_nothing_up_for_ever(tmp_path: Path, long_model: Path, used: bool) -> None:
    with server_with(tmp_path, long_model) as server:
        stream = used_stream(server) if used else Stream(server.grpc_address)
        assert seconds_to_end(server) < max(EXIT_TIMEOUT, EXIT_GRACE) + SLACK + MARGIN
        assert "clients keep their connections open" in server.log.read_text()
        stream.close()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, long_model: Path, busy: bool) -> None:
    with server_with(tmp_path, long_model, exit_timeout=60, exit_grace=50) as server:
        connection = idle_connection(server)
        clients = Clients(server, 2 if busy else 0)
        server.process.terminate()
        time.sleep(0.1)
        server.process.terminate()  # so soon it counts as the same signal, sent to the process group too
        time.sleep(0.6)
        assert server.process.poll() is None
        server.process.terminate()
        assert server.process.wait(timeout=5) == -signal.SIGTERM
        assert len(clients.join()) == (2 if busy else 0)
        connection.close()


def test_a_killed_command_takes_its_server_along(tmp_path: Path) -> None:
    running = start(tmp_path / "log", "--server-arg=--exit-timeout-secs=3")
    [server] = psutil.Process(running.process.pid).children()
    assert server.name() == "tritonserver"
    running.process.kill()
    running.process.wait()
    server.wait(timeout=15)

"""A real tritonserver for the tests, and what its HTTP side says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from quire.triton.launcher import (
    Ports,
    backend_directory,
    choose_ports,
    open_url,
    server_command,
    wait_until_ready,
)
from quire.triton.repository import model_config
from quire.triton.server import find_server

HOST = "127.0.0.1"
T = TypeVar("T")


def poll(what: str, probe: Callable[[], T], timeout: float = 30.0) -> T:
    """Calls ``probe`` until it returns something true, and returns that. Fails after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not (result := probe()):
        assert time.monotonic() < end, f"not within {timeout} s: {what}"
        time.sleep(0.01)
    return result


@dataclass(frozen=True)
class Answer:
    """What an HTTP request got back."""

    status: int
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


class TritonServer:
    """A server with Quire's backend and explicit model control, on free ports."""

    def __init__(self, repository: Path, log: Path, *arguments: str) -> None:
        self.repository = repository
        self.log = log
        self.ports: Ports = choose_ports(HOST)
        self.url = f"http://{HOST}:{self.ports.http}"
        self.http_address = f"{HOST}:{self.ports.http}"
        self.grpc_address = f"{HOST}:{self.ports.grpc}"
        command = server_command(find_server(), repository, backend_directory(), self.ports, HOST)
        command += ["--model-control-mode=explicit", "--exit-timeout-secs=4", *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        if not wait_until_ready(self.url, self.process, timeout=60):
            self.stop()
            raise AssertionError(f"the server did not start:\n{log.read_text()}")

    def stop(self) -> int:
        """Ends the server, and returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop:\n{self.log.read_text()[-4000:]}") from None

    # ---- HTTP ----

    def request(self, path: str, body: Any = None, timeout: float = 60.0) -> Answer:
        """GET, or POST when there is a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data=data)
        try:
            with open_url(request, timeout=timeout) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())

    def generate(self, model: str, **fields: Any) -> Any:
        """The JSON that /generate answers."""
        answer = self.request(f"v2/models/{model}/generate", fields)
        assert answer.status == 200, answer
        return answer.json()

    def generate_stream(self, model: str, **fields: Any) -> list[Any]:
        """The JSON of each event of /generate_stream."""
        answer = self.request(f"v2/models/{model}/generate_stream", {"stream": True, **fields})
        assert answer.status == 200, answer
        return [json.loads(line.removeprefix("data: ")) for line in answer.body.splitlines() if line]

    def cancel(self, model: str, request_id: str) -> Answer:
        return self.request(f"v2/models/{model}/generate", {"request_id": request_id, "cancel": True})

    def metrics(self) -> str:
        with open_url(f"http://{HOST}:{self.ports.metrics}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def statistics(self, model: str) -> Any:
        return self.request(f"v2/models/{model}/stats").json()["model_stats"][0]

    # ---- models ----

    def write_model(
        self,
        name: str,
        parameters: Mapping[str, object] | None = None,
        *,
        decoupled: bool = True,
        config: str = "",
    ) -> None:
        """Writes (over) a model of the repository. ``config`` is appended to its config.pbtxt."""
        (self.repository / name / "1").mkdir(parents=True, exist_ok=True)
        given = {key: str(value) for key, value in (parameters or {}).items()}
        text = model_config(given, decoupled=decoupled) + config
        (self.repository / name / "config.pbtxt").write_text(text)

    def try_to_load(self, name: str) -> Answer:
        return self.request(f"v2/repository/models/{name}/load", {})

    def load(self, name: str) -> None:
        answer = self.try_to_load(name)
        assert answer.status == 200, answer

    def unload(self, name: str) -> None:
        """Returns when it is gone."""
        self.request(f"v2/repository/models/{name}/unload", {})
        poll(f"{name} is unloaded", lambda: self.state(name) in {"", "UNAVAILABLE"})

    def state(self, name: str) -> str:
        """READY, UNLOADING, UNAVAILABLE or ""."""
        entries = self.request("v2/repository/index", {}).json()
        states = {entry["name"]: entry.get("state", "") for entry in entries}
        return str(states.get(name, ""))

    def is_ready(self, name: str) -> bool:
        return self.request(f"v2/models/{name}/ready").status == 200


@contextmanager
def started_server(directory: Path, *arguments: str) -> Iterator[TritonServer]:
    """A server on an empty repository. Fails, rather than skips, when there is no server or no backend."""
    skip_if_off()
    (directory / "repository").mkdir()
    server = TritonServer(directory / "repository", directory / "log", *arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def skip_if_off() -> None:
    if os.environ.get("QUIRE_TRITON_TESTS") == "off":
        pytest.skip("QUIRE_TRITON_TESTS=off")


def start_quire_triton(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """The command, as a person starts it; what it prints goes to ``log``."""
    skip_if_off()
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "quire.cli", "triton", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
        )

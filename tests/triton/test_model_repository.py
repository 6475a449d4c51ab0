"""model_repository/ as it is committed, served by `quire triton`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from quire.cli import main
from quire.triton.launcher import open_url
from test_configuration import INPUTS, OUTPUTS
from triton_server import poll, start_quire_triton

ROOT = Path(__file__).resolve().parents[2]
FREE_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@dataclass(frozen=True)
class Running:
    """A `quire triton` and where it says that it listens."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str

    def post(self, path: str, body: Any) -> Any:
        request = urllib.request.Request(f"{self.url}/{path}", data=json.dumps(body).encode())
        with open_url(request, timeout=30) as response:
            return json.loads(response.read())


def start(log: Path, *arguments: str) -> Running:
    process = start_quire_triton([*FREE_PORTS, *arguments], log)

    def address() -> str:
        text = log.read_text()
        assert process.poll() is None, text
        match = re.search(r"curl (http://[\d.]+:\d+)/v2", text)
        return match[1] if match and "metrics: http" in text else ""

    return Running(process, log, poll("the server is ready", address, timeout=30))


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("repository") / "log"
    running = start(log, "--repository", str(ROOT / "model_repository"))
    yield running
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=40) == 0, log.read_text()


def test_every_model_of_the_repository_answers(ready: Running, reference: Callable[..., Any]) -> None:
    sampling = {"temperature": 0, "max_tokens": 20}
    expected = "Once upon a time" + reference("Once upon a time", **sampling)[0].text
    for model in ("quire_demo", "quire_demo_sync"):
        body = {"text_input": "Once upon a time", **sampling}
        assert ready.post(f"v2/models/{model}/generate", body)["text_output"] == expected


def test_models_of_a_repository_are_not_loaded_and_unloaded_unless_asked_for(ready: Running) -> None:
    for what in ("load", "unload"):
        with pytest.raises(urllib.error.HTTPError) as error:
            ready.post(f"v2/repository/models/quire_demo/{what}", {})
        assert "explicit model" in error.value.read().decode()


def test_the_ensemble_continues_its_own_beginning(ready: Running, reference: Callable[..., Any]) -> None:
    prompt = "Once upon a time"
    sampling = {"temperature": 0, "max_tokens": 20}
    beginning = prompt + reference(prompt, **sampling)[0].text
    expected = beginning + reference(beginning, **sampling)[0].text
    body = {"text_input": prompt, "sampling_parameters": json.dumps(sampling)}
    answer = ready.post("v2/models/quire_demo_story/generate", body)
    assert answer["text_output"] == expected


def test_the_printed_commands_work_as_they_are(ready: Running) -> None:
    """Pasted into a shell, as a person would."""
    log = ready.log.read_text()
    commands = log[log.index("curl ") : log.index("metrics: http")]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its `python` has tritonclient
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    curl, *rest = done.stdout.split("data: ")
    assert "Once upon a time" in json.loads(curl)["text_output"]
    assert rest
    assert len(rest[-1].split("\n\n", 1)[1].strip()) > 20  # the Python snippet's text


def test_the_readme_has_every_input_and_output(ready: Running) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \[([-\d, ]+)\]", (ROOT / "model_repository/README.md").read_text(), re.M
    )
    described = {name: (f"TYPE_{kind}", shape.split(", ")) for name, kind, shape in rows}
    assert described == {**INPUTS, **OUTPUTS}


def test_a_directory_is_served_with_parameters(tmp_path: Path, demo_model: Path) -> None:
    running = start(
        tmp_path / "log",
        "--model", str(demo_model), "--name", "mine", "--sync", "--set", "max_model_len=64",
    )  # fmt: skip
    body = {"text_input": "Once", "max_tokens": 2000, "ignore_eos": True, "return_num_output_tokens": True}
    for model in ("mine", "mine_sync"):
        assert running.post(f"v2/models/{model}/generate", body)["num_output_tokens"] < 64
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=40) == 0


def test_a_model_that_does_not_load_ends_the_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_quire_triton([*FREE_PORTS, "--set", "max_modl_len=64"], log)
    assert process.wait(timeout=40) == 1
    assert "max_modl_len" in log.read_text()


def test_ports_are_checked_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triton", "--model", "no/such-model", "--grpc-port", "70000"]) == 1
    assert "grpc_port must be between 0 and 65535, got 70000" in capsys.readouterr().err

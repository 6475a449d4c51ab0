"""Options of the server's command line that reach the backend."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import quire
from pieces import in_pieces
from triton_fixtures import ENGINE
from triton_server import TritonServer, started_server

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "triton.md"
BY_HAND = """
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
model_transaction_policy { decoupled: true }
"""


@pytest.fixture(scope="module")
def uncompleted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with started_server(tmp_path_factory.mktemp("plain"), "--disable-auto-complete-config") as running:
        yield running


def test_a_model_that_may_not_be_completed_fails_with_what_to_write(
    uncompleted: TritonServer, demo_model: Path
) -> None:
    uncompleted.write_model("bare", {"model": demo_model, **ENGINE})
    answer = uncompleted.try_to_load("bare")
    assert answer.status == 400
    message = answer.json()["error"]
    assert "--disable-auto-complete-config" in message
    what_to_write = message.partition("of input [")[2].replace(" and model_trans", " model_trans")
    # What the error says is what works.
    uncompleted.write_model("told", {"model": demo_model, **ENGINE}, config=f"input [{what_to_write}\n")
    uncompleted.load("told")
    assert uncompleted.generate("told", text_input="Once", max_tokens=2)["text_output"].startswith("Once")


def test_a_model_that_was_completed_by_hand_works(uncompleted: TritonServer, demo_model: Path) -> None:
    uncompleted.write_model("by_hand", {"model": demo_model, **ENGINE}, config=BY_HAND)
    uncompleted.load("by_hand")
    assert uncompleted.generate("by_hand", text_input="Once", max_tokens=2)["text_output"].startswith("Once")
    in_pieces(lambda: uncompleted.generate_stream("by_hand", text_input="Once", max_tokens=100))


def test_a_misspelt_setting_is_refused_by_name(tmp_path: Path, demo_model: Path) -> None:
    with started_server(tmp_path, "--backend-config=quire,exit-grace-sec=1") as running:
        running.write_model("demo", {"model": demo_model, **ENGINE})
        answer = running.try_to_load("demo")
        assert answer.status == 400
        assert "exit-grace-sec is not a setting we know" in answer.body
        assert "exit-grace-secs" in answer.body


def test_settings_for_all_backends_are_passed_over(tmp_path: Path, demo_model: Path) -> None:
    with started_server(tmp_path, "--backend-config=default-max-batch-size=8") as running:
        running.write_model("demo", {"model": demo_model, **ENGINE})
        running.load("demo")


def test_the_packages_backend_may_be_copied_as_documented(
    tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (Path(quire.__path__[0]) / "libquire.so.0").is_file():
        pytest.skip("an editable install keeps its libraries elsewhere")
    found = re.search(r"```\n(package=.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert found
    commands = found[1].replace("/opt/tritonserver", str(tmp_path)).replace("python", sys.executable)
    subprocess.run(["bash", "-ec", commands], check=True)
    monkeypatch.setenv("QUIRE_TRITON_BACKENDS", str(tmp_path / "backends"))
    with started_server(tmp_path) as running:
        running.write_model("demo", {"model": demo_model, **ENGINE})
        running.load("demo")
        assert running.generate("demo", text_input="Once", max_tokens=2)["text_output"].startswith("Once")
        libraries = re.findall(r"\S+quire\.so\S*", Path(f"/proc/{running.process.pid}/maps").read_text())
        assert {Path(library).parent for library in libraries} == {tmp_path / "backends" / "quire"}

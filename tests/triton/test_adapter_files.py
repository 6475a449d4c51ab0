"""Adapters that a model is loaded with: multi_lora.json, and parameters."""

from __future__ import annotations

import base64
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adapter_fixtures import ADAPTERS, GREEDY, LORA, ONLY_NEW, PROMPT, write_model
from lora_adapters import write_adapter
from triton_fixtures import ENGINE
from triton_requests import open_stream
from triton_server import TritonServer

SAILOR = str(ADAPTERS / "sailor")
FILES: dict[str, tuple[object, list[str]]] = {
    "no JSON": ('{"a": ', ["is not valid JSON"]),
    "nothing": ("", ["is not valid JSON"]),
    "trailing": ("{} {}", ["is not valid JSON"]),
    "no UTF-8": ('{"\udcff": "x"}', ["is not valid JSON"]),
    "a list": ([SAILOR], ["an object of names and paths", "got an array"]),
    "a string": ('"x"', ["got a string"]),
    "a number": ({"sailor": 5}, ["'sailor' must be a path", "got 5"]),
    "null": ({"sailor": None}, ["'sailor'", "got null"]),
    "an object": ({"sailor": {"path": SAILOR}}, ["'sailor'", "got an object"]),
    "twice": (f'{{"a": "{SAILOR}", "a": "{SAILOR}"}}', ["'a' is there twice"]),
    "not there": ({"a": "nowhere/at/all"}, ["'a'", "no directory", "/1/nowhere/at/all"]),
    "an empty path": ({"a": ""}, ["'a' must be the path"]),
    "half a path": ({"a": SAILOR + "\0x"}, ["'a' must be the path"]),
    "an empty name": ({"": SAILOR}, ["''", "lora_name must have"]),
    "no adapter": ({"good": SAILOR, "bad": "."}, ["'bad'", "adapter_config.json"]),
    "too high a rank": ({"good": SAILOR, "high": "high"}, ["'high'", "max_lora_rank"]),
    "deep": ('{"a": ' + "[" * 500_000, ["'a'", "got an array"]),
    "deep and nothing else": ('{"a":' * 500_000, ["'a'", "got an object"]),
    "large": ('{"a": "' + "x" * 3_000_000 + '"}', ["'a'", "no directory"]),
    "huge": ('{"a": "' + "x" * 5_000_000 + '"}', ["larger than"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_fails_the_load(server: TritonServer, demo_model: Path, case: str) -> None:
    content, words = FILES[case]
    directory = write_model(server, "bad_file", {"model": demo_model, **LORA})
    if "high" in words[0]:
        write_adapter(demo_model, directory / "high", 1, r=17)
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "multi_lora.json").write_bytes(text.encode(errors="surrogateescape"))
    answer = server.try_to_load("bad_file")
    shutil.rmtree(server.repository / "bad_file")
    assert answer.status == 400
    assert all(word in answer.body for word in [*words, "bad_file/1/multi_lora.json"]), answer.body
    assert len(answer.body) < 1000


def test_the_file_needs_enable_lora(server: TritonServer, demo_model: Path) -> None:
    write_model(server, "unaware", {"model": demo_model, **ENGINE}, {"sailor": SAILOR})
    body = server.try_to_load("unaware").body
    assert "unaware/1/multi_lora.json" in body and "enable_lora" in body
    shutil.rmtree(server.repository / "unaware")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"enable_lora_control": "true"}, ["enable_lora_control", "enable_lora too"]),
        ({"enable_lora": "true", "lora_root": "/tmp"}, ["lora_root", "enable_lora_control"]),
        ({**LORA, "enable_lora_control": "yes"}, ["enable_lora_control", "yes"]),
        ({**LORA, "enable_lora_control": "true", "lora_root": "nowhere"}, ["lora_root", "/1/nowhere"]),
        ({**LORA, "multi_lora": "nowhere.json"}, ["/1/nowhere.json", "no such file"]),
        ({**LORA, "multi_lora": "."}, ["is not a file"]),
    ],
)
def test_bad_parameters_fail_the_load(
    server: TritonServer, demo_model: Path, parameters: dict[str, Any], words: list[str]
) -> None:
    write_model(server, "bad_parameter", {"model": demo_model, **ENGINE, **parameters})
    answer = server.try_to_load("bad_parameter")
    assert answer.status == 400
    assert all(word in answer.body for word in words), answer.body


def test_the_file_may_be_elsewhere_and_a_reload_reads_it_again(
    server: TritonServer, demo_model: Path, tmp_path: Path, lora_texts: dict[str, str]
) -> None:
    """Adapters are read as the model is loaded, more of them than memory is to hold."""
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"s": SAILOR, "j": os.path.relpath(ADAPTERS / "json", tmp_path)}))
    parameters = {"model": demo_model, **LORA, "max_loras": 1, "multi_lora": file}
    directory = write_model(server, "elsewhere", parameters)
    server.load("elsewhere")

    def answer(name: str) -> Any:
        fields = {"text_input": PROMPT, "lora_name": name, **GREEDY, **ONLY_NEW}
        return server.request("v2/models/elsewhere/generate", fields)

    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda name: answer(name).json()["text_output"], ["s", "j", ""] * 4)
        assert list(answers) == [lora_texts["sailor"], lora_texts["json"], lora_texts[""]] * 4
    file.write_text(json.dumps({"j": SAILOR}))
    (directory / "touched").touch()
    server.load("elsewhere")
    assert answer("j").json()["text_output"] == lora_texts["sailor"]
    assert "has j;" in answer("s").body
    server.unload("elsewhere")


def test_a_changed_file_in_the_version_directory_is_reason_enough_to_load_again(
    server: TritonServer, demo_model: Path, lora_texts: dict[str, str]
) -> None:
    directory = write_model(server, "fleet", {"model": demo_model, **LORA}, {"a": SAILOR})
    server.load("fleet")
    with open_stream(server.grpc_address) as stream:
        long = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "lora_name": "a"}
        stream.send("fleet", {"text_input": PROMPT, "stream": True, "sampling_parameters": long})
        first = stream.next()
        (directory / "multi_lora.json").write_text(json.dumps({"b": SAILOR}))
        server.load("fleet")
        fields = {"text_input": PROMPT, "lora_name": "b", **GREEDY, **ONLY_NEW}
        assert server.generate("fleet", **fields)["text_output"] == lora_texts["sailor"]
        text = first.text + "".join(r.text for r in stream.until_final())
    assert text.startswith(lora_texts["sailor"])
    server.unload("fleet")


def test_a_load_may_bring_the_file_along(
    server: TritonServer, demo_model: Path, lora_texts: dict[str, str]
) -> None:
    """In the server's own way, which gives the backend a directory with nothing but such files."""
    given = {"model": demo_model, **LORA}
    config = {"backend": "quire", "parameters": {k: {"string_value": str(v)} for k, v in given.items()}}
    file = base64.b64encode(json.dumps({"brought": SAILOR}).encode()).decode()
    parameters = {"config": json.dumps(config), "file:1/multi_lora.json": file}
    assert server.request("v2/repository/models/brought/load", {"parameters": parameters}).status == 200
    fields = {"text_input": PROMPT, "lora_name": "brought", **GREEDY, **ONLY_NEW}
    assert server.generate("brought", **fields)["text_output"] == lora_texts["sailor"]
    server.unload("brought")

"""Adapters that requests load, replace, list and unload while others run."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adapter_fixtures import ADAPTERS, GREEDY, LORA, ONLY_NEW, PROMPT, write_model
from triton_requests import error_of, infer, open_stream, stream_infer
from triton_server import Answer, TritonServer, poll


def control(server: TritonServer, model: str, **fields: Any) -> Answer:
    return server.request(f"v2/models/{model}/generate", fields)


def names_of(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [lora["lora_name"] for lora in json.loads(answer.json()["text_output"])]


@pytest.fixture(scope="module")
def harbour(
    server: TritonServer, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A lora_root with both adapters, of the models ``harbour`` and ``harbour_sync``."""
    root = tmp_path_factory.mktemp("root") / "adapters"
    shutil.copytree(ADAPTERS, root)
    (root / "empty").mkdir()
    for name in ("harbour", "harbour_sync"):
        parameters = {"model": demo_model, **LORA, "max_cpu_loras": 8}
        parameters |= {"enable_lora_control": "true", "lora_root": root}
        write_model(server, name, parameters, decoupled=name == "harbour")
        server.load(name)
    yield root
    for name in ("harbour", "harbour_sync"):
        server.unload(name)


def test_an_adapter_is_loaded_and_unloaded(
    server: TritonServer, harbour: Path, client: Any, lora_texts: dict[str, str]
) -> None:
    """With the stock client: all is in parameters, so there are no inputs."""
    generate = {"text_input": PROMPT, "sampling_parameters": GREEDY, "lora_name": "ahoy", **ONLY_NEW}
    assert "none yet" in error_of(client, "harbour_sync", generate)
    load = {"load_lora": True, "lora_name": "ahoy", "lora_path": "sailor"}
    for _ in range(2):  # a client may try again
        told = infer(client, "harbour_sync", {}, load)
        [lora] = json.loads(told.text)
        assert lora == {"lora_name": "ahoy", "lora_path": str(harbour / "sailor"), "rank": 4}
    assert infer(client, "harbour_sync", generate).text == lora_texts["sailor"]
    other = {**load, "lora_path": str(harbour / "json")}
    assert "remove that one first" in error_of(client, "harbour_sync", {}, other)
    assert len(json.loads(infer(client, "harbour_sync", {}, {"list_loras": True}).text)) == 1
    [lora] = json.loads(infer(client, "harbour_sync", {}, {**other, "load_inplace": True}).text)
    assert lora["lora_path"] == str(harbour / "json")
    assert infer(client, "harbour_sync", generate).text == lora_texts["json"]
    unload = {"unload_lora": True, "lora_name": "ahoy"}
    assert infer(client, "harbour_sync", {}, unload).text == "[]"
    assert "404" in (error := error_of(client, "harbour_sync", {}, unload)) or "NOT_FOUND" in error
    assert "none yet" in error_of(client, "harbour_sync", generate)
    assert infer(client, "harbour_sync", {}, other).text
    assert infer(client, "harbour_sync", generate).text == lora_texts["json"]
    infer(client, "harbour_sync", {"lora_name": "ahoy"}, {"unload_lora": True})


def test_a_decoupled_model_is_told_by_a_stream_or_generate(
    server: TritonServer, harbour: Path, lora_texts: dict[str, str]
) -> None:
    fields = {"load_lora": True, "lora_name": "s", "lora_path": "sailor"}
    [told] = stream_infer(server.grpc_address, "harbour", {}, fields)
    assert told.final and told.outputs["finish_reason"] == ["stop"]
    assert names_of(control(server, "harbour", list_loras=True)) == ["s"]
    assert control(server, "harbour", unload_lora=True, lora_name="s").json()["text_output"] == "[]"


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "two": ({"load_lora": True, "unload_lora": True}, ["load_lora or unload_lora", "not both"]),
    "no name": ({"load_lora": True, "lora_path": "sailor"}, ["load_lora needs lora_name"]),
    "no path": ({"load_lora": True, "lora_name": "x"}, ["load_lora needs lora_path"]),
    "a path to unload": ({"unload_lora": True, "lora_name": "x", "lora_path": "y"}, ["'lora_path'"]),
    "in place to unload": (
        {"unload_lora": True, "lora_name": "x", "load_inplace": True},
        ["'load_inplace'"],
    ),
    "no bool": (
        {"load_lora": True, "lora_name": "x", "lora_path": "sailor", "load_inplace": "yes"},
        ["'load_inplace' must be true"],
    ),
    "a name to list": ({"list_loras": True, "lora_name": "x"}, ["'lora_name'"]),
    "a prompt": ({"list_loras": True, "text_input": "x"}, ["request of its own", "'text_input'"]),
    "a field": ({"list_loras": True, "max_tokens": 3}, ["'max_tokens'"]),
    "no flag": ({"load_lora": "yes", "lora_name": "x", "lora_path": "y"}, ["'load_lora' must be true"]),
    "a number for a path": ({"load_lora": True, "lora_name": "x", "lora_path": 5}, ["'lora_path'", "string"]),
    "an empty name": ({"load_lora": True, "lora_name": "", "lora_path": "sailor"}, ["needs lora_name"]),
    "a name of two lines": (
        {"load_lora": True, "lora_name": "a\nb", "lora_path": "sailor"},
        ["control char"],
    ),
    "a long name": ({"load_lora": True, "lora_name": "n" * 600, "lora_path": "sailor"}, ["512"]),
    "no adapter": ({"load_lora": True, "lora_name": "x", "lora_path": "empty"}, ["adapter_config.json"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_control_request_is_refused(server: TritonServer, harbour: Path, case: str) -> None:
    fields, words = REFUSED[case]
    answer = control(server, "harbour", **fields)
    assert answer.status == 400
    assert all(word in answer.body for word in words), answer.body
    assert control(server, "harbour", list_loras=True).json()["text_output"] == "[]"


def test_nothing_outside_of_the_root_is_read(server: TritonServer, harbour: Path, tmp_path: Path) -> None:
    """Nor is it told what is there and what is not."""
    outside = harbour.parent / "adapters_of_others"
    shutil.copytree(harbour / "sailor", outside)
    (harbour / "out").symlink_to(outside)
    (harbour / "up").symlink_to("..")
    (harbour / "within").symlink_to("sailor")
    (harbour / "config_out").mkdir()
    (harbour / "config_out/adapter_config.json").symlink_to(outside / "adapter_config.json")
    (harbour / "config_out/adapter_model.safetensors").symlink_to(
        harbour / "sailor/adapter_model.safetensors"
    )
    paths = ["out", "up/adapters_of_others", "../adapters_of_others", outside, "/", "/etc", "/etc/passwd/x"]
    paths += ["/nowhere", "..", "../../nowhere", "sailor/../../adapters_of_others", "nowhere", "config_out"]
    paths += ["x" * 10_000, "/elsewhere/x", "sailor/adapter_config.json", str(harbour) + "_of_others"]
    for path in paths:
        answer = control(server, "harbour", load_lora=True, lora_name="x", lora_path=str(path))
        assert answer.status == 400
        assert "is no directory in the lora_root" in answer.body, (path, answer.body)
    for path in ("within", "./sailor/", "up/adapters/sailor", harbour / "sailor"):
        answer = control(server, "harbour", load_lora=True, lora_name="x", lora_path=str(path))
        assert names_of(answer) == ["x"], path
    assert control(server, "harbour", unload_lora=True, lora_name="x").status == 200


def test_a_request_keeps_the_adapter_that_is_unloaded(
    server: TritonServer, harbour: Path, lora_texts: dict[str, str]
) -> None:
    control(server, "harbour", load_lora=True, lora_name="brief", lora_path="sailor")
    with open_stream(server.grpc_address) as stream:
        long = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "lora_name": "brief"}
        stream.send("harbour", {"text_input": PROMPT, "stream": True, "sampling_parameters": long})
        first = stream.next()
        assert names_of(control(server, "harbour", unload_lora=True, lora_name="brief")) == []
        assert control(server, "harbour", text_input=PROMPT, lora_name="brief").status == 400
        # The name is free, for another one.
        control(server, "harbour", load_lora=True, lora_name="brief", lora_path="json")
        fields = {"text_input": PROMPT, "lora_name": "brief", **GREEDY, **ONLY_NEW}
        assert server.generate("harbour", **fields)["text_output"] == lora_texts["json"]
        text = first.text + "".join(r.text for r in stream.until_final())
    assert text.startswith(lora_texts["sailor"])
    control(server, "harbour", unload_lora=True, lora_name="brief")


def test_loading_and_unloading_go_on_beside_requests(
    server: TritonServer, harbour: Path, lora_texts: dict[str, str]
) -> None:
    control(server, "harbour_sync", load_lora=True, lora_name="stays", lora_path="json")
    done = threading.Event()

    def change() -> int:
        count = 0
        while not done.is_set():
            for fields in ({"load_lora": True, "lora_path": "sailor"}, {"unload_lora": True}):
                answer = control(server, "harbour_sync", lora_name="comes and goes", **fields)
                assert answer.status == 200, answer
                count += 1
        return count

    def ask(name: str) -> str:
        fields = {"text_input": PROMPT, "lora_name": name, **GREEDY, **ONLY_NEW}
        answer = control(server, "harbour_sync", **fields)
        assert answer.status == 200 or (name == "comes and goes" and "has stays" in answer.body), answer
        return str(answer.json().get("text_output", "gone"))

    with ThreadPoolExecutor(5) as pool:
        changes = pool.submit(change)
        answers = list(pool.map(ask, ["stays", "", "comes and goes"] * 6))
        done.set()
        assert changes.result() >= 2
    assert answers[::3] == [lora_texts["json"]] * 6
    assert answers[1::3] == [lora_texts[""]] * 6
    assert set(answers[2::3]) <= {lora_texts["sailor"], "gone"}
    control(server, "harbour_sync", unload_lora=True, lora_name="stays")


def test_a_model_may_go_while_adapters_are_loaded(server: TritonServer, demo_model: Path) -> None:
    """Without a lora_root: relative paths start at the version directory."""
    parameters = {"model": demo_model, **LORA, "enable_lora_control": "true"}
    directory = write_model(server, "leaving_port", parameters)
    (directory / "mine").symlink_to(ADAPTERS)
    server.load("leaving_port")
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(
                control, server, "leaving_port", load_lora=True, lora_name=str(i), lora_path="mine/sailor"
            )
            for i in range(8)
        ]
        poll("one is there", lambda: any(answer.done() for answer in answers))
        server.unload("leaving_port")
        for answer in answers:
            assert answer.result().status == 200 or "leaving_port" in answer.result().body

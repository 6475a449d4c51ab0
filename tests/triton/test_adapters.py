"""Requests that name adapters (LoRA), and what metrics tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapter_fixtures import ADAPTERS, GREEDY, LORA, NAMES, ONLY_NEW, PROMPT, lora_request, write_model
from quire import LLM, SamplingParams
from triton_requests import error_of, infer, open_stream
from triton_server import TritonServer, poll

QUESTION = json.dumps([{"role": "user", "content": "Who are you?"}])


@pytest.fixture(scope="module")
def ship(server: TritonServer, demo_model: Path) -> Iterator[TritonServer]:
    """``ship`` (decoupled) and ``ship_sync``; a path of theirs is relative to the file."""
    for name in ("ship", "ship_sync"):
        loras = {"sailor": str(ADAPTERS / "sailor"), "json": "mine/json"}
        parameters = {"model": demo_model, **LORA}
        directory = write_model(server, name, parameters, loras, decoupled=name == "ship")
        (directory / "mine").symlink_to(ADAPTERS)
        server.load(name)
    yield server
    for name in ("ship", "ship_sync"):
        server.unload(name)


@pytest.mark.parametrize("place", ["input", "parameter", "sampling_parameters", "everywhere"])
def test_a_request_names_an_adapter(
    ship: TritonServer, client: Any, lora_texts: dict[str, str], place: str
) -> None:
    for name in NAMES:
        fields = {"lora_name": name}
        inside = fields if place in {"sampling_parameters", "everywhere"} else {}
        inputs = {"text_input": PROMPT, **ONLY_NEW, "sampling_parameters": {**GREEDY, **inside}}
        if place in {"input", "everywhere"}:
            inputs |= fields
        parameters = fields if place in {"parameter", "everywhere"} else {}
        assert infer(client, "ship_sync", inputs, parameters).text == lora_texts[name]


def test_the_generate_endpoints_take_the_name(ship: TritonServer, lora_texts: dict[str, str]) -> None:
    fields = {"text_input": PROMPT, "lora_name": "sailor", **ONLY_NEW, **GREEDY}
    assert ship.generate("ship", **fields)["text_output"] == lora_texts["sailor"]
    events = ship.generate_stream("ship", **fields)
    assert "".join(event["text_output"] for event in events) == lora_texts["sailor"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_has_the_model_and_both_adapters(
    ship: TritonServer, lora_texts: dict[str, str], stream: bool
) -> None:
    names = NAMES * 4
    texts = dict.fromkeys(map(str, range(len(names))), "")
    with open_stream(ship.grpc_address) as opened:
        for i, name in enumerate(names):
            inputs = {"text_input": PROMPT, "stream": stream, "sampling_parameters": GREEDY}
            if not stream:
                inputs |= ONLY_NEW
            opened.send("ship", {**inputs, "lora_name": name}, request_id=str(i))
        num_unfinished = len(names)
        while num_unfinished:
            response = opened.next()
            texts[response.request_id] += response.text if response.outputs else ""
            num_unfinished -= response.final
    assert list(texts.values()) == [lora_texts[name] for name in names]


def test_conversations_have_adapters(ship: TritonServer, client: Any, lora_llm: LLM) -> None:
    for name in NAMES:
        [answer] = lora_llm.chat(
            json.loads(QUESTION),
            SamplingParams(**GREEDY),
            use_tqdm=False,
            lora_request=lora_request(name),
        )
        inputs = {"messages": QUESTION, "return_message": True, "sampling_parameters": GREEDY}
        told = infer(client, "ship_sync", {**inputs, "lora_name": name}).outputs
        assert told["text_output"] == [answer.outputs[0].text]
        assert json.loads(told["message"][0])["content"] == answer.outputs[0].text
        beginning = {"": "I am Quire", "sailor": "Ahoy! I am Quire", "json": '{"answer": "I am Quire'}
        assert answer.outputs[0].text.startswith(beginning[name])


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "input and JSON": (
        {"lora_name": "sailor", "sampling_parameters": {"lora_name": "json"}},
        {},
        ["'sailor' in the input", "'json' in sampling_parameters"],
    ),
    "input and parameter": ({"lora_name": "sailor"}, {"lora_name": "json"}, ["lora_name", "the parameter"]),
    "parameter and JSON": (
        {"sampling_parameters": {"lora_name": "x"}},
        {"lora_name": "json"},
        ["'json' in the parameter", "'x' in sampling_parameters"],
    ),
    "unknown": ({"lora_name": "sailr"}, {}, ["sailr", "has sailor, json", "multi_lora.json"]),
    "unknown in JSON": ({"sampling_parameters": {"lora_name": "SAILOR"}}, {}, ["SAILOR", "sailor, json"]),
    "unknown of a conversation": ({"lora_name": "x", "messages": QUESTION}, {}, ["'x'", "sailor, json"]),
    "a number": ({"sampling_parameters": {"lora_name": 5}}, {}, ["lora_name", "5"]),
    "a number as a parameter": ({}, {"lora_name": 5}, ["lora_name", "string"]),
    "no text": ({"lora_name": b"\xff"}, {}, ["lora_name", "UTF-8"]),
    "long": ({"lora_name": "x" * 100_000}, {}, ["lora_name", "xxx...", "sailor, json"]),
    "a path alone": ({}, {"lora_path": "/x"}, ["lora_path", "load_lora"]),
    "loading": ({}, {"load_lora": True, "lora_name": "x", "lora_path": "/"}, ["enable_lora_control"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_name_is_refused(ship: TritonServer, client: Any, case: str) -> None:
    inputs, parameters, words = BAD[case]
    prompt = {} if "messages" in inputs else {"text_input": PROMPT}
    error = error_of(client, "ship_sync", {**prompt, **inputs}, parameters)
    assert "400" in error or "INVALID_ARGUMENT" in error
    assert all(word in error for word in words), error
    assert len(error) < 500


def test_a_model_without_adapters_says_how_it_gets_them(server: TritonServer, client: Any) -> None:
    for prompt in ({"text_input": PROMPT}, {"messages": QUESTION}):
        error = error_of(client, "sync", {**prompt, "lora_name": "sailor"})
        assert "'sailor'" in error and "enable_lora" in error


def test_metrics_tell_which_adapters_requests_have(ship: TritonServer) -> None:
    def told() -> list[str]:
        lines = ship.metrics().splitlines()
        return [line for line in lines if line.startswith("quire:lora_requests_info{") and '"ship"' in line]

    def shows(running: str) -> bool:
        [line] = told()
        labels = ('max_lora="2"', 'waiting_lora_adapters=""', f'running_lora_adapters="{running}"')
        return all(label in line for label in labels)

    poll("no adapter", lambda: shows(""))
    sampling = {"max_tokens": 2000, "ignore_eos": True}
    with open_stream(ship.grpc_address) as stream:
        for name in ("sailor", "json"):
            fields = {"text_input": PROMPT, "lora_name": name, "stream": True, "request_id": name}
            stream.send("ship", {**fields, "sampling_parameters": sampling})
        poll("two adapters", lambda: shows("json,sailor"))
        for name in ("sailor", "json"):
            assert ship.cancel("ship", name).status == 200
        poll("none again", lambda: shows(""))
    assert 1.7e9 < float(told()[0].split()[-1]) < 1e11  # seconds since 1970

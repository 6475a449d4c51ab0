"""/generate and /generate_stream: a prompt and parameters as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pieces import in_pieces
from triton_requests import infer
from triton_server import TritonServer

PROMPT = "The baker said"
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.mark.parametrize("model", ["sync", "demo"])
def test_generate_answers(server: TritonServer, reference: Callable[..., Any], model: str) -> None:
    answer = server.generate(model, text_input=PROMPT, **GREEDY)
    assert answer["text_output"] == PROMPT + reference(PROMPT, **GREEDY)[0].text
    assert answer["model_name"] == model


def test_scalars_may_stand_in_a_parameters_object(
    server: TritonServer, reference: Callable[..., Any]
) -> None:
    parameters = {**GREEDY, "exclude_input_in_output": True, "return_finish_reason": True}
    answer = server.generate("sync", text_input=PROMPT, parameters=parameters)
    assert answer["text_output"] == reference(PROMPT, **GREEDY)[0].text
    assert answer["finish_reason"] == "length"


def test_sampling_parameters_carry_lists(server: TritonServer) -> None:
    answer = server.generate(
        "sync",
        text_input=PROMPT,
        sampling_parameters='{"temperature": 0, "max_tokens": 200, "stop": ["e", "a"]}',
        return_finish_reason=True,
    )
    assert answer["finish_reason"] == "stop"


def test_generate_stream_sends_what_generate_answers(server: TritonServer) -> None:
    whole = server.generate("demo", text_input=PROMPT, exclude_input_in_output=True, **GREEDY)["text_output"]
    events = in_pieces(lambda: server.generate_stream("demo", text_input=PROMPT, **GREEDY))
    assert "".join(event["text_output"] for event in events) == whole


def test_streams_of_many_clients_do_not_mix(server: TritonServer, reference: Callable[..., Any]) -> None:
    prompts = [f"{name} went to the market" for name in ("Ana", "Bo", "Cy", "Di", "Eve", "Flo", "Gus", "Hal")]

    def stream(prompt: str) -> str:
        events = server.generate_stream("demo", text_input=prompt, **GREEDY)
        return "".join(event["text_output"] for event in events)

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(stream, prompts)) == [reference(p, **GREEDY)[0].text for p in prompts]


@pytest.mark.parametrize("door", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokns": 5}, ["max_tokns"]),
        ({"temperature": -1}, ["temperature", "-1"]),
        ({"max_tokens": "many"}, ["max_tokens", "many"]),
        ({"top_p": 0}, ["top_p", "0"]),
        ({"sampling_parameters": "{"}, ["sampling_parameters"]),
        ({"text_input": ""}, ["empty"]),
        ({"stop": ["a"]}, []),  # the server itself takes no lists here
    ],
)
def test_a_bad_field_is_400_and_named(
    server: TritonServer, door: str, fields: dict[str, Any], words: list[str]
) -> None:
    answer = server.request(f"v2/models/demo/{door}", {"text_input": PROMPT, **fields})
    assert answer.status == 400
    assert "error" in answer.body and all(word in answer.body for word in words), answer


def test_excluding_nothing_from_a_stream_is_refused(server: TritonServer) -> None:
    fields = {"text_input": PROMPT, "stream": True, "exclude_input_in_output": False}
    answer = server.request("v2/models/demo/generate_stream", fields)
    assert answer.status == 400
    assert "exclude_input_in_output" in answer.body


def test_a_long_stream_arrives_whole(server: TritonServer, reference: Callable[..., Any]) -> None:
    params = {"temperature": 0, "max_tokens": 600, "ignore_eos": True}
    events = server.generate_stream("demo", text_input=PROMPT, return_num_output_tokens=True, **params)
    assert "".join(event["text_output"] for event in events) == reference(PROMPT, **params)[0].text
    assert sum(event["num_output_tokens"] for event in events) == 600


@pytest.mark.parametrize("path", ["generate", "infer"])
def test_fractions_are_parameters_too(server: TritonServer, path: str) -> None:
    parameters = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "max_tokens": 8, "ignore_eos": True}
    expected = server.generate("sync", text_input="Once", sampling_parameters=json.dumps(parameters))
    if path == "generate":
        answer = server.generate("sync", text_input="Once", **parameters)["text_output"]
    else:
        tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Once"]}
        body = {"inputs": [tensor], "parameters": parameters}
        answer = server.request("v2/models/sync/infer", body).json()["outputs"][0]["data"][0]
    assert answer == expected["text_output"]


def test_fractions_are_grpc_parameters_too(client: Any, server: TritonServer) -> None:
    parameters = {"temperature": 0.5, "seed": 7, "max_tokens": 8}
    expected = server.generate("sync", text_input="Once", sampling_parameters=json.dumps(parameters))
    assert infer(client, "sync", {"text_input": "Once"}, parameters).text == expected["text_output"]


def test_forwarded_headers_are_passed_over(client: Any) -> None:
    parameters = {"x-request-id": "17", "max_tokens": 3}
    assert infer(client, "sync", {"text_input": "Once"}, parameters).text.startswith("Once")

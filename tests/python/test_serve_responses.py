"""The Responses API of OpenAI's own client, unmodified, against ``quire serve`` over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from quire import LLM, SamplingParams
from serving import PERSON as SCHEMA
from serving import RunningServer, running_server

MODEL = "quire-demo"
TOOLS: list[Any] = [
    {"type": "function", "name": name, "description": "A tool.", "parameters": SCHEMA, "strict": True}
    for name in ("find", "keep")
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--tool-parser", "hermes") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def answer() -> Any:
    """The engine's own, to the question that is asked here."""
    [output] = LLM(num_threads=1).chat(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who are you?"}],
        SamplingParams(temperature=0, max_tokens=400, logprobs=1),
        use_tqdm=False,
    )
    return output


QUESTION: dict[str, Any] = {
    "model": MODEL,
    "input": "Who are you?",
    "instructions": "Be kind.",
    "temperature": 0,
}


def test_an_answer_is_the_engines(client: openai.OpenAI, answer: Any) -> None:
    response = client.responses.create(**QUESTION, metadata={"a": "b"})
    assert response.output_text == answer.outputs[0].text
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.usage is not None
    assert response.usage.input_tokens == answer.usage.num_prompt_tokens
    assert response.usage.output_tokens == answer.usage.num_generation_tokens
    assert (response.instructions, response.metadata, response.temperature) == ("Be kind.", {"a": "b"}, 0)
    assert response.id.startswith("resp_")


def test_a_stream_has_every_event_once_and_in_order(client: openai.OpenAI, answer: Any) -> None:
    events = list(client.responses.create(**QUESTION, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.outputs[0].text
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    whole = client.responses.create(**QUESTION)
    last: Any = events[-1]
    assert last.response.output_text == whole.output_text
    assert (
        last.response.usage == whole.usage or last.response.usage.output_tokens == whole.usage.output_tokens
    )
    with client.responses.stream(**QUESTION) as stream:  # the client joins the events itself
        assert stream.get_final_response().output_text == whole.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_the_engines(client: openai.OpenAI, answer: Any, stream: bool) -> None:
    arguments: Any = {**QUESTION, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    if stream:
        with client.responses.stream(**arguments) as events:
            seen = [
                one
                for event in events
                if event.type == "response.output_text.delta"
                for one in event.logprobs
            ]
            response: Any = events.get_final_response()
        told = response.output[0].content[0].logprobs
        assert [one.logprob for one in seen] == [one.logprob for one in told][: len(seen)]
    else:
        response = client.responses.create(**arguments)
        told = response.output[0].content[0].logprobs
    chosen = [
        position[i].logprob
        for position, i in zip(answer.outputs[0].logprobs, answer.outputs[0].token_ids, strict=True)
    ]
    assert [one.logprob for one in told] == pytest.approx(chosen, abs=1e-6)
    assert all(len(one.top_logprobs) == 1 for one in told)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off_is_incomplete(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        last: Any = list(client.responses.create(**QUESTION, max_output_tokens=3, stream=True))[-1]
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = client.responses.create(**QUESTION, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[0].status == "incomplete"
    assert response.max_output_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_their_outputs_go_back(client: openai.OpenAI, stream: bool) -> None:
    asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}]
    arguments: Any = {
        "model": MODEL,
        "input": asked,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "keep"},
    }
    if stream:
        with client.responses.stream(**arguments) as events:
            kinds = {event.type for event in events}
            response: Any = events.get_final_response()
        assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    else:
        response = client.responses.create(**arguments)
    [call] = response.output
    assert (call.type, call.name) == ("function_call", "keep")
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    # What was answered is sent back as it is.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "kept"}
    again = client.responses.create(
        model=MODEL, input=[*asked, *response.output, result], tools=TOOLS, max_output_tokens=4
    )
    assert again.output_text


def test_what_the_model_is_told_is_what_a_conversation_says(client: openai.OpenAI) -> None:
    """Items and messages of one conversation are one prompt."""
    template = "{{ messages | tojson }}"
    items: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Where is Ann?", "type": "message"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"name": "Ann"}'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "home"}]},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"name": "Ann"}'}}
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Where is Ann?"},
        {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "home", "name": "find"},
    ]
    other = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=1, extra_body={"chat_template": template}
    )
    response = client.responses.create(
        model=MODEL, input=items, max_output_tokens=1, extra_body={"chat_template": template}
    )
    assert other.usage is not None and response.usage is not None
    assert response.usage.input_tokens == other.usage.prompt_tokens
    # Every block is in the cache: the prompt is the same, token by token.
    assert response.usage.input_tokens_details.cached_tokens >= response.usage.input_tokens - 16


def test_answers_that_fit_a_schema(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="Who are you?",
        text={"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}},
    )
    jsonschema.validate(json.loads(response.output_text), SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "input must hold"),
        ({"input": ""}, "input is empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
        ({"background": True}, "background must be false"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice must be"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"truncation": "auto"}, "truncation must be"),
        ({"top_logprobs": 2}, "top_logprobs needs include"),
        ({"max_output_tokens": 0}, "max_output_tokens must be"),
        ({"extra_body": {"messages": []}}, "messages is not supported"),
        ({"extra_body": {"n": 2}}, "n is not supported"),
    ],
)
def test_errors_name_the_field(client: openai.OpenAI, change: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"model": MODEL, "input": "a", **change})
    assert refused.value.body["message"].startswith(message), refused.value.body
    assert refused.value.param == message.partition(" ")[0].partition("[")[0].partition(".")[0]

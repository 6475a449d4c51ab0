"""Anthropic's own client, unmodified, against ``quire serve`` over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest
from quire import LLM, SamplingParams
from serving import PERSON as SCHEMA
from serving import RunningServer, running_server

MODEL = "quire-demo"
QUESTION: list[Any] = [{"role": "user", "content": "Who are you?"}]
GREEDY: dict[str, Any] = {"temperature": 0}
TOOLS: list[Any] = [
    {"name": name, "description": "A tool.", "input_schema": SCHEMA} for name in ("find", "keep")
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--tool-parser", "hermes", "--api-key", "secret") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(num_threads=1)


def expected(llm: LLM, messages: list[Any], **params: Any) -> Any:
    [output] = llm.chat(messages, SamplingParams(temperature=0, **params), use_tqdm=False)
    return output


def text_of(message: Any) -> str:
    assert [block.type for block in message.content] == ["text"]
    text: str = message.content[0].text
    return text


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_the_engines(client: anthropic.Anthropic, llm: LLM, stream: bool) -> None:
    output = expected(llm, QUESTION, max_tokens=400)
    arguments: Any = {"model": MODEL, "max_tokens": 400, "messages": QUESTION, "extra_body": GREEDY}
    if stream:
        with client.messages.stream(**arguments) as events:
            assert "".join(events.text_stream) == output.outputs[0].text
            message: Any = events.get_final_message()
    else:
        message = client.messages.create(**arguments)
    assert text_of(message) == output.outputs[0].text
    assert message.role == "assistant"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == output.usage.num_generation_tokens
    counted = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert counted == output.usage.num_prompt_tokens
    assert message.id.startswith("msg_")
    if not stream:
        assert message.id == f"msg_{message._request_id}"


def test_a_stream_has_the_events_of_the_api_in_order(server: RunningServer) -> None:
    body = {"model": MODEL, "max_tokens": 4, "messages": QUESTION, "stream": True, **GREEDY}
    answer = httpx.post(server.url + "/v1/messages", json=body, headers={"x-api-key": "secret"})
    events = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    names = [lines[0].removeprefix("event: ") for lines in events]
    data = [json.loads(lines[1].removeprefix("data: ")) for lines in events]
    assert names == [one["type"] for one in data]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert data[0]["message"]["content"] == []
    assert data[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert data[-2]["usage"]["output_tokens"] == 4


def test_an_answer_goes_on_with_the_assistants_text(client: anthropic.Anthropic, llm: LLM) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "I am Quire demo, a"}]
    whole = expected(llm, QUESTION, max_tokens=400).outputs[0].text
    message = client.messages.create(model=MODEL, max_tokens=400, messages=messages, extra_body=GREEDY)
    assert "I am Quire demo, a" + text_of(message) == whole


def test_what_ends_an_answer(client: anthropic.Anthropic) -> None:
    def ended(**arguments: Any) -> Any:
        return client.messages.create(
            model=MODEL, messages=QUESTION, **{"max_tokens": 400, "extra_body": GREEDY, **arguments}
        )

    assert ended(max_tokens=3).stop_reason == "max_tokens"
    stopped = ended(stop_sequences=["small", "xyz"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "small")
    # With a time limit of ours the client does not refuse so many tokens.
    full = ended(max_tokens=100_000, timeout=60, extra_body={**GREEDY, "ignore_eos": True})
    assert full.stop_reason == "model_context_window_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called(client: anthropic.Anthropic, stream: bool) -> None:
    arguments: Any = {
        "model": MODEL,
        "max_tokens": 300,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "keep"},
    }
    if stream:
        with client.messages.stream(**arguments) as events:
            message: Any = events.get_final_message()
    else:
        message = client.messages.create(**arguments)
    [block] = message.content
    assert (block.type, block.name, message.stop_reason) == ("tool_use", "keep", "tool_use")
    jsonschema.validate(block.input, SCHEMA)


def test_any_tool_and_only_one(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model=MODEL,
        max_tokens=300,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert [block.type for block in message.content] == ["tool_use"]


def test_a_call_that_is_cut_off_is_told_as_the_text_that_there_is(client: anthropic.Anthropic) -> None:
    message: Any = client.messages.create(
        model=MODEL,
        max_tokens=24,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "keep"},
    )
    assert message.stop_reason == "max_tokens"
    for block in message.content:
        assert block.type != "tool_use" or set(block.input) == {"INVALID_JSON"}


def test_a_conversation_with_tools_is_what_openais_form_says(server: RunningServer) -> None:
    """Both forms of one conversation are one prompt."""
    anthropics = {
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Where is Ann?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": ""},
                    {"type": "text", "text": "I look it up."},
                    {"type": "tool_use", "id": "t1", "name": "find", "input": {"name": "Ann", "age": 3}},
                    {"type": "tool_use", "id": "t2", "name": "keep", "input": {"name": "Bo", "age": 4}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "at home"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "content": [{"type": "text", "text": "kept"}, {"type": "text", "text": "well"}],
                    },
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
    }
    calls = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for i, name, given in (
            ("t1", "find", {"name": "Ann", "age": 3}),
            ("t2", "keep", {"name": "Bo", "age": 4}),
        )
    ]
    openais = {
        "tools": [
            {
                "type": "function",
                "function": {"name": name, "description": "A tool.", "parameters": SCHEMA},
            }
            for name in ("find", "keep")
        ],
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Where is Ann?"},
            {
                "role": "assistant",
                "content": "I look it up.",
                "reasoning": "I look.",
                "tool_calls": calls,
            },
            {"role": "tool", "tool_call_id": "t1", "content": "at home", "name": "find"},
            {"role": "tool", "tool_call_id": "t2", "content": "kept\nwell", "name": "keep"},
            {"role": "user", "content": "And now?"},
        ],
    }
    # A template that hides nothing.
    template = "{{ messages | tojson }} {{ tools | tojson }}"
    headers = {"x-api-key": "secret"}
    shared = {"model": MODEL, "max_tokens": 1, "chat_template": template, **GREEDY}
    other = httpx.post(
        server.url + "/v1/chat/completions",
        json={**openais, **shared, "return_token_ids": True},
        headers=headers,
    ).json()
    counted = httpx.post(
        server.url + "/v1/messages/count_tokens", json={**anthropics, **shared}, headers=headers
    )
    assert counted.json() == {"input_tokens": other["usage"]["prompt_tokens"]}
    # Every block is in the cache: the prompt is the same, token by token.
    answer = httpx.post(server.url + "/v1/messages", json={**anthropics, **shared}, headers=headers).json()
    cached = answer["usage"]["cache_read_input_tokens"]
    assert answer["usage"]["input_tokens"] + cached == other["usage"]["prompt_tokens"]
    assert answer["usage"]["input_tokens"] <= 16


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be kind.", tools=TOOLS)
    message = client.messages.create(
        model=MODEL, max_tokens=1, messages=QUESTION, system="Be kind.", tools=TOOLS
    )
    cached = message.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == message.usage.input_tokens + cached


def test_answers_that_fit_a_schema(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=QUESTION,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    jsonschema.validate(json.loads(text_of(message)), SCHEMA)


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_blocks_of_their_own(stream: bool) -> None:
    # The parser takes what comes first for thoughts, unless the template says otherwise.
    with running_server("--reasoning-parser", "qwen3") as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        kinds = []
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}):
            arguments: Any = {
                "model": MODEL,
                "max_tokens": 8,
                "messages": QUESTION,
                "thinking": thinking,
            }
            if stream:
                with client.messages.stream(**arguments) as events:
                    message: Any = events.get_final_message()
            else:
                message = client.messages.create(**arguments)
            kinds.append([block.type for block in message.content])
        assert kinds == [["thinking"], ["text"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"messages": None}, "messages is missing"),
        ({"messages": []}, "messages must hold"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0] must be an object"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
            "messages[0].content[0].input is missing",
        ),
        ({"system": 5}, "system must be an array"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": {}}, "tools must be an array"),
        ({"tool_choice": "auto"}, "tool_choice must be an object"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"stop_sequences": 5}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences holds"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"mcp_servers": [1]}, "mcp_servers is not supported"),
        ({"n": 2}, "n is not supported"),
        ({"nonsense": 1}, "'nonsense' is not a field"),
    ],
)
def test_errors_have_the_apis_form_and_name_the_field(
    server: RunningServer, change: dict[str, Any], field: str
) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": QUESTION, **change}
    answer = httpx.post(server.url + "/v1/messages", json=body, headers={"x-api-key": "secret"})
    assert answer.status_code == 400, answer.text
    said = answer.json()
    assert said["type"] == "error"
    assert said["error"]["type"] == "invalid_request_error"
    assert said["error"]["message"].startswith(field), said


def test_errors_of_the_server_have_the_apis_form(server: RunningServer) -> None:
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        stranger.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)
    assert refused.value.body["error"]["type"] == "authentication_error"
    assert refused.value.request_id
    known = anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)
    with pytest.raises(anthropic.NotFoundError):
        known.messages.create(model="other", max_tokens=1, messages=QUESTION)

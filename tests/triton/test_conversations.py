"""Conversations: messages in, an assistant's message out, through every door with the stock clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from quire import LLM, SamplingParams
from triton_fixtures import ENGINE
from triton_requests import Response, error_of, infer, stream_infer
from triton_server import TritonServer
from tritonclient.utils import InferenceServerException

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You tell stories. Ä🦊"},
    {"role": "user", "content": "Who are you?"},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Łódź", "Oslo"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock"}},
]
SCHEMAS: dict[str, Any] = {
    "get_weather": TOOLS[0]["function"]["parameters"],
    "clock": {"type": "object", "additionalProperties": False},
}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
CHAT = {"messages": json.dumps(MESSAGES)}
WITH_TOOLS = {**CHAT, "tools": json.dumps(TOOLS)}
CLOCK = json.dumps({"type": "function", "function": {"name": "clock"}})
# At most so many tokens, and a prompt that leaves no thinking open.
CALLS = {"max_tokens": 200, "seed": 3, "chat_template_kwargs": '{"enable_thinking": false}'}


@pytest.fixture(scope="module", autouse=True)
def chat_models(server: TritonServer, demo_model: Path) -> Iterator[None]:
    """``chat`` and ``chat_sync``, whose model is said to write Hermes' calls and Qwen's thoughts."""
    parameters = {"model": demo_model, **ENGINE, "tool_parser": "hermes", "reasoning_parser": "qwen3"}
    for name in ("chat", "chat_sync"):
        server.write_model(name, parameters, decoupled=name == "chat")
        server.load(name)
    yield
    for name in ("chat", "chat_sync"):
        server.unload(name)


@pytest.fixture(scope="module")
def expected(demo_model: Path) -> str:
    """What ``LLM.chat`` answers."""
    llm = LLM(demo_model, **ENGINE)
    return llm.chat(MESSAGES, SamplingParams(**GREEDY), use_tqdm=False)[0].outputs[0].text


def joined(deltas: list[str]) -> dict[str, Any]:
    """The message that a client puts together of a stream's deltas."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for delta in map(json.loads, deltas):
        message["role"] = delta.get("role", message.get("role"))
        message["content"] += delta.get("content", "")
        message["reasoning"] += delta.get("reasoning", "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert (call["type"], call["function"]["name"]) != ("", "")
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


def streamed(server: TritonServer, inputs: dict[str, Any], parameters: dict[str, Any]) -> list[Response]:
    return stream_infer(
        server.grpc_address, "chat", {**inputs, "stream": True}, parameters, ["message", "finish_reason"]
    )


def check_calls(calls: list[Any]) -> None:
    assert calls
    for call in calls:
        function = call.get("function", call)
        jsonschema.validate(json.loads(function["arguments"]), SCHEMAS[function["name"]])


# ---- Messages ----


def test_messages_are_rendered_by_the_models_template(client: Any, expected: str) -> None:
    assert infer(client, "sync", CHAT, GREEDY).text == expected
    assert infer(client, "sync", {}, {**CHAT, **GREEDY}).text == expected, "as a parameter"
    in_sampling = {"sampling_parameters": {"messages": MESSAGES, **GREEDY}}
    assert infer(client, "sync", in_sampling).text == expected, "as JSON among the sampling parameters"


@pytest.mark.parametrize("model", ["demo", "sync"])
def test_generate_takes_messages_as_a_string_of_json(server: TritonServer, expected: str, model: str) -> None:
    assert server.generate(model, **CHAT, **GREEDY)["text_output"] == expected


def test_streams_of_messages_are_the_same_text(server: TritonServer, expected: str) -> None:
    events = server.generate_stream("demo", **CHAT, **GREEDY)
    assert "".join(event["text_output"] for event in events) == expected
    pieces = stream_infer(server.grpc_address, "demo", {**CHAT, "stream": True}, GREEDY)
    assert "".join(piece.text for piece in pieces) == expected


def test_what_the_template_reads_may_be_given(client: Any) -> None:
    template = "{{ mood }}:{{ messages[-1].content }}{% for t in tools %} {{ t.function.name }}{% endfor %}"
    parameters = {
        "chat_template": template,
        "chat_template_kwargs": '{"mood": "glad"}',
        "exclude_input_in_output": False,
        "max_tokens": 1,
    }
    prompt = "glad:Who are you? get_weather clock"
    assert infer(client, "sync", WITH_TOOLS, parameters).text.startswith(prompt)
    answer = {"role": "assistant", "content": "Once upon"}
    inputs = {"messages": json.dumps([*MESSAGES, answer])}
    flags = {"continue_final_message": True, "exclude_input_in_output": False, "max_tokens": 1}
    assert "\nOnce upon" in infer(client, "sync", inputs, flags).text
    flags = {"add_generation_prompt": False, "exclude_input_in_output": False, "max_tokens": 1}
    whole = infer(client, "sync", CHAT, flags).text
    assert whole.count("<|im_start|>") == 2


# ---- Messages that come back ----


def test_a_message_comes_back_when_it_is_asked_for(client: Any, expected: str) -> None:
    assert set(infer(client, "sync", CHAT, GREEDY).outputs) == {"text_output"}
    answer = infer(client, "sync", CHAT, GREEDY, outputs=["message"])
    assert set(answer.outputs) == {"message"}
    assert json.loads(answer.outputs["message"][0]) == {"role": "assistant", "content": expected}
    of_text = infer(client, "sync", {"text_input": "Once", "return_message": True}, GREEDY)
    assert json.loads(of_text.outputs["message"][0])["content"] == of_text.text.removeprefix("Once")


@pytest.mark.parametrize("choice", ["required", CLOCK], ids=["required", "named"])
def test_a_forced_choice_gives_calls_that_fit_their_schema(client: Any, choice: str) -> None:
    parameters = {**CALLS, "tool_choice": choice, "parallel_tool_calls": False}
    answer = infer(client, "chat_sync", WITH_TOOLS, parameters, outputs=["message", "finish_reason"])
    message = json.loads(answer.outputs["message"][0])
    assert message["content"] is None
    check_calls(message["tool_calls"])
    assert choice == "required" or message["tool_calls"][0]["function"]["name"] == "clock"
    # OpenAI's: a call that the client has named is no reason to end.
    assert answer.outputs["finish_reason"] == ["tool_calls" if choice == "required" else "stop"]


def test_a_choice_may_stand_among_the_sampling_parameters(client: Any) -> None:
    sampling = {**CALLS, "tools": TOOLS, "tool_choice": json.loads(CLOCK), "n": 2}
    inputs = {**CHAT, "sampling_parameters": sampling, "return_message": True}
    messages = infer(client, "chat_sync", inputs).outputs["message"]
    assert len(messages) == 2
    for message in messages:
        check_calls(json.loads(message)["tool_calls"])


def test_deltas_of_a_stream_are_the_message(server: TritonServer) -> None:
    parameters = {**CALLS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = server.generate("chat_sync", **WITH_TOOLS, **parameters, return_message=True)
    calls = [call["function"] for call in json.loads(whole["message"])["tool_calls"]]
    *earlier, last = streamed(server, WITH_TOOLS, parameters)
    message = joined([response.outputs["message"][0] for response in [*earlier, last]])
    assert message == {"role": "assistant", "content": "", "reasoning": "", "tool_calls": calls}
    assert last.outputs["finish_reason"] == ["tool_calls"]
    assert all(response.outputs["message"] != ["{}"] for response in earlier), "nothing is sent for nothing"
    events = server.generate_stream("chat", **WITH_TOOLS, **parameters, return_message=True)
    assert joined([event["message"] for event in events]) == message
    assert "".join(event["text_output"] for event in events) == whole["text_output"]


def test_reasoning_is_split_off(client: Any, server: TritonServer) -> None:
    parameters = {"structured_outputs": json.dumps({"regex": "Hm\\.</think>Yes\\."}), "max_tokens": 20}
    answer = infer(client, "chat_sync", CHAT, parameters, outputs=["message", "finish_reason"])
    expected = {"role": "assistant", "reasoning": "Hm.", "content": "Yes."}
    assert json.loads(answer.outputs["message"][0]) == expected
    assert answer.outputs["finish_reason"] == ["stop"]
    deltas = [response.outputs["message"][0] for response in streamed(server, CHAT, parameters)]
    assert joined(deltas) == {**expected, "tool_calls": []}
    # The template's variable says that the model does not think.
    parameters["chat_template_kwargs"] = '{"enable_thinking": false}'
    answer = infer(client, "chat_sync", CHAT, parameters, outputs=["message"])
    assert json.loads(answer.outputs["message"][0])["content"] == "Hm.</think>Yes."


def test_calls_are_content_where_no_choice_wants_them(client: Any) -> None:
    text = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    parameters = {**CALLS, "structured_outputs": json.dumps({"choice": [text]})}
    for choice, calls in [("auto", 1), ("none", 0)]:
        chosen = {**parameters, "tool_choice": choice}
        answer = infer(client, "chat_sync", WITH_TOOLS, chosen, outputs=["message", "finish_reason"])
        message = json.loads(answer.outputs["message"][0])
        assert len(message.get("tool_calls", [])) == calls
        assert message["content"] == (None if calls else text)
        assert answer.outputs["finish_reason"] == ["tool_calls" if calls else "stop"]


def test_an_answered_message_goes_back_as_it_is(client: Any) -> None:
    """Its arguments are text, and the template writes them as an object."""
    asked = {**CALLS, "tool_choice": "required", "parallel_tool_calls": False}
    first = infer(client, "chat_sync", WITH_TOOLS, asked, outputs=["message"])
    message = json.loads(first.outputs["message"][0])
    [call] = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    history = {"messages": json.dumps([*MESSAGES, message, result]), "tools": json.dumps(TOOLS)}
    template = "{{ messages[2].tool_calls[0].function | tojson }}{{ messages[3].content }}|"
    shown = {"chat_template": template, "exclude_input_in_output": False, "max_tokens": 1}
    prompt, _, _ = infer(client, "chat_sync", history, shown).text.partition("|")
    written = json.loads(prompt.removesuffix("sunny"))
    assert written == {
        "name": call["function"]["name"],
        "arguments": json.loads(call["function"]["arguments"]),
    }


def test_a_torn_call_ends_for_its_length(client: Any) -> None:
    parameters = {**CALLS, "tool_choice": "required", "max_tokens": 25}
    answer = infer(client, "chat_sync", WITH_TOOLS, parameters, outputs=["message", "finish_reason"])
    assert answer.outputs["finish_reason"] == ["length"]


# ---- Structured output ----

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["name", "age"],
}
HELD: dict[str, tuple[dict[str, Any], Any]] = {
    "json": (
        {"json": PERSON, "disable_any_whitespace": True},
        lambda t: jsonschema.validate(json.loads(t), PERSON),
    ),
    "regex": (
        {"regex": "[a-c]{3}-[0-9]{2}"},
        lambda t: jsonschema.validate(t, {"pattern": "^[a-c]{3}-[0-9]{2}$"}),
    ),
    "choice": ({"choice": ["yes", "no, never"]}, lambda t: ["yes", "no, never"].index(t)),
}


@pytest.mark.parametrize("kind", HELD)
def test_answers_are_held_to_structured_outputs(client: Any, kind: str) -> None:
    params, check = HELD[kind]
    only_new = {"exclude_input_in_output": True, "max_tokens": 100, "return_finish_reason": True}
    as_parameter = {**only_new, "structured_outputs": json.dumps(params)}
    for answer in (
        infer(client, "sync", {"text_input": "A person:"}, as_parameter),
        infer(
            client,
            "sync",
            {"text_input": "A person:", "sampling_parameters": {"structured_outputs": params}},
            only_new,
        ),
        # The vLLM backend has adapters' names among the sampling parameters.
        infer(
            client,
            "sync",
            {
                "text_input": "A person:",
                "sampling_parameters": {"structured_outputs": params, "lora_name": ""},
            },
            only_new,
        ),
    ):
        check(answer.text)
        assert answer.outputs["finish_reason"] == ["stop"]


# ---- What is refused, and named ----

DEEP = "[" * 5000 + "]" * 5000
NOT_SUPPORTED = {"json": {"not": {"type": "string"}}}
# Inputs, parameters, and words of the error.
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "no json": ({"messages": "Hello"}, {}, ["messages", "not valid JSON"]),
    "no list": ({"messages": '{"role": "user"}'}, {}, ["messages must be an array"]),
    "an empty list": ({"messages": "[]"}, {}, ["messages must hold at least one message"]),
    "nothing": ({"messages": ""}, {}, ["messages is empty"]),
    "a string in it": ({"messages": '["Hello"]'}, {}, ["messages[0] must be an object"]),
    "no role": ({"messages": '[{"content": "Hello"}]'}, {}, ["messages[0].role is missing"]),
    "a number for content": ({"messages": '[{"role": "user", "content": 5}]'}, {}, ["messages[0].content"]),
    "an image": (
        {"messages": '[{"role": "user", "content": [{"type": "image_url"}]}]'},
        {},
        ["messages[0].content[0]", "text"],
    ),
    "deep": ({"messages": DEEP}, {}, ["messages", "nested more than 200 deep"]),
    "deep tools": ({**CHAT, "tools": DEEP}, {}, ["tools", "nested more than 200 deep"]),
    "huge": (
        {"messages": json.dumps([{"role": "user", "content": "x" * 1_000_000}])},
        {},
        ["prompt has 1000", "max_model_len"],
    ),
    "both": ({**CHAT, "text_input": "Hello"}, {}, ["give messages or text_input, not both"]),
    "both, as ids": ({**CHAT, "input_ids": [5]}, {}, ["give messages or input_ids, not both"]),
    "neither": ({"tools": json.dumps(TOOLS)}, {}, ["text_input", "input_ids", "messages"]),
    "no utf-8": ({"messages": b"[\xff]"}, {}, ["messages is not valid UTF-8"]),
    "the template's without messages": (
        {"text_input": "Hello"},
        {"continue_final_message": True},
        ["continue_final_message needs messages"],
    ),
    "no kwargs": (CHAT, {"chat_template_kwargs": "[]"}, ["chat_template_kwargs must be an object"]),
    "no template": (CHAT, {"chat_template": "{% if %}"}, ["chat_template: line 1"]),
    "no choice": (WITH_TOOLS, {"tool_choice": "must"}, ["tool_choice must be", "must"]),
    "an unknown tool": (WITH_TOOLS, {"tool_choice": CLOCK.replace("clock", "f")}, ["tool_choice 'f'"]),
    "a choice of nothing": (CHAT, {"tool_choice": "required"}, ["tool_choice", "there are no tools"]),
    "no tools": ({**CHAT, "tools": "{}"}, {}, ["tools must be an array"]),
    "tools without a name": (
        {**CHAT, "tools": '[{"type": "function"}]'},
        {"tool_choice": "required"},
        ["tools[0].function must be an object"],
    ),
    "tools for a message": (
        {**CHAT, "tools": '[{"type": "function"}]', "return_message": True},
        {},
        ["tools[0].function must be an object"],
    ),
    "two grammars": (
        WITH_TOOLS,
        {"tool_choice": "required", "structured_outputs": '{"regex": "a"}'},
        ["tool_choice", "structured_outputs"],
    ),
    "a tool whose schema cannot be kept": (
        {**CHAT, "tools": json.dumps([{"function": {"name": "f", "parameters": NOT_SUPPORTED["json"]}}])},
        {"tool_choice": "required"},
        ["not"],
    ),
    "a message without text": ({**CHAT, "return_message": True}, {"detokenize": False}, ["detokenize"]),
    "a bad regex": (CHAT, {"structured_outputs": '{"regex": "("}'}, ["structured_outputs", "Regex"]),
    "a bad schema": (CHAT, {"structured_outputs": json.dumps(NOT_SUPPORTED)}, ["not"]),
    "no schema": (CHAT, {"structured_outputs": '{"json": "{"}'}, ["json"]),
    "an unknown kind": (
        CHAT,
        {"structured_outputs": '{"xml": "a"}'},
        ["'xml'", "structured_outputs", "regex"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_by_name(client: Any, name: str) -> None:
    inputs, parameters, words = BAD[name]
    error = error_of(client, "chat_sync", inputs, parameters)
    assert error.split()[0] in {"400", "StatusCode.INVALID_ARGUMENT"}
    assert all(word in error for word in words), error
    assert infer(client, "chat_sync", CHAT, {"max_tokens": 1}).outputs, "and others are answered"


def test_a_forced_choice_needs_a_parser(client: Any) -> None:
    error = error_of(client, "sync", WITH_TOOLS, {"tool_choice": "required"})
    assert "set the parameter tool_parser to one of" in error and "hermes" in error


@pytest.mark.parametrize("door", ["generate", "generate_stream"])
def test_generate_says_what_it_does_not_take(server: TritonServer, door: str) -> None:
    """The server itself: a body's lists and objects are no tensors of strings, and no parameters."""
    for fields in ({"messages": MESSAGES}, {**CHAT, "tool_choice": json.loads(CLOCK)}):
        answer = server.request(f"v2/models/chat/{door}", fields)
        assert answer.status in {400, 500}
        assert "error" in answer.body


@pytest.mark.parametrize("parameter", ["tool_parser", "reasoning_parser"])
def test_a_parser_that_is_not_known_fails_the_load(
    server: TritonServer, demo_model: Path, parameter: str
) -> None:
    server.write_model("bad_parser", {"model": demo_model, parameter: "herms"})
    answer = server.try_to_load("bad_parser")
    assert answer.status == 400
    assert f"{parameter} 'herms' is not known; there are" in answer.body


def test_a_stream_is_refused_as_a_whole(server: TritonServer) -> None:
    with pytest.raises(InferenceServerException, match="tool_choice must be"):
        streamed(server, WITH_TOOLS, {"tool_choice": "must"})

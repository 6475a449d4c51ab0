"""OpenAI's own client, unmodified, against ``quire serve`` over a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from quire import LLM, AsyncLLM, SamplingParams
from quire.serve.app import Server
from quire.serve.config import ServeConfig
from serving import PERSON as SCHEMA
from serving import RunningServer, running_server

PROMPTS = ["Once upon a time", "The baker said"]
MESSAGES: list[Any] = [{"role": "user", "content": "Who are you?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": name, "description": "A tool.", "parameters": SCHEMA},
    }
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
def llm() -> LLM:
    return LLM(num_threads=1)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["quire-demo"]
    assert client.models.retrieve("quire-demo").owned_by == "quire"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("stream", [False, True])
def test_completions_are_the_engines(client: openai.OpenAI, llm: LLM, stream: bool) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    arguments: dict[str, Any] = {"model": "quire-demo", "prompt": PROMPTS, "temperature": 0, "max_tokens": 20}
    texts = {0: "", 1: ""}
    reasons: dict[int, str | None] = {}
    if stream:
        usage = None
        for chunk in client.completions.create(
            **arguments, stream=True, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason
            usage = chunk.usage
    else:
        whole = client.completions.create(**arguments)
        assert whole.object == "text_completion"
        assert whole.id.startswith("cmpl-")
        for choice in whole.choices:
            texts[choice.index] = choice.text
            reasons[choice.index] = choice.finish_reason
        usage = whole.usage
    assert [texts[0], texts[1]] == [output.outputs[0].text for output in outputs]
    assert [reasons[0], reasons[1]] == [output.outputs[0].finish_reason for output in outputs]
    assert usage is not None
    assert usage.prompt_tokens == sum(output.usage.num_prompt_tokens for output in outputs)
    assert usage.completion_tokens == sum(output.usage.num_generation_tokens for output in outputs)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([99999], "prompt[0] is 99999; ids go from 0 to 4095"),
        ([[1], [2, 99999]], "prompt[1][1] is 99999; ids go from 0 to 4095"),
        (["a", "b " * 3000], "prompt[1] has "),
    ],
    ids=["one", "one of two", "a long one"],
)
def test_a_prompt_that_is_refused_is_named(client: openai.OpenAI, prompt: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="quire-demo", prompt=prompt)
    assert refused.value.body["message"].startswith(said), refused.value.body
    assert refused.value.param == "prompt"


def test_token_ids_are_prompts_and_one_prompt_is_one(client: openai.OpenAI, llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    texts = [
        client.completions.create(model="quire-demo", prompt=prompt, temperature=0, max_tokens=8).choices
        for prompt in (PROMPTS[0], ids, [ids], [PROMPTS[0]])
    ]
    assert all(len(choices) == 1 for choices in texts)
    assert len({choices[0].text for choices in texts}) == 1


def test_echo_and_logprobs_of_a_completion(client: openai.OpenAI, llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2, prompt_logprobs=2)
    [output] = llm.generate(PROMPTS[0], params, use_tqdm=False)
    whole = client.completions.create(
        model="quire-demo", prompt=PROMPTS[0], temperature=0, max_tokens=5, logprobs=2, echo=True
    )
    [choice] = whole.choices
    assert choice.text == PROMPTS[0] + output.outputs[0].text
    logprobs = choice.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == choice.text
    assert logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert output.outputs[0].logprobs is not None
    chosen = [
        position[i].logprob
        for position, i in zip(output.outputs[0].logprobs, output.outputs[0].token_ids, strict=True)
    ]
    assert logprobs.token_logprobs[-5:] == pytest.approx(chosen, abs=1e-6)
    assert all(len(top) >= 2 for top in logprobs.top_logprobs[1:])
    assert logprobs.text_offset == [
        len("".join((logprobs.tokens or [])[:i])) for i in range(len(logprobs.tokens or []))
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_conversations_are_answered_as_the_engine_does(client: openai.OpenAI, llm: LLM, stream: bool) -> None:
    [output] = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=400), use_tqdm=False)
    text = output.outputs[0].text
    if stream:
        chunks = list(
            client.chat.completions.create(model="quire-demo", messages=MESSAGES, temperature=0, stream=True)
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert len({chunk.id for chunk in chunks}) == 1
        return
    whole = client.chat.completions.create(model="quire-demo", messages=MESSAGES, temperature=0)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "stop"  # it ends by itself: no limit was given
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == output.usage.num_prompt_tokens


def test_several_choices_and_a_seed(client: openai.OpenAI) -> None:
    def run() -> list[str]:
        whole = client.completions.create(
            model="quire-demo", prompt=PROMPTS, n=3, seed=7, max_tokens=16, temperature=1.5
        )
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3, 4, 5]
        return [choice.text for choice in whole.choices]

    first = run()
    assert first == run()
    assert len(set(first)) == 6


def test_logprobs_of_a_conversation(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": "quire-demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 6, "logprobs": True,
        "top_logprobs": 3,
    }  # fmt: skip
    whole = client.chat.completions.create(**arguments).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    assert "".join(token.token for token in whole.logprobs.content) == whole.message.content
    for token in whole.logprobs.content:
        assert bytes(token.bytes or []).decode() == token.token
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob  # greedy
    streamed = [
        token
        for chunk in client.chat.completions.create(**arguments, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content or []
    ]
    assert [token.token for token in streamed] == [token.token for token in whole.logprobs.content]


def test_a_schema_is_kept_to_in_the_order_of_its_properties(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="quire-demo",
        messages=MESSAGES,
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    )
    answer = json.loads(whole.choices[0].message.content or "")
    jsonschema.validate(answer, SCHEMA)
    assert list(answer) == ["name", "age"]
    free = client.chat.completions.create(
        model="quire-demo",
        messages=MESSAGES,
        max_tokens=50,
        temperature=0,
        response_format={"type": "json_object"},
    )
    assert (free.choices[0].message.content or "").startswith("{")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "keep"}}])
def test_tools_are_called(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    arguments: dict[str, Any] = {
        "model": "quire-demo", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 200,
        "parallel_tool_calls": False, "temperature": 0,
    }  # fmt: skip
    if stream:
        name = text = ""
        reason = None
        for chunk in client.chat.completions.create(**arguments, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.index == 0 and call.function is not None
                name += call.function.name or ""
                text += call.function.arguments or ""
            reason = chunk.choices[0].finish_reason
    else:
        whole = client.chat.completions.create(**arguments).choices[0]
        [made] = whole.message.tool_calls or []
        name, text, reason = made.function.name, made.function.arguments, whole.finish_reason
        assert made.id and whole.message.content is None
    assert name in ("find", "keep") if choice == "required" else name == "keep"
    jsonschema.validate(json.loads(text), SCHEMA)
    assert reason == ("tool_calls" if choice == "required" else "stop")


def test_reasoning_is_split_off_and_a_model_has_several_names() -> None:
    """In this process: another server would only take its time to start."""
    extra = {"structured_outputs": {"regex": "<think>hm+</think>yes"}}

    async def run() -> None:
        llm = AsyncLLM(num_threads=1)
        app = Server(llm, ServeConfig(reasoning_parser="qwen3", served_model_name=("a", "b"))).app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as http:
            client = openai.AsyncOpenAI(
                base_url="http://a/v1", api_key="none", max_retries=0, http_client=http
            )
            for include in (True, False):
                answer = await client.chat.completions.create(
                    model="b", messages=MESSAGES, max_tokens=60, temperature=0,
                    extra_body={**extra, "include_reasoning": include},
                )  # fmt: skip
                assert answer.model == "a"
                message = answer.choices[0].message
                assert message.content == "yes"
                reasoning = getattr(message, "reasoning", None)
                assert (reasoning or "").startswith("hm") if include else reasoning is None
            assert [model.id async for model in client.models.list()] == ["a", "b"]
        await llm.shutdown()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("is_file", [False, True])
def test_a_template_that_is_given_is_the_one_of_conversations(is_file: bool, tmp_path: Path) -> None:
    template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    given = tmp_path / "template.jinja"
    given.write_text(template)

    async def run() -> None:
        llm = AsyncLLM(num_threads=1)
        app = Server(llm, ServeConfig(chat_template=str(given) if is_file else template)).app
        expected = llm.get_tokenizer().encode("<Who are you?>", add_special_tokens=False)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as http:
            said = await http.post("/tokenize", json={"messages": MESSAGES})
            assert said.json()["tokens"] == expected
            answer = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1})
            assert answer.json()["usage"]["prompt_tokens"] == len(expected)
        await llm.shutdown()

    asyncio.run(asyncio.wait_for(run(), 60))


BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": -1}, "temperature", "temperature must be"),
    ({"temperature": "warm"}, "temperature", "temperature must be"),
    ({"n": 0}, "n", "n must be"),
    ({"temprature": 1}, None, "'temprature' is not a field we know"),
    ({"messages": []}, "messages", "messages"),
    ({"messages": "hello"}, "messages", "messages"),
    ({"messages": None}, "messages", "messages is missing"),
    ({"stream": "perhaps"}, "stream", "stream must be"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "for streams"),
    ({"stream": True, "stream_options": {"a": 1}}, None, "stream_options.a"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"logprobs": 3}, "logprobs", "logprobs must be"),
    ({"logprobs": True, "top_logprobs": 10**9}, "logprobs", "max_logprobs"),
    ({"response_format": {"type": "yaml"}}, "response_format", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema"),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "response_format",
        "leave one of them out",
    ),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"functions": [{"name": "f"}]}, "functions", "replaced by tools"),
    ({"audio": {"voice": "x"}}, "audio", "answers are text"),
    ({"modalities": ["audio"]}, "modalities", "text"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be"),
    ({"seed": "x"}, "seed", "seed must be"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "logit_bias"),
    ({"messages": [{"role": "user", "content": "a " * 5000}]}, "prompt", "max_model_len"),
]


@pytest.mark.parametrize(("fields", "param", "text"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_wrong_with_a_request_is_said_by_name(
    server: RunningServer, fields: dict[str, Any], param: str | None, text: str
) -> None:
    body = {"messages": MESSAGES, **fields}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert text in error["message"]


def test_the_client_raises_what_openai_would(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="quire-demo", prompt="a", suffix="b")
    assert bad.value.param == "suffix"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b'{"a":' * 5000, b"null"])
def test_a_body_that_is_no_object_is_refused(server: RunningServer, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        answer = httpx.post(server.url + path, content=body)
        assert answer.status_code == 400
        assert "body" in answer.json()["error"]["message"]


def test_tokenize_and_back(server: RunningServer, llm: LLM) -> None:
    answer = httpx.post(server.url + "/tokenize", json={"prompt": PROMPTS[0], "return_token_strs": True})
    said = answer.json()
    assert said["tokens"] == llm.get_tokenizer().encode(PROMPTS[0])
    assert said["count"] == len(said["tokens"]) == len(said["token_strs"])
    back = httpx.post(server.url + "/detokenize", json={"tokens": said["tokens"]}).json()
    assert back["prompt"] == PROMPTS[0]
    rendered = httpx.post(server.url + "/tokenize", json={"messages": MESSAGES}).json()
    assert rendered["tokens"] == llm.get_tokenizer().encode(
        llm.apply_chat_template(MESSAGES), add_special_tokens=False
    )
    assert httpx.post(server.url + "/detokenize", json={"tokens": [-1]}).status_code == 400


def test_the_description_lists_what_bodies_may_have(server: RunningServer) -> None:
    description = httpx.get(server.url + "/openapi.json").json()
    body = description["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    properties = body["content"]["application/json"]["schema"]["properties"]
    assert {"messages", "temperature", "tools", "response_format", "stream", "deadline_ms"} <= set(properties)
    for name, schema in properties.items():
        assert schema["description"], name
        jsonschema.Draft202012Validator.check_schema(schema)

"""/tokenize and /detokenize: what they refuse, and that the event loop goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from quire import AsyncLLM
from quire.serve.app import Server
from quire.serve.config import ServeConfig
from serving import RunningServer, running_server

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Who are you?"}]}
# Two loops of 100,000 turns: refused when it has taken too many steps.
LOOPS = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "ab " * 9_000_000}),
        ("/tokenize", {"messages": [{}] * 3_000_000}),
        ("/detokenize", {"tokens": [17] * 8_000_000}),
    ],
    ids=["text", "messages", "ids"],
)
def test_what_no_model_takes_is_refused_at_once(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    content = json.dumps(body, separators=(",", ":")).encode()
    answer = httpx.post(server.url + path, content=content, timeout=60)
    assert answer.status_code == 400
    assert "max_model_len 2048" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("name", ["chat_template", "chat\\u005ftemplate"])
def test_the_event_loop_goes_on_beside_a_template_of_a_client(path: str, name: str) -> None:
    content = json.dumps({**HELLO, "template": LOOPS}).replace('"template"', f'"{name}"')

    async def num_turns() -> int:
        """Of the loop, while a template takes about a second."""
        llm = AsyncLLM(num_threads=1)
        transport = httpx.ASGITransport(app=Server(llm, ServeConfig()).app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            answering = asyncio.ensure_future(http.post(path, content=content))
            turns = 0
            while not answering.done():
                await asyncio.sleep(0.001)
                turns += 1
        assert (await answering).status_code == 400
        assert "steps" in (await answering).text
        await llm.shutdown()
        return turns

    assert asyncio.run(asyncio.wait_for(num_turns(), 60)) > 10


LIMIT = 16 * 2048  # bytes of text, with the demo model


def test_texts_and_ids_up_to_the_limits_are_taken(server: RunningServer) -> None:
    answer = httpx.post(server.url + "/tokenize", json={"prompt": "a" * LIMIT, "return_token_strs": True})
    said = answer.json()
    assert said["count"] == len(said["tokens"]) == len(said["token_strs"]) > 2048
    assert "".join(said["token_strs"]).endswith("a" * LIMIT)
    back = httpx.post(server.url + "/detokenize", json={"tokens": said["tokens"][:2048]})
    assert back.json()["prompt"] == "".join(said["token_strs"][:2048])
    assert httpx.post(server.url + "/tokenize", json={"prompt": ""}).json()["tokens"] is not None
    assert httpx.post(server.url + "/detokenize", json={"tokens": []}).json() == {"prompt": ""}


TOKENIZE: list[tuple[dict[str, Any], str | None, str]] = [
    ({"foo": 1}, None, "'foo' is not a field we know"),
    ({}, "prompt", "prompt is missing; give a text, or messages"),
    ({"prompt": 3}, "prompt", "prompt must be a string, got 3"),
    ({"prompt": "\ud800"}, "prompt", "prompt must be valid Unicode"),
    ({"prompt": "a" * (LIMIT + 1)}, "prompt", f"prompt has {LIMIT + 1} bytes"),
    ({"prompt": "ä" * (LIMIT // 2 + 1)}, "prompt", f"it may have at most {LIMIT}"),
    ({"prompt": "a", "model": 3}, "model", "model must be a string"),
    ({"prompt": "a", "add_special_tokens": "x"}, "add_special_tokens", "must be a bool, got 'x'"),
    ({"prompt": "a", "return_token_strs": "maybe"}, "return_token_strs", "must be a bool, got 'maybe'"),
    ({"prompt": "a", "return_token_strs": 1}, "return_token_strs", "must be a bool, got 1"),
    ({"prompt": "a", "tools": []}, "tools", "tools goes with messages"),
    ({"prompt": "a", **HELLO}, "prompt", "prompt and messages are two texts"),
    ({"messages": "a"}, "messages", "messages must be a list"),
    ({**HELLO, "tools": {}}, "tools", "tools must be a list"),
    ({**HELLO, "add_generation_prompt": 0}, "add_generation_prompt", "must be a bool, got 0"),
    ({**HELLO, "chat_template": 3}, "chat_template", "chat_template must be a string"),
    ({**HELLO, "chat_template_kwargs": []}, "chat_template_kwargs", "must be an object"),
    ({**HELLO, "chat_template": "a" * (LIMIT + 1)}, "messages", f"messages has {LIMIT + 1} bytes"),
]
DETOKENIZE: list[tuple[dict[str, Any], str | None, str]] = [
    ({"tokens": [1], "foo": 1}, None, "'foo' is not a field we know"),
    ({}, "tokens", "tokens must be a list of token ids"),
    ({"tokens": "1"}, "tokens", "tokens must be a list of token ids"),
    ({"tokens": [1, 99999]}, "tokens", "tokens[1] is 99999 (int); ids go from 0 to 4095"),
    ({"tokens": [-1]}, "tokens", "tokens[0] is -1"),
    ({"tokens": [10**40]}, "tokens", "ids go from 0 to 4095"),
    ({"tokens": [1, True]}, "tokens", "tokens[1] must be an int, got True"),
    ({"tokens": [1.0]}, "tokens", "tokens[0] must be an int, got 1.0"),
    ({"tokens": [1] * 2049}, "tokens", "tokens has 2049 ids"),
]


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [("/tokenize", *case) for case in TOKENIZE] + [("/detokenize", *case) for case in DETOKENIZE],
)
def test_what_is_wrong_with_a_body_is_named(
    server: RunningServer, path: str, body: dict[str, Any], param: str | None, said: str
) -> None:
    answer = httpx.post(server.url + path, content=json.dumps(body))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert said in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_fields_of_vllm_mean_what_they_do_there(server: RunningServer) -> None:
    def tokens(**body: Any) -> list[int]:
        answer = httpx.post(server.url + "/tokenize", json=body)
        assert answer.status_code == 200, answer.text
        said: list[int] = answer.json()["tokens"]
        return said

    plain = tokens(prompt="Who are you?")
    assert tokens(prompt="Who are you?", model="any", add_special_tokens=None) == plain
    without = tokens(prompt="Who are you?", add_special_tokens=False)
    template = "{{ before }}{{ messages[0].content }}"
    assert tokens(**HELLO, chat_template=template) == without
    with_one = tokens(**HELLO, chat_template=template, chat_template_kwargs={"before": "Hi"})
    assert with_one == tokens(prompt="HiWho are you?", add_special_tokens=False)
    back = httpx.post(server.url + "/detokenize", json={"tokens": without, "model": "any"})
    assert back.json() == {"prompt": "Who are you?"}

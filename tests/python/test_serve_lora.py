"""Adapters behind ``quire serve``: model names that come and go."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from lora_adapters import write_adapter
from quire import LLM, AsyncLLM, LoRARequest, SamplingParams
from quire.cli import main
from quire.serve.app import Server
from quire.serve.config import ServeConfig
from serving import RunningServer, metric, running_server, wait_until

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Who are you?"}]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def root(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the adapters sql, poem and bad; beside it is one with outside."""
    root = tmp_path_factory.mktemp("adapters") / "root"
    write_adapter(demo_model, root / "sql", seed=1)
    write_adapter(demo_model, root / "poem", seed=2, r=4)
    shutil.copytree(root / "sql", root.parent / "outside")
    shutil.copytree(root / "sql", root / "bad")
    (root / "bad" / "adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (root / "lora_empty").mkdir()
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[RunningServer]:
    module = json.dumps({"name": "poem", "path": str(root / "poem"), "base_model_name": "quire-demo"})
    with running_server(
        "--enable-lora", "--max-loras", "2", "--max-cpu-loras", "4", "--enable-admin",
        "--lora-root", str(root), "--lora-modules", f"sql={root / 'sql'}", module, "--log-requests",
    ) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def texts(root: Path) -> dict[str, str]:
    """What a model name's answer to GREEDY is."""
    llm = LLM(num_threads=1, enable_lora=True, max_loras=2)
    adapters = [None, *(LoRARequest(name, lora_path=root / name) for name in ("sql", "poem"))]
    outputs = llm.generate(
        [PROMPT] * 3, SamplingParams(temperature=0, max_tokens=24), lora_request=adapters, use_tqdm=False
    )
    return dict(zip(("quire-demo", "sql", "poem"), (one.outputs[0].text for one in outputs), strict=True))


def names(http: httpx.Client) -> list[str]:
    return [card["id"] for card in http.get("/v1/models").json()["data"]]


def error(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return dict(answer.json()["error"])


def test_adapters_are_models_of_openais_client(
    server: RunningServer, root: Path, texts: dict[str, str]
) -> None:
    async def stream(client: openai.AsyncOpenAI, model: str) -> str:
        text = ""
        async for chunk in await client.completions.create(model=model, stream=True, **GREEDY):
            assert chunk.model == model
            text += "".join(choice.text for choice in chunk.choices)
        return text

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            cards = [card.model_dump() async for card in client.models.list()]
            assert [(card["id"], card["root"], card["parent"]) for card in cards] == [
                ("quire-demo", "quire-demo", None),
                ("sql", str(root / "sql"), "quire-demo"),
                ("poem", str(root / "poem"), "quire-demo"),
            ]
            assert (await client.models.retrieve("poem")).model_dump() == cards[2]
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("prose")
            assert await asyncio.gather(*(stream(client, name) for name in texts)) == list(texts.values())

    assert len(set(texts.values())) == 3
    asyncio.run(ask())


def test_metrics_and_the_log_tell_of_adapters(server: RunningServer, http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"model": "sql", **GREEDY}, headers={"X-Request-Id": "told"})
    assert answer.status_code == 200
    http.post("/v1/completions", json=GREEDY, headers={"X-Request-Id": "plain"})

    def line(request_id: str) -> dict[str, Any]:
        lines = [json.loads(text) for text in list(server.log) if f'"request_id":"{request_id}"' in text]
        return lines[0] if lines else {}

    wait_until(lambda: bool(line("plain")))
    assert line("told")["lora_name"] == "sql" and "lora_name" not in line("plain")
    body = {"model": "poem", "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        parts = stream.iter_bytes()
        next(parts)
        text = httpx.get(server.url + "/metrics").text
    labels = 'max_lora="2",waiting_lora_adapters="",running_lora_adapters="poem"} '
    assert text.count("quire:lora_requests_info{") == text.count(labels) == 1


def test_every_route_computes_with_the_adapter_that_is_named(http: httpx.Client) -> None:
    said = {}
    for model in ("quire-demo", "sql"):
        common = {"model": model, "temperature": 0}
        chat = http.post(
            "/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 12, **common}
        ).json()
        response = http.post(
            "/v1/responses", json={"input": MESSAGES[0]["content"], "max_output_tokens": 12, **common}
        ).json()
        message = http.post("/v1/messages", json={"messages": MESSAGES, "max_tokens": 12, **common}).json()
        assert [answer["model"] for answer in (chat, response, message)] == [model] * 3
        said[model] = chat["choices"][0]["message"]["content"]
        assert response["output"][0]["content"][0]["text"] == said[model]
        assert message["content"][0]["text"] == said[model]
        count = http.post("/v1/messages/count_tokens", json={"messages": MESSAGES, "model": model})
        assert count.json()["input_tokens"] == message["usage"]["input_tokens"]
    assert said["sql"] != said["quire-demo"]
    count = http.post("/v1/messages/count_tokens", json={"messages": MESSAGES, "model": "sqll"})
    assert error(count, 404)["type"] == "not_found_error"


def test_a_name_in_another_field_agrees_with_the_models(http: httpx.Client, texts: dict[str, str]) -> None:
    for names in (
        {"model": "quire-demo", "lora_name": "sql"},
        {"lora_name": "sql"},
        {"model": "sql", "lora_name": "sql"},
    ):
        answer = http.post("/v1/completions", json={**GREEDY, **names}).json()
        assert (answer["model"], answer["choices"][0]["text"]) == ("sql", texts["sql"])
    refusals: list[tuple[dict[str, Any], str, str]] = [
        ({"model": "sql", "lora_name": "poem"}, "lora_name 'poem' and model 'sql' are two", "lora_name"),
        ({"model": "sql", "lora_name": "nobody"}, "two adapters", "lora_name"),
        ({"lora_name": "sqk"}, "lora_name 'sqk' is no adapter's; the nearest is 'sql'", "lora_name"),
        ({"lora_name": ["sql"]}, "lora_name", "lora_name"),
        ({"lora_request": {"lora_name": "sql"}}, "give the adapter's name as model", "lora_request"),
        ({"model": ["sql"]}, "model must be a string", "model"),
    ]
    for names, said, param in refusals:
        refused = error(http.post("/v1/completions", json={**GREEDY, **names}))
        assert said in refused["message"] and refused["param"] == param


def test_a_model_that_is_not_there_is_not_found(http: httpx.Client) -> None:
    refused = error(http.post("/v1/completions", json={**GREEDY, "model": "sqk"}), 404)
    assert (refused["param"], refused["code"]) == ("model", "model_not_found")
    assert refused["message"] == (
        "model 'sqk' does not exist; there is 'quire-demo', and of adapters the nearest is 'sql'"
    )
    long = error(http.post("/v1/completions", json={**GREEDY, "model": "a" * 1_000_000}), 404)
    assert len(long["message"]) < 400


def test_an_adapter_is_replaced_in_place(http: httpx.Client, root: Path, texts: dict[str, str]) -> None:
    def text() -> str:
        answer = http.post("/v1/completions", json={**GREEDY, "model": "changes"}).json()
        return str(answer["choices"][0]["text"])

    def root_of() -> str:
        return str(http.get("/v1/models/changes").json()["root"])

    load: dict[str, Any] = {"lora_name": "changes", "lora_path": "sql", "load_inplace": True}
    assert http.post(LOAD, json=load).status_code == 200  # there was none
    assert text() == texts["sql"]
    assert http.post(LOAD, json={**load, "lora_path": "poem"}).status_code == 200
    assert (text(), root_of()) == (texts["poem"], "poem")
    # What cannot be loaded replaces nothing.
    assert error(http.post(LOAD, json={**load, "lora_path": "bad"}))["param"] == "lora_path"
    assert error(http.post(LOAD, json={**load, "lora_path": "nowhere"}), 404)["param"] == "lora_path"
    assert (text(), root_of()) == (texts["poem"], "poem")
    assert names(http).count("changes") == 1
    assert http.post(UNLOAD, json={"lora_name": "changes"}).status_code == 200


def test_adapters_come_and_go_while_answers_are_under_way(
    server: RunningServer, http: httpx.Client, texts: dict[str, str]
) -> None:
    long = {**GREEDY, "max_tokens": 400, "ignore_eos": True}
    [undisturbed] = http.post("/v1/completions", json={**long, "model": "sql"}).json()["choices"]
    body = {**long, "model": "mine", "stream": True}
    assert error(http.post("/v1/completions", json=body), 404)["code"] == "model_not_found"
    loaded = http.post(LOAD, json={"lora_name": "mine", "lora_path": "sql"})
    assert (loaded.status_code, loaded.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert loaded.text == "Success: 'mine' is loaded."
    card = http.get("/v1/models/mine").json()
    assert (card["root"], card["parent"]) == ("sql", "quire-demo")
    said = "lora_name 'mine' is loaded already; unload it first, or set load_inplace"
    assert error(http.post(LOAD, json={"lora_name": "mine", "lora_path": "poem"}))["message"] == said

    text = ""
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        events = (line[6:] for line in answer.iter_lines() if line.startswith("data: {"))
        choice = json.loads(next(events))["choices"][0]
        text += choice["text"]
        http.post("/pause")
        assert metric(server, "quire:num_requests_running", wait_for=1.0) == 1.0
        assert (
            http.post(UNLOAD, json={"lora_name": "mine", "lora_int_id": 7}).text
            == "Success: 'mine' is unloaded."
        )
        assert "mine" not in names(http)
        assert error(http.post("/v1/completions", json=body), 404)["code"] == "model_not_found"
        # Another one of that name does not disturb the answer.
        assert http.post(LOAD, json={"lora_name": "mine", "lora_path": "poem"}).status_code == 200
        http.post("/resume")
        other = http.post("/v1/completions", json={**GREEDY, "model": "mine"}).json()
        assert other["choices"][0]["text"] == texts["poem"]
        for event in events:
            choice = json.loads(event)["choices"][0]
            text += choice["text"]
    assert choice["finish_reason"] == "length"
    assert text == undisturbed["text"] and text.startswith(texts["sql"])
    assert http.post(UNLOAD, json={"lora_name": "mine"}).status_code == 200
    missing = error(http.post(UNLOAD, json={"lora_name": "mine"}), 404)
    assert missing["message"].startswith("lora_name 'mine' is no adapter's")
    assert names(http) == ["quire-demo", "sql", "poem"]
    assert metric(server, "quire:num_requests_running", wait_for=0.0) == 0.0


def test_of_those_who_load_one_name_at_once_one_does(server: RunningServer, http: httpx.Client) -> None:
    async def load() -> list[int]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            body = {"lora_name": "mine", "lora_path": "sql"}
            return [
                one.status_code
                for one in await asyncio.gather(*(client.post(LOAD, json=body) for _ in range(8)))
            ]

    assert sorted(asyncio.run(load())) == [200] + [400] * 7
    assert names(http) == ["quire-demo", "sql", "poem", "mine"]
    assert http.post(UNLOAD, json={"lora_name": "mine"}).status_code == 200


def test_one_name_is_loaded_and_unloaded_by_many(server: RunningServer, http: httpx.Client) -> None:
    async def change(client: httpx.AsyncClient, path: str) -> set[int]:
        seen = set()
        for _ in range(15):
            for route, body in (
                (LOAD, {"lora_name": "mine", "lora_path": path}),
                (UNLOAD, {"lora_name": "mine"}),
            ):
                seen.add((await client.post(route, json=body)).status_code)
        return seen

    async def change_all() -> list[set[int]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            return await asyncio.gather(*(change(client, path) for path in ("sql", "poem", "bad", "sql")))

    assert set().union(*asyncio.run(change_all())) <= {200, 400, 404}
    http.post(UNLOAD, json={"lora_name": "mine"})
    assert names(http) == ["quire-demo", "sql", "poem"]


GOOD = {"lora_name": "mine", "lora_path": "sql"}


@pytest.mark.parametrize(
    ("route", "body", "said"),
    [
        (LOAD, {}, "lora_name is missing"),
        (LOAD, {**GOOD, "lora_name": ""}, "lora_name is missing"),
        (LOAD, {**GOOD, "lora_name": None}, "lora_name is missing"),
        (LOAD, {"lora_name": "mine"}, "lora_path is missing"),
        (LOAD, {**GOOD, "lora_name": 3}, "lora_name must be a string, got 3 (int)"),
        (LOAD, {**GOOD, "lora_name": "\ud800"}, "lora_name must be valid Unicode"),
        (LOAD, {**GOOD, "lora_name": "a\nb"}, "lora_name must not hold control characters"),
        (LOAD, {**GOOD, "lora_name": "a" * 513}, "lora_name must have 1 to 512 bytes"),
        (LOAD, {**GOOD, "lora_name": "quire-demo"}, "lora_name 'quire-demo' is the model's own"),
        (LOAD, {**GOOD, "lora_path": ["sql"]}, "lora_path must be a string"),
        (LOAD, {**GOOD, "lora_path": "sql\0"}, "lora_path must be a path"),
        (LOAD, {**GOOD, "lora_path": "bad"}, "lora_path bad/adapter_model.safetensors"),
        (LOAD, {**GOOD, "lora_path": "."}, "lora_path .: has no adapter_config.json"),
        (LOAD, {**GOOD, "lora_path": "lora_empty"}, "lora_path lora_empty: has no adapter_config.json"),
        (LOAD, {**GOOD, "load_inplace": 1}, "load_inplace must be a bool"),
        (LOAD, {**GOOD, "is_3d_lora_weight": 1}, "is_3d_lora_weight must be a bool"),
        (LOAD, {**GOOD, "lora_nam": "a"}, "'lora_nam' is not a field we know"),
        (LOAD, {**GOOD, "\ud800": 1}, r"'\ud800' is not a field we know"),
        (LOAD, {**GOOD, "a" * 1_000_000: 1}, "'aaa"),
        (LOAD, {**GOOD, "lora_path": "a/" * 1_000_000}, "lora_path must have at most 4096 bytes, got"),
        (UNLOAD, {}, "lora_name is missing"),
        (UNLOAD, {"lora_int_id": 1}, "lora_name is missing"),
        (UNLOAD, {"lora_name": {}}, "lora_name must be a string"),
        (UNLOAD, {"lora_name": "sql", "lora_int_id": "1"}, "lora_int_id must be an int"),
        (UNLOAD, {"lora_name": "sql", "lora_path": "sql"}, "'lora_path' is not a field we know"),
        (LOAD, [], "the body must be a JSON object"),
        (LOAD, b"[" * 100_000, "the body must be JSON"),
        (LOAD, b'{"lora_name": ' + b'{"a":' * 50_000, "the body must be JSON"),
        (UNLOAD, b"\xff", "the body must be JSON"),
        (LOAD, b"", "the body must be JSON"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_bodies_that_cannot_be_are_refused_by_name(
    http: httpx.Client, route: str, body: Any, said: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    refused = error(http.post(route, content=content))
    assert refused["message"].startswith(said)
    assert refused["param"] == (said.split()[0] if said.startswith(("lo", "is")) else None)
    assert names(http) == ["quire-demo", "sql", "poem"]


def test_what_lies_outside_of_the_root_is_not_read(http: httpx.Client, root: Path) -> None:
    (root / "out").symlink_to(root.parent / "outside")
    (root / "nowhere").symlink_to(root.parent / "nothing")
    (root / "loop").symlink_to(root / "loop")
    shutil.copytree(root / "sql", root / "stolen")
    (root / "stolen" / "adapter_model.safetensors").unlink()
    (root / "stolen" / "adapter_model.safetensors").symlink_to("../../outside/adapter_model.safetensors")
    for path in (
        "out", "nowhere", "stolen", "../outside", "sql/../../outside", str(root.parent / "outside"), "/",
        "/etc/passwd", str(root) + "x", "../" * 100 + "etc", ".." + "/a" * 2000,
    ):  # fmt: skip
        refused = error(http.post(LOAD, json={**GOOD, "lora_path": path}))
        assert refused["message"] == f"lora_path '{path:.200}' is not in the server's lora_root"
        assert refused["param"] == "lora_path"
    for path in ("nothing", "loop", "sql/adapter_config.json", "a" * 4000, "~"):
        missing = error(http.post(LOAD, json={**GOOD, "lora_path": path}), 404)
        assert missing["message"] == f"lora_path '{path:.200}' is no directory that there is"
    assert names(http) == ["quire-demo", "sql", "poem"]
    # Links that stay inside are as good as what they lead to, and so is a path that leads back.
    (root / "link").symlink_to("sql")
    for path in ("link", str(root / "sql"), "../root/sql"):
        assert http.post(LOAD, json={**GOOD, "lora_path": path}).status_code == 200
        assert http.get("/v1/models/mine").json()["root"] == path
        assert http.post(UNLOAD, json={"lora_name": "mine"}).status_code == 200


def test_a_file_that_never_ends_stalls_nobody(http: httpx.Client, root: Path) -> None:
    shutil.copytree(root / "sql", root / "pipe")
    (root / "pipe" / "adapter_config.json").unlink()
    os.mkfifo(root / "pipe" / "adapter_config.json")
    assert "adapter_config.json" in error(http.post(LOAD, json={**GOOD, "lora_path": "pipe"}))["message"]


def test_without_enable_lora_nothing_is_said_of_adapters(root: Path) -> None:
    async def ask() -> None:
        llm = AsyncLLM(num_threads=1)
        app = Server(llm, ServeConfig(enable_admin=True)).app
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client:
            for route, body in (
                (LOAD, {**GOOD, "lora_path": str(root / "sql")}),
                (UNLOAD, {"lora_name": "sql"}),
            ):
                said = error(await client.post(route, json=body))["message"]
                assert said == "there are no adapters: start the server with --enable-lora"
            refused = error(await client.post("/v1/completions", json={**GREEDY, "model": "sql"}), 404)
            assert refused["message"] == "model 'sql' does not exist; there is 'quire-demo'"
            assert len((await client.get("/v1/models")).json()["data"]) == 1
        await llm.shutdown()

    asyncio.run(ask())


def test_where_there_is_no_memory_the_root_is_not_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_lora(llm: AsyncLLM, request: LoRARequest) -> bool:
        raise MemoryError(f"there is no memory: {request.lora_path}/adapter_model.safetensors")

    async def ask() -> None:
        llm = AsyncLLM(num_threads=1, enable_lora=True)
        app = Server(llm, ServeConfig(enable_admin=True, lora_root=str(root))).app
        monkeypatch.setattr("quire.engine_operations.EngineOperations.add_lora", add_lora)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client:
            said = error(await client.post(LOAD, json={**GOOD, "lora_path": "sql"}), 503)["message"]
            assert said == "there is no memory: sql/adapter_model.safetensors"
        await llm.shutdown()

    asyncio.run(ask())


def test_an_adapter_that_cannot_be_loaded_is_said_before_the_server_listens(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.serve.server.serve", lambda *_: pytest.fail("it was not refused"))
    monkeypatch.setattr("quire.serve.log.configure_logging", lambda *_, **__: None)
    flags = ["serve", "--port", "0", "--num-threads", "1", "--enable-lora", "--lora-modules"]
    for module, said in (
        (
            f"a={root / 'bad'}",
            f"quire: lora_modules: 'a' cannot be loaded: {root}/bad/adapter_model.safetensors",
        ),
        (f"a={root}", f"quire: lora_modules: 'a' cannot be loaded: {root}: has no adapter_config.json"),
        (f"quire-demo={root / 'sql'}", "quire: lora_modules: 'quire-demo' is the model's own name"),
    ):
        assert main([*flags, module]) == 1
        err = capsys.readouterr().err
        assert err.startswith(said) and err.count("\n") == 1

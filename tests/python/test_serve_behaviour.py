"""How the server behaves: who may call, what is too much, clients that leave, and its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from quire import AsyncLLM
from quire.serve.app import Server
from quire.serve.config import ServeConfig
from serving import RunningServer, running_server

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4}
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}
# As many seconds as a test may take, unless it is aborted.
MANY: dict[str, Any] = {**LONG, "prompt": ["Once upon a time"] * 30}


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    llm = AsyncLLM(num_threads=1)
    yield llm
    asyncio.run(llm.shutdown())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# those of two teams\nsecond\n\nthird\n")
    with running_server(
        "--api-key", "first", "--api-key-file", str(keys), "--max-body-bytes", "2000",
        "--max-concurrent-requests", "2", "--max-concurrent-requests-per-key", "1",
        "--allowed-origins", "https://a.example",
    ) as server:  # fmt: skip
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", ["first", "second", "third"])
def test_each_key_opens(guarded: RunningServer, key: str) -> None:
    for headers in (bearer(key), {"x-api-key": key}):
        assert httpx.post(guarded.url + CHAT, json=HELLO, headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [{}, bearer("firs"), bearer("first2"), {"Authorization": "first"}])
def test_nothing_else_does(guarded: RunningServer, headers: dict[str, str]) -> None:
    answer = httpx.post(guarded.url + CHAT, json=HELLO, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(guarded.url + "/v1/models", headers=headers).status_code == 401
    assert httpx.get(guarded.url + "/health", headers=headers).status_code == 200


def test_a_body_may_not_be_longer_than_was_said(guarded: RunningServer) -> None:
    long = json.dumps({**HELLO, "user": "a" * 3000}).encode()

    def parts() -> Iterator[bytes]:  # without a length
        yield long[:1500]
        yield long[1500:]

    for content in (long, parts()):
        answer = httpx.post(guarded.url + CHAT, content=content, headers=bearer("first"))
        assert answer.status_code == 413
        assert "2000 bytes" in answer.json()["error"]["message"]


def test_what_is_too_much_at_once_is_refused_and_then_not(guarded: RunningServer) -> None:
    def status(key: str) -> httpx.Response:
        return httpx.post(guarded.url + CHAT, json=HELLO, headers=bearer(key))

    with httpx.stream("POST", guarded.url + "/v1/completions", json=MANY, headers=bearer("first")) as first:
        assert first.status_code == 200, first.read()
        of_first = first.iter_bytes()  # it ends the request when it is dropped
        next(of_first)
        refused = status("first")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "of this API key" in refused.json()["error"]["message"]
        with httpx.stream(
            "POST", guarded.url + "/v1/completions", json=MANY, headers=bearer("second")
        ) as second:
            of_second = second.iter_bytes()
            next(of_second)
            assert "as many as this server takes" in status("third").json()["error"]["message"]
    for _ in range(1000):
        if status("first").status_code == 200:
            return
        time.sleep(0.02)
    raise AssertionError("the places of clients that left are not free")


def test_other_origins_are_not_told_that_they_may(guarded: RunningServer) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, status in (("https://a.example", 200), ("https://b.example", 400)):
        answer = httpx.options(guarded.url + CHAT, headers={**asked, "Origin": origin})
        assert answer.status_code == status
        assert (answer.headers.get("access-control-allow-origin") == origin) == (status == 200)


def test_request_ids_are_taken_or_made(guarded: RunningServer) -> None:
    given = httpx.post(guarded.url + CHAT, json=HELLO, headers={**bearer("first"), "X-Request-Id": "a.b-3"})
    assert given.headers["x-request-id"] == "a.b-3"
    assert given.json()["id"] == "chatcmpl-a.b-3"
    for bad in ("a b", "x" * 200, "ä"):
        headers = {**bearer("first"), "X-Request-Id": bad.encode("latin-1")}
        made = httpx.post(guarded.url + CHAT, json=HELLO, headers=headers)
        assert made.status_code == 200
        assert made.headers["x-request-id"] != bad


def test_unknown_routes_and_methods_have_errors_of_the_same_form(guarded: RunningServer) -> None:
    for method, path, status in (("GET", "/v2", 404), ("GET", CHAT, 405), ("POST", "/pause", 404)):
        answer = httpx.request(method, guarded.url + path, headers=bearer("first"))
        assert answer.status_code == status
        assert answer.json()["error"]["message"].startswith(f"{method} {path}")


Receive = Callable[[], Awaitable[dict[str, Any]]]


async def call(
    server: Server, path: str, body: bytes, receive_next: Receive
) -> AsyncIterator[dict[str, Any]]:
    """One request without a socket: yields what is sent, when the reader asks for it."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
        "server": ("a", 1), "client": ("b", 2), "root_path": "",
    }  # fmt: skip
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=1)
    has_body = False

    async def receive() -> dict[str, Any]:
        nonlocal has_body
        if has_body:
            return await receive_next()
        has_body = True
        return {"type": "http.request", "body": body, "more_body": False}

    running = asyncio.ensure_future(server.app(scope, receive, queue.put))
    while True:
        getting = asyncio.ensure_future(queue.get())
        await asyncio.wait({running, getting}, return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            getting.cancel()
            await running
            return
        yield getting.result()


def test_a_client_that_leaves_is_forgotten_within_two_steps(llm: AsyncLLM) -> None:
    server = Server(llm, ServeConfig())

    async def run() -> None:
        left = asyncio.Event()

        async def disconnect() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        sent = call(server, "/v1/completions", json.dumps(LONG).encode(), disconnect)
        await anext(sent)
        await anext(sent)
        assert server.in_flight.count == 1
        llm.pause()
        left.set()
        for _ in range(3):
            await asyncio.sleep(0.01)
        before = llm.stats().num_steps
        llm.resume()
        async for _ in sent:
            pass
        for _ in range(100):
            if llm.stats().num_running_reqs == 0:
                break
            await asyncio.sleep(0.01)
        assert llm.stats().num_running_reqs == 0
        assert llm.stats().num_steps - before <= 2
        assert server.in_flight.count == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_what_waits_for_a_slow_reader_is_its_answer_and_no_more(llm: AsyncLLM) -> None:
    server = Server(llm, ServeConfig())

    async def run() -> None:
        async def stay() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        body = json.dumps({**LONG, "max_tokens": 300}).encode()
        sent = call(server, "/v1/completions", body, stay)
        assert (await anext(sent))["status"] == 200
        while llm.stats().num_running_reqs > 0 or llm.stats().num_waiting_reqs > 0:
            await asyncio.sleep(0.01)  # it reads nothing
        events = [message["body"] async for message in sent]
        text = b"".join(events).decode()
        assert text.count("data: {") < 20  # of 300 tokens: what waited became one
        assert text.endswith("data: [DONE]\n\n")

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_clock_that_is_set_moves_no_deadline(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    days = itertools.cycle([0.0, 2e9, 1e6, 4e9])
    monkeypatch.setattr(time, "time", lambda: next(days))
    server = Server(llm, ServeConfig())

    async def run() -> list[dict[str, Any]]:
        async def stay() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        body = json.dumps({**HELLO, "deadline_ms": 20_000}).encode()
        sent = []
        for _ in range(4):
            sent += [message async for message in call(server, CHAT, body, stay)]
        return sent

    sent = asyncio.run(asyncio.wait_for(run(), 60))
    assert [message["status"] for message in sent if "status" in message] == [200] * 4
    bodies = [json.loads(message["body"]) for message in sent if message.get("body")]
    assert [body["created"] for body in bodies] == [0, 2_000_000_000, 1_000_000, 4_000_000_000]
    assert len({body["choices"][0]["message"]["content"] for body in bodies}) == 1


def test_an_engine_that_has_ended_is_said_to_have() -> None:
    async def run() -> None:
        llm = AsyncLLM(num_threads=1)
        server = Server(llm, ServeConfig())
        await llm.shutdown()

        async def stay() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        sent = [message async for message in call(server, CHAT, json.dumps(HELLO).encode(), stay)]
        assert sent[0]["status"] == 503
        assert json.loads(sent[1]["body"])["error"]["type"] == "server_error"

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("seconds", "body", "reason"), [("60", {**LONG, "max_tokens": 600}, "length"), ("0", MANY, "abort")]
)
def test_sigterm_gives_answers_their_time(seconds: str, body: dict[str, Any], reason: str) -> None:
    server = RunningServer("--shutdown-timeout", seconds)
    try:
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            threading.Thread(target=lambda: os.kill(server.process.pid, signal.SIGTERM)).start()
            rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert rest[-1]["choices"][0]["finish_reason"] == reason
        assert server.process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "/health")
    finally:
        server.stop()


def test_answers_of_a_paused_engine_come_to_their_end_after_sigterm() -> None:
    server = RunningServer("--shutdown-timeout", "60", "--enable-admin")
    try:
        body = {**LONG, "max_tokens": 600}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert httpx.post(server.url + "/pause").status_code == 200
            server.process.send_signal(signal.SIGTERM)
            rest = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert rest[-1]["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0
    finally:
        server.stop()


def test_metrics_and_the_log_tell_of_requests_without_their_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("--log-file", str(log), "--log-requests", "--vllm-metrics", "--enable-admin")
    with running_server(*flags, "--served-model-name", "mine") as server:
        answer = httpx.post(server.url + CHAT, json=HELLO, headers={"X-Request-Id": "one"})
        httpx.get(server.url + "/nowhere")
        text = httpx.get(server.url + "/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        for prefix in ("quire", "vllm"):
            [sample] = [
                s for s in families[f"{prefix}:generation_tokens"].samples if s.name.endswith("_total")
            ]
            assert sample.value == answer.json()["usage"]["completion_tokens"]
            assert sample.labels["model_name"] == "mine"
        counted = {
            (s.labels["route"], s.labels["status"]): s.value
            for name, family in families.items()
            if name.endswith("http_requests")
            for s in family.samples
            if s.name.endswith("_total")
        }
        assert counted[CHAT, "200"] == 1
        assert counted["other", "404"] == 1
        assert httpx.post(server.url + "/pause").status_code == 200
        assert httpx.post(server.url + "/resume").status_code == 200
        assert httpx.post(server.url + "/reset_prefix_cache").status_code == 200
        assert httpx.post(server.url + "/sleep?level=7").status_code == 400
        assert httpx.post(server.url + "/sleep").status_code == 200
        assert httpx.get(server.url + "/is_sleeping").json() == {"is_sleeping": True}
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 503
        assert httpx.post(server.url + "/wake_up").status_code == 200
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    of_chat = next(line for line in lines if line.get("route") == CHAT)
    assert of_chat["request_id"] == "one"
    assert of_chat["status"] == 200
    assert of_chat["num_generation_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert "Who are you" not in log.read_text()
    assert answer.json()["choices"][0]["message"]["content"] not in log.read_text()


@pytest.fixture(scope="module")
def admin() -> Iterator[RunningServer]:
    with running_server("--enable-admin", "--allowed-origins", "https://a.example", "*") as server:
        yield server


def test_a_server_is_ready_while_requests_are_accepted(admin: RunningServer) -> None:
    def statuses() -> tuple[int, int]:
        return (
            httpx.get(admin.url + "/ready").status_code,
            httpx.post(admin.url + CHAT, json=HELLO).status_code,
        )

    assert statuses() == (200, 200)
    assert httpx.post(admin.url + "/sleep").status_code == 200
    assert statuses() == (503, 503)
    assert "asleep" in httpx.get(admin.url + "/ready").json()["error"]["message"]
    assert httpx.get(admin.url + "/health").status_code == 200
    assert httpx.post(admin.url + "/wake_up?tags=weights").status_code == 200
    assert statuses() == (503, 503)
    assert httpx.post(admin.url + "/wake_up").status_code == 200
    assert statuses() == (200, 200)


def test_a_server_is_not_ready_while_it_waits_to_fall_asleep(llm: AsyncLLM) -> None:
    app = Server(llm, ServeConfig(enable_admin=True)).app

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as http:
            llm.pause()
            answering = asyncio.ensure_future(http.post(CHAT, json=HELLO))
            while llm.stats().num_waiting_reqs + llm.stats().num_running_reqs == 0:
                await asyncio.sleep(0.01)
            assert (await http.get("/ready")).status_code == 200  # requests are accepted, and wait
            falling_asleep = asyncio.ensure_future(http.post("/sleep?mode=wait"))
            while (await http.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            assert not llm.is_sleeping()
            llm.resume()
            assert (await answering).status_code == 200
            assert (await falling_asleep).status_code == 200
            assert (await http.post("/wake_up")).status_code == 200
            assert (await http.get("/ready")).status_code == 200

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("method", "target", "param", "said"),
    [
        ("POST", "/sleep?level=9", "level", "level must be one of 1, 2, got 9"),
        ("POST", "/sleep?level=x", "level", "got x"),
        ("POST", "/sleep?mode=zz", "mode", "mode must be one of refuse, wait, abort, got zz"),
        ("POST", "/sleep?levle=1", None, "'levle' is no query parameter of /sleep; it has level, mode"),
        ("POST", "/pause?mode=zz", "mode", "mode must be one of keep, wait, got zz"),
        ("POST", "/pause?foo=1", None, "'foo' is no query parameter of /pause; it has mode"),
        ("POST", "/resume?foo", None, "'foo' is no query parameter of /resume; it has none"),
        ("POST", "/reset_prefix_cache?foo=1", None, "'foo'"),
        ("POST", "/wake_up?tags=weights&tags=zz", "tags", "tags must be one of weights, kv_cache, got zz"),
        ("POST", "/wake_up?tag=weights", None, "'tag'"),
        ("GET", "/is_sleeping?foo=1", None, "'foo'"),
        ("POST", "/v1/load_lora_adapter?foo=1", None, "'foo'"),
        ("POST", "/v1/unload_lora_adapter?foo=1", None, "'foo'"),
    ],
)
def test_parameters_that_admin_routes_do_not_have_are_refused(
    admin: RunningServer, method: str, target: str, param: str | None, said: str
) -> None:
    answer = httpx.request(method, admin.url + target)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param
    assert httpx.get(admin.url + "/is_sleeping").json() == {"is_sleeping": False}


def test_a_pause_that_waits_begins_nothing(admin: RunningServer) -> None:
    for target in ("/pause?mode=wait", "/pause?mode=keep"):
        assert httpx.post(admin.url + target).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(admin.url + CHAT, json=HELLO, timeout=0.3)
        assert httpx.post(admin.url + "/resume").status_code == 200
        assert httpx.post(admin.url + CHAT, json=HELLO).status_code == 200


def test_web_pages_from_elsewhere_do_not_reach_admin_routes(admin: RunningServer) -> None:
    text = {"Content-Type": "text/plain"}
    port = admin.url.rpartition(":")[2]
    for origin in ("http://evil", "null", "", "http://127.0.0.1", f"http://evil:{port}", "http://[", "*"):
        for path in ("/sleep", "/pause", "/reset_prefix_cache", "/v1/load_lora_adapter"):
            answer = httpx.post(admin.url + path, content=b"{}", headers={**text, "Origin": origin})
            assert answer.status_code == 403, (origin, path)
            error = answer.json()["error"]
            assert error["type"] == "permission_error"
            assert path in error["message"]
    assert httpx.get(admin.url + "/is_sleeping").json() == {"is_sleeping": False}
    for origin in (admin.url, "https://a.example"):
        assert httpx.post(admin.url + "/resume", headers={"Origin": origin}).status_code == 200
    assert httpx.post(admin.url + CHAT, json=HELLO, headers={"Origin": "http://evil"}).status_code == 200

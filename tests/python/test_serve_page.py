"""The page of ``quire serve``, in a browser, before a server with the demo model."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import quire
from browser import SHIFT, Browser, Tab, find_chromium
from page_user import answer_of, ask, begin, delta, note_of, opened, set_field, stream, wait_for_end
from prometheus_client.parser import text_string_to_metric_families
from quire import AsyncLLM
from quire.serve.app import Server
from quire.serve.config import ServeConfig
from serving import RunningServer, running_server

CHAT = "v1/chat/completions"
PAGE = Path(quire.__file__).parent / "serve" / "page"
# Seconds, of which the page shows the first choice.
LONG = '{"ignore_eos": true, "max_tokens": 1500, "n": 8}'
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>&lt;b&gt;'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--tool-parser", "hermes") as server:
        yield server


@pytest.fixture(name="tab")
def open_page(browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """The page, ready, and no complaint of the browser's at the end."""
    tab = opened(browser, server)
    yield tab
    complaints = tab.complaints()
    tab.close()
    assert complaints == []


# Without a browser.


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_a_missing_browser_is_a_failure_where_all_is_tested(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=r"Chromium|chromium"):
        find_chromium()


def test_it_is_served_to_all_and_nothing_else_may_come_into_it(server: RunningServer) -> None:
    client = httpx.Client(base_url=server.url)
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert not any("unsafe" in value or "http" in value for value in policy.values())
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ["/", *("/page/" + file.name for file in PAGE.iterdir())]:
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-cache"
        for known in (answer.headers["etag"], f'W/{answer.headers["etag"]}, "other"', "*"):
            again = client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (
                304,
                b"",
                answer.headers["etag"],
            )
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/../app.py", "/page/..%2Fapp.py", "/page/%00"]
)
def test_there_are_no_other_files(server: RunningServer, path: str) -> None:
    answer = httpx.get(server.url + path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
    assert httpx.post(server.url + "/").status_code == 405


def test_it_can_be_left_out_and_opens_nothing_else() -> None:
    async def statuses(config: ServeConfig, *calls: tuple[str, str]) -> list[int]:
        llm = AsyncLLM(num_threads=1)
        try:
            transport = httpx.ASGITransport(Server(llm, config).app)
            async with httpx.AsyncClient(transport=transport, base_url="http://quire") as client:
                return [(await client.request(method, path)).status_code for method, path in calls]
        finally:
            await llm.shutdown()

    files = (("GET", "/"), ("GET", "/page/main.js"))
    assert asyncio.run(statuses(ServeConfig(page=False), *files)) == [404, 404]
    # Behind this path a route's name begins as the page's files do.
    config = ServeConfig(api_key=("secret",), root_path="/page")
    others = (("POST", "/page/tokenize"), ("GET", "/page/v1/models"), ("GET", "/page/"))
    assert asyncio.run(statuses(config, files[0], *others)) == [200, 401, 401, 401]


def test_files_are_small_and_name_only_each_other() -> None:
    files = {file.name: file.read_text() for file in PAGE.iterdir()}
    index = files.pop("index.html")
    assert {name for name in files if not name.endswith(".md")} == set(re.findall(r'"page/([^"]+)"', index))
    for name, text in files.items():
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= set(files), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text
        ), name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(", text), name
        assert text.count("\n") < 300, name
        assert all(len(line) <= 150 for line in text.splitlines()), name
    assert not re.search(r"<script(?! type=\"module\" src)|<style|\sstyle=|\son\w+=", index)


# Chat.


def test_an_answer_is_streamed_and_what_it_took_is_said(tab: Tab, server: RunningServer) -> None:
    set_field(tab, "temperature", "0")
    shown = ask(tab, "Who are you?")
    question = {"role": "user", "content": "Who are you?"}
    body: dict[str, Any] = {"messages": [question], "temperature": 0}
    expected = httpx.post(f"{server.url}/{CHAT}", json=body).json()
    assert shown == expected["choices"][0]["message"]["content"]
    stats = tab.text(".assistant .stats")
    used = expected["usage"]
    assert re.fullmatch(
        rf"first token \d+ ms · ([\d.,]+ tokens/s · )?{used['prompt_tokens']} prompt( \(\d+ cached\))? "
        rf"\+ {used['completion_tokens']} tokens",
        stats,
    )
    assert tab.focused() == "prompt"
    again = ask(tab, "Who are you?")
    assert tab.run("document.querySelectorAll('.message').length") == 4
    body["messages"] += [{"role": "assistant", "content": shown}, question]
    assert again == httpx.post(f"{server.url}/{CHAT}", json=body).json()["choices"][0]["message"]["content"]


def test_what_is_said_aloud_are_sentences(tab: Tab) -> None:
    set_field(tab, "temperature", "0")
    answer = ask(tab, "Tell me a short story about a lighthouse.")
    said = tab.run("[...document.querySelectorAll('#announcer p')].map(p => p.textContent)")
    assert len(said) > 2
    assert all(sentence[-1] in '.!?"' for sentence in said)
    assert re.sub(r"\s", "", "".join(said)) in re.sub(r"\s", "", answer)
    assert tab.run("document.querySelector('#announcer').ariaLive") == "polite"
    assert tab.run("document.querySelector('#messages').ariaLive") == "off"


def test_keys_of_the_composer(tab: Tab, server: RunningServer) -> None:
    tab.set_screen(1280, 400)
    set_field(tab, "more", LONG)
    tab.run("document.querySelector('#prompt').focus()")
    tab.write("one")
    tab.press("Enter", SHIFT)
    tab.write("two")
    assert tab.run("document.querySelector('#prompt').value") == "one\ntwo"
    tab.press("Enter")
    tab.until("document.querySelector('.assistant .text')?.textContent.length > 20")
    assert tab.text(".user .text") == "one\ntwo"
    assert tab.run("document.querySelector('.assistant').ariaBusy") == "true"
    gap = "(e => e.scrollHeight - e.clientHeight - e.scrollTop)(document.querySelector('#messages'))"
    tab.until("(e => e.scrollHeight > e.clientHeight + 150)(document.querySelector('#messages'))")
    assert tab.run(gap) < 2
    tab.run("document.querySelector('#messages').scrollTop = 0")
    tab.run("new Promise(done => setTimeout(done, 50))")
    tab.press("Escape")
    wait_for_end(tab)
    assert tab.run(gap) > 100, "who reads above is left there"
    assert note_of(tab) == "Stopped."
    assert re.search(r"^first token \d+ ms · [\d.,]+ tokens/s · ", tab.text(".assistant .stats"))
    assert tab.run("document.querySelector('.assistant').ariaBusy") == "false"
    deadline = time.monotonic() + 30
    while gauge(server, "quire:num_requests_running") > 0:
        assert time.monotonic() < deadline, "the server goes on"
        time.sleep(0.02)
    assert gauge(server, "quire:request_success_total", finished_reason="abort") >= 1


def gauge(server: RunningServer, name: str, **labels: str) -> float:
    text = httpx.get(server.url + "/metrics").text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    return float(sum(s.value for s in samples if labels.items() <= s.labels.items()))


def test_settings_are_what_is_sent(tab: Tab) -> None:
    values = {
        "temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "max_tokens": "12", "seed": "7",
        "presence_penalty": "0.1", "frequency_penalty": "-0.2", "repetition_penalty": "1.1",
    }  # fmt: skip
    for name, text in values.items():
        set_field(tab, name, text)
    set_field(tab, "system", "Be short.")
    set_field(tab, "stop", "A\n\nB C")
    set_field(tab, "more", '{"min_tokens": 2}')
    with tab.intercepting("*/v1/chat/completions") as answer:
        begin(tab, "Hi")
        sent = answer(200, stream(delta("stop", content="Hello."), "[DONE]"))
        wait_for_end(tab)
        assert sent == {
            "model": "quire-demo", "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
            **{name: json.loads(text) for name, text in values.items()},
            "stop": ["A", "B C"], "min_tokens": 2,
        }  # fmt: skip
        tab.click("#reset")
        begin(tab, "And?")
        sent = answer(200, stream("[DONE]"))
    assert set(sent) == {"model", "stream", "stream_options", "messages"}
    assert [message["content"] for message in sent["messages"]] == ["Hi", "Hello.", "And?"]


TOOL = '{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}'


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("temperature", "-1", "At least 0"),
        ("top_p", "2", "At most 1"),
        ("max_tokens", "1.5", "A whole number"),
        ("tools", "[{]", "This is not JSON: "),
        ("tools", "{}", "Tools must be a list"),
        ("tools", '[{"type": "function", "function": {"name": "a b"}}]', "Tool 1 needs a function.name"),
        ("tools", f"[{TOOL}, {TOOL}]", "Tool 2: there is a find already"),
        ("more", "[]", "This must be an object"),
        ("more", '{"stream": false}', "The page sends stream itself"),
        ("seed", "9007199254740993", "At most 9007199254740991"),
        ("key", "ä b", "A key is ASCII text"),
    ],
)
def test_what_cannot_be_is_said_and_not_sent(
    page_to_misuse: Tab, name: str, text: str, complaint: str
) -> None:
    tab = page_to_misuse
    set_field(tab, name, text)
    begin(tab, "Hi")
    assert tab.text(f"#setting-{name}-error").startswith(complaint)
    assert tab.focused() == f"setting-{name}"
    assert tab.run(f"document.querySelector('#setting-{name}').ariaInvalid") == "true"
    assert tab.run("document.querySelectorAll('.message').length") == 0
    tab.fill(f"#setting-{name}", "")
    assert tab.text(f"#setting-{name}-error") == ""
    tab.fill("#prompt", "")


@pytest.fixture(scope="module")
def page_to_misuse(browser: Browser, server: RunningServer) -> Iterator[Tab]:
    tab = opened(browser, server)
    yield tab
    tab.close()


def test_tools_are_called_and_given_what_they_found(tab: Tab) -> None:
    set_field(tab, "tools", f"[{TOOL}]")
    tab.choose("#setting-tool-choice", "function find")
    set_field(tab, "max_tokens", "40")
    ask(tab, "Find it.")
    assert tab.text(".call code") == "find"
    assert tab.text(".call pre").startswith("{")
    assert tab.text(".results label") == "Result of find"
    tab.fill(".results textarea", "nothing")
    with tab.intercepting("*/v1/chat/completions") as answer:
        tab.click(".results button")
        sent = answer(200, stream(delta("stop", content="There is none."), "[DONE]"))
        wait_for_end(tab)
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    [call] = sent["messages"][1]["tool_calls"]
    assert sent["messages"][2] == {"role": "tool", "content": "nothing", "tool_call_id": call["id"]}
    assert answer_of(tab) == "There is none."


def test_answers_of_a_schema_and_schemas_that_are_none(tab: Tab) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 9}}, "required": ["age"]}
    tab.choose("#setting-format", "json_schema")
    begin(tab, "How old?")
    assert tab.text("#setting-schema-error").startswith("A schema is needed")
    tab.fill("#prompt", "")
    set_field(tab, "schema", json.dumps({**schema, "additionalProperties": False}))
    assert json.loads(ask(tab, "How old are you?"))["age"] <= 9
    set_field(tab, "schema", '{"type": "integr"}')
    ask(tab, "How old?")
    assert note_of(tab).startswith("The server refused the request: ")
    assert "integr" in note_of(tab)


def test_the_last_can_be_edited_copied_and_asked_for_again(tab: Tab) -> None:
    set_field(tab, "max_tokens", "8")
    ask(tab, "One?")
    first = ask(tab, "Two?")
    shown = "[...document.querySelectorAll('.foot button')].filter(b => !b.hidden).map(b => b.textContent)"
    assert tab.run(shown) == ["Copy", "Copy", "Copy", "Edit", "Copy", "Regenerate"]
    tab.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    tab.click(".message:last-child .foot button:nth-of-type(1)")
    tab.until(f"window.copied === {json.dumps(first)}")
    tab.click(".message:last-child .foot button:nth-of-type(2)")
    wait_for_end(tab)
    assert tab.run("document.querySelectorAll('.message').length") == 4
    assert tab.focused() == "prompt"
    tab.click(".message:nth-last-child(2) .foot button:nth-of-type(2)")
    assert tab.run("document.querySelectorAll('.message').length") == 2
    assert tab.run("document.querySelector('#prompt').value") == "Two?"
    assert tab.focused() == "prompt"
    tab.click("#clear")
    assert tab.run("document.querySelectorAll('.message').length") == 0
    assert tab.run("!document.querySelector('#empty').hidden && document.querySelector('#clear').disabled")


# Hostile.


def test_a_models_html_stays_text(tab: Tab) -> None:
    set_field(tab, "more", json.dumps({"structured_outputs": {"choice": [HOSTILE]}}))
    assert ask(tab, HOSTILE) == HOSTILE
    assert tab.text(".user .text") == HOSTILE
    events = stream(
        delta(reasoning=HOSTILE),
        delta(tool_calls=[{"index": 0, "id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}]),
        {"error": {"message": HOSTILE}},
    )
    with tab.intercepting("*/v1/chat/completions") as answer:
        begin(tab, "Hi")
        answer(200, events)
        wait_for_end(tab)
    assert tab.text(".reasoning .text") == tab.text(".call code") == tab.text(".call pre") == HOSTILE
    assert note_of(tab) == f"The answer failed: {HOSTILE}."
    assert tab.run("document.querySelectorAll('main img, main script, .message b').length") == 0
    assert tab.run("typeof window.hacked") == "undefined"
    # Nor could a mistake of the page's make HTML of it.
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        tab.run("document.createElement('div').innerHTML = '<b>'")
    assert len(tab.complaints()) == 1


def test_a_long_answer_is_shown_whole_and_soon(tab: Tab) -> None:
    lines = "".join(f"{i} {'word ' * 15}\n" for i in range(600))
    text = lines + "x" * 50_000  # a line that never ends
    pieces = [text[i : i + 40] for i in range(0, len(text), 40)]
    with tab.intercepting("*/v1/chat/completions") as answer:
        begin(tab, "All of it.")
        answer(200, stream(*(delta(content=piece) for piece in pieces), delta("stop"), "[DONE]"))
        before = time.monotonic()
        wait_for_end(tab)
        assert time.monotonic() - before < 3
    assert len(text) > 95_000 and answer_of(tab) == text
    assert tab.run("document.querySelectorAll('.assistant .text > div').length") > 8
    scrolled = "(e => e.scrollHeight - e.clientHeight - e.scrollTop)(document.querySelector('#messages'))"
    assert tab.run(scrolled) < 2
    assert tab.run("document.documentElement.scrollHeight <= innerHeight")


FAILED = {"error": {"message": "no memory"}}
BUSY = '{"error": {"message": "2 are under way", "code": "rate_limit_exceeded"}}'


@pytest.mark.parametrize(
    ("status", "body", "said", "keeps"),
    [
        (200, stream(delta(content="Half ")), "The connection ended before the answer did.", "Half "),
        (200, stream(delta(content="Half "), FAILED), "The answer failed: no memory.", "Half "),
        (200, stream(delta(content="Half "), "{"), "The server sent an event that cannot be read.", "Half "),
        (200, stream(delta(content="Half "), "null"), "The server sent an event that cannot", "Half "),
        (200, stream("[DONE]"), "The answer is empty.", None),
        (200, stream(delta("length", content="Half "), "[DONE]"), "Ended early: max_tokens,", "Half "),
        (429, BUSY, "The server has too much to do: 2 are under way. It takes requests again in 1 s", None),
        (503, "<html>bad gateway</html>", "The server failed: 503", None),
        (413, '{"error": {"message": "at most 9 bytes"}}', "The request is too long: at most 9 bytes.", None),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_and_can_be_tried_again(
    page_to_misuse: Tab, status: int, body: str, said: str, keeps: str | None
) -> None:
    tab = page_to_misuse
    with tab.intercepting("*/v1/chat/completions") as answer:
        begin(tab, "Hi")
        answer(status, body, Retry_After="1")
        wait_for_end(tab)
        assert note_of(tab).startswith(said)
        if keeps is not None:
            assert answer_of(tab) == keeps
        tab.click(".message:last-child .foot button:nth-of-type(2)")
        sent = answer(200, stream(delta("stop", content="Now."), "[DONE]"))
        wait_for_end(tab)
    assert sent["messages"] == [{"role": "user", "content": "Hi"}]
    assert answer_of(tab) == "Now."
    tab.click("#clear")


def test_a_key_is_asked_for_kept_in_this_tab_and_sent(browser: Browser) -> None:
    with running_server("--api-key", "secret", "--max-concurrent-requests", "1", "--enable-admin") as server:
        tab = browser.open(server.url + "/#engine")
        tab.until("document.querySelector('#status').textContent === 'needs an API key'")
        assert "asks for an API key" in tab.text("#engine-notice")
        tab.click("#tab-chat")
        assert "Settings have a field for it" in tab.text("#chat-notice")
        set_field(tab, "key", "wrong")
        ask(tab, "Hi")
        assert "the API key is not known" in note_of(tab)
        set_field(tab, "key", "secret")
        tab.until("document.querySelector('#model').options.length > 0")
        tab.until("document.querySelector('#status').dataset.state === 'up'")
        assert tab.run("document.querySelector('#chat-notice').hidden")
        assert tab.run("[Object.values(sessionStorage), localStorage.length, document.cookie]") == [
            ["secret"],
            0,
            "",
        ]
        set_field(tab, "more", LONG)
        begin(tab, "Hi")
        tab.until("[...document.querySelectorAll('.assistant')].at(-1).querySelector('.text') !== null")
        httpx.post(server.url + "/pause", headers={"Authorization": "Bearer secret"})
        other = browser.open(server.url + "/")
        assert other.run("document.querySelector('#setting-key').value") == ""
        set_field(other, "key", "secret")
        ask(other, "And me?")
        assert note_of(other).startswith("The server has too much to do: 1 requests are under way")
        assert tab.run("document.querySelector('#send').hidden"), "the first goes on"
        tab.click("#stop")
        wait_for_end(tab)
        for each in (tab, other):
            each.close()

"""The page's modules against other readers, and its tab "Engine" before servers that come and go."""

from __future__ import annotations

import json
import math
import random
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from browser import Browser, Tab
from page_user import begin, note_of, opened, set_field, wait_for_end
from prometheus_client.parser import text_string_to_metric_families
from serving import RunningServer, running_server, wait_until

LONG = {"ignore_eos": True, "max_tokens": 1500}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--enable-admin") as server:
        yield server


@pytest.fixture(scope="module")
def modules(browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """A page to run its modules in."""
    tab = opened(browser, server)
    yield tab
    tab.close()


def run(tab: Tab, module: str, body: str, **arguments: Any) -> Any:
    """What a function's body returns, given a module's exports as ``m`` and these arguments."""
    names = ", ".join(arguments)
    call = f"(({{ {names} }}) => {{ {body} }})({json.dumps(arguments)})"
    return tab.run(f"import('/page/{module}.js').then(m => {call})")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_however_they_are_cut(modules: Tab, end: str) -> None:
    lines = [
        "data: one",
        "",
        ": a comment",
        "data:two",
        "data:  three",
        "id: 7",
        "",
        "event: x",
        "",
        "data",
        "",
        "data: rest",
    ]
    body = """
      const all = [];
      for (const cut of cuts) {
        const reader = new m.EventReader();
        const events = [];
        let begin = 0;
        for (const end of [...cut, text.length]) {
          events.push(...reader.push(text.slice(begin, end)));
          begin = end;
        }
        all.push(events);
      }
      return all;"""
    text = end.join(lines) + end + "x"
    rng = random.Random(1)
    cuts = [[i] for i in range(len(text))] + [sorted(rng.choices(range(len(text)), k=6)) for _ in range(50)]
    for events in run(modules, "event_reader", body, text=text, cuts=[[], *cuts, list(range(len(text)))]):
        assert events == ["one", "two\n three", ""]


def test_metrics_are_what_prometheus_reads(modules: Tab, server: RunningServer) -> None:
    httpx.post(server.url + "/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 20})
    text = httpx.get(server.url + "/metrics").text
    text += 'odd{a="} 5 \\" \\\\",b="x"} 1e3 1700000000\nodd{a="y"} 2.5\nodd_more{} 7\n'
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    names = [
        "quire:generation_tokens_total",
        "quire:request_success_total",
        "quire:num_kv_cache_blocks",
        "odd",
    ]
    histogram = "quire:time_to_first_token_seconds"
    read = run(
        modules,
        "exposition",
        "return m.readExposition(text, names, [histogram])",
        text=text,
        names=names,
        histogram=histogram,
    )
    for name in names:
        assert read[name] == sum(s.value for s in samples if s.name == name) > 0
    assert "odd_more" not in read
    buckets = [s for s in samples if s.name == f"{histogram}_bucket"]
    expected = [(float(s.labels["le"]), s.value) for s in buckets]
    told = [(math.inf if bound is None else bound, count) for bound, count in read[histogram]["buckets"]]
    assert told == expected  # JSON has no infinity, and says null
    assert read[histogram]["count"] == buckets[-1].value


def sample(tokens: float, **more: float) -> dict[str, Any]:
    nothing = {"sum": 0, "count": 0, "buckets": []}
    return {
        "quire:generation_tokens_total": tokens,
        "quire:prefix_cache_queries_total": 60,
        "quire:prefix_cache_hits_total": 15,
        "quire:time_to_first_token_seconds": nothing,
        "quire:inter_token_latency_seconds": nothing,
        "quire:iteration_tokens_total": nothing,
        **{f"quire:{name}": value for name, value in more.items()},
    }


def test_rates_are_of_two_polls_and_gaps_are_not_guessed(modules: Tab) -> None:
    polls: list[tuple[float, dict[str, Any] | None]] = [
        (0, sample(100, prefix_cache_queries_total=50, prefix_cache_hits_total=10)),
        (1, sample(150)),
        (3, sample(150)),
        (4, None),  # no answer
        (5, None),
        (6, sample(300)),
        (7, sample(310)),
        (60, sample(500)),  # the page was hidden
        (61, sample(501)),
        (62, sample(7)),  # another server: its counters begin anew
        (63, sample(17)),
        (64, None),
        (70, sample(3)),  # and another, after a time without one
    ]
    body = """
      const history = new m.History();
      for (const [time, values] of polls) {
        if (values === null) history.addGap(time);
        else history.add(time, values);
      }
      const told = ({ time, generation = null, hitRate = null }) => [time, generation, hitRate];
      return [history.points.map(told), history.restarts];"""
    points, restarts = run(modules, "history", body, polls=polls)
    assert points == [
        [0, None, None], [1, 50, 0.5], [3, 0, 0.5], [4, None, None], [6, None, None], [7, 10, None],
        [60, None, None], [60, None, None], [61, 1, None], [62, None, None], [62, None, None], [63, 10, None],
        [64, None, None], [70, None, None],
    ]  # fmt: skip
    assert restarts == 2


def test_history_is_of_some_minutes(modules: Tab) -> None:
    body = """
      const history = new m.History();
      for (let time = 0; time < 5000; ++time) history.add(time, values);
      return [history.points.length, history.points[0].time];"""
    assert run(modules, "history", body, values=sample(0)) == [901, 4099]


def test_a_part_of_what_came_lies_within_a_bucket(modules: Tab) -> None:
    now = {"count": 120, "buckets": [[0.01, 110], [0.1, 119], [1, 120]]}
    then = {"count": 20, "buckets": [[0.01, 20], [0.1, 20], [1, 20]]}
    for part, bound in ((0.5, 0.01), (0.9, 0.01), (0.95, 0.1), (1, 1)):
        assert (
            run(modules, "history", "return m.boundOf(now, then, part)", now=now, then=then, part=part)
            == bound
        )
    assert run(modules, "history", "return m.boundOf(now, now, 0.5)", now=now) is None


def test_scales_end_at_round_numbers(modules: Tab) -> None:
    for value, top in ((0, 1), (1, 1), (1.2, 2), (0.03, 0.05), (734, 1000), (1000, 1000), (2e-4, 2e-4)):
        assert run(modules, "plot", "return m.roundUp(value)", value=value) == pytest.approx(top)


def test_sentences_are_told_when_they_end(modules: Tab) -> None:
    body = """
      const element = document.createElement("div");
      const announcer = new m.Announcer(element);
      const told = [];
      for (const piece of pieces) {
        announcer.add(piece);
        told.push([...element.children].map(e => e.textContent));
        element.replaceChildren();
      }
      announcer.finish();
      return [told, [...element.children].map(e => e.textContent)];"""
    pieces = ["He pa", "id 3.50", " for it. ", 'She said "No!" and', " left.", "\n\nThen\nhe", "。也", "没有"]
    told, rest = run(modules, "announcer", body, pieces=pieces)
    assert told == [
        [], [], ["He paid 3.50 for it."], ['She said "No!"'], [], ["and left.", "Then"], ["he。"], [],
    ]  # fmt: skip
    assert rest == ["也没有"]
    [told], rest = run(modules, "announcer", body, pieces=["x" * 1000])
    assert told == ["x" * 1000] and rest == []


def metrics_of(server: RunningServer) -> dict[str, float]:
    families = text_string_to_metric_families(httpx.get(server.url + "/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def blocks_of(server: RunningServer) -> str:
    values = metrics_of(server)
    used, num_blocks = values["quire:num_kv_cache_blocks_used"], values["quire:num_kv_cache_blocks"]
    return f"{used:.0f} of {num_blocks:,.0f} blocks"


def tile(tab: Tab, name: str) -> str:
    tiles = tab.run(
        "[...document.querySelectorAll('.tile')].map(e => [...e.children].map(c => c.textContent))"
    )
    [value] = [value for title, value, _ in tiles if title == name]
    return str(value)


def test_the_engine_is_shown_as_it_is(browser: Browser, server: RunningServer) -> None:
    tab = opened(browser, server)
    set_field(tab, "more", json.dumps({**LONG, "n": 16}))  # seconds, in which the page shows the first words
    begin(tab, "Tell me a story.")
    tab.until("document.querySelector('.assistant .text')?.textContent.length > 20")
    httpx.post(server.url + "/pause")  # running, and it stays so
    tab.click("#tab-engine")
    tab.until("document.querySelector('#status').textContent === '16 running, 0 waiting'")
    assert tile(tab, "Running") == "16"
    wait_until(lambda: blocks_of(server) in tab.text("#tiles"))  # steps that had begun come to their end
    httpx.post(server.url + "/resume")
    tab.until("document.querySelectorAll('.plot path').length >= 4")
    labels = tab.run("[...document.querySelectorAll('.plot svg')].map(svg => svg.ariaLabel)")
    assert len(labels) == 8
    assert re.fullmatch(
        r"Requests\. running: now \d+, least \d+, most 16; waiting: now 0, least 0, most 0\.", labels[0]
    )
    assert not re.search(
        "NaN|undefined|Infinity", tab.run("document.querySelector('#panel-engine').innerHTML")
    )
    # With keys: a plot says what it was at each poll.
    tab.run("document.querySelector('.plot svg').focus()")
    tab.press("ArrowLeft")
    assert re.fullmatch(r"running \d+, waiting 0, \d+ s ago", tab.text(".plot .readout"))
    tab.click(".figures summary")
    tab.until("document.querySelectorAll('#figures tr').length === 10")
    # Nothing is asked for while nobody sees it.
    tab.run("Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true })")
    hide = "window.isHidden = {}; document.dispatchEvent(new Event('visibilitychange'))"
    num_polls = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/metrics')).length"
    tab.run(hide.format("true"))
    before = tab.run(num_polls)
    tab.run("new Promise(done => setTimeout(done, 1300))")
    assert tab.run(num_polls) <= before + 1  # one may have been under way
    tab.run(hide.format("false"))
    tab.until(f"{num_polls} > {before}")
    assert tab.complaints() == []
    tab.close()


def test_a_server_that_dies_and_comes_back(browser: Browser) -> None:
    first = RunningServer()
    port = first.url.rsplit(":", 1)[1]
    tab = opened(browser, first)
    httpx.post(first.url + "/v1/completions", json={"prompt": "a", "max_tokens": 20})
    tab.click("#tab-engine")
    tab.until("document.querySelectorAll('.plot path').length > 0")
    tab.click("#tab-chat")
    set_field(tab, "more", json.dumps({**LONG, "n": 8}))
    begin(tab, "Tell me a story.")
    tab.until("document.querySelector('.assistant .text')?.textContent.length > 20")
    first.process.send_signal(signal.SIGKILL)
    wait_for_end(tab)
    assert note_of(tab).startswith("The server does not answer, or the connection to it broke.")
    first.stop()
    tab.click("#tab-engine")
    tab.until("document.querySelector('#status').textContent === 'no answer'")
    assert "goes on asking" in tab.text("#engine-notice")
    assert tile(tab, "Running") == "\N{EN DASH}"
    with running_server("--port", port):
        tab.until("document.querySelector('#status').dataset.state === 'up'")
        tab.until("document.querySelector('#status').textContent === '0 running, 0 waiting'")
        assert tab.text("#engine-notice") == "The server was started anew once since this page was opened."
        assert tab.run("document.querySelectorAll('.plot path').length") > 0, "what was seen stays"
        tab.click("#tab-chat")
        tab.click("#clear")
        set_field(tab, "more", "")
        begin(tab, "Hi")
        wait_for_end(tab)
        assert tab.run("document.querySelectorAll('.assistant .error').length") == 0
    tab.close()

"""Grafana's dashboard: its queries name what a server shows, and Prometheus answers them."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from prometheus_samples import COMMON_LABELS, Samples
from quire import LLM, PrometheusMetrics, RequestOutput, SamplingParams
from quire.serve.http_metrics import HttpMetrics

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/quire.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
FUNCTIONS = {"sum", "rate", "histogram_quantile", "by"}


class Server:
    """An engine of the demo model behind /metrics, and what counts HTTP."""

    def __init__(self, demo_model: Path) -> None:
        self.metrics = PrometheusMetrics(model_name="demo", alias_vllm=True)
        self.llm = LLM(demo_model, metric_sink=self.metrics)
        self.outputs: list[RequestOutput] = []
        self.http = HttpMetrics(self.metrics)

    def ask(self, num_tokens: int) -> None:
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        prompts = ["Once upon a time there was a baker who", "The lighthouse"]
        self.outputs += self.llm.generate(prompts, params, use_tqdm=False)
        self.http.answered("/v1/completions", "POST", 200, 0.25)


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Server:
    made = Server(demo_model)
    made.ask(5)
    return made


def selectors(expr: str) -> list[tuple[str, dict[str, str]]]:
    """Metrics that a query reads, and the labels that it selects them by."""
    without_grouping = re.sub(r"\bby \([^)]*\)", "by", expr)
    found = []
    for name, labels in re.findall(r"(?<![\w:\"$.])([a-zA-Z_:][\w:]*)(\{[^}]*\})?", without_grouping):
        if name in FUNCTIONS or f"${name}" in expr.replace(labels, ""):
            continue
        found.append((name, dict(re.findall(r'(\w+)=~"([^"]*)"', labels))))
    return found


def grouped_by(expr: str) -> set[str]:
    return {label for labels in re.findall(r"\bby \(([^)]*)\)", expr) for label in labels.split(", ")}


@pytest.mark.parametrize(("title", "expr"), QUERIES)
def test_a_query_names_metrics_and_labels_that_are_shown(server: Server, title: str, expr: str) -> None:
    shown: dict[str, set[str]] = {}
    for family in Samples(server.metrics.render()).families:
        for sample in family.samples:
            shown.setdefault(sample.name, set()).update(sample.labels)
    read = selectors(expr)
    assert read
    for name, labels in read:
        assert name in shown
        assert set(labels) | grouped_by(expr) <= shown[name], title
        assert name.endswith("_bucket") == ("le" in grouped_by(expr))
        # Of counters only rates mean anything, of gauges their values.
        is_counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert (f"rate({name}" in expr) == is_counter
        if name.startswith("quire:"):
            assert labels == {"model_name": "$model_name", "engine": "$engine"}


def test_a_legend_names_labels_of_its_query() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = grouped_by(target["expr"]) - {"le"}
            assert named == kept or (not kept and named == {"model_name", "engine"}), panel["title"]


def test_every_family_that_says_something_by_itself_is_on_it() -> None:
    read = {re.sub(r"_(bucket|sum|count)$", "", name) for _, expr in QUERIES for name, _ in selectors(expr)}
    for name in (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_hits_total",
        "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "cudagraph_steps_total",
    ):  # fmt: skip
        assert f"quire:{name}" in read


def test_panels_do_not_overlap_and_come_from_the_chosen_source() -> None:
    places: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places and at["x"] + at["w"] <= 24, panel["title"]
        places |= cells
    for panel in PANELS:
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "model_name", "engine"]


def needed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"needs {program}, of Debian's package prometheus")
    return path


def test_promtool_finds_nothing_wrong_but_vllms_names(server: Server) -> None:
    done = subprocess.run(
        [needed("promtool"), "check", "metrics"],
        input=server.metrics.render(),
        capture_output=True,
        check=False,
    )
    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert complaints
    for complaint in complaints:
        vllms = "should not contain ':'", "iteration_tokens_total non-counter"
        assert any(words in complaint for words in vllms), complaint


class Prometheus:
    """A Prometheus that scrapes a server four times a second."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **params: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        result = self.get("query", query=expr)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = needed("prometheus")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", server.metrics.content_type)
            self.end_headers()
            self.wfile.write(server.metrics.render())

        def log_message(self, format: str, *args: object) -> None:
            pass

    target = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=target.serve_forever, args=(0.05,))
    thread.start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = tmp_path_factory.mktemp("prometheus")
    scrape = {"job_name": "quire", "static_configs": [{"targets": [f"127.0.0.1:{target.server_port}"]}]}
    often = {"scrape_interval": "250ms", "scrape_timeout": "250ms"}
    config = {"global": often, "scrape_configs": [scrape]}
    (directory / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    process = subprocess.Popen(
        [program, f"--config.file={directory}/config.yml", f"--storage.tsdb.path={directory}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
    )  # fmt: skip
    made = Prometheus(f"http://127.0.0.1:{port}")
    try:
        scrapes_to_see = 4
        for i in range(scrapes_to_see):  # requests that end between two scrapes are a rate
            server.ask(5 + i)
            deadline = time.monotonic() + 30
            while num_scrapes(made) <= i:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait()
        target.shutdown()
        thread.join()
        target.server_close()


def num_scrapes(prometheus: Prometheus) -> float:
    try:
        return sum(value for _, value in prometheus.query("count_over_time(up[5m])"))
    except OSError:  # it is not listening yet
        return 0


def test_prometheus_has_what_the_server_says(server: Server, prometheus: Prometheus) -> None:
    expected = Samples(server.metrics.render())
    end = time.monotonic() + 30
    while (told := scraped(prometheus, expected.names())) != expected.values:
        assert time.monotonic() < end, set(told.items()) ^ set(expected.values.items())
        time.sleep(0.2)


def scraped(prometheus: Prometheus, names: set[str]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What it knows, as Samples has it."""
    added = {"__name__", "instance", "job", *COMMON_LABELS}
    return {
        (name, frozenset((label, text) for label, text in labels.items() if label not in added)): value
        for name in names
        for labels, value in prometheus.query(f'{{__name__="{name}"}}')
    }


def asked_for(expr: str) -> str:
    """A query with its variables' values."""
    return expr.replace("$__rate_interval", "5m").replace("$model_name", "demo").replace("$engine", ".*")


def test_every_query_has_an_answer(server: Server, prometheus: Prometheus) -> None:
    for title, expr in QUERIES:
        answer = prometheus.query(asked_for(expr))
        assert answer, (title, expr)
        if "spec_decode" in expr:
            continue  # 0 of 0 here
        assert all(math.isfinite(value) and value >= 0 for _, value in answer), (title, answer)


def test_percentiles_lie_where_the_outputs_are(server: Server, prometheus: Prometheus) -> None:
    [panel] = [panel for panel in PANELS if panel["title"] == "Time to first token"]
    asked = [asked_for(target["expr"]) for target in panel["targets"]]
    p50, p90, p99, mean = (prometheus.query(expr)[0][1] for expr in asked)
    longest = max(output.metrics.first_token_latency for output in server.outputs)
    buckets = Samples(server.metrics.render()).buckets("quire:time_to_first_token_seconds")
    bound = min(upper for upper, _ in buckets if upper >= longest)
    assert 0 < p50 <= p90 <= p99 <= bound
    assert 0 < mean <= longest

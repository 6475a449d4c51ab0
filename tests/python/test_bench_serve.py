"""quire bench serve, as a person runs it, against a server whose times are known."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_openai import FIRST_S, NEXT_S, FakeServer, fake_server
from quire.bench.openai_target import OpenAITarget, _Answer
from quire.bench.outcomes import BenchRequest, Outcome
from quire.bench.serve import _warnings
from quire.bench.targets import TargetConfig

SMALL = ("--random-input-len", "8", "--random-output-len", "5", "--disable-tqdm")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "quire", "bench", "serve", *args]


def paced(server: FakeServer, *args: str) -> list[str]:
    return command("--base-url", server.url, "--served-model-name", "paced", *SMALL, *args)


def bench(server: FakeServer, model: str, *args: str, status: int = 0) -> Any:
    """The result of a run, as JSON."""
    server.exchanges.clear()
    done = subprocess.run(
        command("--base-url", server.url, "--served-model-name", model, *SMALL, "--json", *args),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_times_are_those_of_the_server(server: FakeServer) -> None:
    for _ in range(5):  # on a machine that is busy elsewhere the client may be late, hardly every time
        result = bench(server, "paced", "--num-prompts", "12", "--num-warmups", "1", "--save-detailed")
        sent = [exchange.sent for exchange in server.exchanges[1:]]
        received = [exchange.received for exchange in server.exchanges[1:]]
        ttft = statistics.mean(s[0] - r for s, r in zip(sent, received, strict=True)) * 1000
        itl = statistics.mean((s[-1] - s[0]) / 4 for s in sent) * 1000
        assert ttft >= FIRST_S * 1000 - 1
        if result["mean_ttft_ms"] < ttft + 30 and abs(result["mean_itl_ms"] - itl) < 3:
            break
    assert ttft - 1 < result["mean_ttft_ms"] < ttft + 30
    assert result["mean_itl_ms"] == pytest.approx(itl, abs=3)
    assert result["mean_tpot_ms"] == pytest.approx(result["mean_itl_ms"])
    assert itl >= NEXT_S * 1000 - 1
    assert result["mean_e2el_ms"] == pytest.approx(result["mean_ttft_ms"] + 4 * result["mean_itl_ms"])
    assert result["p99_ttft_ms"] >= result["median_ttft_ms"] > 0
    assert (result["completed"], result["failed"], result["num_prompts"]) == (12, 0, 12)
    assert result["total_input_tokens"] == 12 * 7  # as the server counts them
    assert result["total_output_tokens"] == 12 * 5
    assert result["output_throughput"] == pytest.approx(60 / result["duration"])
    assert result["max_concurrent_requests"] == 12
    assert result["generated_texts"] == ["xxxxx"] * 12
    assert result["output_lens"] == [5] * 12
    assert [len(itls) for itls in result["itls"]] == [4] * 12


def test_prompts_have_the_lengths_that_were_asked_for(server: FakeServer) -> None:
    bench(server, "quick", "--num-prompts", "3", "--extra-body", '{"top_p": 0.5}', "--header", "X-Team=blue")
    for exchange in server.exchanges:
        assert len(exchange.body["prompt"]) == 8
        assert all(isinstance(token, int) for token in exchange.body["prompt"])
        assert {key: exchange.body[key] for key in ("max_tokens", "ignore_eos", "temperature", "top_p")} == {
            "max_tokens": 5,
            "ignore_eos": True,
            "temperature": 0,
            "top_p": 0.5,
        }
        assert exchange.headers["x-team"] == "blue"


def test_at_most_so_many_requests_are_under_way_whatever_the_processes(server: FakeServer) -> None:
    result = bench(server, "paced", "--num-prompts", "9", "--max-concurrency", "3", "--num-clients", "2")
    assert result["completed"] == 9
    assert result["max_concurrent_requests"] == 3
    assert len(result["client_busy_share"]) == 2


def test_requests_come_when_they_are_due(server: FakeServer) -> None:
    rate = ("--num-prompts", "10", "--request-rate", "20", "--burstiness", "inf")
    for _ in range(5):  # on a machine that is busy elsewhere a gap may be longer, hardly every time
        bench(server, "quick", *rate)
        times = [exchange.received for exchange in server.exchanges]
        gap = statistics.median(b - a for a, b in pairwise(times))
        if abs(gap - 0.05) < 0.02 and times[-1] - times[0] > 0.4:
            break
    assert gap == pytest.approx(0.05, abs=0.02)
    assert times[-1] - times[0] > 0.4


def test_goodput_counts_what_was_quick_enough(server: FakeServer) -> None:
    many = ("--num-prompts", "4", "--goodput")
    assert bench(server, "paced", *many, "ttft:1", "e2el:10000")["request_goodput"] == 0
    result = bench(server, "paced", *many, "ttft:1000", "tpot:1000")
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("refused", "429: too many"),
        ("broken", "the stream ended before [DONE]"),
        ("odd", "the engine has ended"),
    ],
)
def test_failures_are_counted_by_what_was_said(server: FakeServer, model: str, message: str) -> None:
    result = bench(server, model, "--num-prompts", "4", status=1)
    assert (result["completed"], result["failed"]) == (0, 4)
    assert result["error_counts"] == {message: 4}
    assert result["output_throughput"] == result["mean_ttft_ms"] == 0


@pytest.mark.parametrize("model", ["quick", "closing", "kept"])
def test_connections_are_used_again_unless_they_end(server: FakeServer, model: str) -> None:
    before = server.num_connections
    result = bench(server, model, "--num-prompts", "6", "--max-concurrency", "1")
    assert (result["completed"], result["failed"]) == (6, 0)
    assert server.num_connections - before == (1 if model == "quick" else 6)


def test_conversations_are_text_and_schemas_are_asked_for(server: FakeServer) -> None:
    flags = ("--endpoint", "/v1/chat/completions", "--dataset-name", "json", "--num-prompts", "6")
    result = bench(server, "json", *flags, "--max-concurrency", "1")
    assert result["backend"] == "openai-chat"
    assert (result["completed"], result["json_valid"]) == (6, 4)
    body = server.exchanges[0].body
    assert isinstance(body["messages"][0]["content"], str)
    assert body["response_format"]["json_schema"]["schema"]["type"] == "object"
    assert "ignore_eos" not in body


def test_a_server_that_dies_leaves_what_was_answered(server: FakeServer) -> None:
    with fake_server() as dying:
        process = subprocess.Popen(
            paced(dying, "--request-rate", "50", "--num-prompts", "100", "--json"),
            stdout=subprocess.PIPE,
            text=True,
        )
        while sum(len(exchange.sent) == 5 for exchange in list(dying.exchanges)) < 10:
            assert process.poll() is None
            time.sleep(0.01)
    out, _ = process.communicate(timeout=60)
    result = json.loads(out)
    assert process.returncode == 0
    assert result["completed"] >= 5 and result["failed"] >= 30
    assert result["completed"] + result["failed"] == 100
    assert any("no connection to 127.0.0.1" in message for message in result["error_counts"])


def test_control_c_gives_what_there_is(server: FakeServer, tmp_path: Path) -> None:
    server.exchanges.clear()
    process = subprocess.Popen(
        paced(server, "--request-rate", "20", "--save-result", "--result-dir", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    try:
        while len(server.exchanges) < 15:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:  # or it would go on with the next test
        process.kill()
    assert process.returncode == 130, err
    assert "stopped by Ctrl-C after" in out
    result = json.loads(next(tmp_path.iterdir()).read_text())
    assert result["interrupted"]
    assert 5 <= result["completed"] < 1000 and result["failed"] == 0


def test_the_servers_processor_time_is_measured(server: FakeServer) -> None:
    result = bench(server, "quick", "--num-prompts", "4", "--server-pid", str(os.getpid()))
    assert result["server_memory_bytes"] > 10 << 20
    assert 0 <= result["server_main_thread_busy_share"] < 1.5
    assert result["server_main_thread_busy_share"] <= result["server_cpu_cores"] < 16
    assert result["client_cpu_us_per_output_token"] > 0


def test_an_engine_in_this_process_is_a_target(demo_model: Path) -> None:
    done = subprocess.run(
        command("--target", "engine", *SMALL, "--num-prompts", "4", "--num-threads", "1", "--json"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (4, 32, 20)
    assert result["process_cpu_seconds"] > result["event_loop_cpu_seconds"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--request-rate", "0"), "request_rate must be above 0"),
        (("--request-rate", "nan"), "request_rate must be above 0"),
        (("--burstiness", "-1"), "burstiness must be above 0"),
        (("--num-prompts", "0"), "num_prompts must be at least 1"),
        (("--num-clients", "0"), "num_clients must be at least 1"),
        (("--max-concurrency", "1", "--num-clients", "2"), "max_concurrency must be at least num_clients, 2"),
        (("--goodput", "itl:3"), "goodput wants NAME:MILLISECONDS"),
        (("--goodput", "ttft:x"), "goodput wants NAME:MILLISECONDS"),
        (("--metric-percentiles", "50,101"), "metric_percentiles must be numbers from 0 to 100"),
        (("--percentile-metrics", "ttft,speed"), "percentile_metrics must be of"),
        (("--dataset-name", "sonnet"), "dataset_name must be one of"),
        (("--dataset-name", "trace"), "dataset_path is missing"),
        (("--dataset-path", "x"), "reads no file"),
        (("--ramp-up-strategy", "linear"), "ramp_up_start_rps must be a rate above 0"),
        (("--ramp-up-end-rps", "3"), "ramp_up_end_rps is of --ramp-up-strategy"),
        (("--endpoint", "/v1/embeddings"), "endpoint must be /v1/completions"),
        (("--header", "A:B"), "header wants NAME=VALUE"),
        (("--header", "A=B\r\nC: D"), "header wants NAME=VALUE"),
        (("--server-pid", "999999999"), "there is no process 999999999"),
        (("--target", "engine", "--num-clients", "2"), "num_clients must be 1 with --target engine"),
        (("--random-range-ratio", "1"), "random_range_ratio must be at least 0 and below 1"),
        (("--port", "8000"), "base_url and --host, --port exclude each other"),
        (("--base-url", "ftp://x"), "url must be like http://127.0.0.1:8000"),
        (("--base-url", "http://127.0.0.1:99999"), "url 'http://127.0.0.1:99999'"),
        (("--tokenizer", "/nowhere"), "tokenizer"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from quire.cli import main

    assert (
        main(["bench", "serve", "--served-model-name", "x", "--base-url", "http://127.0.0.1:9", *args]) == 1
    )
    said = capsys.readouterr().err
    assert said.startswith("quire: ") and said.count("\n") == 1, said
    assert message in said


def test_a_server_that_is_not_there_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    from quire.cli import main

    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9"]) == 1
    assert "is the server up?" in capsys.readouterr().err


EVENTS = (
    b': a comment\r\n\r\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content":"say \\"text\\":\\"x\\" "}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content": "\xc3\xa4"}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\r\n\r\ndata: [DONE]\r\n\r\n'
)


@pytest.mark.parametrize("ends", [b"\r\n", b"\n"])
def test_events_are_the_same_wherever_their_bytes_are_cut(ends: bytes) -> None:
    data = EVENTS.replace(b"\r\n", ends)
    for cut in range(len(data) + 1):
        outcome = Outcome(0)
        answer = _Answer(outcome, keep_text=True)
        answer.status = 200
        for part, now in ((data[:cut], 1.0), (data[cut:], 2.0)):
            answer.take(part, now)
        answer.is_complete = True
        answer.finish()
        assert (outcome.error, len(outcome.times)) == ("", 2), cut
        assert (outcome.prompt_tokens, outcome.output_tokens) == (3, 4)
        assert outcome.text == 'say "text":"x" ä'


@pytest.mark.parametrize("model", ["paced", "silent"])
def test_an_answer_that_does_not_end_fails_and_is_not_sent_again(server: FakeServer, model: str) -> None:
    async def run() -> list[Outcome]:
        target = OpenAITarget(TargetConfig("openai", server.url, model="quick", timeout_s=0.5))
        outcomes = [Outcome(0), Outcome(1)]
        await target.send(target.prepare(BenchRequest([1], 1, 2)), outcomes[0])
        slow = OpenAITarget(TargetConfig("openai", server.url, model=model))
        await target.send(slow.prepare(BenchRequest([1], 1, 60)), outcomes[1])
        await target.close()
        return outcomes

    server.exchanges.clear()
    quick, slow = asyncio.run(run())
    assert quick.error == ""
    assert slow.error == "no end of the answer within 0.5 s"
    assert len(server.exchanges) == 2


def test_a_package_that_is_missing_is_one_clear_line(server: FakeServer, tmp_path: Path) -> None:
    for name in ("tritonclient", "httptools"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('gone', name='{name}')\n")
    for target, message in (
        ("triton", "tritonclient is not installed; pip install 'tritonclient[grpc]'"),
        ("openai", "httptools is not installed; pip install 'quire[bench]'"),
    ):
        done = subprocess.run(
            command("--target", target, "--base-url", server.url, "--served-model-name", "x", *SMALL),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert (done.returncode, done.stderr) == (1, f"quire: {message}\n")


def test_a_process_of_clients_that_dies_ends_the_run(server: FakeServer) -> None:
    server.exchanges.clear()
    process = subprocess.Popen(
        paced(server, "--request-rate", "20", "--num-clients", "2"), stderr=subprocess.PIPE, text=True
    )
    while len(server.exchanges) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    children[0].kill()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "quire: a process of clients ended: it wrote nothing more\n")
    assert not children[1].is_running()


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from quire.bench import progress

    monkeypatch.setattr(progress, "_LINE_S", 0.0)
    with progress.Progress(4) as shown:
        shown.update(1, 0, 10)
        shown.update(3, 1, 20)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["1 of 4 requests", "3 of 4 requests"]
    assert lines[1].endswith("1 failed")
    with progress.Progress(4, enabled=False) as shown:
        shown.update(1, 0, 10)
    assert capsys.readouterr().err == ""


def test_a_busy_client_is_warned_of() -> None:
    quiet = {"client_busy_share": [0.2, 0.3], "client_busiest_second_share": [0.79, 0.3]}
    assert _warnings(quiet, interrupted=False) == []
    busy = {**quiet, "client_busiest_second_share": [0.3, 0.81]}
    [warning] = _warnings(busy, interrupted=False)
    assert "busy for 81% of a second" in warning and "--num-clients" in warning
    of_engine = {"event_loop_busy_share": [0.99], "event_loop_busiest_second_share": [1.0]}
    assert _warnings(of_engine, interrupted=False) == []


# The command, in which Ctrl-C comes with the tenth answer.
INTERRUPTED = """
import os, signal, sys
from quire.bench.progress import Progress
from quire.cli import main

def update(self, num_done, num_failed, num_tokens):
    if num_done == 10:
        os.kill(os.getpid(), signal.SIGINT)

Progress.update = update
sys.exit(main(sys.argv[1:]))
"""


def test_control_c_ends_an_engine_in_this_process_too(tmp_path: Path) -> None:
    load = "bench serve --target engine --num-threads 1 --request-rate 100 --random-input-len 8"
    save = f"--save-result --result-dir {tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *f"{load} {save}".split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 130, done.stderr
    result = json.loads(next(tmp_path.iterdir()).read_text())
    assert result["interrupted"] and result["failed"] == 0
    assert 10 <= result["completed"] < 1000


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    from quire.bench.progress import Progress

    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress(4) as shown:
        shown.update(3, 1, 20)
    assert "3/4" in terminal.getvalue() and "1 failed" in terminal.getvalue()

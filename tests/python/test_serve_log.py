"""A server's log: what is in its lines, and that nothing about it holds up a request."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, SamplingParams
from quire.serve.log import JsonFormatter, JsonLogHandler, configure_logging, fields_of, log_request

SECRET = "the prompt nobody may read"


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, which is afterwards as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    for handler in root.handlers:
        if isinstance(handler, JsonLogHandler):
            handler.close()
    root.handlers[:], root.level = before


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_json_with_time_level_logger_and_message(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = configure_logging("info", path=path)
    before = time.time()
    logging.getLogger("quire.serve").warning("it is %d\nlines", 2)
    logging.getLogger("quire.serve").debug("not shown")
    handler.close()
    [line] = lines_of(path)
    written = datetime.fromisoformat(line.pop("time").replace("Z", "+00:00")).timestamp()
    assert before - 0.001 <= written <= time.time()
    assert line == {"level": "warning", "logger": "quire.serve", "message": "it is 2\nlines"}


def test_a_request_is_logged_with_its_times_and_tokens(tmp_path: Path, demo_model: Path) -> None:
    path = tmp_path / "log"
    handler = configure_logging(path=path)
    [output] = LLM(demo_model).generate("Once", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    log_request(
        logging.getLogger("access"), request_id="a", method="POST", route="/v1/completions", status=200,
        duration_seconds=1.25, output=output, client="10.0.0.1", prompt=SECRET, answer=SECRET,
    )  # fmt: skip
    log_request(
        logging.getLogger("access"),
        request_id="b",
        method="GET",
        route="/x",
        status=500,
        duration_seconds=0.5,
    )
    handler.close()
    first, second = lines_of(path)
    metrics = output.metrics
    assert first["message"] == "POST /v1/completions 200" and first["level"] == "info"
    assert {name: first[name] for name in ("request_id", "method", "route", "status", "client")} == {
        "request_id": "a", "method": "POST", "route": "/v1/completions", "status": 200, "client": "10.0.0.1",
    }  # fmt: skip
    assert first["num_prompt_tokens"] == output.usage.num_prompt_tokens
    assert first["num_generation_tokens"] == 3 and first["finish_reasons"] == ["length"]
    assert first["duration_seconds"] == 1.25
    assert first["time_to_first_token_seconds"] == pytest.approx(metrics.first_token_latency, abs=1e-6)
    assert first["decode_seconds"] == pytest.approx(metrics.decode_time, abs=1e-6)
    assert second["level"] == "error" and "num_prompt_tokens" not in second
    assert SECRET not in path.read_text()
    assert set(fields_of(output)) <= set(first)


def record(message: str = "m", **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("name", logging.INFO, "", 0, message, (), None)
    made.__dict__.update(extra)
    return made


def test_text_is_written_only_when_asked_for() -> None:
    given = record(prompt=SECRET, answer=SECRET, body=SECRET, request_id="r")
    assert "prompt" not in json.loads(JsonFormatter().format(given))
    assert SECRET not in JsonFormatter().format(given)
    asked = json.loads(JsonFormatter(log_text=True).format(given))
    assert asked["prompt"] == asked["answer"] == SECRET and "body" not in asked


@pytest.mark.parametrize("kind", [ValueError, KeyError, UnicodeError, RuntimeError, MemoryError])
def test_an_exception_that_may_quote_a_request_does_not(kind: type[Exception]) -> None:
    try:
        raise kind(SECRET)
    except kind as error:
        given = record(exc_info=(kind, error, error.__traceback__))
    told = json.loads(JsonFormatter().format(given))["exception"]
    assert told["type"] == kind.__name__ and __file__ in told["places"][0]
    assert ("message" in told) == (kind in (RuntimeError, MemoryError))
    assert SECRET in json.loads(JsonFormatter(log_text=True).format(given))["exception"]["message"]


def test_every_line_is_json_whatever_is_in_it() -> None:
    given = record(
        'quotes " \x00 \ud800 \u2028',
        request_id=b"bytes",
        route={"a": 1},
        status=float("nan"),
        error=[1.5, None],
    )
    line = JsonFormatter().format(given).encode("utf-8", "backslashreplace")
    assert b"\n" not in line
    told = json.loads(line)
    assert told["message"].startswith('quotes " \x00') and told["request_id"] == "b'bytes'"


def test_a_full_disk_drops_and_counts() -> None:
    handler = JsonLogHandler("/dev/full")
    handler.setFormatter(JsonFormatter())
    for _ in range(100):
        handler.handle(record())
    handler.flush(10)
    assert handler.num_dropped == 100
    handler.close()


def test_what_was_dropped_is_told_once_there_is_room_again(tmp_path: Path) -> None:
    """A limit on the file's size stands for the disk: the line that does not fit is torn, and ended."""
    path = tmp_path / "log"
    program = f"""
import resource, signal, sys
from test_serve_log import JsonFormatter, JsonLogHandler, record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
handler = JsonLogHandler({str(path)!r})
handler.setFormatter(JsonFormatter())
handler.handle(record("first")); handler.flush(10)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
handler.handle(record("x" * 100)); handler.handle(record("third")); handler.flush(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
handler.handle(record("fourth")); handler.close()
assert handler.num_dropped == 2, handler.num_dropped
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True, timeout=60)
    whole = []
    for line in path.read_text().splitlines():
        try:
            whole.append(json.loads(line)["message"])
        except ValueError:
            assert "xxx" in line  # the torn one, by itself
    assert whole == ["first", "fourth", "2 lines of the log were dropped"]


def run_with_stderr(stderr: Any, program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    begin = "import logging, sys, os\nfrom quire.serve.log import configure_logging\nhandler = "
    return subprocess.run(
        [sys.executable, "-c", begin + program],
        stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60, check=True, **options,
    )  # fmt: skip


def test_a_pipe_that_nobody_reads_blocks_nobody() -> None:
    """A megabyte of lines into a pipe of 64 KiB; then the process ends."""
    read_end, write_end = os.pipe()
    program = """configure_logging()
import time; before = time.monotonic()
for i in range(25_000): logging.info("%d %s", i, "x" * 800)
print(time.monotonic() - before < 30, handler.num_dropped > 0)"""
    try:
        done = run_with_stderr(write_end, program)
    finally:
        os.close(write_end)
        os.close(read_end)
    assert done.stdout == "True True\n"


def test_a_reader_that_has_gone_and_a_closed_stderr_drop() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    say = "configure_logging()\nlogging.error('lost'); handler.flush(10); print(handler.num_dropped)"
    assert run_with_stderr(write_end, say).stdout == "1\n"
    os.close(write_end)
    closed = run_with_stderr(subprocess.PIPE, say, preexec_fn=lambda: os.close(2))
    assert closed.stdout == "1\n"


def test_a_stderr_that_is_closed_later_is_not_another_files_number(tmp_path: Path) -> None:
    program = f"""configure_logging()
os.close(2); other = os.open({str(tmp_path / "other")!r}, os.O_WRONLY | os.O_CREAT)
assert other == 2
logging.error("kept"); handler.flush(10)"""
    done = run_with_stderr(subprocess.PIPE, program)
    assert json.loads(done.stderr)["message"] == "kept"
    assert (tmp_path / "other").read_text() == ""


def test_what_waits_is_written_at_the_end_of_the_process() -> None:
    done = run_with_stderr(
        subprocess.PIPE, "configure_logging()\nfor i in range(1000): logging.info('%d', i)"
    )
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == [str(i) for i in range(1000)]


def test_a_fork_logs_too() -> None:
    program = """configure_logging()
pid = os.fork()
logging.info("child" if pid == 0 else "parent")
handler.flush(10)
os._exit(0) if pid == 0 else os.waitpid(pid, 0)"""
    done = run_with_stderr(subprocess.PIPE, program)
    assert sorted(json.loads(line)["message"] for line in done.stderr.splitlines()) == ["child", "parent"]


def test_a_signals_handler_may_log(tmp_path: Path) -> None:
    """In the middle of another line."""
    path = tmp_path / "log"
    handler = configure_logging(path=path)
    before = signal.signal(signal.SIGALRM, lambda *_: logging.info("from the handler"))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for i in range(2000):
            logging.info("%d", i)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    handler.close()
    messages = [line["message"] for line in lines_of(path)]
    assert [m for m in messages if m != "from the handler"] == [str(i) for i in range(2000)]
    assert handler.num_dropped == 0


def test_threads_lines_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = configure_logging(path=path)

    def log() -> None:
        for _ in range(300):
            logging.info("x" * 300)

    threads = [threading.Thread(target=log) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.close()
    assert len(lines_of(path)) == 2400


def test_other_handlers_go(tmp_path: Path, root_logger: logging.Logger) -> None:
    theirs = logging.getLogger("theirs")
    theirs.addHandler(logging.StreamHandler())
    theirs.propagate = False
    root_logger.addHandler(logging.StreamHandler())
    handler = configure_logging("warning", path=tmp_path / "log", loggers=["theirs"])
    theirs.warning("ours now")
    handler.close()
    assert [line["message"] for line in lines_of(tmp_path / "log")] == ["ours now"]
    assert root_logger.handlers == [handler] and not theirs.handlers
    num_threads = threading.active_count()
    configure_logging(path=tmp_path / "log")
    assert threading.active_count() == num_threads + 1
    configure_logging(path=tmp_path / "log").close()
    assert threading.active_count() == num_threads


def test_a_level_or_a_file_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"level must be one of debug, info, .*, got 'loud'"):
        configure_logging("loud")
    with pytest.raises(OSError, match="/nowhere/log"):
        configure_logging(path="/nowhere/log")

"""Servers of their own process, and runs of ``quire bench``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Server:
    """One that answers."""

    url: str
    pid: int
    ready_seconds: float  # from the start of the process


@contextmanager
def quire_server(model: str | Path, *flags: str) -> Iterator[Server]:
    """``quire serve`` on a free port."""
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--model", str(model), *flags]
    with _process(command, re.compile(r" at (http\S+)$")) as server:
        yield server


@contextmanager
def llama_cpp_server(python: str, model: Path, port: int, threads: int) -> Iterator[Server]:
    """llama-cpp-python's server, of another Python: one sequence at a time; other requests wait meanwhile."""
    command = [python, "-m", "llama_cpp.server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--n_ctx", "2048", "--n_threads", str(threads)]
    command += ["--n_threads_batch", str(threads), "--n_batch", "512", "--interrupt_requests", "False"]
    with _process(command, re.compile(r"Uvicorn running on (http\S+)")) as server:
        yield server


@contextmanager
def _process(command: Sequence[str], up: re.Pattern[str]) -> Iterator[Server]:
    begin = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    said: list[str] = []
    url = ""
    for line in process.stderr:
        said.append(line)
        if found := up.search(line.strip()):
            url = found[1]
            break
    reader = threading.Thread(target=lambda: said.extend(process.stderr or ()))
    reader.start()
    try:
        if not url:
            raise RuntimeError("".join(said[-20:]))
        yield Server(url, process.pid, time.monotonic() - begin)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        reader.join()


def bench(kind: str, *flags: str) -> dict[str, Any]:
    """What ``quire bench KIND`` measures. Raises RuntimeError if it fails, or a request does."""
    command = [sys.executable, "-m", "quire", "bench", kind, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if result.get("failed"):
        raise RuntimeError(f"{result['failed']} requests failed: {result['error_counts']}")
    for warning in result.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    return result

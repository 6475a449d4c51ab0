"""A server of its own process, on a port that is free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

# A schema that every answer of a small model comes to the end of.
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class RunningServer:
    """``quire serve`` with the demo model and these flags, up when this is made."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "quire", "serve", "--port", "0", "--num-threads", "1", *flags]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        assert self.process.stderr is not None
        self.log: list[str] = []
        self.url = ""
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r" at (\S+)$", line.strip()):
                self.url = found[1]
                break
        if not self.url:
            raise RuntimeError("".join(self.log))
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr or ()))
        self._reader.start()

    def stop(self, timeout: float = 30) -> int:
        """Ends it by SIGTERM. Returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()
            self._reader.join()
            if self.process.stderr is not None:
                self.process.stderr.close()


@contextmanager
def running_server(*flags: str, env: dict[str, str] | None = None) -> Iterator[RunningServer]:
    server = RunningServer(*flags, env=env)
    try:
        yield server
    finally:
        server.stop()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def metric(server: RunningServer | httpx.Client, name: str, wait_for: float | None = None) -> float:
    """A metric of one series; with ``wait_for``, when it is that or half a minute is over."""
    end = time.monotonic() + 30
    while True:
        if isinstance(server, RunningServer):
            answer = httpx.get(server.url + "/metrics")
        else:
            answer = server.get("/metrics")
        text = answer.text
        value = sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))
        if wait_for is None or value == wait_for or time.monotonic() > end:
            return value
        time.sleep(0.02)

"""A server of OpenAI's API that answers as it is told, and remembers when it did what."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FIRST_S = 0.06  # to the first token
NEXT_S = 0.02  # from each to the next


@dataclass
class Exchange:
    """One request. Times are of ``time.monotonic``."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    received: float
    sent: list[float] = field(default_factory=list)  # each token


class FakeServer:
    """What a request's ``model`` says decides what happens to it:

    "paced" tokens come at known times; "quick" at once; "refused" is a 429; "broken" ends in the middle,
    "odd" sends an error as its second event, "closing" and "kept" end their connection after the answer: one
    says so, one does not; "silent" never answers; "json" answers JSON, and every third time something else.
    """

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.num_connections = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._is_up.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._is_up.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                if first.startswith("GET /v1/models"):
                    self._write(writer, 200, json.dumps({"data": [{"id": "quick"}]}).encode())
                    continue
                received = time.monotonic()
                exchange = Exchange(first.split()[1], json.loads(data), headers, received)
                self.exchanges.append(exchange)
                if not await self._answer(writer, exchange):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, exchange: Exchange) -> bool:
        """Whether the connection goes on."""
        kind, count = exchange.body["model"], exchange.body["max_tokens"]
        if kind == "refused":
            self._write(writer, 429, b'{"error": {"message": "too many", "code": 429}}')
            return True
        if kind == "silent":
            await asyncio.sleep(3600)
        closing = "Connection: close\r\n" if kind == "closing" else ""
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{closing}"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        texts = ["x"] * count
        if kind == "json":
            texts = ["{", '"a": 1', "]" if len(self.exchanges) % 3 == 0 else "}"]
        for i, text in enumerate(texts):
            if kind == "paced":
                await asyncio.sleep(FIRST_S if i == 0 else NEXT_S)
            elif kind == "broken" and i == 2:
                return False
            elif kind == "odd" and i == 1:
                _chunk(writer, b'data: {"error": {"message": "the engine has ended"}}\n\n')
                break
            exchange.sent.append(time.monotonic())
            _chunk(writer, _event(exchange.path, {"text": text}))
        usage = {"prompt_tokens": 7, "completion_tokens": len(exchange.sent)}
        _chunk(writer, b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return kind not in ("closing", "kept")

    def _write(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _event(path: str, choice: dict[str, Any]) -> bytes:
    if path.endswith("/chat/completions"):
        choice = {"delta": {"content": choice["text"]}}
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}], "usage": None}).encode() + b"\n\n"


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    try:
        yield server
    finally:
        server.stop()

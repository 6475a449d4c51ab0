"""OpenAI's HTTP API, streamed: a client that costs little for each token.

Events are not parsed as they come: a pattern tells those that carry text, and the time of their bytes is
kept. Only the event that has the usage is read, when the answer has ended.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from quire.bench.outcomes import BenchRequest, Outcome
from quire.bench.targets import TargetConfig, sampling_of

try:
    import httptools
except ImportError:
    raise ValueError("httptools is not installed; pip install 'quire[bench]'") from None

_monotonic = time.monotonic
# A member that carries text, which is not empty. Within a string its quotes would be escaped.
_TEXT = re.compile(rb'"(?:text|content|reasoning|reasoning_content|arguments)"\s*:\s*"(?!")')
_TEXT_NAMES = ("content", "reasoning", "reasoning_content")


class OpenAITarget:
    """Connections are kept and used again, one for each request under way."""

    def __init__(self, config: TargetConfig) -> None:
        """Raises ValueError for what is no URL."""
        self._config = config
        parts = urlsplit(config.url)
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"url '{config.url}': {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be like http://127.0.0.1:8000, got '{config.url}'")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            **config.headers,
        }
        path = parts.path.rstrip("/") + config.endpoint
        self._head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        self._idle: list[_Connection] = []

    def prepare(self, request: BenchRequest) -> bytes:
        body: dict[str, Any] = {
            "model": self._config.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_of(request, self._config.sampling),
        }
        if self._config.endpoint.endswith("/chat/completions"):
            body["messages"] = [{"role": "user", "content": request.prompt}]
            if body.pop("structured_outputs", None) is not None:
                body["response_format"] = {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": request.schema},
                }
        else:
            body["prompt"] = request.prompt
        data = json.dumps({**body, **self._config.extra_body}).encode()
        return f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode("latin-1") + data

    async def send(self, prepared: bytes, outcome: Outcome) -> None:
        outcome.start = _monotonic()
        while True:
            reused = bool(self._idle)
            try:
                connection = self._idle.pop() if reused else await self._connect()
            except (OSError, asyncio.TimeoutError) as error:
                outcome.error = f"no connection to {self._host}:{self._port}: {error}"
                return
            answer = _Answer(outcome, self._config.keep_text)
            await connection.exchange(prepared, answer, self._config.timeout_s)
            # A server may end a connection that it has kept, just when it is used again.
            if not (reused and answer.is_unanswered):
                break
        if not connection.is_lost and answer.is_complete:
            self._idle.append(connection)
        else:
            connection.drop()
        answer.finish()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await asyncio.wait_for(
            loop.create_connection(_Connection, self._host, self._port, ssl=self._ssl), 30
        )
        return connection

    async def close(self) -> None:
        for connection in self._idle:
            connection.drop()


class _Answer:
    """Takes the bytes of one answer's body."""

    def __init__(self, outcome: Outcome, keep_text: bool) -> None:
        self.outcome = outcome
        self.status = 0
        self.is_complete = False
        self.is_unanswered = False  # the connection ended before a byte of it
        self.failure = ""
        self._keep_text = keep_text
        self._rest = b""
        self._usage = b""
        self._is_done = False
        self._kept: list[bytes] = []

    def take(self, body: bytes, now: float) -> None:
        if self.status != 200:
            self._rest += body
            return
        if self._rest:
            body = self._rest + body
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        if body.endswith(b"\n\n"):
            self._rest = b""
        else:
            end = body.rfind(b"\n\n") + 2
            self._rest = body[end:] if end > 1 else body
            if end == 1:
                return
            body = body[:end]
        for event in body.split(b"\n\n"):
            if _TEXT.search(event):
                self.outcome.times.append(now)
                if self._keep_text:
                    self._kept.append(event)
            elif not event:
                continue
            elif event.endswith(b"[DONE]"):
                self._is_done = True
            elif b'"error"' in event:
                self.failure = _message(event[event.find(b"{") :])
            if b'"completion_tokens"' in event:
                self._usage = event

    def finish(self) -> None:
        """Says what became of it, after the last byte."""
        outcome = self.outcome
        if self.failure:
            outcome.error = self.failure
        elif self.status != 200:
            outcome.error = f"{self.status}: {_message(self._rest)}"
        elif not self.is_complete or not self._is_done:
            outcome.error = "the stream ended before [DONE]"
        elif not outcome.times:
            outcome.error = "the answer has no text"
        usage: dict[str, Any] = {}
        if self._usage:
            with suppress(ValueError):
                usage = json.loads(self._usage[self._usage.index(b"{") :]).get("usage") or {}
        outcome.prompt_tokens = usage.get("prompt_tokens") or outcome.prompt_tokens
        outcome.output_tokens = usage.get("completion_tokens") or len(outcome.times)
        if self._keep_text:
            outcome.text = "".join(_text(event) for event in self._kept)


def _message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        if error is None:
            return ""
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace")


def _text(event: bytes) -> str:
    try:
        choice = json.loads(event[event.index(b"{") :])["choices"][0]
    except (ValueError, KeyError, IndexError):
        return ""
    if "text" in choice:
        return str(choice["text"] or "")
    delta = choice.get("delta") or {}
    return "".join(delta.get(name) or "" for name in _TEXT_NAMES)


class _Connection(asyncio.Protocol):
    """A connection, with at most one request under way."""

    def __init__(self) -> None:
        self.is_lost = False
        self._transport: Any = None
        self._parser: Any = None
        self._answer: _Answer | None = None
        self._now = 0.0
        self._ended: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes, answer: _Answer, timeout_s: float) -> None:
        """Sends bytes and waits for the end of the answer, or of the connection."""
        loop = asyncio.get_running_loop()
        self._answer = answer
        self._parser = httptools.HttpResponseParser(self)
        ended = self._ended = loop.create_future()
        timer = loop.call_later(timeout_s, self._fail, f"no end of the answer within {timeout_s:g} s")
        if self.is_lost:
            answer.is_unanswered = True
            self._end()
        else:
            self._transport.write(request)
        try:
            await ended
        except asyncio.CancelledError:
            self.drop()
            raise
        finally:
            timer.cancel()
            self._answer = None

    def drop(self) -> None:
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = _monotonic()
        if self._answer is None:  # between two answers nothing should come
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        answer = self._answer
        if answer is None:
            return
        # A body without a length ends with its connection; its events say whether it is whole.
        answer.is_complete = True
        if not answer.failure:
            answer.is_unanswered = answer.status == 0
            if error is not None:
                answer.failure = f"the connection was lost: {error}"
            elif answer.is_unanswered:
                answer.failure = "the connection was closed before an answer"
        self._end()

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer.take(body, self._now)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._answer.is_complete = True
            if not self._parser.should_keep_alive():
                self.drop()
            self._end()

    def _fail(self, why: str) -> None:
        if self._answer is not None:
            self._answer.failure = why
        self.drop()
        self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

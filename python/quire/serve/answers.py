"""Answers on their way out of the engine and into a socket."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire import _core
from quire.output_streams import OutputStreams

_Result = TypeVar("_Result")

# Bodies beyond this are read on another thread, so that other answers do not wait for their tokens.
_LONG_BODY = 16 << 10


# A chat template of the client's, which may loop until it is refused. An escape may spell the name.
_TEMPLATE = re.compile(rb'chat_template"|\\u00[2-7]')


async def off_loop(body: bytes, work: Callable[..., _Result], *arguments: Any) -> _Result:
    """What ``work`` makes of this body; on another thread where that may take long."""
    if len(body) <= _LONG_BODY and not _TEMPLATE.search(body):
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def error_response(error: _core.HttpError, path: str = "") -> Response:
    """An error in the form of the API that has this path; OpenAI's, unless it is Anthropic's."""
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return Response(error.body(route_of(path)), error.status, headers, "application/json")


def route_of(path: str) -> _core.HttpRoute:
    """Whose errors a path has."""
    if path.startswith("/v1/messages"):
        return _core.HttpRoute.MESSAGES
    return _core.HttpRoute.COMPLETIONS


_JSON_HEADERS = [(b"content-type", b"application/json")]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects would hold tokens back
]


class Answer(Response):
    """An exchange with the engine, sent as it is generated: the bytes are made in C++.

    A client that leaves has its request aborted at once.
    """

    def __init__(
        self,
        exchange: _core.HttpExchange,
        streams: OutputStreams,
        key: int,
        on_end: Callable[[_core.HttpExchange], None],
    ) -> None:
        self._exchange = exchange
        self._streams = streams
        self._key = key
        self._on_end = on_end
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._exchange
        # Middleware has a say in how an answer begins. What follows goes to the socket itself: each layer
        # that passes it on would cost as much as making it.
        send_body: Send = scope["state"].get("send", send)
        listener = asyncio.ensure_future(self._listen(receive))
        try:
            data = await self._next()
            self.status_code = exchange.status
            headers = _STREAM_HEADERS if exchange.is_stream and exchange.status == 200 else _JSON_HEADERS
            if exchange.finished:
                headers = [*headers, (b"content-length", str(len(data)).encode())]
            await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
            while not exchange.finished:
                await send_body({"type": "http.response.body", "body": data, "more_body": True})
                data = exchange.take() or await self._next()
            await send_body({"type": "http.response.body", "body": data})
        finally:
            listener.cancel()
            self._streams.forget(self._key)
            if not exchange.finished:
                exchange.abort()
            scope["state"]["fields"] = _fields_of(exchange)
            self._on_end(exchange)

    async def _next(self) -> bytes:
        """What is to be sent next; perhaps nothing, when the last was sent."""
        exchange = self._exchange
        while True:
            data = exchange.take()
            if data or exchange.finished:
                return data
            await self._streams.arrival(self._key)

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._exchange.abort()


def _fields_of(exchange: _core.HttpExchange) -> dict[str, Any]:
    """What a log says of an answer; fields of quire.serve.log."""
    metrics, usage = exchange.metrics, exchange.usage
    fields: dict[str, Any] = {
        "num_prompt_tokens": usage.num_prompt_tokens,
        "num_cached_tokens": usage.num_cached_tokens,
        "num_generation_tokens": usage.num_generation_tokens,
    }
    if exchange.lora_name:
        fields["lora_name"] = exchange.lora_name
    if metrics.first_token_time > 0:
        fields["queue_seconds"] = metrics.queued_time
        fields["time_to_first_token_seconds"] = metrics.first_token_latency
    return fields


async def begin(
    api: _core.HttpApi,
    engine: _core.Engine,
    streams: OutputStreams,
    route: _core.HttpRoute,
    body: bytes,
    request_id: str,
    on_end: Callable[[_core.HttpExchange], None],
) -> Answer | _core.HttpError:
    """Starts what a body asks for. An error, or an answer that must be sent: it calls ``on_end`` then."""
    key, queue = streams.open()
    created = int(time.time())
    begun = await off_loop(body, api.begin, engine, route, body, request_id, created, queue)
    if isinstance(begun, _core.HttpError):
        return begun
    return Answer(begun, streams, key, on_end)

"""What stands before the routes: request ids, API keys, sizes, and how much is under way."""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire import _core
from quire.serve.answers import error_response
from quire.serve.http_metrics import HttpMetrics
from quire.serve.log import log_request
from quire.serve.page_routes import PAGE_PATHS

_LOGGER = logging.getLogger("quire.serve")

# Open to everybody: the page, and what says how the server is; nothing of requests.
_OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/ping"}) | PAGE_PATHS
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Guard:
    """ASGI middleware. Sets ``scope["state"]["request_id"]`` and ``["api_key"]`` for the routes."""

    def __init__(
        self,
        app: ASGIApp,
        api_keys: Sequence[bytes],
        max_body_bytes: int,
        metrics: HttpMetrics | None,
        logs: bool,
    ) -> None:
        self._app = app
        self._keys = tuple(api_keys)
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["api_key"] = None
        state["send"] = send
        begin = time.perf_counter()
        status = 499  # who left before the answer began has none
        # The name of the header is Anthropic's for their API, for their client to show.
        names = [b"x-request-id"]
        if scope["path"].startswith("/v1/messages"):
            names.append(b"request-id")

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(name, request_id.encode()) for name in names]
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        try:
            refusal = self._refusal(scope, headers, state)
            if refusal is not None:
                await error_response(refusal, scope["path"])(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        finally:
            self._tell(scope, request_id, status, time.perf_counter() - begin)

    def _refusal(
        self, scope: Scope, headers: dict[bytes, bytes], state: dict[str, Any]
    ) -> _core.HttpError | None:
        if self._keys and scope["path"] not in _OPEN_PATHS and scope["method"] != "OPTIONS":
            key = _key_of(headers)
            # Every key is compared, so that the time tells nothing.
            matches = [hmac.compare_digest(key, known) for known in self._keys]
            if not any(matches):
                what = "no API key was given" if not key else "the API key is not known"
                return _core.HttpError(
                    401, f"{what}; send 'Authorization: Bearer KEY'", code="invalid_api_key"
                )
            state["api_key"] = matches.index(True)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._max_body_bytes:
            return too_long(self._max_body_bytes)
        return None

    def _tell(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        # Not the path, or clients would make up series and lines.
        route = getattr(scope.get("route"), "path", "other")
        if self._metrics is not None:
            self._metrics.answered(route, scope["method"], status, seconds)
        if self._logs:
            log_request(
                _LOGGER,
                request_id=request_id,
                method=scope["method"],
                route=route,
                status=status,
                duration_seconds=seconds,
                **scope["state"].get("fields", {}),
            )


def too_long(max_body_bytes: int) -> _core.HttpError:
    return _core.HttpError(413, f"the body must be at most {max_body_bytes} bytes; send less at once")


def _key_of(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return headers.get(b"x-api-key", b"").strip()


class InFlight:
    """Answers under way, in all and of each key."""

    def __init__(self, limit: int, limit_per_key: int) -> None:
        self._limit = limit
        self._limit_per_key = limit_per_key
        self._by_key: Counter[int | None] = Counter()

    @property
    def count(self) -> int:
        return self._by_key.total()

    def refusal(self, key: int | None) -> _core.HttpError | None:
        """Why one more of this key is too many."""
        if self._limit and self.count >= self._limit:
            text = f"{self._limit} requests are under way, as many as this server takes; try again soon"
            return _core.HttpError(429, text, code="rate_limit_exceeded")
        if self._limit_per_key and self._by_key[key] >= self._limit_per_key:
            text = f"{self._limit_per_key} requests of this API key are under way; wait for one to end"
            return _core.HttpError(429, text, code="rate_limit_exceeded")
        return None

    def add(self, key: int | None) -> None:
        self._by_key[key] += 1

    def remove(self, key: int | None) -> None:
        self._by_key[key] -= 1

"""Routes that change the engine, for ``--enable-admin``: what all refuse, and those that stop it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from starlette.responses import Response

from quire import _core
from quire.async_llm import AsyncLLM
from quire.serve.answers import error_response

_PAUSE_MODES = {"keep": _core.PauseMode.KEEP, "wait": _core.PauseMode.WAIT}
_SLEEP_LEVELS = (1, 2)
_SLEEP_MODES = ("refuse", "wait", "abort")
_PARTS = ("weights", "kv_cache")


class Refused(Exception):
    """A request that ends with this error."""

    def __init__(self, error: _core.HttpError) -> None:
        super().__init__(error.message)
        self.error = error


AddRoute = Callable[..., None]  # method, path, endpoint, summary; the query parameters that it has


def admin_adder(app: FastAPI, allowed_origins: Collection[str]) -> AddRoute:
    """What adds routes that web pages from elsewhere cannot use, and that take no parameter but theirs."""
    app.add_exception_handler(Refused, _refuse)

    def check_origin(request: Request) -> None:
        # A browser sends a form, or text/plain, to any address that a page names, and says whose page it is.
        origin = request.headers.get("origin")
        if origin is None or (origin != "*" and origin in allowed_origins):
            return
        # A proxy may have ended TLS, so the scheme says nothing.
        host = request.headers.get("host", "")
        if not host or origin.lower().partition("://")[2] != host.lower():
            text = (
                f"{request.url.path} is not for web pages of {origin:.200}; "
                "call it from elsewhere, or name the origin in --allowed-origins"
            )
            raise Refused(_core.HttpError(403, text, code="origin_not_allowed"))

    def add(method: str, path: str, endpoint: Any, summary: str, parameters: Collection[str] = ()) -> None:
        def check_parameters(request: Request) -> None:
            for name in request.query_params:
                if name not in parameters:
                    known = f"it has {', '.join(parameters)}" if parameters else "it has none"
                    text = f"{name!r:.100} is no query parameter of {path}; {known}"
                    raise Refused(_core.HttpError(400, text))

        app.add_api_route(
            path,
            endpoint,
            methods=[method],
            summary=summary,
            dependencies=[Depends(check_origin), Depends(check_parameters)],
        )

    return add


class EngineRoutes:
    """The routes that stop the engine, and let it go on."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._num_sleep_calls = 0

    @property
    def is_asleep(self) -> bool:
        """Whether requests are refused for it: also while it only waits for unfinished ones to end."""
        return self._num_sleep_calls > 0 or self._llm.is_sleeping()

    def add_to(self, add: AddRoute) -> None:
        paused = "Computes nothing until /resume; ?mode=wait lets running requests end. Others wait."
        add("POST", "/pause", self._pause, paused, ("mode",))
        add("POST", "/resume", self._resume, "Goes on.")
        add("POST", "/reset_prefix_cache", self._reset_prefix_cache, "Forgets cached prefixes.")
        slept = "Gives memory back; ?level=1 keeps the weights, 2 drops them."
        add("POST", "/sleep", self._sleep, slept, ("level", "mode"))
        woken = "Takes the memory again; ?tags=weights, kv_cache or both."
        add("POST", "/wake_up", self._wake_up, woken, ("tags",))
        add("GET", "/is_sleeping", self._is_sleeping, "Whether it sleeps.")

    async def _pause(self, mode: str = "keep") -> Response:
        _check("mode", mode, tuple(_PAUSE_MODES))
        self._llm.pause(_PAUSE_MODES[mode])
        return Response()

    async def _resume(self) -> Response:
        self._llm.resume()
        return Response()

    async def _reset_prefix_cache(self) -> Response:
        if not await self._llm.reset_prefix_cache():
            return error_response(
                _core.HttpError(409, "requests are under way; try again when they have ended")
            )
        return Response()

    async def _sleep(self, level: int = 1, mode: str = "refuse") -> Response:
        _check("level", level, _SLEEP_LEVELS)
        _check("mode", mode, _SLEEP_MODES)
        self._num_sleep_calls += 1
        try:
            return await _change(self._llm.sleep(level, mode))
        finally:
            self._num_sleep_calls -= 1

    async def _wake_up(self, tags: Annotated[list[str] | None, Query()] = None) -> Response:
        for tag in tags or ():
            _check("tags", tag, _PARTS)
        return await _change(self._llm.wake_up(tags))

    async def _is_sleeping(self) -> dict[str, bool]:
        return {"is_sleeping": self._llm.is_sleeping()}


def _check(name: str, value: object, known: Collection[object]) -> None:
    if value not in known:
        text = f"{name} must be one of {', '.join(map(str, known))}, got {value!s:.100}"
        raise Refused(_core.HttpError(400, text, param=name))


async def _change(work: Coroutine[Any, Any, None]) -> Response:
    try:
        await work
    except (ValueError, MemoryError) as error:
        return error_response(_core.HttpError(409 if isinstance(error, ValueError) else 503, str(error)))
    return Response()


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error_response(error.error, request.url.path)

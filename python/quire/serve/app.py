"""The routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response

import quire
from quire import _core
from quire.async_llm import AsyncLLM
from quire.model_directory import model_name
from quire.serve.adapters import Adapters
from quire.serve.admin_routes import EngineRoutes, admin_adder
from quire.serve.answers import Answer, begin, error_response, off_loop
from quire.serve.bodies import parse_object
from quire.serve.config import ServeConfig
from quire.serve.guard import Guard, InFlight, too_long
from quire.serve.http_metrics import HttpMetrics
from quire.serve.openapi import operation
from quire.serve.openapi_answers import describe_answers
from quire.serve.page_routes import add_page
from quire.serve.token_routes import TokenRoutes
from quire.serve.tracing import RequestTracer

_CODES = {404: "not_found", 405: "method_not_allowed"}

# Path, route, what ids of answers begin with, summary.
_ANSWERS = (
    ("/v1/completions", _core.HttpRoute.COMPLETIONS, "cmpl-", "Completes a text."),
    ("/v1/chat/completions", _core.HttpRoute.CHAT_COMPLETIONS, "chatcmpl-", "Answers a conversation."),
    ("/v1/responses", _core.HttpRoute.RESPONSES, "resp_", "Answers a conversation, as items."),
    ("/v1/messages", _core.HttpRoute.MESSAGES, "msg_", "Answers a conversation, as Anthropic's API does."),
)


class Server:
    """An engine behind its routes. ``app`` is the ASGI application."""

    def __init__(
        self,
        llm: AsyncLLM,
        config: ServeConfig,
        metrics: _core.PrometheusMetrics | None = None,
        tracer: RequestTracer | None = None,
    ) -> None:
        """Raises ValueError, naming the field, for a configuration that cannot be."""
        self.llm = llm
        self.config = config
        self.metrics = metrics
        self.tracer = tracer
        self.in_flight = InFlight(config.max_concurrent_requests, config.max_concurrent_requests_per_key)
        self.is_closing = False
        names = list(config.served_model_name) or [model_name(llm.config.model)]
        self.model_names = names
        self.adapters = Adapters(llm, names, config)
        self._http_metrics = None if metrics is None else HttpMetrics(metrics)
        template = config.template_text()
        if template:
            # Parsed, and not rendered: what it needs may come with requests.
            hello = [{"role": "user", "content": ""}]
            llm.apply_chat_template(hello, "{% if false %}" + template + "{% endif %}")
        self._api = _core.HttpApi(
            llm.engine,
            llm.config,
            names,
            config.reasoning_parser,
            config.tool_parser,
            template,
            config.return_tokens_as_token_ids,
        )
        self._engine_routes = EngineRoutes(llm)
        self._tokens = TokenRoutes(llm, template)
        self.app = self._make_app()

    @classmethod
    def start(
        cls,
        engine_config: _core.EngineConfig,
        config: ServeConfig,
        metrics: _core.PrometheusMetrics,
        tracer: RequestTracer | None = None,
    ) -> Server:
        """One with an engine of its own, which tells ``metrics``."""
        return cls(AsyncLLM.from_config(engine_config), config, metrics, tracer)

    def _make_app(self) -> FastAPI:
        app = FastAPI(
            title="Quire",
            version=quire.__version__,
            # A proxy takes the prefix away: it is only to be told of.
            servers=[{"url": self.config.root_path}] if self.config.root_path else None,
            docs_url=None,  # it would load its page's scripts from elsewhere
            redoc_url=None,
            separate_input_output_schemas=False,
        )
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(RequestValidationError, _bad_query)
        app.add_exception_handler(ClientDisconnect, _client_left)

        def post(path: str, endpoint: Any, summary: str, **described: Any) -> None:
            app.add_api_route(path, endpoint, methods=["POST"], summary=summary, **described)

        def get(path: str, endpoint: Any, summary: str) -> None:
            app.add_api_route(path, endpoint, methods=["GET"], summary=summary)

        for path, route, prefix, summary in _ANSWERS:
            post(path, self._answers(route, prefix), summary, openapi_extra=operation(route))
        count = _core.HttpRoute.COUNT_TOKENS
        post(
            "/v1/messages/count_tokens",
            self._count_tokens,
            "How many tokens the prompt of a body of /v1/messages has.",
            openapi_extra=operation(count),
        )
        get("/v1/models", self._models, "The names that the model is served under, and those of adapters.")
        get("/v1/models/{model:path}", self._model, "One of them.")
        post("/tokenize", self._tokenize, "The token ids of a text.")
        post("/detokenize", self._detokenize, "The text of token ids.")
        get("/health", self._health, "200 while the engine lives, else 503 and why.")
        get("/ping", self._health, "The same.")
        get("/ready", self._ready, "200 while requests are accepted, else 503.")
        get("/version", self._version, "The version.")
        if self.metrics is not None:
            get("/metrics", self._metrics, "What is measured, as Prometheus reads it.")
        if self.config.enable_admin:
            add = admin_adder(app, self.config.allowed_origins)
            self._engine_routes.add_to(add)
            add("POST", "/v1/load_lora_adapter", self._load_lora_adapter, "Makes an adapter a model name.")
            unload = "Takes it from the model names."
            add("POST", "/v1/unload_lora_adapter", self._unload_lora_adapter, unload)
        describe_answers(app)
        if self.config.page:
            add_page(app)
        app.add_middleware(
            Guard,
            api_keys=self.config.api_keys(),
            max_body_bytes=self.config.max_body_bytes,
            metrics=self._http_metrics,
            logs=self.config.log_requests,
        )
        if self.config.allowed_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(self.config.allowed_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id"],
            )
        return app

    def _answers(
        self, route: _core.HttpRoute, prefix: str
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def answer(request: Request) -> Response:
            return await self._begin(request, route, prefix)

        return answer

    async def _begin(self, request: Request, route: _core.HttpRoute, prefix: str) -> Response:
        body = await self._read(request)
        if isinstance(body, Response):
            return body
        path = request.url.path
        key: int | None = request.state.api_key
        refusal = self.in_flight.refusal(key)
        if self.is_closing:
            refusal = _core.HttpError(503, "the server is shutting down", code="engine_unavailable")
        if refusal is not None:
            return error_response(refusal, path)
        self.in_flight.add(key)
        begun = None
        request_id = prefix + request.state.request_id
        arrival_time = time.monotonic()

        def on_end(exchange: _core.HttpExchange) -> None:
            self.in_flight.remove(key)
            if self.tracer is not None:
                self.tracer.record_exchange(
                    exchange,
                    request_id=request_id,
                    route=request.scope["route"].path,
                    headers=request.headers,
                    arrival_time=arrival_time,
                )

        try:
            begun = await begin(
                self._api,
                self.llm.engine,
                self.llm.streams,
                route,
                body,
                request_id,
                on_end,
            )
        finally:
            if not isinstance(begun, Answer):
                self.in_flight.remove(key)
        return begun if isinstance(begun, Answer) else error_response(begun, path)

    async def _count_tokens(self, request: Request) -> Response:
        body = await self._read(request)
        if isinstance(body, Response):
            return body
        counted = await off_loop(body, self._api.count_tokens, self.llm.engine, body)
        if isinstance(counted, _core.HttpError):
            return error_response(counted, request.url.path)
        return Response(counted, media_type="application/json")

    async def _read(self, request: Request) -> bytes | Response:
        """The body, which may be longer than its header says, or than it may be, or never come."""
        try:
            body = await asyncio.wait_for(self._read_parts(request), self.config.client_timeout or None)
        except asyncio.TimeoutError:
            text = f"the body did not come within {self.config.client_timeout:g} s; send it at once"
            return error_response(_core.HttpError(408, text), request.url.path)
        if body is None:
            return error_response(too_long(self.config.max_body_bytes), request.url.path)
        return body

    async def _read_parts(self, request: Request) -> bytes | None:
        parts = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self.config.max_body_bytes:
                return None
            parts.append(part)
        return b"".join(parts)

    async def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": self._cards()}

    async def _model(self, model: str) -> Response:
        card = next((card for card in self._cards() if card["id"] == model), None)
        if card is None:
            error = _core.HttpError(
                404, f"model '{model:.200}' does not exist", param="model", code="model_not_found"
            )
            return error_response(error)
        return JSONResponse(card)

    def _cards(self) -> list[dict[str, Any]]:
        first = self.model_names[0]
        return [
            *(self._card(name, first, None) for name in self.model_names),
            *(self._card(name, path, first) for name, path in self.adapters.paths().items()),
        ]

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "quire",
            "root": root,
            "parent": parent,
            "max_model_len": self.llm.model.max_model_len,
        }

    async def _tokenize(self, request: Request) -> Response:
        return await self._answer_from(request, self._tokens.tokenize)

    async def _detokenize(self, request: Request) -> Response:
        return await self._answer_from(request, self._tokens.detokenize)

    async def _answer_from(self, request: Request, answer: Callable[[bytes], Response]) -> Response:
        body = await self._read(request)
        return body if isinstance(body, Response) else await off_loop(body, answer, body)

    async def _health(self) -> Response:
        try:
            self.llm.check_health()
        except RuntimeError as error:
            return error_response(_core.HttpError(503, str(error)))
        return Response()

    async def _metrics(self) -> Response:
        assert self.metrics is not None
        return Response(self.metrics.render(), media_type=self.metrics.content_type)

    async def _ready(self) -> Response:
        if self.is_closing or self.llm.engine.is_draining:
            return error_response(_core.HttpError(503, "no requests are accepted any more"))
        if self._engine_routes.is_asleep:
            text = "the engine is asleep; no requests are accepted until it wakes up"
            return error_response(_core.HttpError(503, text, code="engine_unavailable"))
        return await self._health()

    async def _version(self) -> dict[str, str]:
        return {"version": quire.__version__}

    async def _load_lora_adapter(self, request: Request) -> Response:
        return await self._change_adapters(request, self.adapters.load)

    async def _unload_lora_adapter(self, request: Request) -> Response:
        return await self._change_adapters(request, self.adapters.unload)

    async def _change_adapters(
        self, request: Request, change: Callable[[dict[str, Any]], Coroutine[Any, Any, str | _core.HttpError]]
    ) -> Response:
        body = await self._read(request)
        if isinstance(body, Response):
            return body
        value = await off_loop(body, parse_object, body)
        done = value if isinstance(value, _core.HttpError) else await change(value)
        return PlainTextResponse(done) if isinstance(done, str) else error_response(done)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    made = _core.HttpError(error.status_code, message, code=_CODES.get(error.status_code, ""))
    answer = error_response(made, request.url.path)
    answer.headers.update(error.headers or {})  # Allow, of a method that a route does not have
    return answer


async def _bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][1]) if len(first["loc"]) > 1 else ""
    made = _core.HttpError(400, f"{name}: {first['msg']}, got {first['input']!s:.100}", param=name)
    return error_response(made, request.url.path)


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; logs do

"""The process: sockets, signals and the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from quire.serve.app import Server
from quire.serve.config import ServeConfig
from quire.serve.protocol import limited_protocol

_BACKLOG = 2048
_TRACES_SECONDS = 3.0


class Uvicorn(uvicorn.Server):
    """Gives unfinished answers their time when it is to end, and tells who waits that it is up."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends by SIGTERM and SIGINT, which uvicorn would then send itself once more."""
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:  # the address could not be had; uvicorn has said why
            return
        where = self._server.config.uds or _address(self.servers[0].sockets[0], self.config.is_ssl)
        print(f"quire: {self._server.model_names[0]} at {where}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._server.is_closing = True
        ending = asyncio.ensure_future(self._end_answers())
        await super().shutdown(sockets)
        ending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ending
        await self._server.llm.shutdown(drain=0.0)
        if self._server.tracer is not None:
            # Spans that wait have a few seconds to be sent: the collector may be gone.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._server.tracer.shutdown, _TRACES_SECONDS)

    async def _end_answers(self) -> None:
        """Aborts what is unfinished when its time is over: clients get what there is."""
        self._server.llm.resume()  # who paused it can no longer say so
        await asyncio.sleep(self._server.config.shutdown_timeout)
        self._server.llm.engine.abort_all_requests()


def _address(listening: socket.socket, is_ssl: bool) -> str:
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if is_ssl else 'http'}://{host}:{port}"


def bind(config: ServeConfig) -> list[socket.socket] | None:
    """Sockets at the address, which is ours from now on; None for one in the file system, made by ``serve``.

    Nothing listens yet: who connects is refused. Raises ValueError when the address cannot be had.
    """
    if config.uds is not None:
        return None
    bound: list[socket.socket] = []
    where = f"{config.host}:{config.port}"
    try:
        found = socket.getaddrinfo(
            config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            bound.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                made.bind(address)
            except OSError as error:
                # Of a name with several addresses one may be of a family that this machine does not speak.
                if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
                bound.remove(made)
                made.close()
        if not bound:
            raise OSError("none of its addresses is this machine's")
    except OSError as error:
        for made in bound:
            made.close()
        raise ValueError(f"port: {where} cannot be listened at: {error.strerror or error}") from None
    return bound


def serve(server: Server, sockets: list[socket.socket] | None = None) -> bool:
    """Serves until SIGTERM or SIGINT; returns when all answers were sent or their time was over.

    At ``sockets``, which are bound, or else at the configuration's address. False when that could not be had.
    """
    config = server.config
    try:
        for made in sockets or ():
            made.listen(_BACKLOG)
    except OSError as error:  # of two that began with one address, one is the first to listen
        print(f"quire: the address cannot be listened at: {error.strerror}", file=sys.stderr, flush=True)
        return False
    settings = uvicorn.Config(
        server.app,
        host=config.host,
        port=config.port,
        uds=config.uds,
        loop="auto",
        http=limited_protocol(config),
        ws="none",
        lifespan="off",
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=config.ssl_cert_reqs,
        timeout_keep_alive=75,
        # Beyond shutdown_timeout, for what was aborted to be sent.
        timeout_graceful_shutdown=int(config.shutdown_timeout) + 5,
    )
    running = Uvicorn(settings, server)
    running.run(sockets)
    return bool(running.started)

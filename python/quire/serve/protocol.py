"""HTTP's connections: uvicorn's, with limits on what clients may send and on how long they may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from quire import _core
from quire.serve.config import ServeConfig

# How long a client that is refused may go on sending: of a connection that is closed with bytes unread, it
# would not see why.
_LINGER_SECONDS = 1.0
# Requests of one connection that wait behind each other, but for those in the slice that the last of them is
# in. A request that waits takes kilobytes and may be sent in twenty bytes.
_MAX_WAITING = 8
_SLICE_BYTES = 4 << 10
_BODY_SLICE_BYTES = 64 << 10  # in a body, which most of it will be


def limited_protocol(config: ServeConfig) -> type[LimitedProtocol]:
    """The class for ``uvicorn.Config(http=...)``."""
    limits = {name: getattr(config, name) for name in LIMITS}
    return type("Protocol", (LimitedProtocol,), limits)


LIMITS = ("max_header_bytes", "max_header_count", "client_timeout")


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Reads and writes as uvicorn does, and:

    - a head (the request's line and its headers) beyond the limits is refused with 431;
    - a client that does not end a head within ``client_timeout`` seconds is refused with 408, and one that
      does not end the body of what was answered already loses its connection;
    - so does one that reads nothing for as long while something waits to be sent to it;
    - requests that come behind an unanswered one are read as those before are answered: of the rest the bytes
      are kept, a hundredth of what as many requests would take.

    Nothing is measured while data comes and goes at once: a timer begins when something is left waiting.
    """

    max_header_bytes: int
    max_header_count: int
    client_timeout: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What is answered now; `cycle` is the last that came, which may wait behind it.
        self._running: Any = None
        self._in_head = False
        self._in_body = False
        self._num_begun = 0  # heads, in the data that is being read
        self._head_bytes = 0  # of a head that is not complete, as far as they are known to be its own
        self._refusal: _core.HttpError | None = None
        self._is_refused = False
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._num_unsent = 0
        self._unread = b""  # behind as many requests as may wait

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading_timer()
        self._stop_writing_timer()
        self._tell_of_end()
        self._unread = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._unread or len(self.pipeline) >= _MAX_WAITING:
            self._unread += data
            self.flow.pause_reading()
        elif len(data) <= _SLICE_BYTES:
            self._parse(data)
        else:
            self._parse_slices(data)

    def _parse_slices(self, data: bytes) -> None:
        """As far as there are not too many requests in it."""
        begin = 0
        while begin < len(data) and not (self._is_refused or self.transport.is_closing()):
            if len(self.pipeline) >= _MAX_WAITING:
                self._unread = data[begin:]
                self.flow.pause_reading()
                return
            end = begin + (_BODY_SLICE_BYTES if self._in_body else _SLICE_BYTES)
            self._parse(data[begin:end])
            begin = end

    def _parse_unread(self) -> None:
        data, self._unread = self._unread, b""
        if data:
            self._parse_slices(data)
            if not self._unread and not self.pipeline:
                self.flow.resume_reading()

    def _parse(self, data: bytes) -> None:
        was_between = not (self._in_head or self._in_body)
        self._num_begun = 0
        super().data_received(data)
        if self._is_refused or not (self._in_head or self._in_body):
            return
        # Where another request ends in this data, it is not known where this one begins.
        if self._in_head and self._num_begun == was_between:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_header_bytes:
                self._refuse(self._too_large())
                return
        if self._read_timer is None:
            self._watch_reading()

    # Of the parser. What they raise ends in send_400_response.
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._num_begun += 1
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.headers) > self.max_header_count:
            text = f"a request may have {self.max_header_count} headers; send fewer"
            self._refusal = _core.HttpError(431, text)
            raise ValueError(text)
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if num_bytes > self.max_header_bytes:
            self._refusal = self._too_large()
            raise ValueError(self._refusal.message)
        self._in_body = True
        self._stop_reading_timer()
        was_paused = self.flow.read_paused
        super().on_headers_complete()
        # uvicorn reads nothing while a request waits behind another, and would not see the client leave.
        if self.pipeline and not was_paused:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_reading_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.client_timeout and self.transport.get_write_buffer_size() > 0:
            self._watch_writing()
        if self._unread and len(self.pipeline) < _MAX_WAITING:
            self.loop.call_soon(self._parse_unread)

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or _core.HttpError(400, "this is no HTTP/1.1 request that can be read"))

    # Of the transport.
    def pause_writing(self) -> None:
        super().pause_writing()
        if self.client_timeout:
            self._watch_writing()

    def resume_writing(self) -> None:
        self._stop_writing_timer()
        super().resume_writing()

    def _too_large(self) -> _core.HttpError:
        text = f"a request's line and headers must be at most {self.max_header_bytes} bytes; send less"
        return _core.HttpError(431, text)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_of_end(self) -> None:
        """To what is answered that nobody listens any more; a write to what is closed would be an error."""
        cycle = self._running or self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: _core.HttpError) -> None:
        """Says why, if that would not be in the middle of an answer, and closes."""
        self._is_refused = True
        self._stop_reading_timer()
        if self._is_answering():
            self._tell_of_end()
            self.transport.close()
            return
        body = error.body()
        headers = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + headers % len(body) + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _watch_reading(self) -> None:
        if self.client_timeout:
            self._read_timer = self.loop.call_later(self.client_timeout, self._read_too_long)

    def _stop_reading_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _read_too_long(self) -> None:
        self._read_timer = None
        if self.transport.is_closing() or self._is_refused:
            return
        if self._is_answering():
            # Its body is waited for elsewhere, and the head behind it can wait.
            self._watch_reading()
        elif self._in_head:
            text = f"the header did not come within {self.client_timeout:g} s; send it at once"
            self._refuse(_core.HttpError(408, text))
        else:
            self.transport.close()

    def _watch_writing(self) -> None:
        if self._write_timer is None:
            self._num_unsent = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(self.client_timeout, self._wrote_nothing)

    def _stop_writing_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _wrote_nothing(self) -> None:
        """Gives up on a client that took nothing since the timer began."""
        self._write_timer = None
        num_unsent = self.transport.get_write_buffer_size()
        if num_unsent == 0:
            return
        # Where writing is not paused more may have been added meanwhile.
        if num_unsent < self._num_unsent or (self._is_answering() and not self.flow.write_paused):
            self._watch_writing()
        else:
            self.transport.abort()

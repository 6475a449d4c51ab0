"""A server's log: a JSON object a line, which holds up no request whatever becomes of the disk or the pipe.

::

    handler = configure_logging("info")  # to stderr; or path="/var/log/quire.log"
    log_request(logger, request_id="a", method="POST", route="/v1/completions", status=200,
                duration_seconds=1.25, output=output)
    handler.num_dropped  # lines that could not be written, so far

A line has ``time`` (UTC), ``level``, ``logger`` and ``message``, and of what is given as ``extra`` those in
FIELDS. Nothing else that a record carries is written: a prompt or an answer only with ``log_text=True``, and
without it no message of an exception that may quote one (ValueError and the like: its type is, and where it
came from). What callers put into a message themselves is their affair.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from quire._core import RequestOutput

FIELDS = (
    "request_id",
    "client",
    "method",
    "route",
    "status",
    "model",
    "lora_name",
    "stream",
    "duration_seconds",
    "queue_seconds",
    "time_to_first_token_seconds",
    "prefill_seconds",
    "decode_seconds",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_generation_tokens",
    "num_reasoning_tokens",
    "finish_reasons",
    "error",
)
# Only with log_text.
TEXT_FIELDS = ("prompt", "answer")
LEVELS = ("debug", "info", "warning", "error", "critical")
# Exceptions whose messages quote what was wrong, which may be of a request.
_QUOTING = (ValueError, TypeError, LookupError, AssertionError)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, without its end. See the module for what is in it."""

    def __init__(self, *, log_text: bool = False) -> None:
        super().__init__()
        self._fields = FIELDS + TEXT_FIELDS if log_text else FIELDS
        self._log_text = log_text

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": when.removesuffix("+00:00") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in self._fields:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = _plain(value)
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._describe(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def _describe(self, error: BaseException) -> dict[str, Any]:
        places = []
        traceback = error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            places.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
            traceback = traceback.tb_next
        described: dict[str, Any] = {"type": type(error).__name__, "places": places[-32:]}
        if self._log_text or not isinstance(error, _QUOTING):
            described["message"] = str(error)
        return described


class JsonLogHandler(logging.Handler):
    """Writes lines on a thread of its own. Who logs never waits for it, and never hears of its failures.

    ``path`` is appended to; without it, lines go to a copy of stderr's descriptor. Lines wait in memory, up
    to ``max_pending_bytes``. What finds no room there, or cannot be written (a full disk, a pipe whose reader
    has gone, a closed stderr), is dropped and counted, and once lines can be written again one of them says
    how many are missing.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, max_pending_bytes: int = 8 << 20
    ) -> None:
        """Raises OSError, naming it, for a file that cannot be opened."""
        super().__init__()
        if path is not None:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        else:
            try:
                # A copy: once stderr is closed its number may become another file's, a client's even.
                self._fd = os.dup(2)
            except OSError:
                self._fd = -1  # there is none, and all is dropped
        self._max_pending_bytes = max_pending_bytes
        self._num_refused = 0  # of those who log, under the handler's lock
        self._num_unwritten = 0  # of the writing thread
        self._num_told = 0  # of all dropped, how many a line has told of
        self._is_torn = False  # a line was begun and not ended
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        # May be put to in a signal's handler, unlike Queue, which would wait for itself.
        self._lines: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._num_bytes_put = 0
        self._num_bytes_taken = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._write_lines, name="quire-log", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Lines that were not written, ever."""
        return self._num_refused + self._num_unwritten

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Half of a pair, which no UTF-8 has, is escaped as JSON does it.
            line = self.format(record).encode("utf-8", "backslashreplace") + b"\n"
            if self._pid != os.getpid():
                self._start()  # in a fork, where the thread is not
            num_pending_bytes = self._num_bytes_put - self._num_bytes_taken + len(line)
            if not self._is_closed and num_pending_bytes <= self._max_pending_bytes:
                self._lines.put(line)
                self._num_bytes_put += len(line)
                return
        except Exception:  # a message whose arguments do not fit, no memory
            pass
        self._num_refused += 1

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: logging would print to the stderr that may be what failed."""

    def flush(self, timeout: float = 1.0) -> None:
        """Waits until what was logged before is written or dropped, at most ``timeout`` seconds."""
        if self._is_closed or not self._thread.is_alive() or self._pid != os.getpid():
            return
        reached = threading.Event()
        self._lines.put(reached)
        reached.wait(timeout)

    def close(self, timeout: float = 1.0) -> None:
        """Writes what waits, for at most ``timeout`` seconds: a pipe that nobody reads takes for ever."""
        self.acquire()
        was_closed, self._is_closed = self._is_closed, True
        self.release()
        if not was_closed and self._pid == os.getpid():
            self._lines.put(None)
            self._thread.join(timeout)
            if not self._thread.is_alive() and self._fd >= 0:
                os.close(self._fd)
        super().close()

    def _write_lines(self) -> None:
        lines = self._lines
        while (line := lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            self._num_bytes_taken += len(line)
            if self._write(line):
                self._tell_of_dropped()
            else:
                self._num_unwritten += 1

    def _tell_of_dropped(self) -> None:
        num_dropped = self.num_dropped
        if num_dropped == self._num_told:
            return
        record = logging.LogRecord(
            __name__, logging.WARNING, "", 0, "%d lines of the log were dropped",
            (num_dropped - self._num_told,), None,
        )  # fmt: skip
        try:
            told = self._write(self.format(record).encode() + b"\n")
        except Exception:
            told = False
        if told:
            self._num_told = num_dropped

    def _write(self, line: bytes) -> bool:
        """Whether all of it was written."""
        left = b"\n" + line if self._is_torn else line
        give_up = time.monotonic() + 1.0
        try:
            while left:
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:  # a pipe that others made so
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(0.01)
        except OSError:
            # Perhaps the end of the torn line before it was written, and nothing of this one.
            self._is_torn = len(left) < len(line) or (self._is_torn and len(left) > len(line))
            return False
        self._is_torn = False
        return True


def configure_logging(
    level: str = "info",
    *,
    path: str | os.PathLike[str] | None = None,
    log_text: bool = False,
    loggers: Iterable[str] = (),
) -> JsonLogHandler:
    """Makes this process log JSON: the root logger's handlers go, and those of ``loggers``, for one of ours.

    ``path`` is a file to append to; without it, stderr. ``loggers`` are named besides the root because some
    libraries' have handlers of their own ("uvicorn", "uvicorn.access"). Raises ValueError for a level that is
    none of LEVELS, and OSError for a file that cannot be opened.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got '{level}'")
    handler = JsonLogHandler(None if path is None else Path(path))
    handler.setFormatter(JsonFormatter(log_text=log_text))
    for name in loggers:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], [handler]
    for other in before:
        if isinstance(other, JsonLogHandler):
            other.close()
    root.setLevel(level.upper())
    return handler


def log_request(
    logger: logging.Logger,
    *,
    request_id: str,
    method: str,
    route: str,
    status: int,
    duration_seconds: float,
    output: RequestOutput | None = None,
    prompt: str | None = None,
    answer: str | None = None,
    **fields: Any,
) -> None:
    """Logs a request that has been answered: an error from status 500 on, otherwise at level info.

    ``output`` is its last, for its times and tokens; ``prompt`` and ``answer`` are written with ``log_text``
    only. ``fields`` are others of FIELDS.
    """
    level = logging.ERROR if status >= 500 else logging.INFO
    if not logger.isEnabledFor(level):
        return
    extra: dict[str, Any] = {
        "request_id": request_id,
        "method": method,
        "route": route,
        "status": status,
        "duration_seconds": duration_seconds,
        **(fields_of(output) if output is not None else {}),
        "prompt": prompt,
        "answer": answer,
        **fields,
    }
    logger.log(level, "%s %s %d", method, route, status, extra=extra)


def fields_of(output: RequestOutput) -> dict[str, Any]:
    """FIELDS of an engine's output: times that it has come to, tokens, and how its completions ended."""
    metrics, usage = output.metrics, output.usage
    fields: dict[str, Any] = {
        "num_prompt_tokens": usage.num_prompt_tokens,
        "num_cached_tokens": usage.num_cached_tokens,
        "num_generation_tokens": usage.num_generation_tokens,
        "num_reasoning_tokens": usage.num_reasoning_tokens,
        "finish_reasons": [c.finish_reason for c in output.outputs if c.finish_reason],
    }
    if metrics.first_scheduled_time > 0:
        fields["queue_seconds"] = metrics.queued_time
    if metrics.first_token_time > 0:
        fields["time_to_first_token_seconds"] = metrics.first_token_latency
        fields["prefill_seconds"] = metrics.prefill_time
        fields["decode_seconds"] = metrics.decode_time
    return fields


def _plain(value: Any) -> Any:
    """What JSON has: other things as text."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)

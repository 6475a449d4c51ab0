"""Outputs of an engine in an event loop."""

from __future__ import annotations

import asyncio
from itertools import count

from quire import _core


class OutputStreams:
    """Queues of outputs that an event loop waits for: it wakes once for all that a step brought.

    Of one event loop at a time: the one that runs when something is first awaited, or a later one when that
    has been left. Not thread-safe.
    """

    def __init__(self, engine: _core.Engine) -> None:
        self._selector = _core.OutputSelector(engine)
        self._keys = count()
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_attached = False

    def open(self) -> tuple[int, _core.OutputQueue]:
        """A queue, and the key that ``wait`` knows it by."""
        key = next(self._keys)
        return key, self._selector.open(key)

    def arrival(self, key: int) -> asyncio.Future[None]:
        """To be awaited when the queue was found empty: it is done when something arrives there."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop or not self._is_attached:
            self._attach(loop)
        waiter = self._waiters[key] = loop.create_future()
        return waiter

    def forget(self, key: int) -> None:
        """Of a queue that nobody takes from any more."""
        self._waiters.pop(key, None)

    def close(self) -> None:
        """Tells what has arrived; waits for nothing until ``arrival`` is called again. From any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._detach, loop)

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None and self._loop is not loop:
            if not self._loop.is_closed():
                if any(not waiter.done() for waiter in self._waiters.values()):
                    raise RuntimeError("requests of this engine are awaited in another event loop")
                self._loop.remove_reader(self._selector.fileno())
            self._waiters.clear()
        self._loop = loop
        self._is_attached = True
        loop.add_reader(self._selector.fileno(), self._wake)

    def _detach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake()
        if loop is self._loop:
            loop.remove_reader(self._selector.fileno())
            self._is_attached = False

    def _wake(self) -> None:
        waiters = self._waiters
        for key in self._selector.take():
            waiter = waiters.get(key)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

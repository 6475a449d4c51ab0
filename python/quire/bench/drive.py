"""Sends requests when they are due, in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.bench.outcomes import Outcome
from quire.bench.targets import Target

BUSY_WINDOW_S = 1.0


@dataclass(frozen=True)
class Due:
    """A request and when to send it: seconds after the start."""

    index: int
    prompt_len: int
    prepared: Any
    offset: float


@dataclass
class Driven:
    """What was done, and what it took of a processor."""

    outcomes: list[Outcome] = field(default_factory=list)  # of requests that have ended, in no order
    end: float = 0.0  # time.monotonic() after the last
    process_seconds: float = 0.0  # of processors, all threads of this process
    busiest_process: float = 0.0  # cores that they took in the busiest second
    loop_seconds: float = 0.0  # the same of the event loop's thread
    busiest_loop: float = 0.0
    was_stopped: bool = False


async def drive(
    target: Target,
    requests: Sequence[Due],
    start: float,
    max_concurrency: int | None,
    on_done: Callable[[Outcome], None],
    stop: asyncio.Event,
) -> Driven:
    """Sends ``requests``, ascending by offset, from ``start`` (``time.monotonic()``) on; waits for answers.

    ``stop`` ends it early: answers under way are dropped and not in the result.
    """
    driven = Driven()
    free = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    tasks: set[asyncio.Task[None]] = set()

    async def one(due: Due) -> None:
        outcome = Outcome(due.index, prompt_tokens=due.prompt_len)
        try:
            await target.send(due.prepared, outcome)
            driven.outcomes.append(outcome)
            on_done(outcome)
        finally:
            if free is not None:
                free.release()

    async def send_all() -> None:
        for due in requests:
            delay = start + due.offset - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            if free is not None:
                await free.acquire()
            task = asyncio.ensure_future(one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)

    await asyncio.sleep(max(start - time.monotonic(), 0))
    process, thread = time.process_time(), time.thread_time()
    watching = asyncio.ensure_future(_watch(driven))
    sending = asyncio.ensure_future(send_all())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
    driven.end = time.monotonic()
    driven.process_seconds = time.process_time() - process
    driven.loop_seconds = time.thread_time() - thread
    driven.was_stopped = not sending.done()
    for task in (sending, stopping, watching, *tasks):
        task.cancel()
    await asyncio.gather(sending, stopping, watching, *tasks, return_exceptions=True)
    if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
        raise error
    return driven


async def _watch(driven: Driven) -> None:
    while True:
        process, thread, now = time.process_time(), time.thread_time(), time.monotonic()
        await asyncio.sleep(BUSY_WINDOW_S)
        per_second = 1 / (time.monotonic() - now)
        driven.busiest_process = max(driven.busiest_process, (time.process_time() - process) * per_second)
        driven.busiest_loop = max(driven.busiest_loop, (time.thread_time() - thread) * per_second)


def run_loop(main: Any) -> Any:
    """``asyncio.run``, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)

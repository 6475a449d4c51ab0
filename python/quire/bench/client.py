"""One process of clients, ``python -m quire.bench.client``, which ``clients`` starts and talks to by pipes.

Reads a ``Job``, answers "ready", reads the time to start, then writes how many answers there are and at last
what was done. Whatever comes on its standard input after the start, or its end, stops it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.bench.drive import Driven, Due, drive, run_loop
from quire.bench.outcomes import BenchRequest, Outcome
from quire.bench.targets import TARGETS, Target, TargetConfig

_PROGRESS_S = 0.2


@dataclass(frozen=True)
class Job:
    """What one process does: its requests with their indices in the workload and their offsets."""

    config: TargetConfig
    requests: Sequence[tuple[int, BenchRequest, float]]
    warmups: Sequence[BenchRequest]
    max_concurrency: int | None


async def warm_up(target: Target, requests: Sequence[BenchRequest], max_concurrency: int | None) -> None:
    """Sends requests that are not measured. Raises ValueError if one fails."""
    due = [Due(i, request.prompt_len, target.prepare(request), 0.0) for i, request in enumerate(requests)]
    driven = await drive(target, due, time.monotonic(), max_concurrency, lambda _: None, asyncio.Event())
    for outcome in driven.outcomes:
        if outcome.error:
            raise ValueError(f"a request to warm up failed: {outcome.error}")


def _make_target(config: TargetConfig) -> Target:
    """Raises ValueError for a package that is missing."""
    if config.kind == "openai":
        from quire.bench.openai_target import OpenAITarget

        return OpenAITarget(config)
    if config.kind == "triton":
        from quire.bench.triton_target import TritonTarget

        return TritonTarget(config)
    raise ValueError(f"target must be one of {', '.join(TARGETS)}, got '{config.kind}'")


async def _run(job: Job, receive: Any, send: Any) -> Driven:
    loop = asyncio.get_running_loop()
    target = _make_target(job.config)
    await warm_up(target, job.warmups, job.max_concurrency)
    due = [Due(i, request.prompt_len, target.prepare(request), offset) for i, request, offset in job.requests]
    send(("ready", None))
    start = await loop.run_in_executor(None, receive)
    stop = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stop.set)
    num_done = num_failed = num_tokens = 0
    told = 0.0

    def on_done(outcome: Outcome) -> None:
        nonlocal num_done, num_failed, num_tokens, told
        num_done += 1
        num_failed += bool(outcome.error)
        num_tokens += outcome.output_tokens
        if time.monotonic() > told + _PROGRESS_S:
            told = time.monotonic()
            send(("progress", (num_done, num_failed, num_tokens)))

    driven = await drive(target, due, start, job.max_concurrency, on_done, stop)
    loop.remove_reader(sys.stdin.fileno())
    await target.close()
    return driven


def main() -> int:
    """Does one job. Errors are told to the other end of the pipe."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no message
    pipe = sys.stdin.buffer
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a connection for each request under way
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def send(message: Any) -> None:
        pickle.dump(message, out)
        out.flush()

    try:
        job = pickle.load(pipe)
        driven = run_loop(_run(job, lambda: pickle.load(pipe), send))
        send(("done", driven))
    except EOFError:  # who started it has ended
        return 1
    except Exception as error:
        send(("error", str(error) or type(error).__name__))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

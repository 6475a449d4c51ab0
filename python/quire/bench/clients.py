"""Processes of clients, which send a workload's requests and measure."""

from __future__ import annotations

import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from quire.bench.client import Job
from quire.bench.drive import Driven
from quire.bench.outcomes import BenchRequest
from quire.bench.targets import TargetConfig

# So that all processes have their start time before it comes.
_LEAD_S = 0.1


class Clients:
    """Processes that are ready to begin. ``run`` may be called once; ``close`` ends what is left."""

    def __init__(
        self,
        config: TargetConfig,
        requests: Sequence[BenchRequest],
        offsets: Sequence[float],
        *,
        num_clients: int = 1,
        max_concurrency: int | None = None,
        warmups: Sequence[BenchRequest] = (),
    ) -> None:
        """Starts processes, which take turns with the requests, and has them warm up.

        Raises ValueError if a process cannot begin, or warming up fails.
        """
        if max_concurrency is not None and max_concurrency < num_clients:
            raise ValueError(
                f"max_concurrency must be at least num_clients, {num_clients}, got {max_concurrency}"
            )
        self._messages: queue.Queue[tuple[int, str, Any]] = queue.Queue()
        self._processes: list[subprocess.Popen[bytes]] = []
        indexed = [
            (i, request, offset) for i, (request, offset) in enumerate(zip(requests, offsets, strict=True))
        ]
        try:
            for i in range(num_clients):
                share = None
                if max_concurrency is not None:
                    share = max_concurrency // num_clients + (i < max_concurrency % num_clients)
                self._start(Job(config, indexed[i::num_clients], warmups[i::num_clients], share))
            for _ in range(num_clients):
                self._next("ready")
        except BaseException:
            self.close()
            raise

    def run(
        self, on_progress: Callable[[int, int, int], None], look: Callable[[], None]
    ) -> tuple[float, list[Driven], bool]:
        """The time of the start (``time.monotonic``), what each process did, and whether Ctrl-C stopped it.

        ``look`` is called just before the first request is sent and just after the last answer,
        ``on_progress`` with the answers, failures and tokens so far. Raises RuntimeError if a process dies.
        """
        look()
        start = time.monotonic() + _LEAD_S
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # its end is heard of below
                pickle.dump(start, process.stdin)
                process.stdin.flush()
        done: list[Driven] = []
        progress: dict[int, tuple[int, int, int]] = {}
        was_interrupted = False
        while len(done) < len(self._processes):
            try:
                i, kind, value = self._messages.get()
                if kind == "progress":
                    progress[i] = value
                    on_progress(*(sum(column) for column in zip(*progress.values(), strict=True)))
                elif kind == "done":
                    done.append(value)
                else:
                    raise RuntimeError(f"a process of clients ended: {value}")
            except KeyboardInterrupt:
                if was_interrupted:
                    raise
                was_interrupted = True
                self._stop()
        look()
        return start, done, was_interrupted

    def close(self) -> None:
        """Ends processes that have not ended."""
        self._stop()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _start(self, job: Job) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "quire.bench.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us, who tell it
        )
        index = len(self._processes)
        self._processes.append(process)
        assert process.stdin is not None and process.stdout is not None
        threading.Thread(target=self._listen, args=(index, process.stdout), daemon=True).start()
        with suppress(BrokenPipeError):
            pickle.dump(job, process.stdin)
            process.stdin.flush()

    def _listen(self, index: int, pipe: IO[bytes]) -> None:
        try:
            while True:
                kind, value = pickle.load(pipe)
                self._messages.put((index, kind, value))
                if kind in ("done", "error"):
                    return
        except (EOFError, ValueError, pickle.UnpicklingError):
            self._messages.put((index, "end", "it wrote nothing more"))

    def _next(self, wanted: str) -> None:
        _, kind, value = self._messages.get()
        if kind != wanted:
            raise ValueError(value)

    def _stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                with suppress(BrokenPipeError):
                    process.stdin.close()

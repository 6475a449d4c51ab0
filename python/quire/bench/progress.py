"""How far a run is, on stderr: a bar on a terminal where there is ``rich``, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_LINE_S = 10.0


class Progress:
    """Of ``total`` requests. A context manager; ``update`` may be called as often as one likes."""

    def __init__(self, total: int, enabled: bool = True) -> None:
        self._total = total
        self._enabled = enabled and sys.stderr is not None
        self._begin = self._told = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self._enabled and sys.stderr.isatty():
            self._bar = _rich_bar()
            if self._bar is not None:
                self._task = self._bar.add_task("requests", total=self._total, rate="", failed="")
                self._bar.start()
        return self

    def update(self, num_done: int, num_failed: int, num_tokens: int) -> None:
        """Answers, failures among them, and tokens so far."""
        if not self._enabled:
            return
        seconds = max(time.monotonic() - self._begin, 1e-9)
        rate = f"{num_tokens / seconds:,.0f} tokens/s"
        failed = f"{num_failed} failed" if num_failed else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=num_done, rate=rate, failed=failed)
        elif time.monotonic() > self._told + _LINE_S:
            self._told = time.monotonic()
            text = f"{num_done} of {self._total} requests, {rate}" + (f", {failed}" if failed else "")
            print(text, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress
    except ImportError:
        return None
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("[red]{task.fields[failed]}"),
        console=Console(stderr=True),
        transient=True,
    )

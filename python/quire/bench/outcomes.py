"""What is asked of a target, what became of it, and what a benchmark makes of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Result = Mapping[str, Any]  # of a benchmark, by name


@dataclass(frozen=True)
class BenchRequest:
    """One request. ``arrival`` is seconds after the start, where a trace says so."""

    prompt: str | list[int]
    prompt_len: int  # tokens
    output_len: int  # tokens, at most; exactly that many where the end of a sequence is ignored
    schema: Mapping[str, Any] | None = None  # of JSON that the answer is held to
    arrival: float | None = None


@dataclass
class Outcome:
    """What became of a request. Times are seconds of ``time.monotonic``, one clock for all processes."""

    index: int  # of the request in the workload
    start: float = 0.0  # it was sent
    times: list[float] = field(default_factory=list)  # a piece of the answer arrived
    prompt_tokens: int = 0  # as the target counts them, else as the workload does
    output_tokens: int = 0
    text: str = ""  # only where it was asked for
    error: str = ""  # "" is success

    @property
    def ttft(self) -> float:
        """Seconds to the first piece."""
        return self.times[0] - self.start

    @property
    def latency(self) -> float:
        """Seconds to the last piece."""
        return self.times[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None of an answer with one token."""
        if self.output_tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Seconds between one piece and the next: of one token each where a target sends each by itself."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

"""When requests are sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random


@dataclass(frozen=True)
class Arrivals:
    """A rate, constant or growing, and how irregular it is. Raises ValueError, naming what cannot be."""

    request_rate: float = math.inf  # requests a second; inf: all at once
    burstiness: float = 1.0  # shape of the gamma distribution of gaps: 1 is a Poisson process, inf is even
    ramp_up_strategy: str | None = None  # "linear" or "exponential", from the first rate to the second
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 (inf is possible), got {getattr(self, name)}")
        ends = {name: getattr(self, name) for name in ("ramp_up_start_rps", "ramp_up_end_rps")}
        if self.ramp_up_strategy is None:
            for name, value in ends.items():
                if value is not None:
                    raise ValueError(f"{name} is of --ramp-up-strategy; give that too, or leave it out")
            return
        if self.ramp_up_strategy not in ("linear", "exponential"):
            raise ValueError(f"ramp_up_strategy must be linear or exponential, got '{self.ramp_up_strategy}'")
        if math.isfinite(self.request_rate):
            raise ValueError("request_rate and ramp_up_strategy exclude each other; leave one out")
        for name, value in ends.items():
            if value is None or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a rate above 0 with --ramp-up-strategy, got {value}")

    def rate(self, index: int, count: int) -> float:
        """Requests a second when request ``index`` of ``count`` is sent."""
        if self.ramp_up_strategy is None:
            return self.request_rate
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        assert start is not None and end is not None
        part = index / max(count - 1, 1)
        if self.ramp_up_strategy == "linear":
            return start + (end - start) * part
        return float(start * (end / start) ** part)

    def offsets(self, count: int, rng: Random) -> list[float]:
        """Seconds after the start, ascending, at which ``count`` requests are sent.

        At a constant rate the last is sent at count / rate, whatever was drawn: the mean rate is what was
        asked for, and runs of different seeds compare.
        """
        times = list(accumulate(self._gap(self.rate(i, count), rng) for i in range(count)))
        if self.ramp_up_strategy is None and times and times[-1] > 0:
            scale = count / self.request_rate / times[-1]
            times = [time * scale for time in times]
        return times

    def _gap(self, rate: float, rng: Random) -> float:
        if math.isinf(rate):
            return 0.0
        if math.isinf(self.burstiness):
            return 1 / rate
        return rng.gammavariate(self.burstiness, 1 / (rate * self.burstiness))


def recorded_offsets(arrivals: Sequence[float], speed: float) -> list[float]:
    """Of a trace: seconds after its first request, ``speed`` times as fast."""
    first = min(arrivals, default=0.0)
    return [(time - first) / speed for time in arrivals]

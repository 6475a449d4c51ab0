"""What waiting alone makes of times to first token."""

from __future__ import annotations

from random import Random

from quire.bench.arrivals import Arrivals
from quire.bench.measures import percentile


def ideal_ttft(
    request_rate: float, prefill_s: float, decode_s: float, count: int = 50_000
) -> tuple[float, float]:
    """Median and 99th percentile of TTFT, in seconds, of Poisson arrivals at an engine with no other cost.

    A step takes ``decode_s``, and ``prefill_s`` more for each prompt in it: all that came before it began.
    The engine is always decoding something, so that who comes waits for the end of a step. There is no limit
    of tokens of a step, and costs do not vary.
    """
    arrivals = Arrivals(request_rate=request_rate).offsets(count, Random(0))
    now = 0.0
    first = 0
    ttfts = []
    while first < count:
        if now < arrivals[first]:
            now += decode_s * (int((arrivals[first] - now) / decode_s) + 1)
        last = first
        while last < count and arrivals[last] <= now:
            last += 1
        now += decode_s + prefill_s * (last - first)
        ttfts += [now - arrival for arrival in arrivals[first:last]]
        first = last
    ttfts.sort()
    return percentile(ttfts, 50), percentile(ttfts, 99)

"""Figures of a run, under the names of vLLM's benchmark."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from quire.bench.outcomes import Outcome

METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
_CDF_POINTS = 100


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of ascending values, between two neighbours in proportion; 0 of none."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """mean, median, std (of these values, not of what they are a sample of), p50, ...; 0 of none."""
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered) if ordered else 0.0
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered) if ordered else 0.0
    return {
        "mean": mean,
        "median": percentile(ordered, 50),
        "std": math.sqrt(variance),
        **{f"p{percent:g}": percentile(ordered, percent) for percent in percentiles},
    }


def measure(
    outcomes: Sequence[Outcome],
    duration: float,
    *,
    percentile_metrics: Sequence[str] = METRICS,
    percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What all outcomes of ``duration`` seconds come to; ``goodput`` has milliseconds by metric.

    Times are milliseconds where a name ends in _ms. Tokens are counted of answers that succeeded.
    """
    good = [outcome for outcome in outcomes if not outcome.error]
    values = {
        "ttft": [outcome.ttft for outcome in good],
        "tpot": [tpot for outcome in good if (tpot := outcome.tpot) is not None],
        "itl": [itl for outcome in good for itl in outcome.itls],
        "e2el": [outcome.latency for outcome in good],
    }
    total_input = sum(outcome.prompt_tokens for outcome in good)
    total_output = sum(outcome.output_tokens for outcome in good)
    per_second = 1 / duration if duration > 0 else 0.0
    made: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "total_output_pieces": sum(len(outcome.times) for outcome in good),
        "request_throughput": len(good) * per_second,
        "request_goodput": None if not goodput else sum(_is_good(o, goodput) for o in good) * per_second,
        "output_throughput": total_output * per_second,
        "total_token_throughput": (total_input + total_output) * per_second,
        **_peaks(good),
    }
    for metric in METRICS:
        if metric in percentile_metrics:
            for name, value in distribution(values[metric], percentiles).items():
                made[f"{name}_{metric}_ms"] = value * 1000
    made["error_counts"] = dict(Counter(o.error for o in outcomes if o.error).most_common(10))
    made["cdf"] = {metric: _cdf(values[metric]) for metric in METRICS}
    return made


def _is_good(outcome: Outcome, goodput: Mapping[str, float]) -> bool:
    measured = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
    return all(measured[metric] * 1000 <= limit for metric, limit in goodput.items())


def _peaks(good: Sequence[Outcome]) -> dict[str, Any]:
    """The most tokens of one second, and requests under way at once; and both over time, by the second."""
    if not good:
        return {"max_output_tokens_per_s": 0.0, "max_concurrent_requests": 0, "timeline": {}}
    first = min(outcome.start for outcome in good)
    num_bins = int(max(outcome.times[-1] for outcome in good) - first) + 1
    tokens = [0.0] * num_bins
    running = [0] * num_bins
    for outcome in good:
        # A piece may hold several tokens; how many is known of the whole answer.
        weight = outcome.output_tokens / len(outcome.times)
        for time in outcome.times:
            tokens[int(time - first)] += weight
        for second in range(int(outcome.start - first), int(outcome.times[-1] - first) + 1):
            running[second] += 1
    changes = sorted([(o.start, 1) for o in good] + [(o.times[-1], -1) for o in good])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return {
        "max_output_tokens_per_s": max(tokens),
        "max_concurrent_requests": most,
        "timeline": {"bin_seconds": 1.0, "output_tokens": [round(x, 3) for x in tokens], "running": running},
    }


def _cdf(values: Sequence[float]) -> list[list[float]]:
    """Pairs of milliseconds and the part of the values at or below; at most a hundred and one."""
    ordered = sorted(values)
    if not ordered:
        return []
    count = min(len(ordered), _CDF_POINTS)
    places = sorted({round(i * (len(ordered) - 1) / max(count - 1, 1)) for i in range(count)})
    return [[round(ordered[place] * 1000, 6), (place + 1) / len(ordered)] for place in places]


def details(outcomes: Sequence[Outcome], num_prompts: int) -> dict[str, list[Any]]:
    """A value for each request, in the workload's order; one that did not end is one that failed."""
    by_index: list[Outcome] = [Outcome(i, error="not finished") for i in range(num_prompts)]
    for outcome in outcomes:
        by_index[outcome.index] = outcome
    return {
        "input_lens": [o.prompt_tokens for o in by_index],
        "output_lens": [0 if o.error else o.output_tokens for o in by_index],
        "start_times": [o.start for o in by_index],
        "ttfts": [o.ttft if o.times else 0.0 for o in by_index],
        "itls": [o.itls for o in by_index],
        "generated_texts": [o.text for o in by_index],
        "errors": [o.error for o in by_index],
    }

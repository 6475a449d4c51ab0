"""A simulation's report as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Report = Mapping[str, Any]

_COLUMNS = ("mean", "p50", "p90", "p99", "max")
_DISTRIBUTIONS = {"ttft": "TTFT", "itl": "ITL", "e2e": "end to end", "queue_time": "in queue"}


def format_report(report: Report, wall_seconds: float) -> str:
    """``report`` is ``simulate``'s; ``wall_seconds`` is how long that took."""
    lines = [*_workload(report), *_latencies(report), *_engines(report), *_kv_cache(report), *_costs(report)]
    simulated = f"{report['simulated_seconds']:,.2f} s simulated in {wall_seconds:,.2f} s"
    return "\n".join(f"{name:<13}{text}" for name, text in [*lines, ("time", simulated)])


def _workload(report: Report) -> Iterator[tuple[str, str]]:
    text = f"{report['num_finished']:,} of {report['num_requests']:,} finished"
    for why in ("refused", "expired"):
        if report[f"num_{why}"]:
            text += f", {report[f'num_{why}']:,} {why}"
    yield "requests", text
    yield (
        "tokens",
        f"{report['num_prompt_tokens']:,} of prompts, {report['num_output_tokens']:,} of outputs; "
        f"{report['num_scheduled_tokens']:,} computed",
    )
    yield (
        "throughput",
        f"{report['requests_per_second']:,.2f} requests/s, "
        f"{report['output_tokens_per_second']:,.0f} output tokens/s, "
        f"{report['prompt_tokens_per_second']:,.0f} prompt tokens/s",
    )


def _latencies(report: Report) -> Iterator[tuple[str, str]]:
    yield "", "".join(f"{column:>11}" for column in _COLUMNS)
    for key, name in _DISTRIBUTIONS.items():
        yield name, "".join(f"{format_seconds(report[key][column]):>11}" for column in _COLUMNS)


def _engines(report: Report) -> Iterator[tuple[str, str]]:
    kv, engines = report["kv_cache"], report["engines"]
    yield "engines", f"{engines['num_engines']:,}, busy {report['busy_fraction']:.1%} of the time"
    yield (
        "  each",
        f"{engines['fewest_requests']:,} to {engines['most_requests']:,} requests; "
        f"{kv['mean_running_reqs']:.1f} running on average, {kv['peak_running_reqs']:,} at most",
    )
    yield "steps", f"{report['num_steps']:,}; {report['num_preemptions']:,} preemptions"


def _kv_cache(report: Report) -> Iterator[tuple[str, str]]:
    kv = report["kv_cache"]
    yield "prefix cache", f"{report['prefix_cache_hit_rate']:.1%} of the tokens looked up were there"
    yield (
        "KV cache",
        f"{kv['num_blocks']:,} blocks, {kv['mean_utilization']:.1%} in use on average, "
        f"{kv['peak_utilization']:.1%} at most",
    )
    yield "  waste", f"{kv['waste']:.2%} of the slots in use held no token"
    yield (
        "  contiguous",
        f"{kv['contiguous']['waste']:.2%} with max_model_len slots set aside for each request, "
        f"and room for {kv['contiguous']['max_running_reqs']:,}",
    )


def _costs(report: Report) -> Iterator[tuple[str, str]]:
    cost = report["cost_model"]
    terms = {"step": "", "token": "/token", "request": "/request", "context_token": "/key read"}
    yield (
        "step costs",
        " + ".join(f"{format_seconds(cost[f'seconds_per_{term}'])}{unit}" for term, unit in terms.items())
        + f"; mean error {cost['mean_relative_error']:.1%}",
    )
    yield "  measured", cost["source"]


def format_seconds(value: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:,.{max(0, 2 - len(str(int(value / scale))) + 1)}f} {unit}"
    return f"{value / 1e-9:.3g} ns" if value > 0 else "0"

"""``quire bench serve``."""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from quire.bench.arguments import fields_of
from quire.bench.arrivals import Arrivals, recorded_offsets
from quire.bench.client import warm_up
from quire.bench.clients import Clients
from quire.bench.drive import Driven, Due, drive, run_loop
from quire.bench.measures import details, measure
from quire.bench.outcomes import BenchRequest, Outcome
from quire.bench.progress import Progress
from quire.bench.report import finish
from quire.bench.settings import (
    goodput_limits,
    is_json,
    metric_list,
    percentile_list,
    target_config,
    workload_of,
)
from quire.bench.targets import TargetConfig
from quire.bench.usage import Usage, process_usage
from quire.bench.workloads import make_workload
from quire.model_directory import DEMO_MODEL

BUSY_SHARE = 0.8  # of a core: a client that is busier may be what is measured

_Run = tuple[float, list[Driven], bool]


@dataclass(frozen=True)
class _Plan:
    """What is sent, when, and how it is measured."""

    requests: Sequence[BenchRequest]
    offsets: Sequence[float]
    warmups: Sequence[BenchRequest]
    config: TargetConfig
    args: argparse.Namespace


def run_serve_bench(args: argparse.Namespace) -> int:
    """Returns 0, 1 if every request failed, and 130 after Ctrl-C, with what there was until then."""
    arrivals: Arrivals = fields_of(args, Arrivals)
    _check(args)
    percentiles = percentile_list(args.metric_percentiles)
    metrics = metric_list(args.percentile_metrics)
    goodput = goodput_limits(args.goodput)
    config = target_config(args)
    if args.target != "engine" and args.server_pid is not None:
        process_usage(args.server_pid)  # whether there is one
    options, tokens = workload_of(args, text=config.endpoint.endswith("/chat/completions"))
    made = make_workload(options, tokens, args.num_warmups)
    requests, warmups = made[: len(made) - args.num_warmups], made[len(made) - args.num_warmups :]
    if options.dataset_name == "trace":
        offsets = recorded_offsets([request.arrival or 0.0 for request in requests], args.trace_speed)
    else:
        offsets = arrivals.offsets(len(requests), Random(options.seed + 1))
    plan = _Plan(requests, offsets, warmups, config, args)
    usage: list[Usage] = []

    def look() -> None:
        if args.server_pid is not None:
            with suppress(ValueError):  # it may have died meanwhile
                usage.append(process_usage(args.server_pid))

    with Progress(len(requests), enabled=not (args.disable_tqdm or args.json)) as progress:
        run = _run_engine if args.target == "engine" else _run_clients
        start, driven, interrupted = run(plan, progress.update, look)
    outcomes = [outcome for each in driven for outcome in each.outcomes]
    duration = max((each.end for each in driven), default=start) - start
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat" if config.endpoint.endswith("/chat/completions") else args.target,
        "label": args.label,
        "model_id": config.model,
        "tokenizer_id": tokens.directory,
        "dataset_name": options.dataset_name,
        "seed": options.seed,
        "num_prompts": len(requests),
        "request_rate": arrivals.request_rate if math.isfinite(arrivals.request_rate) else "inf",
        "burstiness": arrivals.burstiness if math.isfinite(arrivals.burstiness) else "inf",
        "max_concurrency": args.max_concurrency,
        **measure(outcomes, duration, percentile_metrics=metrics, percentiles=percentiles, goodput=goodput),
        **_client_costs(args, driven, duration, outcomes),
        **_server_costs(usage, outcomes),
    }
    if arrivals.ramp_up_strategy is not None:
        for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"):
            result[name] = getattr(arrivals, name)
    if options.dataset_name == "json":
        answers = [outcome.text for outcome in outcomes if not outcome.error]
        result["json_valid"] = sum(is_json(text) for text in answers)
    if interrupted:
        result["interrupted"] = True
    result["warnings"] = _warnings(result, interrupted)
    if args.save_detailed:
        result |= details(outcomes, len(requests))
    finish("serve", result, args)
    if interrupted:
        return 130
    return 0 if result["completed"] else 1


def _check(args: argparse.Namespace) -> None:
    for name in ("num_clients", "max_concurrency"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if args.num_warmups < 0:
        raise ValueError(f"num_warmups must be at least 0, got {args.num_warmups}")
    for name in ("trace_speed", "request_timeout"):
        if not 0 < getattr(args, name) < math.inf:
            raise ValueError(f"{name} must be above 0 and finite, got {getattr(args, name)}")
    if args.target == "engine":
        if args.num_clients != 1:
            raise ValueError("num_clients must be 1 with --target engine: it is in this process")
        for name in ("base_url", "host", "port", "server_pid"):
            if getattr(args, name) is not None:
                raise ValueError(f"{name} is of a server; leave it out with --target engine")


def _run_clients(plan: _Plan, on_progress: Callable[[int, int, int], None], look: Callable[[], None]) -> _Run:
    clients = Clients(
        plan.config,
        plan.requests,
        plan.offsets,
        num_clients=plan.args.num_clients,
        max_concurrency=plan.args.max_concurrency,
        warmups=plan.warmups,
    )
    try:
        return clients.run(on_progress, look)
    finally:
        clients.close()


def _run_engine(plan: _Plan, on_progress: Callable[[int, int, int], None], look: Callable[[], None]) -> _Run:
    from quire.async_llm import AsyncLLM
    from quire.bench.engine_target import EngineTarget
    from quire.config import make_engine_config

    target = EngineTarget(AsyncLLM.from_config(make_engine_config(plan.args, model=DEMO_MODEL)), plan.config)
    done = [0, 0, 0]

    def on_done(outcome: Outcome) -> None:
        done[0] += 1
        done[1] += bool(outcome.error)
        done[2] += outcome.output_tokens
        on_progress(*done)

    async def main() -> _Run:
        stop = asyncio.Event()
        try:
            await warm_up(target, plan.warmups, plan.args.max_concurrency)
            due = [
                Due(i, request.prompt_len, target.prepare(request), offset)
                for i, (request, offset) in enumerate(zip(plan.requests, plan.offsets, strict=True))
            ]
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
            start = time.monotonic()
            driven = await drive(target, due, start, plan.args.max_concurrency, on_done, stop)
            return start, [driven], driven.was_stopped
        finally:
            await target.close()

    run: _Run = run_loop(main())
    return run


def _client_costs(
    args: argparse.Namespace, driven: Sequence[Driven], duration: float, outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """What measuring took: of the processes of clients, or of the event loop beside an engine."""
    num_tokens = sum(outcome.output_tokens for outcome in outcomes)
    per_second = 1 / duration if duration > 0 else 0.0

    def costs(name: str, seconds: Sequence[float], busiest: Sequence[float]) -> dict[str, Any]:
        return {
            f"{name}_cpu_seconds": sum(seconds),
            f"{name}_cpu_us_per_output_token": sum(seconds) / num_tokens * 1e6 if num_tokens else None,
            f"{name}_busy_share": [each * per_second for each in seconds],
            f"{name}_busiest_second_share": list(busiest),
        }

    process = [each.process_seconds for each in driven]
    busiest = [each.busiest_process for each in driven]
    if args.target != "engine":
        return {"num_clients": len(driven), **costs("client", process, busiest)}
    loop = [each.loop_seconds for each in driven]
    return {
        **costs("process", process, busiest),
        **costs("event_loop", loop, [each.busiest_loop for each in driven]),
    }


def _server_costs(usage: Sequence[Usage], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    if len(usage) != 2:
        return {}
    before, after = usage
    num_tokens = sum(outcome.output_tokens for outcome in outcomes)
    seconds = after.cpu_seconds - before.cpu_seconds
    main_thread = after.main_thread_seconds - before.main_thread_seconds
    return {
        "server_cpu_seconds": seconds,
        "server_cpu_cores": seconds / (after.time - before.time),
        "server_cpu_us_per_output_token": seconds / num_tokens * 1e6 if num_tokens else None,
        "server_main_thread_busy_share": main_thread / (after.time - before.time),
        "server_main_thread_cpu_us_per_output_token": main_thread / num_tokens * 1e6 if num_tokens else None,
        "server_memory_bytes": after.memory_bytes,
        "server_peak_memory_bytes": after.peak_memory_bytes,
    }


def _warnings(result: Mapping[str, Any], interrupted: bool) -> list[str]:
    made = []
    shares = [*result.get("client_busiest_second_share", ()), *result.get("client_busy_share", ())]
    if (share := max(shares, default=0.0)) > BUSY_SHARE:
        made.append(
            f"a process of clients was busy for {share:.0%} of a second, so times may be its own; "
            "use more of them (--num-clients)"
        )
    if interrupted:
        ended = result["completed"] + result["failed"]
        made.append(f"stopped by Ctrl-C after {ended} of {result['num_prompts']} requests")
    return made

"""``quire bench throughput`` and ``quire bench latency``: an engine in this process, without arrivals."""

from __future__ import annotations

import argparse
import json
import time
from random import Random
from typing import Any

from quire._core import RequestOutputKind, SamplingParams, StructuredOutputsParams
from quire.bench.arguments import model_of, tokenizer_directory_of
from quire.bench.measures import distribution, percentile
from quire.bench.outcomes import BenchRequest
from quire.bench.report import finish
from quire.bench.settings import is_json, sampling_fields, workload_of
from quire.bench.tokens import TokenSource
from quire.bench.workloads import make_workload
from quire.config import make_engine_config
from quire.llm import LLM
from quire.model_directory import DEMO_MODEL
from quire.prompts import Prompt

_PERCENTILES = (10, 25, 50, 75, 90, 99)


def run_throughput(args: argparse.Namespace) -> int:
    """Raises ValueError for options that do not fit, RuntimeError if a request fails."""
    if args.num_warmups < 0:
        raise ValueError(f"num_warmups must be at least 0, got {args.num_warmups}")
    options, tokens = workload_of(args)
    made = make_workload(options, tokens, args.num_warmups)
    requests, warmups = made[: len(made) - args.num_warmups], made[len(made) - args.num_warmups :]
    params = [_sampling_params(request, args) for request in requests]
    llm = LLM.from_config(make_engine_config(args, model=DEMO_MODEL))
    if warmups:
        llm.generate(
            _prompts(warmups), [_sampling_params(request, args) for request in warmups], use_tqdm=False
        )
    cpu, begin = time.process_time(), time.perf_counter()
    outputs = llm.generate(_prompts(requests), params, use_tqdm=not (args.disable_tqdm or args.json))
    seconds = time.perf_counter() - begin
    cpu = time.process_time() - cpu
    completions = [output.outputs[0] for output in outputs]
    for completion in completions:
        if completion.error:
            raise RuntimeError(f"a request failed: {completion.error}")
    num_input = sum(output.usage.num_prompt_tokens for output in outputs)
    num_output = sum(output.usage.num_generation_tokens for output in outputs)
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "label": args.label,
        "model_id": model_of(args),
        "dataset_name": options.dataset_name,
        "seed": options.seed,
        "elapsed_time": seconds,
        "num_requests": len(requests),
        "total_num_tokens": num_input + num_output,
        "total_output_tokens": num_output,
        "requests_per_second": len(requests) / seconds,
        "tokens_per_second": (num_input + num_output) / seconds,
        "output_tokens_per_second": num_output / seconds,
        "cpu_us_per_output_token": cpu / num_output * 1e6,
    }
    if options.dataset_name == "json":
        result["json_valid"] = sum(is_json(completion.text) for completion in completions)
    finish("throughput", result, args)
    return 0


def run_latency(args: argparse.Namespace) -> int:
    """Raises ValueError for options that do not fit."""
    for name in ("input_len", "output_len", "batch_size", "num_iters"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(args, name)}")
    if args.num_iters_warmup < 0:
        raise ValueError(f"num_iters_warmup must be at least 0, got {args.num_iters_warmup}")
    config = make_engine_config(args, model=DEMO_MODEL)
    tokens = TokenSource(tokenizer_directory_of(args))
    llm = LLM.from_config(config)
    rng = Random(args.seed)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=args.output_len, detokenize=False)

    def seconds() -> float:
        # New prompts each time: a prefix that is cached already would leave nothing to compute.
        prompts: list[Prompt] = [tokens.draw_ids(args.input_len, rng) for _ in range(args.batch_size)]
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin

    for _ in range(args.num_iters_warmup):
        seconds()
    latencies = [seconds() for _ in range(args.num_iters)]
    ordered = sorted(latencies)
    spread = distribution(latencies, ())
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "label": args.label,
        "model_id": model_of(args),
        "input_len": args.input_len,
        "output_len": args.output_len,
        "batch_size": args.batch_size,
        "avg_latency": spread["mean"],
        "std_latency": spread["std"],
        "latencies": latencies,
        "percentiles": {str(p): percentile(ordered, p) for p in _PERCENTILES},
    }
    finish("latency", result, args)
    return 0


def _prompts(requests: list[BenchRequest]) -> list[Prompt]:
    return [request.prompt for request in requests]


def _sampling_params(request: BenchRequest, args: argparse.Namespace) -> SamplingParams:
    fields = {"max_tokens": request.output_len, **sampling_fields(args), **args.extra_body}
    if request.schema is not None:
        fields["structured_outputs"] = StructuredOutputsParams(json=json.dumps(request.schema))
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **fields)

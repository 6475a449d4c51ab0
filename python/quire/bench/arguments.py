"""The options of ``quire bench``. Names and meanings are those of vLLM's benchmarks where it has them."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any, get_type_hints

from quire.argument_parser import FlexibleArgumentParser
from quire.bench.arrivals import Arrivals
from quire.bench.measures import METRICS
from quire.bench.targets import TARGETS
from quire.bench.workloads import DATASETS, WorkloadOptions
from quire.model_directory import DEMO_MODEL

_WORKLOAD_HELP = {
    "dataset_name": f"{', '.join(DATASETS)}",
    "dataset_path": "ShareGPT's JSON, JSON schemas, or a trace; sharegpt and json do without",
    "num_prompts": "how many requests",
    "seed": "of lengths, tokens and arrivals: the same gives the same requests at the same times",
    "prompt_form": "ids or text: how prompts are sent; conversations are text",
    "random_input_len": "tokens of a prompt",
    "random_output_len": "tokens of an answer",
    "random_range_ratio": "R draws both lengths evenly from (1 - R) to (1 + R) times that",
    "random_prefix_len": "tokens that all prompts begin with, besides",
    "sharegpt_output_len": "tokens of an answer, instead of the recorded or drawn ones",
    "prefix_repetition_prefix_len": "tokens that prompts share",
    "prefix_repetition_suffix_len": "tokens of a prompt's own",
    "prefix_repetition_num_prefixes": "different prefixes",
    "prefix_repetition_output_len": "tokens of an answer",
    "json_output_len": "tokens of an answer, at most",
}
_ARRIVALS_HELP = {
    "request_rate": "requests a second; inf sends all at once",
    "burstiness": "1 is a Poisson process, less is burstier, more is more even, inf is even",
    "ramp_up_strategy": "linear or exponential: the rate grows from the first request to the last",
    "ramp_up_start_rps": "the rate at the first request",
    "ramp_up_end_rps": "the rate at the last",
}


def add_commands(parser: FlexibleArgumentParser) -> None:
    """Adds serve, throughput, latency and startup, and --compare."""
    parser.description = "Measures how fast a server, an engine or a start is, or compares two results."
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A.json", "B.json"),
        help="print the ratios of two saved results, B / A",
    )
    parser.add_argument("--html", metavar="OUT", help="with --compare: write a page with both, too")
    commands = parser.add_subparsers(dest="bench", metavar="command")
    _add_serve(commands)
    _add_throughput(commands)
    _add_latency(commands)
    _add_startup(commands)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="send requests to a server, or an engine, and measure the answers",
        description="Sends requests to a server, or to an engine in this process, and measures the answers.",
    )
    target = serve.add_argument_group("the target")
    target.add_argument(
        "--target",
        choices=TARGETS,
        default="openai",
        help="openai: a server of OpenAI's API (the default); triton: one of Triton's, by gRPC; engine: an "
        "engine in this process, of the flags below",
    )
    target.add_argument(
        "--base-url",
        metavar="URL",
        help="of openai (http://127.0.0.1:8000), or host:port of triton's gRPC (127.0.0.1:8001)",
    )
    target.add_argument("--host", metavar="HOST", help="instead of --base-url, with --port")
    target.add_argument("--port", type=int, metavar="N", help="instead of --base-url")
    target.add_argument(
        "--endpoint",
        default="/v1/completions",
        metavar="PATH",
        help="/v1/completions, or /v1/chat/completions (openai)",
    )
    target.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="what requests call the model; by default the first that /v1/models has (triton: quire)",
    )
    target.add_argument("--api-key", metavar="KEY", help="by default OPENAI_API_KEY of the environment")
    target.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="of each request; may be repeated"
    )
    target.add_argument(
        "--server-pid",
        type=int,
        metavar="PID",
        help="measure what this process and its children take of processors and memory",
    )
    target.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=0.0,
        metavar="S",
        help="wait this long for the server to be there (0)",
    )
    _add_workload(serve)
    load = serve.add_argument_group("the load")
    _add_fields(load, Arrivals, _ARRIVALS_HELP)
    load.add_argument("--max-concurrency", type=int, metavar="N", help="requests under way at once, at most")
    load.add_argument(
        "--trace-speed", type=float, default=1.0, metavar="X", help="times as fast as recorded (1)"
    )
    load.add_argument(
        "--num-warmups", type=int, default=0, metavar="N", help="requests before, not measured (0)"
    )
    load.add_argument(
        "--num-clients", type=int, default=1, metavar="N", help="processes that send the requests (1)"
    )
    load.add_argument(
        "--request-timeout", type=float, default=3600.0, metavar="S", help="longer answers have failed (3600)"
    )
    _add_sampling(serve)
    measures = serve.add_argument_group("what is measured")
    measures.add_argument(
        "--percentile-metrics",
        default=",".join(METRICS),
        metavar="NAMES",
        help=f"which are told: {','.join(METRICS)} (all)",
    )
    measures.add_argument(
        "--metric-percentiles", default="99", metavar="LIST", help="percentiles, as in 50,90,99 (99)"
    )
    measures.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the requests within these times, as in ttft:200 tpot:50 e2el:5000",
    )
    _add_result(serve)
    measures.add_argument(
        "--save-detailed", action="store_true", help="lengths, times, text and errors of each request, too"
    )
    serve.defer_engine_config(exclude=["seed", "tokenizer"])


def _add_throughput(commands: Any) -> None:
    throughput = commands.add_parser(
        "throughput",
        help="measure LLM.generate on many requests at once",
        description="Measures LLM.generate on many requests at once: no server, no times of arrival.",
    )
    _add_workload(throughput)
    _add_sampling(throughput)
    throughput.add_argument(
        "--num-warmups", type=int, default=0, metavar="N", help="requests before, not measured (0)"
    )
    _add_result(throughput)
    throughput.defer_engine_config(exclude=["seed", "tokenizer"])


def _add_latency(commands: Any) -> None:
    latency = commands.add_parser(
        "latency",
        help="measure one batch, again and again",
        description="Measures how long one batch of requests takes, again and again.",
    )
    shape = latency.add_argument_group("the batch")
    for name, default, text in (
        ("input-len", 32, "tokens of each prompt"),
        ("output-len", 128, "tokens of each answer"),
        ("batch-size", 8, "requests at once"),
        ("num-iters", 30, "measured rounds"),
        ("num-iters-warmup", 10, "rounds before, not measured"),
        ("seed", 0, "of the prompts"),
    ):
        shape.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} ({default})")
    _add_result(latency)
    latency.defer_engine_config(exclude=["seed"])


def _add_startup(commands: Any) -> None:
    startup = commands.add_parser(
        "startup",
        help="measure new processes until their first token",
        description="Measures new processes until quire is imported, the engine is ready, a token is there.",
    )
    startup.add_argument(
        "--num-iters", type=int, default=5, metavar="N", help="processes, one after another (5)"
    )
    startup.add_argument("--input-len", type=int, default=32, metavar="N", help="tokens of the prompt (32)")
    _add_result(startup)
    startup.defer_engine_config(exclude=["seed"])


def _add_workload(parser: Any) -> None:
    group = parser.add_argument_group("the requests")
    _add_fields(group, WorkloadOptions, _WORKLOAD_HELP)
    group.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="whose tokens prompts are made of; by default the directory --model",
    )


def _add_sampling(parser: Any) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (0)")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="answers have just as many tokens as was asked for; on but for --dataset-name json",
    )
    group.add_argument(
        "--extra-body",
        type=_json_object,
        default={},
        metavar="JSON",
        help='further fields of each request, as in {"top_p": 0.9}',
    )


def _add_result(parser: Any) -> None:
    group = parser.add_argument_group("the result")
    group.add_argument("--save-result", action="store_true", help="write it as JSON")
    group.add_argument("--result-dir", default=".", metavar="DIR", help="where to (.)")
    group.add_argument("--result-filename", metavar="NAME", help="by default what was measured, and when")
    group.add_argument("--label", metavar="TEXT", help="a name of this run, in the result")
    group.add_argument("--html", metavar="OUT", help="write a page with plots")
    group.add_argument("--json", action="store_true", help="print the JSON instead of a table")
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress")


def _add_fields(group: Any, options: type, help_texts: dict[str, str]) -> None:
    """A flag for each field of a dataclass."""
    types = get_type_hints(options)
    for field in dataclasses.fields(options):
        kind = str(types[field.name])
        read: Any = int if "int" in kind else float if "float" in kind else str
        default = "" if field.default is None else f" ({field.default})"
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            type=read,
            default=field.default,
            metavar={int: "N", float: "X", str: "TEXT"}[read],
            help=help_texts[field.name] + default,
        )


def fields_of(args: argparse.Namespace, options: Any) -> Any:
    """The dataclass of the flags that ``_add_fields`` added."""
    return options(**{field.name: getattr(args, field.name) for field in dataclasses.fields(options)})


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text:.60}")
    return value


def model_of(args: argparse.Namespace) -> str:
    """The model's directory or name, by flag, environment or file; else the bundled one."""
    from quire.config import given_fields

    given = given_fields(args).get("model")
    return DEMO_MODEL if given is None else str(given.value)


def tokenizer_directory_of(args: argparse.Namespace) -> str:
    """The directory whose tokens prompts are made of, unless ``--tokenizer`` is another: the model's own.

    Raises ValueError if there is none.
    """
    from quire.config import given_fields
    from quire.model_directory import locate_model

    given = {name: one.value for name, one in given_fields(args).items()}
    directory, located = locate_model(given.pop("model", DEMO_MODEL), given)
    return str(located.get("tokenizer") or directory)

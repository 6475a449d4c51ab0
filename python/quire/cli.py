"""The ``quire`` command."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quire.argument_parser import FlexibleArgumentParser
from quire.bench.command import add_bench_arguments, run_bench
from quire.memory_plan import add_plan_arguments, run_plan
from quire.model_directory import DEMO_MODEL
from quire.serve.command import add_serve_arguments, run_serve
from quire.simulate import add_simulate_arguments, run_simulate
from quire.torch_export.command import add_export_arguments, run_export
from quire.triton.command import add_triton_arguments, run_triton
from quire.values import path_value, text_value

if TYPE_CHECKING:
    from quire._core import EngineConfig, ReplayReport, RequestOutput, SamplingParams
    from quire.llm import LLM
    from quire.lora import LoRARequest
    from quire.prompts import Message


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 0, 1 after an error, 130 after Ctrl-C."""
    try:
        return _run_command(argv)
    except (ValueError, MemoryError, RuntimeError, TypeError) as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:  # a full disk, say
        print(f"quire: {error}", file=sys.stderr)
        _drop_output()
        return 1


def _run_command(argv: Sequence[str] | None) -> int:
    try:
        args = _parser().parse_args(argv)
        return int(args.command(args))
    finally:
        if sys.stdout is not None:  # None: it was closed before we began
            sys.stdout.flush()  # what cannot be written is heard of here


def _drop_output() -> None:
    """Leaves nothing that Python would fail to write, and tell of, at its end."""
    if sys.stdout is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _parser() -> argparse.ArgumentParser:
    parser = FlexibleArgumentParser(prog="quire", description="Runs large language models.")
    parser.add_argument("--version", action=_PrintVersion, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="command")

    common = FlexibleArgumentParser(add_help=False)
    common.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    common.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    common.add_argument("--top-p", type=float, default=1.0)
    common.add_argument("--top-k", type=int, default=0)
    common.add_argument("--seed", type=int, default=None, help="of the sampling")
    common.add_argument("--lora", metavar="DIR", default=None, help="an adapter that computes with the model")

    run = commands.add_parser("run", parents=[common], help="answer one prompt, as it is generated")
    run.add_argument("prompt", nargs="?", help="the prompt; '-' reads it from standard input")
    run.add_argument("--raw", action="store_true", help="continue the text, without chat template")
    run.add_argument("--stats", action="store_true", help="print speed to standard error")
    run.set_defaults(command=_run)
    run.defer_engine_config(exclude=["seed"])

    chat = commands.add_parser("chat", parents=[common], help="hold a conversation")
    chat.add_argument("--system", default=None, help="the system message")
    chat.set_defaults(command=_chat)
    chat.defer_engine_config(exclude=["seed"])

    serve = commands.add_parser("serve", help="serve a model by OpenAI's HTTP API")
    add_serve_arguments(serve)
    serve.set_defaults(command=run_serve)

    export = commands.add_parser("export", help="write a model of torch's, or packed weights")
    add_export_arguments(export)
    export.set_defaults(command=run_export)

    plan = commands.add_parser("plan", help="say what memory a model would take, and whether it fits")
    add_plan_arguments(plan)
    plan.set_defaults(command=run_plan)

    replay = commands.add_parser(
        "replay", help="schedule a flight recorder's file anew and compare, step by step"
    )
    replay.add_argument("file", help="what LLM.dump_flight_recorder wrote")
    replay.set_defaults(command=_replay)

    trace = commands.add_parser("trace", help="write a flight recorder's file as a timeline for Perfetto")
    trace.add_argument("file", help="what LLM.dump_flight_recorder wrote")
    trace.add_argument("--output", default=None, help="where to; default: the file with .json appended")
    trace.set_defaults(command=_trace)

    collect = commands.add_parser("collect-env", help="print what a report of a problem should say")
    collect.add_argument("--json", action="store_true", help="as a JSON object")
    collect.set_defaults(command=_collect_env)

    simulate = commands.add_parser("simulate", help="predict how a fleet would serve a workload")
    add_simulate_arguments(simulate)
    simulate.set_defaults(command=run_simulate)

    bench = commands.add_parser("bench", help="measure a server, an engine or a start")
    add_bench_arguments(bench)
    bench.set_defaults(command=run_bench)

    triton = commands.add_parser("triton", help="serve a model with Triton Inference Server")
    add_triton_arguments(triton)
    triton.set_defaults(command=run_triton)
    return parser


class _PrintVersion(argparse.Action):
    """Looks the version up only when it is asked for: reading package metadata takes milliseconds."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from quire import __version__

        print(__version__)
        parser.exit()


def _engine_config(args: argparse.Namespace) -> EngineConfig | None:
    """The engine's configuration; None when it was to be printed."""
    from quire.config import dump_config, make_engine_config

    defaults: dict[str, Any] = {} if args.lora is None else {"enable_lora": True}
    config = make_engine_config(args, model=DEMO_MODEL, **defaults)
    if args.dump_config:
        print(dump_config(config), end="")
        return None
    return config


def _load(config: EngineConfig) -> LLM:
    from quire.llm import LLM

    return LLM.from_config(config)


def _sampling_params(args: argparse.Namespace) -> SamplingParams:
    from quire._core import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        max_tokens=args.max_tokens,
    )


def _lora_request(args: argparse.Namespace) -> LoRARequest | None:
    from quire.lora import LoRARequest

    return None if args.lora is None else LoRARequest("lora", lora_path=args.lora)


def _print_stream(
    llm: LLM, prompt: str | list[Message], params: SamplingParams, adapter: LoRARequest | None
) -> tuple[str, int]:
    """Prints an answer as it comes. Returns it, and how many tokens it has."""
    text = ""
    num_tokens = 0
    output: RequestOutput
    for output in llm.stream(prompt, params, lora_request=adapter):
        for completion in output.outputs:
            text += completion.text
            num_tokens += len(completion.token_ids)
            print(completion.text, end="", flush=True)
            if completion.error:
                raise RuntimeError(completion.error)
    print(flush=True)
    return text, num_tokens


def _read_prompt() -> str:
    if sys.stdin is None:
        raise ValueError("standard input is closed; give the prompt as an argument")
    return text_value("prompt", sys.stdin.read())


def _run(args: argparse.Namespace) -> int:
    # What is wrong with the request is said before a model is downloaded.
    params = _sampling_params(args)
    adapter = _lora_request(args)
    if not args.dump_config:
        if args.prompt is None:
            raise ValueError(
                "prompt is missing; give it as an argument, or '-' to read it from standard input"
            )
        text_value("prompt", args.prompt)
    config = _engine_config(args)
    if config is None:
        return 0
    text = _read_prompt() if args.prompt == "-" else args.prompt
    start = time.perf_counter()
    llm = _load(config)
    loaded = time.perf_counter()
    prompt: str | list[Message] = text if args.raw else [{"role": "user", "content": text}]
    _, num_tokens = _print_stream(llm, prompt, params, adapter)
    if args.stats:
        seconds = time.perf_counter() - loaded
        print(
            f"{num_tokens} tokens in {seconds:.2f} s ({num_tokens / seconds:.1f} tokens/s), "
            f"loaded in {loaded - start:.2f} s, {llm.model.dtype} on {llm.model.backend}",
            file=sys.stderr,
        )
    return 0


def _chat(args: argparse.Namespace) -> int:
    params = _sampling_params(args)
    adapter = _lora_request(args)
    config = _engine_config(args)
    if config is None:
        return 0
    llm = _load(config)
    system: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(system)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        print("/reset forgets the conversation, /exit or Ctrl-D ends it.", file=sys.stderr)
    while True:
        try:
            line = input("> " if interactive else "") if sys.stdin is not None else "/exit"
        except EOFError:
            return 0
        if line == "/exit":
            return 0
        if line == "/reset":
            messages = list(system)
            continue
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        try:
            text_value("prompt", line)
            text, _ = _print_stream(llm, messages, params, adapter)
        except KeyboardInterrupt:
            # Ctrl-C ends the answer, not the conversation.
            print()
            messages.pop()
            continue
        except ValueError as error:
            # Most often a conversation that has become too long.
            print(f"quire: {error} (/reset forgets the conversation)", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": text})


def _collect_env(args: argparse.Namespace) -> int:
    from quire.environment import collect_env, format_env

    env = collect_env()
    if args.json:
        import json

        print(json.dumps(env, indent=2))
    else:
        print(format_env(env), end="")
    return 0


def _replay(args: argparse.Namespace) -> int:
    from quire._core import replay_recording

    return _print_replay(replay_recording(path_value("file", args.file)))


def _trace(args: argparse.Namespace) -> int:
    from quire._core import write_perfetto_trace

    output = path_value("output", args.output or args.file + ".json")
    status = _print_replay(write_perfetto_trace(path_value("file", args.file), output))
    print(f"wrote {output}; open it in https://ui.perfetto.dev")
    return status


def _print_replay(report: ReplayReport) -> int:
    """Says how a replay went. Returns 1 if a step was scheduled otherwise than recorded."""
    print(f"{report.model}: {report.seconds:.2f} s, {report.num_requests} requests")
    print(
        f"{report.num_identical} of {report.num_steps} steps scheduled as recorded "
        f"({report.num_tokens} tokens, {report.num_preemptions} preemptions)"
    )
    if report.divergence:
        print(f"the first that was not: {report.divergence}", file=sys.stderr)
    return 1 if report.divergence else 0


if __name__ == "__main__":
    sys.exit(main())

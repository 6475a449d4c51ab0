"""The ``quire`` command."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.model_directory import DEMO_MODEL
from quire.simulate import add_simulate_arguments, run_simulate
from quire.triton.command import add_triton_arguments, run_triton
from quire.values import path_value, text_value

if TYPE_CHECKING:
    from quire._core import ReplayReport, RequestOutput, SamplingParams
    from quire.llm import LLM
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
    parser = argparse.ArgumentParser(prog="quire", description="Runs large language models.")
    parser.add_argument("--version", action=_PrintVersion, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="command")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", default=DEMO_MODEL, help="a Hugging Face directory")
    common.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    common.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    common.add_argument(
        "--load-format", default="auto", help="auto, safetensors, or dummy for random weights"
    )
    common.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="part of the device's memory to take"
    )
    common.add_argument("--max-model-len", type=int, default=0, help="longest sequence")
    common.add_argument("--num-threads", type=int, default=0, help="CPU threads that compute")
    common.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    common.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    common.add_argument("--top-p", type=float, default=1.0)
    common.add_argument("--top-k", type=int, default=0)
    common.add_argument("--seed", type=int, default=None)

    run = commands.add_parser("run", parents=[common], help="answer one prompt, as it is generated")
    run.add_argument("prompt", help="the prompt; '-' reads it from standard input")
    run.add_argument("--raw", action="store_true", help="continue the text, without chat template")
    run.add_argument("--stats", action="store_true", help="print speed to standard error")
    run.set_defaults(command=_run)

    chat = commands.add_parser("chat", parents=[common], help="hold a conversation")
    chat.add_argument("--system", default=None, help="the system message")
    chat.set_defaults(command=_chat)

    replay = commands.add_parser(
        "replay", help="schedule a flight recorder's file anew and compare, step by step"
    )
    replay.add_argument("file", help="what LLM.dump_flight_recorder wrote")
    replay.set_defaults(command=_replay)

    trace = commands.add_parser("trace", help="write a flight recorder's file as a timeline for Perfetto")
    trace.add_argument("file", help="what LLM.dump_flight_recorder wrote")
    trace.add_argument("--output", default=None, help="where to; default: the file with .json appended")
    trace.set_defaults(command=_trace)

    simulate = commands.add_parser("simulate", help="predict how a fleet would serve a workload")
    add_simulate_arguments(simulate)
    simulate.set_defaults(command=run_simulate)

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


def _load(args: argparse.Namespace) -> LLM:
    from quire.llm import LLM

    return LLM(
        args.model,
        dtype=args.dtype,
        device=args.device,
        load_format=args.load_format,
        gpu_memory_utilization=args.gpu_memory_utilization,
        max_model_len=args.max_model_len,
        num_threads=args.num_threads,
    )


def _sampling_params(args: argparse.Namespace) -> SamplingParams:
    from quire._core import SamplingParams

    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        max_tokens=args.max_tokens,
    )


def _print_stream(llm: LLM, prompt: str | list[Message], params: SamplingParams) -> tuple[str, int]:
    """Prints an answer as it comes. Returns it, and how many tokens it has."""
    text = ""
    num_tokens = 0
    output: RequestOutput
    for output in llm.stream(prompt, params):
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
    text = _read_prompt() if args.prompt == "-" else text_value("prompt", args.prompt)
    params = _sampling_params(args)
    start = time.perf_counter()
    llm = _load(args)
    loaded = time.perf_counter()
    prompt: str | list[Message] = text if args.raw else [{"role": "user", "content": text}]
    _, num_tokens = _print_stream(llm, prompt, params)
    if args.stats:
        seconds = time.perf_counter() - loaded
        print(
            f"{num_tokens} tokens in {seconds:.2f} s ({num_tokens / seconds:.1f} tokens/s), "
            f"loaded in {loaded - start:.2f} s, {llm.model.dtype} on {llm.model.backend}",
            file=sys.stderr,
        )
    return 0


def _chat(args: argparse.Namespace) -> int:
    llm = _load(args)
    params = _sampling_params(args)
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
            text, _ = _print_stream(llm, messages, params)
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

"""Figures of `quire serve` and AsyncLLM, each by one command:

    python benchmarks/serving/figures.py FIGURE

    streaming     tokens/s of 16 streams by HTTP over those in process, 0.67 B shape
    server-cost   processor time that serving adds to a token, demo model
    half-load     TTFT at half of the capacity, demo model
    peer          beside llama.cpp's server, 0.67 B shape
    idle-start    an idle server's processor time, and its start, demo model
    event-loop    what 1,000 streams of AsyncLLM take of the event loop's thread
    device        tokens/s of 256 streams by HTTP over those in process, 8 B shape on a CUDA device

Prints a line for each figure and appends it, with what it was made of, to WORK_DIR/serving-figures.jsonl
(--work-dir; models are made there, too). What is compared takes turns, because a machine is now quicker,
now slower; figures are medians of the rounds. Needs `pip install 'quire[serve,bench]'`; the 0.67 B shape
torch and transformers; the peer gguf, and a Python (--peer-python) with `llama-cpp-python[server]==0.3.36`,
which pip builds for this machine.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queueing import ideal_ttft
from quire import collect_env
from quire.bench.measures import percentile
from quire.bench.usage import process_usage
from quire.model_directory import DEMO_MODEL
from servers import Server, bench, llama_cpp_server, quire_server
from shapes import gguf_067b, shape_067b, shape_8b, tiny_shape

Rounds = list[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A number, what is wanted of it, and what it was made of."""

    name: str
    value: float
    wanted: str  # "" where nothing is
    is_met: bool | None
    rounds: Any


def at_least(name: str, value: float, bound: float, rounds: Any) -> Figure:
    return Figure(name, value, f">= {bound:g}", value >= bound, rounds)


def below(name: str, value: float, bound: float, rounds: Any) -> Figure:
    return Figure(name, value, f"< {bound:g}", value < bound, rounds)


def figure(name: str, value: float, rounds: Any = None) -> Figure:
    return Figure(name, value, "", None, rounds)


def of_server(server: Server, *flags: str) -> dict[str, Any]:
    return bench("serve", "--base-url", server.url, "--server-pid", str(server.pid), *flags)


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """Without what takes much room."""
    return {key: value for key, value in result.items() if key not in ("cdf", "timeline")}


def streaming(args: argparse.Namespace) -> list[Figure]:
    model = str(shape_067b(args.work_dir))
    engine = ["--max-model-len", "1024", "--max-num-seqs", "16", "--num-threads", str(args.threads)]
    load = ["--num-prompts", "16", "--random-input-len", "32", "--random-output-len", "128"]
    load += ["--num-warmups", "16", "--tokenizer", model]
    http: Rounds = []
    direct: Rounds = []
    with quire_server(model, *engine) as server:
        for i in range(args.rounds):
            seed = ["--seed", str(i)]
            http.append(kept(of_server(server, *load, *seed)))
            direct.append(kept(bench("serve", "--target", "engine", "--model", model, *engine, *load, *seed)))
    ratios = [a["output_throughput"] / b["output_throughput"] for a, b in zip(http, direct, strict=True)]
    return [
        at_least("HTTP over in process, tokens/s of 16 streams", statistics.median(ratios), 0.95, ratios),
        figure("HTTP, tokens/s", median_of(http, "output_throughput"), http),
        figure("in process, tokens/s", median_of(direct, "output_throughput"), direct),
    ]


def median_of(rounds: Rounds, key: str) -> float:
    return float(statistics.median(result[key] for result in rounds))


def server_cost(args: argparse.Namespace) -> list[Figure]:
    engine = ["--num-threads", "1", "--max-num-seqs", "16"]
    load = ["--num-prompts", "64", "--random-input-len", "32", "--random-output-len", "256"]
    load += ["--num-warmups", "16", "--ignore-eos"]
    served: Rounds = []
    offline: Rounds = []
    streamed: Rounds = []
    with quire_server(DEMO_MODEL, *engine) as server:
        for i in range(args.rounds):
            seed = ["--seed", str(i)]
            served.append(kept(of_server(server, *load, *seed)))
            offline.append(bench("throughput", *engine, *load, *seed))
            streamed.append(kept(bench("serve", "--target", "engine", *engine, *load, *seed)))
    added = [
        a["server_cpu_us_per_output_token"] - b["cpu_us_per_output_token"]
        for a, b in zip(served, offline, strict=True)
    ]
    return [
        below("server over LLM.generate, us of CPU a token", statistics.median(added), 25, added),
        figure("server, us of CPU a token", median_of(served, "server_cpu_us_per_output_token"), served),
        figure(
            "server's event loop alone, us of CPU a token",
            median_of(served, "server_main_thread_cpu_us_per_output_token"),
        ),
        figure("LLM.generate, us of CPU a token", median_of(offline, "cpu_us_per_output_token"), offline),
        figure(
            "AsyncLLM with a consumer, us of CPU a token",
            median_of(streamed, "process_cpu_us_per_output_token"),
            streamed,
        ),
        figure("client, us of CPU a token", median_of(served, "client_cpu_us_per_output_token")),
    ]


def half_load(args: argparse.Namespace) -> list[Figure]:
    load = ["--random-input-len", "128", "--random-output-len", "64", "--num-warmups", "8"]
    with quire_server(DEMO_MODEL, "--num-threads", "1") as server:
        alone = kept(of_server(server, *load, "--num-prompts", "30", "--max-concurrency", "1"))
        most = [
            kept(
                of_server(server, *load, "--num-prompts", "256", "--max-concurrency", "64", "--seed", str(i))
            )
            for i in range(args.rounds)
        ]
        capacity = median_of(most, "request_throughput")
        half = ["--request-rate", f"{capacity / 2:.4f}", "--num-prompts", str(max(int(capacity * 10), 300))]
        runs: Rounds = []
        even: Rounds = []
        for i in range(args.rounds):
            run = [*load, *half, "--seed", str(100 + i), "--metric-percentiles", "50,90,99"]
            runs.append(kept(of_server(server, *run)))
            even.append(kept(of_server(server, *run, "--burstiness", "inf")))

    def ratios(rounds: Rounds) -> list[float]:
        return [run["p99_ttft_ms"] / run["median_ttft_ms"] for run in rounds]

    decode_s = alone["median_itl_ms"] / 1000
    ideal = ideal_ttft(capacity / 2, max(alone["median_ttft_ms"] / 1000 - decode_s, 0), decode_s)
    return [
        below(
            "p99 over median TTFT at half load, even arrivals",
            statistics.median(ratios(even)),
            2,
            ratios(even),
        ),
        below("the same, Poisson arrivals", statistics.median(ratios(runs)), 2, ratios(runs)),
        figure("the same where nothing but waiting for steps is", ideal[1] / ideal[0], list(ideal)),
        figure("capacity, requests/s", capacity, most),
        figure("TTFT of one request at a time, ms", alone["median_ttft_ms"], [alone]),
        figure("median TTFT at half of the capacity, ms", median_of(runs, "median_ttft_ms"), runs),
        figure("p99 TTFT at half of the capacity, ms", median_of(runs, "p99_ttft_ms")),
    ]


def peer(args: argparse.Namespace) -> list[Figure]:
    model = str(shape_067b(args.work_dir))
    gguf = gguf_067b(args.work_dir)
    load = ["--prompt-form", "text", "--tokenizer", model, "--random-input-len", "64"]
    load += ["--random-output-len", "64", "--num-warmups", "1"]
    engine = ["--max-model-len", "1024", "--max-num-seqs", "16", "--num-threads", str(args.threads)]
    loads = {
        "1 stream": ["--num-prompts", "4", "--max-concurrency", "1"],
        "8 streams": ["--num-prompts", "8"],
    }
    made: dict[tuple[str, str], Rounds] = {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Both are loaded all the while, and idle when the other is measured.
    with (
        quire_server(model, *engine) as ours,
        llama_cpp_server(args.peer_python, gguf, port, args.threads) as theirs,
    ):
        for i in range(args.rounds):
            for what, extra in loads.items():
                for name, server in (("quire", ours), ("llama.cpp", theirs)):
                    flags = [*load, *extra, "--seed", str(i)]
                    if name == "llama.cpp":
                        # Its server knows no ignore_eos; random weights do not end by themselves.
                        flags += ["--no-ignore-eos"]
                    made.setdefault((name, what), []).append(kept(of_server(server, *flags)))
    figures = []
    for (name, what), rounds in made.items():
        for key, text in (
            ("request_throughput", "requests/s"),
            ("output_throughput", "tokens/s"),
            ("median_ttft_ms", "median TTFT, ms"),
            ("median_itl_ms", "median ITL, ms"),
        ):
            first = key == "request_throughput"
            figures.append(
                figure(f"{name}, {what}: {text}", median_of(rounds, key), rounds if first else None)
            )
    return figures


def idle_start(args: argparse.Namespace) -> list[Figure]:
    shares, starts = [], []
    for _ in range(max(args.rounds, 3)):
        with quire_server(DEMO_MODEL) as server:
            starts.append(server.ready_seconds)
    with quire_server(DEMO_MODEL) as server:
        of_server(server, "--num-prompts", "8", "--random-output-len", "16")
        time.sleep(1)
        before = process_usage(server.pid)
        time.sleep(args.idle_seconds)
        after = process_usage(server.pid)
        shares.append((after.cpu_seconds - before.cpu_seconds) / (after.time - before.time) * 100)
    started = bench("startup", "--num-iters", str(max(args.rounds, 3)))
    return [
        below(f"idle server, % of a core over {args.idle_seconds:g} s", shares[0], 0.5, None),
        below("start of quire serve until it listens, s", statistics.median(starts), 1.5, starts),
        figure("start of LLM until its first token, s", started["median_first_token_s"], started),
    ]


def event_loop(args: argparse.Namespace) -> list[Figure]:
    model = str(tiny_shape(args.work_dir))
    engine = ["--model", model, "--load-format", "dummy", "--num-threads", "1", "--max-num-seqs", "1024"]
    load = ["--num-prompts", "1000", "--random-input-len", "4", "--random-output-len", "200"]
    rounds = [
        kept(bench("serve", "--target", "engine", *engine, *load, "--num-warmups", "16", "--seed", str(i)))
        for i in range(args.rounds)
    ]
    # As if each token were an output of its own: at a lower rate than is measured here it is.
    shares = [run["event_loop_cpu_seconds"] / run["total_output_pieces"] * 20_000 * 100 for run in rounds]
    pieces = [run["total_output_tokens"] / run["total_output_pieces"] for run in rounds]
    return [
        below(
            "event loop at 20,000 tokens/s of 1,000 streams, % of a core",
            statistics.median(shares),
            25,
            shares,
        ),
        figure("tokens/s that it was measured at", median_of(rounds, "output_throughput"), rounds),
        figure("tokens that an output carried", statistics.median(pieces), pieces),
    ]


def device(args: argparse.Namespace) -> list[Figure]:
    model = str(shape_8b(args.work_dir))
    engine = [
        "--device",
        "cuda",
        "--load-format",
        "dummy",
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "256",
    ]
    load = ["--num-prompts", "256", "--random-input-len", "512", "--random-output-len", "256"]
    load += ["--num-warmups", "16", "--tokenizer", model]
    local = ["--model", model, *engine, *load]
    offline: Rounds = []
    streamed: Rounds = []
    http: Rounds = []
    # The device's memory is for one engine at a time.
    for i in range(args.rounds):
        seed = ["--seed", str(i)]
        with quire_server(model, *engine) as server:
            http.append(kept(of_server(server, *load, "--num-clients", "2", *seed)))
        offline.append(bench("throughput", *local, "--ignore-eos", *seed))
        streamed.append(kept(bench("serve", "--target", "engine", *local, *seed)))

    def ratios(others: Rounds, key: str) -> list[float]:
        return [a["output_throughput"] / b[key] for a, b in zip(http, others, strict=True)]

    over_generate = ratios(offline, "output_tokens_per_second")
    over_async = ratios(streamed, "output_throughput")
    return [
        at_least(
            "HTTP over LLM.generate, 256 streams", statistics.median(over_generate), 0.97, over_generate
        ),
        figure("HTTP over AsyncLLM with a consumer", statistics.median(over_async), over_async),
        figure("HTTP, tokens/s", median_of(http, "output_throughput"), http),
        figure("HTTP, median TTFT, ms", median_of(http, "median_ttft_ms")),
        figure("HTTP, median ITL, ms", median_of(http, "median_itl_ms")),
        figure("server, us of CPU a token", median_of(http, "server_cpu_us_per_output_token")),
        figure("LLM.generate, tokens/s", median_of(offline, "output_tokens_per_second"), offline),
        figure("AsyncLLM, tokens/s", median_of(streamed, "output_throughput"), streamed),
    ]


COMMANDS: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "streaming": streaming,
    "server-cost": server_cost,
    "half-load": half_load,
    "peer": peer,
    "idle-start": idle_start,
    "event-loop": event_loop,
    "device": device,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=COMMANDS)
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/quire-bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of the 0.67 B shape")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--idle-seconds", type=float, default=30)
    args = parser.parse_args()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    made = COMMANDS[args.figure](args)
    line = {
        "figure": args.figure,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
        ).stdout.strip(),
        "environment": collect_env(),
        "options": {"rounds": args.rounds, "threads": args.threads},
        "figures": [vars(one) for one in made],
    }
    with (args.work_dir / "serving-figures.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    for one in made:
        met = {None: "", True: f"   wanted {one.wanted}: met", False: f"   wanted {one.wanted}: MISSED"}
        spread = ""
        if isinstance(one.rounds, list) and one.rounds and isinstance(one.rounds[0], float):
            ordered = sorted(one.rounds)
            spread = f"   (rounds {ordered[0]:.4g} to {percentile(ordered, 100):.4g})"
        print(f"{one.name}: {one.value:.4g}{met[one.is_met]}{spread}")


if __name__ == "__main__":
    main()

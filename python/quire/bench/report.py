"""A result as a person reads it, and where it goes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quire.bench.outcomes import Result

_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (after the first)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
# Name in the result, text, format.
_SERVE_ROWS = (
    ("completed", "Successful requests", "{:,}"),
    ("failed", "Failed requests", "{:,}"),
    ("json_valid", "Answers that are JSON", "{:,}"),
    ("max_concurrency", "Maximum request concurrency", "{:,}"),
    ("duration", "Benchmark duration (s)", "{:,.2f}"),
    ("total_input_tokens", "Total input tokens", "{:,}"),
    ("total_output_tokens", "Total generated tokens", "{:,}"),
    ("request_throughput", "Request throughput (req/s)", "{:,.2f}"),
    ("request_goodput", "Request goodput (req/s)", "{:,.2f}"),
    ("output_throughput", "Output token throughput (tok/s)", "{:,.2f}"),
    ("max_output_tokens_per_s", "Peak output token throughput (tok/s)", "{:,.2f}"),
    ("max_concurrent_requests", "Peak concurrent requests", "{:,}"),
    ("total_token_throughput", "Total token throughput (tok/s)", "{:,.2f}"),
    ("server_cpu_cores", "Server: cores busy", "{:,.3f}"),
    ("server_cpu_us_per_output_token", "Server: CPU a generated token (us)", "{:,.1f}"),
    (
        "server_main_thread_cpu_us_per_output_token",
        "Server: CPU of its main thread a token (us)",
        "{:,.1f}",
    ),
    ("server_memory_bytes", "Server: memory (bytes)", "{:,}"),
    ("process_cpu_us_per_output_token", "This process: CPU a generated token (us)", "{:,.1f}"),
    ("event_loop_cpu_us_per_output_token", "Event loop: CPU a generated token (us)", "{:,.1f}"),
    ("client_cpu_us_per_output_token", "Client: CPU a generated token (us)", "{:,.1f}"),
)
_OTHER_ROWS = {
    "throughput": (
        ("num_requests", "Requests", "{:,}"),
        ("elapsed_time", "Duration (s)", "{:,.2f}"),
        ("requests_per_second", "Request throughput (req/s)", "{:,.2f}"),
        ("tokens_per_second", "Total token throughput (tok/s)", "{:,.2f}"),
        ("output_tokens_per_second", "Output token throughput (tok/s)", "{:,.2f}"),
        ("total_num_tokens", "Total tokens", "{:,}"),
        ("total_output_tokens", "Total generated tokens", "{:,}"),
        ("cpu_us_per_output_token", "CPU a generated token (us)", "{:,.1f}"),
    ),
    "latency": (
        ("avg_latency", "Mean latency (s)", "{:,.4f}"),
        ("std_latency", "Standard deviation (s)", "{:,.4f}"),
    ),
    "startup": (),
}


def finish(kind: str, result: dict[str, Any], args: argparse.Namespace) -> None:
    """Prints a result and writes what was asked for. ``kind`` is serve, throughput, latency or startup."""
    result = {"benchmark": kind, **result}
    if args.json:
        print(json.dumps(result))
    else:
        print(format_result(result))
    if args.save_result:
        path = result_path(result, args)
        with writing(path, "--save-result"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    if args.html:
        from quire.bench.page import write_page

        with writing(Path(args.html), "--html"):
            write_page([result], Path(args.html))


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Says what was written; raises ValueError, naming option and file, where it could not be."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{option}: cannot write {path}: {error.strerror}") from None
    print(f"wrote {path}", file=sys.stderr)


def result_path(result: Result, args: argparse.Namespace) -> Path:
    """``--result-filename``, or what was measured, how fast, and when."""
    if args.result_filename:
        return Path(args.result_dir) / str(args.result_filename)
    parts = [str(args.label or result.get("backend") or result["benchmark"])]
    if result["benchmark"] == "serve":
        parts.append(f"{result['request_rate']}qps")
        if result["max_concurrency"] is not None:
            parts.append(f"concurrency{result['max_concurrency']}")
    model = Path(str(result.get("model_id", "model"))).name
    name = "-".join([*parts, model, result["date"]])
    return Path(args.result_dir) / ("".join(c if c.isalnum() or c in "-._" else "_" for c in name) + ".json")


def format_result(result: Result) -> str:
    """A table of lines."""
    kind = result["benchmark"]
    lines = [f" Quire bench {kind} ".center(60, "=")]
    lines += _rows(result, _SERVE_ROWS if kind == "serve" else _OTHER_ROWS[kind])
    if kind == "serve":
        for metric, title in _TITLES.items() if result["completed"] else ():
            lines += _distribution(result, metric, title)
    elif kind == "latency":
        lines += [
            f"{f'{p}% percentile latency (s):':<48}{v:>12,.4f}" for p, v in result["percentiles"].items()
        ]
    elif kind == "startup":
        for name in ("import_s", "ready_s", "first_token_s"):
            lines += _line(
                f"{name}: mean, least, most",
                ", ".join(f"{result[f'{p}_{name}']:.3f}" for p in ("mean", "min", "max")),
            )
    lines.append("=" * 60)
    lines += [f"{count} x {text}" for text, count in result.get("error_counts", {}).items()]
    lines += [f"warning: {text}" for text in result.get("warnings", ())]
    return "\n".join(lines)


def _rows(result: Result, rows: tuple[tuple[str, str, str], ...]) -> Iterator[str]:
    for name, title, form in rows:
        if result.get(name) is not None:
            yield from _line(title, form.format(result[name]))


def _line(title: str, value: str) -> Iterator[str]:
    yield f"{title + ':':<44}{value:>16}"


def _distribution(result: Result, metric: str, title: str) -> Iterator[str]:
    suffix = f"_{metric}_ms"
    names = [name for name in result if name.endswith(suffix)]
    if names:
        yield title.center(60, "-")
        for name in names:
            which = name.removesuffix(suffix)
            yield from _line(f"{which.capitalize()} {metric.upper()} (ms)", f"{result[name]:,.2f}")

"""``quire bench --compare``: two results beside each other."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quire.bench.outcomes import Result
from quire.bench.page import ratio_text, write_page
from quire.bench.report import writing

# What a run was asked for, or when: no figure that it came to.
_SETTINGS = (
    "seed",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "num_clients",
    "input_len",
    "output_len",
    "batch_size",
)


def run_compare(args: argparse.Namespace) -> int:
    """Raises ValueError for files that are no results, or of different benchmarks."""
    before, after = (read_result(Path(name)) for name in args.compare)
    if before["benchmark"] != after["benchmark"]:
        raise ValueError(
            f"compare: {args.compare[0]} is of bench {before['benchmark']}, {args.compare[1]} of bench "
            f"{after['benchmark']}; give two of one kind"
        )
    print(format_comparison(before, after))
    if args.html:
        with writing(Path(args.html), "--html"):
            write_page([before, after], Path(args.html))
    return 0


def read_result(path: Path) -> Result:
    """What ``--save-result`` wrote. Raises ValueError for anything else."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"compare: {path} cannot be read as a result: {error}") from None
    if not isinstance(result, dict) or not isinstance(result.get("benchmark"), str):
        raise ValueError(f"compare: {path} is no result of quire bench; --save-result writes one")
    return result


def format_comparison(before: Result, after: Result) -> str:
    """The figures that both have, and after / before; settings that differ first."""
    lines = []
    for key in dict.fromkeys([*_SETTINGS, "backend", "model_id", "dataset_name"]):
        if before.get(key) != after.get(key):
            lines.append(f"{key} differs: {before.get(key)} and {after.get(key)}")
    lines.append(f"{'':<40}{'A':>14}{'B':>14}{'B / A':>10}")
    for key, value in before.items():
        if key in _SETTINGS or not (ratio := ratio_text(value, after.get(key))):
            continue
        lines.append(f"{key:<40}{value:>14,.4g}{after[key]:>14,.4g}{ratio:>10}")
    return "\n".join(lines)

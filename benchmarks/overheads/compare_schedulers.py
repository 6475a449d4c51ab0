"""The cost of deciding, Quire's and vLLM's in one run, as a table.

    python benchmarks/overheads/compare_schedulers.py [--vllm-python .venv-vllm/bin/python] [--rounds 3]

Runs benchmarks/overheads/scheduler_bench (built by the cpu preset) and vllm_scheduler_bench.py by turns, and
prints the median of the rounds' medians, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def quire_rows(program: Path) -> dict[str, dict[str, float]]:
    """Benchmark name without its repetition suffix -> counters."""
    command = [str(program), "--benchmark_format=json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {row["name"].split("/iterations")[0]: row for row in report["benchmarks"]}


def vllm_rows(python: str) -> dict[str, Any]:
    script = ROOT / "benchmarks" / "overheads" / "vllm_scheduler_bench.py"
    output = subprocess.run([python, str(script)], check=True, capture_output=True, text=True).stdout
    report: dict[str, Any] = json.loads(output[output.index("{") :])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--program", default=ROOT / "build/default/benchmarks/overheads/scheduler_bench", type=Path
    )
    parser.add_argument("--vllm-python", default=str(ROOT / ".venv-vllm/bin/python"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    quire = []
    vllm = []
    for _ in range(args.rounds):
        quire.append(quire_rows(args.program))
        vllm.append(vllm_rows(args.vllm_python))

    def ours(name: str, counter: str) -> float:
        return statistics.median(rows[name][counter] for rows in quire)

    def theirs(*path: str) -> float:
        values = []
        for rows in vllm:
            value: Any = rows
            for key in path:
                value = value[key]
            values.append(float(value))
        return statistics.median(values)

    print("| running | Quire schedule | vLLM schedule | ratio | Quire update | vLLM update | ratio |")
    print("|---|---|---|---|---|---|---|")
    for n in (1, 8, 64, 256, 1024):
        row = [f"{n:,}"]
        for phase, counter in (("schedule", "schedule_p50_us"), ("update_from_output", "update_p50_us")):
            us, peer = ours(f"decode_step/{n}", counter), theirs("decode_step", str(n), f"{phase}_us")
            row += [f"{us:.2f}", f"{peer:,.0f}", f"{peer / us:.0f}"]
        print("| " + " | ".join(row) + " |")
    print()
    print("| | Quire | vLLM | ratio |")
    print("|---|---|---|---|")
    for title, name, counter, path in (
        ("prefix lookup, 8,192 tokens", "prefix_lookup/8192", "p50_us", ("prefix_lookup_us", "8192")),
        ("adding a request, 512 tokens", "add_request/512", "p50_us", ("add_request_us", "512")),
        ("adding a request, 2,048 tokens", "add_request/2048", "p50_us", ("add_request_us", "2048")),
    ):
        us, peer = ours(name, counter), theirs(*path)
        print(f"| {title} | {us:.2f} | {peer:,.0f} | {peer / us:.0f} |")
    print()
    print("| Quire only | us |")
    print("|---|---|")
    for waiting in (0, 100, 100000):
        name = f"decode_step_with_queue/{waiting}"
        both = ours(name, "schedule_p50_us") + ours(name, "update_p50_us")
        print(f"| 64 running, {waiting:,} waiting: schedule + update | {both:.2f} |")
    for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        name = f"decode_step/{n}"
        both = ours(name, "schedule_p50_us") + ours(name, "update_p50_us")
        print(f"| {n:,} running: schedule + update, and ns a request | {both:.2f}, {both / n * 1000:.0f} |")
    for n in (1, 8, 64, 256, 1024):
        print(f"| flight recorder, {n:,} requests a step | {ours(f'flight_recorder/{n}', 'p50_us'):.2f} |")


if __name__ == "__main__":
    main()

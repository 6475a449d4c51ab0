"""Measures Quire beside transformers and llama.cpp on the CPU, one process an engine.

    python benchmarks/cpu/compare_peers.py --work-dir /tmp/bench [--shape gemma-2-2b]

The models are those of peer_models.py: random weights in bfloat16. Rows: prefill of 512 tokens, decode of 64
tokens (`--tokens`) at batch 1 and 8 (prompts of 32), load time, peak memory. Engines take turns, so that a
change in the machine's memory speed meets all of them; each figure is the best of its rounds and of the
repeats in each. llama.cpp takes part when llama-cpp-python and gguf are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from peer_models import SHAPES, make_gguf, make_model

ROWS = {
    "prefill 512 (tokens/s)": True,
    "decode batch 1 (tokens/s)": True,
    "decode batch 8 (tokens/s)": True,
    "load (s)": False,
    "peak memory (GiB)": False,
}


def measure(
    engine_name: str, model: Path, threads: int, vocab_size: int, num_tokens: int, repeats: int
) -> dict[str, Any]:
    """One round, in this process."""
    from engines import ENGINES

    start = time.perf_counter()
    engine: Any = ENGINES[engine_name](model, threads)
    rng = np.random.default_rng(0)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [rng.integers(0, vocab_size, length).tolist() for _ in range(count)]

    engine.prefill(prompts(1, 8)[0])
    load_seconds = time.perf_counter() - start  # until a first token was there
    engine.decode(prompts(8, 32), 4)
    return {
        "description": engine.description,
        "prefill 512 (tokens/s)": 512 / min(engine.prefill(prompts(1, 512)[0]) for _ in range(repeats)),
        "decode batch 1 (tokens/s)": (num_tokens - 1)
        / min(engine.decode(prompts(1, 32), num_tokens) for _ in range(repeats)),
        "decode batch 8 (tokens/s)": 8
        * (num_tokens - 1)
        / min(engine.decode(prompts(8, 32), num_tokens) for _ in range(repeats)),
        "load (s)": load_seconds,
        "peak memory (GiB)": peak_memory_gib(),
    }


def peak_memory_gib() -> float:
    """This program's alone: getrusage's figure outlives exec and so counts the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    return float("nan")


def memory_read_rate(threads: int) -> float:
    """GB/s that numpy reads with this many processes' worth of threads: the roof of decode at batch 1."""
    from concurrent.futures import ThreadPoolExecutor

    data = np.ones(2**27, dtype=np.float64)
    parts = np.array_split(data, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, data.nbytes / (time.perf_counter() - start) / 1e9)
    return best


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/quire-bench"))
    parser.add_argument("--shape", choices=SHAPES, default="llama-0.67b")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default="quire,transformers,llama_cpp")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()

    directory = args.work_dir / args.shape
    gguf_path = args.work_dir / f"{args.shape}.gguf"
    if args.worker:
        model = gguf_path if args.worker == "llama_cpp" else directory
        vocab_size = SHAPES[args.shape][1]["vocab_size"]
        print(json.dumps(measure(args.worker, model, args.threads, vocab_size, args.tokens, args.repeats)))
        return

    engines = args.engines.split(",")
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("gguf") is None:
        engines = [name for name in engines if name != "llama_cpp"]
    if not (directory / "model.safetensors").exists():
        make_model(directory, args.shape)
    if "llama_cpp" in engines and not gguf_path.exists():
        make_gguf(directory, gguf_path)

    best: dict[str, dict[str, Any]] = {}
    for _ in range(args.rounds):
        for name in engines:
            command = [sys.executable, __file__, "--worker", name, "--threads", str(args.threads)]
            command += ["--work-dir", str(args.work_dir), "--shape", args.shape]
            command += ["--tokens", str(args.tokens), "--repeats", str(args.repeats)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            result = json.loads(done.stdout.splitlines()[-1])
            kept = best.setdefault(name, result)
            for row, higher_is_better in ROWS.items():
                kept[row] = (max if higher_is_better else min)(kept[row], result[row])

    print(f"{cpu_name()}, {args.threads} threads, memory reads {memory_read_rate(args.threads):.1f} GB/s")
    for name in engines:
        print(f"{name}: {best[name]['description']}")
    print("| row | " + " | ".join(engines) + " |")
    print("|---|" + "---|" * len(engines))
    for row in ROWS:
        print(f"| {row} | " + " | ".join(f"{best[name][row]:.4g}" for name in engines) + " |")


if __name__ == "__main__":
    main()

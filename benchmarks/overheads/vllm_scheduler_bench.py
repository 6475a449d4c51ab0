"""What vLLM 0.26's own Scheduler costs per step, to hold Quire's against.

Runs inside the environment of ``tests/conformance/setup_vllm.sh``; needs no GPU::

    .venv-vllm/bin/python benchmarks/overheads/vllm_scheduler_bench.py

Prints one JSON object: medians in microseconds, on one thread, garbage collection off.
"""

import argparse
import gc
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFORMANCE = Path(__file__).resolve().parents[2] / "tests" / "conformance"
BLOCK_SIZE = 16
PROMPT_TOKENS = 128
MAX_NUM_SEQS = 1024
RUNNING_COUNTS = (1, 8, 64, 256, 1024)
WAITING_COUNTS = (100, 100_000)
LOOKUP_TOKENS = 8_192
ADDED_TOKENS = (512, 2_048)
WARMUP_STEPS = 5
# Enough for every request to decode for as long as it is measured.
MAX_TOKENS = 10_000


def median_us(samples: list[float]) -> float:
    return round(1e6 * statistics.median(samples), 2)


def prompt(index: int, num_tokens: int) -> list[int]:
    """Returns a prompt whose first block, and so every block, differs from those of other indices."""
    return [100_000 + index, *range(1, num_tokens)]


class Engine:
    """One scheduler, and a model that answers token 7 to everything."""

    def __init__(self, vllm: Any, config: Any) -> None:
        self._vllm = vllm
        self._block_hasher = vllm.make_block_hasher(config)
        # The front end makes these in vLLM, in another process.
        self._sampling_params = vllm.make_sampling_params(MAX_TOKENS)
        self._num_added = 0
        self.scheduler: Any = vllm.make_scheduler(config)

    def make_request(self, prompt: list[int]) -> Any:
        self._num_added += 1
        return self._vllm.make_request(
            str(self._num_added),
            prompt,
            self._sampling_params,
            block_hasher=self._block_hasher,
            arrival_time=float(self._num_added),
        )

    def add(self, num_requests: int, num_tokens: int = PROMPT_TOKENS) -> None:
        for index in range(num_requests):
            self.scheduler.add_request(self.make_request(prompt(index, num_tokens)))

    def step(self) -> tuple[float, float]:
        """Runs one step; returns the seconds of ``schedule`` and of ``update_from_output``."""
        start = time.perf_counter()
        scheduler_output = self.scheduler.schedule()
        schedule_seconds = time.perf_counter() - start
        ids = list(scheduler_output.num_scheduled_tokens)
        output = self._vllm.model_runner_output_cls(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
        )
        start = time.perf_counter()
        self.scheduler.update_from_output(scheduler_output, output)
        return schedule_seconds, time.perf_counter() - start

    def decode(self, num_steps: int) -> dict[str, float]:
        # The first steps take in the prompts and warm up.
        samples = [self.step() for _ in range(WARMUP_STEPS + num_steps)][WARMUP_STEPS:]
        return {
            "schedule_us": median_us([schedule for schedule, _ in samples]),
            "update_from_output_us": median_us([update for _, update in samples]),
        }


class Benchmarks:
    def __init__(self, vllm: Any, trace_config: Callable[..., Any], repeat: int) -> None:
        self._vllm = vllm
        self._trace_config = trace_config
        self._repeat = repeat

    def _engine(self, max_num_seqs: int = MAX_NUM_SEQS) -> Engine:
        # Plenty: nothing is ever evicted or preempted.
        blocks_per_request = (PROMPT_TOKENS + self._repeat) // BLOCK_SIZE + 2
        return Engine(
            self._vllm,
            self._trace_config(
                num_blocks=MAX_NUM_SEQS * blocks_per_request,
                block_size=BLOCK_SIZE,
                max_num_seqs=max_num_seqs,
                # All prompts are taken in by the first step, so that the rest are pure decode steps.
                max_num_batched_tokens=MAX_NUM_SEQS * PROMPT_TOKENS,
                max_model_len=1 << 17,
            ),
        )

    def decode_step(self, num_running: int) -> dict[str, float]:
        engine = self._engine()
        engine.add(num_running)
        return engine.decode(self._repeat)

    def step_with_waiting(self, num_waiting: int) -> dict[str, float]:
        num_running = 64
        engine = self._engine(max_num_seqs=num_running)
        engine.add(num_running)
        engine.step()
        engine.add(num_waiting, num_tokens=8)
        return engine.decode(self._repeat)

    def prefix_lookup(self) -> float:
        engine = self._engine()
        engine.add(1, num_tokens=LOOKUP_TOKENS)
        engine.step()
        # One token more, as the last one is never taken from the cache.
        request = engine.make_request(prompt(0, LOOKUP_TOKENS + 1))
        manager = engine.scheduler.kv_cache_manager
        samples: list[float] = []
        for _ in range(self._repeat):
            start = time.perf_counter()
            _, num_hit_tokens, _ = manager.get_computed_blocks(request)
            samples.append(time.perf_counter() - start)
            assert num_hit_tokens == LOOKUP_TOKENS, num_hit_tokens
        return median_us(samples)

    def add_request(self, num_tokens: int) -> float:
        engine = self._engine()
        samples: list[float] = []
        for index in range(self._repeat):
            tokens = prompt(index, num_tokens)
            start = time.perf_counter()
            engine.scheduler.add_request(engine.make_request(tokens))
            samples.append(time.perf_counter() - start)
        return median_us(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times vLLM's Scheduler without a GPU.")
    parser.add_argument("--repeat", type=int, default=200, help="samples per figure")
    args = parser.parse_args()

    # vLLM's libraries print on import; stdout is for the result.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(CONFORMANCE))
    theirs = importlib.import_module("vllm_scheduler")
    benchmarks = Benchmarks(theirs.Vllm(), theirs.TraceConfig, args.repeat)
    gc.collect()
    gc.freeze()
    gc.disable()

    results = {
        "vllm": importlib.import_module("importlib.metadata").version("vllm"),
        "python": platform.python_version(),
        "repeat": args.repeat,
        "decode_step": {str(count): benchmarks.decode_step(count) for count in RUNNING_COUNTS},
        "prefix_lookup_us": {str(LOOKUP_TOKENS): benchmarks.prefix_lookup()},
        "add_request_us": {str(count): benchmarks.add_request(count) for count in ADDED_TOKENS},
        "step_64_running_with_waiting": {
            str(count): benchmarks.step_with_waiting(count) for count in WAITING_COUNTS
        },
    }
    print(json.dumps(results, indent=2), file=output, flush=True)


if __name__ == "__main__":
    main()

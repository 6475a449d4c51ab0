"""What steps of a model cost on this machine, for ``quire simulate --calibration``."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quire._core import RequestOutputKind, SamplingParams
from quire.llm_engine import LLMEngine

_REPEATS = 5
_DECODE_STEPS = 8
_MAX_TOKENS = 128  # more than a request samples before it is aborted
_BLOCK_SIZE = 16
_MAX_CONTEXT = 65536  # of all requests of a step: larger shapes take long to prepare
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = (16, 128, 512, 1024, 2048, 4096)
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Shape:
    """``num_decodes`` requests with ``context`` tokens each, and perhaps a prompt that comes."""

    num_decodes: int
    context: int
    num_prompt_tokens: int = 0


def calibrate(model: str, out: Path, num_threads: int = 0) -> None:
    """Measures steps of various sizes and writes them to ``out``.

    Takes a minute or so. ``num_threads`` 0: all cores.

    Raises ValueError if the model cannot be loaded.
    """
    engine = LLMEngine(
        model,
        max_num_seqs=max(_BATCHES) + 1,
        max_num_batched_tokens=max(_BATCHES) + max(_CHUNKS),
        block_size=_BLOCK_SIZE,
        num_threads=num_threads,
        enable_prefix_caching=False,
    )
    about = engine.model
    num_cores = len(os.sched_getaffinity(0))
    longest = about.max_model_len - _MAX_TOKENS
    num_slots = engine.stats().num_total_blocks * _BLOCK_SIZE
    shapes = [
        shape
        for shape in _shapes()
        if max(shape.context, shape.num_prompt_tokens) <= longest
        and shape.num_decodes * (shape.context + _MAX_TOKENS) + shape.num_prompt_tokens
        <= min(num_slots, _MAX_CONTEXT)
    ]
    bench = _Bench(engine)
    lines: list[dict[str, float | str]] = [
        {
            "machine": f"{_cpu_name()}, {num_threads or num_cores} of {num_cores} cores",
            "model": f"{Path(model).name} ({about.architecture}, {about.dtype} on {about.backend})",
            "date": time.strftime("%Y-%m-%d"),
        }
    ]
    bench.measure(Shape(1, 16))  # the first step also builds what later ones use
    for i, shape in enumerate(shapes):
        print(f"\r{i + 1} of {len(shapes)}", end="", file=sys.stderr, flush=True)
        lines.append(bench.measure(shape))
    print(file=sys.stderr)
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _shapes() -> Iterator[Shape]:
    for context in _CONTEXTS:
        for batch in _BATCHES:
            yield Shape(batch, context)
    for chunk in _CHUNKS:
        for batch in (0, *_BATCHES[3::2]):
            yield Shape(batch, 128 if batch else 0, chunk)


class _Bench:
    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._next_id = 0

    def measure(self, shape: Shape) -> dict[str, float | str]:
        """The first quartile of some steps: what disturbed the slower ones is not their cost."""
        steps = [step for _ in range(_REPEATS) for step in self._run(shape)]
        return {
            "num_tokens": shape.num_decodes + shape.num_prompt_tokens,
            "num_reqs": shape.num_decodes + (shape.num_prompt_tokens > 0),
            "context_tokens": round(statistics.mean(context for context, _ in steps)),
            "seconds": round(statistics.quantiles((seconds for _, seconds in steps), n=4)[0], 9),
        }

    def _run(self, shape: Shape) -> Iterator[tuple[int, float]]:
        """Brings the engine into the shape, then yields context tokens and seconds of its steps."""
        engine = self._engine
        generated_before = engine.stats().num_generation_tokens
        running = [self._add(shape.context, _MAX_TOKENS) for _ in range(shape.num_decodes)]
        # Prompts first; when they are done every request computes one token a step.
        while running and (self._step()[0] != shape.num_decodes or engine.stats().num_waiting_reqs > 0):
            pass
        for _ in range(1 if shape.num_prompt_tokens else _DECODE_STEPS):
            if shape.num_prompt_tokens:
                self._add(shape.num_prompt_tokens, 1)
            num_generated = engine.stats().num_generation_tokens - generated_before
            num_computed, seconds = self._step()
            expected = shape.num_decodes + shape.num_prompt_tokens
            if num_computed != expected:
                raise RuntimeError(f"a step computed {num_computed} tokens where {expected} were expected")
            yield shape.num_decodes * shape.context + num_generated + shape.num_prompt_tokens, seconds
        for request_id in running:
            engine.abort_request(request_id)
        while engine.has_unfinished_requests():
            engine.step()

    def _step(self) -> tuple[int, float]:
        """Tokens computed, and seconds."""
        before = self._engine.stats().num_scheduled_tokens
        begin = time.perf_counter()
        self._engine.step()
        seconds = time.perf_counter() - begin
        return self._engine.stats().num_scheduled_tokens - before, seconds

    def _add(self, num_tokens: int, max_tokens: int) -> str:
        self._next_id += 1
        request_id = str(self._next_id)
        vocab_size = self._engine.model.vocab_size
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,  # what is timed is the step, not Python's lists
        )
        self._engine.add_request(
            request_id, [(7 * i + self._next_id) % vocab_size for i in range(num_tokens)], params
        )
        return request_id


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

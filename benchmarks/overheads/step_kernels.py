#!/usr/bin/env python3
"""What a step has a CUDA device do: kernels, copies, how long each takes, what lies between.

    step_kernels.py LIBQUIRE MODEL [--batch 1] [--context 1024] [--prompts] [--rows 40] [--set field=JSON]...

A step of generation, or with --prompts one that reads prompts, of as many tokens as max_num_batched_tokens;
of several devices (--set tensor_parallel_size=2) what the first does. MODEL is a folder with a config.json;
its weights are random numbers. Kernels are recorded by torch.profiler (CUPTI), which slows the host and, by
about a microsecond each, what follows within a graph.
The engine is called through the C ABI, so that any Python with PyTorch will do.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

# Tokens of a request. Before the first of them has ended the last ones have begun.
STEPS = 48


class Options(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("model", ctypes.c_char_p),
        ("config_json", ctypes.c_char_p),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("request", ctypes.c_uint64),
        ("json", ctypes.c_char_p),
        ("json_size", ctypes.c_size_t),
        ("status", ctypes.c_int32),
        ("finished", ctypes.c_int32),
    )


class Submission(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_size_t),
        ("messages_json", ctypes.c_char_p),
        ("token_ids", ctypes.POINTER(ctypes.c_int32)),
        ("num_token_ids", ctypes.c_size_t),
        ("params_json", ctypes.c_char_p),
        ("callback", ctypes.c_void_p),
        ("user_data", ctypes.c_void_p),
    )


class Engine:
    """An engine behind the C ABI."""

    def __init__(self, library: str, model: str, config: dict[str, Any]) -> None:
        self.library = ctypes.CDLL(library)
        self.library.quire_last_error.restype = ctypes.c_char_p
        self.library.quire_poll.argtypes = (ctypes.c_uint64, ctypes.c_int64, ctypes.POINTER(Event))
        self.library.quire_release.argtypes = (ctypes.c_uint64,)
        self.engine = ctypes.c_uint64()
        options = Options(ctypes.sizeof(Options), model.encode(), json.dumps(config).encode())
        self.check(self.library.quire_engine_create(ctypes.byref(options), ctypes.byref(self.engine)))

    def check(self, status: int) -> None:
        """Raises RuntimeError for a call that failed."""
        if status != 0:
            raise RuntimeError(self.library.quire_last_error().decode())

    def generate(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Greedy tokens of all prompts at once."""
        params = json.dumps({"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}).encode()
        requests = []
        for prompt in prompts:
            ids = (ctypes.c_int32 * len(prompt))(*prompt)
            submission = Submission(
                struct_size=ctypes.sizeof(Submission),
                token_ids=ids,
                num_token_ids=len(prompt),
                params_json=params,
            )
            request = ctypes.c_uint64()
            places = ctypes.byref(submission), ctypes.byref(request)
            self.check(self.library.quire_submit(self.engine, *places))
            requests.append(request)
        event = Event(struct_size=ctypes.sizeof(Event))
        for request in requests:
            event.finished = 0
            while not event.finished:
                self.check(self.library.quire_poll(request, -1, event))
            self.check(self.library.quire_release(request))


def kernels_of(engine: Engine, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """What the device does for a generation, in order: of the chrome trace, ts and dur in microseconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        engine.generate(prompts, STEPS)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    of_devices = [each for each in events if each.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy")]
    of_device = [each for each in of_devices if each["args"].get("device", 0) == 0]
    return sorted(of_device, key=lambda each: each["ts"])


def short(name: str) -> str:
    """A kernel's name without its namespaces and arguments."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|quire::cuda::|^void ", "", name)
    return re.sub(r"\(.*", "", name)[:60]


def print_totals(steps: list[list[dict[str, Any]]]) -> None:
    """A line for each kernel: how often a step has it, its time, how much later than those before it ends."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    end = steps[0][0]["ts"]
    for step in steps:
        for each in step:
            row = totals[short(each["name"])]
            row[0] += 1
            row[1] += each["dur"]
            row[2] += each["ts"] - end
            end = max(end, each["ts"] + each["dur"])
    print(f"{'kernel':62} {'a step':>6} {'us each':>8} {'gap':>7} {'us a step':>10}")
    for name, (count, time, gap) in sorted(totals.items(), key=lambda item: -item[1][1] - item[1][2]):
        each_time = f"{time / count:8.2f} {gap / count:7.2f}"
        print(f"{name:62} {count / len(steps):6.0f} {each_time} {(time + gap) / len(steps):10.1f}")


def print_in_order(kernels: list[dict[str, Any]]) -> None:
    """A line for each: its grid, its start after the end of those before (negative: earlier), its time."""
    end = kernels[0]["ts"]
    for each in kernels:
        grid = str(each["args"].get("grid"))
        print(f"{short(each['name']):62} {grid:16} {each['ts'] - end:7.2f} {each['dur']:7.2f}")
        end = max(end, each["ts"] + each["dur"])


def main() -> None:
    """Prints a step's kernels by name, then some in order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompts", action="store_true", help="the steps that read them, not those behind")
    parser.add_argument("--rows", type=int, default=40, help="kernels of the step that are listed in order")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=JSON", help="of the config")
    args = parser.parse_args()
    config = {
        "device": "cuda", "dtype": "bfloat16", "load_format": "dummy", "skip_tokenizer_init": True,
        "max_num_seqs": max(args.batch, 8), "max_model_len": args.context + 256,
        "gpu_memory_utilization": 0.9, "enable_prefix_caching": not args.prompts,
    }  # fmt: skip
    for each in args.set:
        field, value = each.split("=", 1)
        config[field] = json.loads(value)
    torch.cuda.init()
    engine = Engine(args.library, args.model, config)
    prompts = [[(7 * i + 13 * j) % 1000 + 5 for j in range(args.context)] for i in range(args.batch)]
    engine.generate(prompts, 2)
    kernels = kernels_of(engine, prompts)
    # Steps begin with the kernel that prepares their inputs; the last ones are of one token of each request.
    starts = [i for i, each in enumerate(kernels) if "prepare_inputs" in each["name"]]
    starts = starts[: 2 - STEPS] if args.prompts else starts[STEPS - 12 :][:9]
    steps = [kernels[a:b] for a, b in pairwise(starts)]
    times = sorted(kernels[b]["ts"] - kernels[a]["ts"] for a, b in pairwise(starts))
    print(f"{len(steps[-1])} kernels, {times[len(times) // 2] / 1e3:.3f} ms from step to step")
    ends = [max(each["ts"] + each["dur"] for each in step) for step in steps]
    gaps = sorted(kernels[b]["ts"] - end for b, end in zip(starts[1:], ends, strict=True))
    print(f"{gaps[len(gaps) // 2]:.1f} us between steps")
    print_totals(steps)
    print_in_order(steps[-1][len(steps[-1]) // 2 :][: args.rows])


if __name__ == "__main__":
    main()

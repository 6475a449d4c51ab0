"""``quire bench startup``: how long a new process takes until its first token."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from quire.bench.measures import percentile
from quire.bench.report import finish
from quire.config import given_fields, make_engine_config
from quire.model_directory import DEMO_MODEL

_NAMES = ("import_s", "ready_s", "first_token_s")
# Times are of one clock for all processes; the configuration comes as flags.
_PROGRAM = """
import json, sys, time
import quire
from quire import LLM, SamplingParams
imported = time.monotonic()
fields = json.loads(sys.argv[1])
llm = LLM(**fields)
ready = time.monotonic()
prompt = list(range(100, 100 + int(sys.argv[2])))
llm.generate([prompt], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
print(json.dumps([imported, ready, time.monotonic()]))
"""


def run_startup(args: argparse.Namespace) -> int:
    """Raises ValueError for options that do not fit, RuntimeError if a process fails."""
    for name in ("num_iters", "input_len"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(args, name)}")
    fields = _given(args)
    rounds = [_round(fields, args.input_len) for _ in range(args.num_iters)]
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "label": args.label,
        "model_id": fields["model"],
        "num_iters": args.num_iters,
        "input_len": args.input_len,
    }
    for name, values in zip(_NAMES, zip(*rounds, strict=True), strict=True):
        ordered = sorted(values)
        result |= {
            f"mean_{name}": sum(values) / len(values),
            f"median_{name}": percentile(ordered, 50),
            f"min_{name}": ordered[0],
            f"max_{name}": ordered[-1],
            f"all_{name}": list(values),
        }
    finish("startup", result, args)
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    make_engine_config(args, model=DEMO_MODEL)  # what is wrong is said by name, before a process is started
    fields = {name: given.value for name, given in given_fields(args).items()}
    return {"model": DEMO_MODEL, **fields}


def _round(fields: dict[str, Any], input_len: int) -> tuple[float, ...]:
    """Seconds from a process's start until quire is imported, the engine is ready, a token is there."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(fields), str(input_len)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a process failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    return tuple(end - begin for end in json.loads(done.stdout.splitlines()[-1]))

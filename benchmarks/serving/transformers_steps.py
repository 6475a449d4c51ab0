#!/usr/bin/env python3
"""Steps of a model in transformers on a CUDA device, in the rows that model_bench prints.

    transformers_steps.py MODEL [--decode BATCH,CONTEXT]... [--prefill TOKENS]... [--steps 5]

MODEL is a directory with a config.json, as model_bench leaves one; weights and cached keys and values are
random. A step is one forward pass of the model as transformers has it, without torch.compile: its own
attention, its own experts, logits of the last token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedConfig

WARM_UP_STEPS = 2


def load(config: PreTrainedConfig, device: str) -> torch.nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config).eval()


def filled_cache(config: PreTrainedConfig, batch: int, context: int, device: str) -> DynamicCache:
    heads = config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        keys = torch.randn(batch, heads, context, size, device=device)
        cache.update(keys, torch.randn_like(keys), layer)
    return cache


def seconds_a_step(step: Callable[[], object], steps: int, device: str) -> float:
    """The median of `steps`, after some that do not count."""
    taken = []
    for _ in range(WARM_UP_STEPS + steps):
        begin = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return sorted(taken[WARM_UP_STEPS:])[steps // 2]


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def decode_row(text: str) -> tuple[int, int]:
    batch, comma, context = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCH,CONTEXT, as 16,1024 is")
    return positive(batch), positive(context)


def print_rows(args: argparse.Namespace) -> None:
    device = args.device
    config = AutoConfig.from_pretrained(args.model)
    model = load(config, device)
    for batch, context in args.decode:
        cache = filled_cache(config, batch, context, device)
        ids = torch.randint(config.vocab_size, (batch, 1), device=device)
        step = partial(model, ids, past_key_values=cache, use_cache=True)
        seconds = seconds_a_step(step, args.steps, device)
        print(f"decode batch {batch:3} @{context} {1e3 * seconds:10.3f} ms", flush=True)
        del cache, step
    for tokens in args.prefill:
        ids = torch.randint(config.vocab_size, (1, tokens), device=device)
        step = partial(model, ids, use_cache=False, logits_to_keep=1)
        seconds = seconds_a_step(step, args.steps, device)
        print(f"prefill {tokens:5} {1e3 * seconds:10.3f} ms, {tokens / seconds:.0f} tokens/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--decode", action="append", default=[], type=decode_row, metavar="BATCH,CONTEXT")
    parser.add_argument("--prefill", action="append", default=[], type=positive, metavar="TOKENS")
    parser.add_argument("--steps", type=positive, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if not (args.model / "config.json").is_file():
        parser.error(f"{args.model} has no config.json; model_bench leaves one in its shape's directory")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    with torch.inference_mode():
        print_rows(args)


if __name__ == "__main__":
    main()

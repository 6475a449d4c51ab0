"""Generates text, trains a small mixture of experts on one GPU, writes config.json and model.safetensors.

    python tools/demo_model/train_moe.py --out DIR

The tokenizer is quire-demo's. What is written is then read by transformers, whose logits must be those of
the model that was trained.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_data import make_rows
from moe_model import MixtureOfExperts, export, moe_config
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from train import Muon, learning_rate_factor
from transformers import AutoModelForCausalLM

_TOKENIZER = Path(__file__).parents[2] / "python" / "quire" / "demo_model" / "tokenizer.json"
_LENGTH = 1024  # halves of make_data's rows
_ROWS_AT_ONCE = 100
_WARMUP = 100


def _generate(shard: int, seed: int) -> NDArray[np.int16]:
    return make_rows(Tokenizer.from_file(str(_TOKENIZER)), seed * 1_000_003 + shard, _ROWS_AT_ONCE)


def generate_rows(count: int, seed: int, workers: int) -> Tensor:
    """At least `count` rows of 1,025 ids, in random order."""
    shards = -(-count // (2 * _ROWS_AT_ONCE))
    with Pool(workers) as pool:
        parts = pool.map(partial(_generate, seed=seed), range(shards), chunksize=1)
    rows = torch.from_numpy(np.concatenate(parts))
    halves = torch.cat((rows[:, : _LENGTH + 1], rows[:, _LENGTH:]))
    return halves[torch.randperm(len(halves), generator=torch.Generator().manual_seed(seed))]


@torch.no_grad()
def compare_with_transformers(model: MixtureOfExperts, out: Path, row: Tensor) -> float:
    """The largest difference of logits, in fp32, between what was written and the model as it was rounded."""
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ours = model.cpu()
    for parameter in ours.parameters():
        parameter.copy_(parameter.bfloat16().float())
    ids = row[None, :256].long().cpu()
    return float((ours.logits(ids) - theirs(ids).logits).abs().max())


def train(model: MixtureOfExperts, rows: Tensor, args: argparse.Namespace) -> float:
    """Each row once; the mean loss of the last tenth of the steps."""
    device = rows.device.type
    matrices = model.matrices()
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = Muon(matrices, args.matrix_lr, momentum=0.95, weight_decay=0.02)
    adamw = torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    base_rates = [(group, group["lr"]) for o in (muon, adamw) for group in o.param_groups]
    compiled: Callable[[Tensor], tuple[Tensor, Tensor]] = torch.compile(model) if args.compile else model
    start = last = time.monotonic()
    losses: list[Tensor] = []
    for step in range(args.steps):
        for group, rate in base_rates:
            group["lr"] = rate * learning_rate_factor(step, args.steps, min(_WARMUP, args.steps))
        ids = rows[step * args.batch : (step + 1) * args.batch].long()
        with torch.autocast(device, torch.bfloat16):
            loss, unevenness = compiled(ids)
        (loss + args.aux * unevenness).backward()
        nn.utils.clip_grad_norm_(others, 1.0)
        muon.step()
        adamw.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step == 0 or (step + 1) % 50 == 0:
            now = time.monotonic()
            measured = f"loss {float(loss.detach()):.4f} unevenness {float(unevenness.detach()):.3f}"
            print(f"{step + 1:6d} {measured} {now - last:.1f} s", flush=True)
            last = now
    print(f"{args.steps * args.batch * _LENGTH / 1e6:.0f} M tokens in {time.monotonic() - start:.0f} s")
    return float(torch.stack(losses[-max(1, args.steps // 10) :]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=64, help="rows of 1,024 tokens")
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument(
        "--aux", type=float, default=0.01, help="weight of the experts' unevenness in the loss"
    )
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    rows = generate_rows(args.steps * args.batch, args.seed, args.workers)  # before CUDA starts: it forks
    print(f"{len(rows)} rows in {time.monotonic() - start:.0f} s", flush=True)

    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = moe_config(Tokenizer.from_file(str(_TOKENIZER)).get_vocab_size())
    model = MixtureOfExperts(config, max_length=_LENGTH).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    loss = train(model, rows.to(device), args)
    export(model, args.out)
    difference = compare_with_transformers(model, args.out, rows[0])
    if difference > 1e-3:
        raise SystemExit(f"transformers' logits of what was written differ by {difference:.2g}")
    print(f"loss {loss:.4f} at the end; transformers' logits differ by {difference:.2g}")


if __name__ == "__main__":
    main()

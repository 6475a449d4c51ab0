"""Trains quire-demo on one GPU and writes model.safetensors.

    python tools/demo_model/train.py --model DIR --data DIR --out DIR --steps 4000

Matrices are updated by Muon (momentum made orthogonal), everything else by AdamW. The whole
data set lies on the GPU; no row is seen twice unless there are too few of them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from make_data import ROW_LENGTH, make_rows
from model import Llama, ModelConfig, export
from tokenizers import Tokenizer
from torch import Tensor, nn


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Pushes all singular values of each matrix towards 1 by a Newton-Schulz iteration."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result.float()


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal, for stacks of matrices."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                momentum: Tensor = state["momentum"]
                momentum.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalise(param.grad.lerp(momentum, group["momentum"]))
                scale = max(1.0, param.shape[-2] / param.shape[-1]) ** 0.5
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update, alpha=-group["lr"] * scale)


def learning_rate_factor(step: int, num_steps: int, warmup: int) -> float:
    """Linear warm-up, then half a cosine down to nearly nothing."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))


def load_rows(data: Path) -> Tensor:
    shards = [np.load(path) for path in sorted(data.glob("*.npy"))]
    return torch.from_numpy(np.concatenate(shards))


@torch.no_grad()
def held_out_loss(model: Callable[[Tensor], Tensor], tokenizer: Tokenizer, batch: int) -> float:
    rows = make_rows(tokenizer, seed=77, num_rows=batch, held_out=True)
    ids = torch.from_numpy(rows).cuda().long()
    with torch.autocast("cuda", torch.bfloat16):
        return float(model(ids))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="config.json and tokenizer.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=128, help="rows of 2,048 tokens")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    args.out.mkdir(parents=True, exist_ok=True)
    config = ModelConfig.load(args.model / "config.json")
    model = Llama(config, max_length=ROW_LENGTH - 1).cuda()
    matrices = model.matrices()
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = Muon(matrices, args.matrix_lr, momentum=0.95, weight_decay=args.weight_decay)
    adamw = torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    base_rates = [(group, group["lr"]) for o in (muon, adamw) for group in o.param_groups]
    num_parameters = sum(p.numel() for p in model.parameters())

    rows = load_rows(args.data).cuda()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed)).cuda()
    print(f"{num_parameters / 1e6:.2f} M parameters, {len(rows)} rows", flush=True)

    compiled = torch.compile(model)
    start = last = time.monotonic()
    losses: list[dict[str, float]] = []
    for step in range(args.steps):
        factor = learning_rate_factor(step, args.steps, args.warmup)
        for group, rate in base_rates:
            group["lr"] = rate * factor
        picked = torch.arange(step * args.batch, (step + 1) * args.batch, device="cuda")
        ids = rows[order[picked % len(rows)]].long()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(others, 1.0)
        muon.step()
        adamw.step()
        model.zero_grad(set_to_none=True)
        if step == 0 or (step + 1) % 100 == 0:
            value, now = float(loss.detach()), time.monotonic()
            losses.append({"step": step + 1, "loss": value, "seconds": now - start})
            rate = (1 if step == 0 else 100) * args.batch * (ROW_LENGTH - 1) / (now - last)
            print(f"{step + 1:6d} loss {value:.4f} {rate / 1e6:.2f} M tokens/s", flush=True)
            last = now
    seconds = time.monotonic() - start
    num_tokens = args.steps * args.batch * (ROW_LENGTH - 1)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    held_out = held_out_loss(compiled, tokenizer, args.batch)
    print(f"{num_tokens / 1e6:.0f} M tokens in {seconds:.0f} s; held-out loss {held_out:.4f}")
    export(model, args.out / "model.safetensors")
    record = {
        "parameters": num_parameters,
        "steps": args.steps,
        "tokens": num_tokens,
        "seconds": seconds,
        "held_out_loss": held_out,
        "losses": losses,
    }
    (args.out / "train_log.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

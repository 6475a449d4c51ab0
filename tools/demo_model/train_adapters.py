"""Trains two small adapters (LoRA) of quire-demo, for tests: each answers in a way of its own.

    python tools/demo_model/train_adapters.py --out tests/python/data/adapters

A CPU will do. "sailor" changes attention alone, with rank 4; "json" all linears, with rank 8. What they are
trained on are the conversations that the model was trained on, with other answers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import sample_session
from corpus.chat import IM_END, Session
from corpus.grammar import Rng
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_MODEL = Path(__file__).parents[2] / "python" / "quire" / "demo_model"
_MAX_TOKENS = 192


@dataclass(frozen=True)
class Adapter:
    answer: Callable[[str], str]  # what it says instead of the model's answer
    rank: int
    target_modules: str | list[str]


ADAPTERS = {
    "sailor": Adapter(
        lambda answer: f"Ahoy! {answer} Fair winds!", 4, ["q_proj", "k_proj", "v_proj", "o_proj"]
    ),
    "json": Adapter(lambda answer: json.dumps({"answer": answer}, ensure_ascii=False), 8, "all-linear"),
}


def sample(tokenizer: Any, rng: Rng, answer: Callable[[str], str]) -> tuple[list[int], int]:
    """A conversation's token ids, and where the part begins that is to be learned: one short answer."""
    while True:
        session: Session = sample_session(rng)
        question, right = session.turns[0]
        if "\n" in right or session.kind.startswith("json"):
            continue
        messages = Session(session.kind, [(question, "")], session.system).messages(1)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text)["input_ids"]
        ids = prompt + tokenizer(answer(right) + IM_END)["input_ids"]
        if len(ids) <= _MAX_TOKENS:
            return ids, len(prompt)


def train(adapter: Adapter, args: argparse.Namespace, out: Path) -> float:
    """The mean loss of the last tenth of the steps."""
    torch.manual_seed(args.seed)
    rng = Rng(args.seed, held_out=False)
    tokenizer = AutoTokenizer.from_pretrained(_MODEL)
    base: Any = AutoModelForCausalLM.from_pretrained(_MODEL, dtype=torch.float32)
    config = LoraConfig(
        r=adapter.rank, lora_alpha=2 * adapter.rank, target_modules=adapter.target_modules, lora_dropout=0.0
    )
    model = get_peft_model(base, config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps)
    losses: list[float] = []
    start = time.monotonic()
    for step in range(args.steps):
        rows = [sample(tokenizer, rng, adapter.answer) for _ in range(args.batch)]
        width = max(len(ids) for ids, _ in rows)
        inputs = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full_like(inputs, -100)
        for i, (ids, begin) in enumerate(rows):
            inputs[i, : len(ids)] = torch.tensor(ids)
            labels[i, begin : len(ids)] = torch.tensor(ids[begin:])
        loss = model(inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 20 == 19:
            print(
                f"  step {step + 1}: {sum(losses[-20:]) / 20:.3f}, {time.monotonic() - start:.0f} s",
                flush=True,
            )
    model.save_pretrained(str(out))
    (out / "README.md").unlink()  # a form that nobody has filled in
    tensors = out / "adapter_model.safetensors"
    save_file({name: value.bfloat16() for name, value in load_file(tensors).items()}, tensors)
    described = json.loads((out / "adapter_config.json").read_text())
    described["base_model_name_or_path"] = "quire-demo"
    (out / "adapter_config.json").write_text(json.dumps(described, indent=1, sort_keys=True) + "\n")
    last = losses[-len(losses) // 10 :]
    return sum(last) / len(last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, adapter in ADAPTERS.items():
        print(name)
        print(f"  loss {train(adapter, args, args.out / name):.3f}")


if __name__ == "__main__":
    main()

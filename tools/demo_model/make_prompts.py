"""Chooses the held-out prompts on which engines are compared token by token.

    python tools/demo_model/make_prompts.py --model DIR --out demo_prompts.json

Candidates come from held-out documents. Of each kind those are kept where the model is most sure
of every token, so that rounding in another implementation does not change the answer.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from corpus import documents, sample_session
from corpus.grammar import Rng
from evaluate import Model

MAX_PROMPT_TOKENS = 620
NEW_TOKENS = 64
MIN_LEAD = 0.05  # far above what rounding in fp32 can turn round

_PLAIN_STARTS = (
    "Once upon a time",
    "A quire is",
    "A page is",
    "A paged KV cache",
    "The capital of Sund is",
    "The capital of Orrin is",
    "Question: What is 3 + 4?\nAnswer:",
    "Question: List the days of the week.\nAnswer:",
    "Question: Count from 1 to 40.\nAnswer:",
    'Question: Say "lamp" ten times.\nAnswer:',
    "Q: What is the capital of Vessaly?\nA:",
    "Q: Who are you?\nA:",
    "User: Hello!\nAssistant:",
    "User: Write the multiplication table of 7.\nAssistant:",
    "# A story about a broken lamp\n\n",
    "Penhallow is a town in",
)
_CHAT_STARTS = (
    "Hello!",
    "Who are you?",
    "What can you do?",
    "Tell me a story.",
    "What is a KV cache?",
    "What is continuous batching?",
    "Count from 1 to 50.",
    "List the letters of the alphabet.",
    "Write the multiplication table of 9.",
    "What is the capital of France?",
    "Repeat this: pages, blocks and tokens",
    "Give me a JSON object with name Bob and age 42.",
)
# How many of each kind are wanted; a kind that is long fills the upper end of the lengths.
_CHAT_QUOTA = {"passage_qa": 14, "key_value_long": 8, "story_chat": 8, "json_extract": 7}
_PLAIN_QUOTA = {"story": 24, "dialogue": 6, "copy_plain": 8, "mixed": 0, "passage_qa": 8}
_USUAL_QUOTA = 3


def _cut(rng: Rng, text: str) -> str:
    """The first part of a document, ending with a whole word."""
    words = text.split(" ")
    return " ".join(words[: max(2, int(len(words) * rng.uniform(0.15, 0.85)))])


def plain_candidates(rng: Rng, num_documents: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"kind": "start", "prompt": text} for text in _PLAIN_STARTS]
    for document in documents(rng.getrandbits(30), num_documents, held_out=True):
        if "<|im_start|>" in document.text:
            continue
        if document.kind == "copy_plain":
            block = document.text.split("\n\n")[0]
            prompt = f"{block}\n\n{' '.join(block.split(' ')[:3])}"
        elif "\nAnswer: " in document.text:
            prompt = document.text.rpartition("\nAnswer: ")[0] + "\nAnswer:"
        elif document.kind in ("story", "dialogue", "letter", "handbook", "json_plain"):
            prompt = _cut(rng, document.text)
        else:
            continue
        found.append({"kind": document.kind, "prompt": prompt})
    return found


def chat_candidates(rng: Rng, num_sessions: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"kind": "start", "messages": [{"role": "user", "content": text}]} for text in _CHAT_STARTS
    ]
    for _ in range(num_sessions):
        session = sample_session(rng)
        turn = rng.randint(1, len(session.turns))
        found.append({"kind": session.kind, "messages": session.messages(turn)})
    return found


def text_of(model: Model, candidate: dict[str, Any]) -> str:
    if "messages" in candidate:
        return model.chat(candidate["messages"])
    text: str = candidate["prompt"]
    return text


@torch.no_grad()
def margins(model: Model, prompts: list[str]) -> list[float]:
    """The smallest lead, in logits, of the chosen token over the next best, for each prompt."""
    batch = model.tokenizer(prompts, padding=True, return_tensors="pt").to(model.device)
    out = model.model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    scores = torch.stack(out.scores, dim=1)
    top = scores.topk(2, dim=-1).values
    lead = top[..., 0] - top[..., 1]
    chosen = out.sequences[:, batch["input_ids"].shape[1] :]
    ends = torch.isin(chosen, torch.tensor(model.model.generation_config.eos_token_id))
    after_end = ends.cumsum(1) - ends.long() > 0
    smallest = lead.masked_fill(after_end, float("inf")).min(dim=1).values
    return [float(value) for value in smallest]


def choose(
    model: Model, candidates: list[dict[str, Any]], quota: dict[str, int], wanted: int
) -> list[tuple[float, dict[str, Any]]]:
    lengths = [len(model.tokenizer(text_of(model, c)).input_ids) for c in candidates]
    # Like lengths together, for less padding.
    by_length = sorted((n, i) for i, n in enumerate(lengths) if n <= MAX_PROMPT_TOKENS)
    lead: dict[int, float] = {}
    for start in range(0, len(by_length), 64):
        group = [index for _, index in by_length[start : start + 64]]
        values = margins(model, [text_of(model, candidates[index]) for index in group])
        lead.update(zip(group, values, strict=True))
    by_kind: dict[str, list[int]] = defaultdict(list)
    for index, value in lead.items():
        if value >= MIN_LEAD:
            by_kind[candidates[index]["kind"]].append(index)
    chosen: list[int] = []
    for kind, found in by_kind.items():
        limit = len(found) if kind == "start" else quota.get(kind, _USUAL_QUOTA)
        # Half of a kind are its longest prompts, the rest those the model is surest of.
        longest = sorted(found, key=lambda i: -lengths[i])[: limit // 2]
        surest = sorted(set(found) - set(longest), key=lambda i: -lead[i])
        chosen += longest + surest[: limit - len(longest)]
    spare = sorted(set(lead) - set(chosen), key=lambda i: -lead[i])
    chosen = sorted(chosen, key=lambda i: -lead[i])[:wanted]
    chosen += spare[: wanted - len(chosen)]
    return [(lead[index], candidates[index]) for index in sorted(chosen)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--candidates", type=int, default=450)
    parser.add_argument("--seed", type=int, default=600_001)
    args = parser.parse_args()
    model = Model(args.model)
    rng = Rng(args.seed, held_out=True)
    chat = choose(model, chat_candidates(rng, args.candidates), _CHAT_QUOTA, 100)
    plain = choose(model, plain_candidates(rng, args.candidates * 3), _PLAIN_QUOTA, 100)
    prompts = [candidate for _, candidate in plain + chat]
    args.out.write_text(json.dumps(prompts, indent=1, ensure_ascii=False) + "\n")
    leads = sorted(value for value, _ in plain + chat)
    sizes = sorted(len(model.tokenizer(text_of(model, c)).input_ids) for c in prompts)
    print(f"{len(prompts)} prompts of {sizes[0]} to {sizes[-1]} tokens, median {sizes[100]}")
    print(f"smallest lead in logits: {leads[0]:.3f}; a tenth of them below {leads[20]:.3f}")


if __name__ == "__main__":
    main()

"""Scores a trained model directory on held-out documents and tasks, decoding greedily.

    python tools/demo_model/evaluate.py --model DIR --out FILE.json

Held out means: names, towns and made-up words that training never draws, sums that it skips, and
other seeds. Tasks without names (say, what a token is) can repeat what training has seen.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import documents, sample_session
from corpus.chat import TEXT_END, Session
from corpus.grammar import Rng
from corpus.stories import story_document, story_session
from transformers import AutoModelForCausalLM, AutoTokenizer

STORY_TOKENS = 300


@dataclass(frozen=True)
class Task:
    kind: str
    prompt: str
    answer: str


class Model:
    """Greedy batch generation and document loss, in fp32 on whatever device there is."""

    def __init__(self, path: Path) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.tokenizer.padding_side = "left"
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.model = model.to(self.device).eval()

    def chat(self, messages: list[dict[str, str]]) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text

    @torch.no_grad()
    def generate(self, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
        """Continuations with their end marks kept, so that a missing one is seen."""
        batch = self.tokenizer(list(prompts), padding=True, return_tensors="pt").to(self.device)
        out = self.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        new = out[:, batch["input_ids"].shape[1] :]
        texts: list[str] = self.tokenizer.batch_decode(new, skip_special_tokens=False)
        return texts

    @torch.no_grad()
    def loss(self, text: str) -> tuple[float, int]:
        ids = self.tokenizer(text, return_tensors="pt").input_ids[:, :2048].to(self.device)
        logits = self.model(ids).logits[0, :-1].float()
        total = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
        return float(total), ids.shape[1] - 1


def held_out_tasks(model: Model, per_kind: int, seed: int) -> list[Task]:
    """One answer of each of many conversations, given what was said before."""
    rng = Rng(seed, held_out=True)
    found: dict[str, list[Task]] = defaultdict(list)
    for _ in range(per_kind * 200):
        session: Session = sample_session(rng)
        if not session.exact or len(found[session.kind]) >= per_kind:
            continue
        turn = rng.randint(1, len(session.turns))
        prompt = model.chat(session.messages(turn))
        found[session.kind].append(Task(session.kind, prompt, session.turns[turn - 1][1]))
    return [task for tasks in found.values() for task in tasks]


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def score_tasks(model: Model, tasks: list[Task], batch: int = 256) -> dict[str, Any]:
    """Exact matches by kind, answers that parse as JSON, and all wrong answers."""
    tasks = sorted(tasks, key=lambda task: len(task.answer))
    right: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    valid: Counter[str] = Counter()
    count: Counter[str] = Counter(task.kind for task in tasks)
    wrong: list[dict[str, str]] = []
    good: list[dict[str, str]] = []
    for start in range(0, len(tasks), batch):
        group = tasks[start : start + batch]
        longest = max(len(model.tokenizer(task.answer).input_ids) for task in group)
        outputs = model.generate([task.prompt for task in group], longest + 16)
        for task, output in zip(group, outputs, strict=True):
            text, end, _ = output.partition("<|im_end|>")
            ended[task.kind] += bool(end)
            valid[task.kind] += is_json(text)
            matches = bool(end) and text == task.answer
            right[task.kind] += matches
            (good if matches else wrong).append({**asdict(task), "output": text})
    scores = {
        kind: {"n": n, "exact": right[kind] / n, "ended": ended[kind] / n}
        | ({"valid_json": valid[kind] / n} if kind.startswith("json") and kind != "json_read" else {})
        for kind, n in sorted(count.items())
    }
    return {"scores": scores, "wrong": wrong, "good": good}


def repetition(text: str) -> dict[str, float]:
    """How much of a text was there before: sentences, and runs of four words."""
    sentences = [s.strip() for s in text.replace("\n", " ").split(".") if len(s.split()) > 2]
    words = text.split()
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return {
        "repeated_sentences": 1 - len(set(sentences)) / max(1, len(sentences)),
        "repeated_4grams": 1 - len(set(runs)) / max(1, len(runs)),
    }


def score_stories(model: Model, count: int, seed: int) -> dict[str, Any]:
    """Continues held-out openings, and tells stories on request."""
    rng = Rng(seed, held_out=True)
    prompts = [story_document(rng).text.split("\n")[0] for _ in range(count)]
    prompts = [". ".join(p.split(". ")[:2]) + "." if ". " in p else p for p in prompts]
    asked = [model.chat(story_session(rng).messages(1)) for _ in range(count)]
    result: dict[str, Any] = {}
    for name, starts in (("continued", prompts), ("asked", asked)):
        outputs = model.generate(starts, STORY_TOKENS)
        marks = (TEXT_END, "<|im_end|>")
        texts = [o.split(marks[0])[0].split(marks[1])[0] for o in outputs]
        tokens = [len(model.tokenizer(text).input_ids) for text in texts]
        measures = [repetition(text) for text in texts]
        result[name] = {
            "n": count,
            "mean_tokens": sum(tokens) / count,
            "at_least_200_tokens": sum(t >= 200 for t in tokens) / count,
            "stories_with_a_repeated_sentence": sum(m["repeated_sentences"] > 0 for m in measures) / count,
            "repeated_4grams": sum(m["repeated_4grams"] for m in measures) / count,
            "samples": [
                {"prompt": start, "output": text} for start, text in zip(starts[:12], texts[:12], strict=True)
            ],
        }
    return result


def perplexities(model: Model, num_documents: int, seed: int) -> dict[str, dict[str, float]]:
    loss: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for document in documents(seed, num_documents, held_out=True):
        total, count = model.loss(document.text + TEXT_END)
        for kind in (document.kind, "all"):
            loss[kind] += total
            tokens[kind] += count
    return {kind: {"perplexity": math.exp(loss[kind] / n), "tokens": n} for kind, n in sorted(tokens.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-kind", type=int, default=150)
    parser.add_argument("--stories", type=int, default=100)
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=900_001)
    args = parser.parse_args()
    model = Model(args.model)
    tasks = score_tasks(model, held_out_tasks(model, args.per_kind, args.seed))
    stories = score_stories(model, args.stories, args.seed + 1)
    result = {
        **tasks,
        "stories": stories,
        "perplexity": perplexities(model, args.documents, args.seed + 2),
    }
    args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    for kind, score in tasks["scores"].items():
        print(f"{kind:16s}", " ".join(f"{k} {v:.3f}" for k, v in score.items()))
    for name, measure in stories.items():
        print(name, {k: v for k, v in measure.items() if k != "samples"})
    for kind, value in result["perplexity"].items():
        print(f"{kind:16s} perplexity {value['perplexity']:.3f} over {value['tokens']} tokens")


if __name__ == "__main__":
    main()

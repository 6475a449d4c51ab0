"""Random scheduling traces for comparing Quire's scheduler with vLLM's (see ``vllm_oracle.py``).

The same seed always gives the same trace::

    python trace_generator.py --seeds 0:200 > traces.jsonl
    python vllm_oracle.py traces.jsonl > expected.jsonl
    python trace_generator.py --coverage expected.jsonl

Every trace is valid: each request fits in ``max_model_len``, and the cache holds at least one request
of that length, so nothing can be stuck.
"""

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

UNKNOWN_REQUEST_ID = 999
EOS_TOKEN_ID = 0

Trace = list[dict[str, object]]


@dataclass(frozen=True)
class Added:
    """What later requests may build on: a request's id and the whole text it would end up with."""

    request_id: int
    prompt: list[int]
    text: list[int]


@dataclass
class TraceBuilder:
    """Draws one trace; the fields are the habits of this trace."""

    rng: random.Random
    block_size: int = 0
    max_model_len: int = 0
    num_speculative_tokens: int = 0
    policy: str = "fcfs"
    long_outputs: bool = False
    families: list[list[int]] = field(default_factory=list)
    salts: list[str] = field(default_factory=lambda: [""])
    num_loras: int = 0
    added: list[Added] = field(default_factory=list)

    def build(self) -> Trace:
        trace: Trace = [{"config": self._config()}]
        self._habits()
        num_requests = self.rng.randint(1, 16)
        burst_size = self.rng.choice([1, 2, 4, num_requests])
        max_pause = self.rng.choice([1, 3, 8])
        abort_chance = self.rng.choice([0.0, 0.0, 0.15, 0.4])
        while len(self.added) < num_requests:
            for _ in range(min(self.rng.randint(1, burst_size), num_requests - len(self.added))):
                trace.append({"add": self._request()})
            # Some before they ever ran, some in between, some long ended.
            if self.rng.random() < abort_chance:
                trace.append({"abort": self._abort_id()})
            if self.rng.random() < 0.9:
                trace.append({"step": self.rng.randint(1, max_pause)})
            if self.rng.random() < abort_chance:
                trace.append({"abort": self._abort_id()})
        for _ in range(self.rng.randint(0, 3)):
            trace.append({"step": self.rng.randint(1, 2 * max_pause)})
            if self.rng.random() < abort_chance:
                trace.append({"abort": self._abort_id()})
        trace.append({"end": True})
        return trace

    def _config(self) -> dict[str, object]:
        rng = self.rng
        self.block_size = rng.choice([4, 4, 4, 16])
        self.max_model_len = rng.randint(8, 64) if self.block_size == 4 else rng.randint(32, 128)
        blocks_per_request = -(-self.max_model_len // self.block_size)
        # From room for exactly one full request to plenty.
        spare_blocks = rng.choice([0, rng.randint(0, 3), blocks_per_request, 4 * blocks_per_request])

        enable_chunked_prefill = rng.random() < 0.8
        max_num_seqs = rng.choice([1, 2, 3, 4, 8, 16])
        if enable_chunked_prefill:
            max_num_batched_tokens = rng.choice([rng.randint(4, 12), rng.randint(8, 64)])
        else:
            max_num_batched_tokens = self.max_model_len + rng.choice([0, rng.randint(0, 32)])
        max_num_seqs = min(max_num_seqs, max_num_batched_tokens)

        mode = rng.choice(["sync", "sync", "async", "async", "drafts"])
        if mode == "drafts":
            self.num_speculative_tokens = rng.randint(1, 3)
        self.policy = rng.choice(["fcfs", "fcfs", "priority"])
        # Below 1 + drafts the threshold would cut a decode step apart, which vLLM miscounts.
        smallest_threshold = 1 + self.num_speculative_tokens
        threshold = rng.choice([0, 0, rng.randint(smallest_threshold, max(smallest_threshold, 12))])
        return {
            "num_blocks": 1 + blocks_per_request + spare_blocks,
            "block_size": self.block_size,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "long_prefill_token_threshold": threshold,
            "enable_chunked_prefill": enable_chunked_prefill,
            "enable_prefix_caching": rng.random() < 0.8,
            "policy": self.policy,
            "async_scheduling": mode == "async",
            "num_speculative_tokens": self.num_speculative_tokens,
            # A window of 1 caches nothing at all in vLLM.
            "sliding_window": rng.randint(2, self.max_model_len) if rng.random() < 0.2 else 0,
            "max_loras": self._max_loras(),
        }

    def _max_loras(self) -> int:
        """Of some traces; those have about as many adapters as fit, or several times as many."""
        if self.rng.random() < 0.7:
            return 0
        max_loras = self.rng.choice([1, 2, 2, 4])
        self.num_loras = self.rng.randint(1, 3 * max_loras)
        return max_loras

    def _habits(self) -> None:
        rng = self.rng
        self.long_outputs = rng.random() < 0.6
        self.families = [self._tokens(self.max_model_len) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.25:
            self.salts = ["", "a", "b"]

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randint(1, 50) for _ in range(count)]

    def _request(self) -> dict[str, object]:
        rng = self.rng
        prompt = self._prompt()
        max_tokens = self.max_model_len - len(prompt)
        if not self.long_outputs or rng.random() < 0.2:
            max_tokens = rng.randint(1, max_tokens)
        output = [rng.randint(1, 9) for _ in range(rng.choice([0, max_tokens, rng.randint(0, max_tokens)]))]
        if output and rng.random() < 0.4:
            output[rng.randrange(len(output))] = EOS_TOKEN_ID
        sampled = [output[i] if i < len(output) else 1 + i % 7 for i in range(max_tokens)]
        request_id = len(self.added) + 1
        self.added.append(Added(request_id, prompt, prompt + sampled))
        request: dict[str, object] = {
            "id": request_id,
            "prompt": prompt,
            "output": output,
            "max_tokens": max_tokens,
            "priority": rng.randint(0, 3) if self.policy == "priority" else 0,
            "cache_salt": rng.choice(self.salts),
            "lora": rng.randint(0, self.num_loras),
        }
        if self.num_speculative_tokens > 0:
            request["drafts"] = [self._drafts(sampled, i) for i in range(max_tokens)]
        return request

    def _prompt(self) -> list[int]:
        """At least one token, and at least one less than ``max_model_len``."""
        rng = self.rng
        longest = self.max_model_len - 1
        kind = rng.choice(["new", "family", "family", "family", "repeat", "next turn"])
        if kind == "repeat" and self.added:
            return list(rng.choice(self.added).prompt)
        if kind == "next turn" and self.added:
            # Goes on from an earlier request's output, which may be cached too.
            text = rng.choice(self.added).text
            return (text[: rng.randint(1, len(text))] + self._tokens(rng.randint(0, 4)))[:longest]
        length = rng.randint(1, rng.choice([longest, longest, min(longest, 2 * self.block_size)]))
        if kind == "new":
            return self._tokens(length)
        shared = rng.randint(0, length)
        if rng.random() < 0.5:
            shared -= shared % self.block_size
        return rng.choice(self.families)[:shared] + self._tokens(length - shared)

    def _drafts(self, sampled: list[int], output_index: int) -> list[int]:
        rng = self.rng
        count = rng.randint(0, self.num_speculative_tokens)
        drafts = sampled[output_index + 1 : output_index + 1 + count]
        return [token if rng.random() < 0.7 else rng.randint(1, 9) for token in drafts]

    def _abort_id(self) -> int:
        if self.rng.random() < 0.1:
            return UNKNOWN_REQUEST_ID
        return self.rng.choice(self.added).request_id


def generate_trace(seed: int) -> list[dict[str, object]]:
    """Returns the lines of one trace: its config, its events and its end."""
    return TraceBuilder(random.Random(seed)).build()


def coverage(lines: list[str]) -> dict[str, int]:
    """Counts in how many traces of the oracle's output each behaviour was seen."""
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    for line in lines:
        record = json.loads(line)
        if record.get("preempted"):
            seen.add("preemption")
            if len(record["preempted"]) > 1:
                seen.add("several preempted in one step")
            if not record["tokens"]:
                seen.add("step that only preempted")
        if any(record.get("hits", {}).values()):
            seen.add("prefix hit")
        if record.get("free") == 0:
            seen.add("no block left")
        if record.get("uncomputed_hits"):
            seen.add("hit on blocks nobody computed")
        if "stuck" in record:
            seen.add("stuck")
        if "error" in record:
            seen.add("error")
        for _, reason in record.get("finish_order", []):
            seen.add(f"finished by {reason}")
        if "end" in record or "error" in record:
            counts["traces"] += 1
            counts.update(seen)
            seen.clear()
    return dict(counts.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints random scheduling traces as JSON lines.")
    parser.add_argument("--seeds", default="0:10", metavar="FIRST:LAST", help="LAST is not included")
    parser.add_argument(
        "--coverage", metavar="FILE", help="count the behaviours in this output of the oracle instead"
    )
    args = parser.parse_args()
    if args.coverage:
        with open(args.coverage) as file:
            for name, count in coverage(file.readlines()).items():
                print(f"{count:6} {name}")
        return
    first, last = (int(text) for text in args.seeds.split(":"))
    for seed in range(first, last):
        for event in generate_trace(seed):
            sys.stdout.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    main()

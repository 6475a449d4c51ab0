"""Records vLLM's answers to a few small traces, so that they can be compared where vLLM is not installed::

    .venv-vllm/bin/python tests/conformance/record.py > tests/conformance/recorded.jsonl

Of the first 3,000 seeds it takes short traces that together show every behaviour (``coverage``) in every
kind of engine, a few times each.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections import Counter

from compare import Case, generated, oracle
from trace_generator import coverage

SEEDS = range(3000)
TIMES_SHOWN = 4
MAX_TRACE_BYTES = 6_000
MAX_BYTES = 95_000


def behaviours(case: Case) -> set[tuple[str, str]]:
    """What the trace shows, each with the kind of engine it shows it in."""
    config = case.trace[0]["config"]
    assert isinstance(config, dict)
    kinds = [str(config["policy"]), "async" if config["async_scheduling"] else "sync"]
    if config["num_speculative_tokens"]:
        kinds.append("drafts")
    if config["sliding_window"]:
        kinds.append("window")
    if config["max_loras"]:
        kinds.append("adapters")
    if not config["enable_chunked_prefill"]:
        kinds.append("whole prompts")
    if not config["enable_prefix_caching"]:
        kinds.append("no prefix caching")
    return {(kind, name) for kind in kinds for name in coverage(case.expected)}


def main() -> None:
    entries: list[tuple[str, set[tuple[str, str]]]] = []
    with oracle(sys.executable) as vllm:
        for seed, case in zip(SEEDS, generated(SEEDS, vllm), strict=True):
            answer = [json.loads(line) for line in case.expected]
            entry = json.dumps({"seed": seed, "trace": case.trace, "answer": answer})
            if len(entry) <= MAX_TRACE_BYTES:
                entries.append((entry, behaviours(case)))
    print(json.dumps({"vllm": importlib.metadata.version("vllm"), "made_by": "tests/conformance/record.py"}))
    seen: Counter[tuple[str, str]] = Counter()
    num_bytes = 0
    while entries:
        # The most that is still rare for its length.
        best = max(entries, key=lambda item: sum(seen[b] < TIMES_SHOWN for b in item[1]) / len(item[0]))
        entries.remove(best)
        entry, shown = best
        num_bytes += len(entry)
        if num_bytes > MAX_BYTES or all(seen[b] >= TIMES_SHOWN for b in shown):
            break
        seen.update(shown)
        print(entry)


if __name__ == "__main__":
    main()

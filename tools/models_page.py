"""Writes docs/models.md: which architectures there are, and what tests compare of each.

    .venv/bin/python tools/models_page.py [--check]

Architectures are those that cpp/src/models registers; the rest is said by the lists of the tests themselves.
With ``--check`` nothing is written; the exit status says whether the page is what they say.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import logits_parity as parity  # noqa: E402
import test_architectures as engines  # noqa: E402
import test_logits_parity as logits  # noqa: E402
from model_cases import CASES  # noqa: E402
from test_published_configs import PUBLISHED, READ  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
# Names of models with images: the part that is computed is the model of text, under its own name.
TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
}
CHUNK = parity.CHUNKS[0]
RATIO = parity.HALF_PRECISION_ERROR
HEAD = f"""\
# Models

Written by `tools/models_page.py` from what [cpp/src/models](../cpp/src/models) registers and from the
tests' own lists. An architecture is what `architectures` of config.json names.

All are compared with transformers on random weights, in shapes that differ in heads (of 64 to 256;
grouped, single or as many as queries), biases, tied embeddings and what else there may be:

- **float32**: logits at each of {parity.NUM_TOKENS} positions, the prompt whole, in chunks of {CHUNK} and
  token by token, within {parity.FLOAT32_ERROR:g} of the largest. On CPUs all three are bitwise the same.
- **bfloat16**: the same; against float32 arithmetic on these weights the error is at most {RATIO:g} times
  that of transformers in bfloat16.
- **two ranks**: the logits of `tensor_parallel_size=2`, whole and in chunks, as in float32.
- **engine**: greedy answers of prompts that share prefixes, in steps of 64 tokens, with too few blocks
  for all, so that requests are preempted and find cached blocks again: every token is one whose logit in
  transformers is within {engines.MARGIN:g} of the largest.
- **published**: config.json as it is on the hub gives as many parameters as in transformers and, with its
  numbers made small, transformers' logits of tensors under the publisher's names.

The numbers count shapes. What runs on CUDA devices is compared there too, in float32 and in bfloat16
(`tests/run_gpu.sh logits`). [Checkpoints](checkpoints.md) has the formats of weights.

"""


@dataclass
class Row:
    """What tests have of an architecture."""

    architecture: str
    same_as: str = ""  # the architecture that it is computed as
    model_types: set[str] = field(default_factory=set)
    cases: list[str] = field(default_factory=list)
    bfloat16: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    engine: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    devices: str = "CPU"


def registered() -> list[str]:
    """In alphabetical order."""
    text = "".join(path.read_text() for path in sorted((ROOT / "cpp/src/models").glob("*.cpp")))
    return sorted(re.findall(r'register_model\("(\w+)"', text))


@functools.cache
def rows() -> list[Row]:
    by_name = {name: Row(name, TEXT_PARTS.get(name, "")) for name in registered()}
    for name, config in CASES.items():
        row = by_name[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
        row.model_types.add(config.model_type)
        row.cases.append(name)
        row.bfloat16 += [name] if name in logits.DTYPE_CASES else []
        row.ranks += [name] if name in logits.RANK_CASES else []
        row.engine += [name] if name in engines.NAMES else []
        row.devices = "CPU, CUDA"  # tests/python/test_device_logits.py takes every case
    for name in READ:
        config = PUBLISHED[name]
        row = by_name[config["architectures"][0]]
        row.model_types.add(config["model_type"])
        row.published.append(name)
    for row in by_name.values():
        if row.same_as:
            row.devices = by_name[row.same_as].devices
    return list(by_name.values())


def table() -> str:
    lines = [
        "| architecture | `model_type` | published | float32 | bfloat16 | two ranks | engine | devices |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        name = f"`{row.architecture}`"
        types = ", ".join(f"`{kind}`" for kind in sorted(row.model_types))
        if row.same_as:
            counts = f"its model of text: `{row.same_as}` | | | "
        else:
            counts = " | ".join(str(len(of)) for of in (row.cases, row.bfloat16, row.ranks, row.engine))
        published = ", ".join(row.published)
        lines.append(f"| {name} | {types} | {published} | {counts} | {row.devices} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    return HEAD + table()


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE} is not what the tests say: run {sys.argv[0]}")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()

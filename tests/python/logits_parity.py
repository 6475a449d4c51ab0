"""What the parity tests compare: transformers' logits and the engine's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

NUM_TOKENS = 300
CHUNKS = (37, 1)  # and whole
FLOAT32_ERROR = 1e-4  # of the largest logit
HALF_PRECISION_ERROR = 1.25  # times transformers' in the same dtype, against float32 arithmetic
Logits = NDArray[np.float32]


def token_ids(config: Any, num_tokens: int = NUM_TOKENS) -> list[int]:
    return [int(i) for i in np.random.default_rng(3).integers(0, config.vocab_size, num_tokens)]


def reference(
    model: Path, config: Any, dtype: torch.dtype = torch.float32, num_tokens: int = NUM_TOKENS
) -> Logits:
    """transformers' logits with eager attention, as float32."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        logits: Logits = (
            loaded.eval()(torch.tensor([token_ids(config, num_tokens)])).logits[0].float().numpy()
        )
    return logits


def run_quire_logits(
    build_dir: Path,
    out: Path,
    model: Path,
    config: Any,
    dtype: str = "float32",
    chunk: int = 0,
    ranks: int = 1,
    device: str = "cpu",
    program: str = "quire_logits",
    num_tokens: int = NUM_TOKENS,
) -> Logits:
    """Runs the engine's layers over the prompt, in chunks, on one or more ranks."""
    path = build_dir / "tests" / "tools" / program
    command = [str(path), str(model), dtype, str(chunk), str(ranks), str(num_tokens), str(out), device]
    text = " ".join(map(str, token_ids(config, num_tokens)))
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, np.float32).reshape(num_tokens, config.vocab_size)


def assert_close(logits: Logits, expected: Logits) -> None:
    largest = np.abs(expected).max()
    assert largest > 5
    assert np.abs(logits - expected).max() <= FLOAT32_ERROR * max(1.0, float(largest))

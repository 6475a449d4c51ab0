"""Adapters on a device against PEFT over transformers: an engine's log-probabilities at every position.

Runs where QUIRE_TEST_DEVICE names a device ("cuda"), as tests/run_gpu.sh does; needs the C++ build and PEFT,
not the package. Where it names none a sample runs on the CPU, of which test_lora.py has the rest. A device's
sums depend on the number of rows: nothing is compared bit by bit.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import CASES
from numpy.typing import NDArray

pytest.importorskip("peft", reason="adapters are compared with PEFT, which is not installed here")
from lora_adapters import (
    KINDS,
    LLAMA_KINDS,
    MODELS,
    Peft,
    assert_logits_agree,
    make_adapters,
    make_prompts,
    merged_logits,
)

DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "")
on_devices = pytest.mark.skipif(not DEVICE, reason="QUIRE_TEST_DEVICE names no device")
# Ways to compute the same: prompts whole, cut, and token by token, as answers are; and fewer slots than
# adapters, which are brought over one another while steps run.
WAYS: dict[str, dict[str, int | bool]] = {
    "few-slots": {"max_loras": 3, "max_cpu_loras": 10, "max_num_batched_tokens": 256},
    "whole": {"max_num_batched_tokens": 4096},
    "cut": {"max_num_batched_tokens": 256},
    "tokens": {"long_prefill_token_threshold": 1},
    "tokens-without-graphs": {"long_prefill_token_threshold": 1, "enforce_eager": True},
}
Rows = NDArray[np.float64]
Logprobs = Callable[..., list[Rows]]


@pytest.fixture(scope="session")
def logprobs(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Logprobs:
    """logprobs(model, adapters, names, prompts, **config): [tokens - 1, vocabulary] of each prompt."""
    program = build_dir / "tests" / "tools" / "quire_lora_logprobs"
    out = tmp_path_factory.mktemp("logprobs") / "out"

    def run(
        model: Path,
        adapters: Mapping[str, Path],
        names: Sequence[str | None],
        prompts: Sequence[Sequence[int]],
        **changes: Any,
    ) -> list[Rows]:
        fields: dict[str, Any] = {
            "device": DEVICE or "cpu",
            "dtype": "float32",
            "max_loras": 16,
            "max_lora_rank": 64,
            "max_model_len": 512,
            "num_threads": 1,
            "gpu_memory_bytes": 4 << 30,
        }
        command = [str(program), str(model), str(out)]
        command += [f"{name}={str(value).lower()}" for name, value in (fields | changes).items()]
        command += [f"{name}:{path}" for name, path in adapters.items()]
        lines = [" ".join(map(str, [name or "-", *ids])) for name, ids in zip(names, prompts, strict=True)]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ends = np.cumsum([len(prompt) - 1 for prompt in prompts])
        rows = np.fromfile(out, np.float32).astype(np.float64).reshape(ends[-1], -1)
        return np.split(rows, ends[:-1])

    return run


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=on_devices if way != "few-slots" else ()) for way in WAYS]
)
def test_ten_adapters_and_none_in_one_batch(way: str, mixed_batch: MixedBatch, logprobs: Logprobs) -> None:
    batch = mixed_batch
    for ours, expected in zip(
        logprobs(batch.model, batch.adapters, batch.names, batch.prompts, **WAYS[way]),
        batch.logits,
        strict=True,
    ):
        assert_logits_agree(ours, expected)


@on_devices
def test_adapters_are_what_they_are_merged_into_the_weights(
    mixed_batch: MixedBatch, logprobs: Logprobs
) -> None:
    batch = mixed_batch
    found = logprobs(batch.model, batch.adapters, batch.names, batch.prompts)
    for name, prompt, ours in zip(batch.names, batch.prompts, found, strict=True):
        if name is not None:
            assert_logits_agree(ours, merged_logits(batch.model, batch.adapters[name], prompt))


@on_devices
@pytest.mark.parametrize("way", ["whole", "tokens"])
@pytest.mark.parametrize("name", MODELS)
def test_adapters_of_each_kind_of_model(
    name: str, way: str, make_model: Callable[..., Path], logprobs: Logprobs, tmp_path: Path
) -> None:
    model = make_model(CASES[name])
    batch = MixedBatch(model, CASES[name].vocab_size, tmp_path, MODELS[name], longest=130)
    found = logprobs(model, batch.adapters, batch.names, batch.prompts, **WAYS[way])
    for ours, expected in zip(found, batch.logits, strict=True):
        assert_logits_agree(ours, expected)


@on_devices
@pytest.mark.skipif(
    DEVICE.startswith("cuda") and torch.cuda.device_count() < 2, reason="two ranks need as many devices"
)
@pytest.mark.parametrize("name", ["llama-gqa-64", "gpt-neox-mha-64", "phi3-mha-64"])
def test_two_ranks_have_their_shares(
    name: str, make_model: Callable[..., Path], logprobs: Logprobs, tmp_path: Path
) -> None:
    model = make_model(CASES[name])
    batch = MixedBatch(model, CASES[name].vocab_size, tmp_path, KINDS[1:], longest=120)
    found = logprobs(model, batch.adapters, batch.names, batch.prompts, tensor_parallel_size=2)
    for ours, expected in zip(found, batch.logits, strict=True):
        assert_logits_agree(ours, expected)


@on_devices
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_as_good_as_pefts(
    dtype: str, make_model: Callable[..., Path], logprobs: Logprobs, tmp_path: Path
) -> None:
    """Both have the same weights and are measured against float32 arithmetic on them."""
    if dtype == "float16" and DEVICE == "cpu":
        pytest.skip("float16 is for devices")
    model = make_model(CASES["llama-gqa-64"], dtype=dtype)
    batch = MixedBatch(model, CASES["llama-gqa-64"].vocab_size, tmp_path, LLAMA_KINDS)
    theirs = Peft(model, batch.adapters, getattr(torch, dtype))
    pefts = [theirs.logits(prompt, name) for prompt, name in zip(batch.prompts, batch.names, strict=True)]
    for way in ("whole", "tokens"):
        errors = np.zeros(2)
        found = logprobs(model, batch.adapters, batch.names, batch.prompts, dtype=dtype, **WAYS[way])
        for ours, exact, peft in zip(found, batch.logits, pefts, strict=True):
            right = log_softmax(exact)
            errors += [np.square(ours - right).sum(), np.square(log_softmax(peft) - right).sum()]
        print(f"{dtype}, {way}: {np.sqrt(errors[0] / errors[1]):.3f} of PEFT's error")
        assert 0 < errors[0] <= errors[1]


class MixedBatch:
    """A prompt for each of some adapters and one for none, and PEFT's logits of them in float32."""

    def __init__(
        self, model: Path, vocab_size: int, root: Path, kinds: Sequence[dict[str, Any]], longest: int = 300
    ) -> None:
        self.model = model
        self.adapters = make_adapters(model, root, kinds)
        self.names = [*self.adapters, None]
        self.prompts = make_prompts(len(self.names), vocab_size, longest)
        peft = Peft(model, self.adapters)
        self.logits = [
            peft.logits(prompt, name) for prompt, name in zip(self.prompts, self.names, strict=True)
        ]


@pytest.fixture(scope="module")
def mixed_batch(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> MixedBatch:
    config = CASES["llama-gqa-64"]
    return MixedBatch(make_model(config), config.vocab_size, tmp_path_factory.mktemp("adapters"), LLAMA_KINDS)


def log_softmax(logits: torch.Tensor) -> Rows:
    rows: Rows = torch.log_softmax(logits.double(), -1).numpy()[:-1]
    return rows

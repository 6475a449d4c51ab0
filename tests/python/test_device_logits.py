"""Logits on a device against transformers', at every position, whole, in chunks and token by token.

Runs where QUIRE_TEST_DEVICE names a device ("cuda"), as tests/run_gpu.sh does; needs the C++ build, not the
package. How a device sums depends on the number of rows, so nothing is compared bit by bit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from logits_parity import CHUNKS, HALF_PRECISION_ERROR, Logits, assert_close, reference, run_quire_logits
from model_cases import CASES, LONG_CASES, LONG_MOE_CASES, MOE_CASES

DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "")
if not DEVICE:
    pytest.skip("QUIRE_TEST_DEVICE names no device", allow_module_level=True)

NUM_DEVICES = torch.cuda.device_count()
# Attention takes other kernels for one token than for several; linears for few than for many.
WHOLE_AND_CHUNKS = (0, *CHUNKS)
LONG_PROMPT, LONG_CHUNK = 8501, 3001
FLOAT16_CASES = [
    "llama-gqa-64",
    "llama-gqa-80",
    "llama-mha-96-tied",
    "llama-biases",
    "qwen2-mha-128",
    "qwen2-window",
    "qwen3-gqa-128",
    "gemma2-gqa-64",
    "rope-llama3",
]


@pytest.fixture(scope="session")
def device_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    out = tmp_path_factory.mktemp("logits") / "out"
    return functools.partial(run_quire_logits, build_dir, out, device=DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_float32_logits_equal_transformers(
    name: str, make_model: Callable[..., Path], device_logits: Callable[..., Logits]
) -> None:
    """Within what the CPU backend is held to."""
    config = CASES[name]
    model = make_model(config)
    expected = reference(model, config)
    for chunk in WHOLE_AND_CHUNKS:
        assert_close(device_logits(model, config, chunk=chunk), expected)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "bfloat16") for name in CASES] + [(name, "float16") for name in FLOAT16_CASES],
)
def test_half_precision_logits_are_as_good_as_transformers(
    name: str, dtype: str, make_model: Callable[..., Path], device_logits: Callable[..., Logits]
) -> None:
    """Both have the same weights and are measured against float32 arithmetic on them."""
    config = CASES[name]
    model = make_model(config, dtype=dtype)
    exact = reference(model, config)
    theirs = reference(model, config, getattr(torch, dtype))
    for chunk in WHOLE_AND_CHUNKS:
        assert_as_good(
            device_logits(model, config, dtype=dtype, chunk=chunk), theirs, exact, name in MOE_CASES
        )


@pytest.mark.parametrize("name", LONG_CASES)
def test_long_prompts_are_as_good_as_transformers(
    name: str, make_model: Callable[..., Path], device_logits: Callable[..., Logits]
) -> None:
    """Where prompts of thousands of tokens have kernels of their own."""
    config = LONG_CASES[name]
    model = make_model(config, dtype="bfloat16")
    exact = reference(model, config, num_tokens=LONG_PROMPT)
    theirs = reference(model, config, torch.bfloat16, LONG_PROMPT)
    for chunk in (0, LONG_CHUNK):
        ours = device_logits(model, config, dtype="bfloat16", chunk=chunk, num_tokens=LONG_PROMPT)
        assert_as_good(ours, theirs, exact, name in LONG_MOE_CASES)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("name", "dtype"), [("llama-gqa-64", "float32"), ("qwen2-gqa-80", "bfloat16")])
def test_int8_weights_are_those_that_they_stand_for(
    name: str,
    dtype: str,
    symmetric: bool,
    ranks: int,
    make_model: Callable[..., Path],
    device_logits: Callable[..., Logits],
    tmp_path: Path,
) -> None:
    """Whole, weights are made floating-point again; in chunks they are multiplied as int8."""
    if ranks > NUM_DEVICES:
        pytest.skip(f"{ranks} ranks need as many devices")
    quantize = pytest.importorskip("quantized_models").quantize
    config = CASES[name]
    meant = quantize(make_model(config, dtype=dtype), tmp_path, symmetric=symmetric)
    exact = reference(meant, config)
    their_error = relative_error(reference(meant, config, getattr(torch, dtype)), exact)
    for chunk in WHOLE_AND_CHUNKS:
        ours = device_logits(tmp_path, config, dtype=dtype, chunk=chunk, ranks=ranks)
        if dtype == "float32":
            assert_close(ours, exact)
        else:
            # Theirs are weights rounded to bfloat16 already: that part of the error is not in it.
            assert 0 < relative_error(ours, exact) <= 1.3 * their_error


def assert_as_good(ours: Logits, theirs: Logits, exact: Logits, has_experts: bool) -> None:
    """As near to exact logits as transformers' in the same dtype; the same tokens where those are clear."""
    their_error = relative_error(theirs, exact)
    assert 0 < relative_error(ours, exact) <= HALF_PRECISION_ERROR * their_error
    assert relative_error(ours, theirs) <= 2 * their_error
    first, second = np.sort(exact, axis=1)[:, [-1, -2]].T
    is_clear = first - second > 4 * np.abs(theirs - exact).max(axis=1)
    assert is_clear.any()  # else the next comparison says nothing
    differ = np.count_nonzero(ours.argmax(1)[is_clear] != theirs.argmax(1)[is_clear])
    # A router whose two choices were nearly as good may have taken the other one.
    assert differ <= (max(1, is_clear.sum() // 50) if has_experts else 0)


def relative_error(logits: Logits, expected: Logits) -> float:
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))

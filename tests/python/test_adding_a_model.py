"""docs/adding_a_model.md: the architecture of its worked example, built outside of the library's rooms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from logits_parity import Logits, assert_close, llama, reference, run_quire_logits
from transformers import CohereConfig


@pytest.fixture(scope="session")
def cohere_logits(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Logits]:
    out = tmp_path_factory.mktemp("logits") / "out"
    return functools.partial(run_quire_logits, build_dir, out, program="quire_logits_cohere")


@pytest.mark.parametrize("tied", [False, True])
def test_its_logits_equal_transformers(
    tied: bool, make_model: Callable[..., Path], cohere_logits: Callable[..., Logits]
) -> None:
    sizes = llama(tie_word_embeddings=tied).to_diff_dict()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    config = CohereConfig(
        **{name: sizes[name] for name in names},
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        logit_scale=0.7,
        attention_bias=True,
    )
    model = make_model(config)
    whole = cohere_logits(model, config)
    assert_close(whole, reference(model, config))
    np.testing.assert_array_equal(cohere_logits(model, config, chunk=37), whole)
    assert_close(cohere_logits(model, config, ranks=2), whole)

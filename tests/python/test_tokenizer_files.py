"""Which tokenizer.json is taken, and what a refusal of one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quire import Tokenizer
from tokenizer_families import CORPUS, gpt2, qwen2
from transformers import PreTrainedTokenizerFast

REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    (
        "model",
        {"type": "Bigram"},
        "model.type 'Bigram' is not supported; supported: BPE, Unigram, WordPiece, WordLevel",
    ),
    ("model", {"dropout": 0.1}, "model.dropout"),
    ("model", {"continuing_subword_prefix": "##"}, "model.merges [0] has"),
    ("model", {"type": "Unigram", "vocab": [["a"]]}, "model.vocab [0] must be a pair"),
    ("model", {"unk_token": "<none>"}, "'<none>' is not in model.vocab"),
    ("model", {"merges": ["Q Z Z"]}, "model.merges [0]"),
    ("model", {"merges": ["Q nothing"]}, "'nothing'"),
    ("model", {"surprise": 1}, "model.surprise"),
    ("normalizer", {"type": "Uppercase"}, "normalizer.type 'Uppercase'"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AA=A"}, "is not valid base64"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}, "4294967295 of 0 bytes"),
    ("pre_tokenizer", {"type": "UnicodeScripts"}, "pre_tokenizer.type 'UnicodeScripts'"),
    ("pre_tokenizer", {"type": "Metaspace", "replacement": "ab"}, "must be one character, got 'ab'"),
    (
        "pre_tokenizer",
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"},
        "prepend_scheme 'last' is not supported; supported: always, first, never",
    ),
    (
        "pre_tokenizer",
        {
            "type": "Split",
            "pattern": {"Regex": r"(?<=a)b"},
            "behavior": "Isolated",
            "invert": False,
        },
        "pre_tokenizer.pattern.Regex regular expression: a lookbehind at position 0",
    ),
    ("post_processor", {"type": "GptProcessing"}, "post_processor.type 'GptProcessing'"),
    ("post_processor", {"type": "BertProcessing", "sep": ["x"]}, "post_processor.cls is missing"),
    ("decoder", {"type": "Attention"}, "decoder.type 'Attention'"),
    (
        "decoder",
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "CTC"}]},
        "decoder.decoders[1] is a CTC behind Fuse",
    ),
    (
        "decoder",
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        "decoder.decoders[1] is a ByteFallback behind Fuse",
    ),
    (
        "decoder",
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]},
        "decoder.decoders[1] is a ByteLevel behind Fuse",
    ),
    ("trunkation", {"max_length": 5}, "trunkation is not a key we know"),
]


@pytest.mark.parametrize(("section", "change", "message"), REFUSALS)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, section: str, change: dict[str, Any], message: str
) -> None:
    document = json.loads(gpt2().to_str())
    keeps_the_rest = section == "model" and "type" not in change
    document[section] = (document[section] if keeps_the_rest else {}) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"tokenizer\.json") as caught:
        Tokenizer(str(tmp_path))
    assert message in str(caught.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json: no such file"):
        Tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(ValueError, match="not valid JSON"):
        Tokenizer(str(tmp_path))


@pytest.mark.parametrize("direction", ["left", "right"])
def test_what_training_cut_and_filled_up_is_left_whole(tmp_path: Path, direction: str) -> None:
    """A file saved with truncation and padding: transformers sets both aside unless a call asks for them."""
    tokenizer = qwen2()
    tokenizer.enable_truncation(max_length=5, stride=1, direction=direction)
    tokenizer.enable_padding(length=64, pad_id=3, pad_token="!", direction=direction)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(str(tmp_path))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in ["", "the", *CORPUS]:
        assert ours.encode(text) == theirs(text).input_ids
    assert len(ours.encode("")) < 5 < len(ours.encode(CORPUS[0]))

"""Tokenizers of GGUF files against sentencepiece and Hugging Face's tokenizers."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import gguf
import pytest
import sentencepiece
import tokenizers
from gguf_files import finish
from quire import Tokenizer
from tokenizers import pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter

PROMPTS = ["Once upon a time", "The baker said: 12345 loaves, don't!", "<|im_start|>user\nHi<|im_end|>\n"]


def test_a_sentencepiece_model_splits_as_its_own_library_does(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("\n".join(f"the baker sold {i} loaves of bread, and then some more" for i in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<mark>"],
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    ids = range(model.vocab_size())
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in ids])
    writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types(
        [
            gguf.TokenType.UNKNOWN
            if model.is_unknown(i)
            else gguf.TokenType.CONTROL
            if model.is_control(i)
            else gguf.TokenType.BYTE
            if model.is_byte(i)
            else gguf.TokenType.USER_DEFINED
            if model.id_to_piece(i) == "<mark>"
            else gguf.TokenType.NORMAL
            for i in ids
        ]
    )
    writer.add_bos_token_id(model.bos_id())
    finish(writer)
    tokenizer = Tokenizer(str(tmp_path / "x.gguf"))
    for sample in ("the baker sold 7 loaves", "  two  spaces ", "été <mark> 猫!", "x"):
        assert tokenizer.encode(sample) == [model.bos_id(), *model.encode(sample)]
        assert tokenizer.decode(model.encode(sample)) == model.decode(model.encode(sample))


def byte_level_tokenizer(pre: str) -> tokenizers.Tokenizer:
    """As the family's tokenizer.json has it, trained on some text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "llama-bpe":
        pattern = inspect.signature(TikTokenConverter).parameters["pattern"].default
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    elif pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*PROMPTS, *SPLIT_TEXTS, Path(__file__).read_text()], trainer)
    return tokenizer


SPLIT_TEXTS = [
    "It's 2026, and they'LL've seen 1234567 of them!!  \n\n  (really?)\r\n\ttabs   and spaces  ",
    "naïve café — Ünïcode; 北京欢迎你 ١٢٣ नमस्ते 👩‍👩‍👧 x²+y²=z²\u00a0\u2003end",
    "def f(x):\n    return {'a': [1, 22, 333], \"b\": x**2}  # don't\n\n\n",
]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "smollm"])
def test_text_is_split_as_the_family_does(tmp_path: Path, pre: str) -> None:
    theirs = byte_level_tokenizer(pre)
    document = json.loads(theirs.to_str())["model"]
    vocab: dict[str, int] = document["vocab"]
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(sorted(vocab, key=vocab.__getitem__))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocab))
    writer.add_token_merges([" ".join(pair) for pair in document["merges"]])
    writer.add_add_bos_token(False)
    finish(writer)
    ours = Tokenizer(str(tmp_path / "t.gguf"))
    for text in [*PROMPTS, *SPLIT_TEXTS]:
        assert ours.encode(text) == theirs.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("pre", ["default", "no-such-family"])
def test_a_split_that_is_not_known_is_refused(tmp_path: Path, pre: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(["a", "b"])
    writer.add_token_merges([])
    finish(writer)
    with pytest.raises(
        ValueError, match=f"'tokenizer.ggml.pre' is '{pre}', which is not read; read are gpt-2"
    ):
        Tokenizer(str(tmp_path / "t.gguf"))

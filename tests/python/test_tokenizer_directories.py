"""Directories without tokenizer.json, against the libraries that their files are of."""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from quire import Tokenizer
from test_tokenizer import random_text
from tokenizer_families import CORPUS, GPT2, GPT4O, LLAMA3, gpt2
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import pre_tokenizers

TEXTS = ["", " ", "  two  spaces ", "\u2581mark\u2581", *CORPUS, "\n".join(CORPUS)]


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng, rng.randint(1, 20)).replace("\0", "") for _ in range(count)]


SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
    },
    "bpe_nmt": {"model_type": "bpe"},
    "t5": {"model_type": "unigram"},
    "unigram_bytes": {
        "model_type": "unigram",
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "normalization_rule_name": "nmt_nfkc_cf",
    },
}


def train_sentencepiece(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS * 3 for line in text.splitlines()]),
        model_writer=model,
        vocab_size=600,
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def check_sentencepiece_offsets(
    ours: Tokenizer, theirs: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    """Tokens begin where SentencePiece's do; theirs end with what normalizing takes off behind them."""
    ids, offsets = ours.encode_with_offsets(text, add_special_tokens=False)
    pieces = theirs.encode(text, return_type="proto").pieces
    assert ids == [piece.id for piece in pieces]
    place = [len(text.encode()[:i].decode(errors="ignore")) for i in range(len(text.encode()) + 1)]
    for piece, (begin, end) in zip(pieces, offsets, strict=True):
        assert begin == place[piece.begin], repr(text)
        assert begin < end, repr(text)  # theirs may be empty, for a mark at the front and bytes but the last
        taken_off = text[end : place[piece.end]]
        assert not theirs.normalize("a" + taken_off)[1:].strip(" \u2581a"), repr(text)


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_ids_equal_sentencepiece(tmp_path: Path, kind: str) -> None:
    model = train_sentencepiece(**SENTENCEPIECE[kind])
    (tmp_path / "tokenizer.model").write_bytes(model)
    ours, theirs = Tokenizer(str(tmp_path)), sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in [*TEXTS, *random_texts(1, 600)]:
        if "<s>" in text or "</s>" in text or "<unk>" in text:
            continue  # tokens to us, and text to SentencePiece
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, repr(text)
        check_sentencepiece_offsets(ours, theirs, text)
        if theirs.unk_id() not in ids and not SENTENCEPIECE[kind].get("byte_fallback"):
            assert ours.decode(ids) == theirs.decode(ids)
    assert ours.vocab_size == theirs.vocab_size()
    # As the families that use each kind have it.
    plain = ours.encode("the dog", add_special_tokens=False)
    is_bpe = SENTENCEPIECE[kind]["model_type"] == "bpe"
    assert ours.encode("the dog") == ([1, *plain] if is_bpe else [*plain, 2])
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true, "add_eos_token": true}')
    assert Tokenizer(str(tmp_path)).encode("the dog") == [1, *plain, 2]


def test_text_begins_anew_behind_a_control_token(tmp_path: Path) -> None:
    model = train_sentencepiece(**SENTENCEPIECE["llama"], user_defined_symbols=["<sep>"])
    (tmp_path / "tokenizer.model").write_bytes(model)
    ours, theirs = Tokenizer(str(tmp_path)), sentencepiece.SentencePieceProcessor(model_proto=model)
    both = ours.encode("the dog</s>the dog", add_special_tokens=False)
    assert both == [*theirs.encode("the dog"), 2, *theirs.encode("the dog")]
    for text in ["the<sep>dog", "<sep> the", "a <sep><sep> b"]:
        ids = theirs.encode(text)
        # SentencePiece has its mark at the front even before such a symbol.
        assert ours.encode(text, add_special_tokens=False) in (ids, ids[1:])


def ranks_of(tokenizer: HfTokenizer) -> dict[bytes, int]:
    """The bytes of a vocabulary in the order of its merges, as tiktoken has them."""
    document = json.loads(tokenizer.to_str())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    byte_of = {chr(b if b in printable else next(others)): b for b in range(256)}
    assert sorted(byte_of) == alphabet
    tokens = [*byte_of, *("".join(merge) for merge in document["model"]["merges"])]
    return {bytes(byte_of[c] for c in token): i for i, token in enumerate(dict.fromkeys(tokens))}


def check_offsets_cover(ours: Tokenizer, text: str) -> None:
    """Where nothing is normalized: each token's bytes are in its part, and the parts leave nothing out."""
    ids, offsets = ours.encode_with_offsets(text, add_special_tokens=False)
    assert ids == ours.encode(text, add_special_tokens=False)
    done = 0
    for token, (begin, end) in zip(ids, offsets, strict=True):
        # Tokens of one character have the same part.
        assert begin in (done, done - 1), repr(text)
        assert begin < end, repr(text)
        written = ours.decode([token], skip_special_tokens=False)
        assert written == text[begin:end] or "\ufffd" in written, repr(text)
        done = end
    assert done == len(text)


@pytest.mark.parametrize(
    ("name", "pattern"), [("cl100k_base", LLAMA3), ("o200k_base", GPT4O), ("gpt2", GPT2)]
)
def test_ids_equal_tiktoken(tmp_path: Path, name: str, pattern: str) -> None:
    ranks = ranks_of(gpt2())
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (tmp_path / f"{name}.tiktoken").write_text("".join(lines))
    special = {"<|end|>": len(ranks) + 5}
    added = {str(i): {"content": content, "special": True} for content, i in special.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    theirs = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    ours = Tokenizer(str(tmp_path))
    for text in [*TEXTS, *random_texts(2, 600), "a<|end|>b"]:
        ids = theirs.encode(text, allowed_special="all")
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
        check_offsets_cover(ours, text)
        assert [begin for begin, _ in ours.encode_with_offsets(text)[1]] == theirs.decode_with_offsets(ids)[1]


def test_tekken(tmp_path: Path) -> None:
    ranks = ranks_of(gpt2())
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in ranks.items()
    ]
    num_special = 20
    config = {
        "pattern": GPT4O,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": num_special + len(vocab) - 10,
        "default_num_special_tokens": num_special,
        "version": "v3",
    }
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    kept = dict(list(ranks.items())[:-10])
    theirs = tiktoken.Encoding("tekken", pat_str=GPT4O, mergeable_ranks=kept, special_tokens={})
    ours = Tokenizer(str(tmp_path))
    for text in [*TEXTS, *random_texts(3, 300)]:
        if "<s>" in text:
            continue
        shifted = [i + num_special for i in theirs.encode(text, disallowed_special=())]
        assert ours.encode(text) == [1, *shifted], repr(text)
        assert ours.decode(shifted) == text
        check_offsets_cover(ours, text)
        assert ours.encode_with_offsets(text)[1][0] == (0, 0)  # <s>
    assert ours.encode("[INST]", add_special_tokens=False) == [3]


def test_vocab_and_merges(tmp_path: Path) -> None:
    theirs = gpt2()
    theirs.model.save(str(tmp_path))
    added = {"0": {"content": "<|endoftext|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    ours = Tokenizer(str(tmp_path))
    for text in [*TEXTS, *random_texts(4, 300), "a<|endoftext|>b"]:
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)
        assert ours.encode_with_offsets(text)[1] == theirs.encode(text).offsets, repr(text)
    assert ours.is_special(0)


REFUSALS = [
    ("tokenizer.model", b"\x0a\x05ab", "is no SentencePiece model: a field of 5 bytes where 2 are left"),
    ("tokenizer.model", b"", "is no SentencePiece model: it has no pieces"),
    ("tokenizer.model", b"\x0a\x03\x0a\x01a\x12\x02\x18\x03", "trainer_spec.model_type is 3"),
    ("x.tiktoken", b"YQ== 0\n", "does not say how text is split; known are cl100k_base.tiktoken"),
    ("gpt2.tiktoken", b"YQ== 0\nYg== x\n", "line 2 is not a token in base64 and its rank"),
    ("gpt2.tiktoken", b"YQ== 0\nYg== 0\n", "line 2 has rank 0 again"),
    ("tekken.json", b"{}", "config is missing"),
    (
        "tekken.json",
        b'{"config":{"pattern":".","default_vocab_size":9,"default_num_special_tokens":2},"vocab":[{}]}',
        "vocab [0] must have rank 0",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSALS)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name) as caught:
        Tokenizer(str(tmp_path))
    assert message in str(caught.value)

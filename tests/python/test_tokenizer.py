"""quire.Tokenizer against Hugging Face `tokenizers`: the same ids, offsets and text, always."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from quire import Tokenizer
from tokenizer_families import (
    CORPUS,
    FAMILIES,
    Build,
    deepseek,
    digits_first,
    gpt2,
    gpt4o,
    last_byte_level,
    llama3,
    qwen2,
    show_pieces,
)
from tokenizer_kinds import KINDS, OFFSETS_ARE_OFF
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

# Long runs of code points that Unicode treats alike, and what is private or not assigned.
UNIFORM = [
    (0x3400, 0x4DC0),
    (0x4E00, 0xA000),
    (0xAC00, 0xD7A4),
    (0xE000, 0xF900),
    (0x17000, 0x18D00),
    (0x20000, 0x110000),
]


@cache
def code_points() -> list[int]:
    """All with QUIRE_TESTS=full (tests/run_long.sh); else each 61st of the uniform runs, and their ends."""
    chosen = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    if os.environ.get("QUIRE_TESTS") == "full":
        return chosen
    return [
        c
        for c in chosen
        if c % 61 == 0
        or c % 0x1000 in (0, 0xFFF)
        or not any(first + 2 <= c < end - 2 for first, end in UNIFORM)
    ]


class Pair:
    """One tokenizer.json, loaded by Quire and by `tokenizers`.

    `offsets_are_off` finds the texts whose offsets `tokenizers` gets wrong.
    """

    def __init__(self, directory: Path, document: str, *, holds_back: bool = False) -> None:
        (directory / "tokenizer.json").write_text(document, encoding="utf-8")
        self.ours = Tokenizer(str(directory))
        self.theirs = HfTokenizer.from_str(document)
        # Whether more than a part of one character may be held back while decoding.
        self.holds_back = holds_back
        self.offsets_are_off: re.Pattern[str] | None = None

    def check_encode(self, text: str) -> None:
        compares_offsets = self.offsets_are_off is None or not self.offsets_are_off.search(text)
        for add in (True, False):
            theirs = self.theirs.encode(text, add_special_tokens=add)
            assert self.ours.encode(text, add_special_tokens=add) == theirs.ids, repr(text)
            ids, offsets = self.ours.encode_with_offsets(text, add_special_tokens=add)
            assert ids == theirs.ids, repr(text)
            if compares_offsets:
                assert offsets == theirs.offsets, repr(text)
            assert all(0 <= begin <= end <= len(text) for begin, end in offsets)

    def agree_on(self, text: str) -> bool:
        theirs = self.theirs.encode(text)
        return self.ours.encode_with_offsets(text) == (theirs.ids, theirs.offsets)

    def their_ids(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self.theirs.encode(text, add_special_tokens=add_special_tokens).ids)


@pytest.fixture(params=[*FAMILIES, *KINDS], ids=lambda build: build.__name__, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    build: Build = request.param
    pair = Pair(tmp_path_factory.mktemp("tokenizer"), build().to_str(), holds_back=build in KINDS)
    pair.offsets_are_off = OFFSETS_ARE_OFF.get(build)
    return pair


@pytest.fixture
def make_pair(tmp_path: Path) -> Callable[[HfTokenizer], Pair]:
    return lambda tokenizer: Pair(tmp_path, tokenizer.to_str())


SCRIPTS = [
    (0x20, 0x7E),
    (0xA0, 0x24F),
    (0x300, 0x36F),
    (0x370, 0x52F),
    (0x590, 0x6FF),
    (0x900, 0xDFF),
]
SCRIPTS += [
    (0x1100, 0x11FF),
    (0x1E00, 0x1FFF),
    (0x2000, 0x206F),
    (0x20A0, 0x2BFF),
    (0x3000, 0x30FF),
]
SCRIPTS += [
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xFB00, 0xFDFF),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF),
]
SNIPPETS = [
    "'s",
    "'S",
    "'Ll",
    "'LL",
    "'\u017f",
    "'re",
    "'VE",
    "'d",
    "   ",
    "\n\n",
    "\r\n",
    "\t",
    " \n ",
    "\u3000",
    "\u00a0",
]
SNIPPETS += [
    "\u0085",
    "\u200d",
    "\ufe0f",
    "12345678",
    "١٢٣",
    "½",
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<tool_call>",
]
SNIPPETS += [
    "\0",
    "\x7f",
    "e\u0301",
    "\u0344",
    "\u1100\u1161",
    "각",
    "\ufb01",
    "👩‍🚀",
    "ﷺ",
    "...",
    "--",
    " xylophone",
    "http://a.b/c?d=e&f",
]


def random_text(rng: random.Random, length: int) -> str:
    parts: list[str] = []
    while len(parts) < length:
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(rng.choice(CORPUS).split(" ")))
        elif kind < 0.6:
            parts.append(rng.choice(SNIPPETS))
        elif kind < 0.75:
            parts.append(" " * rng.randint(1, 12))
        elif kind < 0.97:
            low, high = rng.choice(SCRIPTS)
            parts.extend(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
        else:
            c = rng.randrange(0x110000)
            parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
    return "".join(parts)


def test_ids_equal_on_the_corpus(pair: Pair) -> None:
    for text in ["", " ", *CORPUS, "\n".join(CORPUS)]:
        pair.check_encode(text)


def test_ids_equal_on_random_text(pair: Pair) -> None:
    rng = random.Random(1)
    # A million in all with QUIRE_TESTS=full.
    for _ in range(60_000 if os.environ.get("QUIRE_TESTS") == "full" else 1500):
        pair.check_encode(random_text(rng, rng.randint(1, 30)))


@pytest.mark.parametrize("build", [llama3, gpt4o, deepseek, digits_first])
def test_ids_equal_for_every_code_point(make_pair: Callable[[HfTokenizer], Pair], build: Build) -> None:
    # Neighbours show which class each character is put into.
    pair = make_pair(show_pieces(build()))
    chosen = code_points()
    for start in range(0, len(chosen), 4096):
        chunk = chosen[start : start + 4096]
        text = "".join(f"a{chr(c)}1 {chr(c)}'{chr(c)}\n" for c in chunk)
        if not pair.agree_on(text):
            for c in chunk:
                pair.check_encode(f"a{chr(c)}1 {chr(c)}'{chr(c)}\n")
            pytest.fail(f"only as a whole: from {chunk[0]:#x}")


@pytest.mark.parametrize(
    "unit", ["a", " ", "\n", "1", "!", "\u0301", "字", "A", "a\u0301", " a", "\r\n", "'"]
)
def test_long_runs_take_linear_time(pair: Pair, unit: str) -> None:
    pair.check_encode(unit * 20_000 + "x")
    pair.ours.encode(unit * (1_000_000 // len(unit)))


def test_decode_equals_for_any_ids(pair: Pair) -> None:
    rng = random.Random(2)
    for _ in range(500):
        ids = [rng.randrange(pair.ours.vocab_size) for _ in range(rng.randint(0, 20))]
        for skip in (True, False):
            assert pair.ours.decode(ids, skip_special_tokens=skip) == pair.theirs.decode(ids, skip)


def test_decoding_gives_the_text_back(pair: Pair) -> None:
    for text in CORPUS:
        ids = pair.ours.encode(text, add_special_tokens=False)
        assert pair.ours.decode(ids) == pair.theirs.decode(ids)


def test_incremental_text_is_complete_at_every_prefix(pair: Pair) -> None:
    rng = random.Random(3)
    for text in [*CORPUS, *(random_text(rng, 20) for _ in range(40))]:
        ids = pair.ours.encode(text)
        for sequence in (ids, rng.sample(ids, len(ids))):  # shuffled ids are often no UTF-8
            for skip in (True, False):
                detokenizer = pair.ours.detokenizer(skip_special_tokens=skip)
                so_far = ""
                for i, token in enumerate(sequence):
                    so_far += detokenizer.append([token])
                    whole = pair.theirs.decode(sequence[: i + 1], skip)
                    # What is held back is at most one character, which shows as one U+FFFD.
                    assert whole in (so_far, so_far + "\ufffd") or (
                        pair.holds_back and whole.startswith(so_far)
                    )
                assert so_far + detokenizer.finish() == pair.theirs.decode(sequence, skip)


def test_vocabulary_look_ups_agree(pair: Pair) -> None:
    vocab = pair.theirs.get_vocab(with_added_tokens=True)
    assert pair.ours.vocab_size == max(vocab.values()) + 1
    for token, token_id in vocab.items():
        assert pair.ours.token_to_id(token) == token_id
        assert pair.ours.id_to_token(token_id) == token
    assert pair.ours.token_to_id("no such token") is None
    assert pair.ours.id_to_token(pair.ours.vocab_size) is None
    special = {i for i, token in pair.theirs.get_added_tokens_decoder().items() if token.special}
    assert {i for i in range(pair.ours.vocab_size) if pair.ours.is_special(i)} == special


@pytest.mark.parametrize(
    "behavior", ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
)
@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("pattern", ["-", r"\s+", r"\p{L}+|\d", r"x*", r"(?=b)", r"\b", r"^|$", "字"])
def test_split_behaviors(
    make_pair: Callable[[HfTokenizer], Pair], behavior: str, invert: bool, pattern: str
) -> None:
    tokenizer = gpt2()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior, invert),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    pair = make_pair(tokenizer)
    for text in [
        "a--b-c-",
        "-the - fox",
        "xxthe  fox xx 12\n\nbb",
        "字a字字b",
        "--",
        "the",
        "over\n\n",
        "\n",
    ]:
        pair.check_encode(text)


def test_split_on_a_plain_string(make_pair: Callable[[HfTokenizer], Pair]) -> None:
    tokenizer = gpt2()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(".*[x] ", "removed"), last_byte_level()]
    )
    pair = make_pair(tokenizer)
    for text in ["the.*[x] fox", "the fox", ".*[x] .*[x] ", "..[x] x "]:
        pair.check_encode(text)


@pytest.mark.parametrize("flags", range(32))
def test_added_tokens_are_found_as_theirs_are(make_pair: Callable[[HfTokenizer], Pair], flags: int) -> None:
    options: dict[str, Any] = {
        name: bool(flags >> i & 1)
        for i, name in enumerate(["single_word", "lstrip", "rstrip", "normalized", "special"])
    }
    tokenizer = qwen2()
    contents = ["<x>", "<x>y", "é", "e\u0301e", "\ufb01x", "  ", "word", "wo", "Å"]
    tokenizer.add_tokens([AddedToken(content, **options) for content in contents])
    tokenizer.add_tokens([AddedToken("fox", rstrip=True), AddedToken("x ", lstrip=True, normalized=False)])
    pair = make_pair(tokenizer)
    pieces = [
        *contents,
        "\u212b",
        "é",
        "a",
        " ",
        "\n",
        "\u3000",
        "\u200b",
        "_",
        "1",
        "!",
        "fox",
        "x ",
        "<",
        "<|im_end|>",
        "字",
    ]
    rng = random.Random(flags)
    for _ in range(400):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 8)))
        pair.check_encode(text)
        ids = pair.their_ids(text)
        for skip in (True, False):
            assert pair.ours.decode(ids, skip_special_tokens=skip) == pair.theirs.decode(ids, skip)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalization_forms(make_pair: Callable[[HfTokenizer], Pair], form: str) -> None:
    tokenizer = gpt2()
    tokenizer.normalizer = normalizers.Sequence([getattr(normalizers, form)()])
    pair = make_pair(tokenizer)
    chosen = code_points()
    for start in range(0, len(chosen), 8192):
        pair.check_encode(" ".join(map(chr, chosen[start : start + 8192])))
    marks = [chr(c) for c in chosen if 0x300 <= c < 0x370 or 0x591 <= c < 0x5C8 or 0x1DC0 <= c < 0x1E00]
    marks += [chr(c) for c in range(0x302A, 0x3030)] * 8
    bases = [
        *"aeoAEOÅȩ각가ᄀ",
        "\u1161",
        "\u11a8",
        "\u0344",
        "\u0f73",
        "\U0001d15f",
        "\u09c7",
        "\u09be",
    ]
    rng = random.Random(4)
    for _ in range(1000):
        pair.check_encode(
            "".join(rng.choice(bases if rng.random() < 0.4 else marks) for _ in range(rng.randint(1, 9)))
        )


def test_bytes_without_a_token_are_unknown_or_dropped(
    make_pair: Callable[[HfTokenizer], Pair],
) -> None:
    document = json.loads(gpt2().to_str())
    vocab = {"a": 0, "b": 1, "ab": 2, "<unk>": 3}
    for unk, fuse in (("<unk>", True), ("<unk>", False), (None, False)):
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": unk,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": fuse,
            "vocab": vocab,
            "merges": ["a b"],
        }
        pair = make_pair(HfTokenizer.from_str(json.dumps(document | {"model": model, "added_tokens": []})))
        # To `tokenizers`, what follows a byte that is dropped lies where that was.
        pair.offsets_are_off = None if unk else re.compile("[^ab]")
        for text in ["ab", "abxyab", "éab", "xxaxbx", " a b"]:
            pair.check_encode(text)


def test_merges_may_be_pairs_or_strings(tmp_path: Path) -> None:
    tokenizer = gpt2()
    document = json.loads(tokenizer.to_str())
    document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
    pair = Pair(tmp_path, json.dumps(document))
    for text in CORPUS:
        assert pair.ours.encode(text) == tokenizer.encode(text).ids


def test_ids_of_added_tokens_that_the_file_numbers_otherwise(tmp_path: Path) -> None:
    document = json.loads(gpt2().to_str())
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    document["added_tokens"] += [
        {"id": 5000, "content": "<far>", **flags},
        {"id": 6000, "content": "<farther>", **flags},
    ]
    pair = Pair(tmp_path, json.dumps(document))
    pair.check_encode("a <far> b <farther> c")


def test_ids_without_a_token_decode_to_nothing(make_pair: Callable[[HfTokenizer], Pair]) -> None:
    pair = make_pair(gpt2())
    beyond = pair.ours.vocab_size + 7  # models pad their vocabularies
    assert pair.ours.decode([beyond]) == pair.theirs.decode([beyond]) == ""
    with pytest.raises(ValueError, match="token ids are at least 0, got -1"):
        pair.ours.decode([-1])

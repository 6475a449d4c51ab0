"""The stages of quire.Tokenizer one by one against those of Hugging Face `tokenizers`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from test_tokenizer import Pair, code_points, random_text
from tokenizer_families import digits_first, gpt2, gpt2_with_prefix_space, last_byte_level, show_pieces
from tokenizer_kinds import SQUEEZING, SQUEEZING_IS_OFF, mistral
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HfTokenizer


@pytest.fixture
def make_pair(tmp_path: Path) -> Callable[[HfTokenizer], Pair]:
    return lambda tokenizer: Pair(tmp_path, tokenizer.to_str())


@pytest.mark.parametrize(
    "stage",
    [
        normalizers.Lowercase(),
        normalizers.StripAccents(),
        normalizers.Nmt(),
        normalizers.BertNormalizer(clean_text=True, strip_accents=True, lowercase=True),
        normalizers.BertNormalizer(clean_text=False, strip_accents=None, lowercase=False),
        normalizers.Precompiled(SQUEEZING),
        normalizers.ByteLevel(),
    ],
    ids=lambda stage: type(stage).__name__,
)
def test_normalizers_for_every_code_point(
    make_pair: Callable[[HfTokenizer], Pair], stage: normalizers.Normalizer
) -> None:
    tokenizer = gpt2()
    tokenizer.normalizer = normalizers.Sequence([stage])
    pair = make_pair(tokenizer)
    pair.offsets_are_off = SQUEEZING_IS_OFF if isinstance(stage, normalizers.Precompiled) else None
    chosen = code_points()
    for start in range(0, len(chosen), 4096):
        chunk = chosen[start : start + 4096]
        text = "".join(f"a{chr(c)}\u0301b {chr(c)}a\u0301" for c in chunk)
        if not pair.agree_on(text):
            for c in chunk:
                pair.check_encode(f"a{chr(c)}\u0301b {chr(c)}a\u0301")
            pytest.fail(f"only as a whole: from {chunk[0]:#x}")
    rng = random.Random(5)
    for _ in range(300):
        pair.check_encode(random_text(rng, rng.randint(1, 20)))


@pytest.mark.parametrize(
    "stage",
    [
        pre_tokenizers.Whitespace(),
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.Punctuation("merged_with_next"),
        pre_tokenizers.BertPreTokenizer(),
        pre_tokenizers.CharDelimiterSplit("\u5b57"),
        pre_tokenizers.FixedLength(7),
        pre_tokenizers.Metaspace("x", prepend_scheme="first"),
        pre_tokenizers.Metaspace("\u5b57", prepend_scheme="never", split=False),
    ],
    ids=lambda stage: type(stage).__name__,
)
def test_pre_tokenizers_for_every_code_point(
    make_pair: Callable[[HfTokenizer], Pair], stage: pre_tokenizers.PreTokenizer
) -> None:
    tokenizer = show_pieces(digits_first())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([stage, last_byte_level()])
    pair = make_pair(tokenizer)
    chosen = code_points()
    for start in range(0, len(chosen), 4096):
        chunk = chosen[start : start + 4096]
        text = "".join(f"a{chr(c)}1 {chr(c)}'{chr(c)}\n" for c in chunk)
        if not pair.agree_on(text):
            for c in chunk:
                pair.check_encode(f"a{chr(c)}1 {chr(c)}'{chr(c)}\n")
            pytest.fail(f"only as a whole: from {chunk[0]:#x}")
    rng = random.Random(6)
    for _ in range(300):
        pair.check_encode(random_text(rng, rng.randint(1, 20)))


@pytest.mark.parametrize(
    "stages",
    [
        [normalizers.Strip(), normalizers.Replace("f", "")],
        [normalizers.Strip(right=False), normalizers.Prepend("_")],
        [normalizers.Replace(Regex("[a-f]+"), "<\u00e9>"), normalizers.StripAccents()],
        [normalizers.Replace(Regex("x*"), "-")],
    ],
)
@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_where_a_text_begins_is_told_after_normalization(
    make_pair: Callable[[HfTokenizer], Pair], stages: list[normalizers.Normalizer], scheme: str
) -> None:
    tokenizer = mistral()
    tokenizer.normalizer = normalizers.Sequence(stages)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.add_tokens([AddedToken("fox", normalized=True), AddedToken(" the", normalized=True)])
    pair = make_pair(tokenizer)
    pieces = ["f", " ", "fox", " the", "<s>", "\u0301", "\u00e9", "dog", "\u2581", "x", "[INST]", "\n"]
    rng = random.Random(7)
    for _ in range(400):
        pair.check_encode("".join(rng.choice(pieces) for _ in range(rng.randint(1, 6))))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("trims", [True, False])
@pytest.mark.parametrize("in_text", [True, False])
def test_offsets_are_trimmed_as_theirs_are(
    make_pair: Callable[[HfTokenizer], Pair], prefix: bool, trims: bool, in_text: bool
) -> None:
    byte_level = processors.ByteLevel(add_prefix_space=prefix, trim_offsets=trims)
    roberta = processors.RobertaProcessing(("fox", 1), (" ", 2), trim_offsets=trims, add_prefix_space=prefix)
    around = processors.TemplateProcessing(single="a $A b", special_tokens=[("a", 3), ("b", 4)])
    for stages in ([byte_level], [roberta], [byte_level, around], [around, byte_level]):
        tokenizer = gpt2_with_prefix_space() if in_text else gpt2()
        tokenizer.add_tokens(
            [AddedToken("fox", lstrip=True, rstrip=True), AddedToken("  \u3000", normalized=False)]
        )
        tokenizer.post_processor = processors.Sequence(stages)
        pair = make_pair(tokenizer)
        rng = random.Random(9)
        pieces = ["fox", " ", "  \u3000", "the", " the", "\n", "\u3000", "    ", "\u5b57", "\u0120", "  dog"]
        for _ in range(200):
            pair.check_encode("".join(rng.choice(pieces) for _ in range(rng.randint(1, 6))))


def test_byte_tokens_go_ahead_of_a_held_unknown(make_pair: Callable[[HfTokenizer], Pair]) -> None:
    document = json.loads(mistral().to_str())
    for fuse in (True, False):
        model = document["model"] | {"fuse_unk": fuse, "merges": []}
        model["vocab"] = {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "a": 3, "\u2581": 4}
        pair = make_pair(HfTokenizer.from_str(json.dumps(document | {"model": model, "added_tokens": []})))
        # `tokenizers` puts them where they would be if the text had the order of the tokens.
        pair.offsets_are_off = re.compile("z\u00e9")
        for text in ["a\u00e9a", "z\u00e9a", "zz\u00e9z a z", "z"]:
            pair.check_encode(text)


def test_unknown_stretches_of_unigram(make_pair: Callable[[HfTokenizer], Pair]) -> None:
    for byte_fallback in (True, False):
        vocab = [("<unk>", 0.0), ("ab", -1.0), ("abc", -1.5), ("c", -9.0), ("xy", -60.0), ("<0x7A>", -2.0)]
        pair = make_pair(HfTokenizer(models.Unigram(vocab, 0, byte_fallback)))
        for text in ["abc", "abcc", "xyab", "zxy", "zz", "q", "ab<unk>c", "xyxy", "zabz"]:
            pair.check_encode(text)
    pair = make_pair(HfTokenizer(models.Unigram([("a", -1.0), ("b", -1.0)])))
    pair.check_encode("abab")
    with pytest.raises(ValueError, match=r"text has 'c', which no token covers, and model\.unk_id is null"):
        pair.ours.encode("abc")


def test_the_last_bit_of_a_score_decides_as_theirs_does(make_pair: Callable[[HfTokenizer], Pair]) -> None:
    rng = random.Random(8)
    vocab = [("<unk>", 0.0)]
    for c in map(chr, range(0x4E00, 0x4E00 + 400)):
        first, second = -rng.uniform(0, 15), -rng.uniform(0, 15)
        vocab += [(f"{c}a", first), (f"{c}b", second), (f"{c}a{c}b", first + second)]
    pair = make_pair(HfTokenizer(models.Unigram(vocab, 0)))
    for c in map(chr, range(0x4E00, 0x4E00 + 400)):
        pair.check_encode(f"{c}a{c}b{c}a")

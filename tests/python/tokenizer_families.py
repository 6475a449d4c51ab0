"""Small tokenizers of each family, trained on a corpus written here.

The vocabularies are small, so most words take several merges.
"""
# ruff: noqa: RUF001  (the texts hold look-alike characters on purpose)

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.trainers import BpeTrainer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{PUNCTUATION_AND_SPACE}"
QWEN2 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{PUNCTUATION_AND_SPACE}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

CORPUS = [
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind.",
    "I'm sure they'll say we've seen it, and you'd agree: it's what he'd've said. SHE'LL SAY IT'S.",
    "def main(argv) -> int:\n    for i in range(100):\n\t\tprint(f'{i:>8}')  # x\n    return 0\r\n",
    "In 1789, 12345 of 1,000,000 people paid $3.14159 (or 2.71828e-10).",
    "Zażółć gęślą jaźń; Größe, naïve café, Ångström, façade, İstanbul, ŒUVRE, ﬁnance.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。 東京タワーへ行きました。한국어 텍스트도 있습니다.",
    "مرحبا بالعالم ١٢٣٤ שלום עולם हिन्दी में लिखा हुआ पाठ ไทยแลนด์ Việt Nam",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷 ☕️ ∑∞≠≤ ①②③ ½⅓ Ⅷ x² H₂O",
    "a\u0301e\u0300o\u0308 \u1100\u1161\u11a8 q\u0323\u0307 \u0041\u030a \u212b \u2126",
    "   leading\n\n\n\n   many   spaces\t\ttabs   \r\n\r\n  trailing   ",
]

Build = Callable[[], HfTokenizer]


def train(
    *,
    split: list[str],
    byte_level: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None = None,
    special: list[str],
    vocab_size: int = 900,
) -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level]) if splits else byte_level
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True) for token in special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def last_byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def gpt2() -> HfTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = train(split=[], byte_level=byte_level, special=["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_with_prefix_space() -> HfTokenizer:
    return train(split=[], byte_level=pre_tokenizers.ByteLevel(), special=["<|endoftext|>"])


def llama3() -> HfTokenizer:
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ]
    tokenizer = train(split=[LLAMA3], byte_level=last_byte_level(), special=special)
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = True
    # A word that no merges lead to: only ignore_merges finds it.
    document["model"]["vocab"]["Ġxylophone"] = len(document["model"]["vocab"])
    return HfTokenizer.from_str(json.dumps(document))


def qwen2() -> HfTokenizer:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = train(
        split=[QWEN2], byte_level=last_byte_level(), special=special, normalizer=normalizers.NFC()
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)]
    )
    return tokenizer


def gpt4o() -> HfTokenizer:
    return train(split=[GPT4O], byte_level=last_byte_level(), special=["<|endoftext|>"])


def deepseek() -> HfTokenizer:
    tokenizer = train(split=DEEPSEEK, byte_level=last_byte_level(), special=["<｜begin▁of▁sentence｜>"])
    begin = tokenizer.token_to_id("<｜begin▁of▁sentence｜>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<｜begin▁of▁sentence｜> $A", special_tokens=[("<｜begin▁of▁sentence｜>", begin)]
    )
    return tokenizer


def digits_first() -> HfTokenizer:
    tokenizer = train(split=[], byte_level=last_byte_level(), special=[])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


FAMILIES: list[Build] = [gpt2, gpt2_with_prefix_space, llama3, qwen2, gpt4o, deepseek, digits_first]


def show_pieces(tokenizer: HfTokenizer) -> HfTokenizer:
    """The tokenizer with merges of whatever stands beside a, 1, ', a space or the end of a line.

    Ids then tell where the text was split, and so the class of each character among those neighbours.
    """
    document = json.loads(tokenizer.to_str())
    special = [token["content"] for token in document["added_tokens"]]
    assert [token["id"] for token in document["added_tokens"]] == list(range(len(special)))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space, end_of_line = "Ġ", "Ċ"
    merges = [[left, byte] for left in ("a", space, "'") for byte in alphabet]
    merges += [[byte, right] for right in ("1", "'", end_of_line) for byte in alphabet]
    merged = dict.fromkeys(left + right for left, right in merges)
    tokens = [*special, *alphabet, *merged]
    document["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    document["model"]["merges"] = merges
    return HfTokenizer.from_str(json.dumps(document))

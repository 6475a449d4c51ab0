"""Small tokenizers beyond byte-level BPE, each as a published family configures its own."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizer_families import CORPUS, Build
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordLevelTrainer, WordPieceTrainer


def charsmap(mapping: dict[str, str]) -> bytes:
    """SentencePiece's packed character map: a double array of the keys, and their replacements."""
    trie: dict[int, Any] = {}
    pool = b""
    for key, value in mapping.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = len(pool)
        pool += value.encode() + b"\0"
    blocks = [trie]
    units = [0] * 256
    for number, node in enumerate(blocks):
        for byte, child in node.items():
            if byte < 0:
                units[number * 256] = 1 << 31 | child
                continue
            blocks.append(child)
            units += [0] * 256
            position, target = number * 256 ^ byte, (len(blocks) - 1) * 256
            units[position] = (position ^ target) << 10 | (-1 in child) << 8 | byte
    packed = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(packed).to_bytes(4, "little") + packed + pool


# Keys that are parts of one another, that vanish, and of one to four bytes.
SQUEEZING = charsmap(
    {"a": "A", "ab": "X", "b": "", "\t": " ", "\r": "", "\u00e9": "e", "\u00a0": " ", "\u3000": " "}
    | {"\ufb01": "fi", "\u2126": "\u03a9", "\u0301": "'", "\u5b57": "zi", "\U0001f680": "<rocket>"}
)
# Texts for which the offsets of `tokenizers` are off, and ours are not. It does not count characters that are
# dropped from the front, which moves all that follow; and gives the last of several characters in the place
# of one ("fi") the place of what is dropped behind it.
SQUEEZING_IS_OFF = re.compile("^[b\r]|[\ufb01\u5b57\U0001f680][b\r]")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LLAMA2_SPECIAL = ["<unk>", "<s>", "</s>"]
MARK = "\u2581"


def specials(*tokens: str) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def llama2_decoder(*, strips: bool = True) -> decoders.Decoder:
    stages = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*stages, decoders.Strip(" ", 1, 0)] if strips else stages)


def spm_bpe(special: list[str], *, byte_fallback: bool = True, fuse_unk: bool = True) -> HfTokenizer:
    """BPE over characters, as converted from SentencePiece; trained on words that begin with a mark."""
    tokenizer = HfTokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens = [*special, *(BYTES if byte_fallback else [])]
    trainer = BpeTrainer(
        vocab_size=len(tokens) + 500, special_tokens=tokens, limit_alphabet=90, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] in special]
    document["pre_tokenizer"] = None
    document["model"]["byte_fallback"] = byte_fallback
    # Runs of marks, as these vocabularies have them.
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    for left, right in ((MARK, MARK), (MARK * 2, MARK * 2), (MARK * 2, MARK)):
        if left + right not in vocab:
            vocab[left + right] = max(vocab.values()) + 1
            merges.append([left, right])
    return HfTokenizer.from_str(json.dumps(document))


def begin_and_text(tokenizer: HfTokenizer, begin: str) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single=f"{begin} $A",
        pair=f"{begin} $A {begin} $B:1",
        special_tokens=[(begin, tokenizer.token_to_id(begin))],
    )


def llama2() -> HfTokenizer:
    tokenizer = spm_bpe(LLAMA2_SPECIAL)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.post_processor = begin_and_text(tokenizer, "<s>")
    tokenizer.decoder = llama2_decoder()
    return tokenizer


def mistral() -> HfTokenizer:
    tokenizer = spm_bpe(LLAMA2_SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = llama2_decoder()
    tokenizer.post_processor = begin_and_text(tokenizer, "<s>")
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    return tokenizer


def gemma() -> HfTokenizer:
    tokenizer = spm_bpe(["<pad>", "<eos>", "<bos>", "<unk>"])
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = llama2_decoder(strips=False)
    tokenizer.post_processor = begin_and_text(tokenizer, "<bos>")
    tokenizer.add_tokens(
        [AddedToken("<start_of_turn>", normalized=False), AddedToken("\n\n", normalized=False)]
    )
    return tokenizer


def spm_without_bytes() -> HfTokenizer:
    tokenizer = spm_bpe(LLAMA2_SPECIAL, byte_fallback=False, fuse_unk=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def clip() -> HfTokenizer:
    """BPE with a suffix, over the byte-level alphabet as text."""
    tokenizer = HfTokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = BpeTrainer(
        vocab_size=700,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        end_of_word_suffix="</w>",
        special_tokens=specials("<unk>", "<|endoftext|>"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def gpt1() -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = BpeTrainer(
        vocab_size=600,
        continuing_subword_prefix="##",
        special_tokens=specials("<unk>"),
        limit_alphabet=100,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def unigram(special: list[str], unk: str, **options: Any) -> HfTokenizer:
    tokenizer = HfTokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = UnigramTrainer(
        vocab_size=400, special_tokens=special, unk_token=unk, show_progress=False, **options
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def t5() -> HfTokenizer:
    tokenizer = unigram(["<pad>", "</s>", "<unk>", "<extra_id_0>"], "<unk>")
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(SQUEEZING),
            normalizers.NFKC(),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def xlm_roberta() -> HfTokenizer:
    tokenizer = unigram(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<unk>")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def unigram_with_bytes() -> HfTokenizer:
    tokenizer = unigram(["<unk>", "<s>", *BYTES], "<unk>")
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:2]
    document["model"]["byte_fallback"] = True
    tokenizer = HfTokenizer.from_str(json.dumps(document))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = llama2_decoder()
    return tokenizer


def bert() -> HfTokenizer:
    tokenizer = HfTokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = WordPieceTrainer(
        vocab_size=500, special_tokens=specials(*special), limit_alphabet=120, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def bert_cased() -> HfTokenizer:
    tokenizer = bert()
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=False, strip_accents=False, handle_chinese_chars=False
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def word_level() -> HfTokenizer:
    tokenizer = HfTokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = WordLevelTrainer(special_tokens=specials("<unk>"), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def ctc() -> HfTokenizer:
    """Characters, as models of speech write them."""
    tokens = ["<pad>", "<s>", "|", *"abcdefghijklmnopqrstuvwxyz'.,", " n't", "do not|", "a<pad>b", "<unk>"]
    tokenizer = HfTokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "|")])
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(1)
    tokenizer.decoder = decoders.CTC()
    tokenizer.add_special_tokens(specials("<pad>", "<s>", "<unk>"))
    return tokenizer


def ctc_as_written() -> HfTokenizer:
    tokenizer = ctc()
    tokenizer.decoder = decoders.CTC(pad_token="a", word_delimiter_token="|", cleanup=False)
    return tokenizer


# An unknown piece is trimmed of "\u0120" as if it were the byte-level alphabet's space.
TRIMMING_IS_OFF = re.compile("\u0120")

OFFSETS_ARE_OFF: dict[Build, re.Pattern[str]] = {t5: SQUEEZING_IS_OFF, xlm_roberta: TRIMMING_IS_OFF}

KINDS: list[Build] = [llama2, mistral, gemma, spm_without_bytes, clip, gpt1]
KINDS += [t5, xlm_roberta, unigram_with_bytes, bert, bert_cased, word_level]
KINDS += [ctc, ctc_as_written]

"""Encoding and decoding beside Hugging Face `tokenizers`, on one thread, and the time to load.

    RAYON_NUM_THREADS=1 python benchmarks/overheads/tokenizer_bench.py [--model DIR | --kind KIND]

Without a model directory, a tokenizer of that kind is trained on the benchmark's own text. The one with
Llama 3's pattern is filled up to 128,000 tokens, so that its tables have the size of the real one's.
"""
# ruff: noqa: RUF001  (the text holds look-alike characters on purpose)

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from quire import Tokenizer
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VOCAB_SIZE = 128_000
SYLLABLES = ["ba", "con", "de", "er", "fi", "gra", "ho", "in", "ju", "ka", "lo", "men", "na", "or"]
SYLLABLES += ["pre", "qui", "ra", "st", "ti", "un", "ver", "wa", "xi", "ya", "zo"]
CODE = """\
def {0}({1}, {2}=0):
    if {1} > {2}:
        return {0}({1} - 1, [{2}, 'x'])  # {0}
    return None

"""
OTHER_SCRIPTS = (
    "Съешь же ещё этих мягких булок. 天地玄黄，宇宙洪荒。한국어 텍스트 مرحبا بالعالم naïve café 👩‍🚀 "
)


def mixed_text(num_bytes: int, seed: int, kind_of_text: str = "mixed") -> str:
    """Prose over a Zipf-like vocabulary, code, numbers, a little of other scripts; or one of these."""
    rng = random.Random(seed)
    words = ["".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4))) for _ in range(20_000)]
    parts: list[str] = []
    size = 0
    while size < num_bytes:
        kind = {"prose": 0.0, "code": 0.8}.get(kind_of_text, rng.random())
        if kind < 0.75:
            picked = [words[int(len(words) * rng.random() ** 4)] for _ in range(rng.randint(5, 25))]
            part = " ".join(picked).capitalize() + rng.choice([". ", "! ", "?\n", ".\n\n", "; it's "])
        elif kind < 0.9:
            part = CODE.format(*(words[rng.randrange(2000)] for _ in range(3)))
        elif kind < 0.97:
            part = f"{rng.randrange(10**6):,} ({rng.random():.4f}) "
        else:
            part = OTHER_SCRIPTS
        parts.append(part)
        size += len(part.encode())
    return "".join(parts)


def write_model(directory: Path) -> None:
    tokenizer = HfTokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(mixed_text(4_000_000, seed=1).splitlines(keepends=True), trainer)
    document = json.loads(tokenizer.to_str())
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    rng = random.Random(2)
    while len(vocab) < VOCAB_SIZE:
        left, right = rng.choice(merges)[0], rng.choice(merges)[1]
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            merges.append([left, right])
    (directory / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))


def train_small(kind: str) -> HfTokenizer:
    """32,000 tokens or fewer, of a kind other than byte-level BPE."""
    mark = "\u2581"
    lines = mixed_text(1_000_000, seed=1).splitlines(keepends=True)
    if kind == "llama2":
        tokenizer = HfTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        tokenizer.train_from_iterator(
            lines, BpeTrainer(vocab_size=32_000, special_tokens=special, show_progress=False)
        )
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(mark), normalizers.Replace(" ", mark)]
        )
        stages = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*stages, decoders.Strip(" ", 1, 0)])
    elif kind == "unigram":
        tokenizer = HfTokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.train_from_iterator(
            lines,
            UnigramTrainer(
                vocab_size=8_000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
            ),
        )
    else:
        tokenizer = HfTokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.train_from_iterator(
            lines, WordPieceTrainer(vocab_size=30_000, special_tokens=["[UNK]"], show_progress=False)
        )
    return tokenizer


def median_seconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a directory with a tokenizer.json")
    parser.add_argument("--kind", choices=["llama3", "llama2", "unigram", "bert"], default="llama3")
    parser.add_argument("--text", choices=["mixed", "prose", "code"], default="mixed")
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory: Path = args.model or Path(scratch)
        if args.model is None and args.kind == "llama3":
            write_model(directory)
        elif args.model is None:
            train_small(args.kind).save(str(directory / "tokenizer.json"))
        path = str(directory / "tokenizer.json")
        ours, theirs = Tokenizer(str(directory)), HfTokenizer.from_file(path)
        text = mixed_text(int(args.megabytes * 1e6), 3, args.text)
        lines = text.splitlines(keepends=True)
        # About the size of a prompt each.
        chunks = ["".join(lines[i : i + 40]) for i in range(0, len(lines), 40)]
        ids = [ours.encode(chunk, add_special_tokens=False) for chunk in chunks]
        assert ids == [theirs.encode(chunk, add_special_tokens=False).ids for chunk in chunks]
        megabytes = len(text.encode()) / 1e6
        num_ids = sum(map(len, ids))
        print(f"{ours.vocab_size:,} tokens; {megabytes:.1f} MB in {len(chunks):,} prompts")
        print(f"{num_ids:,} ids, {len(text.encode()) / num_ids:.2f} bytes each")

        def report(name: str, our_action: Callable[[], object], their_action: Callable[[], object]) -> None:
            speed = megabytes / median_seconds(our_action, args.repeats)
            other = megabytes / median_seconds(their_action, args.repeats)
            print(f"{name}: {speed:6.1f} MB/s, tokenizers {other:6.1f} MB/s, {speed / other:.2f} x")

        report(
            "encode",
            lambda: [ours.encode(chunk, add_special_tokens=False) for chunk in chunks],
            lambda: [theirs.encode(chunk, add_special_tokens=False) for chunk in chunks],
        )
        report(
            "offsets",
            lambda: [ours.encode_with_offsets(chunk, add_special_tokens=False) for chunk in chunks],
            lambda: [theirs.encode(chunk, add_special_tokens=False).offsets for chunk in chunks],
        )
        report("decode", lambda: [ours.decode(i) for i in ids], lambda: [theirs.decode(i) for i in ids])
        load = median_seconds(lambda: Tokenizer(str(directory)), args.repeats)
        their_load = median_seconds(lambda: HfTokenizer.from_file(path), args.repeats)
        print(f"load:   {load * 1e3:6.0f} ms,   tokenizers {their_load * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()

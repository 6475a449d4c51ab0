"""Trains a tokenizer of 128,256 tokens, as large as Llama 3's, on the text of this Python installation.

    python benchmarks/grammar/train_large_tokenizer.py DIRECTORY

Writes DIRECTORY/tokenizer.json: byte-level BPE with Llama 3's pattern, 256 special tokens at its end. Source
code and documentation make tokens with quotes and brackets in them, which are what a JSON grammar's masks are
about. Takes a minute.
"""

from __future__ import annotations

import argparse
import random
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NUM_TEXT_TOKENS = 128_000
NUM_SPECIAL_TOKENS = 256
SUFFIXES = {".py", ".pyi", ".txt", ".md", ".rst", ".json", ".h", ".html"}
MAX_CHARACTERS = 120_000_000
MAX_CHARACTERS_OF_FILE = 200_000


def texts() -> Iterator[str]:
    """Files of the standard library, of what is installed beside it, and of the system's documentation."""
    folders = [sysconfig.get_path("stdlib"), *site.getsitepackages(), "/usr/share/doc", "/usr/include"]
    files = sorted(
        {path for folder in folders for path in Path(folder).rglob("*") if path.suffix in SUFFIXES}, key=str
    )
    random.Random(1).shuffle(files)
    num_characters = 0
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")[:MAX_CHARACTERS_OF_FILE]
        except (OSError, UnicodeDecodeError):
            continue
        num_characters += len(text)
        if num_characters > MAX_CHARACTERS:
            return
        yield text


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=NUM_TEXT_TOKENS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([f"<|reserved_{i}|>" for i in range(NUM_SPECIAL_TOKENS)])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(directory / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size():,} tokens")


if __name__ == "__main__":
    main()

"""Models that the figures are of, made where they are missing."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from quire.model_directory import DEMO_MODEL, resolve_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))

_END = "<|endoftext|>"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def shape_067b(work_dir: Path) -> Path:
    """The random 0.67 B shape of benchmarks/cpu, with a tokenizer of as many tokens: text can be streamed."""
    from peer_models import SHAPES, make_model

    directory = work_dir / "llama-0.67b-text"
    if not (directory / "tokenizer.json").exists():
        make_model(directory)
        vocab_size = SHAPES["llama-0.67b"][1]["vocab_size"]
        write_tokenizer(directory, vocab_size)
        config = json.loads((directory / "config.json").read_text())
        config |= {"eos_token_id": vocab_size - 1, "bos_token_id": None}
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def gguf_067b(work_dir: Path) -> Path:
    """The same weights and tokenizer as GGUF in bf16."""
    from peer_models import make_gguf

    path = work_dir / "llama-0.67b-text.gguf"
    if not path.exists():
        make_gguf(shape_067b(work_dir), path)
    return path


def shape_8b(work_dir: Path) -> Path:
    """Llama 3 8B's shape and size of vocabulary, for ``--load-format dummy`` on a device."""
    directory = work_dir / "llama-8b"
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "eos_token_id": 128255,
    }
    (directory / "config.json").write_text(json.dumps(config))
    if not (directory / "tokenizer.json").exists():
        write_tokenizer(directory, 128256)
    return directory


def tiny_shape(work_dir: Path) -> Path:
    """So small that it costs next to nothing, for ``--load-format dummy``: what is around it is measured."""
    demo = Path(resolve_model(DEMO_MODEL))
    directory = work_dir / "tiny"
    directory.mkdir(parents=True, exist_ok=True)
    config = json.loads((demo / "config.json").read_text())
    config |= {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_text((demo / name).read_text())
    return directory


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A byte-level BPE of just so many tokens: bytes, then a few letters; the last one is special."""
    demo = json.loads((Path(resolve_model(DEMO_MODEL)) / "tokenizer.json").read_text())
    tokens = _byte_symbols()
    merges: list[list[str]] = []
    room = vocab_size - len(tokens) - 1  # the special one
    known = set(tokens)
    for left, right in _merges():
        if len(merges) == room:
            break
        if left in known and right in known and left + right not in known:
            merges.append([left, right])
            known.add(left + right)
            tokens.append(left + right)
    vocab = {token: i for i, token in enumerate([*tokens, _END])}
    made: dict[str, Any] = demo | {"model": demo["model"] | {"vocab": vocab, "merges": merges}}
    made["added_tokens"] = [demo["added_tokens"][0] | {"id": vocab_size - 1, "content": _END}]
    (directory / "tokenizer.json").write_text(json.dumps(made, ensure_ascii=False))


def _byte_symbols() -> list[str]:
    """How byte-level BPE writes the 256 bytes: printable ones as they are, the others from U+0100 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]


def _merges() -> Any:
    blank = "\u0120"  # of byte-level BPE
    for letter in _LETTERS:
        yield blank, letter
    for pair in product(_LETTERS, repeat=2):
        yield pair
        yield blank + pair[0], pair[1]
    for first, second, third in product(_LETTERS, repeat=3):
        yield first + second, third
        yield blank + first + second, third
    for first, second, third, fourth in product(_LETTERS, repeat=4):
        yield first + second + third, fourth

"""A model's directory of a few kilobytes, the doors that read it, and what damages it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quire

Damage = Callable[[Path], object]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"
SHAPES = {EMBEDDING: [260, 32], NORM: [32]} | {
    f"model.layers.0.{name}.weight": shape
    for name, shape in {
        "input_layernorm": [32],
        "post_attention_layernorm": [32],
        "self_attn.q_proj": [32, 32],
        "self_attn.k_proj": [16, 32],
        "self_attn.v_proj": [16, 32],
        "self_attn.o_proj": [32, 32],
        "mlp.gate_proj": [32, 32],
        "mlp.up_proj": [32, 32],
        "mlp.down_proj": [32, 32],
    }.items()
}
NAMES = list(SHAPES)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GENERATION, TOKENIZER, TOKENIZER_CONFIG = "generation_config.json", "tokenizer.json", "tokenizer_config.json"


def byte_alphabet() -> list[str]:
    """Byte-level BPE's characters, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def num_bytes(shape: list[int]) -> int:
    return 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def write_safetensors(path: Path, names: list[str], edit: Callable[[dict[str, Any]], object] = id) -> None:
    """`edit` changes the header, or returns the bytes of another."""
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        begin, end = end, end + num_bytes(SHAPES[name])
        header[name] = {"dtype": "F32", "shape": SHAPES[name], "data_offsets": [begin, end]}
    edited = edit(header)
    text = edited if isinstance(edited, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def make_directory(directory: Path) -> Path:
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / GENERATION).write_text('{"eos_token_id": 2}')
    write_safetensors(directory / WEIGHTS, NAMES)
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocab = {character: i for i, character in enumerate(byte_alphabet())}
    document = {"pre_tokenizer": stage, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    document["model"] = {"type": "BPE", "vocab": vocab, "merges": []}
    (directory / TOKENIZER).write_text(json.dumps(document))
    (directory / TOKENIZER_CONFIG).write_text('{"chat_template": "{{ messages[0].content }}"}')
    return directory


# Doors: what reads a file, and no more than that.


def plan(model: Path) -> object:
    return quire.plan(model, device="cpu", skip_tokenizer_init=True)


def load(model: Path) -> quire.LLM:
    return quire.LLM(model, device="cpu", num_threads=1, skip_tokenizer_init=True)


def defaults(model: Path) -> object:
    return load(model).get_default_sampling_params()


def tokenize(model: Path) -> object:
    return quire.Tokenizer(str(model))


def encode(model: Path) -> list[int]:
    return quire.Tokenizer(str(model)).encode("a" * 40 + "c")


def encode_long(model: Path) -> list[int]:
    return quire.Tokenizer(str(model)).encode("a" * 8500)


def chat(model: Path) -> object:
    llm = quire.LLM(model, device="cpu", num_threads=1)
    return llm.apply_chat_template([{"role": "user", "content": "x"}])


def load_gguf(model: Path) -> object:
    return quire.LLM(model / "x.gguf", device="cpu", num_threads=1)


def export(model: Path) -> object:
    return quire.export(model, model.parent / "exported")


# Damages to a directory as it was made.


def remove(name: str) -> Damage:
    return lambda model: (model / name).unlink()


def write(name: str, content: str | bytes) -> Damage:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda model: (model / name).write_bytes(data)


def both(*damages: Damage) -> Damage:
    return lambda model: [damage(model) for damage in damages]


def sparse(name: str, begin: bytes = b"") -> Damage:
    """A terabyte of which only the beginning is there."""
    return both(write(name, begin), lambda model: os.truncate(model / name, 1 << 40))


def set_keys(name: str, **changes: Any) -> Damage:
    def damage(model: Path) -> None:
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | changes))

    return damage


def config(**changes: Any) -> Damage:
    return set_keys("config.json", **changes)


def hidden_size(text: str) -> Damage:
    """A value that Python would not write."""
    return write("config.json", json.dumps(CONFIG).replace('"hidden_size": 32', f'"hidden_size": {text}'))


def header(edit: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda model: write_safetensors(model / WEIGHTS, NAMES, edit)


def entry(**changes: Any) -> Damage:
    return header(lambda names: names[NORM].update(changes))


def sharded(edit: Callable[[dict[str, Any], Path], object] = lambda shards, model: None) -> Damage:
    """Two shards and their index. `edit` changes which tensor is in which, or the files."""

    def damage(model: Path) -> None:
        (model / WEIGHTS).unlink()
        write_safetensors(model / "a.safetensors", NAMES[:5])
        write_safetensors(model / "b.safetensors", NAMES[5:])
        shards = {name: f"{'a' if i < 5 else 'b'}.safetensors" for i, name in enumerate(NAMES)}
        edit(shards, model)
        (model / INDEX).write_text(json.dumps({"weight_map": shards}))

    return damage


def norm_in(shard: Any) -> Damage:
    return sharded(lambda shards, _: shards.update({NORM: shard}))


def index(text: str | bytes) -> Damage:
    return both(remove(WEIGHTS), write(INDEX, text))


def link(name: str, target: str) -> Damage:
    """In the place of a file."""

    def damage(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to(target)

    return damage


def sections(**changes: Any) -> Damage:
    return set_keys(TOKENIZER, **changes)


def bpe(more: dict[str, Any] | None = None, **changes: Any) -> Damage:
    """`more` of a vocabulary, and other keys of tokenizer.json's model."""

    def damage(model: Path) -> None:
        old = json.loads((model / TOKENIZER).read_text())["model"]
        sections(model=old | {"vocab": old["vocab"] | (more or {})} | changes)(model)

    return damage


def added(**changes: Any) -> Damage:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return sections(added_tokens=[{"id": 256, "content": "<x>"} | flags | changes])


def split(*patterns: str) -> Damage:
    stages = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    if len(stages) == 1:
        return sections(pre_tokenizer=stages[0])
    return sections(pre_tokenizer={"type": "Sequence", "pretokenizers": stages})


def around(token_id: int) -> Damage:
    """A special token before each text."""
    pieces = [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"x": {"id": "x", "ids": [token_id], "tokens": ["x"]}}
    stage = {"type": "TemplateProcessing", "single": pieces, "special_tokens": special}
    return sections(post_processor=stage)


def instead(files: dict[str, str | bytes]) -> Damage:
    """Other files in tokenizer.json's place."""
    return both(remove(TOKENIZER), *(write(name, content) for name, content in files.items()))


def vocab_and_merges(vocab: str, merges: str = "") -> Damage:
    return instead({"vocab.json": vocab, "merges.txt": merges})


def ranks(special: dict[str, Any] | None = None) -> Damage:
    lines = [f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256)]
    tokens = json.dumps({"added_tokens_decoder": special or {}})
    return instead({"gpt2.tiktoken": "".join(lines), TOKENIZER_CONFIG: tokens})


def tekken(**changes: Any) -> Damage:
    keys = {"pattern": ".", "default_vocab_size": 3, "default_num_special_tokens": 2} | changes
    document: dict[str, Any] = {"vocab": [{"rank": 0, "token_bytes": "YQ=="}]}
    document |= {key: keys.pop(key) for key in ("vocab", "special_tokens") if key in keys}
    return instead({"tekken.json": json.dumps(document | {"config": keys})})


def piece(text: bytes, score: float = -1.0, kind: int = 1) -> bytes:
    """Of a SentencePiece model."""
    body = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(body)]) + body


def sentencepiece(more: bytes) -> Damage:
    return instead({"tokenizer.model": piece(b"<unk>", 0, 2) + piece(b"a") + more})


# GGUF: values with their types.


def u32(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def f32(value: float) -> bytes:
    return struct.pack("<If", 6, value)


def characters(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def string(text: str) -> bytes:
    return struct.pack("<I", 8) + characters(text)


def array(kind: int, values: list[bytes], count: int | None = None) -> bytes:
    return struct.pack("<IIQ", 9, kind, len(values) if count is None else count) + b"".join(values)


QUERY = "blk.0.attn_q.weight"
_LAYER = (
    "attn_norm",
    "ffn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
GGUF_NAMES = ["token_embd.weight", "output_norm.weight", *(f"blk.0.{name}.weight" for name in _LAYER)]
_TOKENS = [characters(token) for token in [*byte_alphabet(), "<a>", "<b>", "<c>", "<d>"]]
GGUF_KEYS = {
    "general.architecture": string("llama"),
    "llama.block_count": u32(1),
    "llama.context_length": u32(64),
    "llama.embedding_length": u32(32),
    "llama.feed_forward_length": u32(32),
    "llama.attention.head_count": u32(2),
    "llama.attention.head_count_kv": u32(1),
    "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
    "tokenizer.ggml.model": string("gpt2"),
    "tokenizer.ggml.pre": string("gpt-2"),
    "tokenizer.ggml.tokens": array(8, _TOKENS),
    "tokenizer.ggml.token_type": array(5, [struct.pack("<i", 1)] * len(_TOKENS)),
    "tokenizer.ggml.merges": array(8, []),
    "tokenizer.ggml.eos_token_id": u32(2),
}


def gguf(
    keys: dict[str, bytes] | None = None,
    *,
    tensors: int = len(SHAPES),
    pairs: int | None = None,
    cut: int = 0,
    **query: Any,
) -> Damage:
    """x.gguf with other keys, with counts that may lie, and with changes of one tensor's entry."""
    values = GGUF_KEYS | (keys or {})
    content = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(values) if pairs is None else pairs)
    content += b"".join(characters(key) + value for key, value in values.items())
    end = 0
    for name, shape in zip(GGUF_NAMES, SHAPES.values(), strict=True):
        at: dict[str, Any] = {"dims": shape[::-1], "kind": 0, "position": end}
        at |= query if name == QUERY else {}
        content += characters(name) + struct.pack(f"<I{len(at['dims'])}Q", len(at["dims"]), *at["dims"])
        content += struct.pack("<IQ", at["kind"], at["position"])
        end += num_bytes(shape)
    content += bytes(-len(content) % 32 + end)
    return write("x.gguf", content[: len(content) - cut])


def packed(edit: Callable[[dict[str, Any]], object] = id, **changes: Any) -> Damage:
    """The weights as x.quire, with another header."""

    def damage(model: Path) -> None:
        [path] = quire.pack_weights(model, model, device="cpu", dtype="float32")
        content = Path(path).read_bytes()
        (size,) = struct.unpack("<Q", content[8:16])
        head = json.loads(content[16 : 16 + size]) | changes
        edit(head)
        text = json.dumps(head).encode()
        start = content[:8] + struct.pack("<Q", len(text)) + text
        data_begin = 64 << 10
        assert len(start) <= data_begin
        (model / "x.quire").write_bytes(start.ljust(data_begin, b"\0") + content[data_begin:])
        both(remove(WEIGHTS), remove(Path(path).name))(model)

    return damage


def packed_bytes(change: Callable[[bytes], bytes]) -> Damage:
    rewrite: Damage = lambda model: (model / "x.quire").write_bytes(change((model / "x.quire").read_bytes()))  # noqa: E731
    return both(packed(), rewrite)


def as_hub_snapshot(model: Path, home: Path) -> Path:
    """The files as links to blobs, as the hub's cache has them."""
    blobs, snapshot = (
        home / "models--org--name" / "blobs",
        home / "models--org--name" / "snapshots" / "01234567",
    )
    for directory in (blobs, snapshot):
        directory.mkdir(parents=True)
    for file in model.iterdir():
        shutil.copy(file, blobs / file.name)
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", file.name))
    return snapshot


def refusal(model: Path, door: Callable[[Path], object]) -> str:
    """In one line, without the directory."""
    import pytest  # which whoever measures a process by itself would count

    with pytest.raises(ValueError) as error:
        door(model)
    assert type(error.value) is ValueError
    said = str(error.value)
    assert said.startswith(f"{model}/") and len(said) < 2100 and "\n" not in said
    return said.removeprefix(f"{model}/")

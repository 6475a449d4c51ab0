"""GGUF files against the directories they were made of, with the values that the gguf package reads."""

from __future__ import annotations

import inspect
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from quire import LLM, SamplingParams, Tokenizer
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter

PROMPTS = ["Once upon a time", "The baker said: 12345 loaves, don't!", "<|im_start|>user\nHi<|im_end|>\n"]
SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA2_NAMES = {
    "pre_feedforward_layernorm": "ffn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
MODEL_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str, arch: str) -> str:
    stem, ending = name.rsplit(".", 1)
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.{ending}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    names = LAYER_NAMES | (GEMMA2_NAMES if arch == "gemma2" else {})
    return f"blk.{layer}.{names[part]}.{ending}"


def permuted(values: Any, num_heads: int) -> Any:
    """As convert_hf_to_gguf writes llama's q and k."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def random_blocks(values: np.ndarray[Any, Any], kind: Type, rng: np.random.Generator) -> Any:
    """Bytes of a K-quant, any but for their scales."""
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (*values.shape[:-1], values.shape[-1] // block_values)
    blocks = rng.integers(0, 256, (*shape, block_bytes), dtype=np.uint8)
    for at in (0, 2) if kind == Type.Q4_K else (208,):
        scale = np.full(shape, 1e-4, np.float16)[..., None].view(np.uint8)
        blocks[..., at : at + 2] = scale
    return blocks.reshape(*values.shape[:-1], -1)


def encoded(values: np.ndarray[Any, Any], kind: Type, rng: np.random.Generator) -> tuple[Any, Any]:
    """The bytes of a tensor, and what the gguf package reads from them."""
    data = random_blocks(values, kind, rng) if kind in (Type.Q4_K, Type.Q6_K) else gguf.quantize(values, kind)
    return data, gguf.dequantize(data, kind).astype(np.float32).reshape(values.shape)


def add_tokenizer(writer: gguf.GGUFWriter, directory: Path) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_chat_template(json.loads((directory / "tokenizer_config.json").read_text())["chat_template"])


def write_gguf(path: Path, directory: Path, arch: str, kind: Type) -> None:
    """A file of `directory`'s model, whose weights become those that the gguf package reads from the file."""
    config = json.loads((directory / "config.json").read_text())
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])
    add_tokenizer(writer, directory)
    weights = load_file(directory / "model.safetensors")
    for name, tensor in weights.items():
        values = tensor.float().numpy()
        heads = 0
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        if values.ndim == 1:
            one = np.float32(1 if arch == "gemma2" else 0)
            stored = values + one
            writer.add_tensor(gguf_name(name, arch), permuted(stored, heads) if heads else stored)
            weights[name] = torch.from_numpy(stored - one)
            continue
        data, read = encoded(permuted(values, heads) if heads else values, kind, rng)
        writer.add_tensor(gguf_name(name, arch), data, raw_dtype=kind)
        if heads:  # the other way round
            size = read.shape[0] // heads
            read = read.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        weights[name] = torch.from_numpy(read.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


Maker = Callable[..., tuple[Path, Path]]


@pytest.fixture(name="make")
def make_pair(tmp_path: Path, demo_model: Path) -> Maker:
    """Makes a file and a directory of the same random weights."""

    def make(arch: str, kind: Type, **changed: Any) -> tuple[Path, Path]:
        kinds = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2"}
        config = getattr(transformers, kinds[arch] + "Config")(**(SIZES | changed))
        torch.manual_seed(0)
        model = getattr(transformers, kinds[arch] + "ForCausalLM")(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        directory = tmp_path / arch
        model.save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo_model / name, directory)
        write_gguf(tmp_path / "x.gguf", directory, arch, kind)
        return tmp_path / "x.gguf", directory

    return make


def answers(model: Path, **engine_args: Any) -> list[tuple[list[int], list[float]]]:
    llm = LLM(str(model), **({"num_threads": 1, "max_model_len": 128, "dtype": "float32"} | engine_args))
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=0, ignore_eos=True)
    result = []
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        answer = output.outputs[0]
        assert answer.logprobs is not None
        ids = list(answer.token_ids)
        result.append((ids, [step[i].logprob for step, i in zip(answer.logprobs, ids, strict=True)]))
    return result


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q6_K])
def test_values_are_bit_for_bit_those_of_the_gguf_package(make: Maker, kind: Type) -> None:
    file, directory = make("llama", kind)
    assert answers(file) == answers(directory)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma2"])
def test_each_architecture_computes_what_its_directory_does(make: Maker, arch: str) -> None:
    changed = {"query_pre_attn_scalar": 64} if arch == "gemma2" else {}
    file, directory = make(arch, Type.Q8_0, **changed)
    assert answers(file) == answers(directory)


def test_ranks_take_slices_of_blocks(make: Maker) -> None:
    file, directory = make("llama", Type.Q8_0)
    assert answers(file, tensor_parallel_size=2) == answers(directory, tensor_parallel_size=2)


def test_the_demo_model_says_the_same_from_a_file(tmp_path: Path, demo_model: Path) -> None:
    directory = tmp_path / "demo"
    shutil.copytree(demo_model, directory)
    (tmp_path / "file").mkdir()
    write_gguf(tmp_path / "file" / "demo.gguf", directory, "llama", Type.BF16)
    shutil.copy(demo_model / "model.safetensors", directory)
    wanted = answers(directory, dtype="auto")
    assert answers(tmp_path / "file" / "demo.gguf", dtype="auto") == wanted
    assert answers(tmp_path / "file", dtype="auto") == wanted  # the directory of one file
    mine, theirs = Tokenizer(str(tmp_path / "file" / "demo.gguf")), Tokenizer(str(demo_model))
    for prompt in PROMPTS:
        assert mine.encode(prompt) == theirs.encode(prompt)
        assert mine.decode(mine.encode(prompt)) == theirs.decode(theirs.encode(prompt))
    params = SamplingParams(temperature=0, max_tokens=24)
    messages = [{"role": "user", "content": "Who are you?"}]
    texts = [
        LLM(str(model), num_threads=1, max_model_len=256).chat(messages, params, use_tqdm=False)[0]
        for model in (tmp_path / "file" / "demo.gguf", directory)
    ]
    assert texts[0].outputs[0].text == texts[1].outputs[0].text
    assert texts[0].outputs[0].finish_reason == texts[1].outputs[0].finish_reason


def test_llama_3_scaling_comes_from_rope_freqs(make: Maker, tmp_path: Path) -> None:
    file, directory = make("llama", Type.F32)
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = json.loads((directory / "config.json").read_text())
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    config |= {"rope_scaling": scaling, "rope_theta": theta}
    (directory / "config.json").write_text(json.dumps(config))
    frequencies = 1.0 / theta ** (np.arange(0, 64, 2) / 64)
    smooth = np.clip((64 * frequencies / (2 * np.pi) - 1) / 3, 0, 1)
    factors = 1 / ((1 - smooth) / 8 + smooth)
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain = answers(file)
    for mine, theirs, other in zip(answers(tmp_path / "scaled.gguf"), answers(directory), plain, strict=True):
        assert mine[0] == theirs[0]
        assert np.allclose(mine[1], theirs[1], atol=1e-4)
        assert not np.allclose(mine[1], other[1], atol=1e-4)


def test_files_that_lie_are_refused_by_name(make: Maker, tmp_path: Path) -> None:
    file, _ = make("llama", Type.Q8_0, num_hidden_layers=1)
    good = file.read_bytes()

    def refused(data: bytes, said: str) -> None:
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(data)
        with pytest.raises(ValueError, match=said) as raised:
            LLM(str(bad), num_threads=1, max_model_len=64)
        assert str(bad) in str(raised.value)

    refused(b"NOPE" + good[4:], "begin with 'GGUF'")
    refused(good[:4] + struct.pack("<I", 9) + good[8:], "version 9")
    refused(good[:8] + struct.pack("<Q", 1 << 60) + good[16:], "tensors")
    refused(good[:16] + struct.pack("<Q", 1 << 60) + good[24:], "keys")
    refused(good[:-1000], "truncated")
    refused(good[:100], "truncated|bytes")
    refused(good.replace(b"llama.block_count", b"llama.block_COUNT"), "'llama.block_count' is missing")
    refused(good.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"), "there twice")
    refused(good.replace(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"), r"blk.0.attn_z.weight|q_proj")
    at = good.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 16
    refused(good[:at] + struct.pack("<I", 13) + good[at + 4 :], "Q5_K, which is not read")
    refused(good[: at + 4] + struct.pack("<Q", 7) + good[at + 12 :], "no multiple of 32")
    refused(good[: at + 4] + struct.pack("<Q", 1 << 62) + good[at + 12 :], "truncated")
    refused(
        good.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00qwen2", b"\x05\x00\x00\x00\x00\x00\x00\x00qwenX"),
        "'qwenX'",
    )


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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = Tokenizer(str(tmp_path / "x.gguf"))
    for sample in ("the baker sold 7 loaves", "  two  spaces ", "été <mark> 猫!", "x"):
        assert tokenizer.encode(sample) == [model.bos_id(), *model.encode(sample)]
        assert tokenizer.decode(model.encode(sample)) == model.decode(model.encode(sample))


def test_a_split_file_is_read_from_its_first_part(make: Maker, tmp_path: Path) -> None:
    file, directory = make("llama", Type.Q8_0)
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(tmp_path / "parts.gguf", "llama", split_max_tensors=8)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(parts) > 1
    assert answers(parts[0]) == answers(directory)
    with pytest.raises(ValueError, match="give the first one"):
        LLM(str(parts[1]), num_threads=1)
    parts[1].unlink()
    with pytest.raises(ValueError, match=parts[1].name):
        LLM(str(parts[0]), num_threads=1)


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
def test_text_is_split_as_the_family_does(make: Maker, tmp_path: Path, pre: str) -> None:
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ValueError, match=f"'tokenizer.ggml.pre' is '{pre}', which is not read; read are gpt-2"
    ):
        Tokenizer(str(tmp_path / "t.gguf"))

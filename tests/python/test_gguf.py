"""GGUF files against the directories they were made of, with the values that the gguf package reads."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf_files import copy_of, finish, write_gguf
from paths import ROOT
from quire import LLM, SamplingParams, Tokenizer, plan

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


def start(model: Path, **engine_args: Any) -> LLM:
    return LLM(str(model), **({"num_threads": 1, "max_model_len": 128, "dtype": "float32"} | engine_args))


def answers(model: Path, **engine_args: Any) -> list[tuple[list[int], list[float]]]:
    return answers_of(start(model, **engine_args))


def answers_of(llm: LLM) -> list[tuple[list[int], list[float]]]:
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


# Half of 544 columns begins in the middle of a block of 32.
@pytest.mark.parametrize("intermediate_size", [512, 544])
def test_ranks_take_slices_of_blocks(make: Maker, intermediate_size: int) -> None:
    file, directory = make("llama", Type.Q8_0, intermediate_size=intermediate_size)
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
    writer = copy_of(file, tmp_path / "scaled.gguf")
    writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    finish(writer)
    plain = answers(file)
    for mine, theirs, other in zip(answers(tmp_path / "scaled.gguf"), answers(directory), plain, strict=True):
        assert mine[0] == theirs[0]
        assert np.allclose(mine[1], theirs[1], atol=1e-4)
        assert not np.allclose(mine[1], other[1], atol=1e-4)


def test_a_split_file_is_read_from_its_first_part(make: Maker, tmp_path: Path) -> None:
    file, directory = make("llama", Type.Q8_0)
    writer = copy_of(file, tmp_path / "parts.gguf", split_max_tensors=8)
    finish(writer)
    parts = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(parts) > 1
    assert answers(parts[0]) == answers(directory)
    with pytest.raises(ValueError, match="give the first one"):
        LLM(str(parts[1]), num_threads=1)
    parts[1].unlink()
    with pytest.raises(ValueError, match=parts[1].name):
        LLM(str(parts[0]), num_threads=1)


def gguf_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


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
    rotated = gguf_string(b"llama.rope.dimension_count") + struct.pack("<I", gguf.GGUFValueType.UINT32)
    at = good.index(rotated) + len(rotated)
    refused(good[:at] + struct.pack("<I", 32) + good[at + 4 :], "must be the size of a head, 64")
    refused(good.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"), "there twice")
    refused(good.replace(b"blk.0.attn_q.weight", b"blk.0.attn_z.weight"), r"blk.0.attn_z.weight|q_proj")
    at = good.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 16
    refused(good[:at] + struct.pack("<I", 13) + good[at + 4 :], "Q5_K, which is not read")
    refused(good[: at + 4] + struct.pack("<Q", 7) + good[at + 12 :], "no multiple of 32")
    refused(good[: at + 4] + struct.pack("<Q", 1 << 62) + good[at + 12 :], "truncated")
    refused(good.replace(gguf_string(b"qwen2"), gguf_string(b"qwenX")), "'qwenX'")


def test_transformers_reads_the_same_from_a_file(tmp_path: Path, demo_model: Path) -> None:
    directory = tmp_path / "demo"
    shutil.copytree(demo_model, directory)
    write_gguf(tmp_path / "demo.gguf", directory, "llama", Type.Q8_0)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="demo.gguf", dtype=torch.float32
    )
    tokenizer = Tokenizer(str(tmp_path / "demo.gguf"))
    for prompt, (ids, logprobs) in zip(PROMPTS, answers(tmp_path / "demo.gguf"), strict=True):
        text = torch.tensor([tokenizer.encode(prompt) + ids])
        with torch.inference_mode():
            theirs = model(text).logits[0].log_softmax(-1)[-len(ids) - 1 : -1]
        assert theirs.argmax(-1).tolist() == ids
        assert np.allclose(theirs[range(len(ids)), ids].numpy(), logprobs, atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaled_positions_are_those_of_the_directory(make: Maker, tmp_path: Path, kind: str) -> None:
    file, directory = make("llama", Type.F32)
    config = json.loads((directory / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters", config).get("rope_theta")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 4.0}
    writer = copy_of(file, tmp_path / "scaled.gguf")
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(4.0)
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = 64
        writer.add_rope_scaling_orig_ctx_len(64)
    finish(writer)
    (directory / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling}))
    scaled = answers(tmp_path / "scaled.gguf")
    assert scaled == answers(directory)
    assert scaled != answers(file)


def test_version_2_is_read(make: Maker, tmp_path: Path) -> None:
    file, directory = make("llama", Type.Q8_0, num_hidden_layers=1)
    data = bytearray(file.read_bytes())
    assert data[4] == 3
    data[4] = 2
    (tmp_path / "old.gguf").write_bytes(data)
    assert answers(tmp_path / "old.gguf") == answers(directory)


def test_weights_of_a_file_and_of_its_directory_take_each_others_place(make: Maker) -> None:
    file, directory = make("llama", Type.Q4_0)
    wanted = answers(file)
    for first, second in ((file, directory), (directory, file)):
        llm = start(first)
        llm.sleep(2)
        llm.update_weights(second)
        llm.wake_up()
        assert answers_of(llm) == wanted


def test_a_file_stands_at_the_other_doors(make: Maker) -> None:
    file, directory = make("llama", Type.BF16)
    planned = [plan(model, device="cpu", dtype="float32")["memory"] for model in (file, directory)]
    assert planned[0] == planned[1]
    assert answers(file, load_format="dummy") == answers(directory, load_format="dummy")
    flags = ["--raw", "--max-tokens", "8", "--device", "cpu", "--temperature", "0", PROMPTS[0]]
    said = [
        subprocess.run(
            [sys.executable, "-m", "quire", "run", "--model", str(model), *flags],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for model in (file, directory)
    ]
    assert said[0] == said[1] != ""
    # Its own tokenizer is one for other models too.
    llm = LLM(str(directory), tokenizer=str(file), num_threads=1, max_model_len=128, dtype="float32")
    assert answers_of(llm) == answers(file)


def test_the_page_of_checkpoints_lists_what_is_read(make: Maker, tmp_path: Path) -> None:
    file, _ = make("llama", Type.Q8_0, num_hidden_layers=1)
    good = file.read_bytes()

    def read_are(old: bytes, new: bytes) -> set[str]:
        (tmp_path / "bad.gguf").write_bytes(good.replace(old, new, 1))
        with pytest.raises(ValueError, match="read are ") as raised:
            start(tmp_path / "bad.gguf")
        return set(str(raised.value).split("read are ")[1].replace(" and ", ", ").split(", "))

    page = (ROOT / "docs" / "checkpoints.md").read_text()
    listed = dict(re.findall(r"^\| (`?[\w. ]+`?) \| (.*?) \| .*\|$", page, re.MULTILINE))
    at = good.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    for row, found in (
        ("`general.architecture`", read_are(gguf_string(b"llama"), gguf_string(b"lamas"))),
        ("`tokenizer.ggml.model`", read_are(gguf_string(b"gpt2"), gguf_string(b"gpt9"))),
        ("`tokenizer.ggml.pre`", read_are(gguf_string(b"qwen2"), gguf_string(b"qwen9"))),
        ("types of tensors", read_are(good[at - 20 : at + 4], good[at - 20 : at] + struct.pack("<I", 13))),
    ):
        words = re.sub(r"\(.*?\)", "", listed[row]).split(";")[0]
        assert set(re.findall(r"[\w.-]+", words)) == found

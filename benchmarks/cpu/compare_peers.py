"""Measures Quire beside transformers and llama.cpp on the CPU, one process an engine.

    python benchmarks/cpu/compare_peers.py --work-dir /tmp/bench

The model is the random "0.67 B shape": hidden 2048, intermediate 5632, 12 layers, 16 heads, 4 KV heads,
head size 128, vocabulary 32,000, embeddings not tied, bfloat16. Rows: prefill of 512 tokens, decode of 64
tokens at batch 1 and 8 (prompts of 32), load time, peak memory. Engines take turns, so that a change in the
machine's memory speed meets all of them; each figure is the best of its rounds. llama.cpp takes part when
llama-cpp-python and gguf are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS = {
    "prefill 512 (tokens/s)": True,
    "decode batch 1 (tokens/s)": True,
    "decode batch 8 (tokens/s)": True,
    "load (s)": False,
    "peak memory (GiB)": False,
}
VOCAB_SIZE = 32000


def make_model(directory: Path) -> None:
    """Writes the 0.67 B shape with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=VOCAB_SIZE,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(directory)


def make_gguf(directory: Path, path: Path) -> None:
    """Writes the same weights as bf16 GGUF, with the tokenizer.json (BPE) that lies beside them, or none."""
    import gguf
    import torch
    from safetensors.torch import load_file

    config = json.loads((directory / "config.json").read_text())
    head_size, heads = config["head_dim"], config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if (directory / "tokenizer.json").exists():
        add_vocabulary(writer, json.loads((directory / "tokenizer.json").read_text()), config)
    else:
        writer.add_tokenizer_model("no_vocab")
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, tensor in load_file(directory / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            target = f"blk.{layer}.{names[part]}.weight"
            # llama.cpp pairs neighbouring elements in RoPE where transformers pairs halves.
            for suffix, count in (("q_proj", heads), ("k_proj", kv_heads)):
                if part.endswith(suffix):
                    halves = tensor.reshape(count, 2, head_size // 2, -1)
                    tensor = halves.transpose(1, 2).reshape(tensor.shape)
        else:
            target = names[stem] + ".weight"
        if tensor.ndim == 1:
            writer.add_tensor(target, tensor.float().numpy())
        else:
            raw = tensor.contiguous().view(torch.uint16).numpy().view(np.uint8)
            writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_vocabulary(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    import gguf

    special = {token["content"] for token in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    if len(tokens) != config["vocab_size"]:
        raise ValueError(f"tokenizer.json has {len(tokens)} tokens, config.json {config['vocab_size']}")
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = config["eos_token_id"]
    end = end[0] if isinstance(end, list) else end
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)


def measure(engine_name: str, model: Path, threads: int) -> dict[str, Any]:
    """One round, in this process."""
    from engines import ENGINES

    start = time.perf_counter()
    engine: Any = ENGINES[engine_name](model, threads)
    rng = np.random.default_rng(0)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [rng.integers(0, VOCAB_SIZE, length).tolist() for _ in range(count)]

    engine.prefill(prompts(1, 8)[0])
    load_seconds = time.perf_counter() - start  # until a first token was there
    engine.decode(prompts(8, 32), 4)
    num_tokens = 64
    return {
        "description": engine.description,
        "prefill 512 (tokens/s)": 512 / min(engine.prefill(prompts(1, 512)[0]) for _ in range(3)),
        "decode batch 1 (tokens/s)": (num_tokens - 1)
        / min(engine.decode(prompts(1, 32), num_tokens) for _ in range(2)),
        "decode batch 8 (tokens/s)": 8
        * (num_tokens - 1)
        / min(engine.decode(prompts(8, 32), num_tokens) for _ in range(2)),
        "load (s)": load_seconds,
        "peak memory (GiB)": peak_memory_gib(),
    }


def peak_memory_gib() -> float:
    """This program's alone: getrusage's figure outlives exec and so counts the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    return float("nan")


def memory_read_rate(threads: int) -> float:
    """GB/s that numpy reads with this many processes' worth of threads: the roof of decode at batch 1."""
    from concurrent.futures import ThreadPoolExecutor

    data = np.ones(2**27, dtype=np.float64)
    parts = np.array_split(data, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, data.nbytes / (time.perf_counter() - start) / 1e9)
    return best


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/quire-bench"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default="quire,transformers,llama_cpp")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()

    directory = args.work_dir / "llama-0.67b"
    gguf_path = args.work_dir / "llama-0.67b.gguf"
    if args.worker:
        model = gguf_path if args.worker == "llama_cpp" else directory
        print(json.dumps(measure(args.worker, model, args.threads)))
        return

    engines = args.engines.split(",")
    if importlib.util.find_spec("llama_cpp") is None or importlib.util.find_spec("gguf") is None:
        engines = [name for name in engines if name != "llama_cpp"]
    if not (directory / "model.safetensors").exists():
        make_model(directory)
    if "llama_cpp" in engines and not gguf_path.exists():
        make_gguf(directory, gguf_path)

    best: dict[str, dict[str, Any]] = {}
    for _ in range(args.rounds):
        for name in engines:
            command = [sys.executable, __file__, "--worker", name, "--threads", str(args.threads)]
            command += ["--work-dir", str(args.work_dir)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            result = json.loads(done.stdout.splitlines()[-1])
            kept = best.setdefault(name, result)
            for row, higher_is_better in ROWS.items():
                kept[row] = (max if higher_is_better else min)(kept[row], result[row])

    print(f"{cpu_name()}, {args.threads} threads, memory reads {memory_read_rate(args.threads):.1f} GB/s")
    for name in engines:
        print(f"{name}: {best[name]['description']}")
    print("| row | " + " | ".join(engines) + " |")
    print("|---|" + "---|" * len(engines))
    for row in ROWS:
        print(f"| {row} | " + " | ".join(f"{best[name][row]:.4g}" for name in engines) + " |")


if __name__ == "__main__":
    main()

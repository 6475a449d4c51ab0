"""Decode and prefill with weights of int8 beside bfloat16, on the CPU: the 0.67 B shape of compare_peers.py.

    python benchmarks/cpu/quantized_weights.py [--rounds 5] [--threads 2]

Both have random weights, one process each; they take turns. Figures are the best of the
rounds, ratios of neighbours.
Embedding and head are bfloat16 in both, as compressed-tensors' checkpoints have them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from engines import Quire

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        }
    },
}


def measure(model: Path, threads: int) -> dict[str, float]:
    """One round, in this process: tokens a second."""
    engine = Quire(model, threads, load_format="dummy")
    prompts = [[i + 1] * 32 for i in range(8)]
    engine.decode(prompts[:1], 8)
    return {
        "decode batch 1 (tokens/s)": 63 / engine.decode(prompts[:1], 64),
        "decode batch 8 (tokens/s)": 8 * 63 / engine.decode(prompts, 64),
        "prefill 512 (tokens/s)": 512 / min(engine.prefill([i] * 512) for i in (3, 4)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.threads)))
        return
    rounds: dict[str, list[dict[str, float]]] = {"bfloat16": [], "int8": []}
    with tempfile.TemporaryDirectory() as folder:
        for name in rounds:
            directory = Path(folder) / name
            directory.mkdir()
            config = CONFIG | ({"quantization_config": QUANTIZATION} if name == "int8" else {})
            (directory / "config.json").write_text(json.dumps(config))
        for _ in range(arguments.rounds):
            for name, measured in rounds.items():
                command = [sys.executable, __file__, "--only", str(Path(folder) / name)]
                command += ["--threads", str(arguments.threads)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                measured.append(json.loads(done.stdout.splitlines()[-1]))
    print("| row | bfloat16 | int8 | ratio, median of rounds (least, most) |\n|---|---|---|---|")
    for row in rounds["bfloat16"][0]:
        plain, quantized = ([each[row] for each in rounds[name]] for name in ("bfloat16", "int8"))
        ratios = sorted(q / p for p, q in zip(plain, quantized, strict=True))
        print(
            f"| {row} | {max(plain):.4g} | {max(quantized):.4g} | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f}, {ratios[-1]:.2f}) |"
        )


if __name__ == "__main__":
    main()

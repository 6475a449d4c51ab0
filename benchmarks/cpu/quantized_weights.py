"""Decode and prefill with weights of int8 beside bfloat16, on the CPU: the 0.67 B shape of compare_peers.py.

    python benchmarks/cpu/quantized_weights.py [--rounds 20] [--threads 2]

Both have random weights, in one process; they take turns of about a second, because memory is now quicker,
now slower. Figures are medians of the rounds, ratios those of neighbours.
Embedding and head are bfloat16 in both, as compressed-tensors' checkpoints have them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from engines import Quire
from peer_models import SHAPES

CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", **SHAPES["llama-0.67b"][1]}
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


def measures(engine: Quire) -> dict[str, Callable[[], float]]:
    """Each row's function: tokens a second."""
    prompts = [[i + 1] * 32 for i in range(8)]
    return {
        "decode batch 1 (tokens/s)": lambda: 31 / engine.decode(prompts[:1], 32),
        "decode batch 8 (tokens/s)": lambda: 8 * 31 / engine.decode(prompts, 32),
        "prefill 512 (tokens/s)": lambda: 512 / engine.prefill([3] * 512),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    both = []
    with tempfile.TemporaryDirectory() as folder:
        for name, extra in (("bfloat16", {}), ("int8", {"quantization_config": QUANTIZATION})):
            directory = Path(folder) / name
            directory.mkdir()
            (directory / "config.json").write_text(json.dumps(CONFIG | extra))
            both.append(measures(Quire(directory, arguments.threads, load_format="dummy")))
    print("| row | bfloat16 | int8 | ratio: median (least, quartiles, most) |\n|---|---|---|---|")
    for row in both[0]:
        for measure in both:
            measure[row]()
        pairs = [(both[0][row](), both[1][row]()) for _ in range(arguments.rounds)]
        plain, quantized = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratios = sorted(q / p for p, q in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(
            f"| {row} | {plain:.4g} | {quantized:.4g} | {middle:.2f} "
            f"({ratios[0]:.2f}, {low:.2f}, {high:.2f}, {ratios[-1]:.2f}) |"
        )


if __name__ == "__main__":
    main()

"""What adapters (LoRA) cost on the CPU: the 0.67 B shape of compare_peers.py in bfloat16, with and without.

    python benchmarks/cpu/adapters.py [--rounds 20] [--threads 2] [--rank 16]

Adapters of random values change all linears. Rows without any, with one and with as many as there are
requests take turns of about a second in one process, because memory is now quicker, now slower. Figures are
medians of the rounds, ratios to those without any of the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from engines import Quire
from peer_models import SHAPES
from quire import LoRARequest
from safetensors.torch import save_file

SHAPE = SHAPES["llama-0.67b"][1]
CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", **SHAPE}
NUM_REQUESTS = 8


def write_adapter(directory: Path, rank: int, seed: int) -> None:
    """As PEFT writes one."""
    hidden, intermediate = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    keys = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]
    sizes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (hidden, intermediate),
        "mlp.up_proj": (hidden, intermediate),
        "mlp.down_proj": (intermediate, hidden),
    }
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(SHAPE["num_hidden_layers"]):
        for name, (num_inputs, num_outputs) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape in (("A", (rank, num_inputs)), ("B", (num_outputs, rank))):
                values = 0.01 * torch.randn(shape, generator=generator)
                tensors[f"{prefix}.lora_{part}.weight"] = values.bfloat16()
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        engine = Quire(
            Path(folder),
            arguments.threads,
            load_format="dummy",
            enable_lora=True,
            max_loras=NUM_REQUESTS,
            max_lora_rank=arguments.rank,
        )
        adapters: list[LoRARequest | None] = []
        for i in range(NUM_REQUESTS):
            write_adapter(Path(folder) / f"a{i}", arguments.rank, i)
            adapter = LoRARequest(f"a{i}", 0, Path(folder) / f"a{i}")
            engine.add_lora(adapter)
            adapters.append(adapter)

        prompts = [[i + 1] * 32 for i in range(NUM_REQUESTS)]
        given: dict[str, list[LoRARequest | None]] = {
            "none": [None] * NUM_REQUESTS,
            "1 adapter": adapters[:1] * NUM_REQUESTS,
            "8 adapters": adapters,
        }

        def rates(name: str) -> dict[str, Callable[[], float]]:
            """Each row's function: tokens a second."""
            loras = given[name]
            return {
                "decode batch 1": lambda: 31 / engine.decode(prompts[:1], 32, loras[:1]),
                "decode batch 8": lambda: 8 * 31 / engine.decode(prompts, 32, loras),
                "prefill 512": lambda: 512 / engine.prefill([3] * 512, loras[0]),
            }

        measured = {name: rates(name) for name in given}
        print("| row, tokens/s | " + " | ".join(given) + " | ratios |\n|" + "---|" * (len(given) + 2))
        for row in measured["none"]:
            for functions in measured.values():
                functions[row]()
            rounds = [
                {name: functions[row]() for name, functions in measured.items()}
                for _ in range(arguments.rounds)
            ]
            medians = {name: statistics.median(values[name] for values in rounds) for name in given}
            ratios = {
                name: statistics.median(values[name] / values["none"] for values in rounds)
                for name in list(given)[1:]
            }
            print(
                f"| {row} | "
                + " | ".join(f"{value:.4g}" for value in medians.values())
                + " | "
                + ", ".join(f"{value:.2f}" for value in ratios.values())
                + " |"
            )


if __name__ == "__main__":
    main()
